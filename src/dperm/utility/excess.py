"""Excess risk as it is: of objective perturbation, along ε and along the number of records, to hold bounds against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives import LinearObjective, Records, RegularisedSum
from dperm.solvers import minimise
from dperm.utility.bounds import Problem, measured_problem
from dperm.utility.curve import EpsilonCurve
from dperm.utility.path import UtilityPath

_POINTS = 13
_SMALLEST = 1e-12  # excess risks below are rounding


@dataclass(frozen=True)
class MeasuredExcess:
    """Mean excess of J(θ) = mean loss + (λ/2)‖θ‖² over draws of the noise: `excess` (k,) at `epsilons` (k,) on all records, and
    `by_size` (s,) on the first `sizes` (s,) of them at problem.epsilon. `problem` has the constants found. Not private."""

    problem: Problem
    epsilons: Array
    excess: Array
    sizes: NDArray[np.intp]
    by_size: Array

    @property
    def slopes(self) -> tuple[float, float]:
        """Log-log slopes of what was measured: in the number of records, and in ε. Fitted by least squares."""
        return _slope(self.sizes, self.by_size), _slope(self.epsilons, self.excess)


def measured_excess(
    objective: LinearObjective,
    records: Records,
    *,
    penalty: float = 1e-3,
    epsilon: float = 1.0,
    delta: float = 1e-5,
    low: float = 0.1,
    high: float = 10.0,
    draws: int = 20,
    random_state: int | None = None,
) -> MeasuredExcess:
    """Of sharp objective perturbation with Λ = `penalty`·n, on all records along ε, and on shares down to 1/16 at `epsilon`.

    NOT PRIVATE. ValueError where `penalty` is too small for `low`, or there are too few records.
    """
    check.positive("penalty", penalty)
    if not low <= check.positive("epsilon", epsilon) <= high:
        raise ValueError(f"Expected epsilon between {low:g} and {high:g}, got {epsilon!r}.")
    if len(records) < 160:
        raise ValueError(f"Expected at least 160 records, got {len(records)}.")
    generator = np.random.default_rng(random_state)
    order = generator.permutation(len(records))
    directions = generator.standard_normal((check.integer("draws", draws), objective.dimension))

    def found(part: Records, at: Array) -> tuple[Array, Problem]:
        size = len(part)
        facts = replace(objective.facts, public_size=size)
        curve = EpsilonCurve(facts, delta, float(at.min()) * 0.999, float(at.max()) * 1.001, strong_convexity=penalty * size)
        regularised = replace(objective.with_strong_convexity(penalty * size), public_size=size)
        minimiser = minimise(RegularisedSum(regularised, part, np.zeros(objective.dimension)), 1e-6 * facts.lipschitz).theta
        least = _risk(regularised, part, minimiser)
        path = UtilityPath(objective, part, curve, directions=directions)
        thetas = path.theta(at)  # (draws, k, p)
        risks = np.array([[_risk(regularised, part, theta) for theta in line] for line in thetas])
        problem = measured_problem(regularised, part, minimiser, epsilon, delta)
        return np.maximum((risks - least).mean(axis=0), _SMALLEST), problem

    epsilons = np.geomspace(low, high, _POINTS)
    excess, problem = found(records, epsilons)
    sizes = np.unique(np.geomspace(len(records) / 16, len(records), 5).astype(np.intp))
    by_size = np.array([found(records.subset(order[:size]), np.array([epsilon]))[0][0] for size in sizes])
    return MeasuredExcess(problem, epsilons, excess, sizes, by_size)


def _risk(objective: LinearObjective, records: Records, theta: Array) -> float:
    size = len(records)
    return RegularisedSum(objective, records).evaluate(theta, False)[0] / size


def _slope(at: Array | NDArray[np.intp], values: Array) -> float:
    return float(np.polyfit(np.log(at.astype(np.float64)), np.log(values), 1)[0])
