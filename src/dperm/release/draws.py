"""What a channel can draw: which records each step sees, and coins of single records.

Whoever charges for a draw says which by its `key`. A toss of a coin depends on a secret, on the coin and on the number of the
record, and on nothing else."""

from __future__ import annotations

import hashlib
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
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
    #: steps that are charged together; where it is 1, one step's draws say nothing of another's
    period: int = 1
    #: how many releases a record that was drawn may move, from that of its draw on
    reach: int = 1
    #: how many rows of a record are drawn each by itself: row j of record i is drawn as number i·slots + j
    slots: int = 1

    @property
    @abstractmethod
    def rate(self) -> float:
        """Probability of a record being in one draw."""

    def chances(self, step: int, last: Indices) -> Array:
        """(m,) the chance of a record to be in draw `step` of a call, given all draws before it: of records that were drawn last
        in the steps `last` (m,) of this call; −1: in none. By this law draws are tested."""
        return np.full(len(last), self.rate)

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


def by_coins(generator: np.random.Generator, groups: int, records: int) -> list[Indices]:
    """The sorted indices of each group's records: every record joins one group, drawn uniformly and by itself."""
    return by_places(generator.integers(groups, size=records), groups)


def by_places(places: Indices, groups: int) -> list[Indices]:
    """The sorted indices of each group's records, where record i is in group places[i]."""
    order = np.argsort(places, kind="stable")
    return np.split(order, np.searchsorted(places[order], np.arange(1, groups)))


def sampled_log_ratio(drawn: Array, rates: Array) -> Array:
    """The same where each step i draws the record with probability rates[i], whatever the others did."""
    rate = rates[:, None]
    with np.errstate(divide="ignore"):
        return np.logaddexp(np.log1p(-rate), np.log(rate) + drawn).sum(axis=0)


#: A coin of a run: of which draw, and which of its coins.
Coin = tuple[int, int]

#: (m,) numbers in [0, 1), one for each of these records.
Coins = Callable[[Indices, Coin], Array]


def coins_of(generator: np.random.Generator) -> Coins:
    """Coins whose secret is the state that this generator is in: it stays as it is. Processes that draw from one state have the
    same coins, whatever part of a draw they look at."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    key = hashlib.blake2b(pickle.dumps(generator.bit_generator.state), digest_size=32, person=b"dperm coins").digest()
    cipher = Cipher(algorithms.AES(key), modes.ECB())  # blocks differ, so that they come out as if at random

    def tossed(numbers: Indices, coin: Coin) -> Array:
        draw, which = coin
        blocks = np.empty((len(numbers), 2), dtype="<u8")
        blocks[:, 0], blocks[:, 1] = numbers, (draw << 8) | which
        words = np.frombuffer(cipher.encryptor().update(blocks.tobytes()), dtype="<u8")[::2]
        return (words >> 11).astype(np.float64) * 2.0**-53

    return tossed
