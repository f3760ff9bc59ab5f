"""AboveThreshold: ask of one query after another whether it is above a threshold, until one is; the whole costs one ε.

The noise on threshold and queries stays behind the door; all that comes out is yes or no (Dwork & Roth 2014, Algorithm 1).
"""

from __future__ import annotations

import numpy as np

from dperm.privacy.events import AboveThreshold
from dperm.release.channel import Channel, UnpaidReleaseError
from dperm.release.noise import ThresholdNoise


class ThresholdTest:
    """Of a charged `event`, for queries of one `sensitivity` and the threshold 0. After the first yes there is no more."""

    def __init__(self, channel: Channel, event: AboveThreshold, sensitivity: float) -> None:
        self._channel, self._event, self._sensitivity = channel, event, sensitivity
        self._threshold = self._noisy(0.0)
        self._open = True

    def above(self, query: float) -> bool:
        """Whether the query, with noise, is at least the threshold, with noise."""
        if not self._open:
            raise UnpaidReleaseError("This test said yes: another one must be charged.")
        self._open = not self._noisy(query) >= self._threshold
        return not self._open

    def _noisy(self, value: float) -> float:
        return float(self._channel.release(np.array([value]), ThresholdNoise(self._sensitivity, self._event.rate))[0])
