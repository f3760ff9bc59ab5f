"""Settlements: entries that give back what a charge reserved in a budget and what was never released.

A charge reserves its whole cost before anything runs. The process that made it may stop the run by what was released, close its
channel for good, and then write a settlement: which leaves of the charged event were never released. Their cost leaves the
budget's sum again. Why that is private for budgets by a filter, and for no others, is proved in docs/budgets.md.

A charge's entry states the SHA-256 of a key that only the memory of the charging process holds; the settlement states the key. So
nobody else can settle the charge, and a process that was killed settles nothing.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dperm.privacy.events import Event, event_from_dict, leaves
from dperm.release.ledger.budgets import Account, Budget
from dperm.release.ledger.databases import Rows
from dperm.release.ledger.entries import account_of, amounts, costs_of, event_of_digest, parsed
from dperm.release.ledger.rules import Amounts, lessened

SETTLEMENT = "settlement"
#: What a charge states of the key, and a settlement: the key itself.
DIGEST, KEY = "settlement_digest", "settlement_key"
_ROUNDING = 1 + 1e-9  # of costs that another version computes


@dataclass(frozen=True)
class Settlement:
    """What was given back of a charge, and to which data set's budget.

    `charged` and `unreleased` are events: what was reserved, and the leaves of it that were never released. `given_back` is what
    the budget's sum fell by, of each kind of cost, and `account` the budget after that.
    """

    charge_id: str
    charged: Event
    unreleased: Event
    given_back: Amounts
    account: Account

    def said(self, key: str) -> dict[str, Any]:
        """What its entry states, beside who wrote it."""
        counts = {"unreleased": self.steps_given_back, "charged": self.steps_charged}
        return {"label": self.account.budget.label, KEY: key, "given_back": dict(self.given_back), **counts}

    @property
    def steps_charged(self) -> int:
        """How many leaves the charge reserved."""
        return leaves(self.charged).total()

    @property
    def steps_given_back(self) -> int:
        """How many of them were never released."""
        return leaves(self.unreleased).total()

    def __str__(self) -> str:
        rule = self.account.budget.rule
        given = ", ".join(rule.told(kind, amount) for kind, amount in self.given_back.items() if amount)
        return (
            f"{self.steps_given_back:,} of {self.steps_charged:,} charged steps were never released; {given or 'nothing'} was "
            f"given back to the budget of {self.account.budget.label!r} ({rule.name})"
        )


def new_key() -> str:
    """A key for one settlement, for the memory of the process that charges."""
    return secrets.token_hex(32)


def digest_of_key(key: str) -> str:
    """What a charge states of a settlement's key."""
    return hashlib.sha256(key.encode()).hexdigest()


def settlement_of(rows: Rows, charge_id: str, key: str, unreleased: Callable[[int | None], Event]) -> Settlement:
    """What a key settles of its charge. `unreleased` says which leaves of the charged event were never released, given the first
    step that no process has reserved (None: the run reserves no steps). ValueError says why nothing is given back."""
    found = _charge(rows, charge_id)
    if found is None:
        raise ValueError(f"The spend log no longer holds the charge {charge_id}.")
    body, charged = found
    if settled(rows, charge_id):
        raise ValueError(f"The charge {charge_id} was settled already: a charge is settled once.")
    if digest_of_key(key) != body.get(DIGEST):
        raise ValueError(f"The charge {charge_id} was made by another process: only the process that charged can settle.")
    account = account_of(rows, label := str(body.get("label", "")))
    if account is None:
        raise ValueError(f"There is no budget for {label!r}, to which anything could be given back.")
    refuse_changed_rule(rows, account.budget)
    steps = [json.loads(text) for (text,) in _bodies(rows, charge_id, "steps")]
    unreserved = max([int(step["stop"]) for step in steps], default=0) if body.get("keeps_reservations") else None
    left = unreleased(unreserved)
    _refuse_unreserved(charged, left)
    given_back = account.budget.rule.given_back(left)
    _refuse_more(given_back, costs_of(body))
    after = Account(account.budget, lessened(account.spent, given_back))
    return Settlement(charge_id, charged, left, given_back, after)


