"""The counts that the private search for a schema needs of a table: they add up over its parts, in memory, in files or on a
cluster."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from dperm._progress import told
from dperm.data.columnar import StoredTable
from dperm.data.schema.entries import ReadTable, SchemaError, as_numbers, as_table, texts
from dperm.distributed.sums import sum_over
from dperm.distributed.table import of_dask

if TYPE_CHECKING:
    import pandas as pd

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.columns import OTHER

if TYPE_CHECKING:
    import pandas as pd

_STEPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
_POSITIVE = [step * 10.0**power for power in range(-9, 16) for step in _STEPS]
#: ends that a range may have
GRID: NDArray[np.float64] = np.array([*(-value for value in reversed(_POSITIVE)), 0.0, *_POSITIVE])

_LONGEST = 100  # of a category, in letters


@dataclass(frozen=True)
class ColumnCounts:
    """Of a column: how many entries read as finite numbers, as other texts, and are missing; for each of `GRID` how many numbers
    lie below and above it.

    Each entry is counted by itself. Texts that are long, or the word for others, are none of these.
    """

    numbers: int
    others: int
    missing: int
    below: NDArray[np.intp]
    above: NDArray[np.intp]

    @classmethod
    def of(cls, column: pd.Series[Any], decimal: str) -> ColumnCounts:
        """Codes (a leading zero) are no numbers."""
        words, missing = _words(column)
        read = _numbers(words, decimal)
        given = np.sort(read[np.isfinite(read)])
        below, above = np.searchsorted(given, GRID, side="left"), len(given) - np.searchsorted(given, GRID, side="right")
        return cls(len(given), len(words) - len(given), missing, below, above)

    def __add__(self, other: ColumnCounts) -> ColumnCounts:
        return ColumnCounts(
            self.numbers + other.numbers,
            self.others + other.others,
            self.missing + other.missing,
            self.below + other.below,
            self.above + other.above,
        )


def counted(frame: pd.DataFrame, names: Sequence[str], decimal: str) -> dict[str, ColumnCounts]:
    """Of these columns of a table, or of a part of it."""
    return {name: ColumnCounts.of(frame[name], decimal) for name in names}


def added(first: Mapping[str, ColumnCounts], second: Mapping[str, ColumnCounts]) -> dict[str, ColumnCounts]:
    """Of both parts."""
    return {name: counts + second[name] for name, counts in first.items()}


def values_counted(frame: pd.DataFrame, names: Mapping[str, bool], decimal: str) -> dict[str, pd.Series[Any]]:
    """How often each text occurs in these columns, in the order of texts. Numbers that are not whole are counted together, as
    `OTHER`, in columns that are named with True: in a column of measurements nearly every entry is another text."""
    return {name: _values(frame[name], decimal, together) for name, together in names.items()}


def values_added(first: Mapping[str, pd.Series[Any]], second: Mapping[str, pd.Series[Any]]) -> dict[str, pd.Series[Any]]:
    """Of both parts."""
    return {name: counts.add(second[name], fill_value=0).astype(np.int64) for name, counts in first.items()}


def _values(column: pd.Series[Any], decimal: str, together: bool) -> pd.Series[Any]:
    words, _ = _words(column)
    if together:
        read = _numbers(words, decimal)
        words = words.where(~(np.isfinite(read) & (np.trunc(read) != read)), OTHER)
    return words.value_counts().sort_index()


def _words(column: pd.Series[Any]) -> tuple[pd.Series[Any], int]:
    """The texts of a column that are looked at, and how many entries are missing."""
    words = texts(column.dropna(), ())
    words = words[words != ""]
    missing = len(column) - len(words)
    return words[(words != OTHER) & (words.str.len() <= _LONGEST)], missing


def _numbers(words: pd.Series[Any], decimal: str) -> NDArray[np.float64]:
    return as_numbers(words.where(~words.str.match(r"-?0\d")), decimal)


T = TypeVar("T")


class Table(ABC):
    """`columns` as they are called; `written`: how a text was written; `decimal`: of its numbers."""

    columns: Sequence[Any]
    written: Mapping[str, Any] = MappingProxyType({})
    decimal: str = "."
    #: whether rows live in other processes
    elsewhere: bool = False

    @abstractmethod
    def total(self, share: Callable[[pd.DataFrame], T], add: Callable[[T, T], T]) -> T:
        """Σ share(part) over parts of the rows, each row in one. Rows are read anew each time."""


class Whole(Table):
    def __init__(self, table: ReadTable) -> None:
        self.table, self.frame, self.columns = table, table.frame, list(table.frame.columns)
        self.written, self.decimal = table.format, table.decimal or "."

    def total(self, share: Callable[[pd.DataFrame], T], add: Callable[[T, T], T]) -> T:
        return share(self.frame)


class Stored(Table):
    """`progress(rows, all)` is told each time that the rows are read."""

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None) -> None:
        self._table, self._progress = StoredTable(path), progress
        self.columns = self._table.columns

    def total(self, share: Callable[[pd.DataFrame], T], add: Callable[[T, T], T]) -> T:
        total, done = None, 0
        with told(self._progress, "Counting") as step:
            for frame in self._table.frames():
                part = share(frame)
                total = part if total is None else add(total, part)
                done += len(frame)
                step(done, self._table.rows)
        if total is None:
            raise SchemaError(f"The table {self._table.path} has no records.")
        return total


class OfDask(Table):
    elsewhere = True

    def __init__(self, frame: Any) -> None:
        if not (getattr(frame, "ndim", 0) == 2 and hasattr(frame, "columns")):
            raise SchemaError(f"Expected a frame of Dask, with columns, got {type(frame).__name__}.")
        self._frame, self.columns = frame, list(frame.columns)

    def total(self, share: Callable[[pd.DataFrame], T], add: Callable[[T, T], T]) -> T:
        return sum_over(share, [(part,) for part in self._frame.to_delayed()], add)


def table_of(source: Any, progress: Callable[[int, int], None] | None = None) -> Table:
    """A frame of pandas, polars, Arrow or Dask, or the path of a Parquet, Arrow or Feather file, or of a folder of Parquet files.
    TypeError for anything else, DataError for files that cannot be read so."""
    if of_dask(source):
        return OfDask(source)
    if isinstance(source, (str, os.PathLike)):
        return Stored(Path(source), progress)
    return Whole(as_table(source))
