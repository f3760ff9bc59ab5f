"""Losses of records that count for less than others: what classes weigh, and records by themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm._types import Array
from dperm.objectives.losses import Loss
from dperm.objectives.targets import ClassNumbers, Link, Targets


def _admit_beside_weights(admit: Callable[[Array], Array], targets: Array) -> Array:
    """Targets as `admit` has them, (n,) or (n, 2) with weights, which are clipped to [0, 1]."""
    if targets.ndim == 1:
        return admit(targets)
    return np.column_stack([admit(targets[:, 0]), np.clip(targets[:, 1], 0.0, 1.0)])


def admit_class_targets(targets: Array, classes: int) -> Array:
    """Class numbers 0 … K − 1, (n,) or (n, 2) with weights, which are clipped to [0, 1]."""
    return _admit_beside_weights(lambda numbers: ClassNumbers(classes).admit(numbers), targets)


def weights_apart(targets: Array) -> tuple[Array, Array]:
    """(n,) targets, and (n,) weights in [0, 1], whatever a stranger's loss admits: 1 where there are none."""
    if targets.ndim == 1:
        return targets, np.ones(len(targets))
    return targets[:, 0], np.fmin(np.fmax(targets[:, 1], 0.0), 1.0)


@dataclass(frozen=True)
class Weighted(Loss):
    """u·ℓ(t, y) for a weight u in [0, 1] beside each target: targets (b, 2) hold y and u. Of targets (b,) each counts whole.

    A record's weight is as private as its row. The constants are those of ℓ: a record with weight u = k/K is the mean of k
    copies of itself and K − k records whose loss is constant, so that what holds of means holds of it, the sharp bound too
    (docs/objective-perturbation.md); other u are limits of such.
    """

    base: Loss

    weighs = True

    def __post_init__(self) -> None:
        if isinstance(self.base, Weighted):
            raise ValueError("Expected a loss to be weighted, got one that is.")

    @property
    def name(self) -> str:
        return f"weighted {self.base.name}"

    @property
    def plain(self) -> Loss:
        return self.base  # itself: what a stranger's says is plain in it may be anything

    def settings(self) -> dict[str, Any]:
        return self.base.settings()

    def with_settings(self, **given: Any) -> Weighted:
        return Weighted(self.base.with_settings(**given))

    def admit(self, targets: Array) -> Array:
        """Weights are clipped to [0, 1]."""
        return _admit_beside_weights(self.base.admit, targets)

    def value(self, t: Array, y: Array) -> Array:
        return self.base.value(t, y) if y.ndim == 1 else y[:, 1] * self.base.value(t, y[:, 0])

    def slope(self, t: Array, y: Array) -> Array:
        if y.ndim == 1:
            return self.base.slope(t, y)
        return (y[:, 1:] if self.outputs > 1 else y[:, 1]) * self.base.slope(t, y[:, 0])

    def curvature(self, t: Array, y: Array) -> Array:
        return self.base.curvature(t, y) if y.ndim == 1 else y[:, 1] * self.base.curvature(t, y[:, 0])

    def curvatures(self, t: Array, y: Array) -> Array:
        return self.base.curvatures(t, y) if y.ndim == 1 else y[:, 1, None, None] * self.base.curvatures(t, y[:, 0])

    def judged(self, t: Array, y: Array) -> Array:
        return self.base.judged(t, y) if y.ndim == 1 else y[:, 1] * self.base.judged(t, y[:, 0])

    @property
    def link(self) -> Link:
        return self.base.link

    def lipschitz(self, data_norm: float) -> float:
        return self.base.lipschitz(data_norm)

    def smoothness(self, data_norm: float) -> float:
        return self.base.smoothness(data_norm)

    def bend(self, data_norm: float) -> float:
        return self.base.bend(data_norm)

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        return self.base.slope_error(largest, steepest, curvature) + 2.0**-51 * steepest

    def smoother(self, factor: float) -> Loss | None:
        smoother = self.base.smoother(factor)
        return None if smoother is None else Weighted(smoother)

    def at_zero(self) -> float:
        return self.base.at_zero()

    def joint(self, classes: int) -> Loss | None:
        joint = self.base.joint(classes)
        return None if joint is None else Weighted(joint)

    @property
    def rank_one(self) -> bool:
        return self.base.rank_one

    @property
    def sharp(self) -> str | None:
        return self.base.sharp

    @property
    def outputs(self) -> int:
        return self.base.outputs

    @property
    def ball(self) -> float | None:
        return self.base.ball

    @property
    def targets(self) -> Targets:
        return self.base.targets
