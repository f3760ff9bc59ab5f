"""What the mechanisms that release a minimiser share: a solver that comes within a public tolerance on every data set.

Proof and constants: docs/objective-perturbation.md, "The solver's error".
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dperm._random import NORMAL_ERROR
from dperm.objectives import LinearObjective, PublicFacts, Records, RegularisedSum
from dperm.privacy.accountants.objective_perturbation import LONGER
from dperm.solvers import MOST_EVALUATIONS, Solution, approach, descend, minimise_many, most_steps

_ROUNDING = 2.0**-53
_LEAST = 1e-8  # of the largest gradient: far below any noise
_MARGIN = 1.25


def _farthest(facts: PublicFacts, strong_convexity: float, noise_std: float) -> tuple[float, float]:
    """Bounds on the length of the linear term, but for a chance that is in δ (`LONG_CHANCE`), and on the minimiser's: J(θ) ≤
    J(0), and losses are at most `loss_at_zero` there."""
    linear = noise_std * (math.sqrt(facts.dimension) + LONGER) + 2 * facts.lipschitz if noise_std else 0.0
    most = facts.loss_at_zero
    if most is None or facts.size_limit is None:
        raise ValueError("Expected facts of an objective with records: losses at 0 and a limit on their number.")
    length = (linear + math.sqrt(linear**2 + 2 * strong_convexity * facts.size_limit * most)) / strong_convexity
    return linear, min(length * (1 + 2.0**-40), facts.radius or math.inf)


def certain_tolerance(facts: PublicFacts, strong_convexity: float, noise_std: float = 0.0) -> float:
    """γ: `solve` comes within γ ÷ strong_convexity of the minimiser whatever the records are, up to `facts.size_limit` of them.
    Public.

    `noise_std` is that of the objective's linear term.
    """
    linear, farthest = _farthest(facts, strong_convexity, noise_std)
    assert facts.size_limit is not None and facts.loss_at_zero is not None
    steep, curved, rows = facts.lipschitz, facts.smoothness, facts.size_limit * facts.unit.rows  # each row rounds
    penalty = strong_convexity * (1 + facts.roughness)
    row = 32 * steep + 4 * curved / facts.data_norm * (1 + facts.loss_at_zero)
    row += (8 + facts.dimension / 128) * curved * farthest
    gradient = rows * row + 8 * (penalty * farthest + linear)
    bends = facts.size_limit * curved + penalty
    steps = 12 * (rows * steep + penalty * farthest + linear)
    steps += (12 * bends + 68 * math.sqrt(strong_convexity) * math.sqrt(bends)) * farthest
    drawn = NORMAL_ERROR * noise_std * math.sqrt(facts.dimension)  # of the linear term
    return max(_LEAST * steep, _MARGIN * _ROUNDING * (2 * gradient + steps) + drawn)


def most_evaluations(facts: PublicFacts, strong_convexity: float, tolerance: float, noise_std: float = 0.0) -> int:
    """Passes over the records that `solve` makes at most. Public."""
    _, farthest = _farthest(facts, strong_convexity, noise_std)
    assert facts.size_limit is not None
    condition = (facts.smoothness * facts.size_limit / strong_convexity + 1 + facts.roughness) * (1 + 2.0**-20)
    left = tolerance - NORMAL_ERROR * noise_std * math.sqrt(facts.dimension)
    return MOST_EVALUATIONS + most_steps(condition, strong_convexity * farthest / left)


def chosen_tolerance(given: float | None, facts: PublicFacts, strong_convexity: float, noise_std: float = 0.0) -> float:
    """γ as it was set by hand, or `certain_tolerance`. ValueError for one that some data set would not let a solver reach."""
    least = certain_tolerance(facts, strong_convexity, noise_std)
    if given is not None and given < least:
        raise ValueError(
            f"Expected tolerance >= {least:.3g}, which a solver reaches for all of {facts.size_limit:,} records, got {given!r}."
        )
    return least if given is None else given


def solve(objective: LinearObjective, records: Records, linear: Any, tolerance: float, noise_std: float = 0.0) -> Solution:
    """A point within tolerance ÷ strong_convexity of the minimiser, for a tolerance of at least `certain_tolerance`.

    Nothing is raised, whatever the records are: where Newton's method does not come so near, a descent follows that is proved to.
    A linear term (m, p) asks for the minimisers of m problems at once; that is for audits, and raises SolverError.
    """
    tolerance -= NORMAL_ERROR * noise_std * math.sqrt(objective.dimension)  # for the linear term's own error
    problem = RegularisedSum(objective, records, linear)
    if np.ndim(linear) > 1:
        return minimise_many(problem, np.zeros_like(linear), tolerance / 2, objective.radius)
    solution = approach(problem, tolerance, objective.radius)
    if solution.residual <= tolerance:
        return solution
    _, farthest = _farthest(objective.facts, objective.strong_convexity, noise_std)
    descent = descend(problem, tolerance, farthest, solution)
    return replace(descent, evaluations=solution.evaluations + descent.evaluations)
