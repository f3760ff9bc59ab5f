"""The chain of a spend log's entries, followed from one that is known to the last, and what the budgets then hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dperm.privacy.events import Event
from dperm.release.ledger.budgets import Budget
from dperm.release.ledger.databases import Rows
from dperm.release.ledger.entries import canonical, costs_of, events_of, flags_of, parsed
from dperm.release.ledger.rules import Amounts, added

__all__ = ["Known", "Standing", "followed", "refuse_forged", "refuse_other"]

_AT_ONCE = 10_000  # entries that are read together
_SAME = 1e-9  # relative difference of sums that were added up in another order


@dataclass(frozen=True)
class Standing:
    """What the entries say of a budget: its canonical text, and what was spent of it."""

    budget: str
    spent: Amounts


@dataclass(frozen=True)
class Known:
    """What is known of a log up to entry `count`: the hash and the time of that entry, and each budget by its label."""

    count: int = 0
    chain: str = ""
    time: str = ""
    accounts: Mapping[str, Standing] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        accounts = {label: {"budget": held.budget, "spent": dict(held.spent)} for label, held in self.accounts.items()}
        return {"count": self.count, "chain": self.chain, "time": self.time, "accounts": accounts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Known:
        """ValueError, KeyError or TypeError for a table that `to_dict` did not write."""
        refuse_forged(data)
        accounts = {str(label): Standing(str(held["budget"]), dict(held["spent"])) for label, held in data["accounts"].items()}
        return cls(data["count"], data["chain"], str(data["time"]), accounts)


def refuse_forged(head: Mapping[str, Any]) -> None:
    """Refuse a head that no log has: its count is a whole number from 0 on, its chain a hash, or empty where the count is 0.

    Raises
    ------
    ValueError
        For any other count or chain.
    """
    count, chain = head.get("count"), head.get("chain")
    if type(count) is not int or count < 0:
        raise ValueError(f"Expected a head of a spend log with a whole number of entries, got {count!r}.")
    digits = 64 if count else 0
    if not isinstance(chain, str) or len(chain) != digits or not set(chain) <= set("0123456789abcdef"):
        raise ValueError(f"Expected a head of a spend log with a hash of {digits} hexadecimal digits after {count:,} entries.")


def followed(rows: Rows, known: Known, where: str, head: Mapping[str, Any] | None = None, *, thorough: bool = False) -> Known:
    """Follow the chain from what is known to the last entry, and compare the budgets with what the entries say of them.

    Parameters
    ----------
    rows : Rows
        A view of one moment of the log.
    known : Known
        Where to begin. Entries before it are not read again: with the hash of its last entry stand all before it, if it was
        remembered where nobody else writes.
    where : str
        The log's name, for messages.
    head : mapping, optional
        An earlier head, which the log must go on from.
    thorough : bool
        Also recompute what each budget began with, from the events of all charges before it.

    Raises
    ------
    ValueError
        Naming the first entry that was changed or taken out, or the budget that was changed.
    """
    count, chain, time, accounts = known.count, known.chain, known.time, dict(known.accounts)
    refuse_other(rows, known, where)
    events = events_of(rows) if thorough else None
    for number, kind, charge, label, event, persons, private, claimed, body, told in _entries(rows, count):
        chain = hashlib.sha256((chain + body).encode()).hexdigest()
        data = parsed(number, body)
        same = number == count + 1 and told == chain
        same &= (data.get("kind"), data.get("label", ""), data.get("event"), data.get("charge")) == (kind, label, event, charge)
        same &= flags_of(data) == (persons, private, claimed) and (events is None or event is None or event in events)
        same &= str(data.get("time", "")) >= time
        if not same:
            raise ValueError(f"Entry {number:,} of the spend log {where}, or one before it, was changed or taken out.")
        if head is not None and number == head["count"] and chain != head["chain"]:
            raise ValueError(f"The first {number:,} entries of the spend log {where} are not those that the head was made of.")
        count, time = number, str(data.get("time", ""))
        if kind == "budget":
            accounts[label] = _made(rows, data, number, events)
        elif kind == "charge" and label in accounts:
            accounts[label] = Standing(accounts[label].budget, added(accounts[label].spent, costs_of(data)))
    _compare_heads(rows, where, count, chain, time)
    if head is not None and head["count"] > count:
        raise ValueError(f"The spend log {where} has {count:,} entries; it had {head['count']:,}: some were taken out.")
    _compare_accounts(rows, where, accounts)
    return Known(count, chain, time, accounts)


def refuse_other(rows: Rows, known: Known, where: str) -> None:
    """ValueError for a log that does not go on from what is known."""
    if known.count and rows("SELECT chain FROM dperm_entries WHERE number = ?", known.count) != [(known.chain,)]:
        raise ValueError(
            f"The spend log {where} does not go on from the {known.count:,} entries that it had when it was last used from here: "
            "some were changed or taken out, or it was replaced. `dperm budget verify --remember` takes it as it is now."
        )


def _entries(rows: Rows, last: int) -> Iterator[tuple[Any, ...]]:
    """After entry `last`."""
    while found := rows(
        "SELECT number, kind, charge, label, event, persons, private, claimed, body, chain FROM dperm_entries "
        f"WHERE number > ? ORDER BY number LIMIT {_AT_ONCE}",
        last,
    ):
        yield from found
        last = found[-1][0]


def _made(rows: Rows, data: Mapping[str, Any], number: int, events: Mapping[str, Event] | None) -> Standing:
    """A budget as its entry made it: with what its data set had been charged before, which is recomputed from these `events`, or
    where the entry does not state it."""
    text, stated = canonical(data["budget"]), data.get("spent")
    if stated is not None and events is None:
        return Standing(text, dict(stated))
    events = events_of(rows) if events is None else events
    budget, total = Budget.from_dict(data["budget"]), {}
    earlier = "SELECT event, count(*) FROM dperm_entries WHERE kind = 'charge' AND label = ? AND number < ? GROUP BY event"
    for digest, times in rows(earlier, budget.label, number):
        total = added(total, budget.cost(events[digest]), int(times))
    if stated is not None and not _alike(stated, total):
        raise ValueError(f"Entry {number:,} states another sum for {budget.label!r} than the charges before it.")
    return Standing(text, total if stated is None else dict(stated))


def _compare_heads(rows: Rows, where: str, count: int, chain: str, time: str) -> None:
    heads = rows("SELECT count, chain, time FROM dperm_head")
    if len(heads) != 1:
        raise ValueError(f"The spend log {where} should have one head and has {len(heads)}.")
    if heads[0][:2] != (count, chain):
        entries = int(rows("SELECT count(*) FROM dperm_entries")[0][0])
        raise ValueError(f"The spend log {where} should have {heads[0][0]:,} entries and has {entries:,}: some were taken out.")
    if heads[0][2] != time:
        raise ValueError(
            f"The spend log {where} is of {time} and says {heads[0][2] or 'nothing'}: an expired budget may look open."
        )


def _compare_accounts(rows: Rows, where: str, accounts: Mapping[str, Standing]) -> None:
    """The budgets' table, which charges read and write, against the entries."""
    left = dict(accounts)
    for label, body, text in rows("SELECT label, body, spent FROM dperm_budgets"):
        if label not in left:
            raise ValueError(f"The budget of {label!r} in the spend log {where} has no entry: nobody made it.")
        held = left.pop(label)
        spent = json.loads(text)
        if not isinstance(spent, dict):
            raise ValueError(f"What was spent of the budget of {label!r} was changed: {text[:80]!r}.")
        if canonical(json.loads(body)) != held.budget or not _alike(spent, held.spent):
            raise ValueError(f"The budget of {label!r} in the spend log {where} was changed.")
    for label in left:
        raise ValueError(f"The budget of {label!r} was taken out of the spend log {where}.")


def _alike(first: Mapping[str, Any], second: Amounts) -> bool:
    """Whether amounts are the same but for the rounding of sums."""

    def near(kind: str) -> bool:
        amount = first.get(kind, 0.0)
        return type(amount) in (int, float) and math.isclose(amount, second.get(kind, 0.0), rel_tol=_SAME)

    return all(near(kind) for kind in {*first, *second})
