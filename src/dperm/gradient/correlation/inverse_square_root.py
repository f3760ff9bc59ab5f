"""The square root of a workload whose inverse is cut to some bands: little memory, and a strategy that is not banded itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.signal import lfilter

from dperm._types import Array
from dperm.gradient.correlation.square_root import SquareRoot
from dperm.gradient.correlation.strategy import Last, Memory


@dataclass(frozen=True)
class InverseSquareRoot(SquareRoot):
    """C⁻¹ has the first `width` coefficients of √((1 − decay·x)(1 − momentum·x)), so that a step takes back fresh noise of the
    last `width` − 1 steps (Kalinin et al. 2025, "Back to square roots"). C itself has as many bands as the run has steps: no
    amplification is proved for it.
    """

    paper = "Kalinin, McMahan, Upadhyay, Lampert 2025 (banded inverse square root)"
    word = "inverse_square_root"
    widest = 16
    banded = False

    def coefficients(self, steps: int) -> Array:
        made: Any = lfilter([1.0], self.inverse(steps), np.eye(1, steps)[0])
        return made

    def inverse(self, steps: int) -> Array:
        """(width,) the coefficients of C⁻¹."""
        return self.power(0.5, steps)

    def inverted(self, values: Array, steps: int) -> Array:
        made: Any = lfilter(self.inverse(steps), [1.0], values)
        return made

    def kept(self, steps: int) -> int:
        return len(self.inverse(steps)) - 1

    def memory(self, steps: int, limit: float, first: int = 0) -> Memory:
        return _Fresh((-self.inverse(steps)[1:]).tolist(), limit)


class _Fresh(Last):
    """The fresh noise of the last steps, released − query: Ĝ − G = C⁻¹Z, so that a step takes back −Σ_k (C⁻¹)_k·Z_{t−k}."""

    def query(self, total: Any) -> Any:
        query = super().query(total)
        self._noise[self._place, ...] = query
        return query
