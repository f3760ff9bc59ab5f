"""What a channel can draw: which records each step sees. Whoever charges for a draw says which by its `key`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Draw", "Indices", "sampled_log_ratio"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


class Draw(ABC):
    """A public rule for drawing records, made of random numbers and of how many records there are, and of nothing else."""

    #: how events name it: `Paid.draw`
    key: ClassVar[str]
    #: whether one record's draws say nothing of another's, in one step
    independent_records: ClassVar[bool] = True
    #: whether one step's draws say nothing of another's: `period` steps together do not, where it is above 1
    period: int = 1
    #: how many rows of a record are drawn each by itself: row j of record i is drawn as number i·slots + j
    slots: int = 1

    @property
    @abstractmethod
    def rate(self) -> float:
        """Probability of a record being in one draw."""

    @abstractmethod
    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        """Sorted record indices for each of `steps` steps."""

    def tables(self, generator: np.random.Generator, trials: int, records: int, steps: int) -> Iterator[NDArray[np.bool_]]:
        """The same for many runs at once: (trials, records) of booleans for each step."""
        for drawn in zip(*(self.indices(generator, records, steps) for _ in range(trials)), strict=True):
            table = np.zeros((trials, records), dtype=bool)
            for row, included in enumerate(drawn):
                table[row, included] = True
            yield table

    def log_ratio(self, drawn: Array) -> Array:
        """(canaries,) ln of the likelihood of all steps with a record over without: `drawn` (steps, canaries) is that of each
        step were it known to have drawn the record."""
        return sampled_log_ratio(drawn, np.full(len(drawn), self.rate))


def sampled_log_ratio(drawn: Array, rates: Array) -> Array:
    """The same where each step i draws the record with probability rates[i], whatever the others did."""
    rate = rates[:, None]
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), np.log(rate) + drawn).sum(axis=0)
