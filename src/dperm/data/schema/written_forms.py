"""Further forms in which numbers are written, which a schema may admit for a column: each entry is read by itself, and no entry
has to stand in the schema for that."""

from __future__ import annotations

import re
from collections.abc import Sequence

#: "bounds": "> 50", "3+", "ca. 20" and "5 or more" are the number in them; "decimals": 1.5 and 1,5 are the same number.
FORMS = ("bounds", "decimals")

_NUMBER = r"[+-]?\d[\d.,]*|[+-]?[.,]\d+"
_BEFORE = r"[<>≤≥~]=?|ca\.?|about|over|under|up to|at least|at most"
_BEHIND = r"\+|or more|or less|and more|and over"
_BOUND = re.compile(rf"(?:{_BEFORE})\s*({_NUMBER})|({_NUMBER})\s*(?:{_BEHIND})", re.IGNORECASE)
#: a mark that cannot stand between thousands, for other than three digits are behind it
_DECIMAL = re.compile(r"([+-]?\d*)[.,](\d{1,2}|\d{4,})")


def read_forms(entry: str, forms: Sequence[str]) -> str | float:
    """The number in an entry of one of these forms, as text or as a number; any other entry as it is."""
    plain = entry.strip()
    if "bounds" in forms and (found := _BOUND.fullmatch(plain)):
        plain = entry = found[1] or found[2]
    if "decimals" in forms and (found := _DECIMAL.fullmatch(plain)):
        return float(f"{found[1]}.{found[2]}")
    return entry


def piece_of(entry: str, mark: str, piece: int) -> str | None:
    """The part of an entry such as 120/80 with this number, from 1; None of an entry without the mark, or with fewer parts."""
    parts = entry.split(mark)
    return parts[piece - 1].strip() or None if len(parts) >= max(2, piece) else None
