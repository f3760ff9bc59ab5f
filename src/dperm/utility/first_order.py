"""Utility at other ε from one training: value and slope at the ε that was measured (Li, Liu, Li, Wang, Liu, "Towards practical
differential privacy in data analysis: understanding the effect of epsilon on utility in private ERM", Theorem 3 and Algorithm 1).

The noise's slope in ε has another sign than they print: docs/errata.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg as la
from numpy.typing import ArrayLike

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives import LinearObjective, Records, RegularisedSum
from dperm.solvers import minimise
from dperm.utility.curve import EpsilonCurve

Variable = Literal["epsilon", "inverse", "log"]

_TOLERANCE = 1e-8  # of the noise: how near to the minimiser


@dataclass(frozen=True)
class FirstOrder:
    """Mean training loss F along ε for m draws of the noise: `loss` (m,) and `slope` (m,), dF/dε, at ε = `measured`; `theta`
    (m, p) and `theta_slope` (m, p), dθ/dε. Not private."""

    measured: float
    theta: Array
    theta_slope: Array
    loss: Array
    slope: Array

    def training_loss(self, epsilons: ArrayLike, variable: Variable = "epsilon") -> Array:
        """(m, k): the tangent in ε, as published, in 1/ε ("inverse") or in ln ε ("log"), which bend less."""
        at = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
        for epsilon in at:
            check.positive("each epsilon", float(epsilon))
        moved = {
            "epsilon": at - self.measured,
            "inverse": -(self.measured**2) * (1 / at - 1 / self.measured),
            "log": self.measured * np.log(at / self.measured),
        }[check.choice("variable", variable, ("epsilon", "inverse", "log"))]
        return self.loss[:, None] + self.slope[:, None] * moved

    def epsilon_for(self, target: float, variable: Variable = "epsilon") -> float | None:
        """The ε at which the tangent of the mean over draws reaches this training loss (Algorithm 1); None where none does."""
        slope, apart = float(self.slope.mean()), target - float(self.loss.mean())
        if slope == 0:
            return self.measured if apart == 0 else None
        moved = apart / slope
        check.choice("variable", variable, ("epsilon", "inverse", "log"))
        if variable == "log":
            return float(self.measured * np.exp(moved / self.measured))
        if variable == "epsilon":
            found = self.measured + moved
            return found if found > 0 else None
        inverse = 1 / self.measured - moved / self.measured**2
        return 1 / inverse if inverse > 0 else None


def first_order(
    objective: LinearObjective,
    records: Records,
    curve: EpsilonCurve,
    measured: float,
    *,
    draws: int = 1,
    directions: ArrayLike | None = None,
    random_state: int | np.random.Generator | None = None,
) -> FirstOrder:
    """The estimate from a training at ε = `measured` for each direction of the noise; see `UtilityPath` for these."""
    refuse_rough(objective)
    chosen = admit_directions(objective, draws, directions, random_state)
    (noise,), (modulus,) = curve.noise_std([measured]), curve.modulus([measured])
    (noise_slope,), (modulus_slope,) = curve.slopes([measured])
    records = records.relabelled(objective.loss.admit(records.targets))
    objective = objective.with_strong_convexity(float(modulus))
    size = max(1, len(records))
    thetas, theta_slopes, losses, slopes = np.empty_like(chosen), np.empty_like(chosen), list[float](), list[float]()
    for draw, direction in enumerate(chosen):
        linear = noise * direction
        theta = minimise(RegularisedSum(objective, records, linear), _TOLERANCE * float(np.linalg.norm(linear))).theta
        value, gradient, _ = objective.evaluate(theta, records)
        factor = la.cho_factor(objective.hessian(theta, records) + modulus * objective.penalty_hessian(), lower=True)
        change = -la.cho_solve(factor, noise_slope * direction + modulus_slope * objective.penalty_gradient(theta))
        thetas[draw], theta_slopes[draw] = theta, change
        losses.append(value / size)
        slopes.append(float(gradient @ change) / size)
    return FirstOrder(float(measured), thetas, theta_slopes, np.array(losses), np.array(slopes))


def refuse_rough(objective: LinearObjective) -> None:
    """ValueError for an objective whose minimiser is not smooth in ε."""
    if objective.radius is not None:
        raise ValueError("Expected an objective without a ball: what a ball holds is not smooth in epsilon.")
    if not objective.facts.smoothness < math.inf or objective.outputs > 1:
        raise ValueError(f"Expected a smooth loss of one output, got {objective.loss.name}.")


def admit_directions(
    objective: LinearObjective, draws: int, directions: ArrayLike | None, random_state: int | np.random.Generator | None
) -> Array:
    """(m, p): those that are given, or standard normals. ValueError where their shape does not fit."""
    if directions is None:
        shape = check.integer("draws", draws), objective.dimension
        return np.random.default_rng(random_state).standard_normal(shape)
    found = np.atleast_2d(np.asarray(directions, dtype=np.float64))
    if found.ndim != 2 or found.shape[1] != objective.dimension or not len(found):
        raise ValueError(f"Expected directions of shape (m, {objective.dimension}), got {np.shape(directions)}.")
    return found
