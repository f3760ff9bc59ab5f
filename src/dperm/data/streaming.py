"""Tables that do not fit memory: read, understood and encoded a part at a time; what is kept of them lies on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm._files import nameless, scratch_folder
from dperm._progress import told
from dperm.data.columnar import PART, ColumnarReader, StoredTable, fits_memory
from dperm.data.dataset import Dataset
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.entries import SchemaError, as_frame
from dperm.data.schema.privacy_units import numbered_units, row_units
from dperm.data.schema.schema import Schema
from dperm.data.survey import Survey
from dperm.data.untrusted_files import CELL, DataError

if TYPE_CHECKING:
    import pandas as pd


def fits_whole(path: Path, reader: ColumnarReader, schema: Schema) -> bool:
    """Whether memory holds a table and what it is encoded to."""
    return fits_memory(path, reader, _used(schema), 4 * schema.dimension)


def read_in_parts(
    path: Path, reader: ColumnarReader, schema: Schema, progress: Callable[[int, int], None] | None = None
) -> Dataset:
    """A file that is read in parts, or a folder of such files in the order of their names, through its schema: the data
    set that it would be when read as a whole, with features and targets in a nameless file below `DPERM_SCRATCH` (None: where
    temporary files are).

    `progress(rows, all)` is told. DataError where the files cannot be read, or differ in the types of columns that are used, or
    the disk is too small; SchemaError as of a whole table. What each row's person is called is kept in memory, where the schema
    has a unit.
    """
    table = StoredTable(path, reader, _used(schema))
    return _encoded(table.frames(_rows_at_once(schema)), table.columns, schema, table.rows, progress)


def read_stream(source: Any, schema: Schema, progress: Callable[[int], None] | None = None) -> Dataset:
    """A table that another library gives batch by batch, through its schema: a relation of DuckDB, a lazy frame of polars, a
    reader of Arrow's, or anything else with Arrow's stream interface. Memory and errors are those of `read_in_parts`; rows keep
    their order. `progress(rows)` is told.

    Examples
    --------
    >>> import polars as pl
    >>> from dperm.data import Column, Schema, read_stream
    >>> columns = (Column("age", "number", (0, 100)), Column("paid", "label"))
    >>> lazy = pl.LazyFrame({"age": [20, 30, 60, 70], "paid": ["no", "no", "yes", "yes"]}).filter(pl.col("age") > 25)
    >>> len(read_stream(lazy, Schema("people", "paid", columns, ("no", "yes"))))
    3
    """
    import pyarrow as pa

    names, batches = _batches(source)
    wanted = [name for name in names if name in _used(schema)]
    most = _rows_at_once(schema)

    def frames() -> Iterator[pd.DataFrame]:
        for batch in batches:
            for start in range(0, batch.num_rows, most):
                yield as_frame(pa.Table.from_batches([batch.slice(start, most)]).select(wanted))

    told = None if progress is None else lambda rows, _: progress(rows)
    return _encoded(frames(), names, schema, 0, told)


def _batches(source: Any) -> tuple[list[str], Iterator[Any]]:
    """Names of columns, and Arrow's batches of one type, as they come. TypeError for what gives none."""
    import pyarrow as pa

    if hasattr(source, "collect_batches"):  # of polars
        names = list(source.collect_schema())
        return names, (batch for part in source.collect_batches() for batch in part.to_arrow().to_batches())
    if not hasattr(source, "__arrow_c_stream__"):
        raise TypeError(
            f"Expected a table that speaks Arrow, of DuckDB, polars or Arrow itself, got {type(source).__name__}; "
            "read files by read_dataset."
        )
    reader = pa.RecordBatchReader.from_stream(source)
    return reader.schema.names, iter(reader)


def _encoded(frames: Iterator[pd.DataFrame], names: list[str], schema: Schema, rows: int, progress: Any) -> Dataset:
    """`rows` is how many there are, 0 where nobody knows."""
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise DataError(f"Expected distinct column names, got {doubled[:5]} twice.")
    scratch = scratch_folder()
    with _writable(scratch):
        _refuse_small(scratch, rows * (4 * schema.dimension + _target_type(schema).itemsize))
        with nameless() as features, nameless() as targets:
            found = _Parts(schema, features, targets).read(frames, rows, progress)
    known = _used(schema)
    assert found.survey is not None
    return replace(found, survey=replace(found.survey, unknown=tuple(name for name in names if name not in known)))


