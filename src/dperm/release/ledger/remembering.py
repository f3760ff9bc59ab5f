"""Heads of spend logs that this user's processes have seen, kept in the user's state folder.

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
from pathlib import Path

from dperm.release.ledger.entries import WRONG
from dperm.release.ledger.known import Known

_UNFINISHED = ".head-"
_LONG = 3600.0  # seconds: writing a head takes less than one


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
