"""Samplers: which records a step sees. Each owns the amplification its draws justify, and no other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.privacy.events import Event, PoissonSampled
from dperm.release.channel import Channel

__all__ = ["FullBatch", "Poisson", "Sampler"]


@dataclass(frozen=True)
class Sampler(ABC):
    """A public rule for drawing records."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """Probability of a record being in one draw."""

    @abstractmethod
    def amplify(self, event: Event) -> Event:
        """The event of one step, given the event on the drawn records."""

    @abstractmethod
    def draws(self, channel: Channel, records: int, steps: int) -> Iterator[NDArray[np.intp] | None]:
        """Sorted record indices for each step; None means every record."""


@dataclass(frozen=True)
class FullBatch(Sampler):
    """Every record, every step: no amplification."""

    @property
    def rate(self) -> float:
        return 1.0

    def amplify(self, event: Event) -> Event:
        return event

    def draws(self, channel: Channel, records: int, steps: int) -> Iterator[Any]:
        for _ in range(steps):
            yield None


@dataclass(frozen=True)
class Poisson(Sampler):
    """Each record independently with probability `sampling_rate`; empty draws are ordinary."""

    sampling_rate: float

    def __post_init__(self) -> None:
        check.fraction("sampling_rate", self.sampling_rate, one=True)

    @property
    def rate(self) -> float:
        return self.sampling_rate

    def amplify(self, event: Event) -> Event:
        return PoissonSampled(self.sampling_rate, event)

    def draws(self, channel: Channel, records: int, steps: int) -> Iterator[NDArray[np.intp]]:
        return channel.poisson(records, self.sampling_rate, steps)
