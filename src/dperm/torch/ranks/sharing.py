"""Which records each rank of a run has, checked as far as ranks can tell."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dperm.torch.ranks.group import RankError, Ranks
from dperm.torch.ranks.share import Share

__all__ = ["share_of"]

_COMPARED = 64  # records of each rank


class _Held(Protocol):
    @property
    def held(self) -> int: ...

    @property
    def arrangement(self) -> str: ...

    def fingerprints(self, places: NDArray[np.intp] | None = None) -> NDArray[np.uint64]: ...


def share_of(records: _Held, ranks: Ranks, *, sharded: bool) -> Share:
    """This rank's share of records that every rank has, or, `sharded`, has a part of. RankError, on every rank, where ranks have
    other records than that: more or fewer, in another order, or as a part the same as another rank."""
    if ranks.size == 1:
        return Share.of_whole(records.held)
    places = np.unique(np.linspace(0, records.held - 1, min(_COMPARED, records.held)).round().astype(np.intp))
    digests, again = ([int(digest) for digest in records.fingerprints(places)] for _ in range(2))
    everyone = ranks.gathered((records.held, digests if digests == again else None))  # augmented, they differ each time
    if len(set(ranks.gathered(records.arrangement))) > 1:
        raise RankError("Expected the same groups on every rank: a person that is another one elsewhere would count twice.")
    sizes = [size for size, _ in everyone]
    if sharded:
        known: dict[str, int] = {}
        for rank, (size, seen) in enumerate(everyone):
            if seen is not None and (other := known.setdefault(f"{size} {seen}", rank)) != rank:
                raise RankError(
                    f"Expected each rank's own part with sharded=True, but ranks {other} and {rank} hold the same: "
                    "a record would count twice."
                )
        return Share.of_parts(sizes, ranks.rank)
    if len(set(sizes)) > 1:
        raise RankError(
            f"Expected the same records on every rank, got {', '.join(map(str, sizes[:8]))} of them: pass sharded=True where "
            "each rank has its own part."
        )
    told = [seen for _, seen in everyone if seen is not None]
    if any(seen != told[0] for seen in told):
        raise RankError("Expected the same records on every rank, in the same order: shuffle with one seed, or not at all.")
    return Share.of_whole(records.held, ranks.rank, ranks.size)
