"""Quantile regression's loss, smoothed: what is over- and underestimated counts differently."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.losses import Loss
from dperm.objectives.targets import Interval

_USUAL_WIDTH = 0.1  # of target_bound
_WIDEST = 1e100  # what `check.scale` allows


@dataclass(frozen=True)
class QuantileLoss(Loss):
    """The mean of q·(y − t)₊ + (1 − q)·(t − y)₊ over targets within ±h of y, for |y| ≤ target_bound: L = B·max(q, 1 − q),
    β = B²/(2h).

    Least in the mean at the q-th quantile of y, smoothed over h (`half_width`; by default a tenth of target_bound). Its slope
    goes from −q to 1 − q: Koenker & Bassett 1978; the smoothing by a uniform kernel is of Fernandes, Guerre, Horta 2021.
    """

    quantile: float = 0.5
    target_bound: float = 1.0
    half_width: float | None = None

    def __post_init__(self) -> None:
        check.fraction("quantile", self.quantile)
        check.scale("target_bound", self.target_bound)
        if self.half_width is None:
            object.__setattr__(self, "half_width", _USUAL_WIDTH * self.target_bound)
        check.scale("half_width", self._width)

    @property
    def _width(self) -> float:
        assert self.half_width is not None
        return self.half_width

    @property
    def name(self) -> str:
        return f"quantile ({self.quantile:g})"

    @property
    def targets(self) -> Interval:
        return Interval(-self.target_bound, self.target_bound)

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        # the share of which q is taken away is right to some units of its own last place, however small what is left is
        return super().slope_error(largest, steepest, curvature) + 2.0**-51 * max(self.quantile, 1 - self.quantile)

    def smoother(self, factor: float) -> Loss:
        return replace(self, half_width=min(self._width * factor, _WIDEST))

    def value(self, t: Array, y: Array) -> Array:
        over, h = t - y, self._width
        return np.where(over >= h, over, np.square(np.clip(over + h, 0.0, 2 * h)) / (4 * h)) - self.quantile * over

    def slope(self, t: Array, y: Array) -> Array:
        return np.clip((t - y + self._width) / (2 * self._width), 0.0, 1.0) - self.quantile

    def curvature(self, t: Array, y: Array) -> Array:
        return np.where(np.abs(t - y) <= self._width, 1 / (2 * self._width), 0.0)

    def lipschitz(self, data_norm: float) -> float:
        return data_norm * max(self.quantile, 1 - self.quantile)

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 / (2 * self._width)
