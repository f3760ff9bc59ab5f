"""Reading tables: CSV, Parquet, Arrow, NumPy and libsvm files into one form."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema import Schema, SchemaError, propose
from dperm.data.targets import TargetRange
from dperm.privacy import Certificate

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DataError", "Dataset", "read_dataset", "read_frame"]

_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".arrow", ".feather")
_ARRAYS = (".npy", ".npz", ".libsvm", ".svm", ".svmlight")


class DataError(ValueError):
    """A file cannot be used; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Dataset:
    """features: (n, d) dense or CSR; targets: (n,) labels or numbers; classes empty for regression.

    `absent` further records had missing values and were left out: of persons, those without a row that is left. Where the number
    of records is public (replace-one) they are records still: pass `absent` to `fit`.
    """

    name: str
    features: Any
    targets: NDArray[Any]
    feature_names: tuple[str, ...]
    classes: tuple[str, ...]
    target_range: TargetRange | None
    notes: tuple[str, ...] = ()
    title: str = ""
    absent: int = 0
    places: NDArray[np.intp] | None = None  # (n,) which rows of the table these are, from 0; None: not known, or all
    groups: NDArray[np.intp] | None = None  # (n,) whose each row is; None: each row is a person
    person_rows: int | None = None  # the most rows that are used of one
    found: Certificate | None = None  # what finding the schema cost, on the same records
    neighbours: tuple[tuple[int, int], ...] = ()  # features that are next to each other on a curve
    public: bool = True  # False where ranges, categories or a target's range were read off the data

    def __len__(self) -> int:
        return int(self.features.shape[0])

    def certified(self, certificate: Certificate) -> Certificate:
        """The certificate of what was trained on this: with what its schema cost, where that was found privately."""
        if self.found is None:
            return certificate
        trained = certificate.checked_otherwise("labels", "found privately with the schema, and charged")
        return Certificate.of_all([self.found, trained])

    def described(self) -> str:
        """How much there is, for the data holder alone."""
        if self.groups is None or self.person_rows is None:
            return f"{len(self):,} records"
        counts = np.unique(self.groups, return_counts=True)[1]
        left = int(np.maximum(counts - self.person_rows, 0).sum())
        text = f"{len(self):,} rows of {len(counts):,} persons, up to {counts.max(initial=0):,} of one"
        return text + (f"; {left:,} beyond {self.person_rows} of a person are not used" if left else "")

    def refuse_persons(self, what: str) -> None:
        """DataError for a table whose rows are not persons, where `what` knows rows alone."""
        if self.groups is not None:
            raise DataError(f"Expected a schema without a unit: {what} looks at rows, and a person of {self.name} has several.")

    @classmethod
    def of(cls, frame: pd.DataFrame, schema: Schema) -> Dataset:
        """A table through its schema."""
        features, targets = schema.encode(frame)
        notes = [schema.source] if schema.source else []
        left_out = absent = len(frame) - len(features)
        usable, persons = schema.usable(frame), None
        if not usable.any():
            worst = max((column.name for column in schema.feature_columns), key=lambda name: int(frame[name].isna().sum()))
            raise SchemaError(
                f'No record is left: column {worst!r} has most missing values, and "missing" is {schema.missing!r}.'
            )
        if schema.unit:
            persons = schema.persons(frame)
            absent = int(persons.max()) + 1 - len(np.unique(persons[usable]))
        if left_out:
            notes.append(f"{left_out} of {len(frame)} records have missing values and were left out.")
        return cls(
            schema.name,
            features,
            targets,
            tuple(schema.features),
            schema.classes,
            schema.target_range,
            tuple(notes),
            schema.title,
            absent=absent,
            places=np.flatnonzero(usable),
            groups=None if persons is None else persons[usable],
            person_rows=schema.unit_rows if schema.unit else None,
            found=schema.found_on_records(),
            neighbours=schema.neighbours,
            public=not schema.proposed,
        )


