"""How many knots curves get, by a public rule."""

from __future__ import annotations

import math

from dperm.data.schema.columns import Column
from dperm.data.schema.schema import Schema
from dperm.privacy.accountants.gaussian import gaussian_mu

#: knots, and the least signal that they need: fitted on made tables alone, see docs/curves.md
_RULE = ((12, 150.0), (8, 50.0), (5, 10.0))
#: where the number of records is private: the most of these that leave so few parameters
_UNKNOWN, _PARAMETERS = (8, 5), 1000


def usual_knots(schema: Schema, epsilon: float, delta: float, public_size: int | None = None) -> int:
    """As many as the signal S = n·μ/√d lets be told apart, d the features that there are then; 0: straight lines.

    Where the number of records is private, 8 or 5 as long as there are no more than 1,000 parameters. Without numbers there is
    nothing to bend.
    """
    if not any(isinstance(part, Column) and part.type == "number" for part in schema.parts):
        return 0
    models = len(schema.classes) if len(schema.classes) > 2 else 1
    if public_size is None:
        few = (knots for knots in _UNKNOWN if models * schema.with_curves(knots).dimension <= _PARAMETERS)
        return next(few, 0)
    strength = public_size * (gaussian_mu(epsilon, delta) if delta else epsilon)
    for knots, least in _RULE:
        if strength >= least * math.sqrt(models * schema.with_curves(knots).dimension):
            return knots
    return 0
