"""The spend log: an append-only list of entries, in which every fit writes its event before it releases anything.

An entry is on disk before `charge` returns, and entries of several processes stand one after another. The log is an SQLite
file or a PostgreSQL database, named by the environment variable DPERM_SPEND_LOG (inherited by worker processes; a relative path
is meant from where the process started); otherwise it is a file in the user's state folder. It holds events, never data. Each
entry holds the hash of the one before: an entry that is changed or taken out shows.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dperm._files import printable, user_name
from dperm._rounding import upward
from dperm.privacy.accountants.accounting import epsilon
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, Price
from dperm.privacy.certificates.signing import SigningKey
from dperm.privacy.events import Composed, Event, Relation, SelfComposed, claims_of, event_from_dict, relation_of
from dperm.release.ledger.budgets import Account, Budget
from dperm.release.ledger.chain import followed, refuse_other
from dperm.release.ledger.databases import VARIABLE, Database, Memory, Rows, Sqlite, database_at, database_of
from dperm.release.ledger.entries import (
    about,
    account_of,
    append,
    canonical,
    damaged,
    events_of,
    last_of,
    now_of,
    parsed,
    set_limits,
    set_spent,
    time_by_clocks,
)
from dperm.release.ledger.heads import Known, refuse_forged, remember, remembered, state_folder
from dperm.release.ledger.ownership import CORRECTION, corrected, owned
from dperm.release.ledger.settlements import (
    DIGEST,
    SETTLEMENT,
    Settlement,
    refuse_settled,
    settled,
    settlement_of,
)

USER = "DPERM_USER"
NOT_REMEMBERED = (
    "nothing was remembered here of this spend log: whether it was set back to an earlier moment before now does not show. It is "
    "remembered from now on."
)
_AT_ONCE = 10_000  # entries that are read together
_LOOKS, _PAUSE = 10, 0.05  # for what another process of this user remembers, and seconds between looks
_HISTORY = ("charge", "budget", SETTLEMENT)  # kinds of entries that change what is spent
_HUGE = 100.0  # of ε: beyond it distributions of privacy losses are too wide to be composed finely
_STARTED_IN = Path.cwd()  # the working directory may change later
#: The log within `spend_log`, for this thread or task alone; and, for processes that are started in it, whose it is and where.
_HERE: ContextVar[SpendLog | None] = ContextVar("dperm_spend_log", default=None)
_CLAIMED: ContextVar[str] = ContextVar("dperm_only_claimed", default="")
_INHERITED = "DPERM_SPEND_LOG_OF_PARENT"
_active: list[tuple[str, str]] = []  # a file that is there while the block is open, and the log
_lock = threading.Lock()
_looked_at: set[tuple[str | None, str]] = set()  # charges, by their logs, of which this process knows all entries


@dataclass(frozen=True)
class Charge:
    """One charge of the log. `claimed`: why what ran is not proved to cost its event; "" where it is."""

    id: str
    time: str
    label: str
    mechanism: str
    event: Event
    private: bool = True
    keeps_parts: bool = False
    keeps_reservations: bool = False
    persons: bool = False
    claimed: str = ""

    @property
    def certified(self) -> bool:
        """Whether what ran is proved to cost its event."""
        return not self.claimed and not claims_of(self.event)


class Part(NamedTuple):
    """A part of a filter's budget, with its public note, and the number of its first step if it has steps."""

    event: Event
    note: Mapping[str, Any]
    first: int | None = None


