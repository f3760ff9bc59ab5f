"""Hinge losses that are not smooth: for gradient methods, which take sub-gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.losses import Loss


@dataclass(frozen=True)
class Hinge(Loss):
    """max(0, 1 − m) for the margin m = yt: L = B. Its slope jumps at m = 1, where 0 is taken."""

    rank_one = False

    @property
    def name(self) -> str:
        return "hinge"

    def value(self, t: Array, y: Array) -> Array:
        return np.maximum(0.0, 1 - y * t)

    def slope(self, t: Array, y: Array) -> Array:
        return np.where(y * t < 1, -y, 0.0)

    def curvature(self, t: Array, y: Array) -> Array:
        return np.zeros_like(t)

    def lipschitz(self, data_norm: float) -> float:
        return data_norm

    def smoothness(self, data_norm: float) -> float:
        return math.inf


@dataclass(frozen=True)
class QNormHinge(Loss):
    """max(0, 1 − m)^q for 1 < q ≤ 2 on ‖θ‖ ≤ radius: L = qB(1 + B·radius)^{q−1}, β = 2B² for q = 2 and ∞ below.

    Its gradient is (q − 1)-Hölder: see `holder` (m-NGP's paper, after Assumption 3; Li & Liu 2021).
    """

    q: float = 1.5
    radius: float = 5.0

    rank_one = False

    def __post_init__(self) -> None:
        if not 1 < check.positive("q", self.q) <= 2:
            raise ValueError(f"Expected q above 1 and at most 2, got {self.q!r}.")
        check.scale("radius", self.radius)

    @property
    def name(self) -> str:
        return "q-norm hinge"

    @property
    def ball(self) -> float:
        return self.radius

    def value(self, t: Array, y: Array) -> Array:
        return np.maximum(0.0, 1 - y * t) ** self.q

    def slope(self, t: Array, y: Array) -> Array:
        return -y * self.q * np.maximum(0.0, 1 - y * t) ** (self.q - 1)

    def curvature(self, t: Array, y: Array) -> Array:
        gap = 1 - y * t
        inside = gap > 0
        return np.where(inside, self.q * (self.q - 1) * np.where(inside, gap, 1.0) ** (self.q - 2), 0.0)

    def lipschitz(self, data_norm: float) -> float:
        return self.q * data_norm * (1 + data_norm * self.radius) ** (self.q - 1)

    def smoothness(self, data_norm: float) -> float:
        return 2 * data_norm**2 if self.q == 2 else math.inf

    def holder(self, data_norm: float) -> tuple[float, float]:
        """(α, H): ‖∇ℓ(θ) − ∇ℓ(θ')‖ ≤ H·‖θ − θ'‖^α, α = q − 1 and H = qB^q, since |a^α − b^α| ≤ |a − b|^α for a, b ≥ 0."""
        return self.q - 1, self.q * data_norm**self.q
