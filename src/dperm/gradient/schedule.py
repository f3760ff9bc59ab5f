"""Noise schedules: the noise multiplier of each step, fixed in advance and charged step by step."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from dperm import _validate as check


@dataclass(frozen=True)
class NoiseSchedule(ABC):
    @abstractmethod
    def levels(self, steps: int) -> list[tuple[float, int]]:
        """(noise multiplier, number of consecutive steps) in order; the counts sum to `steps`."""

    def multipliers(self, steps: int, first: int = 0) -> Iterator[float]:
        """The noise multiplier of each step from `first` on."""
        return itertools.islice(
            itertools.chain.from_iterable(itertools.repeat(level, count) for level, count in self.levels(steps)), first, None
        )


@dataclass(frozen=True)
class Constant(NoiseSchedule):
    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive("noise_multiplier", self.noise_multiplier)

    def levels(self, steps: int) -> list[tuple[float, int]]:
        return [(self.noise_multiplier, steps)]


@dataclass(frozen=True)
class ExponentialDecay(NoiseSchedule):
    """σ_e = σ₀·e^{−decay·e} in epoch e (Yu, Liu, Pu, Gursoy, Truex 2019), constant within an epoch."""

    noise_multiplier: float
    decay: float
    steps_per_epoch: int

    def __post_init__(self) -> None:
        check.positive("noise_multiplier", self.noise_multiplier)
        check.non_negative("decay", self.decay)
        check.integer("steps_per_epoch", self.steps_per_epoch)

    def levels(self, steps: int) -> list[tuple[float, int]]:
        epochs = -(-steps // self.steps_per_epoch)
        return [
            (
                self.noise_multiplier * math.exp(-self.decay * epoch),
                min(self.steps_per_epoch, steps - epoch * self.steps_per_epoch),
            )
            for epoch in range(epochs)
        ]
