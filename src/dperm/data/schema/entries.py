"""Tables of any library as pandas frames, and their entries as numbers and as texts: each by itself, whatever else its column
holds."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from dperm._types import Array

if TYPE_CHECKING:
    import pandas as pd


#: with a decimal comma, or with points between thousands
_COMMA = re.compile(r"[+-]?(?:[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?|\d*,\d+)(?:[eE][+-]?\d+)?")
#: with commas between thousands
_POINT = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d+)?")
#: with a decimal point, as decimal commas do not allow
_WITH_POINT = re.compile(r"\s*[+-]?\d*\.\d+\s*")
#: a sign, a currency's or a percent sign on either side, and the number
_MARK = r"(?:[$€£¥%]|EUR|USD|GBP|CHF|JPY|SEK|NOK|DKK|PLN)?"
_MARKED = re.compile(rf"([+-]?){_MARK}\s*([+-]?(?=[.,]*\d)[\d.,]+)\s*{_MARK}")

_LARGEST = sys.float_info.max


class SchemaError(ValueError):
    """A schema is inconsistent, or a table does not fit it."""


def as_frame(table: Any) -> pd.DataFrame:
    """A pandas frame as it is; any table that speaks Arrow (polars, pyarrow, DuckDB …) as one. TypeError for anything else."""
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table
    if not hasattr(table, "__arrow_c_stream__"):
        advice = "read a file by dperm.data.read_table" if isinstance(table, (str, bytes)) or hasattr(table, "__fspath__") else ""
        advice = "collect it first" if hasattr(table, "collect") else advice
        raise TypeError(
            f"Expected a table with named columns, of pandas, polars or Arrow, got {type(table).__name__}"
            + (f": {advice}." if advice else ".")
        )
    import pyarrow as pa

    # whole numbers would turn to fractions by one missing value, and large ones be others: what one record holds must not matter
    return pa.table(table).to_pandas(integer_object_nulls=True)


@dataclass(frozen=True)
class ReadTable:
    """A table as its file was read. `propose`, `find`, `Dataset.of` and `SchemaEncoder` take it whole: its frame alone does not
    know how it was read.

    Attributes
    ----------
    frame : DataFrame
        The table.
    written : str
        How its file is written, in words, where the reader found that out or chose it: certificates then say that this is not
        charged. Empty: nothing was.
    decimal : str, optional
        The decimal mark of its texts. None: not known, and a schema states it.
    format : Mapping
        The options by which another file of the same making is to be read.
    sheet : str
        Which part of its file it is, in words. Empty: all.
    """

    frame: pd.DataFrame
    written: str
    decimal: str | None = None
    format: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sheet: str = ""

    def without(self, rows: Iterable[int]) -> ReadTable:
        """All but these rows, numbered from 0."""
        return replace(self, frame=self.frame.drop(index=self.frame.index[list(rows)]))


def as_table(table: Any) -> ReadTable:
    """A table that was read as it is, and any that `as_frame` takes as one of which nothing was found out."""
    return table if isinstance(table, ReadTable) else ReadTable(as_frame(table), "")


def as_numbers(values: pd.Series[Any], decimal: str = ".") -> Array:
    """(n,), NaN for what is missing or no number. Under decimal commas points stand between thousands, and only there; under
    points, commas. A currency's sign or a percent sign beside a number is not read: 7 % is 7; ($5) is −5."""
    import pandas as pd

    if values.dtype == object:  # what is neither text nor number, such as a date, changes how others are read
        values = values.map(_known)

    def told(entries: pd.Series[Any]) -> Array:
        return pd.to_numeric(entries, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan, copy=True)

    def plain(entries: pd.Series[Any]) -> pd.Series[Any]:
        return entries.map(lambda entry: _plain(entry, decimal) if isinstance(entry, str) else entry)

    if decimal == "," and values.dtype.kind not in "biuf":
        return told(plain(values))
    found = told(values)
    odd = np.isnan(found) & values.notna().to_numpy()
    if odd.any():
        found[odd] = told(plain(values[odd]))
    return found


def _known(entry: Any) -> Any:
    if isinstance(entry, int) and abs(entry) > _LARGEST:
        return math.inf
    return entry if isinstance(entry, str | Real | Decimal) else None


def _plain(entry: str, decimal: str) -> str | None:
    """An entry as Python writes numbers; what has a point or a comma that no thousands explain is no number."""
    entry = entry.strip()
    if entry.startswith("(") and entry.endswith(")"):  # as accountants write what is below 0
        entry = f"-{entry[1:-1].strip()}"
    marked = _MARKED.fullmatch(entry)
    if marked and not (entry[0].isdigit() and entry[-1].isdigit()):
        entry = marked[1] + marked[2]
    if decimal == ",":
        if "," not in entry and "." not in entry:
            return entry
        return entry.replace(".", "").replace(",", ".") if _COMMA.fullmatch(entry) else None
    return entry.replace(",", "") if "," in entry and _POINT.fullmatch(entry) else entry


def is_number(value: Any) -> bool:
    """Whether it is a finite number, as JSON has it: no text, no truth."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST


def numbers(values: pd.Series[Any], name: str, *, decimal: str = ".", lenient: bool = False) -> Array:
    """(n,), NaN where missing. SchemaError where there is something else than a finite number, or, if `lenient`, NaN."""
    result = as_numbers(values, decimal)
    broken = np.isnan(result) & values.notna().to_numpy()
    if broken.any() and not lenient:
        wrong, row = str(values[broken].iloc[0]), int(np.flatnonzero(broken)[0]) + 1
        raise SchemaError(f"Expected numbers in column {name!r}, got {wrong!r} in row {row:,}.{_hint(wrong, decimal)}")
    infinite = np.isinf(result)
    if infinite.any() and not lenient:
        raise SchemaError(f"Expected finite numbers in column {name!r}, got inf.")
    result[infinite] = np.nan
    return result


def decimal_hint(wrong: str, decimal: str) -> str:
    """How a number with a decimal point is written where decimal marks are commas; nothing for other entries."""
    if decimal == "," and _WITH_POINT.fullmatch(wrong):
        return f"; this table has decimal commas: {wrong.strip().replace('.', ',')}"
    return ""


def _hint(wrong: str, decimal: str) -> str:
    if decimal == "," and _WITH_POINT.fullmatch(wrong):
        return ' This table is read with decimal commas: if its marks are points, say "decimal": "." in the schema\'s format.'
    if decimal == "." and re.fullmatch(r"\s*[+-]?\d*,\d+\s*", wrong):
        return ' Where decimal marks are commas, say "decimal": "," in the schema\'s format.'
    return (
        ' If it stands for a missing value, say so in the schema: "format": {"missing": …}; "unknown": "ignore" of the column '
        "takes all such for missing."
    )


def texts(values: pd.Series[Any], known: Sequence[str]) -> pd.Series[Any]:
    """Values as texts, missing ones as they are: each by itself. A whole number reads the same whether another value of the
    column is missing or not, which pandas tells by making all of them floats; True and False as the `known` texts spell them."""
    import pandas as pd

    spelt = {name.lower(): name for name in known}

    def text(value: Any) -> Any:
        if isinstance(value, str):
            return value.strip()
        if isinstance(value, list | tuple | dict | np.ndarray):  # no entry of a table; whether it is missing, nobody can say
            return str(value)
        if pd.isna(value):
            return value
        if isinstance(value, bool | np.bool_):
            return spelt.get(str(value).lower(), str(value))
        if isinstance(value, float | np.floating) and float(value).is_integer():
            return str(int(value))
        return str(value).strip()

    return values.astype("object").map(text)
