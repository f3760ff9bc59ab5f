"""Which table each model was trained from, remembered for the user of this machine alone: the model's file does not say it.

A digest of the table in the model would tell whoever guesses the records whether the guess is right. So the way of its file is
kept in the user's state folder, beside the heads of spend logs, and models that travel take nothing of it along.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from dperm._files import replace_own


def remember_table(model: str, source: str) -> None:
    """Note that a model, as the text of its file, was trained from the file `source`. Where the state folder cannot be written
    nothing is noted: a remark will be missing, and nothing else."""
    if not Path(source).exists():  # a named set has no file of its own
        return
    with contextlib.suppress(OSError):
        place = _place(model)
        place.parent.mkdir(parents=True, exist_ok=True)
        with replace_own(place, private=True) as note:
            note.write(str(Path(source).resolve()))


def was_trained_from(model: str, source: str) -> bool:
    """Whether a model, as the text of its file, is known to have been trained from the file `source`."""
    try:
        return Path(source).exists() and _place(model).read_text(encoding="utf-8") == str(Path(source).resolve())
    except OSError:  # nothing is remembered of it here
        return False


def _place(model: str) -> Path:
    from dperm.release.ledger.heads import state_folder

    return state_folder() / "trained" / hashlib.sha256(model.encode()).hexdigest()[:40]
