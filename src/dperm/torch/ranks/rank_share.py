"""Whose records a rank computes on: each record of a draw is one rank's."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Share:
    """Of records 0 … `total` − 1, this rank's: `first`, `first` + `every`, … below `stop`; or, where draws are `dealt` out, of
    each draw's records those at the places `first`, `first` + `every`, …

    `held` is the number of the record that lies at place 0 here: 0 where every rank has the whole set, and `first` where each
    has its own part of it. No record is padded, repeated or dropped: each record of a draw is one rank's.
    """

    total: int
    first: int
    stop: int
    every: int = 1
    held: int = 0
    ends: tuple[int, ...] = ()  # of the parts, one after the other; () where every rank has the whole set
    dealt: bool = False  # whether a draw, which all ranks must have alike, is dealt out by places in it

    @classmethod
    def of_whole(cls, size: int, rank: int = 0, ranks: int = 1) -> Share:
        """Every so many of a set that all ranks have."""
        return cls(size, rank, size, ranks)

    @classmethod
    def of_parts(cls, sizes: list[int], rank: int) -> Share:
        """A part of a set that is its ranks' parts, one after the other."""
        first = sum(sizes[:rank])
        return cls(sum(sizes), first, first + sizes[rank], 1, first, tuple(itertools.accumulate(sizes)))

    def dealt_out(self) -> Share:
        """For runs that keep nothing of a record: of a whole set's draw each rank gets every so many, so that all have as many to
        compute on, and a record may be another rank's each time. Parts of a set stay where they are."""
        return self if self.ends else replace(self, dealt=True)

    def mine(self, numbers: Indices) -> NDArray[np.bool_]:
        """(n,): which of these records are this rank's throughout. Not what it computes on, where draws are dealt out."""
        return (numbers >= self.first) & (numbers < self.stop) & ((numbers - self.first) % self.every == 0)

    def most(self, numbers: Indices | None) -> int:
        """How many of the drawn `numbers`, or of all, the rank has that has most of them."""
        chosen = np.arange(self.total) if numbers is None else numbers
        if self.dealt:
            return -(-len(chosen) // self.every)
        whose = np.searchsorted(self.ends, chosen, side="right") if self.ends else chosen % self.every
        return int(np.bincount(whose, minlength=1).max())

    def places(self, numbers: Indices | None) -> Indices:
        """Where this rank's of the drawn `numbers`, or of all, lie here."""
        if numbers is None:
            return np.arange(self.first, self.stop, self.every, dtype=np.intp) - self.held
        if self.stop - self.first == self.total and self.every == 1:
            return numbers
        return numbers[self.first :: self.every] if self.dealt else numbers[self.mine(numbers)] - self.held
