"""The records that each rank computes on: each record of a draw belongs to one rank, as far as ranks can check that."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dperm.torch.ranks.group import RankError, Ranks

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


_COMPARED = 1 << 13  # records of each rank
_ALIKE = 0.8  # of two ranks' records, that are equal: then they were given the same ones
_TWINS = 0.1  # of a rank's records, that are there several times: equal ones elsewhere say little then
_FEW = 8  # equal records, which may be so by chance


class _Held(Protocol):
    @property
    def held(self) -> int: ...

    @property
    def arrangement(self) -> str: ...

    def fingerprints(self, places: NDArray[np.intp] | None = None) -> NDArray[np.uint64]: ...


def share_of(records: _Held, ranks: Ranks, *, sharded: bool) -> Share:
    """This rank's share of records that every rank has, or, `sharded`, has a part of. RankError, on every rank, where ranks have
    other records than that, as far as up to 8,192 of each tell: more or fewer, in another order, or as parts the same ones."""
    if ranks.size == 1:
        return Share.of_whole(records.held)
    places = np.unique(np.linspace(0, records.held - 1, min(_COMPARED, records.held)).round().astype(np.intp))
    digests = ranks.together(lambda: records.fingerprints(places))
    everyone = ranks.gathered(_Told(records.held, records.arrangement, digests, _stable(records, places, digests)))
    if not all(told.stable for told in everyone) and ranks.rank == 0:
        warnings.warn(
            "Records differ each time that they are read, by generators of their own: whether ranks have the same ones, or parts "
            "of them, cannot be compared. A record on two ranks would count twice.",
            stacklevel=6,
        )
    comparable = [told for told in everyone if told.stable]
    if sharded:
        for (first, one), (second, other) in itertools.combinations(enumerate(everyone), 2):
            if one.stable and other.stable and (part := one.shared_with(other)) > _ALIKE:
                raise RankError(
                    f"Expected each rank's own part with sharded=True, but ranks {first} and {second} hold the same: of their "
                    f"records about {part:.0%} are equal, and a record would count twice."
                )
        return Share.of_parts([told.size for told in everyone], ranks.rank)
    if len({told.size for told in everyone}) > 1:
        raise RankError(
            f"Expected the same records on every rank, got {', '.join(str(told.size) for told in everyone[:8])} of them: pass "
            "sharded=True where each rank has its own part."
        )
    if len({told.arrangement for told in everyone}) > 1:
        raise RankError("Expected the same groups on every rank: a person that is another one elsewhere would count twice.")
    if any(not np.array_equal(told.digests, comparable[0].digests) for told in comparable):
        raise RankError("Expected the same records on every rank, in the same order: shuffle with one seed, or not at all.")
    return Share.of_whole(records.held, ranks.rank, ranks.size)


@dataclass(frozen=True)
class _Told:
    """What a rank tells of its records: how many, whose they are, digests of some, and whether these say anything."""

    size: int
    arrangement: str
    digests: NDArray[np.uint64]
    stable: bool

    def shared_with(self, other: _Told) -> float:
        """About which part of the smaller set is in the other one, too. Records that are there several times say nothing."""
        mine, theirs = (_single(told.digests) for told in (self, other))
        for told, single in ((self, mine), (other, theirs)):
            if (1 - len(single) / len(told.digests)) * told.size / len(told.digests) > _TWINS:
                return 0.0  # others' records may be equal to these, too
        equal = len(np.intersect1d(mine, theirs, assume_unique=True))
        if equal < _FEW:
            return 0.0
        chance = len(mine) / self.size * (len(theirs) / other.size)  # of a record of both to be looked at twice
        return min(1.0, equal / chance / min(self.size, other.size))


def _single(digests: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values, counts = np.unique(digests, return_counts=True)
    return values[counts == 1]


def _stable(records: _Held, places: NDArray[np.intp], digests: NDArray[np.uint64]) -> bool:
    few = slice(0, _FEW)
    return np.array_equal(records.fingerprints(places[few]), digests[few])
