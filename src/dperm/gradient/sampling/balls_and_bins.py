"""Balls and bins: every record once an epoch, in a step of its own drawing (random allocation)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from scipy.special import logsumexp

from dperm import _validate as check
from dperm.gradient.sampling.sampler import Sampler
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import Event, Gaussian, RandomAllocation, SelfComposed
from dperm.release.draws import Array, Draw, Indices, by_places


@dataclass(frozen=True)
class InEpochs(Sampler, Draw):
    """Every record is in one step of each epoch of `batches` steps: in the first epoch in one that is drawn uniformly, by a coin
    of its own."""

    batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", check.integer("batches", self.batches, minimum=2))

    @classmethod
    def of_batches(cls, batches: int) -> Self:
        """With this number of them, and all else by its rule."""
        return cls(batches)

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[Self, int]:
        most = cls.largest_batch(public_size, unit)
        if batch > most:
            raise ValueError(f"Expected expected_batch_size of at most {most:g} with {cls.words} sampling, got {batch:g}.")
        batches = round(public_size / batch)
        return cls.of_batches(batches), batches * check.integer("epochs", epochs)

    @classmethod
    def largest_batch(cls, public_size: int, unit: PrivacyUnit) -> float:
        return public_size / 1.5  # two steps

    @property
    def share(self) -> float:
        return 1 / self.batches

    @property
    def period(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.batches

    @abstractmethod
    def next_places(self, generator: np.random.Generator, places: Indices) -> Indices:
        """(n,) in which step of an epoch each record is, given its place in the epoch before."""

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        places = generator.integers(self.batches, size=records)
        for start in range(0, steps, self.batches):
            yield from by_places(places, self.batches)[: steps - start]
            places = self.next_places(generator, places)

    def chances(self, step: int, last: Indices) -> Array:
        """Those of places that are drawn uniformly in each epoch, whatever they were before."""
        place = step % self.batches
        return np.where(last < step - place, 1 / (self.batches - place), 0.0)


@dataclass(frozen=True)
class BallsAndBins(InEpochs):
    """In each epoch of `batches` steps every record joins one of them, drawn uniformly and by itself. Add/remove.

    Every record is seen equally often, as by shuffling; the noise needed is at most about that of Poisson sampling, and often
    less (Chua and others 2025). An epoch is charged as a whole, however few of its steps run.
    """

    sampling = "balls_and_bins"
    words = "balls and bins"
    key: ClassVar[str] = "allocated"

    @property
    def rate(self) -> float:
        return 1 / self.batches

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        epochs = -(-(first + count) // self.batches) - first // self.batches
        return SelfComposed(RandomAllocation(self.batches, step), epochs)

    def next_places(self, generator: np.random.Generator, places: Indices) -> Indices:
        return generator.integers(self.batches, size=len(places))

    def log_ratio(self, drawn: Array) -> Array:
        total = np.zeros(drawn.shape[1])
        for start in range(0, len(drawn), self.batches):
            steps = drawn[start : start + self.batches]
            unseen = self.batches - len(steps)  # of an epoch that was cut short
            absent = np.zeros((unseen, steps.shape[1]))
            total += logsumexp(np.concatenate([steps, absent]), axis=0) - np.log(self.batches)
        return total
