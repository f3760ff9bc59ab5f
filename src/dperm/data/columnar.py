"""Files that hold columns with types, and folders of them: read as a whole or a part at a time, within the memory that they say
they take."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from dperm._memory import free_memory
from dperm.data.file_reader import TableOptions, TableReader, all_readers
from dperm.data.schema.entries import ReadTable, as_frame
from dperm.data.untrusted_files import CELL, DataError, Limits, parsing

if TYPE_CHECKING:
    import pandas as pd

_BESIDE = {"_SUCCESS", "_metadata", "_common_metadata"}
_FLOAT = 16  # bytes of a floating-point number, as it is stored and as it is used
PART = 1 << 26  # bytes of entries that are read at once


class ColumnarReader(TableReader):
    """Files of columns with types, whose own description says how many rows they have and how much they unpack to.

    Attributes
    ----------
    arrow_format : str
        What `pyarrow.dataset` calls the format.
    in_folders : bool
        Whether a folder of such files is one table.
    """

    arrow_format: ClassVar[str]
    in_folders: ClassVar[bool] = False

    @abstractmethod
    def types(self, path: Path) -> Any:
        """Arrow's schema of a file: names and types of its columns."""

    @abstractmethod
    def unpacked_bytes(self, path: Path, used: Collection[str], enough: float) -> float:
        """Bytes of the used columns of a file once they are unpacked, as its description states them: computed without unpacking
        them. More than `enough` need not be exact."""

    @abstractmethod
    def whole(self, path: Path) -> Any:
        """All of a file, as Arrow's table."""

    def has_parts(self, path: Path) -> bool:
        """Whether this file can be read in parts."""
        return True

    def frugal(self) -> dict[str, Any]:
        """Settings of `pyarrow.dataset` by which no more is read ahead than is asked for."""
        return {}

    def read(self, path: Path, options: TableOptions) -> ReadTable:
        """The whole table, once it is known how much memory that takes."""
        if self.has_parts(path):
            StoredTable(path, self).refuse_beyond_memory()
        table = self.whole(path)
        # else lengths and places in it are believed, and memory beside it is read; and texts that are no UTF-8 are found later
        table.validate(full=True)
        Limits.current().refuse_memory(entry_bytes(table), path.stat().st_size)
        return ReadTable(as_frame(table), "")


def columnar_reader(path: Path) -> ColumnarReader:
    """The reader of a file that is read in parts, by its ending, or of a folder. DataError for anything else."""
    known = [reader for reader in all_readers() if isinstance(reader, ColumnarReader)]
    for reader in known:
        if reader.in_folders if path.is_dir() else path.name.lower().endswith(reader.endings):
            return reader
    endings = ", ".join(sorted({ending for reader in known for ending in reader.endings}))
    folders = " or ".join(reader.title for reader in known if reader.in_folders)
    raise DataError(f"Expected a file {endings}, or a folder of {folders} files, to read in parts, got {path}.")


