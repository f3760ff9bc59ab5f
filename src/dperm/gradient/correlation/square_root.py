"""The square root of prefix sums, cut to some bands: a strategy in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.correlation.participation import Participation
from dperm.gradient.correlation.strategy import Toeplitz
from dperm.gradient.correlation.workload import Workload


@dataclass(frozen=True)
class SquareRoot(Toeplitz):
    """`width` coefficients of a power of (1 − decay·x)(1 − momentum·x): prefix sums with momentum and weight decay are its power
    −1, where decay = 1 − learning rate·weight decay."""

    width: int
    momentum: float = 0.0
    decay: float = 1.0

    @classmethod
    def for_run(cls, width: int, participation: Participation, workload: Workload) -> Self:
        return cls(width, workload.momentum, workload.decay)

    def __post_init__(self) -> None:
        check.integer("width", self.width)
        check.fraction("momentum", self.momentum, zero=True)
        check.fraction("decay", self.decay, one=True)

    def power(self, exponent: float, steps: int) -> Array:
        """(width,) the coefficients of this power."""
        count = min(self.width, steps)
        numbers = np.arange(1, count)

        def of(factor: float) -> Array:
            return np.concatenate([[1.0], np.cumprod(factor * (numbers - 1 - exponent) / numbers)])

        return np.convolve(of(self.decay), of(self.momentum))[:count]


@dataclass(frozen=True)
class BandedSquareRoot(SquareRoot):
    """c_k = Σ over i + j = k of the square-root coefficients of prefix sums with this momentum and weight decay: of
    1/√((1 − decay·x)(1 − momentum·x)), where decay = 1 − learning rate·weight decay. Cut to `width` bands (Kalinin & Lampert
    2024, "Banded square root matrix factorization for differentially private model training"). For plain prefix sums c_k = C(2k,
    k)/4^k.
    """

    paper = "Kalinin & Lampert 2024 (banded square root)"
    word = "square_root"

    def coefficients(self, steps: int) -> Array:
        return self.power(-0.5, steps)
