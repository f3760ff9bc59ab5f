"""Tables that do not fit memory: read, understood and encoded a part at a time; what is kept of them lies on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm._files import nameless, scratch_folder
from dperm._memory import free_memory
from dperm.data.dataset import Dataset
from dperm.data.frames import as_frame
from dperm.data.readers.unpacked_size import arrow_bytes, entry_bytes, parquet_bytes
from dperm.data.schema.schema import Schema, SchemaError, tell_persons
from dperm.data.survey import Survey
from dperm.data.untrusted_files import CELL, DataError, Limits, parsing

if TYPE_CHECKING:
    import pandas as pd

#: endings of files that can be read so, and what their format is called
IN_PARTS = {".parquet": "parquet", ".arrow": "ipc", ".feather": "ipc"}
_BESIDE = {"_SUCCESS", "_metadata", "_common_metadata"}
_FLOAT = 16  # bytes of a floating-point number, as it is stored and as it is used
_PART = 1 << 26  # bytes of entries that are read at once


def fits_memory(path: Path, kind: str, schema: Schema | None = None) -> bool:
    """Whether a table can be read as a whole: about, from how many rows it says that it has. A folder never is."""
    if path.is_dir():
        return False
    if is_first_feather(path):
        return True
    table = StoredTable(path, kind, None if schema is None else _used(schema))
    width = CELL * len(table.columns) + (0 if schema is None else 4 * schema.dimension)
    return max(table.rows * width, path.stat().st_size) < free_memory() / 2


def is_first_feather(path: Path) -> bool:
    """Whether a file is of Feather's first version, which has no parts."""
    with path.open("rb") as file:
        return file.read(4) == b"FEA1"