class StoredTable:
    """A file that is read in parts, or a folder of such files in the order of their names, read as often as is asked for: its
    `columns`, and how many `rows` it has. `used`: the columns that are read; None: all.

    DataError where the files cannot be read, differ in the types of these columns, or say that they hold more than the limits
    allow.
    """

    def __init__(self, path: Path, reader: ColumnarReader | None = None, used: Collection[str] | None = None) -> None:
        if not path.exists():
            raise DataError(f"No file {path}.")
        self.path, self._reader = path, columnar_reader(path) if reader is None else reader
        with parsing(path):
            self._table = _table(path, self._reader, used)
            self.rows = int(self._table.count_rows())
        self._stored = sum(file.stat().st_size for file in _files(path, self._reader))
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

    def _unpacked(self, enough: float) -> float:
        """Bytes of what the files hold, once it is unpacked; more than `enough` need not be exact."""
        return sum(self._reader.unpacked_bytes(Path(file), self._used, enough) for file in self._table.files)

    def frames(self, most: int | None = None) -> Iterator[pd.DataFrame]:
        """All rows, in order, at most so many at once. DataError where they cannot be read."""
        import pyarrow as pa

        most = max(1 << 10, PART // (CELL * max(1, len(self._used)))) if most is None else most
        # else whole groups of rows are read ahead
        frugal = {"use_threads": False, "batch_readahead": 1, "fragment_readahead": 1, **self._reader.frugal()}
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


def fits_memory(path: Path, reader: ColumnarReader, used: Collection[str] | None = None, beside: int = 0) -> bool:
    """Whether a table can be read as a whole: about, from how many rows it says that it has. A folder never is. `used`: the
    columns that are read; `beside`: bytes that each row takes beside them."""
    if path.is_dir():
        return False
    if not reader.has_parts(path):
        return True
    table = StoredTable(path, reader, used)
    return max(table.rows * (CELL * len(table.columns) + beside), path.stat().st_size) < free_memory() / 2


def stored_in_parts(path: Path) -> StoredTable | None:
    """A folder of Parquet files, or a file that memory does not hold; None for what is read as a whole."""
    ends = tuple(ending for reader in all_readers() if isinstance(reader, ColumnarReader) for ending in reader.endings)
    if path.is_dir() or (path.name.lower().endswith(ends) and path.is_file() and not fits_memory(path, columnar_reader(path))):
        return StoredTable(path)
    return None


def _files(path: Path, reader: ColumnarReader) -> list[Path]:
    """DataError for a folder that holds anything but files of this reader and what their writers leave beside them."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if not file.name.startswith(".") and file.name not in _BESIDE]
    odd = [file.name for file in files if file.is_dir() or file.suffix not in reader.endings]
    if odd or not files:
        what = f"got {odd[0]!r}" if odd else "got none"
        raise DataError(f"Expected {reader.title} files in the folder {path}, and no others or further folders, {what}.")
    return files


def _table(path: Path, reader: ColumnarReader, used: Collection[str] | None) -> Any:
    """DataError for files whose columns differ: one file's types must not change how another's entries read."""
    from pyarrow import dataset

    files = _files(path, reader)
    first: dict[str, Any] = {}
    for file in files:
        held = reader.types(file)
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
    return dataset.dataset([str(file) for file in files], format=reader.arrow_format)


def is_text(kinds: Any, kind: Any) -> bool:
    """Whether a type of Arrow's, of its module `kinds`, is one of texts."""
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)


def entry_bytes(table: Any) -> int:
    """The number of bytes that the entries of an Arrow table or batch take beyond its buffers: a text may be stored once for many
    entries, and an entry of a list may take no byte at all. ValueError for types whose entries may overlap."""
    columns = [chunk for column in table.columns for chunk in getattr(column, "chunks", [column])]
    return sum(pointed_to(column) + CELL * _in_lists(column) for column in columns)


def pointed_to(array: Any) -> int:
    """The number of bytes of all texts that the entries of the array, or of the arrays nested in it, refer to."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = array.type
    if kinds.is_dictionary(kind):
        if is_text(kinds, kind.value_type):
            return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
        return len(array) * pointed_to(array.dictionary) if _points(kinds, kind.value_type) else 0
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return _lengths_of_views(array)
    return sum(map(pointed_to, _made_of(array)))


def _points(kinds: Any, kind: Any) -> bool:
    return kinds.is_nested(kind) or kinds.is_string_view(kind) or kinds.is_binary_view(kind)


def _lengths_of_views(array: Any) -> int:
    """A view is of 16 bytes, the first four of which are the length of its text."""
    import numpy as np

    buffer = array.buffers()[1]
    if buffer is None:
        return 0
    return int(np.frombuffer(buffer, "<i4").reshape(-1, 4)[array.offset : array.offset + len(array), 0].sum(dtype=np.int64))


def _in_lists(array: Any) -> int:
    """The number of entries of all lists in the array, also of lists within lists."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = array.type
    lists = kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind) or kinds.is_map(kind)
    own = pc.sum(pc.list_value_length(array)).as_py() or 0 if lists else 0
    return own + sum(map(_in_lists, _made_of(array)))


def _made_of(array: Any) -> list[Any]:
    """The arrays whose entries a nested array's are made of."""
    import pyarrow.types as kinds

    kind = array.type
    if kinds.is_list_view(kind) or kinds.is_large_list_view(kind) or kinds.is_run_end_encoded(kind) or kinds.is_union(kind):
        raise ValueError(f"it has a column of type {kind}, which dperm does not read: write it as texts, numbers or lists")
    if kinds.is_map(kind):
        return [array.keys, array.items]
    if kinds.is_struct(kind) or kinds.is_fixed_size_list(kind):
        flat = array.flatten()
        return flat if isinstance(flat, list) else [flat]
    return [array.flatten()] if kinds.is_list(kind) or kinds.is_large_list(kind) else []
