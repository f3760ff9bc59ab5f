"""Entries of a spend log: how they are written, chained and read, within a transaction."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dperm.privacy.events import Event, event_from_dict
from dperm.release.ledger.budgets import Account, Budget
from dperm.release.ledger.clocks import agreed, not_ahead
from dperm.release.ledger.databases import Rows
from dperm.release.ledger.rules import Amounts

#: What reading raises where somebody wrote other things than this package does.
WRONG = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_AT_ONCE = 50  # entries in one statement: early versions of SQLite take 999 values


def now_of(rows: Rows) -> str:
    """The time, as entries state it: never before that of the last entry, or by a server's clock where the log has a server.

    Raises
    ------
    ValueError
        Where this machine's clock is ahead of a second one.
    """
    return max(last_of(rows), time_by_clocks(rows))


def time_by_clocks(rows: Rows) -> str:
    """`now_of`, but whatever the last entry says."""
    return agreed(_by_this_machine(), rows.clocks())


def last_of(rows: Rows) -> str:
    """The time of the last entry."""
    return rows("SELECT time FROM dperm_head")[0][0]


def _by_this_machine() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def append(rows: Rows, kind: str, charge: str, body: Mapping[str, Any], *, event: Event | None = None) -> None:
    """One entry, chained to the one before. Its time is never before that of the one before: clocks may be set back. Where the
    body states no time it is that of the earliest clock: what is a part of a charge is not refused where clocks differ."""
    append_all(rows, [(kind, charge, body, event)])


def append_all(rows: Rows, entries: Iterable[tuple[str, str, Mapping[str, Any], Event | None]]) -> None:
    """`append` of kinds, charges, bodies and events, in their order."""
    entries = list(entries)
    ((count, chain, last),) = rows("SELECT count, chain, time FROM dperm_head")
    now = "" if all("time" in body for _, _, body, _ in entries) else not_ahead(_by_this_machine(), rows.clocks())
    written: set[str] = set()
    values: list[tuple[Any, ...]] = []
    for number, (kind, charge, body, event) in enumerate(entries, start=count + 1):
        stated = str(body.get("time", "")) or now
        last = stated if kind == "time" else max(last, stated)  # a correction alone sets it back
        event_text = None if event is None else canonical(event.to_dict())  # events of others need not be hashable
        digest = None if event_text is None else hashlib.sha256(event_text.encode()).hexdigest()
        text = canonical({**body, "kind": kind, "charge": charge, "time": last, "event": digest})
        if rows.only_appends:
            rows("SELECT dperm_append(?, ?)", text, event_text)
            continue
        if digest is not None and digest not in written:
            rows("INSERT INTO dperm_events VALUES (?, ?) ON CONFLICT (digest) DO NOTHING", digest, event_text)
            written.add(digest)
        chain = hashlib.sha256((chain + text).encode()).hexdigest()
        values.append((number, kind, charge, body.get("label", ""), digest, *flags_of(body), text, chain))
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE]
        places = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(some))
        rows(f"INSERT INTO dperm_entries VALUES {places}", *itertools.chain.from_iterable(some))
    if values:
        rows("UPDATE dperm_head SET count = ?, chain = ?, time = ?", count + len(values), chain, last)


def flags_of(body: Mapping[str, Any]) -> tuple[int, int, int]:
    """Of persons, private, claimed: as columns have it."""
    return int(bool(body.get("persons"))), int(bool(body.get("private", True))), int(bool(body.get("claimed")))


def about(rows: Rows, charge_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The entries of a charge: kind and body, its event as a table."""
    found = rows(
        "SELECT number, kind, dperm_entries.body, dperm_events.body FROM dperm_entries "
        "LEFT JOIN dperm_events ON event = digest WHERE charge = ? ORDER BY number",
        charge_id,
    )
    said: list[tuple[str, dict[str, Any]]] = []
    for number, kind, text, event in found:
        body = parsed(number, text)
        if body.get("event") is not None:
            body["event"] = _event_in(body["event"], event)
        said.append((kind, body))
    return said


