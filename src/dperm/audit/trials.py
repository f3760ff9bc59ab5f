"""Thousands of runs at once: one source whose releases have a leading axis, behind the same channel and mechanisms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._random import Randomness
from dperm.release import Source
from dperm.release.draws import Draw

Array = NDArray[np.float64]


class Trials(Source):
    """m independent runs: every query, (p,) or (m, p), leaves as (m, p) with noise of its own in each row.

    Draws are tables (m, n) of booleans. Noise comes from the library's keystream, inclusions from its sampling stream.
    """

    def __init__(self, trials: int, randomness: Randomness | None = None) -> None:
        self.trials = trials
        self._count = trials
        self._randomness = randomness or Randomness.from_system()

    def gaussian(self, query: Any, sensitivity: float, std: float, step: float) -> Array:
        shape = (self._count, np.shape(query)[-1])
        noise = self._randomness.noise.rounded_normal(std / step, shape[0] * shape[1]).reshape(shape)
        return (np.rint(query / step) + noise) * step

    def pure(self, query: Array, sensitivity: float, epsilon: float, step: float) -> Array:
        noise = self._randomness.noise.rounded_ball(sensitivity / epsilon / step, np.shape(query)[-1], self._count)
        return (np.rint(query / step) + noise) * step

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Array:
        return std * self._randomness.noise.standard_normal(self._count * dimension).reshape(self._count, dimension)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        return draw.tables(self._randomness.sampling, self._count, records, steps)
