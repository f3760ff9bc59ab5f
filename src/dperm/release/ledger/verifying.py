"""Whether a spend log is whole: the chain through its entries, its events, and what its budgets hold."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from dperm.release.ledger.budgets import Account, Budget
from dperm.release.ledger.databases import Rows
from dperm.release.ledger.entries import account_of, costs_of, events_of, flags_of, parsed
from dperm.release.ledger.rules import added

__all__ = ["verified"]


def verified(rows: Rows, where: str, head: Mapping[str, Any] | None) -> int:
    """See `SpendLog.verify`."""
    chain, number, events = "", 0, events_of(rows)
    accounts: dict[str, Account] = {}
    time = ""
    for number, kind, charge, label, event, persons, private, claimed, body, told in rows(
        "SELECT number, kind, charge, label, event, persons, private, claimed, body, chain FROM dperm_entries ORDER BY number"
    ):
        chain = hashlib.sha256((chain + body).encode()).hexdigest()
        data = parsed(number, body)
        columns = (data.get("kind"), data.get("label", ""), data.get("event"), data.get("charge"))
        same = columns == (kind, label, event, charge) and (event is None or event in events)
        same &= flags_of(data) == (persons, private, claimed)
        time = data.get("time", "")
        if told != chain or not same:
            raise ValueError(f"Entry {number:,} of the spend log {where}, or one before it, was changed or taken out.")
        if head is not None and number == head["count"] and chain != head["chain"]:
            raise ValueError(f"The first {number:,} entries of the spend log {where} are not those that the head was made of.")
        if kind == "budget":
            accounts[label] = _recounted(rows, Budget.from_dict(data["budget"]), number)
        elif kind == "charge" and label in accounts:
            accounts[label] = Account(accounts[label].budget, added(accounts[label].spent, costs_of(data)))
    heads = rows("SELECT count, chain, time FROM dperm_head")
    if len(heads) != 1:
        raise ValueError(f"The spend log {where} should have one head and has {len(heads)}.")
    count, last, latest = heads[0]
    entries = int(rows("SELECT count(*) FROM dperm_entries")[0][0])
    if (count, last) != (number, chain) or entries != number:
        raise ValueError(f"The spend log {where} should have {count:,} entries and has {entries:,}: some were taken out.")
    if head is not None and head["count"] > number:
        raise ValueError(f"The spend log {where} has {number:,} entries; it had {head['count']:,}: some were taken out.")
    if latest != time:
        raise ValueError(f"The spend log {where} is of {time} and says {latest or 'nothing'}: an expired budget may look open.")
    for (label,) in rows("SELECT label FROM dperm_budgets"):
        if label not in accounts:
            raise ValueError(f"The budget of {label!r} in the spend log {where} has no entry: nobody made it.")
    for label, account in accounts.items():
        stated = account_of(rows, label)
        if (
            stated is None
            or stated.budget != account.budget
            or any(not stated.spent.get(kind, 0.0) >= amount * (1 - 1e-9) for kind, amount in account.spent.items())
        ):
            raise ValueError(f"The budget of {label!r} in the spend log {where} was changed.")
    return number


def _recounted(rows: Rows, budget: Budget, before: int) -> Account:
    """A budget when it was made: with what its data set had been charged."""
    events, total = events_of(rows), {}
    earlier = "SELECT event, count(*) FROM dperm_entries WHERE kind = 'charge' AND label = ? AND number < ? GROUP BY event"
    for digest, count in rows(earlier, budget.label, before):
        total = added(total, budget.cost(events[digest]), int(count))
    return Account(budget, total)
