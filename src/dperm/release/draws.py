"""What a channel can draw: which records each step sees. Whoever charges for a draw says which by its `key`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array

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

    def takes_part(self, step: int, turn: int) -> bool:
        """Whether a record that is drawn as often as this rule lets one be is in draw `step`, counted from the first of a run.

        Which steps those are may be up to chance: `turn` numbers the patterns that are possible. Audits force draws by it.
        """
        return step % self.period == turn % self.period

    def takes_part_at_times(self, step: int, number: int, turn: int) -> bool:
        """Whether the record is in draw `step` of a second pattern, which leaves it out of some draws: `number` counts all draws
        of a run. It is in one of the draws that are made together, another one each time; in about half of others, and in one of
        the first two."""
        if self.rate >= 1:
            return True
        if self.period > 1:
            return step % self.period == step // self.period % self.period
        if number < 2:
            return number == turn % 2
        return bool(np.random.default_rng([turn, number]).integers(2))

    def without(self, drawn: Indices, numbers: Indices) -> Indices:
        """The `drawn` but for these numbers; as many as before, where all draws are of one size."""
        return np.setdiff1d(drawn, numbers)

    def room(self, drawn: Indices, more: int) -> Indices:
        """As many of the `drawn` as leave room for so many more."""
        return drawn

    def numbers(self, records: Indices) -> Indices:
        """By which numbers these records are drawn: several each, where their rows are."""
        return (records[:, None] * self.slots + np.arange(self.slots)).ravel().astype(np.intp)

    def forced(self, drawn: Indices, records: Indices, there: bool, spare: int = 0) -> Indices:
        """A draw with these records in it, or without them, as `there` says; with room for `spare` more that are to be put in."""
        if not len(records) and not spare:
            return drawn
        numbers = self.numbers(records)
        if not there:
            return self.without(drawn, numbers)
        others = np.setdiff1d(drawn, numbers)
        return np.union1d(self.room(others, len(numbers) + spare * self.slots), numbers)

    def log_ratio(self, drawn: Array) -> Array:
        """(canaries,) ln of the likelihood of all steps with a record over without: `drawn` (steps, canaries) is that of each
        step were it known to have drawn the record."""
        return sampled_log_ratio(drawn, np.full(len(drawn), self.rate))


def sampled_log_ratio(drawn: Array, rates: Array) -> Array:
    """The same where each step i draws the record with probability rates[i], whatever the others did."""
    rate = rates[:, None]
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), np.log(rate) + drawn).sum(axis=0)
