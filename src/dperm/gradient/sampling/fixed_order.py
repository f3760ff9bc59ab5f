"""Fixed order: every record in one step of each epoch, always the same one; charged without amplification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dperm._types import Array
from dperm.gradient.correlation import Participation, Periodic
from dperm.gradient.sampling.balls_and_bins import InEpochs
from dperm.privacy.events import BoundedSquaresGaussian, Event, Gaussian
from dperm.release.draws import Indices


@dataclass(frozen=True)
class AtKnownPlaces(InEpochs):
    """What a record moves is charged as if its places were known: no amplification, and so no chance to be wrong about draws.
    Noise may be correlated over any number of steps."""

    correlates = True
    grouped = True  # a person joins a batch with all rows, and its vector is as bounded as a record's

    @property
    def rate(self) -> float:
        return 1.0

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        epochs = -(-(first + count) // self.batches) - first // self.batches
        return BoundedSquaresGaussian(step.noise_multiplier, count, float(epochs), step.relation)

    def correlated_event(self, step: Gaussian, first: int, count: int) -> Event:
        return BoundedSquaresGaussian(step.noise_multiplier, count, 1.0, step.relation)


@dataclass(frozen=True)
class FixedOrder(AtKnownPlaces):
    """Every record joins one of `batches` batches, by a coin of its own, and is in that step of each epoch of `batches` steps.

    Such a run suits correlated noise of many bands. After an interruption batches are drawn anew, from the next epoch on.
    """

    sampling = "fixed_order"
    words = "fixed order"
    key: ClassVar[str] = "fixed order"

    @property
    def participation(self) -> Participation:
        return Periodic(self.batches)

    def next_places(self, generator: np.random.Generator, places: Indices) -> Indices:
        return places

    def chances(self, step: int, last: Indices) -> Array:
        return super().chances(step, last) if step < self.batches else np.where(last == step - self.batches, 1.0, 0.0)
