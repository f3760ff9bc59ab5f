"""Losses of records that count for less than others: what classes weigh, and records by themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.objectives.losses import Loss

__all__ = ["Weighted"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Weighted(Loss):
    """u·ℓ(t, ±1) for a weight u in [0, 1], written as the target ±u: ℓ is a loss of one prediction and targets ±1.

    A record's weight is as private as its row. The constants are those of ℓ: a record with weight u = k/K is the mean of k
    copies of itself and K − k records whose loss is constant, so that what holds of means holds of it, the sharp bound too
    (docs/objective-perturbation.md); other u are limits of such.
    """

    base: Loss

    def __post_init__(self) -> None:
        base = self.base
        if isinstance(base, Weighted) or base.outputs != 1 or not base.classification or sorted(base.extremes) != [-1.0, 1.0]:
            raise ValueError(f"Expected a loss of one prediction and targets of -1 and 1 to be weighted, got {base.name}.")

    @property
    def name(self) -> str:
        return f"weighted {self.base.name}"

    def settings(self) -> dict[str, Any]:
        return self.base.settings()

    def with_settings(self, **given: Any) -> Weighted:
        return Weighted(self.base.with_settings(**given))

    def admit(self, targets: Array) -> Array:
        """Clipped to weights of at most 1."""
        return np.clip(targets, -1.0, 1.0)

    def value(self, t: Array, y: Array) -> Array:
        return np.abs(y) * self.base.value(t, np.sign(y))

    def slope(self, t: Array, y: Array) -> Array:
        return np.abs(y) * self.base.slope(t, np.sign(y))

    def curvature(self, t: Array, y: Array) -> Array:
        return np.abs(y) * self.base.curvature(t, np.sign(y))

    def judged(self, t: Array, y: Array) -> Array:
        return np.abs(y) * self.base.judged(t, np.sign(y))

    def probability(self, t: Array) -> Array:
        return self.base.probability(t)

    def lipschitz(self, data_norm: float) -> float:
        return self.base.lipschitz(data_norm)

    def smoothness(self, data_norm: float) -> float:
        return self.base.smoothness(data_norm)

    def bend(self, data_norm: float) -> float:
        return self.base.bend(data_norm)

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        return self.base.slope_error(largest, steepest, curvature) + 2.0**-51 * steepest

    def at_zero(self) -> float:
        return self.base.at_zero()

    @property
    def rank_one(self) -> bool:
        return self.base.rank_one

    @property
    def sharp(self) -> str | None:
        return self.base.sharp

    @property
    def ball(self) -> float | None:
        return self.base.ball
