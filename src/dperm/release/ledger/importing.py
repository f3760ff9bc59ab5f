"""Spend logs of the old form, a JSON object a line, read into a database."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dperm import _validate as check
from dperm.privacy.events import Event, event_from_dict
from dperm.release.ledger.entries import amounts, append_all, now_of
from dperm.release.ledger.log import SpendLog

#: What is kept of each kind of line, and its type; what has a default may be absent.
_CHARGE = {"id": str, "time": str, "mechanism": str}
_OF_CHARGES = {
    **_CHARGE, "label": str, "pid": int, "private": bool, "keeps_parts": bool, "keeps_reservations": bool, "persons": bool,
    "claimed": str,
}  # fmt: skip
_PART = {"account": str, "cost": float, "note": dict}
_OF_PARTS = {**_PART, "pid": int}
_STEPS = {"start": int, "stop": int, "limit": int}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


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
            body: dict[str, Any] = {"label": "", "private": True, **_kept(data, _OF_CHARGES, _CHARGE)}
            if not _TIME.fullmatch(body["time"]):
                raise ValueError(f"expected a time such as 2026-01-31T12:00:00Z, got {body['time']!r}")
            return "charge", body["id"], body, event_from_dict(data["event"])
        charge = _kept(data, {"continues": str}, {"continues": str})["continues"]
        if "part" in data:
            body = _kept(data, _OF_PARTS, _PART)
            check.non_negative("cost", body["cost"])
            return "part", charge, body, event_from_dict(data["part"])
        body = _kept(data, _STEPS, _STEPS)
        amounts(body)
        if not 0 <= body["start"] <= body["stop"] <= body["limit"]:
            raise ValueError("expected start, stop and limit in order")
        return "steps", charge, body, None
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"Line {number} of the log is damaged ({error}): correct or remove it; add by hand what it charged."
        ) from None


def _kept(data: Mapping[str, Any], kinds: Mapping[str, type], needed: Mapping[str, type]) -> dict[str, Any]:
    """What a line states by these names. ValueError for one that is missing, or of another type: an entry, once written, stays,
    and a log with one that cannot be read tells nothing any more."""
    if missing := [name for name in needed if name not in data]:
        raise ValueError(f"it says nothing of its {missing[0]}")
    for name, kind in kinds.items():
        allowed = (int, float) if kind is float else (kind,)
        if name in data and type(data[name]) not in allowed:
            raise ValueError(f"expected {name} as {kind.__name__}, got {data[name]!r:.80}")
    return {name: data[name] for name in kinds if name in data}