class StoredTable:
    """A Parquet, Arrow or Feather file, or a folder of Parquet files in the order of their names, read a part at a time, as often
    as is asked for: `columns`, and how many `rows`. `used`: the columns that are read; None: all.

    DataError where the files cannot be read, differ in the types of these columns, or say that they hold more than the limits
    allow.
    """

    def __init__(self, path: Path, kind: str | None = None, used: Collection[str] | None = None) -> None:
        kind = path.suffix.lower() if kind is None else kind
        if not path.exists():
            raise DataError(f"No file {path}.")
        if not path.is_dir() and kind not in IN_PARTS:
            raise DataError(f"Expected a file {', '.join(IN_PARTS)}, or a folder of Parquet files, to read in parts, got {path}.")
        self.path = path
        with parsing(path):
            self._table = _table(path, kind, used)
            self.rows = int(self._table.count_rows())
        self._stored = sum(file.stat().st_size for file in _files(path))
        self.columns: list[str] = list(self._table.schema.names)
        self._used = self.columns if used is None else [name for name in self.columns if name in used]
        with parsing(path):
            limits = Limits.current()
            limits.refuse_columns(len(self.columns))
            self._needed = self.rows * max(1, self._width()) + self._unpacked(limits.enough(self._stored))
            limits.refuse_proportion(self._needed, self._stored)

    def refuse_beyond_memory(self) -> None:
        """DataError for a table that is too large to be read as a whole."""
        with parsing(self.path):
            Limits.current().refuse_cells(self.rows * len(self._used), self._stored, 0)
            Limits.current().refuse_memory(self._needed, self._stored)

    def _width(self) -> int:
        """Bytes that a row takes in memory, about, beside its texts."""
        import pyarrow.types as kinds

        fields = [self._table.schema.field(name) for name in self._used]
        return sum(_FLOAT if kinds.is_floating(each.type) else CELL for each in fields)

    def _unpacked(self, enough: float) -> int:
        """Bytes of what the files hold, once it is unpacked; more than `enough` need not be exact."""
        files = map(Path, self._table.files)
        if self._table.format.default_extname == "parquet":
            return sum(parquet_bytes(file, self._used, enough) for file in files)
        return sum(map(arrow_bytes, files))

    def frames(self, most: int | None = None) -> Iterator[pd.DataFrame]:
        """All rows, in order, at most so many at once. DataError where they cannot be read."""
        import pyarrow as pa
        from pyarrow import dataset

        most = max(1 << 10, _PART // (CELL * max(1, len(self._used)))) if most is None else most
        # else whole groups of rows are read ahead
        frugal = {"use_threads": False, "batch_readahead": 1, "fragment_readahead": 1}
        if self._table.format.default_extname == "parquet":
            frugal["fragment_scan_options"] = dataset.ParquetFragmentScanOptions(pre_buffer=False)
        batches = iter(self._table.to_batches(columns=self._used, batch_size=most, **frugal))
        while True:
            with parsing(self.path):
                batch = next(batches, None)
                if batch is not None:
                    batch.validate(full=True)  # else lengths and places in it are believed, and memory beside it is read
                    Limits.current().refuse_memory(entry_bytes(batch), self._stored)
                frame = None if batch is None else as_frame(pa.Table.from_batches([batch]))
            if frame is None:
                return
            if len(frame):
                yield frame


def stored_in_parts(path: Path) -> StoredTable | None:
    """A folder of Parquet files, or a file that memory does not hold; None for what is read as a whole."""
    kind = path.suffix.lower()
    if not path.is_dir() and (kind not in IN_PARTS or not path.is_file() or fits_memory(path, kind)):
        return None
    return StoredTable(path, kind)


def read_in_parts(path: Path, kind: str, schema: Schema, progress: Callable[[int, int], None] | None = None) -> Dataset:
    """A Parquet, Arrow or Feather file, or a folder of Parquet files in the order of their names, through its schema: the data
    set that it would be when read as a whole, with features and targets in a nameless file below `DPERM_SCRATCH` (None: where
    temporary files are).

    `progress(rows, all)` is told. DataError where the files cannot be read, or differ in the types of columns that are used, or
    the disk is too small; SchemaError as of a whole table. What each row's person is called is kept in memory, where the schema
    has a unit.
    """
    table = StoredTable(path, kind, _used(schema))
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
        for frame in frames:
            try:
                self._add(frame)
            except SchemaError as error:
                raise SchemaError(f"Rows {self._start + 1:,} to {self._start + len(frame):,}: {error}") from None
            self._start += len(frame)
            if progress is not None:
                progress(self._start, rows)
        return self._made()

    def _add(self, frame: pd.DataFrame) -> None:
        schema = self._schema
        features, targets = schema.encode(frame)
        self._usable.append(schema.usable(frame))
        survey = Survey.of(frame, schema)
        self._survey = survey if self._survey is None else self._survey.with_rows(survey)
        for column in schema.feature_columns:
            self._entries[column.name] += int(column.entries(frame[column.name]).notna().sum())
        if schema.unit:
            if schema.unit not in frame.columns:
                schema.persons(frame)  # says what is missing
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
        persons = None
        if schema.unit:
            persons = tell_persons(pd.concat(self._units, ignore_index=True))
            if unknown := int((persons < 0).sum()):
                raise SchemaError(
                    f"Expected to be told whose each row is, but {schema.unit!r} is missing in {unknown} of {len(usable)}."
                )
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


def _files(path: Path) -> list[Path]:
    """DataError for a folder that holds anything but Parquet files and what their writers leave beside them."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if not file.name.startswith(".") and file.name not in _BESIDE]
    odd = [file.name for file in files if file.is_dir() or file.suffix != ".parquet"]
    if odd or not files:
        what = f"got {odd[0]!r}" if odd else "got none"
        raise DataError(f"Expected Parquet files in the folder {path}, and no others or further folders, {what}.")
    return files


def _table(path: Path, kind: str, used: Collection[str] | None) -> Any:
    """DataError for files whose columns differ: one file's types must not change how another's entries read."""
    import pyarrow as pa
    from pyarrow import dataset, parquet

    files = _files(path)
    first: dict[str, Any] = {}
    for file in files:
        if IN_PARTS.get(kind) == "ipc":
            with pa.memory_map(str(file)) as mapped, pa.ipc.open_file(mapped) as reader:
                held = reader.schema
        else:
            held = parquet.read_schema(file)
        doubled = [name for name, count in Counter(held.names).items() if count > 1]
        if doubled:
            raise DataError(f"Expected distinct column names in {file}, got {doubled[:5]} twice.")
        types = {name: held.field(name).type for name in held.names if used is None or name in used}
        first = first or types
        for name in {**first, **types}:
            if first.get(name) != types.get(name):
                raise DataError(
                    f"Expected column {name!r} to have one type in all files of {path}, got {first.get(name, 'none')} in "
                    f"{files[0].name} and {types.get(name, 'none')} in {file.name}: write them alike."
                )
    return dataset.dataset([str(file) for file in files], format=IN_PARTS.get(kind, "parquet"))


def _used(schema: Schema) -> set[str]:
    return {column.name for column in schema.columns} | {schema.unit}


def _rows_at_once(schema: Schema) -> int:
    return max(1 << 10, _PART // (CELL * len(schema.columns) + 4 * schema.dimension))


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
