"""The chain of a spend log's entries, followed from one that is known to the last, and what the budgets then hold."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from dperm.privacy.events import Event
from dperm.release.ledger.budgets import Budget
from dperm.release.ledger.databases import Rows
from dperm.release.ledger.entries import WRONG, amounts, canonical, costs_of, events_of, flags_of
from dperm.release.ledger.heads import Known, Standing
from dperm.release.ledger.ownership import CORRECTION, refuse_uncorrected, refuse_unsigned
from dperm.release.ledger.rules import Amounts, added, lessened
from dperm.release.ledger.settlements import SETTLEMENT, checked, refuse_settled

_AT_ONCE = 10_000  # entries that are read together
_SAME = 1e-9  # relative difference of sums that were added up in another order


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
    refuse_other(rows, known, where)
    if rows("SELECT 1 FROM dperm_entries WHERE number < 1 OR number IS NULL LIMIT 1"):
        raise ValueError(f"The spend log {where} has entries before its first one: somebody added them.")
    accounts = dict(known.accounts)
    last = Known(known.count, known.chain, known.time, accounts)
    events = events_of(rows) if thorough else None
    for number, *cells in _entries(rows, known.count):
        try:
            last = _next(rows, last, accounts, number, cells, events)
        except _Unfit as error:
            raise ValueError(f"Entry {_told(number)} of the spend log {where}{error}") from None
        except WRONG as error:
            raise ValueError(f"Entry {_told(number)} of the spend log {where} is damaged: {error!r}.") from None
        if head is not None and number == head["count"] and last.chain != head["chain"]:
            raise ValueError(f"The first {number:,} entries of the spend log {where} are not those that the head was made of.")
    if head is not None and head["count"] > last.count:
        raise ValueError(f"The spend log {where} has {last.count:,} entries; it had {head['count']:,}: some were taken out.")
    _compare_heads(rows, where, last)
    _compare_accounts(rows, where, accounts)
    return last


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


def _next(
    rows: Rows,
    known: Known,
    accounts: dict[str, Standing],
    number: Any,
    cells: list[Any],
    events: Mapping[str, Event] | None,
) -> Known:
    """What is known after one more entry, of these cells of its row; `accounts`, which are those of `known`, change with it.
    _Unfit for one that does not follow, what `WRONG` holds for one in another form."""
    kind, charge, label, event, persons, private, claimed, body, told = cells
    chain = hashlib.sha256((known.chain + body).encode()).hexdigest()
    data = json.loads(body)
    time = str(data.get("time", ""))
    same = number == known.count + 1 and told == chain and (time >= known.time or kind == CORRECTION)
    same &= (data.get("kind"), data.get("label", ""), data.get("event"), data.get("charge")) == (kind, label, event, charge)
    same &= flags_of(data) == (persons, private, claimed) and (events is None or event is None or event in events)
    if not same:
        raise _Unfit(", or one before it, was changed or taken out.")
    try:
        if kind == "budget":
            refuse_unsigned(data, known.chain, accounts.get(label))
            accounts[label] = _made(rows, data, number, events, accounts.get(label))
        elif kind == "charge" and label in accounts:
            accounts[label] = replace(accounts[label], spent=added(accounts[label].spent, amounts(costs_of(data))))
        elif kind == SETTLEMENT:
            if (held := accounts.get(label)) is None:
                raise ValueError("it settles no charge of its data set.")
            given_back = checked(rows, data, number, Budget.from_dict(json.loads(held.budget)), events)
            accounts[label] = replace(held, spent=lessened(held.spent, given_back))
        elif kind in ("part", "steps"):
            _admit_later(rows, kind, data, number)
        elif kind == CORRECTION:
            refuse_uncorrected(data, known)
    except ValueError as error:
        raise _Unfit(f": {error}") from None
    return Known(number, chain, time, accounts)


class _Unfit(Exception):
    """An entry does not follow from those before it. The message goes on after the entry's name."""


