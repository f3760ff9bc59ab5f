"""Files of Arrow and Feather: what they unpack to is read off their own description."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

from dperm.data.columnar import ColumnarReader

_MAGIC = b"ARROW1"
_PREFIX = 8  # bytes in front of a batch's description: a mark, and its length
_DICTIONARIES, _BATCHES = 2, 3  # fields of a footer
_BLOCK = struct.Struct("<qi4xq")  # where a batch is, and the lengths of its description and of its body
_BUFFER = struct.Struct("<qq")  # where a buffer is in the body, and its length
_OF_DICTIONARY = 2  # the type of a message


class Arrow(ColumnarReader):
    """Files of Arrow's interprocess format, which Feather's second version is; its first version has no parts."""

    title, endings, magic = "Arrow", (".arrow", ".feather"), (_MAGIC,)
    arrow_format: ClassVar[str] = "ipc"

    def types(self, path: Path) -> Any:
        import pyarrow as pa

        with pa.memory_map(str(path)) as mapped, pa.ipc.open_file(mapped) as file:
            return file.schema

    def whole(self, path: Path) -> Any:
        from pyarrow import feather

        return feather.read_table(path)

    def unpacked_bytes(self, path: Path, used: Collection[str], enough: float) -> float:
        return arrow_bytes(path)

    def has_parts(self, path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(4) != b"FEA1"


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
