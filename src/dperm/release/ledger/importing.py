"""Spend logs of the old form, a JSON object a line, read into a database."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from dperm.privacy.events import Event, event_from_dict
from dperm.release.ledger.entries import append_all, now_of
from dperm.release.ledger.log import SpendLog

__all__ = ["read_in"]

_KEPT = ("id", "label", "mechanism", "pid", "private", "keeps_parts", "keeps_reservations", "persons", "claimed", "time")


def read_in(log: SpendLog, path: str | os.PathLike[str]) -> int:
    """Append what a log of lines holds, in its order; returns how many charges. What was read in before is left out.

    ValueError names a line that is damaged; nothing is read in then. So too where the log has budgets: what was spent before
    belongs into it before they are made.
    """
    entries = [_entry(number, line) for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1)]
    with log.writing() as rows:
        if rows("SELECT count(*) FROM dperm_budgets")[0][0]:
            raise ValueError(f"The spend log {log.where} has budgets: read what was spent before into it, and make them then.")
        now = now_of(rows)
        for number, (_, _, body, _) in enumerate(entries, start=1):
            if str(body.get("time", "")) > now:
                raise ValueError(f"Line {number} of the log is from {body['time']}, and now is {now}: budgets would expire.")
        known = {charge for (charge,) in rows("SELECT charge FROM dperm_entries WHERE kind = 'charge'")}
        fresh = [entry for entry in entries if entry[1] not in known]
        append_all(rows, fresh)
    return sum(kind == "charge" for kind, *_ in fresh)


def _entry(number: int, line: str) -> tuple[str, str, dict[str, Any], Event | None]:
    """Kind, charge, body and event of one line."""
    try:
        data = json.loads(line)
        if "continues" not in data:
            body = {name: data[name] for name in _KEPT if name in data}
            return "charge", data["id"], {"label": "", "private": True, **body}, event_from_dict(data["event"])
        if "part" in data:
            body = {name: data[name] for name in ("account", "cost", "note", "pid") if name in data}
            return "part", data["continues"], body, event_from_dict(data["part"])
        return "steps", data["continues"], {name: data[name] for name in ("start", "stop", "limit")}, None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"Line {number} of the log is damaged ({error}): correct or remove it; add by hand what it charged."
        ) from None
