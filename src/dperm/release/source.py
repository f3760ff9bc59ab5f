"""Where a channel's noise and draws come from: `SystemSource` in earnest, others for audits and tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from dperm._random import NoiseStream, Randomness
from dperm._types import Array
from dperm.privacy.certificates.assumptions import EXACT_NOISE, Provenance
from dperm.privacy.events import Event
from dperm.release.draws import Coin, Coins, Draw, Indices, coins_of
from dperm.release.noise import Noise

T = TypeVar("T")


class Source(ABC):
    """Where noise and inclusion draws come from.

    `trials` = m makes m independent runs at once: releases and draws then have a leading axis m.

    What a source says of its own privacy is believed of those that are `in_earnest` alone: of a class derived from one of them,
    as of any other, nothing is known.
    """

    trials: int | None = None

    @property
    def provenance(self) -> Provenance:
        """For certificates."""
        kind = type(self).__name__
        return Provenance(f"a source of the caller's own ({kind}): NOT PRIVATE", f"nothing is known of {kind}", private=False)

    def summed(self, part: Any) -> Any:
        """The whole of a sum (p,) of which this process has a part: other processes of the same run have the rest, if there are
        any."""
        return part

    def within(self, members: Indices) -> Source:
        """The source of a run on some of the records alone, whose places among all of them these are, in order: for audits, which
        tell records apart by them."""
        return self

    def length(self, query: Any) -> int:
        """How many numbers the whole query has, of which this process may have some."""
        return query.shape[-1]

    def first(self, work: Callable[[], T]) -> T:
        """What `work` makes of what this source saw, also in processes of the same run that saw nothing."""
        return work()

    @abstractmethod
    def noisy(self, query: Any, noise: Noise) -> Any:
        """The answer to `query` (p,) with this noise, which was brought on its grid: see `Noise.answer`. In the query's backend,
        type and device, and perhaps in its memory."""

    @abstractmethod
    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        """For each step the sorted indices of the included records; of m trials a table (m, records) of booleans."""

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        """Those of the drawn `indices` (m,) that stay, each independently with probability keep[i].

        A record has one toss of each coin of a draw: one coin may be asked about in several calls, for parts of a draw, and by
        several processes.
        """
        raise NotImplementedError(f"{type(self).__name__} has no draws that depend on the records: no importance sampling.")

    @property
    def generator(self) -> np.random.Generator:
        """For draws that are public, and those of algorithms that are only claimed."""
        return np.random.default_rng()

    def admitted(self, event: Event) -> None:
        """Told each part that a filter took, before its releases."""
        return

    def over(self, own: Source) -> Source:
        """What an audit's source becomes when a run would have used its `own`: see `Channel.open`."""
        return self


_IN_EARNEST: set[type[Source]] = set()
_Kind = TypeVar("_Kind", bound=type[Source])


def in_earnest(kind: _Kind) -> _Kind:
    """The decorated class vouches for its noise. Classes derived from it do not."""
    _IN_EARNEST.add(kind)
    return kind


def provenance_of(source: Source) -> Provenance:
    """What a source says of itself, where that is to be believed."""
    return source.provenance if type(source) in _IN_EARNEST else Source.provenance.__get__(source)


@in_earnest
class SystemSource(Source):
    """Noise and sampling from a `Randomness`."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._coins: Coins | None = None

    @property
    def randomness(self) -> Randomness:
        """The streams that it was made with, for `provenance` speaks of those."""
        return self._randomness

    @property
    def provenance(self) -> Provenance:
        own = type(self._randomness) is Randomness and type(self._randomness.noise) is NoiseStream
        return Provenance(self._randomness.seeded, EXACT_NOISE, self._randomness.private) if own else super().provenance

    def noisy(self, query: Any, noise: Noise) -> Any:
        return noise.answer(query, query.shape, self._randomness.noise)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        self._coins = coins_of(self._randomness.sampling)
        return draw.indices(self._randomness.sampling, records, steps)

    @property
    def generator(self) -> np.random.Generator:
        return self._randomness.sampling

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        assert self._coins is not None  # drawn before: see `Channel.thin`
        return indices[self._coins(indices, coin) < keep]