class SpendLog:
    """An append-only log of charges, in an SQLite file or at a PostgreSQL URL."""

    def __init__(self, where: str | os.PathLike[str] | Database) -> None:
        self.database = where if isinstance(where, Database) else database_at(where)

    @classmethod
    def current(cls) -> SpendLog:
        """The log of this process and its workers, or the one named by `spend_log` here."""
        if here := _HERE.get():
            return here
        parent, _, rest = os.environ.get(_INHERITED, "").partition(":")
        marker, _, where = rest.partition("\n")
        if where and parent != str(os.getpid()) and Path(marker).exists():  # not in a worker that outlives the block
            return cls(database_of(where))
        if (named := os.environ.get(VARIABLE)) is not None:  # also where it is empty, as what was set from no variable is
            return cls(database_at(named, _STARTED_IN))
        return cls(Sqlite(state_folder() / "spend.db"))

    @property
    def where(self) -> str:
        """How a person would name it."""
        return self.database.where

    def charge(
        self,
        event: Event,
        *,
        mechanism: str,
        label: str = "",
        private: bool = True,
        keeps_parts: bool = False,
        keeps_reservations: bool = False,
        persons: bool = False,
        settlement_digest: str = "",
    ) -> str:
        """Append a charge and wait until it is on disk; returns its id. OSError where that fails, BudgetExceeded where the data
        set's budget has too little left, ValueError where it cannot hold such a charge: nothing may run.

        `private` = False marks a run with a fixed seed: its event does not bound what it gave away. `keeps_parts`: what its
        filter admits will be in this log; `keeps_reservations`: its steps, before they are drawn. So the run can be continued.
        `persons`: neighbours differ in all rows of a person. `settlement_digest`: of the key that `settle` takes for it, see
        `digest_of_key`. Within `only_claimed` the entry says so.
        """
        body: dict[str, Any] = {
            "id": uuid.uuid4().hex,
            "label": label,
            "mechanism": mechanism,
            "by": _whose(),
            "pid": os.getpid(),
            "private": private,
        }
        stated = {"keeps_parts": keeps_parts, "keeps_reservations": keeps_reservations, "persons": persons}
        body |= {name: True for name, holds in stated.items() if holds}
        body |= {DIGEST: settlement_digest} if settlement_digest else {}
        body |= {"claimed": reason} if (reason := _CLAIMED.get()) else {}
        with self.database.connected():
            return self._charged(body, event, label)

    def _charged(self, body: dict[str, Any], event: Event, label: str) -> str:
        while True:
            with self._reading() as (rows, known):
                before = None if rows is None else account_of(rows, label)
            cost = None if before is None else before.budget.cost(event)  # may take a while: not while others wait
            with self._writing(known) as (rows, _):
                held = account_of(rows, label)
                if held is not None and (before is None or held.budget != before.budget):
                    continue  # it was made, or made anew, since
                now = now_of(rows)
                if held is None or cost is None:
                    _refuse_unknown(rows, label, self.where)
                    append(rows, "charge", body["id"], {**body, "time": now}, event=event)
                    return body["id"]
                _refuse_unproved(held.budget, body)
                if held.budget.expired(now[:10]):
                    _note_expiry(rows, held.budget, now, time_by_clocks(rows))
                else:
                    after = held.charged(cost, now[:10])
                    set_spent(rows, after)
                    append(rows, "charge", body["id"], {**body, "costs": cost, "time": now}, event=event)
            _warn_of(held, held.charged(cost, now[:10]))  # which raises where it has expired
            return body["id"]

    def foreseen(self, event: Event | None, label: str = "", *, persons: bool = False) -> Account | None:
        """A data set's account as a charge of this event would leave it, or, where that is not known yet (None), as it is; None
        where the log has no budgets. Raises as `charge` does. Nothing is charged or held: others may be before it."""
        with self._reading() as (rows, _):
            if rows is None:
                return None
            known = account_of(rows, label)
            if known is None:
                _refuse_unknown(rows, label, self.where)
                return None
            today = now_of(rows)[:10]
        _refuse_unproved(known.budget, {"persons": persons})
        return known.charged({} if event is None else known.budget.cost(event), today)

    def create_budget(self, budget: Budget, *, key: SigningKey | None = None, owner_key: str = "") -> Account:
        """Write a budget, or another one in its place. What was charged to its data set before counts: by another rule in full,
        by the same one less what was given back.

        Filters promise their ε for rules and sizes that do not depend on what was released.

        Parameters
        ----------
        budget : Budget
            What it is to be.
        key : SigningKey, optional
            Signs it: then only the owner of this key can make another in its place.
        owner_key : str
            The public key whose owner may do so instead, as `dperm.privacy.certificates.signing.public_key` reads it.

        Raises
        ------
        ValueError
            Where what was charged before cannot be added up, for a plan, which comes before charges, or where the budget
            before was signed by another key; and on a server, for who may only charge.
        BudgetExceeded
            Where what was charged before is more than the budget.
        """
        with self._writing(whole=True) as (rows, known):
            self._refuse_chargers(rows)
            replaced = known.accounts.get(budget.label)
            events = events_of(rows, budget.label)
            found = rows(
                "SELECT event, private, claimed, persons, count(*) FROM dperm_entries WHERE kind = 'charge' AND label = ? "
                "GROUP BY event, private, claimed, persons",
                budget.label,
            )
            before = account_of(rows, budget.label)
            same_rule = before is not None and before.budget.rule == budget.rule
            account = Account(budget, before.spent if before is not None and same_rule else {})
            if found and budget.rule.fixed_beforehand and not same_rule:
                raise ValueError(
                    f"Expected a plan before anything is charged, but {budget.label!r} has charges: what was released may have "
                    "been a reason for what is planned. Give it a filter."
                )
            for digest, private, claimed, persons, count in found:
                earlier = "an earlier charge is only claimed" if claimed else ""
                _refuse_unproved(budget, {"private": private, "claimed": earlier, "persons": persons})
                if same_rule:
                    continue  # with what was given back
                try:
                    account = account.charged(budget.cost(events[digest]), "", int(count))
                except ValueError as error:
                    raise ValueError(f"Of what {budget.label!r} was charged before: {error}") from None
                except BudgetExceeded as error:
                    raise BudgetExceeded(f"What {budget.label!r} was charged before is too much for it. {error}") from None
            rows("DELETE FROM dperm_budgets WHERE label = ?", budget.label)
            rows(
                "INSERT INTO dperm_budgets VALUES (?, ?, ?)", budget.label, canonical(budget.to_dict()), canonical(account.spent)
            )
            set_limits(rows, budget)
            said = {"label": budget.label, "budget": budget.to_dict(), "spent": dict(account.spent), "time": now_of(rows)}
            body = {**said, "by": _whose(), "pid": os.getpid()}
            append(rows, "budget", "", owned(body, known.chain, replaced, key, owner_key))
        return account

    def correct_time(self, keys: Sequence[SigningKey] = ()) -> str:
        """Set the log's time, which a wrong clock set ahead, back to what the clocks say now, by an entry; returns the time.

        Parameters
        ----------
        keys : sequence of SigningKey
            Those of the owners of all budgets that expire and are signed.

        Raises
        ------
        ValueError
            Where a key is missing, or the log's last entry is not ahead of the clocks.
        """
        with self._writing() as (rows, known):
            self._refuse_chargers(rows)
            now, last = time_by_clocks(rows), last_of(rows)
            if last <= now:
                raise ValueError(f"The last entry of the spend log {self.where} is of {last or 'no time'}, and now is {now}.")
            append(rows, CORRECTION, "", {**corrected(known, now, keys), "by": _whose(), "pid": os.getpid()})
        return now

    def _refuse_chargers(self, rows: Rows) -> None:
        if rows.only_appends:
            raise ValueError(f"Only an owner may do that in the spend log {self.where}: you may charge, and no more.")

    def account(self, label: str) -> Account | None:
        """The budget of a data set and what was spent of it; None where it has none."""
        with self.database.reading() as rows:
            return None if rows is None else account_of(rows, label)

    def accounts_held(self) -> list[Account]:
        """All budgets, by name."""
        with self.database.reading() as rows:
            if rows is None:
                return []
            labels = rows("SELECT label FROM dperm_budgets ORDER BY label")
            return [account for (label,) in labels if (account := account_of(rows, label)) is not None]

    def history(self, label: str | None = None, kinds: Sequence[str] = _HISTORY) -> list[dict[str, Any]]:
        """Charges, budgets and settlements, oldest first, as they stand in the log; of one data set, or of all; or entries
        of other `kinds`, see `entries`."""
        return list(self.entries(label, kinds))

    def entries(self, label: str | None = None, kinds: Sequence[str] = _HISTORY) -> Iterator[dict[str, Any]]:
        """`history`, one after another, as it was when the first is asked for. Nobody who writes waits for who reads them.
        `kinds`: what is asked for; there are also a "refusal" of a budget that expired, and "steps" and "part" of charges."""
        # a name would lead databases to all entries with it for each part that is read: by number alone they find the part
        chosen, values = ("", ()) if label is None else (" AND label || '' = ?", (label,))
        query = (
            f"SELECT number, body FROM dperm_entries WHERE kind IN ({', '.join('?' * len(kinds))}) AND number > ? AND number <= ?"
            f"{chosen} ORDER BY number"
        )
        with self.database.reading() as rows:
            last = 0 if rows is None else rows("SELECT max(number) FROM dperm_entries")[0][0] or 0
        if not isinstance(last, int):
            raise ValueError(f"An entry of the spend log {self.where} was changed: its number is {last!r}.")
        for start in range(0, last, _AT_ONCE):  # what is added later comes after it
            with self.database.reading() as rows:
                found = [] if rows is None else rows(query, *kinds, start, min(start + _AT_ONCE, last), *values)
            for number, text in found:
                yield {"number": number, **parsed(number, text)}

    def head(self) -> dict[str, Any]:
        """How many entries there are, and the hash that all of them lead to: kept elsewhere, it shows whether any is gone."""
        with self.database.reading() as rows:
            ((count, chain, last),) = [(0, "", "")] if rows is None else rows("SELECT count, chain, time FROM dperm_head")
        if not isinstance(count, int):
            raise ValueError(f"The head of the spend log {self.where} was changed: {count!r}.")
        return {"count": count, "chain": chain, "time": last}

    def verify(self, head: Mapping[str, Any] | None = None, *, remember_it: bool = False) -> int:
        """Follow the chain through all entries, and remember the last for the charges that follow.

        Parameters
        ----------
        head : mapping, optional
            An earlier head, as `head` gives it, that the log must go on from.
        remember_it : bool
            Take the log as it is now, whatever is remembered of it: it was restored or replaced by somebody who may.

        Returns
        -------
        int
            The number of entries.

        Raises
        ------
        ValueError
            Naming the first entry that was changed or taken out, a budget that was spent otherwise than the charges say, or
            a `head` that no log has, that this log does not go on from, or that is remembered here.
        """
        if head is not None:
            refuse_forged(head)
        place = self.database.place
        known = None if place is None or remember_it else remembered(place)
        with self.database.reading() as rows:
            if rows is None:
                self._refuse_gone(known)
                if head is not None and head["count"]:
                    raise ValueError(f"The spend log {self.where} is empty; it had {head['count']:,} entries.")
                found = Known()
            else:
                found = followed(rows, Known(), self.where, head, thorough=True)
                refuse_other(rows, known or Known(), self.where)
        if place is not None and (found.count or remember_it):
            remember(place, found)
        return found.count

    @property
    def is_remembered(self) -> bool:
        """Whether something is remembered of it here, so that it shows when the log goes back to an earlier moment."""
        return self.database.place is not None and remembered(self.database.place) is not None

    def _refuse_gone(self, known: Known | None) -> None:
        if known is not None and known.count:
            raise ValueError(
                f"The spend log {self.where} had {known.count:,} entries when it was last used from here, and is gone. "
                "`dperm budget verify --remember` takes it as it is now."
            )

    @contextlib.contextmanager
    def _reading(self, *, whole: bool = False) -> Iterator[tuple[Rows | None, Known]]:
        """A view of one moment, and what is known of the log then. ValueError where it does not go on from what is remembered of
        it. `whole`: follow all entries, also those before."""
        place = self.database.place
        known = None if place is None else remembered(place)
        with self.database.reading() as rows:
            if rows is None or place is None:  # there is none yet, or nobody else can write it
                self._refuse_gone(known)
                yield rows, Known()
                return
            found = followed(rows, Known() if known is None or whole else known, self.where)
            refuse_other(rows, known or Known(), self.where)
            if known is None and found.count:
                meanwhile = _remembered_meanwhile(place)
                if meanwhile is None:
                    remember(place, found)
                    warnings.warn(f"{self.where}: {NOT_REMEMBERED}", UserWarning, stacklevel=6)
                elif meanwhile.count <= found.count:  # else it holds entries that are younger than this view
                    followed(rows, meanwhile, self.where)
                    refuse_other(rows, meanwhile, self.where)
            yield rows, found

    @contextlib.contextmanager
    def writing(self) -> Iterator[Rows]:
        """A transaction, as `Database.writing`, on a log that goes on from what is remembered of it; its last entry is remembered
        once it is on disk. ValueError for another log."""
        with self._writing() as (rows, _):
            yield rows

    @contextlib.contextmanager
    def _writing(self, known: Known | None = None, *, whole: bool = False) -> Iterator[tuple[Rows, Known]]:
        """`writing`, from what is `known` of the log (None: what is remembered of it); and what is known of it in the
        transaction. `whole`: what is written follows from early entries, too, which are followed as well."""
        if known is None:
            with self._reading(whole=whole) as (_, known):  # of a log that is new here all is read: not while others wait
                pass
        place = self.database.place
        with self.database.writing() as rows:
            if place is not None:
                known = followed(rows, known, self.where)
            yield rows, known
            if place is not None:
                known = followed(rows, known, self.where)
        if place is not None:
            remember(place, known)

    def reserve(self, charge_id: str, steps: int, limit: int, done: int = 0) -> tuple[int, int] | None:
        """Take the next `steps` of a charged run's `limit` steps: (start, stop), handed to nobody else and never again.

        `done` steps are known to be drawn, whatever the log says. What was reserved counts as drawn, also when the process
        dies in between: a run that is continued takes what is left. (limit, limit) when nothing is; None where this log does
        not hold the charge. ValueError for another limit than before, and for a charge that was settled.
        """
        with self.database.connected(), self._writing(whole=self._is_new_here(charge_id)) as (rows, _):
            _looked_at.add((self.database.place, charge_id))
            start, entries = done, about(rows, charge_id)
            for kind, body in entries:
                if kind == "steps":
                    start = max(start, int(body["stop"]))
                    if body["limit"] != limit:
                        raise ValueError(f"Steps of the charge {charge_id} were reserved of {body['limit']}, not of {limit}.")
            if not any(kind == "charge" for kind, _ in entries):
                return None
            refuse_settled(rows, charge_id)
            stop = min(start + steps, limit)
            if stop > start:
                append(rows, "steps", charge_id, {"start": start, "stop": stop, "limit": limit, "pid": os.getpid()})
            return start, max(start, stop)

    def add_part(
        self,
        charge_id: str,
        part: Event,
        price: Price,
        *,
        spent: float,
        note: Mapping[str, Any],
        first: int | None = None,
    ) -> float | None:
        """Append a part of a filtered run, at this price, and wait until it is on disk; returns what its account then holds.

        None, and nothing appended, where that would exceed the account's limit: parts of other copies of the run count. `spent`
        is known to be spent, whatever the log says; `note` is public. `first`: the number of the part's first step, if it has
        steps.
        """
        with self.database.connected(), self._writing(whole=self._is_new_here(charge_id)) as (rows, _):
            _looked_at.add((self.database.place, charge_id))
            refuse_settled(rows, charge_id)
            total = price.cost + max(spent, _accounts(about(rows, charge_id)).get(price.account, 0.0))
            if not total <= price.limit:
                return None
            body: dict[str, Any] = {"account": price.account, "cost": price.cost, "note": dict(note), "pid": os.getpid()}
            if first is not None:
                body["start"] = first
            append(rows, "part", charge_id, body, event=part)
        return total

    def settle(self, charge_id: str, key: str, unreleased: Callable[[int | None], Event]) -> Settlement:
        """Append the settlement of a charge, and wait until it is on disk: the cost of what was never released leaves the sum of
        the budget. Nothing of the charge may be released any more: `Channel.settle` sees to that first.

        Parameters
        ----------
        charge_id : str
            The charge, of a data set with a budget by a filter that was fixed before its first charge.
        key : str
            What the charge stated the digest of.
        unreleased : function of int or None
            Which leaves of the charged event were never released, given the first step that no process has reserved (None: the
            run reserves no steps).

        Raises
        ------
        ValueError
            Where there is nothing to settle, or the budget gives nothing back; nothing is written.
        OSError
            Where the log cannot be written.
        """
        with self.database.connected(), self._writing(whole=self._is_new_here(charge_id)) as (rows, _):
            _looked_at.add((self.database.place, charge_id))
            made = settlement_of(rows, charge_id, key, unreleased)
            set_spent(rows, made.account)
            append(rows, SETTLEMENT, charge_id, {**made.said(key), "by": _whose(), "pid": os.getpid()}, event=made.unreleased)
        return made

    def foreseen_settlement(self, charge_id: str, key: str, unreleased: Callable[[int | None], Event]) -> Settlement:
        """What `settle` would write now, with these arguments; raises as it does. Nothing is written."""
        with self._reading() as (rows, _):
            if rows is None:
                raise ValueError(f"The spend log no longer holds the charge {charge_id}.")
            return settlement_of(rows, charge_id, key, unreleased)

    def settled(self, charge_id: str) -> bool:
        """Whether what was left of a charge was given back."""
        with self.database.reading() as rows:
            return rows is not None and settled(rows, charge_id)

    def _is_new_here(self, charge_id: str) -> bool:
        """Whether this process has yet to follow the log from its first entry: those of a charge are counted again."""
        return (self.database.place, charge_id) not in _looked_at

    def parts(self, charge_id: str) -> list[Part]:
        """The parts of a filtered run, oldest first."""
        with self.database.reading() as rows:
            entries = [] if rows is None else about(rows, charge_id)
        return [Part(event_from_dict(body["event"]), body["note"], body.get("start")) for kind, body in entries if kind == "part"]

    def accounts(self, charge_id: str) -> dict[str, float]:
        """What the filter of a charged run has spent, in all its copies, by account."""
        with self.database.reading() as rows:
            return {} if rows is None else _accounts(about(rows, charge_id))

    def charges(self, label: str | None = None) -> list[Charge]:
        """All charges, oldest first, or those with this label. Raises ValueError naming an entry that is damaged."""
        chosen, values = ("", ()) if label is None else (" AND label = ?", (label,))
        with self.database.reading() as rows:
            if rows is None:
                return []
            found = rows(f"SELECT number, event, body FROM dperm_entries WHERE kind = 'charge'{chosen} ORDER BY number", *values)
            events = events_of(rows)
        charges: list[Charge] = []
        for number, digest, text in found:
            body = parsed(number, text)
            with damaged(number, text):
                kept = {name: body.get(name, False) for name in ("keeps_parts", "keeps_reservations", "persons")}
                said = (body["id"], body["time"], body["label"], body["mechanism"], events[digest], body["private"])
                charges.append(Charge(*said, **kept, claimed=body.get("claimed", "")))
        return charges

    def total(self, delta: float, label: str | None = None, *, persons: bool = False) -> dict[Relation, float]:
        """ε of everything charged, composed, for each relation used: as if all fits saw the same records. inf with a charge that
        is only claimed, whatever else there is. What protects `persons` with all their rows, and what protects records, are never
        added up: the latter says nothing of a person with several.

        Runs with a fixed seed count as if their noise had been fresh; `charges` tells which they were.
        """
        groups: dict[Relation, dict[Event, int]] = {}
        claimed: set[Relation] = set()
        for event, of_persons, is_claimed, count in self._counted(label):
            relation = relation_of(event)
            if relation is not None and of_persons == persons:
                events = groups.setdefault(relation, {})
                events[event] = events.get(event, 0) + count
                if is_claimed or claims_of(event):
                    claimed.add(relation)
        return {
            relation: math.inf if relation in claimed else _composed_epsilon(events, delta) for relation, events in groups.items()
        }

    def _counted(self, label: str | None) -> list[tuple[Event, bool, bool, int]]:
        """Equal charges are counted, not listed: event, whether it is of persons, whether it is only claimed, and how many."""
        chosen, values = ("", ()) if label is None else (" AND label = ?", (label,))
        with self.database.reading() as rows:
            if rows is None:
                return []
            found = rows(
                f"SELECT event, persons, claimed, count(*) FROM dperm_entries WHERE kind = 'charge'{chosen} "
                "GROUP BY event, persons, claimed ORDER BY min(number)",
                *values,
            )
            events = events_of(rows)
        with damaged("of a charge", "its event"):
            return [(events[digest], bool(persons), bool(claimed), int(count)) for digest, persons, claimed, count in found]