def settled(rows: Rows, charge_id: str, before: int | None = None) -> bool:
    """Whether a charge was settled; in an entry before this number, where one is given."""
    until, values = ("", ()) if before is None else (" AND number < ?", (before,))
    return bool(rows(f"SELECT 1 FROM dperm_entries WHERE kind = '{SETTLEMENT}' AND charge = ?{until}", charge_id, *values))


def refuse_settled(rows: Rows, charge_id: str, before: int | None = None) -> None:
    """ValueError where a charge was settled, in an entry before this number: what it had left is closed for good."""
    if settled(rows, charge_id, before):
        raise ValueError(
            f"The charge {charge_id} was settled: what was left of it was given back to the budget, and nothing more of it is "
            "released. Charge another run."
        )


def refuse_changed_rule(rows: Rows, budget: Budget, before: int | None = None) -> None:
    """ValueError where a data set's budget did not add up by one rule from before its first charge on: what it would give back is
    then a choice that releases may have been a reason for. `before`: looks at entries before this number alone."""
    until, values = ("", ()) if before is None else (" AND number < ?", (before,))
    entries = f"SELECT number, body FROM dperm_entries WHERE kind = 'budget' AND label = ?{until} ORDER BY number"
    made = rows(entries, budget.label, *values)
    if not made or rows(
        "SELECT 1 FROM dperm_entries WHERE kind = 'charge' AND label = ? AND number < ? LIMIT 1", budget.label, made[0][0]
    ):
        raise ValueError(
            f"Nothing is given back to the budget of {budget.label!r}: it was made after the first charge, and its "
            f"{budget.rule.name} must be fixed before anything is released."
        )
    if any(Budget.from_dict(parsed(number, text)["budget"]).rule != budget.rule for number, text in made):
        raise ValueError(
            f"Nothing is given back to the budget of {budget.label!r}: its rule was changed after it was first made, and a "
            "filter's order and size must be fixed before anything is released."
        )


def checked(
    rows: Rows, data: Mapping[str, Any], number: int, budget: Budget, events: Mapping[str, Event] | None = None
) -> Amounts:
    """What the settlement of entry `number` gives back to this budget. ValueError where it does not follow from its charge.

    Looked at is what a server's function holds those to who may only charge, so that none of their entries stops the others; with
    all `events` of the log also whether what was not released was charged, and costs so much.
    """
    charge_id = str(data["charge"])
    found = rows("SELECT number, body FROM dperm_entries WHERE charge = ? AND kind = 'charge' AND number < ?", charge_id, number)
    body = parsed(*found[0]) if len(found) == 1 else {}
    if not data.get("label") == body.get("label") == budget.label:
        raise ValueError("it settles no charge of its data set.")
    if digest_of_key(str(data[KEY])) != body.get(DIGEST):
        raise ValueError("it does not state the key of the charge that it settles.")
    if settled(rows, charge_id, number):
        raise ValueError("it settles a charge that was settled before.")
    refuse_changed_rule(rows, budget, number)
    stated = amounts(data["given_back"])
    _refuse_more(stated, amounts(costs_of(body)))
    if events is not None:
        unreleased = events[data["event"]]
        _refuse_unreserved(events[body["event"]], unreleased)
        _refuse_more(stated, {kind: _ROUNDING * amount for kind, amount in budget.rule.given_back(unreleased).items()})
    return stated


def _refuse_unreserved(charged: Event, unreleased: Event) -> None:
    if not leaves(unreleased) <= leaves(charged):
        raise ValueError("a settlement gives back no more than its charge reserved.")


def _refuse_more(stated: Amounts, most: Amounts) -> None:
    if any(kind not in most or not amount <= most[kind] for kind, amount in stated.items()):
        raise ValueError("a settlement gives back no more than its charge cost.")


def _charge(rows: Rows, charge_id: str) -> tuple[dict[str, Any], Event] | None:
    """The body and the event of a charge's entry; None where there is none."""
    found = rows("SELECT number, body FROM dperm_entries WHERE charge = ? AND kind = 'charge'", charge_id)
    if len(found) != 1:
        return None
    body = parsed(*found[0])
    return body, event_from_dict(event_of_digest(rows, body["event"]))


def _bodies(rows: Rows, charge_id: str, kind: str) -> list[tuple[Any, ...]]:
    return rows("SELECT body FROM dperm_entries WHERE charge = ? AND kind = ?", charge_id, kind)
