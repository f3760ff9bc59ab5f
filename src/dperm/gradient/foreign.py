"""Parts of a plan that dperm did not write: what is then assumed of them."""

from __future__ import annotations

from typing import Any

from dperm.privacy import Assumption

__all__ = ["foreign_parts"]

_ASSUMED = {
    "sampler": "draws each record by itself, with a probability that is at most its rate",
    "query": "gives each record a vector that depends on it, on θ and on released numbers alone",
    "bounding": "has the sensitivity that it states, whatever the records are, and no state but released numbers",
    "noise": "has levels that do not depend on records",
    "post": "reads released numbers alone",
    "update": "reads released numbers alone",
}


def foreign_parts(plan: Any) -> list[Assumption]:
    """An assumption for each part of a stranger's type, and for the plan itself."""
    parts = {"plan": plan} | {name: getattr(plan, name, None) for name in _ASSUMED}
    return [
        Assumption(
            f"The {name.replace('_', ' ')} {type(part).__module__}.{type(part).__qualname__} "
            + _ASSUMED.get(name, "releases what its event states, through the channel")
            + ".",
            "caller",
            "stated; replay and the white-box audit compare it with what happens",
        )
        for name, part in parts.items()
        if part is not None and not type(part).__module__.startswith("dperm.")
    ]