def _remembered_meanwhile(place: str) -> Known | None:
    """The head that another process or thread of this user remembers by now: one that has just begun the log does so in a
    moment."""
    for _ in range(_LOOKS):
        if (known := remembered(place)) is not None:
            return known
        time.sleep(_PAUSE)
    return None


def _whose() -> str:
    """Who runs this process, as its environment says: nobody checks it."""
    return printable(" ".join(os.environ.get(USER, "").split())) or user_name()


def _refuse_unknown(rows: Rows, label: str, where: str) -> None:
    """ValueError where others have budgets and this data set has none."""
    if rows("SELECT count(*) FROM dperm_budgets")[0][0]:
        if not label:
            raise ValueError(
                f"The spend log {where} has budgets, and this run names no data set: state by label=… which budget it belongs "
                "to, or use another log (DPERM_SPEND_LOG)."
            )
        raise ValueError(
            f"The spend log {where} has budgets, and none for {label!r}: its owner makes one by `dperm budget create`."
        )


def _note_expiry(rows: Rows, budget: Budget, now: str, by_clocks: str) -> None:
    """An entry that a charge was refused because its budget has expired, unless the log is of a later day already: the budget
    stays expired when a clock is set back. BudgetExceeded where the clocks say that it has not."""
    last = last_of(rows)
    if not budget.expired(by_clocks[:10]):
        raise BudgetExceeded(
            f"The budget of {budget.label!r} expired on {budget.expires}: nothing was charged. So says the last entry of "
            f"the log, of {last}; clocks say {by_clocks}. If the entry is wrong, the owner uses `dperm budget correct-time`."
        )
    if not budget.expired(last[:10]):
        body = {"label": budget.label, "why": f"expired on {budget.expires}", "by": _whose(), "pid": os.getpid(), "time": now}
        append(rows, "refusal", "", body)


