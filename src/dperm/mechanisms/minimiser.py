"""What the mechanisms that release a minimiser share: a public tolerance that a solver reaches on every data set.

Proof and constants: docs/objective-perturbation.md, "The solver's error".
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dperm._random import NORMAL_ERROR
from dperm.objectives import LinearObjective, PublicFacts, Records, RegularisedSum
from dperm.solvers import Solution, minimise, minimise_many

__all__ = ["certain_tolerance", "chosen_tolerance", "solve"]

_ROUNDING = 2.0**-53
_LEAST = 1e-8  # of the largest gradient: far below any noise
_BEYOND = 20.0  # a linear term's length exceeds its typical one by so many standard deviations with probability below e^-200
_MARGIN = 1.25


def _farthest(facts: PublicFacts, strong_convexity: float, noise_std: float) -> tuple[float, float]:
    """Bounds on the length of the linear term, and on the minimiser's: J(θ) ≤ J(0), and losses are at most `loss_at_zero`
    there."""
    linear = noise_std * (math.sqrt(facts.dimension) + _BEYOND) if noise_std else 0.0
    most = facts.loss_at_zero
    if most is None or facts.size_limit is None:
        raise ValueError("Expected facts of an objective with records: losses at 0 and a limit on their number.")
    radius = (linear + math.sqrt(linear**2 + 2 * strong_convexity * facts.size_limit * most)) / strong_convexity
    return linear, min(radius, facts.radius or math.inf)


def certain_tolerance(facts: PublicFacts, strong_convexity: float, noise_std: float = 0.0) -> float:
    """γ: a residual that is reached whatever the records are, up to `facts.size_limit` of them. Public.

    `noise_std` is that of the objective's linear term.
    """
    assert facts.size_limit is not None
    linear, farthest = _farthest(facts, strong_convexity, noise_std)
    farthest *= 2  # descent stays that near
    steep, curved, size = facts.lipschitz, facts.smoothness, facts.size_limit * (facts.person_rows or 1)  # each row rounds
    record = 16 * steep + 9 * curved * farthest + 4 * curved / facts.data_norm
    others = 8 * (strong_convexity * (1 + facts.roughness) * farthest + linear)
    drawn = NORMAL_ERROR * noise_std * math.sqrt(facts.dimension)  # of the linear term
    return max(_LEAST * steep, _MARGIN * (2 * _ROUNDING * (size * record + others) + drawn))


def chosen_tolerance(given: float | None, facts: PublicFacts, strong_convexity: float, noise_std: float = 0.0) -> float:
    """γ as it was set by hand, or `certain_tolerance`. ValueError for one that some data set would not let a solver reach."""
    least = certain_tolerance(facts, strong_convexity, noise_std)
    if given is not None and given < least:
        raise ValueError(
            f"Expected tolerance >= {least:.3g}, which a solver reaches for all of {facts.size_limit:,} records, got {given!r}."
        )
    return least if given is None else given


def solve(objective: LinearObjective, records: Records, linear: Any, tolerance: float, noise_std: float = 0.0) -> Solution:
    """The minimiser to a residual of `tolerance`, at least `certain_tolerance`: reached for all records up to the limit.

    A linear term (m, p) asks for the minimisers of m problems at once.
    """
    tolerance -= NORMAL_ERROR * noise_std * math.sqrt(objective.dimension)  # for the linear term's own error
    problem = RegularisedSum(objective, records, linear)
    if np.ndim(linear) > 1:
        return minimise_many(problem, np.zeros_like(linear), tolerance / 2, objective.radius)
    facts, modulus = objective.facts, objective.strong_convexity
    assert facts.size_limit is not None
    condition = facts.smoothness * facts.size_limit / modulus + 1 + facts.roughness
    _, farthest = _farthest(facts, modulus, noise_std)
    steps = math.ceil(condition * max(1.0, math.log(4 * farthest * modulus / tolerance)))
    return minimise(problem, tolerance, objective.radius, descent_steps=steps)