def events_of(rows: Rows, label: str | None = None) -> dict[str, Event]:
    """By digest, each parsed once; of one data set's charges, or of all entries. ValueError for one that was changed."""
    chosen, values = "", ()
    if label is not None:
        chosen, values = " WHERE digest IN (SELECT event FROM dperm_entries WHERE kind = 'charge' AND label = ?)", (label,)
    found: dict[str, Event] = {}
    for digest, text in rows(f"SELECT digest, body FROM dperm_events{chosen}", *values):
        found[digest] = event_from_dict(_event_in(digest, text))
    return found


def event_of_digest(rows: Rows, digest: Any) -> Any:
    """The table of one event. ValueError where the log holds none of this digest, or where it was changed."""
    found = rows("SELECT body FROM dperm_events WHERE digest = ?", digest)
    return _event_in(digest, found[0][0] if found else None)


def _event_in(digest: Any, text: Any) -> Any:
    """The table of an event that entries name by its digest."""
    try:
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise ValueError("it has another digest")
        return json.loads(text)
    except WRONG as error:
        raise ValueError(f"An event of the spend log was changed ({error}): {str(text)[:80]!r}.") from None


def parsed(number: int, text: Any) -> dict[str, Any]:
    """The body of an entry. ValueError naming the entry where somebody wrote something else."""
    with damaged(number, text):
        body = json.loads(text)
        if not isinstance(body, dict):
            raise TypeError("no table")
        return body
    raise AssertionError("unreachable: what is damaged raises")


@contextlib.contextmanager
def damaged(number: Any, text: Any) -> Iterator[None]:
    """What an entry with this body does not have, or has in another form, is told as ValueError that names the entry."""
    try:
        yield
    except WRONG as error:
        raise ValueError(f"Entry {number} of the spend log is damaged ({error!r}): {str(text)[:80]!r}.") from None


def amounts(said: Any) -> dict[str, float]:
    """Amounts of each kind, as a log that others can write states them. ValueError for what no release costs: less than nothing
    would make room in a budget, and what doubles do not hold cannot be added up."""
    if not isinstance(said, dict):
        raise ValueError(f"expected amounts of each kind, got {said!r:.80}")
    found: dict[str, float] = {}
    for kind, amount in said.items():
        if type(amount) not in (int, float) or not 0 <= amount <= sys.float_info.max:
            raise ValueError(f"expected amounts from 0 on, got {amount!r:.80}")
        found[kind] = amount
    return found


def canonical(body: Mapping[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def account_of(rows: Rows, label: str) -> Account | None:
    """A data set's budget and what was spent of it; None where it has none. ValueError where somebody wrote what is neither."""
    found = rows("SELECT body, spent FROM dperm_budgets WHERE label = ?", label)
    if not found:
        return None
    body, text = found[0]
    try:
        budget = Budget.from_dict(json.loads(body))
    except WRONG as error:
        raise ValueError(f"The budget of {label!r} was changed: {error!r}.") from None
    try:
        return Account(budget, amounts(json.loads(text)))
    except WRONG as error:
        raise ValueError(f"What was spent of the budget of {label!r} was changed: {error!r}.") from None


def set_spent(rows: Rows, account: Account) -> None:
    """Write what was spent of a budget. For who may only append, the server adds up what a charge states."""
    if not rows.only_appends:
        rows("UPDATE dperm_budgets SET spent = ? WHERE label = ?", canonical(account.spent), account.budget.label)


def set_limits(rows: Rows, budget: Budget) -> None:
    """Write the limits that the server holds those to who may only append."""
    rows("DELETE FROM dperm_limits WHERE label = ?", budget.label)
    for kind, amount in budget.rule.limits.items():
        rows("INSERT INTO dperm_limits VALUES (?, ?, ?)", budget.label, kind, amount)


def costs_of(body: Mapping[str, Any]) -> Amounts:
    """What a charge took of its budget. The first version knew Rényi filters alone."""
    return body["costs"] if "costs" in body else {"divergence": body["rdp"], "mass": body["mass"]}
