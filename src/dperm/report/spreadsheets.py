"""Cells of CSV files that a spreadsheet would run as formulas: a text of somebody else's that begins with "=" is a program."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

HEADER = "column names"
#: What does not matter in front of a formula: blanks, quotes, and the mark of UTF-8, which a spreadsheet takes off a file.
_FRONT = r"[ \u00a0\ufeff\"]*"
#: Signs that begin a formula, also as wide as Chinese and Japanese letters.
_FORMULA = re.compile(rf"{_FRONT}[=+@＝＋＠]")
_MINUS = re.compile(rf"{_FRONT}[-−－]")
#: What may follow a minus: a number in any way of writing it, or an id.
_NUMBER = re.compile(r"\s*[-−－]\s?(\d[\d.,]*|[.,]\d+)([eE][+-]?\d+)?\s?%?\s*")
_ID = re.compile(r"\s*[-−－][\w-]*\s*")
#: What may separate cells for a spreadsheet of another country, or rows, within a text that is one cell here.
_SEPARATORS = re.compile(r"([;\t\r\n])")
#: Of texts that may hold a formula: all others, nearly all, are looked at once. Arrow, which looks, reads no escaped "u".
_SUSPECT = re.compile('^[ \u00a0\ufeff"]*[=+@＝＋＠\\-−－]|[;\t\r\n]')


def quoted(text: str) -> str:
    """The text with a ' in front of what a spreadsheet would take for a formula, which shows it as it is; else the text itself.

    A formula begins with ``=``, ``+``, ``@``, a tab or a line end, or with a minus unless the whole is a number or letters,
    digits, ``_`` and ``-`` alone, such as the id −12A. So may what stands behind a semicolon, a tab or a line end: where these
    separate cells, a spreadsheet splits the text there, in spite of quotation marks.
    """
    parts = _SEPARATORS.split(text)
    made = "".join(f"'{part}" if _begins_formula(part) else part for part in parts)
    return f"'{made}" if text[:1] in ("\t", "\r", "\n") else made


def _begins_formula(part: str) -> bool:
    if _FORMULA.match(part):
        return True
    return bool(_MINUS.match(part)) and not (_NUMBER.fullmatch(part) or _ID.fullmatch(part))


def for_spreadsheets(table: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """A table whose texts are `quoted`, and its column names; and how many were, by the column's own name and `HEADER`.

    Numbers stay as they are, and so do missing entries.
    """
    made, counts = table.copy(deep=False), dict[str, int]()
    for place, (name, dtype) in enumerate(table.dtypes.items()):
        if dtype.kind in "biufcmM":
            continue
        column = table.iloc[:, place]
        if dtype == "str":  # in all texts at once: one by one takes longer than writing them
            suspect = column.str.contains(_SUSPECT.pattern, na=False).to_numpy()
        else:
            suspect = np.array([isinstance(entry, str) and bool(_SUSPECT.search(entry)) for entry in column], dtype=bool)
        rows = np.flatnonzero(suspect)
        entries = column.iloc[rows].tolist()
        changes = {entry: new for entry in set(entries) if (new := quoted(entry)) != entry}
        if changes:
            cells = column.astype("object").copy()
            concerned = [(row, changes[entry]) for row, entry in zip(rows.tolist(), entries, strict=True) if entry in changes]
            cells.iloc[[row for row, _ in concerned]] = [new for _, new in concerned]
            made.isetitem(place, cells)
            counts[str(name)] = len(concerned)
    names = [quoted(str(name)) for name in table.columns]
    if changed := sum(new != str(name) for new, name in zip(names, table.columns, strict=True)):
        counts[HEADER] = changed
    return made.set_axis(names, axis=1), counts