def _refuse_unproved(budget: Budget, body: Mapping[str, Any]) -> None:
    """ValueError for a charge whose event says less than what it gives away, or that protects something else."""
    if not body.get("private", True):
        raise ValueError(f"Expected no fixed seed under the budget of {budget.label!r}: such a run protects nobody.")
    if body.get("claimed"):
        raise ValueError(f"The budget of {budget.label!r} holds proved releases alone: {body['claimed']}.")
    if bool(body.get("persons")) != budget.persons:
        mine, other = ("persons with all their rows", "records") if budget.persons else ("records", "persons with all their rows")
        raise ValueError(f"The budget of {budget.label!r} protects {mine}, this release {other}.")


def _warn_of(before: Account, after: Account) -> None:
    if 1 - before.left < before.budget.alert <= 1 - after.left:
        warnings.warn(
            f"The budget of {before.budget.label!r} is spent to {upward(100 * (1 - after.left), 3)} %.", UserWarning, stacklevel=5
        )


def _accounts(about: list[tuple[str, dict[str, Any]]]) -> dict[str, float]:
    costs: dict[str, float] = {}
    for kind, body in about:
        if kind == "part":
            costs[body["account"]] = costs.get(body["account"], 0.0) + float(body["cost"])
    return costs


def _composed_epsilon(events: Mapping[Event, int], delta: float) -> float:
    """ε of all; or, where that is next to nothing or not finite, the sum of what each costs at its share of δ, if it is less."""
    value = epsilon(Composed(tuple(SelfComposed(event, count) for event, count in events.items())), delta)
    share = delta / max(1, sum(events.values()))
    return value if value < _HUGE else min(value, sum(count * epsilon(event, share) for event, count in events.items()))


