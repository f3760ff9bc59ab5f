"""Reading tables: texts, sheets, Parquet, Arrow, NumPy and libsvm files into one form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dperm.data.columnar import ColumnarReader, columnar_reader
from dperm.data.dataset import Dataset
from dperm.data.file_reader import (
    ArrayReader,
    Arrays,
    TableOptions,
    TableReader,
    reader_of,
    refuse_too_large,
    refuse_unreadable,
)
from dperm.data.readers.numpy_files import is_floating
from dperm.data.schema.entries import ReadTable, SchemaError
from dperm.data.schema.ranges import TargetRange, checked_range
from dperm.data.schema.schema import Schema
from dperm.data.schema.schema_file import ENTRY_OPTIONS
from dperm.data.schema_search.proposing import propose
from dperm.data.streaming import fits_whole, read_in_parts
from dperm.data.survey import Survey
from dperm.data.untrusted_files import DataError, parsing

_LARGEST_LABEL = 2.0**53
_RANGE = "the target's range"  # where it was read off the data


def read_table(path: str | Path, schema: Schema | None = None, *, written: Mapping[str, Any] | None = None) -> ReadTable:
    """A table: text of any separator, encoding and compression, Excel's first sheet, Parquet, Arrow or Feather.

    Entries of texts and sheets are texts; how a text is written is found out, and told. The format of a schema, or `written`,
    states what it should not find out: `separator`, `encoding`, `decimal`, `header`, `skip_lines`, `missing`, `strip`.
    DataError for what cannot be read, with the line where there is one: no row is left out in silence; and where something is
    stated of this file that files of its kind do not have.
    """
    path = Path(path)
    stated = {name: value for name, value in (written or {}).items() if value is not None}
    given = {name: value for name, value in {**(schema.extra if schema else {}), **(written or {})}.items() if value is not None}
    reader = reader_of(path, text=schema is not None or bool(written))
    if not isinstance(reader, TableReader):
        raise DataError(f"Expected a table, got the array file {path.name!r}.")
    refuse_too_large(path, reader)
    names = [] if schema is None else schema.table_columns()
    named = [names, [name for name in names if schema and name != schema.target]] if names else []
    _refuse_other_options(path, reader, schema, stated)
    with parsing(path):
        table = reader.read(path, TableOptions(given, named, _values(schema)))
    if table.frame.empty:
        raise DataError(f"The table {path} has no records.")
    doubled = table.frame.columns[table.frame.columns.duplicated()].tolist()
    if doubled:
        raise DataError(f"Expected distinct column names in {path}, got {doubled[:5]} twice.")
    return replace(table, format={**table.format, **stated})


def _refuse_other_options(path: Path, reader: TableReader, schema: Schema | None, stated: Iterable[str] = ()) -> None:
    """DataError where the reader does not follow what is stated of this file, or what a schema says entries mean. How a text is
    written a schema may say for tables that are none."""
    entries = [] if schema is None else [name for name in ENTRY_OPTIONS if name in schema.extra]
    if other := [name for name in (*stated, *entries) if name not in reader.options]:
        raise DataError(
            f"Cannot read {path}: {other[0]!r} is stated, and {reader.title} files are not read by that. Take it out."
        )


def _values(schema: Schema | None) -> dict[str, tuple[str, ...]]:
    """What categories and labels are called, also where it is like a missing value: NA, Namibia."""
    if schema is None:
        return {}
    return {column.name: schema.classes if column.type == "label" else column.categories for column in schema.columns}


def read_dataset(
    path: str | Path,
    target: str | None = None,
    schema: Schema | None = None,
    *,
    curves: Callable[[Schema], int] | None = None,
    indices: tuple[int, int] | None = None,
    target_range: tuple[float, float] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Dataset, Schema | None]:
    """A data file as features and targets, and the schema used (a proposed one where none was given; None for arrays).

    `curves`: how many knots the numbers of a schema get; None: as it says. A Parquet or Arrow file that memory does not hold, or
    a folder of Parquet files, is read in parts where a schema is given; `progress(rows, all)` is told then.

    Array files: `.npz` with arrays X and y; `.npy`, memory-mapped, whose column number `target` (default −1) is the
    target; libsvm, sparse. Their values are used as they are: `data_norm` alone bounds them. `indices` of libsvm files: the first
    and the last that a feature may have, (1, 123), which are public; None: they are read off the records, and what is trained is
    only claimed to be private. `target_range` of array files: (low, high), the range that is publicly known of a target that is a
    number, which no look at the values then decides; None: a target of more than 20 values, or of others than whole numbers, is a
    number, and its range is read off the records.
    """
    path = Path(path)
    folder = path.is_dir() and schema is not None
    reader = columnar_reader(path) if folder else reader_of(path, text=schema is not None)
    if indices is not None and not (isinstance(reader, ArrayReader) and reader.takes_indices):
        raise DataError(f"Expected a libsvm file with indices, got {path}.")
    bounds = None if target_range is None else TargetRange(*checked_range(target_range, "the target"))
    if bounds is not None and not isinstance(reader, ArrayReader):
        raise DataError(f"Expected an array file with a range of the target, got {path}: in a schema its target's row states it.")
    if isinstance(reader, ArrayReader):
        refuse_too_large(path, reader)
        with parsing(path):
            arrays = reader.read(path, target, indices)
        return _of_arrays(path, arrays, bounds), None
    if schema is not None and not folder:
        refuse_unreadable(path)
    if schema is not None and isinstance(reader, ColumnarReader) and not fits_whole(path, reader, schema):
        _refuse_other_options(path, reader, schema)
        schema = schema if curves is None else schema.with_curves(curves(schema))
        _refuse_other_target(target, schema)
        return read_in_parts(path, reader, schema, progress), schema
    table = read_table(path, schema)
    if schema is None:
        if target is None:
            raise DataError(f"Expected a target for {path.name}: one of the columns {list(map(str, table.frame.columns[:20]))}.")
        schema = propose(table, target, name=path.name.split(".")[0])
    _refuse_other_target(target, schema)
    if curves is not None:
        schema = schema.with_curves(curves(schema))
    dataset, survey = Dataset.of(table, schema), Survey.of(table, schema)
    survey.refuse_unread(
        schema, {column.name: int(column.entries(table.frame[column.source]).notna().sum()) for column in schema.feature_columns}
    )
    return replace(dataset, survey=survey), schema


def _refuse_other_target(target: str | None, schema: Schema) -> None:
    if target is not None and target != schema.target:
        raise SchemaError(f"Expected target {schema.target!r}, as the schema says, got {target!r}.")


def _of_arrays(path: Path, arrays: Arrays, bounds: TargetRange | None) -> Dataset:
    """Labels, or the target's range, and indices that are not stated, are read off the data, and the data set says so."""
    features, targets, indices, stated = arrays.features, arrays.targets, arrays.indices, arrays.indices_stated
    if not is_floating(features.dtype):
        features = features.astype(np.float64)
    distinct = np.unique(targets)
    texts = targets.dtype.kind in "USb"
    if texts and bounds is not None:
        raise DataError(f"Expected numbers as targets in {path}, whose range is stated, got {distinct[:3].tolist()}.")
    labels = bounds is None and (texts or (len(distinct) <= 20 and bool(np.all(np.mod(distinct, 1) == 0))))
    if labels and targets.dtype.kind == "f" and np.abs(distinct).max(initial=0.0) > _LARGEST_LABEL:
        raise DataError(
            f"Expected labels in {path} as whole numbers up to 2^53, of which floats tell one from the next, got "
            f"{distinct[np.abs(distinct).argmax()]:g}."
        )
    notes = ["Features are used as they are; no schema states their ranges."]
    first = 0 if indices is None else indices[0]
    names = tuple(f"feature_{number}" for number in range(first, first + features.shape[1]))
    read_off: list[str] = []
    if indices is not None and not stated:
        read_off.append(f"the indices of features, {indices[0]}-{indices[1]},")
        notes.append(f"Indices of features, {indices[0]}-{indices[1]}, were read off the data: not public until stated.")
    if labels:
        notes.append("The label set was taken from the data.")
        text = targets.astype(str) if targets.dtype.kind in "USbiu" else targets.astype(np.int64).astype(str)
        classes, targets = tuple(np.unique(text).tolist()), text
    elif bounds is not None:
        classes, targets = (), targets.astype(np.float64)
    else:
        read_off.append(_RANGE)
        notes.append("The target's range was read off the data: not public until confirmed.")
        bounds, classes = TargetRange(float(distinct.min()), float(distinct.max())), ()
        targets = targets.astype(np.float64)
    one = read_off == [_RANGE]
    said = "" if not read_off else " and ".join(read_off) + (" was" if one else " were")
    bounded = bounds is not None and _RANGE not in read_off
    kept: dict[str, Any] = {"read_off": said, "indices": indices, "range_stated": bounded}
    return Dataset(path.stem, features, targets, names, classes, bounds, tuple(notes), **kept)
