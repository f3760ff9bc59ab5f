"""Poisson regression's loss: e^t − y·t for counts y."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.losses import Loss
from dperm.objectives.targets import Interval, Log

_FAR = 50.0  # predictions beyond go on as a straight line: only a solver on its way looks there
_HAIR = 1 - 2.0**-40  # predictions are rounded


@dataclass(frozen=True)
class PoissonLoss(Loss):
    """e^t − y·t on ‖θ‖ ≤ radius with 0 ≤ y ≤ target_bound: L = B·max(e^{B·radius}, target_bound − e^{−B·radius}),
    β = B²·e^{B·radius}.

    It bends without bound, so that its constants hold inside the ball only: objective perturbation refuses it.
    """

    target_bound: float = 10.0
    radius: float = 2.0

    rank_one = False

    def __post_init__(self) -> None:
        check.scale("target_bound", self.target_bound)
        check.scale("radius", self.radius)

    @property
    def name(self) -> str:
        return "poisson"

    @property
    def ball(self) -> float:
        return self.radius

    @property
    def targets(self) -> Interval:
        return Interval(0.0, self.target_bound)

    @property
    def link(self) -> Log:
        return Log()

    def at_zero(self) -> float:
        # of y = 0, whose losses fall to 0, and of the largest y, least at ln y: between them the gap is convex in y
        y = self.target_bound
        return max(1.0, 1 - y + y * math.log(y))

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        # of e^t, right to 8 units in the last place, also where y takes most of it away; and of the subtraction
        return 2.0**-49 * math.exp(min(largest, _FAR)) + 2.0**-52 * steepest

    def value(self, t: Array, y: Array) -> Array:
        near = np.minimum(t, _FAR)
        return np.exp(near) * (1 + (t - near)) - y * t

    def slope(self, t: Array, y: Array) -> Array:
        return np.exp(np.minimum(t, _FAR)) - y

    def curvature(self, t: Array, y: Array) -> Array:
        return np.where(t > _FAR, 0.0, np.exp(np.minimum(t, _FAR)))

    def lipschitz(self, data_norm: float) -> float:
        # slopes e^t − y lie between those at the two ends of t with the largest y, and with y = 0
        reach = data_norm * self.radius
        return data_norm * max(math.exp(min(reach, _FAR)), self.target_bound - math.exp(-reach) * _HAIR)

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 * math.exp(min(data_norm * self.radius, _FAR))

    def bend(self, data_norm: float) -> float:
        return data_norm**3 * math.exp(min(data_norm * self.radius, _FAR))
