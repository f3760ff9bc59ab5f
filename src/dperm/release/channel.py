"""The release channel: the only door through which a noisy value leaves.

    opened ─── charge(event) ────────► every release that the event pays for, once
       │                                  ▲
       ├─── charge(filter) ──► allow(part) ┘  … and again, as long as the filter takes the part
       │
       └─── resume(id) ──► reserve(steps) ──► as many of the releases above as were reserved
                └─ of a filter: reopen(part) first, or allow(part)

A release that nothing pays for raises UnpaidReleaseError. `charge` writes to the spend log before the door opens; so do `allow`
and `reserve`, in runs that may be continued (`keep_parts`, `keep_reservations`). Queries are rounded to a public grid, and noise
is added there: see `dperm.release.grid`. The randomness behind the door is a `Source`, which replay swaps.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from dperm import _validate as check
from dperm._family import ours
from dperm._random import Randomness
from dperm._types import Array
from dperm.privacy.accountants.privacy_filters import Filter, Price, ProfileFilter, filter_of
from dperm.privacy.certificates.assumptions import Provenance
from dperm.privacy.events import (
    Disjoint,
    Event,
    ObjectivePerturbationEvent,
    Paid,
    SelfComposed,
    chosen_on_the_way,
    leaves,
    relation_of,
)
from dperm.release.coins import Coin
from dperm.release.draws import Draw, Indices
from dperm.release.foreseen import stop_where_foreseen
from dperm.release.grid import Grid, power_below
from dperm.release.ledger import SpendLog
from dperm.release.source import Source, SystemSource, provenance_of

_SAME = 1e-9  # relative difference within which two noise levels are the same number


class UnpaidReleaseError(RuntimeError):
    """A release that the charged event does not pay for: a bug in a mechanism, caught before anything leaves."""


class Channel:
    """One run's door. `charge` once, then `release` what was charged; nothing else leaves.

    `log` = None means the spend log of the process; `label` names the data set or study in it.
    """

    def __init__(self, source: Source, *, log: SpendLog | None = None, label: str = "") -> None:
        self._source = source
        self._log = _kept_by(log)
        self.label = label
        self.provenance = provenance_of(source)
        self.event: Event | None = None
        self.charge_id: str | None = None
        self._is_door = False  # whether `split` made it: what it lets out was charged as a part of another channel's event
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._paid: dict[Paid, int] = {}  # how many releases are left of each; what is used up is gone
        self._objectives: Counter[Event] = Counter()
        self.filter: Filter | None = None
        self._keeps_parts = self._keeps_reservations = self._resumed = False
        self._granted = 0  # steps of a resumed run that were reserved and not yet released
        self._again: Counter[Paid] = Counter()  # of `_paid`, what was paid before an interruption: needs such a step
        self._reopened: Counter[Event] = Counter()
        self._drawn: Draw | None = None
        self._together: Counter[Paid] = Counter()  # of draws whose steps are charged together: how many times a period was paid
        self._into_period = 0  # releases since the last of these began
        self._periods: int | None = None  # of a continued run: how many may still begin
        self._hidden_runs = 0  # whose last iterate was not told yet
        self._splits: Counter[Disjoint] = Counter()  # how often channels for the parts may still be opened
        #: what each model's run tells its data holder, and nobody else: it is made from records, without noise
        self.confided: list[Mapping[str, Any]] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if not ours(cls):
            raise TypeError("A Channel cannot be derived from: it releases what was charged. Listen to one with a Source.")
        super().__init_subclass__(**kwargs)

    @property
    def source(self) -> Source:
        """Where its noise and draws come from: the one that it was opened with, for `provenance` speaks of that."""
        return self._source

    @property
    def log(self) -> SpendLog:
        """Where it writes its charge."""
        return self._log or SpendLog.current()

    @classmethod
    def open(cls, random_state: Any = None, *, label: str = "", log: SpendLog | None = None) -> Channel:
        """A channel on fresh system randomness, or on a fixed seed, which makes the run not private.

        A `Source` as `random_state` is an audit's: it takes the place of, or listens to, the run's own.
        """
        if isinstance(random_state, Source):
            return cls.audited(random_state, SystemSource(Randomness.from_system()), label=label, log=log)
        return cls(SystemSource(Randomness.of(random_state)), log=log, label=label)

    @classmethod
    def audited(cls, source: Source, own: Source, *, label: str = "", log: SpendLog | None = None) -> Channel:
        """A channel whose releases an audit sees or sets: whatever leaves it is not private."""
        made = cls(source.over(own), log=log, label=label)
        made.provenance = Provenance.audit()
        return made

    @property
    def private(self) -> bool:
        """Whether what leaves is protected."""
        return self.provenance.private

    def __copy__(self) -> NoReturn:
        raise TypeError("A channel cannot be copied: what it was paid for may be released once.")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    def charge(self, event: Event, mechanism: str, *, persons: bool = False) -> str:
        """Pay for `event`, on disk, before anything is released; returns the charge's id. Once per channel. `persons`: it
        protects persons with all their rows, not records."""
        if self.event is not None:
            raise UnpaidReleaseError("A channel is charged once; open a new one for another run.")
        filter_of(event)  # what it refuses is not charged
        if self._keeps_reservations and any(isinstance(leaf, Disjoint) for leaf in leaves(event)):
            raise ValueError("Expected no reserved steps with an event that is split: such a run cannot be continued.")
        stop_where_foreseen(event, mechanism, self.label, persons)
        self.charge_id = self.log.charge(
            event,
            mechanism=mechanism,
            label=self.label,
            private=self.private,
            keeps_parts=self._keeps_parts,
            keeps_reservations=self._keeps_reservations,
            persons=persons,
        )
        self.event = event
        self._admit(event)
        return self.charge_id

    def resume(self, charge_id: str, event: Event) -> None:
        """Open the door for an interrupted run whose whole `event` was charged as `charge_id`, with nothing left to pay.

        Only steps taken by `reserve` can be released: what was reserved before the interruption is gone.
        """
        if self.event is not None:
            raise UnpaidReleaseError("A channel is charged once; open a new one for another run.")
        charged = next((charge for charge in self.log.charges() if charge.id == charge_id), None)
        if charged is None or charged.event != event:
            raise UnpaidReleaseError(f"The spend log {self.log.where} holds no charge {charge_id} of this event.")
        if not charged.keeps_reservations:
            raise UnpaidReleaseError("This run reserved no steps in the spend log: what it released of its charge is not known.")
        if any(leaf.pays_for is not None and leaf.pays_for.kind == "hidden" for leaf in leaves(event)):
            raise UnpaidReleaseError("A run whose iterates are hidden cannot be continued: where it stood must not have left it.")
        if filter_of(event) is not None and not charged.keeps_parts:
            raise UnpaidReleaseError("This run kept no parts in the spend log: what it spent of its filter is not known.")
        self.charge_id, self.event = charge_id, event
        self._resumed = True
        self._admit(event, again=True)
        if not charged.private:
            self.not_private_before()

    def not_private_before(self) -> None:
        """A part of the run that this channel continues had noise that protects nothing."""
        self.provenance = replace(self.provenance, seeded="fixed by the caller in a part of the run: NOT PRIVATE", private=False)

    def keep_reservations(self) -> None:
        """Before `charge`: every step will be reserved before it is drawn, so that an interrupted run can be continued."""
        self._refuse_door()
        self._keeps_reservations = True

    def keep_parts(self) -> None:
        """Before `charge`: write each part that the filter admits to the spend log first, so that an interrupted run can be
        continued within its budget. What such a run draws must be reserved, too."""
        self._refuse_door()
        self._keeps_parts = self._keeps_reservations = True

    @property
    def trials(self) -> int | None:
        """How many independent runs this channel serves at once (audits); None for an ordinary run."""
        return self._source.trials

    def knows(self, charge_id: str) -> bool:
        """Whether this channel's spend log holds that charge."""
        return any(charge.id == charge_id for charge in self.log.charges())

    def reserve(self, steps: int, limit: int, done: int = 0) -> tuple[int, int]:
        """Take the next `steps` of this run's `limit` steps before drawing for them; see `SpendLog.reserve`. A step is one
        release."""
        self._refuse_door()
        assert self.charge_id is not None and self.event is not None
        paid = sum(
            count * leaf.releases
            for leaf, count in leaves(self.event).items()
            if leaf.pays_for and leaf.pays_for.kind != "objective"
        )
        if limit > paid and not chosen_on_the_way(self.event):  # a filter's parts are reopened one by one, as the log has them
            raise UnpaidReleaseError(f"The charge pays for {paid} releases, not for {limit}.")
        taken = self.log.reserve(self.charge_id, steps, limit, done)
        if taken is None:
            raise UnpaidReleaseError(f"The spend log no longer holds the charge {self.charge_id}.")
        self._granted += taken[1] - taken[0]
        if self._resumed and self._together and self._periods is None:  # those that were begun before are gone
            period = max(leaf.releases for leaf in leaves(self.event))
            self._periods = max(0, sum(self._together.values()) - -(-taken[0] // period))
        return taken

    def allow(self, event: Event, note: Mapping[str, Any] | None = None) -> None:
        """Open the door for a part that was chosen after an earlier release, under the filter that was charged.

        Whatever the choice depended on, the filter must take the part: checked here. BudgetExceeded where it has too little
        left. `note` goes to the spend log with the part: public, what a continued run needs to know.
        """
        if relation_of(event) is not relation_of(self.event or event):
            raise UnpaidReleaseError("The part and what was charged are about different neighbours.")
        if self.filter is None:
            raise UnpaidReleaseError(f"No filter was charged that could hold {event}.")
        self._filtered(self.filter, event, note or {})
        self._source.admitted(event)
        self._admit(event)

    def _filtered(self, held: Filter, event: Event, note: Mapping[str, Any]) -> None:
        if chosen_on_the_way(event):
            raise UnpaidReleaseError(f"A part of a filter's budget cannot be a budget itself: {event}.")
        if not self._keeps_parts:
            held.charge(event)
            return
        assert self.charge_id is not None
        log = self.log
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
        """What the spend log says of this run's filter: the parts admitted so far, by any copy, with their notes. A channel that
        `split` made has none: its filter is held in memory, for a run that was split is not continued."""
        if self._is_door:
            return []
        assert self.charge_id is not None
        return self.log.parts(self.charge_id)

    def reopen(self, part: Event, count: int | None = None) -> None:
        """Open the door again for a part that was admitted before an interruption, or for its last `count` times. Each part that
        the log holds is opened once; `reserve` says what of it was drawn."""
        logged = [event for event, _ in self.parts()].count(part)
        fits = count is None or (isinstance(part, SelfComposed) and count <= part.count)
        if not fits or self._reopened[part] >= logged:
            raise UnpaidReleaseError(
                f"The spend log holds no part {part} of the charge {self.charge_id} that is not open already."
            )
        self._reopened[part] += 1
        last = SelfComposed(part.event, count) if isinstance(part, SelfComposed) and count is not None else part
        self._admit(last, again=True)

    def _admit(self, event: Event, *, again: bool = False) -> None:
        """Open the door for what `event` pays for; `again`: for what may have been released already, by whom it was paid for."""
        held = filter_of(event)
        if held is not None:
            self.filter = held
            if self._resumed:
                assert self.charge_id is not None
                held.know(self.log.accounts(self.charge_id))
                self.keep_parts()
            if isinstance(held, ProfileFilter):
                return  # its places are taken one by one, by `allow`
        for leaf, count in leaves(event).items():
            if isinstance(leaf, Disjoint):  # what of its parts was released before an interruption is not known
                self._splits[leaf] += 0 if again else count
            paid = leaf.pays_for
            if paid is not None and paid.kind == "objective":
                self._objectives[leaf] += 0 if again else count  # drawn once: there is no step of it to reserve
            elif paid is not None:
                releases = count * leaf.releases
                self._hidden_runs += count if paid.kind == "hidden" else 0
                self._together[paid] += count if paid.draw and leaf.releases > 1 else 0
                self._paid[paid] = self._paid.get(paid, 0) + releases
                if again:
                    self._again[paid] += releases

    def split(self, event: Disjoint, members: Sequence[Indices]) -> list[Channel]:
        """A channel for each part of an event that was charged, of the same randomness: it lets out what its own part was charged
        for, once, and nothing of another's. As often as the event was charged; not in a run that was continued. `members`: the
        places of each part's records among all.

        These channels have no charge of their own in the spend log, where the whole is charged. A filter that a part was charged
        for holds what its channel lets out, in memory."""
        with self._lock:
            self._check_process()
            if self._splits[event] < 1:
                raise UnpaidReleaseError(f"Channels for the parts of {event} are not paid for by {self.event}.")
            self._splits[event] -= 1
        doors: list[Channel] = []
        for part, mine in zip(event.parts, members, strict=True):
            door = Channel(self._source.within(mine), log=self._log, label=self.label)
            door.provenance, door.confided = self.provenance, self.confided
            door.event, door._is_door = part, True
            door._admit(part)
            doors.append(door)
        return doors

    def summed(self, part: Any) -> Any:
        """The query (p,) of which this process summed a part, where a run has several; else the part as it is. It has not left:
        release it."""
        return self._source.summed(part)

    def release(
        self, query: Any, sensitivity: float, noise_multiplier: float, sampling_rate: float = 1.0, what: str = "statistic"
    ) -> Any:
        """`query` (p,) with noise of `noise_multiplier` times its L2 `sensitivity`, if a Gaussian of that multiplier (and rate)
        was charged. Both lie on a grid, whose rounding the noise covers: see `dperm.release.grid`. Here and below, `what` names
        the kind of query in audits, which report by kind how far neighbours move."""
        drawn = self._drawn if sampling_rate < 1.0 else None
        if sampling_rate < 1.0 and (drawn is None or sampling_rate != drawn.rate):
            raise UnpaidReleaseError(
                f"A release claims the sampling rate {sampling_rate:g}, but records were drawn at {drawn and drawn.rate}."
            )
        grid = Grid.of(sensitivity, noise_multiplier * sensitivity, self._source.length(query))
        with self._lock:
            paid = self._pay("gaussian", noise_multiplier, sampling_rate, drawn.key if drawn is not None else "")
            if drawn is not None and drawn.period > 1:
                self._go_on_in_period(paid, drawn.period)
            self._source.claimed(sampling_rate)
            self._source.told(what)
            return self._source.gaussian(query, grid.sensitivity, noise_multiplier * grid.sensitivity, grid.step)

    def release_counts(self, counts: Array, sensitivity: float, noise_multiplier: float) -> Array:
        """Whole numbers (k,) with noise as of `release`, for counts of things that only the records name: k may be private, and
        the grid does not depend on it. Those of 0 are not among them: what comes back must leave only where it is so large that
        a count of 1 would hardly be."""
        std = noise_multiplier * sensitivity
        step = power_below(min(1.0, std * 2.0**-21))  # whole numbers are multiples of it: rounding moves none
        with self._lock:
            self._pay("gaussian", noise_multiplier, 1.0, "")
            self._source.told("counts")
            return self._source.gaussian(np.asarray(counts, dtype=np.float64), sensitivity, std, step)

    def release_pure(self, query: Array, sensitivity: float, epsilon: float, what: str = "statistic") -> Array:
        """`query` (p,) + b, density of b ∝ exp(−epsilon·‖b‖/sensitivity), if PureDP(epsilon) was charged; on a grid, as above."""
        grid = Grid.of(sensitivity, sensitivity / check.positive("epsilon", epsilon) * query.size, query.size)
        with self._lock:
            self._pay("pure", epsilon, 1.0)
            self._source.told(what)
            return self._source.pure(query, grid.sensitivity, epsilon, grid.step)

    def release_gradually(self, query: Array, sensitivity: float, epsilons: Sequence[float], what: str = "statistic") -> Array:
        """(K, p): for each of `epsilons`, which rise, what `release_pure` gives, if PureDP of the last one was charged: rows
        before it are made of it, and of noise that depends on nothing."""
        grid = Grid.of(sensitivity, sensitivity / check.positive("epsilon", epsilons[0]) * query.size, query.size)
        with self._lock:
            self._pay("pure", epsilons[-1], 1.0)
            self._source.told(what)
            return self._source.falling(query, grid.sensitivity, epsilons, grid.step)

    def hide(self, query: Array, sensitivity: float, noise_multiplier: float) -> Array:
        """`query` (p,) with noise of `noise_multiplier` times its L2 `sensitivity`, of a step that was charged as hidden: what
        comes back is where the next step starts, and must not leave. It is not rounded: rounding is no contraction."""
        with self._lock:
            self._pay("hidden", noise_multiplier, 1.0)
            self._source.told("hidden iterate")
            return self._source.hidden(query, sensitivity, noise_multiplier * sensitivity)

    def unveil(self, query: Array, sensitivity: float, noise_multiplier: float) -> Array:
        """The last of such steps, which leaves: as `release`. Once for each run that was charged as hidden."""
        grid = Grid.of(sensitivity, noise_multiplier * sensitivity, query.shape[-1])
        with self._lock:
            if not self._hidden_runs:
                raise UnpaidReleaseError(f"No iterate may be told that {self.event} hides, but the last one, once.")
            self._pay("hidden", noise_multiplier, 1.0)
            self._hidden_runs -= 1
            self._source.told("last iterate")
            return self._source.gaussian(query, grid.sensitivity, noise_multiplier * grid.sensitivity, grid.step)

    def choose(self, scores: Array, sensitivity: float, epsilon: float, what: str = "choice") -> int:
        """The place of one of scores (k,), the better the likelier, if `ExponentialMechanism(epsilon)` was charged (McSherry &
        Talwar 2007). A record moves each score by at most `sensitivity`."""
        grid = Grid.of(sensitivity, sensitivity / check.positive("epsilon", epsilon), 1)
        with self._lock:
            self._pay("choice", epsilon, 1.0)
            self._source.told(what)
            return self._source.choose(np.asarray(scores, dtype=np.float64), grid.sensitivity, epsilon, grid.step)

    def undisclosed(self, query: Array, sensitivity: float, epsilon: float) -> Array:
        """As `release_pure`, for a test that was charged as an `AboveThreshold` of this rate: what comes back is to be compared,
        and must not leave. For `dperm.release.threshold` alone."""
        grid = Grid.of(sensitivity, sensitivity / check.positive("epsilon", epsilon) * query.size, query.size)
        with self._lock:
            self._pay("threshold", epsilon, 1.0)
            self._source.told("threshold question")
            return self._source.undisclosed(query, grid.sensitivity, epsilon, grid.step)

    def objective_noise(self, dimension: int, event: ObjectivePerturbationEvent) -> Array:
        """The linear term b ~ N(0, noise_std²·I) of an objective perturbation that was charged: of this one, with its quadratic
        term and its bounds on a record."""
        with self._lock:
            self._check_process()
            if not self._objectives[event]:
                raise UnpaidReleaseError(f"An objective perturbation of {event} is not paid for by {self.event}.")
            self._objectives[event] -= 1
            return self._source.objective_noise(dimension, event.lipschitz, event.noise_std)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        """Inclusion draws for `steps` steps; they never leave the run. Only how they were made can be claimed by a release."""
        if not ours(type(draw)):
            raise TypeError(f"Expected a draw of dperm's own, got {type(draw).__qualname__}: what it is worth has a proof.")
        self._drawn, self._into_period = draw, 0
        return self._source.draw(draw, records, steps)

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        """Drop drawn records, each by a coin of its own that may look at that record and what it kept: who stays is included
        with no more than the probability of the draw, which is what is charged. `coin`: see `Source.thin`."""
        if self._drawn is None or not self._drawn.independent_records or self._drawn.period > 1:
            raise UnpaidReleaseError("Only Poisson draws can be thinned: nothing is proved of others.")
        return self._source.thin(indices, keep, coin)

    def _go_on_in_period(self, paid: Paid, period: int) -> None:
        """Of steps that are drawn, and charged, together: a draw that starts anew starts a period that must be paid for."""
        if self._into_period % period == 0:
            if not self._together[paid] or self._periods == 0:
                raise UnpaidReleaseError(f"Records were drawn anew, for {period} steps that are not paid for by {self.event}.")
            self._together[paid] -= 1
            self._periods = None if self._periods is None else self._periods - 1
        self._into_period += 1

    def _pay(self, kind: str, noise: float, rate: float, draw: str = "") -> Paid:
        """Take one release of this kind from those that were paid for; returns as what it was."""
        self._check_process()

        def pays(paid: Paid) -> bool:
            return (paid.kind, paid.rate, paid.draw) == (kind, rate, draw) and abs(noise - paid.noise) <= _SAME * noise

        entry = next((paid for paid in self._paid if pays(paid)), None)
        if entry is None:
            raise UnpaidReleaseError(
                f"A {kind} release of noise {noise:g} at sampling rate {rate:g} ({draw or 'all records'}) is not paid for by "
                f"{self.event}."
            )
        if self._again[entry]:
            if not self._granted:
                raise UnpaidReleaseError("A continued run releases steps that it reserved, and no others: call reserve first.")
            self._granted -= 1
            self._again[entry] -= 1
        self._paid[entry] -= 1
        if not self._paid[entry]:
            del self._paid[entry]
        return entry

    def _refuse_door(self) -> None:
        if self._is_door:
            raise UnpaidReleaseError("The channel of a part has no charge of its own, for which steps or parts could be kept.")

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise UnpaidReleaseError("This channel was opened by another process, which may release what it paid for.")


def _kept_by(log: SpendLog | None) -> SpendLog | None:
    """TypeError for a log that may not keep what is charged to it."""
    given: Any = log
    if given is not None and not (isinstance(given, SpendLog) and ours(type(given))):
        raise TypeError(f"Expected a SpendLog of dperm's own, got {type(given).__qualname__}: give SpendLog a Database of yours.")
    return given
