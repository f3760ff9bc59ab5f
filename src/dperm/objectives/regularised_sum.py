"""A linear objective on given records, plus a linear term, as one function of θ for a solver."""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace

import numpy as np

from dperm._types import Array
from dperm.objectives.linear import LinearObjective
from dperm.objectives.records import Records


def _squares(records: Records) -> float:
    """Σ ‖x_i‖²."""
    return sum(float(batch.norms @ batch.counted(batch.norms)) for batch in records.in_turn())


@dataclass(frozen=True)
class RegularisedSum:
    """J(θ) = Σ_i ℓ_i(θ) + (strong_convexity/2)·(‖θ‖² + θᵀRθ) + linearᵀθ."""

    objective: LinearObjective
    records: Records
    linear: Array | float = 0.0

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    @property
    def strong_convexity(self) -> float:
        return self.objective.strong_convexity

    def smoother(self, factor: float) -> RegularisedSum | None:
        """The same with bends of the loss that are `factor` ≥ 1 times as wide; None where there is none."""
        objective = self.objective.smoother(factor)
        return None if objective is None else replace(self, objective=objective)

    def evaluate(self, theta: Array, hessian: bool) -> tuple[float, Array, Array | None]:
        """Value, gradient (p,), Hessian (p, p) if asked; with a leading axis each for m problems, θ (m, p), at once."""
        value, gradient, matrix = self.objective.evaluate(theta, self.records, hessian)
        penalty = self.strong_convexity * self.objective.penalty_gradient(theta)
        added = ((penalty / 2 + self.linear) * theta).sum(axis=-1)
        value += added if theta.ndim > 1 else float(added)
        gradient += penalty + self.linear
        if matrix is not None:
            matrix += self.strong_convexity * self.objective.penalty_hessian()
        return value, gradient, matrix

    def certified_gradient(self, theta: Array) -> tuple[Array, float]:
        """The gradient (p,) and a bound on its distance from the true one: sums over records are exact, see
        `LinearObjective.exact_gradient`."""
        total, error = self.objective.exact_gradient(theta, self.records)
        penalty = self.strong_convexity * self.objective.penalty_gradient(theta)
        gradient = total + penalty + self.linear
        # the last three operations, the sum's own rounding to a double, and the penalty's
        rough = self.strong_convexity * self.objective.facts.roughness * theta
        sizes = [total, penalty, rough, np.asarray(self.linear)]
        return gradient, error + 2.0**-51 * sum(float(np.linalg.norm(size)) for size in sizes)

    @property
    def curvature_bound(self) -> float:
        """A Lipschitz constant of the gradient: what the records' norms give."""
        squares = self.records.total(_squares, operator.add)
        regulariser = self.strong_convexity * (1 + self.objective.facts.roughness)
        return (self.objective.curvature * squares + regulariser) * (1 + 2.0**-30)

    def hessian_product(self, theta: Array, vector: Array) -> Array:
        penalty = self.strong_convexity * self.objective.penalty_gradient(vector)
        return self.objective.hessian_product(theta, self.records, vector) + penalty
