"""A linear objective on given records, plus a linear term, as one function of θ for a solver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dperm.objectives.linear import LinearObjective
from dperm.objectives.records import Records

__all__ = ["RegularisedSum"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class RegularisedSum:
    """J(θ) = Σ_i ℓ_i(θ) + (strong_convexity/2)·‖θ‖² + linearᵀθ."""

    objective: LinearObjective
    records: Records
    linear: Array | float = 0.0

    @property
    def dimension(self) -> int:
        return self.objective.dimension

    @property
    def strong_convexity(self) -> float:
        return self.objective.strong_convexity

    def evaluate(self, theta: Array, hessian: bool) -> tuple[float, Array, Array | None]:
        """Value, gradient (p,), Hessian (p, p) if asked; with a leading axis each for m problems, θ (m, p), at once."""
        value, gradient, matrix = self.objective.evaluate(theta, self.records, hessian)
        modulus = self.strong_convexity
        if theta.ndim > 1:
            value += (modulus / 2 * theta * theta + self.linear * theta).sum(axis=1)
        else:
            value += modulus / 2 * float(theta @ theta) + float(np.sum(self.linear * theta))
        gradient += modulus * theta + self.linear
        if matrix is not None:
            np.einsum("...ii->...i", matrix)[...] += modulus
        return value, gradient, matrix

    def hessian_product(self, theta: Array, vector: Array) -> Array:
        return self.objective.hessian_product(theta, self.records, vector) + self.strong_convexity * vector
