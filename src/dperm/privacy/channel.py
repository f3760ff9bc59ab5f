"""The release channel: the only door through which a noisy value leaves.

`charge` writes the planned event to the spend log and opens the door for exactly the releases that the event pays
for; `release` refuses any other. The randomness behind the door is a `Source`, which replay swaps: a `Recorder`
keeps every query and draw of one run, `Forced` feeds them to a run on neighbouring data.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device, to_device
from numpy.typing import NDArray

from dperm._random import Randomness
from dperm.privacy.accounting import epsilon
from dperm.privacy.events import (
    ApproximateDP,
    Event,
    Gaussian,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    SelfComposed,
    chosen_on_the_way,
    leaves,
    relation_of,
)
from dperm.privacy.filters import Filter, Price, ProfileFilter, filter_of
from dperm.privacy.ledger import SpendLog

__all__ = [
    "Channel",
    "Forced",
    "Recorder",
    "Recording",
    "ReleaseRecord",
    "Source",
    "SystemSource",
    "UnpaidReleaseError",
]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

Coin = tuple[int, int]

_Key = tuple[str, float, float]

_SAMPLED_AT_ONCE = 1 << 16  # inclusions drawn per bulk call
_SAME = 1e-9  # relative difference within which two noise levels are the same number
_NOTHING: _Key = ("", 0.0, 0.0)
_NOBODY: Indices = np.array([], dtype=np.intp)


class UnpaidReleaseError(RuntimeError):
    """A release that the charged event does not pay for: a bug in a mechanism, caught before anything leaves."""


class Source(ABC):
    """Where noise and inclusion draws come from.

    `trials` = m makes m independent runs at once: releases and draws then have a leading axis m.
    """

    trials: int | None = None
    sampling_rate: float = 1.0

    @abstractmethod
    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        """`query` (p,) plus N(0, std²) noise, in the query's backend, type and device, and perhaps in its memory."""

    @abstractmethod
    def pure(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        """`query` plus b of density ∝ exp(−epsilon·‖b‖/sensitivity)."""

    @abstractmethod
    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Any]:
        """For each step the sorted indices of the included records, each included independently; of m trials a table (m,
        records) of booleans."""

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        """Those of the drawn `indices` (m,) that stay, each independently with probability keep[i].

        `coin` = (the number of the draw in this run, which of its coins): one coin may be tossed in several calls, for parts
        of a draw.
        """
        raise NotImplementedError(f"{type(self).__name__} has no draws that depend on the records: no importance sampling.")

    def claimed(self, sampling_rate: float) -> None:
        """Told before each Gaussian release: the rate at which its records were drawn, as paid for (1: all of them)."""
        self.sampling_rate = sampling_rate

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Array:
        """The linear term of an objective perturbation: N(0, std²·I), shape (dimension,)."""
        return self.gaussian(np.zeros(dimension), lipschitz, std)

    def over(self, own: Source) -> Source:
        """What an audit's source becomes when a run would have used its `own`: see `Channel.open`."""
        return self


class SystemSource(Source):
    """Noise and sampling from a `Randomness`."""

    def __init__(self, randomness: Randomness) -> None:
        self.randomness = randomness

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        return query + std * self.randomness.noise.standard_normal(query.size)

    def pure(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        # ‖b‖ ~ Gamma(d, Δ/ε) and a uniform direction: Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1.
        direction = self.randomness.noise.standard_normal(query.size)
        norm = self.randomness.noise.gamma(query.size, sensitivity / epsilon)
        return query + (norm / np.linalg.norm(direction)) * direction

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Indices]:
        # Gaps between successes of Bernoulli trials are geometric; the floor of an exponential is exactly so.
        # One long run of trials is cut into steps of `records` trials each.
        if records == 0 or rate >= 1.0:
            everyone = np.arange(records, dtype=np.intp)
            for _ in range(steps):
                yield everyone
            return
        scale = -1.0 / np.log1p(-rate)
        block = max(1, min(steps, int(_SAMPLED_AT_ONCE / max(1.0, records * rate))))
        done = 0
        carried = np.empty(0, dtype=np.intp)
        last = -1  # last success, counted from the start of the current block
        while done < steps:
            block = min(block, steps - done)
            trials = block * records
            positions = [carried]
            while last < trials:
                expected = int((trials - last) * rate)
                count = expected + 4 * int(expected**0.5) + 16
                gaps = (self.randomness.sampling.standard_exponential(count) * scale).astype(np.intp)
                gaps += 1
                np.cumsum(gaps, out=gaps)
                gaps += last
                positions.append(gaps)
                last = int(gaps[-1])
            successes = np.concatenate(positions)
            cuts = np.searchsorted(successes, records * np.arange(1, block + 1))
            start = 0
            for step, stop in enumerate(cuts):
                yield successes[start:stop] - step * records
                start = stop
            carried = successes[start:] - trials
            last -= trials
            done += block

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        return indices[self.randomness.sampling.random(len(indices)) < keep]


