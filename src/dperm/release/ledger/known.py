"""What is known of a spend log up to one of its entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dperm.release.ledger.entries import amounts
from dperm.release.ledger.rules import Amounts


@dataclass(frozen=True)
class Standing:
    """What the entries say of a budget: its canonical text, what was spent of it, and the public key whose owner alone may make
    another in its place, as 64 hexadecimal digits ("": anybody may)."""

    budget: str
    spent: Amounts
    key: str = ""


@dataclass(frozen=True)
class Known:
    """What is known of a log up to entry `count`: the hash and the time of that entry, and each budget by its label."""

    count: int = 0
    chain: str = ""
    time: str = ""
    accounts: Mapping[str, Standing] = field(default_factory=dict)

    @property
    def keys_of_time(self) -> dict[str, list[str]]:
        """The public keys whose owners must sign a correction of the log's time, which may reopen budgets that have expired: each
        with the labels of its budgets."""
        found: dict[str, list[str]] = {}
        for label, held in self.accounts.items():
            if held.key and json.loads(held.budget).get("expires"):
                found.setdefault(held.key, []).append(label)
        return found

    def to_dict(self) -> dict[str, Any]:
        accounts = {label: vars(held) for label, held in self.accounts.items()}
        return {"count": self.count, "chain": self.chain, "time": self.time, "accounts": accounts}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Known:
        """ValueError, KeyError, TypeError or AttributeError for a table that `to_dict` did not write."""
        refuse_forged(data)
        accounts = {
            str(label): Standing(str(held["budget"]), amounts(held["spent"]), str(held["key"]))
            for label, held in data["accounts"].items()
        }
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
