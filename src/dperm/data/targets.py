"""The public range of a regression target: models see it as [−1, 1]."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class TargetRange(NamedTuple):
    """[low, high], low < high. In JSON a list of both."""

    low: float
    high: float

    def scaled(self, targets: Any) -> Array:
        """Targets (n,) in [low, high] on [−1, 1]; those outside are clipped."""
        half = self.high / 2 - self.low / 2
        return np.clip((np.asarray(targets, dtype=np.float64) - (self.low + half)) / half, -1.0, 1.0)

    def restored(self, answers: Any) -> Array:
        """Predictions (n,) on [−1, 1] in the target's units; nothing is clipped."""
        half = self.high / 2 - self.low / 2
        return self.low + half + np.asarray(answers, dtype=np.float64) * half