@dataclass(frozen=True)
class ReleaseRecord:
    """One release: what was asked, at which declared sensitivity and noise, and what left.

    `noise` is a standard deviation, or ε where `kind` is "pure"; "objective" is the linear term of an objective. `precision`
    is the machine epsilon of the query's type; `sampling_rate` is the one that it is paid for at.
    """

    query: Array
    sensitivity: float
    noise: float
    released: Array
    kind: Literal["gaussian", "pure", "objective"] = "gaussian"
    precision: float = 2.0**-52
    sampling_rate: float = 1.0


@dataclass
class Recording:
    """A run's releases and inclusion draws, in order; `rates[i]` is the sampling rate that draw i was asked for, `thinned`
    says for each coin tossed on a draw who stayed."""

    releases: list[ReleaseRecord] = field(default_factory=list[ReleaseRecord])
    inclusions: list[Indices] = field(default_factory=list[Indices])
    rates: list[float] = field(default_factory=list[float])
    thinned: dict[Coin, Indices] = field(default_factory=dict["Coin", Indices])


class Recorder(Source):
    """Passes draws of another source on, and keeps them. For tests and audits: the recording is private.

    Without a `source` it listens to the one that the run would have used: to each of them, where a run opens several.
    """

    def __init__(self, source: Source | None = None) -> None:
        self._listens = source is None
        self.source = source or SystemSource(Randomness.from_system())
        self.recording = Recording()

    def over(self, own: Source) -> Source:
        if self._listens:
            self.source = own
        return self

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        asked = _kept(query)  # first: a source may add its noise in the query's memory
        released = self.source.gaussian(query, sensitivity, std)
        record = ReleaseRecord(
            asked, sensitivity, std, _kept(released), precision=_precision(query), sampling_rate=self.sampling_rate
        )
        self.recording.releases.append(record)
        return released

    def pure(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        released = self.source.pure(query, sensitivity, epsilon)
        self.recording.releases.append(ReleaseRecord(_kept(query), sensitivity, epsilon, _kept(released), "pure"))
        return released

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Array:
        term = self.source.objective_noise(dimension, lipschitz, std)
        self.recording.releases.append(ReleaseRecord(np.zeros(dimension), lipschitz, std, _kept(term), "objective"))
        return term

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Indices]:
        for included in self.source.poisson(records, rate, steps):
            self.recording.inclusions.append(included.copy())
            self.recording.rates.append(rate)
            yield included

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        stayed = self.source.thin(indices, keep, coin)
        self.recording.thinned[coin] = np.union1d(self.recording.thinned.get(coin, _NOBODY), stayed)
        return stayed