def _suffix(path: Path) -> str:
    name = path.name.lower()
    for suffix in sorted(_TABLES + _ARRAYS, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    raise DataError(f"Expected a file ending in {', '.join(_TABLES + _ARRAYS)}, got {path.name!r}.")


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise DataError(f"No file {path}.")
    size = path.stat().st_size
    if size == 0:
        raise DataError(f"The file {path} is empty.")
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such question on this platform
        return
    if size > free / 2 and not path.name.endswith(".npy"):
        raise DataError(
            f"The file {path} has {size / 1e9:.1f} GB, too much for the {free / 1e9:.1f} GB of free memory. "
            "Save the encoded features as a .npy file: it is memory-mapped."
        )


def read_frame(path: str | Path, schema: Schema | None = None) -> pd.DataFrame:
    """A CSV, TSV, Parquet, Arrow or Feather table. Raises DataError for what cannot be read.

    With a schema its columns are read as text or numbers as it says; the schema's format names a separator, a missing
    mark and whether there is a header.
    """
    import pandas as pd
    import pyarrow as pa

    path = Path(path)
    suffix = _suffix(path)
    if suffix in _ARRAYS:
        raise DataError(f"Expected a table, got the array file {path.name!r}.")
    _check_file(path)
    options = dict(schema.extra) if schema else {}
    try:
        if suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif suffix in (".arrow", ".feather"):
            frame = pd.read_feather(path)
        else:
            header = options.get("header", True)
            with warnings.catch_warnings():  # a row of more fields than the header would move all of them by one, or lose one
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    path,
                    index_col=False,
                    sep=options.get("separator", "\t" if suffix.startswith(".tsv") else ","),
                    header=0 if header else None,
                    names=None if header or not schema else [c.name for c in schema.columns],
                    skiprows=options.get("skip_lines", 0),
                    na_values=options.get("missing"),
                    skipinitialspace=bool(options.get("strip", False)),
                    dtype=str,  # a schema says what is a number; guesses would turn codes into numbers
                    low_memory=False,
                )
    except pd.errors.ParserWarning:
        raise DataError(
            f"Cannot read {path}: its rows have more fields than its header. Is there a separator at the end?"
        ) from None
    except (OSError, ValueError, UnicodeError, EOFError, pa.ArrowException) as error:
        raise DataError(f"Cannot read {path}: {str(error).splitlines()[0] if str(error) else type(error).__name__}") from error
    if frame.empty:
        raise DataError(f"The table {path} has no records.")
    doubled = frame.columns[frame.columns.duplicated()].tolist()
    marked = [name for name in map(str, frame.columns) if name.endswith(".1") and name[:-2] in frame.columns]
    if doubled or marked:
        raise DataError(f"Expected distinct column names in {path}, got {(doubled or [name[:-2] for name in marked])[:5]} twice.")
    return frame


def read_dataset(
    path: str | Path,
    target: str | None = None,
    schema: Schema | None = None,
    *,
    curves: Callable[[Schema], int] | None = None,
) -> tuple[Dataset, Schema | None]:
    """A data file as features and targets, and the schema used (a proposed one where none was given; None for arrays).

    `curves`: how many knots the numbers of a schema get; None: as it says.

    Array files: `.npz` with arrays X and y; `.npy`, memory-mapped, whose column number `target` (default −1) is the
    target; libsvm, sparse. Their values are used as they are: `data_norm` alone bounds them.
    """
    path = Path(path)
    suffix = _suffix(path)
    if suffix in _ARRAYS:
        _check_file(path)
        return _read_arrays(path, suffix, target), None
    frame = read_frame(path, schema)
    if schema is None:
        if target is None:
            raise DataError(f"Expected a target for {path.name}: one of the columns {list(map(str, frame.columns[:20]))}.")
        schema = propose(frame, target, name=path.name.split(".")[0])
    elif target is not None and target != schema.target:
        raise SchemaError(f"Expected target {schema.target!r}, as the schema says, got {target!r}.")
    if curves is not None:
        schema = schema.with_curves(curves(schema))
    return Dataset.of(frame, schema), schema


def _read_arrays(path: Path, suffix: str, target: str | None) -> Dataset:
    try:
        if suffix == ".npy":
            table = np.load(path, mmap_mode="r", allow_pickle=False)
            if table.ndim != 2 or table.shape[1] < 2:
                raise ValueError(f"expected a table of at least two columns, got shape {table.shape}")
            column = range(table.shape[1])[int(target if target is not None else -1)]
            if column not in (0, table.shape[1] - 1):
                raise ValueError("the target must be the first or the last column, so that the rest can stay mapped")
            features, targets = (table[:, 1:] if column == 0 else table[:, :-1]), np.array(table[:, column])
        elif suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                features, targets = arrays["X"], arrays["y"]
        else:
            from sklearn.datasets import load_svmlight_file

            features, targets = load_svmlight_file(str(path))
    except (OSError, ValueError, KeyError, IndexError, EOFError) as error:
        raise DataError(f"Cannot read {path}: {error}") from error
    if features.dtype not in (np.float64, np.float32):
        try:
            features = features.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"Expected numbers as features in {path}, got {features.dtype}.") from error
    distinct = np.unique(targets)
    labels = targets.dtype.kind in "USb" or (len(distinct) <= 20 and bool(np.all(np.mod(distinct, 1) == 0)))
    notes = ["Features are used as they are; no schema states their ranges."]
    names = tuple(f"feature_{number}" for number in range(features.shape[1]))
    if not labels:
        bounds = TargetRange(float(distinct.min()), float(distinct.max()))
        notes.append("The target's range was read off the data: not public until confirmed.")
        return Dataset(path.stem, features, targets.astype(np.float64), names, (), bounds, tuple(notes), public=False)
    notes.append("The label set was taken from the data.")
    text = targets.astype(str) if targets.dtype.kind in "USb" else targets.astype(np.int64).astype(str)
    return Dataset(path.stem, features, text, names, tuple(np.unique(text).tolist()), None, tuple(notes))
