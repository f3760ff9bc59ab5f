"""The square root of prefix sums, cut to some bands: a strategy in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.correlation.participation import Participation
from dperm.gradient.correlation.strategy import Toeplitz
from dperm.gradient.correlation.workload import Workload


@dataclass(frozen=True)
class BandedSquareRoot(Toeplitz):
    """c_k = Σ over i + j = k of the square-root coefficients of prefix sums with this momentum and weight decay: of
    1/√((1 − decay·x)(1 − momentum·x)), where decay = 1 − learning rate·weight decay. Cut to `width` bands (Kalinin & Lampert
    2024, "Banded square root matrix factorization for differentially private model training"). For plain prefix sums c_k = C(2k,
    k)/4^k.
    """

    width: int
    momentum: float = 0.0
    decay: float = 1.0

    paper = "Kalinin & Lampert 2024 (banded square root)"
    word = "square_root"

    @classmethod
    def for_run(cls, width: int, participation: Participation, workload: Workload) -> BandedSquareRoot:
        return cls(width, workload.momentum, 1 - workload.weight_decay)

    def __post_init__(self) -> None:
        check.integer("width", self.width)
        check.fraction("momentum", self.momentum, zero=True)
        check.fraction("decay", self.decay, one=True)

    def coefficients(self, steps: int) -> Array:
        return np.convolve(self._root(self.decay, steps), self._root(self.momentum, steps))[: min(self.width, steps)]

    def _root(self, factor: float, steps: int) -> Array:
        """(bands,) the coefficients of 1/√(1 − factor·x)."""
        numbers = np.arange(1, min(self.width, steps))
        return np.concatenate([[1.0], np.cumprod(factor * (numbers - 0.5) / numbers)])