class Forced(Source):
    """Teacher-forces a run with another run's releases and inclusions, and keeps this run's own queries.

    `index_map[i]` is this data set's index of the recorded data set's record i, or −1 where it is absent;
    `extra` are this data set's records that the recorded one lacks: included at every step, the worst case. Records in
    `always`, of the recorded data set, stay in every thinning too.
    """

    def __init__(self, recording: Recording, index_map: Indices, extra: Indices, always: Indices | None = None) -> None:
        self.always = _NOBODY if always is None else always
        self.reference = recording
        self.index_map = index_map
        self.extra = extra
        self.recording = Recording()

    def gaussian(self, query: Any, sensitivity: float, std: float) -> Any:
        return self._next(query, sensitivity, std, "gaussian")

    def pure(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        return self._next(query, sensitivity, epsilon, "pure")

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Array:
        return self._next(np.zeros(dimension), lipschitz, std, "objective")

    def _next(self, query: Any, sensitivity: float, noise: float, kind: Literal["gaussian", "pure", "objective"]) -> Any:
        at = len(self.recording.releases)
        if at >= len(self.reference.releases):
            raise UnpaidReleaseError(f"Release {at + 1} has no counterpart in the recorded run.")
        released = self.reference.releases[at].released.copy()
        self.recording.releases.append(ReleaseRecord(_kept(query), sensitivity, noise, released, kind, _precision(query)))
        return array_namespace(query).asarray(released, dtype=query.dtype, device=device(query), copy=True)

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Indices]:
        for included in self.reference.inclusions[len(self.recording.inclusions) :][:steps]:
            mapped = self.index_map[included]
            mine = np.sort(np.concatenate([mapped[mapped >= 0], self.extra]))
            self.recording.inclusions.append(mine)
            self.recording.rates.append(rate)
            yield mine

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        mapped = self.index_map[np.union1d(self.reference.thinned.get(coin, _NOBODY), self.always)]
        stayed = indices[np.isin(indices, np.concatenate([mapped[mapped >= 0], self.extra]))]
        self.recording.thinned[coin] = np.union1d(self.recording.thinned.get(coin, _NOBODY), stayed)
        return stayed


def _precision(values: Any) -> float:
    return float(array_namespace(values).finfo(values.dtype).eps)


def _kept(values: Any) -> Array:
    """A copy in double precision, whatever the backend and device."""
    found = values if isinstance(values, np.ndarray) else np.from_dlpack(to_device(values, "cpu"))
    return np.array(found, dtype=np.float64)


