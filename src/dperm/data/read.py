"""Reading tables: texts, sheets, Parquet, Arrow, NumPy and libsvm files into one form."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dperm._memory import free_memory
from dperm.data.dataset import Dataset
from dperm.data.frames import as_frame
from dperm.data.readers.arrays import admit_table, arrays_of_archive, is_floating
from dperm.data.readers.decoding import read_bytes
from dperm.data.readers.streaming import IN_PARTS, StoredTable, fits_memory, is_first_feather, read_in_parts
from dperm.data.readers.text import marks_of, read_text
from dperm.data.readers.unpacked_size import entry_bytes
from dperm.data.readers.workbooks import read_sheet
from dperm.data.schema.columns import TargetRange
from dperm.data.schema.schema import Schema, SchemaError
from dperm.data.schema_search.proposing import propose
from dperm.data.survey import Survey
from dperm.data.untrusted_files import DataError, Limits, parsing

if TYPE_CHECKING:
    import pandas as pd

_TABLES = (".parquet", ".arrow", ".feather", ".xlsx", ".xlsm")
_LIBSVM_ENDINGS = (".libsvm", ".svm", ".svmlight")
_ARRAYS = (".npy", ".npz", *_LIBSVM_ENDINGS)
_TEXTS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".txt")
_LARGEST_LABEL = 2.0**53
_LIBSVM = rb"[+-]?[\d.eE+-]+(,[\d.eE+-]+)*(\s+\d+:[^\s:]+)+\s*(#.*)?"


def _kind(path: Path, *, text: bool = False) -> str:
    """What a file holds, by its ending or, where that says nothing, by its first bytes: an ending of those above, "" for text.
    `text`: it is no array, somebody said."""
    name = path.name.lower()
    for suffix in (*_TABLES, *_ARRAYS):
        if name.endswith(suffix):
            return suffix
    _check_there(path)
    if name.endswith(".xls"):
        raise DataError(f"Cannot read {path}: save it as .xlsx or as CSV.")
    with path.open("rb") as file:
        magic = file.read(8)
    if magic.startswith(b"PAR1"):
        return ".parquet"
    if magic.startswith(b"ARROW1"):
        return ".arrow"
    if name.endswith(_TEXTS):
        return ""
    if text:
        return ""
    with parsing(path):
        start = read_bytes(path, 100_000)
    return ".libsvm" if re.fullmatch(_LIBSVM, next(filter(None, start.splitlines()), b"").strip()) else ""


def _check_there(path: Path) -> None:
    if path.is_dir():
        raise DataError(f"Expected a file, got the folder {path}.")
    if not path.is_file():
        raise DataError(f"No file {path}.")
    if not os.access(path, os.R_OK):
        raise DataError(f"The file {path} may not be read by you.")
    if not path.stat().st_size:
        raise DataError(f"The file {path} is empty.")


def _check_file(path: Path) -> None:
    _check_there(path)
    size, free = path.stat().st_size, free_memory()
    if size > free / 2 and not path.name.endswith(".npy"):
        raise DataError(
            f"The file {path} has {size / 1e9:.1f} GB, too much for the {free / 1e9:.1f} GB of free memory. "
            "`dperm train` reads a Parquet file in parts where a schema is given; a .npy file of features is memory-mapped."
        )


def read_frame(path: str | Path, schema: Schema | None = None, *, written: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """A table: text of any separator, encoding and compression, Excel's first sheet, Parquet, Arrow or Feather.

    Entries of texts and sheets are texts; how a text is written is found out, and in `attrs["written"]` in words. The format of a
    schema, or `written`, states what it should not find out: `separator`, `encoding`, `decimal`, `header`, `skip_lines`,
    `missing`, `strip`.
    DataError for what cannot be read, with the line where there is one: no row is left out in silence.
    """
    path = Path(path)
    given = {**(schema.extra if schema else {}), **(written or {})}
    kind = _kind(path, text=schema is not None or bool(given))
    if kind in _ARRAYS:
        raise DataError(f"Expected a table, got the array file {path.name!r}.")
    _check_file(path)
    names = [] if schema is None else [column.name for column in schema.columns]
    named = [names, [name for name in names if schema and name != schema.target]] if names else []
    options = {name: value for name, value in given.items() if value is not None}
    words = ""
    with parsing(path):
        if kind in IN_PARTS:
            frame = _stored(path, kind)
        elif kind:
            frame = read_sheet(path, marks_of(options.get("missing", ())))
        else:
            frame, dialect = read_text(path, options, named, _values(schema))
            words = "" if {"separator", "encoding", "decimal"} <= set(options) else str(dialect)
            frame.attrs["decimal"] = dialect.decimal
            stated = {name: value for name, value in (written or {}).items() if value is not None}
            frame.attrs["format"] = {**dialect.found(), **stated}
    if frame.empty:
        raise DataError(f"The table {path} has no records.")
    doubled = frame.columns[frame.columns.duplicated()].tolist()
    if doubled:
        raise DataError(f"Expected distinct column names in {path}, got {doubled[:5]} twice.")
    frame.attrs["written"] = words
    return frame


def _values(schema: Schema | None) -> dict[str, tuple[str, ...]]:
    """What categories and labels are called, also where it is like a missing value: NA, Namibia."""
    if schema is None:
        return {}
    return {column.name: schema.classes if column.type == "label" else column.categories for column in schema.columns}


def _stored(path: Path, kind: str) -> pd.DataFrame:
    """A Parquet, Arrow or Feather file as a whole, once it is known how much memory that takes."""
    from pyarrow import feather, parquet

    if not is_first_feather(path):
        StoredTable(path, kind).refuse_beyond_memory()
    table = parquet.read_table(path) if kind == ".parquet" else feather.read_table(path)
    # else lengths and places in it are believed, and memory beside it is read; and texts that are no UTF-8 are found only later
    table.validate(full=True)
    Limits.current().refuse_memory(entry_bytes(table), path.stat().st_size)
    return as_frame(table)


def read_dataset(
    path: str | Path,
    target: str | None = None,
    schema: Schema | None = None,
    *,
    curves: Callable[[Schema], int] | None = None,
    indices: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Dataset, Schema | None]:
    """A data file as features and targets, and the schema used (a proposed one where none was given; None for arrays).

    `curves`: how many knots the numbers of a schema get; None: as it says. A Parquet or Arrow file that memory does not hold, or
    a folder of Parquet files, is read in parts where a schema is given; `progress(rows, all)` is told then.

    Array files: `.npz` with arrays X and y; `.npy`, memory-mapped, whose column number `target` (default −1) is the
    target; libsvm, sparse. Their values are used as they are: `data_norm` alone bounds them. `indices` of libsvm files: the first
    and the last that a feature may have, (1, 123), which are public; None: they are read off the records, and what is trained is
    only claimed to be private.
    """
    path = Path(path)
    kind = "" if path.is_dir() and schema is not None else _kind(path, text=schema is not None)
    if indices is not None and kind not in _LIBSVM_ENDINGS:
        raise DataError(f"Expected a libsvm file with indices, got {path}.")
    if kind in _ARRAYS:
        _check_file(path)
        return _read_arrays(path, kind, target, indices), None
    if schema is not None and not path.is_dir():
        _check_there(path)
    if schema is not None and (path.is_dir() or kind in IN_PARTS) and not fits_memory(path, kind, schema):
        schema = schema if curves is None else schema.with_curves(curves(schema))
        _refuse_other_target(target, schema)
        return read_in_parts(path, kind, schema, progress), schema
    frame = read_frame(path, schema)
    if schema is None:
        if target is None:
            raise DataError(f"Expected a target for {path.name}: one of the columns {list(map(str, frame.columns[:20]))}.")
        schema = propose(frame, target, name=path.name.split(".")[0])
    _refuse_other_target(target, schema)
    if curves is not None:
        schema = schema.with_curves(curves(schema))
    dataset, survey = Dataset.of(frame, schema), Survey.of(frame, schema)
    survey.refuse_unread(
        schema, {column.name: int(column.entries(frame[column.name]).notna().sum()) for column in schema.feature_columns}
    )
    return replace(dataset, survey=survey), schema


def _refuse_other_target(target: str | None, schema: Schema) -> None:
    if target is not None and target != schema.target:
        raise SchemaError(f"Expected target {schema.target!r}, as the schema says, got {target!r}.")


def _sparse(path: Path, indices: tuple[int, int] | None) -> tuple[Any, Any, tuple[int, int]]:
    """Features, targets and the indices of the features: stated, or from 0 or 1 to the largest that any record has."""
    from sklearn.datasets import load_svmlight_file

    if indices is not None and not 0 <= indices[0] <= indices[1]:
        raise DataError(
            f"Cannot read {path}: expected indices from 0 or more to as many or more, got {indices[0]} to {indices[1]}."
        )
    with parsing(path):
        if indices is not None:
            Limits.current().refuse_features(indices[1])
        features, targets = load_svmlight_file(io.BytesIO(read_bytes(path)), zero_based=True)
        Limits.current().refuse_features(features.shape[1] - 1)
    if indices is None:
        first = 0 if features[:, :1].nnz else 1
        return features[:, first:], targets, (first, features.shape[1] - 1)
    first, last = indices
    if features.shape[1] > last + 1 or features[:, :first].nnz:
        raise DataError(f"Cannot read {path}: expected indices from {first} to {last}, got others.")
    features.resize(features.shape[0], last + 1)
    return features[:, first:], targets, indices


def _mapped(path: Path, target: str | None) -> tuple[Any, Any]:
    """Features and targets of a .npy file, the features mapped."""
    with parsing(path):
        table = np.load(path, mmap_mode="r", allow_pickle=False)
        admit_table(table, path.stat().st_size)
    try:
        column = range(table.shape[1])[int(target if target is not None else -1)]
    except (ValueError, IndexError):
        raise DataError(f"Expected target to be the number of a column of {path}, got {target!r}.") from None
    if column not in (0, table.shape[1] - 1):
        raise DataError(f"Cannot read {path}: the target must be the first or the last column, so that the rest can stay mapped.")
    return (table[:, 1:] if column == 0 else table[:, :-1]), np.array(table[:, column])


def _read_arrays(path: Path, suffix: str, target: str | None, indices: tuple[int, int] | None) -> Dataset:
    stated = indices is not None
    if suffix == ".npy":
        features, targets = _mapped(path, target)
    elif suffix == ".npz":
        with parsing(path):
            features, targets = arrays_of_archive(path)
    else:
        features, targets, indices = _sparse(path, indices)
    if not is_floating(features.dtype):
        features = features.astype(np.float64)
    distinct = np.unique(targets)
    labels = targets.dtype.kind in "USb" or (len(distinct) <= 20 and bool(np.all(np.mod(distinct, 1) == 0)))
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
        classes, bounds, targets = tuple(np.unique(text).tolist()), None, text
    else:
        read_off.append("the target's range")
        notes.append("The target's range was read off the data: not public until confirmed.")
        bounds, classes = TargetRange(float(distinct.min()), float(distinct.max())), ()
        targets = targets.astype(np.float64)
    said = "" if not read_off else " and ".join(read_off) + (" were" if len(read_off) > 1 or not bounds else " was")
    return Dataset(path.stem, features, targets, names, classes, bounds, tuple(notes), read_off=said, indices=indices)