class _Parts:
    """What is known of the rows that were read so far."""

    def __init__(self, schema: Schema, features: IO[bytes], targets: IO[bytes]) -> None:
        self._schema, self._features, self._targets = schema, features, targets
        self._usable: list[NDArray[np.bool_]] = []
        self._units: list[pd.Series[Any]] = []
        self._entries: Counter[str] = Counter()
        self._survey: Survey | None = None
        self._start = 0

    def read(self, frames: Iterator[pd.DataFrame], rows: int, progress: Callable[[int, int], None] | None) -> Dataset:
        with told(progress, "Reading") as step:
            for frame in frames:
                try:
                    self._add(frame)
                except SchemaError as error:
                    raise SchemaError(f"Rows {self._start + 1:,} to {self._start + len(frame):,}: {error}") from None
                self._start += len(frame)
                step(self._start, rows)
        return self._made()

    def _add(self, frame: pd.DataFrame) -> None:
        schema = self._schema
        table = SchemaEncoder(schema, frame)
        features, targets = table.encode()
        self._usable.append(table.usable)
        survey = Survey.of(frame, schema)
        self._survey = survey if self._survey is None else self._survey.with_rows(survey)
        for column in schema.feature_columns:
            self._entries[column.name] += int(column.entries(frame[column.source]).notna().sum())
        if schema.unit:
            if schema.unit not in frame.columns:
                row_units(schema, frame)  # says what is missing
            self._units.append(frame[schema.unit])
        _kept(features, self._features)
        _kept(np.asarray(targets, dtype=_target_type(schema)), self._targets)

    def _made(self) -> Dataset:
        import pandas as pd

        schema, survey = self._schema, self._survey
        usable = np.concatenate(self._usable) if self._usable else np.zeros(0, dtype=np.bool_)
        count = int(usable.sum())
        if survey is None or not count:
            raise SchemaError(f"No record is left of {len(usable):,} rows: each lacks a target or a value.")
        survey.refuse_unread(schema, self._entries)
        persons = numbered_units(schema, pd.concat(self._units, ignore_index=True)) if schema.unit else None
        for file, length in (
            (self._features, 4 * count * schema.dimension),
            (self._targets, _target_type(schema).itemsize * count),
        ):
            file.flush()
            if os.fstat(file.fileno()).st_size != length:
                raise OSError("what was written is not all there")
        features = np.memmap(self._features, dtype=np.float32, mode="r+", shape=(count, schema.dimension))
        targets: Any = np.memmap(self._targets, dtype=_target_type(schema), mode="r+", shape=(count,))
        return replace(Dataset.encoded(schema, features, targets, usable, persons), survey=survey)


@contextlib.contextmanager
def _writable(scratch: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"Cannot keep the encoded table below {scratch} ({_said(error)}): set DPERM_SCRATCH to a folder with room."
        ) from error


def _said(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _used(schema: Schema) -> set[str]:
    return {*schema.table_columns(), schema.unit}


def _rows_at_once(schema: Schema) -> int:
    return max(1 << 10, PART // (CELL * len(schema.columns) + 4 * schema.dimension))


def _target_type(schema: Schema) -> np.dtype[Any]:
    return np.array(sorted(schema.classes)).dtype if schema.classes else np.dtype(np.float64)


def _kept(values: NDArray[Any], file: IO[bytes]) -> None:
    """Written whole, or an error: `tofile` does not tell of a disk that fills up as it closes."""
    file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def _refuse_small(scratch: Path, needed: int) -> None:
    free = shutil.disk_usage(scratch).free
    if needed > free:
        raise DataError(
            f"The encoded table takes {needed / 1e9:.1f} GB below {scratch}, where {free / 1e9:.1f} are free: set DPERM_SCRATCH "
            "to a folder on a larger disk."
        )
