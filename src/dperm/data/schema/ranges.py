"""Ranges of numbers, and those of targets that are numbers, by which models see them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dperm._types import Array
from dperm.data.schema.entries import SchemaError

_FARTHEST = 1e150  # ends of ranges: what is computed of them stays within doubles


def checked_range(value: Any, what: str) -> tuple[float, float]:
    """SchemaError for anything but two finite numbers in order."""
    try:
        if isinstance(value, str) or any(isinstance(end, str | bool) for end in value):
            raise TypeError
        low, high = (float(end) for end in value)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(f"Expected range [low, high] of numbers, without quotes, for {what}, got {value!r}.") from None
    if not abs(low) + abs(high) <= _FARTHEST:
        raise SchemaError(f"Expected a finite range for {what}, up to {_FARTHEST:g}, got {value!r}.")
    if not low < high:
        raise SchemaError(f"Expected range [low, high] with low < high for {what}, got {value!r}.")
    return low, high


class TargetRange(NamedTuple):
    """[low, high], low < high. In JSON a list of both."""

    low: float
    high: float

    @property
    def centred(self) -> TargetRange:
        """The same ends, by which models of amounts see targets."""
        return TargetRange(*self)

    def scaled(self, targets: Any) -> Array:
        """Targets (n,) in [low, high] on [−1, 1]; those outside are clipped."""
        half = self.high / 2 - self.low / 2
        return np.clip((np.asarray(targets, dtype=np.float64) - (self.low + half)) / half, -1.0, 1.0)

    def restored(self, answers: Any) -> Array:
        """Predictions (n,) on [−1, 1] in the target's units; nothing is clipped."""
        half = self.high / 2 - self.low / 2
        return self.low + half + np.asarray(answers, dtype=np.float64) * half


class CountRange(TargetRange):
    """The range of counts, 0 ≤ low: a `Dataset` hands them to models as they are, for the logarithm of a count has no other
    origin. A regression of amounts is given the range itself: `target_range=(low, high)`."""

    def scaled(self, targets: Any) -> Array:
        """Counts (n,); those outside are clipped."""
        return np.clip(np.asarray(targets, dtype=np.float64), self.low, self.high)

    def restored(self, answers: Any) -> Array:
        """Expected counts (n,), as a model answers them."""
        return np.asarray(answers, dtype=np.float64)