def _admit_later(rows: Rows, kind: str, data: Mapping[str, Any], number: int) -> None:
    """ValueError for steps or a part of a charge that are stated in another form, or that follow its settlement."""
    if kind == "part":
        amounts({data["account"]: data["cost"]})
        if type(data.get("start", 0)) is not int:
            raise ValueError(f"expected the number of a part's first step, got {data['start']!r:.80}")
    else:
        amounts({name: data[name] for name in ("start", "stop", "limit")})
    refuse_settled(rows, data["charge"], number)


def _made(
    rows: Rows, data: Mapping[str, Any], number: int, events: Mapping[str, Event] | None, replaced: Standing | None
) -> Standing:
    """A budget as its entry made it: with what its data set had been charged before. Where the budget that it replaced had the
    same rule, that is what was spent of that one; by another rule it is the cost of all charges, settled or not, recomputed
    from these `events`, or where the entry does not state it."""
    text, stated = canonical(data["budget"]), data.get("spent")
    if data["budget"]["label"] != data["label"]:
        raise ValueError(f"it is of {data['label']!r}, and its budget of {data['budget']['label']!r}.")
    key = str(data.get("owner_key", ""))
    if stated is not None and events is None:
        return Standing(text, amounts(stated), key)
    budget, total = Budget.from_dict(data["budget"]), {}
    if replaced is not None and Budget.from_dict(json.loads(replaced.budget)).rule == budget.rule:
        if stated is not None and not _alike(amounts(stated), replaced.spent):
            raise ValueError(f"it states another sum for {budget.label!r} than was spent before.")
        return Standing(text, replaced.spent if stated is None else amounts(stated), key)
    events = events_of(rows) if events is None else events
    earlier = "SELECT event, count(*) FROM dperm_entries WHERE kind = 'charge' AND label = ? AND number < ? GROUP BY event"
    for digest, times in rows(earlier, budget.label, number):
        total = added(total, budget.cost(events[digest]), int(times))
    if stated is not None and not _alike(amounts(stated), total):
        raise ValueError(f"it states another sum for {budget.label!r} than the charges before it.")
    return Standing(text, total if stated is None else amounts(stated), key)


def _compare_heads(rows: Rows, where: str, last: Known) -> None:
    heads = rows("SELECT count, chain, time FROM dperm_head")
    if len(heads) != 1:
        raise ValueError(f"The spend log {where} should have one head and has {len(heads)}.")
    count, chain, time = heads[0]
    if (count, chain) != (last.count, last.chain):
        entries = int(rows("SELECT count(*) FROM dperm_entries")[0][0])
        raise ValueError(f"The spend log {where} should have {_told(count)} entries and has {entries:,}: some were taken out.")
    if time != last.time:
        raise ValueError(
            f"The spend log {where} is of {last.time} and says {time or 'nothing'}: an expired budget may look open."
        )


def _compare_accounts(rows: Rows, where: str, accounts: Mapping[str, Standing]) -> None:
    """The budgets' table, which charges read and write, against the entries."""
    left = dict(accounts)
    for label, body, text in rows("SELECT label, body, spent FROM dperm_budgets"):
        if label not in left:
            raise ValueError(f"The budget of {label!r} in the spend log {where} has no entry: nobody made it.")
        held = left.pop(label)
        try:
            spent = amounts(json.loads(text))
        except WRONG as error:
            raise ValueError(f"What was spent of the budget of {label!r} was changed: {error!r}.") from None
        try:
            same = body == held.budget or canonical(json.loads(body)) == held.budget  # early versions wrote other forms
        except WRONG:
            same = False
        if not same or not _alike(spent, held.spent):
            raise ValueError(f"The budget of {label!r} in the spend log {where} was changed.")
    for label in left:
        raise ValueError(f"The budget of {label!r} was taken out of the spend log {where}.")


def _told(count: object) -> str:
    """A number of a log's, which may be none where somebody changed it, for people."""
    return f"{count:,}" if isinstance(count, int) else repr(count)


def _alike(first: Amounts, second: Amounts) -> bool:
    """Whether amounts are the same but for the rounding of sums."""
    return all(math.isclose(first.get(kind, 0.0), second.get(kind, 0.0), rel_tol=_SAME) for kind in {*first, *second})
