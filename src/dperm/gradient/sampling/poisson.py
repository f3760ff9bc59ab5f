"""Poisson sampling, as it is and cut at a largest batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.gradient.sampling.sampler import Sampler
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import Event, Gaussian, PoissonSampled, SelfComposed, TruncatedPoisson
from dperm.release.draws import Draw, Indices

_MORE = 1.1  # times the stated number of records is more than there may be
_OVERFLOW = 1e-15  # chance that a draw is cut short, in a whole run
_SAMPLED_AT_ONCE = 1 << 16  # inclusions drawn per bulk call
_LONGEST_GAP = 2.0**44  # between two of them, in records: more than any run has, and sums of them are whole


@dataclass(frozen=True)
class Poisson(Sampler, Draw):
    """Each record independently with probability `sampling_rate`; empty draws are ordinary."""

    sampling_rate: float

    sampling = "poisson"
    words = "Poisson"
    grouped = True
    key: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        check.fraction("sampling_rate", self.sampling_rate, one=True)

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[Poisson, int]:
        rate = min(1.0, batch / public_size)
        return cls(rate), math.ceil(epochs / rate)

    @property
    def rate(self) -> float:
        return self.sampling_rate

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        return SelfComposed(PoissonSampled(self.sampling_rate, step), count)

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        # Gaps between successes of Bernoulli trials are geometric; the floor of an exponential is exactly so.
        # One long run of trials is cut into steps of `records` trials each.
        rate = self.sampling_rate
        if rate >= 1.0:
            everyone = np.arange(records, dtype=np.intp)
            for _ in range(steps):
                yield everyone
            return
        with np.errstate(over="ignore"):
            scale = -1.0 / np.log1p(-rate)
        block = max(1, min(steps, int(_SAMPLED_AT_ONCE / max(1.0, records * rate))))
        done = 0
        carried = np.empty(0, dtype=np.intp)
        last = -1  # last success, counted from the start of the current block
        while done < steps:
            block = min(block, steps - done)
            trials = block * records
            positions = [carried]
            while last < trials:
                expected = int((trials - last) * rate)
                count = expected + 4 * int(expected**0.5) + 16
                with np.errstate(over="ignore", invalid="ignore"):
                    gaps = generator.standard_exponential(count) * scale
                ended = gaps < _LONGEST_GAP  # others go on: so many failures, and the rest is drawn anew, as if from the start
                gaps = np.where(ended, gaps, _LONGEST_GAP).astype(np.intp)
                gaps += ended
                np.cumsum(gaps, out=gaps)
                gaps += last
                positions.append(gaps[ended])
                last = int(gaps[-1])
            successes = np.concatenate(positions)
            cuts = np.searchsorted(successes, records * np.arange(1, block + 1))
            start = 0
            for step, stop in enumerate(cuts):
                yield successes[start:stop] - step * records
                start = stop
            carried = successes[start:] - trials
            last -= trials
            done += block

    def tables(self, generator: np.random.Generator, trials: int, records: int, steps: int) -> Iterator[NDArray[np.bool_]]:
        for _ in range(steps):
            yield generator.random((trials, records)) < self.sampling_rate


@dataclass(frozen=True)
class PoissonUpTo(Poisson):
    """Poisson draws of at most `capacity` records: where there are more, so many of them are kept, chosen uniformly.

    Batches then fit a buffer of fixed size. No data set has more than `largest` records, a public number: others are refused.
    What this costs beyond Poisson sampling is T·(1 + e^ε)·P(Binomial(largest, rate) > capacity) of δ, for T steps.
    """

    capacity: int
    largest: int

    sampling = "truncated_poisson"
    words = "truncated Poisson"
    key: ClassVar[str] = "truncated"
    independent_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("capacity", "largest"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[PoissonUpTo, int]:
        if batch >= public_size:
            raise ValueError(
                f"Expected expected_batch_size below public_size = {public_size} with a largest batch, got {batch:g}."
            )
        rate, largest = batch / public_size, math.ceil(_MORE * public_size)
        steps = math.ceil(epochs / rate)
        return cls(rate, capacity(rate, largest, steps), largest), steps

    @classmethod
    def refuse_private_size(cls) -> None:
        raise ValueError("Expected public_size with sampling='truncated_poisson': what is charged depends on it.")

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        return SelfComposed(TruncatedPoisson(self.sampling_rate, step, self.capacity, self.largest), count)

    def refuse(self, records: int) -> None:
        if records > self.largest:
            raise ValueError(f"Expected at most {self.largest} records, as the sampler states, got {records}.")

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        for drawn in super().indices(generator, records, steps):
            if len(drawn) > self.capacity:
                drawn = np.sort(generator.choice(drawn, self.capacity, replace=False))
            yield drawn

    def room(self, drawn: Indices, more: int) -> Indices:
        return drawn[: max(0, self.capacity - more)]

    tables = Draw.tables


def capacity(rate: float, largest: int, steps: int) -> int:
    """A size that all of `steps` Poisson draws of `largest` records stay below but for a chance of 1e-15: the least, by
    Chernoff's bound."""
    low, high = 1, largest
    while low < high:
        middle = (low + high) // 2
        beyond = steps * TruncatedPoisson.overflow(rate, middle, largest) > _OVERFLOW
        low, high = (middle + 1, high) if beyond else (low, middle)
    return low
