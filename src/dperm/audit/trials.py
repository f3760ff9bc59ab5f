"""Thousands of runs at once: one source whose releases have a leading axis, behind the same channel and mechanisms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._random import Randomness
from dperm.privacy import Source

__all__ = ["Trials"]

Array = NDArray[np.float64]


class Trials(Source):
    """m independent runs: every query, (p,) or (m, p), leaves as (m, p) with noise of its own in each row.

    Draws are tables (m, n) of booleans. Noise comes from the library's keystream, inclusions from its sampling stream.
    """

    def __init__(self, trials: int, randomness: Randomness | None = None) -> None:
        self.trials = trials
        self._count = trials
        self._randomness = randomness or Randomness.from_system()

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Array:
        shape = (self._count, np.shape(query)[-1])
        return query + std * self._randomness.noise.standard_normal(shape[0] * shape[1]).reshape(shape)

    def pure(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        shape = (self._count, np.shape(query)[-1])
        direction = self._randomness.noise.standard_normal(shape[0] * shape[1]).reshape(shape)
        uniforms = self._randomness.noise.uniforms(shape[0] * shape[1]).reshape(shape)
        # a Gamma of integer shape is a sum of exponentials: as in `SystemSource`
        length = -sensitivity / epsilon * np.log(uniforms).sum(axis=1)
        return query + direction * (length / np.linalg.norm(direction, axis=1))[:, None]

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Any]:
        for _ in range(steps):
            yield self._randomness.sampling.random((self._count, records)) < rate
