"""What the mechanisms that release a minimiser share: a public tolerance and the assumption that it is reached."""

from __future__ import annotations

from typing import Any

import numpy as np

from dperm.objectives import LinearObjective, PublicFacts, Records, RegularisedSum
from dperm.privacy import Assumption
from dperm.solvers import Solution, minimise, minimise_many

__all__ = ["default_tolerance", "solve", "solver_assumption"]


def default_tolerance(facts: PublicFacts) -> float:
    """γ: far below any noise, far above rounding for up to a few million records (more where stated)."""
    return facts.lipschitz * max(1e-8, 4e-15 * (facts.public_size or 0))


def solve(objective: LinearObjective, records: Records, linear: Any, tolerance: float) -> Solution:
    """To half the tolerance: the other half is for the rounding error of the gradient that certifies it.

    A linear term (m, p) asks for the minimisers of m problems at once.
    """
    problem = RegularisedSum(objective, records, linear)
    if np.ndim(linear) > 1:
        return minimise_many(problem, np.zeros_like(linear), tolerance / 2, objective.radius)
    return minimise(problem, tolerance / 2, objective.radius)


def solver_assumption(tolerance: float) -> Assumption:
    return Assumption(
        f"The solver reaches a gradient norm of {tolerance:.3g} on every data set; noise covers what is left.",
        "library",
        "checked on this run; an error instead would itself be an output",
    )
