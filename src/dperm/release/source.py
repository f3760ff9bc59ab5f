"""Where a channel's noise and draws come from: `SystemSource` in earnest, others for audits and tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from dperm._random import NoiseStream, Randomness
from dperm._types import Array
from dperm.privacy.certificates.assumptions import EXACT_NOISE, Provenance
from dperm.privacy.events import Event
from dperm.release.coins import Coin, Coins, coins_of
from dperm.release.draws import Draw, Indices

T = TypeVar("T")


class Source(ABC):
    """Where noise and inclusion draws come from.

    `trials` = m makes m independent runs at once: releases and draws then have a leading axis m.

    What a source says of its own privacy is believed of those that are `in_earnest` alone: of a class derived from one of them,
    as of any other, nothing is known.
    """

    trials: int | None = None
    sampling_rate: float = 1.0
    what: str = "statistic"

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
    def gaussian(self, query: Any, sensitivity: float, std: float, step: float) -> Any:
        """`query` (p,), rounded to multiples of `step`, plus N(0, std²) noise rounded to the same, in the query's backend, type
        and device, and perhaps in its memory. `sensitivity` is that of the rounded query."""

    @abstractmethod
    def pure(self, query: Array, sensitivity: float, epsilon: float, step: float) -> Array:
        """The same with b of density ∝ exp(−epsilon·‖b‖/sensitivity)."""

    def undisclosed(self, query: Array, sensitivity: float, epsilon: float, step: float) -> Array:
        """The same as `pure`, of a number that is compared and does not leave: see `dperm.release.threshold`."""
        raise NotImplementedError(f"{type(self).__name__} has no noise that stays behind the door: nothing is compared with it.")

    def hidden(self, query: Array, sensitivity: float, std: float) -> Array:
        """`query` (p,) plus N(0, std²) noise, neither rounded, of a step that does not leave: `dperm.privacy.events.hidden`."""
        raise NotImplementedError(f"{type(self).__name__} has no noise for steps that are hidden.")

    def falling(self, query: Array, sensitivity: float, epsilons: Sequence[float], step: float) -> Array:
        """(K, p): for each of `epsilons`, which rise, the same as `pure`. Each row is the one after it plus noise that depends
        on nothing, so that the last one is all that is told."""
        raise NotImplementedError(f"{type(self).__name__} has no noise that falls: nothing is released gradually at delta = 0.")

    def choose(self, scores: Array, sensitivity: float, epsilon: float, step: float) -> int:
        """The place of one of scores (k,), rounded to multiples of `step`: i with probability ∝ e^{ε·score/(2·sensitivity)}."""
        raise NotImplementedError(f"{type(self).__name__} makes no choices.")

    @abstractmethod
    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Array:
        """The linear term of an objective perturbation: N(0, std²·I), shape (dimension,). It is not rounded: what is released is
        the minimiser. Each number is within std·`dperm._random.NORMAL_ERROR` of a real normal."""

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

    def claimed(self, sampling_rate: float) -> None:
        """Told before each Gaussian release: the rate at which its records were drawn, as paid for (1: all of them)."""
        self.sampling_rate = sampling_rate

    def told(self, what: str) -> None:
        """Told before each release: the kind of query that it is, for audits."""
        self.what = what

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

    def gaussian(self, query: Any, sensitivity: float, std: float, step: float) -> Any:
        noise = self._randomness.noise.rounded_normal(std / step, query.size)
        noise += np.rint(query / step).ravel()
        noise *= step
        return noise.reshape(query.shape)

    def pure(self, query: Array, sensitivity: float, epsilon: float, step: float) -> Array:
        noise = self._randomness.noise.rounded_ball(sensitivity / epsilon / step, query.size)[0]
        return (np.rint(query / step) + noise) * step

    def hidden(self, query: Array, sensitivity: float, std: float) -> Array:
        return query + std * self._randomness.noise.standard_normal(query.size)

    def falling(self, query: Array, sensitivity: float, epsilons: Sequence[float], step: float) -> Array:
        noise = self._randomness.noise.rounded_balls([sensitivity / epsilon / step for epsilon in epsilons], query.size)
        return (np.rint(query / step) + noise) * step

    def choose(self, scores: Array, sensitivity: float, epsilon: float, step: float) -> int:
        return self._randomness.noise.chosen(np.rint(scores / step) * step, 2 * sensitivity / epsilon)

    def undisclosed(self, query: Array, sensitivity: float, epsilon: float, step: float) -> Array:
        return SystemSource.pure(self, query, sensitivity, epsilon, step)

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Array:
        return std * self._randomness.noise.standard_normal(dimension)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        self._coins = coins_of(self._randomness.sampling)
        return draw.indices(self._randomness.sampling, records, steps)

    @property
    def generator(self) -> np.random.Generator:
        return self._randomness.sampling

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        assert self._coins is not None  # drawn before: see `Channel.thin`
        return indices[self._coins(indices, coin) < keep]
