"""Sums that lose nothing: of arrays that arrive one after the other, in any order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from dperm.release.grid import Grid, power_below


class RunningSum:
    """The sum of arrays (p,) of one backend, with what rounding took from it (Knuth's two-sum).

    Exact for multiples of one power of two, whatever their order: the query is then the double nearest to the true sum.
    """

    def __init__(self) -> None:
        self._high: Any = None
        self._low: Any = None

    def add(self, part: Any) -> None:
        """`part` belongs to the sum from now on."""
        if self._high is None:
            self._high = part
            return
        total = self._high + part
        added = total - self._high
        lost = (self._high - (total - added)) + (part - added)
        self._high, self._low = total, lost if self._low is None else self._low + lost

    def joined(self, other: RunningSum) -> RunningSum:
        """Both together, exact where both are; they stay as they are, for an engine may add them up once more."""
        total = RunningSum()
        total._high, total._low = self._high, self._low
        if other._high is not None:
            total.add(other._high)
        if other._low is not None:
            total._low = other._low if total._low is None else total._low + other._low
        return total

    def value(self) -> Any:
        """The sum, rounded to a double once; None where nothing was added."""
        return self._high if self._low is None else self._high + self._low

    def query(self, sensitivity: float, noise_multiplier: float, length: Callable[[Any], int] | None = None) -> Any:
        """The sum, as it is released with this noise; None where nothing was added. `length` says how many numbers the whole has,
        where these are some of them."""
        total = self.value()
        if self._low is None:
            return total
        size = total.shape[-1] if length is None else length(total)
        largest = Grid.of(sensitivity, noise_multiplier * sensitivity, size).largest
        return array_namespace(total).clip(total, -largest, largest)


def exact_sum(values: NDArray[np.float64], bound: float) -> NDArray[np.float64]:
    """(1,) the sum of values, cut to ±bound, each truncated to 30 binary digits of the bound: the same in any order. What is no
    number counts as 0."""
    unit = power_below(bound) * 2.0**-30
    cut = np.clip(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), -bound, bound)
    return np.array([float(np.trunc(cut / unit).astype(np.int64).sum()) * unit])