@contextlib.contextmanager
def only_claimed(reason: str) -> Iterator[None]:
    """Within the block, charges of this thread are marked: what they state holds only if it were not so that `reason`."""
    token = _CLAIMED.set(reason)
    try:
        yield
    finally:
        _CLAIMED.reset(token)


@contextlib.contextmanager
def spend_log(where: str | os.PathLike[str] | SpendLog, *, workers: bool = True) -> Iterator[SpendLog]:
    """Within the block, fits of this thread, and with `workers` of processes started in it, write to the log `where`: a path or
    a PostgreSQL URL.

    Other threads of this process are not concerned.
    """
    if not isinstance(where, SpendLog):
        where = SpendLog(database_at(where, Path.cwd()))
    token = _HERE.set(where)
    mark = ""
    if workers:
        descriptor, mark = tempfile.mkstemp(prefix="dperm-log-")  # there as long as the block is open
        os.close(descriptor)
        with _lock:
            _active.append((mark, where.database.address))
            _tell_workers()
    try:
        yield where
    finally:
        _HERE.reset(token)
        if workers:
            with _lock:
                _active[:] = [entry for entry in _active if entry[0] != mark]
                _tell_workers()
            Path(mark).unlink(missing_ok=True)


@contextlib.contextmanager
def thrown_away() -> Iterator[SpendLog]:
    """Within the block, charges of this thread go nowhere."""
    with spend_log(SpendLog(Memory()), workers=False) as log:
        yield log


def _tell_workers() -> None:
    """Name the newest log of an open block to processes that are started from now on."""
    if _active:
        os.environ[_INHERITED] = f"{os.getpid()}:{_active[-1][0]}\n{_active[-1][1]}"
    else:
        os.environ.pop(_INHERITED, None)
