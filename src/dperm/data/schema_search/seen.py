"""A column as a proposal sees it: its entries, and how many units hold each of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.entries import SchemaError, as_numbers, texts

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 20  # from which on values that are all different tell something
_SHOWN, _LETTERS = 8, 40  # entries that a note names, and letters of each
_ID = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|key|mrn|ssn|iban|pid|index|row)([^a-z]|$)|(nr|no|number|num|nummer)$")


@dataclass(frozen=True)
class Seen:
    """A column as it was read: its entries that are not missing, also as texts, and as the numbers that some are.

    `units` (n,) says which unit each entry belongs to (None: each is a unit of its own). A value that fewer than `least` units
    hold tells of few persons, and is not to be proposed.
    """

    name: str
    values: pd.Series[Any]
    words: pd.Series[Any]
    numbers: NDArray[np.float64]
    counts: dict[str, int]  # rows with each text, the most frequent first
    decimal: str
    units: NDArray[np.intp] | None
    least: int

    @classmethod
    def of(cls, name: str, values: pd.Series[Any], decimal: str, units: NDArray[np.intp] | None, least: int) -> Seen:
        there = values.notna().to_numpy()
        words = texts(values[there], ())
        kept = (words != "").to_numpy(dtype=bool)
        values, words = values[there][kept], words[kept]
        codes = words.str.match(r"-?0\d").to_numpy(dtype=bool) if len(words) else np.zeros(0, dtype=bool)
        numbers = np.full(len(values), np.nan) if values.dtype.kind in "bM" else as_numbers(values, decimal)
        if codes.any():  # a leading zero, as in postal codes: none of them is a number
            numbers[:] = np.nan
        numbers[np.isinf(numbers)] = np.nan
        mine = None if units is None else units[there][kept]
        return cls(name, values, words, numbers, words.value_counts().to_dict(), decimal, mine, least)

    @property
    def all_numbers(self) -> bool:
        return bool(len(self.numbers)) and not np.isnan(self.numbers).any()

    @property
    def whole(self) -> bool:
        return self.all_numbers and bool(np.all(np.mod(self.numbers, 1) == 0))

    @property
    def all_different(self) -> bool:
        return len(self.counts) == len(self.words) >= _ROWS

    @property
    def named_id(self) -> bool:
        return bool(_ID.search(self.name.lower()) or re.search(r"[a-z](ID|Id)$", self.name))

    @cached_property
    def spelt(self) -> tuple[dict[str, int], dict[str, Any]]:
        """Texts with the rows that have them, each in its most frequent spelling, and which others are read as it."""
        return spellings(self.counts)

    def holders(self, read: dict[str, Any]) -> dict[str, int]:
        """How many units hold each value, where entries that are `read` as another count as that."""
        import pandas as pd

        values = self.words.map(lambda word: read.get(word, word))
        if self.units is None:
            return values.value_counts().to_dict()
        return pd.Series(self.units).groupby(values.to_numpy(dtype=object)).nunique().to_dict()

    @property
    def whose(self) -> str:
        """Return the word for the unit by which values are counted."""
        return "rows" if self.units is None else "persons"


def spellings(counts: dict[str, int]) -> tuple[dict[str, int], dict[str, Any]]:
    """Texts with their counts, each in its most frequent spelling, and which others are read as it."""
    spelt: dict[str, int] = {}
    first: dict[str, str] = {}
    read: dict[str, Any] = {}
    for word, count in counts.items():  # the most frequent first
        plain = " ".join(word.casefold().split())
        kept = first.setdefault(plain, word)
        spelt[kept] = spelt.get(kept, 0) + count
        if kept != word:
            read[word] = kept
    return spelt, read


def outwards(column: str, numbers: NDArray[np.float64]) -> tuple[float, float]:
    """The extremes, rounded outwards to two digits of the span."""
    low, high = float(numbers.min()), float(numbers.max())
    span = high - low
    if not math.isfinite(span):
        raise SchemaError(f"Expected numbers of a finite span in column {column!r}, got {low:g} to {high:g}.")
    unit = 10.0 ** (math.floor(math.log10(span)) - 1) if span > 0 else max(1.0, abs(low))
    bottom, top = math.floor(round(low / unit, 9)), math.ceil(round(high / unit, 9)) + (span == 0)
    return min(low, round(bottom * unit, 12)), max(high, round(top * unit, 12))


def listed(counts: dict[str, int], entries: Iterable[str]) -> str:
    """Some entries with their counts, for a note: it is for the data holder alone."""
    most = sorted(entries, key=lambda entry: -counts[entry])
    named = ", ".join(
        f"{entry[:_LETTERS]!r}{'…' if len(entry) > _LETTERS else ''} ({counts[entry]:,})" for entry in most[:_SHOWN]
    )
    return named + (f" and {len(most) - _SHOWN:,} more" if len(most) > _SHOWN else "")
