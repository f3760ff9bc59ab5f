"""Parts of a plan that dperm did not write: what is then assumed of them."""

from __future__ import annotations

from typing import Any

from dperm._family import is_third_party
from dperm.gradient.query import Query
from dperm.gradient.update import Update
from dperm.privacy.certificates.assumptions import Assumption, stranger

_ASSUMED = {
    "sampler": "draws each record by itself, with a probability that is at most its rate",
    "query": "gives each record a vector that depends on it, on θ and on released numbers alone",
    "bounding": "has the sensitivity that it states, whatever the records are, and no state but released numbers",
    "noise": "has levels that do not depend on records",
    "correlation": "is the matrix that it states: its columns' products are no larger, and a step takes back what it says",
    "post": "reads released numbers alone",
    "update": "reads released numbers alone",
    "optimizer": "reads released numbers alone",
}


def third_party_assumptions(plan: Any) -> list[Assumption]:
    """An assumption for each part of a stranger's type, parts of parts among them, and for the plan itself; and what a query of
    ours rests on."""
    parts = [("plan", plan)]
    for name in _ASSUMED:
        part = getattr(plan, name, None)
        while part is not None:
            parts.append((name, part))
            if isinstance(part, Update) and part.steps_with is not None:
                parts.append(("optimizer", part.steps_with))
            part = getattr(part, name, None)  # an average holds the update that it averages
    query = getattr(plan, "query", None)
    rested_on = query.assumptions(amplified=plan.sampler.rate < 1) if isinstance(query, Query) else ()
    return list(rested_on) + [
        stranger(name.replace("_", " "), part, _ASSUMED.get(name, "releases what its event states, through the channel"))
        for name, part in parts
        if is_third_party(part)
    ]
