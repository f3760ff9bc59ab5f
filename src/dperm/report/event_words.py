"""An event as lines that a person can read: what ran, with its public numbers, indented by what stands within what."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from dperm.privacy import Event

_MOST_LINES = 60
_MOST_NUMBERS = 8  # of a list within one line


def event_lines(event: Event) -> list[tuple[int, str]]:
    """(depth, line) of the event and of all events within it; equal ones in a row are one line that says how many they are.
    Numbers are rounded to six digits: the event itself holds all."""
    lines = list(itertools.islice(_lines(event.to_dict(), 0, 1), _MOST_LINES + 1))
    if len(lines) > _MOST_LINES:
        lines[_MOST_LINES:] = [(0, "… and more: the file has the whole event.")]
    return lines


def _lines(table: dict[str, Any], depth: int, times: int) -> Iterator[tuple[int, str]]:
    inner: list[dict[str, Any]] = []
    plain: list[str] = []
    for name, value in table.items():
        if _is_event(value):
            inner.append(value)
        elif isinstance(value, list) and value and all(map(_is_event, value)):
            inner += value
        elif name != "type" and value is not None:
            plain.append(f"{name.replace('_', ' ')} {_text(value)}")
    repeated = "" if times == 1 else f"{times:,} times: "
    yield depth, repeated + _words(str(table["type"])) + (f" ({', '.join(plain)})" if plain else "")
    for part, same in itertools.groupby(inner):
        yield from _lines(part, depth + 1, len(list(same)))


def _is_event(value: Any) -> bool:
    return isinstance(value, dict) and "type" in value


def _words(kind: str) -> str:
    """ObjectivePerturbationEvent as "Objective perturbation"; acronyms stay as they are."""
    words = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z0-9]+|[A-Z]+", kind.removesuffix("Event")) or [kind]
    return " ".join([words[0], *(word if word.isupper() else word.lower() for word in words[1:])])


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        more = f" … ({len(value):,} in all)" if len(value) > _MOST_NUMBERS else ""
        return "[" + "; ".join(_text(each) for each in value[:_MOST_NUMBERS]) + "]" + more
    if isinstance(value, dict):
        return "; ".join(f"{name} {_text(each)}" for name, each in value.items())
    return str(value).replace("_", " ")
