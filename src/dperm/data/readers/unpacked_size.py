"""The unpacked size of stored columns, in bytes, computed without unpacking them."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from dperm.data.untrusted_files import CELL

_AT_ONCE = 1 << 16  # rows
_MAGIC = b"ARROW1"
_PREFIX = 8  # bytes in front of a batch's description: a mark, and its length
_DICTIONARIES, _BATCHES = 2, 3  # fields of a footer
_BLOCK = struct.Struct("<qi4xq")  # where a batch is, and the lengths of its description and of its body
_BUFFER = struct.Struct("<qq")  # where a buffer is in the body, and its length
_OF_DICTIONARY = 2  # the type of a message
_DIFFERENCES = "DELTA_BYTE_ARRAY"  # an encoding: each text is stored as what differs from the one before it


def parquet_bytes(path: Path, used: Collection[str], enough: float) -> int:
    """Bytes of the used columns of a Parquet file, as its description states them.

    A dictionary holds a text once, however many rows have it. Texts are counted with their longest entry in each row, which is
    found in the dictionary alone; where that gives more than `enough`, with each row's own. Entries of lists and tables are
    counted one by one: few bytes may say that there are millions. So may they of texts that are stored as differences.
    """
    import pyarrow.types as kinds
    from pyarrow import parquet

    schema, described = parquet.read_schema(path), parquet.read_metadata(path)
    leaves = [described.schema.column(place) for place in range(len(described.schema))]
    texts = [each.name for each in schema if each.name in used and _is_text(kinds, each.type)]
    flat = {each.name for each in schema if each.name in used}
    within = tuple(f"{each.name}." for each in schema if each.name in used and kinds.is_nested(each.type))
    inner = [leaf.path for leaf in leaves if leaf.path.startswith(within) and leaf.physical_type == "BYTE_ARRAY"]
    groups = [described.row_group(place) for place in range(described.num_row_groups)]
    stored, implied = sum(group.total_byte_size for group in groups), 0
    for group in groups:
        for place, leaf in enumerate(leaves):
            chunk = group.column(place)
            each = CELL if leaf.path.startswith(within) else 0
            if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and (each or leaf.path in flat):
                each += leaf.length
            if leaf.path in inner and _DIFFERENCES in chunk.encodings:
                each += chunk.total_uncompressed_size  # no text is longer
            implied += each * chunk.num_values
    if implied > enough:  # nor may more be read, to count it
        return stored + implied
    with parquet.ParquetFile(path) as file:
        implied += sum(_differing(file, place, group, texts, enough) for place, group in enumerate(groups))
    if (total := stored + implied) > enough and implied:
        return total
    with parquet.ParquetFile(path, read_dictionary=[*texts, *inner]) as file:
        total += sum(_each(file, place, name) for place, group in enumerate(groups) for name in _with_dictionary(group, inner))
        repeated = [(place, name) for place, group in enumerate(groups) for name in _with_dictionary(group, texts)]
        if total + sum(groups[place].num_rows * _longest(file, place, name) for place, name in repeated) <= enough:
            return total
        return total + sum(_each(file, place, name) for place, name in repeated)


def _is_text(kinds: Any, kind: Any) -> bool:
    return kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind)


def _with_dictionary(group: Any, texts: Collection[str]) -> Iterator[str]:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema in texts and column.has_dictionary_page:
            yield column.path_in_schema


def _differing(file: Any, group: int, described: Any, texts: Collection[str], enough: float) -> int:
    """Bytes of a group's texts that are stored as differences; where there may be more than `enough`, each is read."""
    import pyarrow.compute as pc

    total = 0
    for place in range(described.num_columns):
        column = described.column(place)
        if column.path_in_schema not in texts or _DIFFERENCES not in column.encodings:
            continue
        longest = max(1, column.total_uncompressed_size)
        if total + longest * column.num_values <= enough:
            continue
        at_once = max(1, min(_AT_ONCE, int(enough // longest)))
        for batch in file.iter_batches(batch_size=at_once, row_groups=[group], columns=[column.path_in_schema]):
            total += pc.sum(pc.binary_length(batch.column(0))).as_py() or 0
            if total > enough:
                return total
    return total


def _longest(file: Any, group: int, name: str) -> int:
    """Bytes of the longest entry of a group's dictionary."""
    import pyarrow.compute as pc

    batch = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[name]), None)
    return 0 if batch is None else pc.max(pc.binary_length(batch.column(0).dictionary)).as_py() or 0


def _each(file: Any, group: int, name: str) -> int:
    """Bytes of all entries of a group's column, which is read as a dictionary."""
    batches = file.iter_batches(batch_size=_AT_ONCE, row_groups=[group], columns=[name])
    return sum(_pointed_to(batch.column(0)) for batch in batches)


def entry_bytes(table: Any) -> int:
    """The number of bytes that the entries of an Arrow table or batch take beyond its buffers: a text may be stored once for many
    entries, and an entry of a list may take no byte at all. ValueError for types whose entries may overlap."""
    columns = [chunk for column in table.columns for chunk in getattr(column, "chunks", [column])]
    return sum(_pointed_to(column) + CELL * _in_lists(column) for column in columns)


def _pointed_to(array: Any) -> int:
    """The number of bytes of all texts that the entries of the array, or of the arrays nested in it, refer to."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    kind = array.type
    if kinds.is_dictionary(kind):
        if _is_text(kinds, kind.value_type):
            return pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0
        return len(array) * _pointed_to(array.dictionary) if _points(kinds, kind.value_type) else 0
    if kinds.is_string_view(kind) or kinds.is_binary_view(kind):
        return _lengths_of_views(array)
    return sum(map(_pointed_to, _made_of(array)))


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
        """The position of a field; None for a field that has its default value and is not stored."""
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
