"""Fixed order: every record in one step of each epoch, always the same one; charged without amplification."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dperm import _validate as check
from dperm.gradient.correlation import Participation, Periodic
from dperm.gradient.sampling.sampler import Sampler
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import BoundedSquaresGaussian, Event, Gaussian
from dperm.release.draws import Draw, Indices


@dataclass(frozen=True)
class FixedOrder(Sampler, Draw):
    """Every record joins one of `batches` batches, by a coin of its own, and is in that step of each epoch of `batches` steps.

    What a record moves is charged as if its place were known: no amplification, and so no chance to be wrong about draws. Such a
    run suits correlated noise of many bands. After an interruption batches are drawn anew, from the next epoch on.
    """

    batches: int

    sampling = "fixed_order"
    words = "fixed order"
    correlates = True
    key: ClassVar[str] = "fixed order"
    keeps_places: ClassVar[bool] = True
    draws_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", check.integer("batches", self.batches, minimum=2))

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[FixedOrder, int]:
        most = cls.largest_batch(public_size, unit)
        if batch > most:
            raise ValueError(f"Expected expected_batch_size of at most {most:g} in a fixed order, got {batch:g}.")
        batches = round(public_size / batch)
        return cls(batches), batches * check.integer("epochs", epochs)

    @classmethod
    def largest_batch(cls, public_size: int, unit: PrivacyUnit) -> float:
        return public_size / 1.5  # two steps

    @property
    def participation(self) -> Participation:
        return Periodic(self.batches)

    @property
    def rate(self) -> float:
        return 1.0

    @property
    def share(self) -> float:
        return 1 / self.batches

    @property
    def period(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.batches

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        epochs = -(-(first + count) // self.batches) - first // self.batches
        return BoundedSquaresGaussian(step.noise_multiplier, count, float(min(epochs, count)), step.relation)

    def correlated_event(self, step: Gaussian, first: int, count: int) -> Event:
        return BoundedSquaresGaussian(step.noise_multiplier, count, 1.0, step.relation)

    def chance_of_unseen(self, step: int) -> float:
        return 1 / (self.batches - step) if step < self.batches else 0.0

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        places = generator.integers(self.batches, size=records)
        order = np.argsort(places, kind="stable")
        cuts = np.searchsorted(places[order], np.arange(self.batches + 1))
        for step in range(steps):
            batch = step % self.batches
            yield order[cuts[batch] : cuts[batch + 1]]
