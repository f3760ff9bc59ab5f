"""What is known of a spend log up to one of its entries, and heads that this user's processes have seen, in the state folder.

Whoever can write a log can also make a shorter one that fits together, with less spent. Only what is remembered outside the log
shows that. A head is kept under the log's address, so that a log that was replaced by another shows, too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dperm.release.ledger.entries import WRONG, amounts
from dperm.release.ledger.rules import Amounts

_UNFINISHED = ".head-"
_LONG = 3600.0  # seconds: writing a head takes less than one


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


def state_folder() -> Path:
    """What belongs to this user and outlives a session: heads of spend logs, and the log that is used where none is named."""
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dperm"
    except RuntimeError as error:  # a user without a home, as containers have them
        raise OSError(f"There is no folder for this user's state ({error}): set XDG_STATE_HOME.") from None


def remembered(address: str) -> Known | None:
    """What was last known of the log at an address; None where nothing is. A warning where it cannot be read."""
    try:
        path = _path(address)
        return Known.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, *WRONG) as error:
        warnings.warn(f"What is remembered of the spend log {address} cannot be read ({error}).", UserWarning, stacklevel=2)
        return None


def remember(address: str, known: Known) -> None:
    """Write down what is known of the log at an address, instead of what was known before. A warning where that fails: what was
    charged stays charged, and the next charge begins from what was known before.
    """
    try:
        path = _path(address)
        for folder in (path.parent.parent, path.parent):  # of both, whatever the umask: who writes one replaces what is in it
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _sweep(path.parent)
        descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)  # readable by its owner alone
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"log": address, **known.to_dict()}, file)
            Path(name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        warnings.warn(
            f"The head of the spend log {address} cannot be remembered ({error}): a log that goes back to this moment will not "
            "show.",
            UserWarning,
            stacklevel=2,
        )


@functools.cache
def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind. Once in a process."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be quicker
            if time.time() - path.stat().st_mtime > _LONG:
                path.unlink()


def _path(address: str) -> Path:
    return state_folder() / "heads" / f"{hashlib.sha256(address.encode()).hexdigest()[:32]}.json"
