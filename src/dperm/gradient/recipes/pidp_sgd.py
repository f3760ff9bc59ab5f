"""PIDP-SGD as published: claimed, not certified."""

from __future__ import annotations

from dperm.gradient.pidp import PidpPlan
from dperm.gradient.recipes.recipe import budgeted_recipe
from dperm.gradient.update import SGD, Update


@budgeted_recipe
def pidp_sgd(
    *,
    epsilon: float,
    delta: float,
    public_size: int | None,
    steps: int | None = None,
    refreshes: int = 1,
    modulus: float = 0.01,
    space: float = 10.0,
    constant: float = 2.0,
    lipschitz: tuple[float, float, float] | None = None,
    update: Update | None = None,
) -> PidpPlan:
    """`steps` (None: public_size) steps on single records; see `PidpPlan`. Networks need `lipschitz`."""
    if public_size is None:
        raise ValueError("Expected public_size for PIDP-SGD, whose noise is made for a known number of records.")
    count = public_size if steps is None else steps
    return PidpPlan(epsilon, delta, count, update or SGD(0.1), public_size, refreshes, modulus, space, constant, lipschitz)