class Channel:
    """One run's door. `charge` once, then `release` what was charged; nothing else leaves.

    `log` = None means the spend log of the process; `label` names the data set or study in it.
    """

    def __init__(self, source: Source, *, log: SpendLog | None = None, label: str = "", policy: str = "", private: bool = True):
        self.source = source
        self.log = log
        self.label = label
        self.policy = policy
        self.private = private
        self.event: Event | None = None
        self.charge_id: str | None = None
        self._paid: dict[_Key, int] = {}
        self._promises: list[ApproximateDP] = []
        self.filter: Filter | None = None
        self._keeps_parts = self._resumed = False
        self._reopened: Counter[Event] = Counter()
        self._drawn_rate: float | None = None
        self._current, self._left = _NOTHING, 0  # the entry of _paid in use, and what is left of it

    @classmethod
    def open(cls, random_state: Any = None, *, label: str = "", log: SpendLog | None = None) -> Channel:
        """A channel on fresh system randomness, or on a fixed seed, which makes the run not private.

        A `Source` as `random_state` is an audit's: it takes the place of, or listens to, the run's own.
        """
        if isinstance(random_state, Source):
            return cls.audited(random_state, SystemSource(Randomness.from_system()), label=label, log=log)
        randomness = Randomness.of(random_state)
        return cls(SystemSource(randomness), log=log, label=label, policy=randomness.policy, private=randomness.private)

    @classmethod
    def audited(cls, source: Source, own: Source, *, label: str = "", log: SpendLog | None = None) -> Channel:
        """A channel whose releases an audit sees or sets: whatever leaves it is not private."""
        return cls(source.over(own), log=log, label=label, policy="an audit's: NOT PRIVATE", private=False)

    def charge(self, event: Event, mechanism: str) -> str:
        """Pay for `event`, on disk, before anything is released; returns the charge's id. Once per channel."""
        if self.event is not None:
            raise UnpaidReleaseError("A channel is charged once; open a new one for another run.")
        filter_of(event)  # what it refuses is not charged
        log = self.log or SpendLog.current()
        self.charge_id = log.charge(
            event, mechanism=mechanism, label=self.label, private=self.private, keeps_parts=self._keeps_parts
        )
        self.event = event
        self._admit(event)
        return self.charge_id

    def resume(self, charge_id: str, event: Event) -> None:
        """Open the door for an interrupted run whose whole `event` was charged as `charge_id`, with nothing left to pay.

        Releases must each be within steps taken by `reserve`: what was reserved before the interruption is gone.
        """
        if self.event is not None:
            raise UnpaidReleaseError("A channel is charged once; open a new one for another run.")
        log = self.log or SpendLog.current()
        charged = next((charge for charge in log.charges() if charge.id == charge_id), None)
        if charged is None or charged.event != event:
            raise UnpaidReleaseError(f"The spend log {log.path} holds no charge {charge_id} of this event.")
        if filter_of(event) is not None and not charged.keeps_parts:
            raise UnpaidReleaseError("This run kept no parts in the spend log: what it spent of its filter is not known.")
        self.charge_id, self.event = charge_id, event
        self._resumed = True
        self._admit(event)
        self.private = self.private and charged.private
        if not charged.private:
            self.policy = "fixed by the caller in a part of the run: NOT PRIVATE"

    def keep_parts(self) -> None:
        """Before `charge`: write each part that the filter admits to the spend log first, so that an interrupted run can be
        continued within its budget."""
        self._keeps_parts = True

    @property
    def trials(self) -> int | None:
        """How many independent runs this channel serves at once (audits); None for an ordinary run."""
        return self.source.trials

    def knows(self, charge_id: str) -> bool:
        """Whether this channel's spend log holds that charge."""
        return any(charge.id == charge_id for charge in (self.log or SpendLog.current()).charges())

    def reserve(self, steps: int, limit: int, done: int = 0) -> tuple[int, int]:
        """Take the next `steps` of this run's `limit` steps before drawing for them; see `SpendLog.reserve`."""
        assert self.charge_id is not None
        taken = (self.log or SpendLog.current()).reserve(self.charge_id, steps, limit, done)
        if taken is None:
            raise UnpaidReleaseError(f"The spend log no longer holds the charge {self.charge_id}.")
        return taken

    def allow(self, event: Event, note: Mapping[str, Any] | None = None) -> None:
        """Open the door for a part that was chosen after an earlier release, under a charged promise: a filter's budget, an
        `ApproximateDP` or a `PureDP`.

        Whatever the choice depended on, the part must itself be within that promise: checked here. BudgetExceeded where a
        filter has too little left. `note` goes to the spend log with the part: public, what a continued run needs to know.
        """
        if relation_of(event) is not relation_of(self.event or event):
            raise UnpaidReleaseError("The part and its promise are about different neighbours.")
        if self.filter is not None:
            self._filtered(self.filter, event, note or {})
            self._admit(event)
            return
        for index, promise in enumerate(self._promises):
            if epsilon(event, promise.delta) <= promise.epsilon:
                del self._promises[index]
                self._admit(event)
                return
        self._settle()
        for key, left in self._paid.items():
            # a pure charge that was not released yet; sums of its shares round
            if key[0] == "pure" and left > 0 and epsilon(event, 0.0) <= key[1] * (1 + 1e-12):
                self._paid[key] = left - 1
                self._admit(event)
                return
        raise UnpaidReleaseError(f"No charged promise covers {event}.")

    def _filtered(self, held: Filter, event: Event, note: Mapping[str, Any]) -> None:
        if chosen_on_the_way(event):
            raise UnpaidReleaseError(f"A part of a filter's budget cannot be a budget itself: {event}.")
        if not self._keeps_parts or self.charge_id is None:
            held.charge(event)
            return
        log = self.log or SpendLog.current()
        refused: Price | None = None
        while True:
            held.know(log.accounts(self.charge_id))  # other copies of this run may have spent since
            price = held.price(event)
            if price == refused:
                raise held.refusal(price)
            total = log.add_part(self.charge_id, event, price, spent=held.accounts.get(price.account, 0.0), note=note)
            if total is not None:
                held.know({price.account: total})
                return
            refused = price  # unless a copy was faster, and there is another place

    def parts(self) -> list[tuple[Event, Mapping[str, Any]]]:
        """What the spend log says of this run's filter: the parts admitted so far, by any copy, with their notes."""
        assert self.charge_id is not None
        return (self.log or SpendLog.current()).parts(self.charge_id)

    def reopen(self, part: Event, count: int) -> None:
        """Open the door again for the last `count` times of a part, which was admitted before an interruption. Each part that the
        log holds is opened once; `reserve` says what of it was drawn."""
        logged = [event for event, _ in self.parts()].count(part)
        if not isinstance(part, SelfComposed) or count > part.count or self._reopened[part] >= logged:
            raise UnpaidReleaseError(
                f"The spend log holds no part {part} of the charge {self.charge_id} that is not open already."
            )
        self._reopened[part] += 1
        self._admit(SelfComposed(part.event, count))

    def _admit(self, event: Event) -> None:
        self._settle()
        held = filter_of(event)
        if held is not None:
            if self.filter is not None:
                raise UnpaidReleaseError("A channel holds one filter; open a new one for another run.")
            self.filter = held
            if self._resumed and self.charge_id is not None:
                held.know((self.log or SpendLog.current()).accounts(self.charge_id))
                self.keep_parts()
            if isinstance(held, ProfileFilter):
                return  # its places are taken one by one, by `allow`
        for leaf, count in leaves(event).items():
            if isinstance(leaf, ApproximateDP):
                self._promises += [leaf] * count
            elif key := _release_key(leaf):
                self._paid[key] = self._paid.get(key, 0) + count

    def release(self, query: Any, sensitivity: float, noise_std: float, sampling_rate: float = 1.0) -> Any:
        """`query` + N(0, noise_std²), if a Gaussian of this noise_std ÷ sensitivity (and rate) was charged."""
        if sampling_rate < 1.0 and sampling_rate != self._drawn_rate:
            raise UnpaidReleaseError(
                f"A release claims the sampling rate {sampling_rate:g}, but records were drawn at {self._drawn_rate}."
            )
        self._pay("gaussian", noise_std / sensitivity, sampling_rate)
        self.source.claimed(sampling_rate)
        return self.source.gaussian(query, sensitivity, noise_std)

    def release_pure(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        """`query` + b, density of b ∝ exp(−epsilon·‖b‖/sensitivity), if PureDP(epsilon) was charged."""
        self._pay("pure", epsilon, 1.0)
        return self.source.pure(query, sensitivity, epsilon)

    def objective_noise(self, dimension: int, lipschitz: float, noise_std: float) -> Array:
        """The linear term b ~ N(0, noise_std²·I) of an objective perturbation that was charged."""
        self._pay("objective", noise_std / lipschitz, 1.0)
        return self.source.objective_noise(dimension, lipschitz, noise_std)

    def poisson(self, records: int, rate: float, steps: int) -> Iterator[Indices]:
        """Inclusion draws for `steps` steps; they never leave the run. Only their rate can be claimed by a release."""
        self._drawn_rate = rate
        return self.source.poisson(records, rate, steps)

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        """Drop drawn records, each by a coin of its own that may look at that record and what it kept: who stays is included
        with no more than the probability of the draw, which is what is charged. `coin`: see `Source.thin`."""
        return self.source.thin(indices, keep, coin)

    def _settle(self) -> None:
        """Write the entry in use back."""
        if self._current in self._paid:
            self._paid[self._current] = self._left
        self._current, self._left = _NOTHING, 0

    def _pay(self, kind: str, noise: float, rate: float) -> None:
        current = self._current
        if self._left > 0 and current[0] == kind and current[2] == rate and abs(noise - current[1]) <= _SAME * noise:
            self._left -= 1
            return
        self._settle()
        for key, left in self._paid.items():
            if left > 0 and key[0] == kind and key[2] == rate and abs(noise - key[1]) <= _SAME * noise:
                self._current, self._left = key, left - 1
                return
        raise UnpaidReleaseError(
            f"A {kind} release of noise {noise:g} at sampling rate {rate:g} is not paid for by {self.event}."
        )


def _release_key(leaf: Event) -> _Key | None:
    """Kind, noise relative to sensitivity, and sampling rate of the release that a leaf event pays for."""
    if isinstance(leaf, Gaussian):
        return ("gaussian", leaf.noise_multiplier, 1.0)
    if isinstance(leaf, PoissonSampled) and isinstance(leaf.event, Gaussian):
        return ("gaussian", leaf.event.noise_multiplier, leaf.rate)
    if isinstance(leaf, PureDP):
        return ("pure", leaf.epsilon, 1.0)
    if isinstance(leaf, ObjectivePerturbationEvent):
        return ("objective", leaf.noise_std / leaf.lipschitz, 1.0)
    return None
