"""How many bytes stored columns take once they are unpacked, found without unpacking them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

_AT_ONCE = 1 << 16  # rows
_MAGIC = b"ARROW1"
_PREFIX = 8  # bytes in front of a batch's description: a mark, and its length
_DICTIONARIES, _BATCHES = 2, 3  # fields of a footer
_BLOCK = struct.Struct("<qi4xq")  # where a batch is, and the lengths of its description and of its body
_BUFFER = struct.Struct("<qq")  # where a buffer is in the body, and its length
_OF_DICTIONARY = 2  # the type of a message


def parquet_bytes(path: Path, used: Collection[str], enough: float) -> int:
    """Bytes of the used columns of a Parquet file.

    A dictionary holds a text once, however many rows have it. Texts are counted with their longest entry in each row, which is
    found in the dictionary alone; where that gives more than `enough`, with each row's own.
    """
    import pyarrow.types as kinds
    from pyarrow import parquet

    schema = parquet.read_schema(path)
    texts = [each.name for each in schema if each.name in used and _is_text(kinds, each.type)]
    with parquet.ParquetFile(path, read_dictionary=texts) as file:
        groups = [file.metadata.row_group(place) for place in range(file.num_row_groups)]
        stored = sum(group.total_byte_size for group in groups)
        repeated = [(place, name) for place, group in enumerate(groups) for name in _with_dictionary(group, texts)]
        if stored + sum(groups[place].num_rows * _longest(file, place, name) for place, name in repeated) <= enough:
            return stored
        return stored + sum(_each(file, place, name) for place, name in repeated)


def _is_text(kinds: Any, kind: Any) -> bool:
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)


def _with_dictionary(group: Any, texts: Collection[str]) -> Iterator[str]:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema in texts and column.has_dictionary_page:
            yield column.path_in_schema


def _longest(file: Any, group: int, name: str) -> int:
    """Bytes of the longest entry of a group's dictionary."""
    import pyarrow.compute as pc

    batch = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[name]), None)
    return 0 if batch is None else pc.max(pc.binary_length(batch.column(0).dictionary)).as_py() or 0


def _each(file: Any, group: int, name: str) -> int:
    """Bytes of all entries of a group's column."""
    import pyarrow.compute as pc

    total = 0
    for batch in file.iter_batches(batch_size=_AT_ONCE, row_groups=[group], columns=[name]):
        column = batch.column(0)
        total += pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return total


def arrow_bytes(path: Path) -> int:
    """Bytes of all buffers of an Arrow file, as its batches state them; the reader unpacks exactly that, or fails.

    `struct.error` and the like for a file that is none. It follows the format's own description (Arrow columnar format, sections
    "IPC File Format" and "Compression"): a compressed buffer begins with its length, -1 where it is not compressed.
    """
    total = 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        end = len(data) - len(_MAGIC) - 4
        footer = _Table.root(data, end - _at("<i", data, end))
        for field in (_DICTIONARIES, _BATCHES):
            for start, described, _ in footer.structs(field, _BLOCK):
                message = _Table.root(data, start + _PREFIX)
                batch = message.table(2)
                batch = batch.table(1) if message.byte(1) == _OF_DICTIONARY else batch
                compressed = batch.has(3)
                for offset, held in batch.structs(2, _BUFFER):
                    unpacked = _at("<q", data, start + described + offset) if compressed and held else -1
                    total += held if unpacked < 0 else unpacked
    return total


def _at(form: str, data: mmap.mmap, place: int) -> int:
    if place < 0:
        raise ValueError("it points to a place in front of its beginning")
    return struct.unpack_from(form, data, place)[0]


class _Table:
    """A table of a FlatBuffer: its fields by number."""

    def __init__(self, data: mmap.mmap, place: int) -> None:
        self._data, self._place = data, place

    @classmethod
    def root(cls, data: mmap.mmap, start: int) -> _Table:
        """The outermost table of the buffer that begins at `start`."""
        return cls(data, start + _at("<I", data, start))

    def _field(self, number: int) -> int | None:
        """Where a field is; None for one that has its default."""
        fields = self._place - _at("<i", self._data, self._place)
        if 4 + 2 * number >= _at("<H", self._data, fields):
            return None
        offset = _at("<H", self._data, fields + 4 + 2 * number)
        return self._place + offset if offset else None

    def byte(self, number: int) -> int:
        place = self._field(number)
        return 0 if place is None else _at("<B", self._data, place)

    def has(self, number: int) -> bool:
        return self._field(number) is not None

    def table(self, number: int) -> _Table:
        place = self._field(number)
        if place is None:
            raise ValueError("it describes a batch of no kind")
        return _Table(self._data, place + _at("<I", self._data, place))

    def structs(self, number: int, form: struct.Struct) -> Iterator[tuple[int, ...]]:
        """The elements of a vector."""
        place = self._field(number)
        if place is None:
            return
        start = place + _at("<I", self._data, place)
        for element in range(_at("<I", self._data, start)):
            yield form.unpack_from(self._data, start + 4 + element * form.size)
