"""The release channel: the only door through which a noisy value leaves.

    opened ─── charge(event) ────────► every release that the event pays for, once
       │                                  ▲
       ├─── charge(filter) ──► allow(part) ┘  … and again, as long as the filter takes the part
       │
       └─── resume(id) ──► reserve(steps) ──► what the event names at the numbers of these steps
                └─ of a filter: reopen(part) first, or allow(part)

    settle() closes the door for good, and gives back to the data set's budget what was charged and never released.

The charge is written to the spend log before the door opens; so are parts and steps, in runs that may be continued. What it
covers is an `Allowance`, which raises UnpaidReleaseError for a release that nothing pays for. What is asked, and with which
noise, is a `Noise`, and the randomness behind the door a `Source`, which replay swaps.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from dperm import _validate as check
from dperm._family import ours
from dperm._random import Randomness
from dperm._types import Array
from dperm.privacy.accountants.privacy_filters import Filter, Price, filter_of
from dperm.privacy.certificates.assumptions import Provenance
from dperm.privacy.events import Composed, Disjoint, Event, SelfComposed, chosen_on_the_way, leaves, relation_of, steps_of
from dperm.release.allowance import Allowance, UnpaidReleaseError
from dperm.release.draws import Coin, Draw, Indices
from dperm.release.foreseen import stop_where_foreseen
from dperm.release.ledger import Part, Settlement, SpendLog
from dperm.release.ledger.settlements import digest_of_key, new_key
from dperm.release.noise import Noise
from dperm.release.source import Source, SystemSource, provenance_of


class Channel:
    """One run's door. `charge` once, then `release` what was charged; nothing else leaves.

    `log` = None means the spend log of the process; `label` names the data set or study in it.
    """

    def __init__(self, source: Source, *, log: SpendLog | None = None, label: str = "") -> None:
        self._source = source
        self._log = _kept_by(log)
        self._allowance = Allowance()
        self._lock = threading.Lock()  # over all that looks whether there is a charge, or what is left of it, and then takes it
        self.label = label
        self.provenance = provenance_of(source)
        self.charge_id: str | None = None
        self._keeps_parts = False  # whether parts of a filter are written to the log
        self._settlement_key = ""  # of the charge, in this process's memory alone
        #: what each model's run tells its data holder, and nobody else: it is made from records, without noise
        self.confided: list[Mapping[str, Any]] = []

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if not ours(cls):
            raise TypeError("A Channel cannot be derived from: it releases what was charged. Listen to one with a Source.")
        super().__init_subclass__(**kwargs)

    def __reduce__(self) -> NoReturn:  # copies and pickles are made by it
        raise TypeError("A channel cannot be copied: what it was paid for may be released once.")

    @property
    def source(self) -> Source:
        """Where its noise and draws come from: the one that it was opened with, for `provenance` speaks of that."""
        return self._source

    @property
    def log(self) -> SpendLog:
        """Where it writes its charge."""
        return self._log or SpendLog.current()

    @property
    def private(self) -> bool:
        """Whether what leaves is protected."""
        return self.provenance.private

    @property
    def event(self) -> Event | None:
        """What was charged."""
        return self._allowance.event

    @property
    def filter(self) -> Filter | None:
        """What holds the parts that are chosen on the way, where the charge is such a budget."""
        return self._allowance.filter

    # The charge, on disk

    def charge(self, event: Event, mechanism: str, *, persons: bool = False, continuable: bool = False) -> str:
        """Pay for `event`, on disk, before anything is released; returns the charge's id. Once per channel. `persons`: it
        protects persons with all their rows, not records. `continuable`: every step will be reserved before it is drawn, and each
        part of a filter is written before its releases, so that an interrupted run can be continued within its budget."""
        _refuse_script_of_workers()
        with self._lock:  # of two at once, the second is refused before it is written
            self._allowance.refuse_second_charge()
            filter_of(event)  # what it refuses is not charged
            if continuable and any(isinstance(leaf, Disjoint) for leaf in leaves(event)):
                raise ValueError("Expected no reserved steps with an event that is split: such a run cannot be continued.")
            stop_where_foreseen(event, mechanism, self.label, persons)
            key = new_key()
            self.charge_id = self.log.charge(
                event,
                mechanism=mechanism,
                label=self.label,
                private=self.private,
                keeps_parts=continuable,
                keeps_reservations=continuable,
                persons=persons,
                settlement_digest=digest_of_key(key),
            )
            self._keeps_parts, self._settlement_key = continuable, key
            self._allowance.open(event, continuable=continuable)
            return self.charge_id

    def resume(self, charge_id: str, event: Event) -> None:
        """Open the door for an interrupted run whose whole `event` was charged as `charge_id`, with nothing left to pay.

        Only steps taken by `reserve` can be released: what was reserved before the interruption is gone.
        """
        with self._lock:
            self._allowance.refuse_second_charge()
            charged = next((charge for charge in self.log.charges() if charge.id == charge_id), None)
            if charged is None or charged.event != event:
                raise UnpaidReleaseError(f"The spend log {self.log.where} holds no charge {charge_id} of this event.")
            if not charged.keeps_reservations:
                raise UnpaidReleaseError(
                    "This run reserved no steps in the spend log: what it released of its charge is not known."
                )
            if self.log.settled(charge_id):
                raise UnpaidReleaseError(
                    f"The charge {charge_id} was settled: what was left of it was given back to the budget of {charged.label!r}, "
                    "and the run cannot be continued."
                )
            _refuse_hidden(event)
            if filter_of(event) is not None and not charged.keeps_parts:
                raise UnpaidReleaseError("This run kept no parts in the spend log: what it spent of its filter is not known.")
            self.charge_id, self._keeps_parts = charge_id, charged.keeps_parts
            self._allowance.open(event, again=True)
            if self.filter is not None:
                self.filter.know(self.log.accounts(charge_id))
            if not charged.private:
                self.not_private_before()

    def not_private_before(self) -> None:
        """A part of the run that this channel continues had noise that protects nothing."""
        self.provenance = replace(self.provenance, seeded="fixed by the caller in a part of the run: NOT PRIVATE", private=False)

    def reserve(self, steps: int, limit: int, done: int = 0) -> tuple[int, int]:
        """Take the next `steps` of this run's `limit` steps before drawing for them; see `SpendLog.reserve`. A step is one
        release: what the event that was charged, or a part of a filter's budget, names at its number."""
        charge_id, event = self._own_charge(), self.event
        assert event is not None
        asked = (("steps", steps), ("limit", limit), ("done", done))
        steps, limit, done = (check.integer(name, number, minimum=0) for name, number in asked)
        if limit > (paid := steps_of(event)) and not chosen_on_the_way(
            event
        ):  # a filter's parts are reopened one by one, as the log has them
            raise UnpaidReleaseError(f"The charge pays for {paid} releases, not for {limit}.")
        taken = self.log.reserve(charge_id, steps, limit, done)
        if taken is None:
            raise UnpaidReleaseError(f"The spend log no longer holds the charge {charge_id}.")
        with self._lock:
            self._allowance.grant(taken[0], taken[1] - taken[0])
        return taken

    def allow(self, event: Event, note: Mapping[str, Any] | None = None, *, first: int | None = None) -> None:
        """Open the door for a part that was chosen after an earlier release, under the filter that was charged.

        Whatever the choice depended on, the filter must take the part: checked here. BudgetExceeded where it has too little
        left. `note` goes to the spend log with the part: public, what a continued run needs to know. So does `first`, the number
        of the part's first step among those of the charge: a run that may be continued reserves these steps, and another may go
        on with them by `reopen`. Without it the part is this run's alone, and needs no steps.
        """
        if relation_of(event) is not relation_of(self.event or event):
            raise UnpaidReleaseError("The part and what was charged are about different neighbours.")
        if self.filter is None:
            raise UnpaidReleaseError(f"No filter was charged that could hold {event}.")
        if chosen_on_the_way(event):
            raise UnpaidReleaseError(f"A part of a filter's budget cannot be a budget itself: {event}.")
        with self._lock:
            self._filtered(self.filter, event, note or {}, first)
            self._source.admitted(event)
            self._allowance.cover_part(event, first if self._keeps_parts else None)

    def _filtered(self, held: Filter, event: Event, note: Mapping[str, Any], first: int | None) -> None:
        if not self._keeps_parts:
            held.charge(event)
            return
        charge_id, log = self._own_charge(), self.log
        refused: Price | None = None
        while True:
            held.know(log.accounts(charge_id))  # other copies of this run may have spent since
            price = held.price(event)
            if price == refused:
                raise held.refusal(price)
            spent = held.accounts.get(price.account, 0.0)
            total = log.add_part(charge_id, event, price, spent=spent, note=note, first=first)
            if total is not None:
                held.know({price.account: total})
                return
            refused = price  # unless a copy was faster, and there is another place

    def parts(self) -> list[Part]:
        """What the spend log says of this run's filter: the parts admitted so far, by any copy. A channel that `split` made has
        none: its filter is held in memory, for a run that was split is not continued."""
        return self.log.parts(self.charge_id) if self.charge_id is not None else []

    def reopen(self, event: Event, first: int) -> None:
        """Open the door again for the steps of a part, numbered from `first` on, that was admitted before an interruption:
        `reserve` says which of them were not drawn."""
        check.integer("first", first, minimum=0)
        if not any((part.event, part.first) == (event, first) for part in self.parts()):
            raise UnpaidReleaseError(f"The spend log holds no part {event} whose steps begin at {first}.")
        _refuse_hidden(event)
        with self._lock:
            self._allowance.cover_part(event, first, again=True)

    def _own_charge(self) -> str:
        if self.charge_id is None:
            raise UnpaidReleaseError("This channel has no charge of its own, for which steps or parts could be kept.")
        return self.charge_id

    def split(self, event: Disjoint, members: Sequence[Indices]) -> list[Channel]:
        """A channel for each part of an event that was charged, of the same randomness: it lets out what its own part was charged
        for, once, and nothing of another's. As often as the event was charged; not in a run that was continued. `members`: the
        places of each part's records among all.

        These channels have no charge of their own in the spend log, where the whole is charged. A filter that a part was charged
        for holds what its channel lets out, in memory."""
        with self._lock:
            self._allowance.take(event)
        doors: list[Channel] = []
        for part, mine in zip(event.parts, members, strict=True):
            door = Channel(self._source.within(mine), log=self._log, label=self.label)
            door.provenance, door.confided = self.provenance, self.confided
            door._allowance.open(part)
            doors.append(door)
        return doors

    # The settlement

    def settle(self) -> Settlement:
        """Close the channel for good, and give back to the data set's budget what was charged and never released.

        Call it between steps, in the process that made the charge, once the run has stopped **by what was released**, or by
        what does not depend on the records; never by exact scores of protected records, and not after a step that failed. The
        budget must add up by a filter that was fixed before its first charge. What can be refused is refused first, and the
        run may go on; then the door closes, and only then is the settlement written: what fails in between settles nothing, and
        the whole charge stands.

        Returns
        -------
        Settlement
            What was given back, and the budget after that.

        Raises
        ------
        ValueError
            Where nothing is given back: there is no budget by such a filter, another process made the charge, it was settled
            before, its parts are chosen on the way, or nothing of it is left that is charged release by release.
        UnpaidReleaseError
            Where nothing was charged.
        OSError
            Where the log cannot be written. It may be called again.
        """
        charge_id = self._own_charge()
        if not self._settlement_key:
            raise ValueError(
                "Only the process that made a charge can settle it: what a run released before an interruption is not known."
            )
        if self.filter is not None:
            raise ValueError(
                "Nothing is given back of a charge with parts that are chosen on the way, such as a training that chooses its "
                "noise by what was released, or by the number of records: state public_size, and a plan of fixed noise."
            )
        self.log.foreseen_settlement(charge_id, self._settlement_key, self._unreleased)  # what it refuses closes nothing
        with self._lock:  # a release that is under way has left, and is counted; none follows
            self._allowance.close()
        return self.log.settle(charge_id, self._settlement_key, self._unreleased)

    def _unreleased(self, unreserved: int | None) -> Event:
        left = self._allowance.unreleased(unreserved)
        if not left:
            raise ValueError(
                "Nothing to settle: all that was charged was released, or is charged together with what was. Steps that are "
                "drawn or charged together, such as those of balls and bins or of correlated noise, count as released."
            )
        return Composed(tuple(SelfComposed(leaf, count) for leaf, count in left.items()))

    # What leaves

    def summed(self, part: Any) -> Any:
        """The query (p,) of which this process summed a part, where a run has several; else the part as it is. It has not left:
        release it."""
        return self._source.summed(part)

    def release(self, query: Any, noise: Noise) -> Any:
        """The answer to `query` (p,) with `noise`, if what was charged pays for it. Both lie on a grid, whose rounding the noise
        covers: see `dperm.release.grid`."""
        if not ours(type(noise)):
            raise TypeError(f"Expected noise of dperm's own, got {type(noise).__qualname__}: what it costs has a proof.")
        most = 1 if self._source.trials is None else 2
        if not 1 <= query.ndim <= most:  # sensitivities are of vectors, and so is each kind's noise
            raise ValueError(f"Expected a query (p,), got one of {query.ndim} dimensions.")
        made = noise.on_grid(self._source.length(query))
        with self._lock:
            self._allowance.take(*made.claims)
            return self._source.noisy(query, made)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Indices]:
        """Inclusion draws for `steps` steps; they never leave the run. Only how they were made can be claimed by a release."""
        if not ours(type(draw)):
            raise TypeError(f"Expected a draw of dperm's own, got {type(draw).__qualname__}: what it is worth has a proof.")
        with self._lock:
            self._allowance.draws(draw)
        return self._source.draw(draw, records, steps)

    def thin(self, indices: Indices, keep: Array, coin: Coin) -> Indices:
        """Drop drawn records, each by a coin of its own that may look at that record and what it kept: who stays is included
        with no more than the probability of the draw, which is what is charged. `coin`: see `Source.thin`."""
        drawn = self._allowance.drawn
        if drawn is None or not drawn.independent_records or drawn.period > 1:
            raise UnpaidReleaseError("Only Poisson draws can be thinned: nothing is proved of others.")
        return self._source.thin(indices, keep, coin)


def _refuse_script_of_workers() -> None:
    """RuntimeError where a process that is spawned for a part of the work runs the whole script first."""
    frame = inspect.currentframe()
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != ("__mp_main__", "<module>"):
        frame = frame.f_back
    if frame is not None:
        raise RuntimeError(
            "Nothing was charged: a worker process runs this script again as it starts. Put what the script does below if "
            '__name__ == "__main__":.'
        )


def _refuse_hidden(event: Event) -> None:
    """UnpaidReleaseError for steps that are hidden, where a run is to go on with them."""
    if any(leaf.pays_for is not None and leaf.pays_for.kind == "hidden" for leaf in leaves(event)):
        raise UnpaidReleaseError("A run whose iterates are hidden cannot be continued: where it stood must not have left it.")


def _kept_by(log: SpendLog | None) -> SpendLog | None:
    """TypeError for a log that may not keep what is charged to it."""
    given: Any = log
    if given is not None and not (isinstance(given, SpendLog) and ours(type(given))):
        raise TypeError(f"Expected a SpendLog of dperm's own, got {type(given).__qualname__}: give SpendLog a Database of yours.")
    return given
