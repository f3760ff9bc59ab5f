"""Which records each rank of a run has, checked as far as ranks can tell."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dperm.torch.ranks.group import RankError, Ranks
from dperm.torch.ranks.rank_share import Share

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
