"""What the mechanisms that release a minimiser share: a public tolerance and the assumption that it is reached."""

from __future__ import annotations

from dperm.objectives import LinearObjective, PublicFacts, Records, RegularisedSum
from dperm.privacy import Assumption
from dperm.solvers import Solution, minimise

__all__ = ["default_tolerance", "solve", "solver_assumption"]


def default_tolerance(facts: PublicFacts) -> float:
    """γ: far below any noise, far above rounding for up to a few million records (more where stated)."""
    return facts.lipschitz * max(1e-8, 4e-15 * (facts.public_size or 0))


def solve(objective: LinearObjective, records: Records, linear: object, tolerance: float) -> Solution:
    """To half the tolerance: the other half is for the rounding error of the gradient that certifies it."""
    problem = RegularisedSum(objective, records, linear)  # type: ignore[arg-type]
    return minimise(problem, tolerance / 2, objective.radius)


def solver_assumption(tolerance: float) -> Assumption:
    return Assumption(
        f"The solver reaches a gradient norm of {tolerance:.3g} on every data set; noise covers what is left.",
        "library",
        "checked on this run; an error instead would itself be an output",
    )
