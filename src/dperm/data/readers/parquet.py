"""Parquet files: what they unpack to is computed from their description and their dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, ClassVar

from dperm.data.columnar import ColumnarReader, is_text, pointed_to
from dperm.data.untrusted_files import CELL

_AT_ONCE = 1 << 16  # rows
_DIFFERENCES = "DELTA_BYTE_ARRAY"  # an encoding: each text is stored as what differs from the one before it


class Parquet(ColumnarReader):
    """A file, or a folder of files whose columns have the same types."""

    title, endings, magic = "Parquet", (".parquet",), (b"PAR1",)
    arrow_format: ClassVar[str] = "parquet"
    in_folders: ClassVar[bool] = True

    def types(self, path: Path) -> Any:
        from pyarrow import parquet

        return parquet.read_schema(path)

    def whole(self, path: Path) -> Any:
        from pyarrow import parquet

        return parquet.read_table(path)

    def unpacked_bytes(self, path: Path, used: Collection[str], enough: float) -> float:
        return parquet_bytes(path, used, enough)

    def frugal(self) -> dict[str, Any]:
        from pyarrow import dataset

        return {"fragment_scan_options": dataset.ParquetFragmentScanOptions(pre_buffer=False)}


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
    texts = [each.name for each in schema if each.name in used and is_text(kinds, each.type)]
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
    return sum(pointed_to(batch.column(0)) for batch in batches)
