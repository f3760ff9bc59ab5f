"""Fixed order: every record in one step of each epoch, always the same one; charged without amplification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dperm.gradient.correlation import Participation, Periodic
from dperm.gradient.sampling.balls_and_bins import InEpochs
from dperm.privacy.events import BoundedSquaresGaussian, Event, Gaussian
from dperm.release.draws import Indices, by_coins


@dataclass(frozen=True)
class FixedOrder(InEpochs):
    """Every record joins one of `batches` batches, by a coin of its own, and is in that step of each epoch of `batches` steps.

    What a record moves is charged as if its place were known: no amplification, and so no chance to be wrong about draws. Such a
    run suits correlated noise of many bands. After an interruption batches are drawn anew, from the next epoch on.
    """

    sampling = "fixed_order"
    words = "fixed order"
    correlates = True
    key: ClassVar[str] = "fixed order"
    keeps_places: ClassVar[bool] = True

    @property
    def participation(self) -> Participation:
        return Periodic(self.batches)

    @property
    def rate(self) -> float:
        return 1.0

    @property
    def share(self) -> float:
        return 1 / self.batches

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        epochs = -(-(first + count) // self.batches) - first // self.batches
        return BoundedSquaresGaussian(step.noise_multiplier, count, float(min(epochs, count)), step.relation)

    def correlated_event(self, step: Gaussian, first: int, count: int) -> Event:
        return BoundedSquaresGaussian(step.noise_multiplier, count, 1.0, step.relation)

    def chance_of_unseen(self, step: int) -> float:
        return 1 / (self.batches - step) if step < self.batches else 0.0

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        batches = by_coins(generator, self.batches, records)
        for step in range(steps):
            yield batches[step % self.batches]
