"""Tables that are summed up over their rows, wherever these are: in memory, in files read a part at a time, or on a cluster."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from dperm.data.entries import SchemaError, decimal_of
from dperm.data.frames import as_frame
from dperm.data.streaming import StoredTable
from dperm.distributed.sums import sum_over
from dperm.distributed.table import of_dask

if TYPE_CHECKING:
    import pandas as pd

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
    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame, self.columns = frame, list(frame.columns)
        self.written = frame.attrs.get("format", {})
        self.decimal = decimal_of(frame, ".")

    def total(self, share: Callable[[pd.DataFrame], T], add: Callable[[T, T], T]) -> T:
        return share(self.frame)


class Stored(Table):
    """`progress(rows, all)` is told each time that the rows are read."""

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None) -> None:
        self._table, self._progress = StoredTable(path), progress
        self.columns = self._table.columns

    def total(self, share: Callable[[pd.DataFrame], T], add: Callable[[T, T], T]) -> T:
        total, done = None, 0
        for frame in self._table.frames():
            part = share(frame)
            total = part if total is None else add(total, part)
            done += len(frame)
            if self._progress is not None:
                self._progress(done, self._table.rows)
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
    return Whole(as_frame(source))
