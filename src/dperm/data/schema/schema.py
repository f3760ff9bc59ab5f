"""A small public schema for a table: column types, ranges, categories and labels, stated before anyone looks at the rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._files import read_bounded
from dperm._json import on_one_line, unique_names
from dperm.data.frames import as_frame
from dperm.data.schema.column_pairs import Pair, admit_pairs
from dperm.data.schema.columns import OTHER, Column, Encoding, TargetRange, checked_range, date_parts
from dperm.data.schema.entries import SchemaError, decimal_of, is_number, numbers, texts
from dperm.data.schema.schema_file import as_text, given_by
from dperm.data.untrusted_files import TooLargeError, refuse_beyond_free
from dperm.privacy import Certificate, epsilon

if TYPE_CHECKING:
    import pandas as pd

_LONGEST = 1 << 26  # bytes of a schema
_MOST_ROWS = 8192  # of a person


@dataclass(frozen=True)
class Schema:
    """Columns in order, the target's labels (or range, for regression), and what to do about missing values.

    `missing`: "error" refuses a table with missing values, "drop" leaves such records out, "middle" puts a number in the
    middle of its range and a category at all zeros, "separate" makes a category of them. Each decides record by record, so
    neighbours stay neighbours; where the number of records is public, those that were left out count: see `Dataset.absent`.
    `curves`: knots of the curve that each number gets, see `Encoding`; 0: a straight line. With curves features are divided by
    the root of the number of columns and pairs, so that no row is longer than 1.
    `pairs`: two columns' names each, of which a model says something together where it has curves; see `Pair`.
    `unit`: the column that tells persons apart, where one may have several rows; it is no feature. At most `max_rows_per_unit`
    rows of a person are used. "": each row is a person.
    `found`: the certificate, as its JSON, of how ranges, categories and labels were found on these records privately (`find`):
    what is trained by this schema has paid for it, too.
    `proposed` marks a schema read off the data: not public until someone who has not seen them confirms it.
    """

    name: str
    target: str
    columns: tuple[Column, ...]
    classes: tuple[str, ...] = ()
    target_range: TargetRange | None = None
    missing: Literal["error", "drop", "middle", "separate"] = "error"
    curves: int = 0
    pairs: tuple[tuple[str, str], ...] = ()
    unit: str = ""
    max_rows_per_unit: int = 64
    proposed: bool = False
    title: str = ""
    source: str = ""
    licence: str = ""
    found: Mapping[str, Any] | None = field(default=None, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns if column.type != "date"]
        names += [part.name for column in self.columns if column.type == "date" for part in date_parts(column)]
        doubled = sorted(name for name, count in Counter(names).items() if count > 1)
        if doubled:
            raise SchemaError(f"Expected distinct column names, got {doubled[:5]} more than once.")
        labels = [column.name for column in self.columns if column.type == "label"]
        if labels != [self.target]:
            raise SchemaError(f"Expected exactly the target {self.target!r} to have type label, got {labels}.")
        object.__setattr__(self, "classes", tuple(str(value) for value in self.classes))
        if (not self.classes) == (self.target_range is None):
            raise SchemaError("Expected either classes (classification) or target_range (regression).")
        if self.target_range is not None:
            object.__setattr__(self, "target_range", TargetRange(*checked_range(self.target_range, "the target")))
        if self.classes and len(set(self.classes)) < max(2, len(self.classes)):
            raise SchemaError(f"Expected at least two distinct classes, got {list(self.classes)}.")
        for entry, meant in self._label.read.items():
            if meant is not None and self.classes and str(meant) not in self.classes:
                raise SchemaError(f"Expected read of {self.target!r} to give one of its labels, got {meant!r} for {entry!r}.")
            if meant is not None and not self.classes and not is_number(meant):
                raise SchemaError(f"Expected read of {self.target!r} to give a finite number, got {meant!r} for {entry!r}.")
        check.choice("missing", self.missing, ("error", "drop", "middle", "separate"))
        if type(self.unit) is not str:
            raise SchemaError(f"Expected the unit to be the name of a column, got {self.unit!r}.")
        if type(self.max_rows_per_unit) is not int or not 1 <= self.max_rows_per_unit <= _MOST_ROWS:
            raise SchemaError(
                f"Expected max_rows_per_unit to be a whole number from 1 to {_MOST_ROWS:,}, got {self.max_rows_per_unit!r}."
            )
        if self.unit and any(column.name == self.unit and column.type != "ignore" for column in self.columns):
            raise SchemaError(
                f"Expected the unit {self.unit!r} to be no feature and no target: give it the type ignore, or leave it out."
            )
        object.__setattr__(self, "pairs", admit_pairs(self.pairs, self._feature_parts, self.encoding))
        if self.dimension == 0:
            raise SchemaError("Expected at least one feature column.")

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.curves, self.missing == "separate", lenient=self.found is not None)

    @property
    def _label(self) -> Column:
        return next(column for column in self.columns if column.name == self.target)

    def decimal_of(self, frame: pd.DataFrame) -> str:
        """The decimal mark of a table's texts: as its file was read, or as the format states."""
        return decimal_of(frame, self.extra.get("decimal", "."))

    def _encoding_of(self, frame: pd.DataFrame) -> Encoding:
        return replace(self.encoding, decimal=self.decimal_of(frame))

    @property
    def feature_columns(self) -> list[Column]:
        """Those that features are made of, in order."""
        return [column for column in self.columns if column.is_feature]

    @property
    def parts(self) -> list[Column | Pair]:
        """What features are made of, in order: columns, and with curves pairs."""
        known = {column.name: column for column in self._feature_parts}
        pairs = [Pair(known[first], known[second]) for first, second in self.pairs if self.curves]
        return [*self._feature_parts, *pairs]

    @property
    def _feature_parts(self) -> list[Column]:
        columns = self.feature_columns
        return [part for column in columns for part in (date_parts(column) if column.type == "date" else [column])]

    @property
    def features(self) -> list[str]:
        """Names of the encoded features, `column=category` for one-hot ones, `column≈knot` for those of a curve."""
        return [name for part in self.parts for name in part.features(self.encoding)]

    def columns_of(self, name: str) -> dict[str, int]:
        """Which feature stands for each category of the column `name`, others included: for `fit_by` of `DPByPart`. SchemaError
        for what is no category."""
        at = 0
        for part in self.parts:
            if isinstance(part, Column) and part.name == name and part.type == "category":
                names = (*part.categories, *((OTHER,) if part.other else ()))
                return {category: at + place for place, category in enumerate(names)}
            at += part.width(self.encoding)
        known = [column.name for column in self.feature_columns if column.type == "category"]
        raise SchemaError(f"Expected the name of a category, one of {known[:12]}, got {name!r}.")

    def of_other_parts(self, frame: Any, name: str, value: str) -> dict[int, str]:
        """By row, from 0, in words: the rows whose category in the column `name` is another than `value`."""
        frame = as_frame(frame)
        at = self.columns_of(name)[value] - min(self.columns_of(name).values())
        column = next(column for column in self.columns if column.name == name)
        mine = column.encode(frame[name], replace(self._encoding_of(frame), lenient=True))[:, at] > 0
        return {int(row): f"column {name!r} is not {value!r}, which this model is for" for row in np.flatnonzero(~mine)}

    @property
    def dimension(self) -> int:
        return sum(part.width(self.encoding) for part in self.parts)

    @property
    def divisor(self) -> float:
        """What features are divided by: with curves a hair more than the root of how many parts there are."""
        return math.sqrt(len(self.parts)) * (1 + 2.0**-20) if self.curves else 1.0

    @property
    def neighbours(self) -> tuple[tuple[int, int], ...]:
        """Features that are next to each other on a curve, by their numbers: for a penalty on roughness."""
        found, at = list[tuple[int, int]](), 0
        for part in self.parts:
            found += [(at + first, at + second) for first, second in part.neighbours(self.encoding)]
            at += part.width(self.encoding)
        return tuple(found)

    def with_curves(self, knots: int = 12) -> Schema:
        """The same with curves of so many knots; 0: with straight lines."""
        return replace(self, curves=knots)

    def encode(self, frame: Any) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Features (n, dimension) in [0, 1] — numbers by their public range or curve, categories one-hot — and targets (n,).

        Raises SchemaError, naming column and value, where the table does not fit. Speaks to the data holder only.
        """
        frame = as_frame(frame)
        if self.target not in frame.columns:
            raise SchemaError(
                f"Expected the target column {self.target!r}, but the table has {list(map(str, frame.columns[:12]))} …"
            )
        unlabelled = ~self.labelled(frame)
        if unlabelled.any() and self.missing == "error":
            raise SchemaError(f"Expected no missing values in the target {self.target!r}, got {int(unlabelled.sum())}.")
        frame = frame.loc[~unlabelled]
        features, kept = self.encode_features(frame)
        targets = self._label.entries(frame.loc[kept, self.target])
        return features, self._targets(targets, self.decimal_of(frame))

    def found_on_records(self) -> Certificate | None:
        """What finding it cost, where it was found privately. SchemaError where that protects others than its unit does."""
        if self.found is None:
            return None
        try:
            certificate = Certificate.from_json(json.dumps(self.found))
            certificate.verify()
        except ValueError as error:
            raise SchemaError(f"The schema's certificate of how it was found cannot be used: {error}") from None
        if on_one_line(self.unit) != certificate.public_facts.get("unit", ""):
            raise SchemaError("Expected the unit that this schema was found by: it protects other neighbours. Find it again.")
        return certificate

    def found_by(self, relation: str, delta: float) -> Certificate | None:
        """The same, to be added to a training under this relation and δ. SchemaError, before anything is charged, where it cannot
        be."""
        certificate = self.found_on_records()
        if certificate is None:
            return None
        if certificate.relation != relation:
            found = certificate.relation.value
            raise SchemaError(f"Expected relation {found!r}, under which this schema was found, got {relation!r}.")
        if not delta or not math.isfinite(epsilon(certificate.event, delta)):
            raise SchemaError(
                f"Expected a delta above {certificate.delta / 10:g}: finding the schema took that much, got {delta:g}."
            )
        return certificate

    def persons(self, frame: Any) -> NDArray[np.intp]:
        """(n,) whose each row is, as a number. SchemaError where a row does not say."""
        frame = as_frame(frame)
        if self.unit not in frame.columns:
            raise SchemaError(
                f"Expected the unit's column {self.unit!r}, but the table has {list(map(str, frame.columns[:12]))} …"
            )
        number = tell_persons(frame[self.unit])
        if unknown := int((number < 0).sum()):
            raise SchemaError(
                f"Expected to be told whose each row is, but {self.unit!r} is missing in {unknown} of {len(frame)}."
            )
        return number

    def usable(self, frame: Any) -> NDArray[np.bool_]:
        """(n,): which records `encode` keeps."""
        frame = as_frame(frame)
        mask = self.labelled(frame).copy()
        if self.missing == "drop":
            for column in self.feature_columns:
                mask &= ~column.absent(frame[column.name], self.decimal_of(frame))
        return mask

    def labelled(self, frame: Any) -> NDArray[np.bool_]:
        """(n,) records with a target; where labels were found, with one of those."""
        frame = as_frame(frame)
        values = self._label.entries(frame[self.target])
        if self.found is None and self._label.unknown == "error":
            return values.notna().to_numpy()
        if self.classes:
            return self._as_labels(values).isin(self.classes).to_numpy()
        return ~np.isnan(numbers(values, self.target, decimal=self.decimal_of(frame), lenient=True))

    def encode_features(self, frame: Any) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features of the kept records, and which records (n,) were kept: all, unless `missing` is "drop"."""
        frame = as_frame(frame)
        used = self.feature_columns
        self._refuse_absent(frame)
        missing = np.zeros(len(frame), dtype=bool)
        if self.missing in ("error", "drop"):
            for column in used:
                missing |= column.absent(frame[column.name], self.decimal_of(frame))
        if missing.any() and self.missing == "error":
            worst = max(used, key=lambda column: int(column.absent(frame[column.name], self.decimal_of(frame)).sum())).name
            raise SchemaError(
                f"Expected no missing values, got {int(missing.sum())} records with some (column {worst!r} has most). "
                'Set "missing" to "drop", "middle" or "separate" in the schema.'
            )
        frame = frame.loc[~missing]
        try:
            refuse_beyond_free(8.0 * len(frame) * self.dimension)  # the features, and those of a part
        except TooLargeError as error:
            raise SchemaError(
                f"The table cannot be encoded: {len(frame):,} rows of {self.dimension:,} features, {error}. Fewer knots of "
                "curves, or categories, make fewer features."
            ) from None
        features = np.zeros((len(frame), self.dimension), dtype=np.float32)
        encoding, at = self._encoding_of(frame), 0
        for part in self.parts:
            width = part.width(encoding)
            given = frame if isinstance(part, Pair) else frame[part.source]
            features[:, at : at + width] = part.encode(given, encoding)
            at += width
        features /= np.float32(self.divisor)
        return features, ~missing

    def faults(self, frame: Any) -> dict[int, str]:
        """By row, from 0, why `encode_features` would refuse it or leave it out: the first reason, in words. SchemaError where a
        column is not there."""
        frame = as_frame(frame)
        self._refuse_absent(frame)
        found: dict[int, str] = {}
        for column in self.feature_columns:
            faults = column.faults(frame[column.name], self._encoding_of(frame))
            if self.missing in ("error", "drop"):
                rows = np.flatnonzero(column.absent(frame[column.name], self.decimal_of(frame)))
                faults |= {int(row): f"column {column.name!r} is missing" for row in rows}
            found = faults | found
        return dict(sorted(found.items()))

    def clipped(self, frame: Any) -> dict[int, str]:
        """By row, from 0, the columns whose entry is outside its range and taken at the end of it."""
        frame = as_frame(frame)
        found: dict[int, list[str]] = {}
        for column in self.feature_columns:
            for row in np.flatnonzero(column.outside(frame[column.name], self.decimal_of(frame))):
                found.setdefault(int(row), []).append(column.name)
        return {row: ", ".join(names) for row, names in found.items()}

    def _refuse_absent(self, frame: pd.DataFrame) -> None:
        absent = [column.name for column in self.feature_columns if column.name not in frame.columns]
        if not absent:
            return
        there = list(map(str, frame.columns))
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        known = {column.name for column in self.columns}
        folded = {name.casefold(): name for name in there if name not in known}
        alike = get_close_matches(absent[0].casefold(), folded, 1, 0.75)
        hint = f" Is its {folded[alike[0]]!r} the schema's {absent[0]!r}? Rename one." if alike else ""
        has = f"It has {there[:12]}{' …' if len(there) > 12 else ''}."
        raise SchemaError(f"The table lacks the columns {absent[:5]}{more} of the schema.{hint or ' ' + has}")

    def _targets(self, values: pd.Series[Any], decimal: str) -> NDArray[Any]:
        if self.target_range is not None:
            return np.clip(numbers(values, self.target, decimal=decimal), *self.target_range)
        labels = self._as_labels(values)
        unknown = sorted(set(labels.unique()) - set(self.classes))
        if unknown:
            raise SchemaError(
                f"Expected labels {list(self.classes)} in {self.target!r}, got {unknown[:5]}. Say what these are read as "
                '("read"), or leave such records out by "unknown": "ignore".'
            )
        return labels.to_numpy(dtype=str)

    def _as_labels(self, values: pd.Series[Any]) -> pd.Series[Any]:
        labels = texts(values, self.classes).astype(str)
        if suffix := self.extra.get("label_suffix", ""):
            labels = labels.str.removesuffix(suffix)
        other = self.extra.get("other_label")
        return labels.where(labels.isin(self.classes), other) if other else labels

    def without_notes(self) -> Schema:
        """The same without what was noted for the people who edit it: it speaks of the rows."""
        return replace(self, columns=tuple(replace(column, note="") for column in self.columns))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Of a file's entries. SchemaError for a missing, unknown or inconsistent one."""
        if not isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"Expected a schema as a table of its entries, got {type(data).__name__}.")
        try:
            given = given_by(data)
            given["extra"] = given.pop("format", {})
            return cls(**given)
        except ValueError:
            raise
        except Exception as error:  # whatever a table of somebody else's makes a constructor stumble over
            raise SchemaError(f"A schema needs name, target, columns and classes or target_range: {error!r}.") from error

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        """Of a file. SchemaError where it cannot be read."""
        try:
            data = json.loads(read_bounded(Path(path), _LONGEST).decode("utf-8-sig"), object_pairs_hook=unique_names)
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise SchemaError(f"Cannot read the schema {path}: {why}") from None
        if not isinstance(data, dict):
            raise SchemaError(f"Expected {path} to hold an object, a schema, got {str(data)[:40]!r}.")
        return cls.from_dict(data)

    def to_json(self, *, editor: bool = False) -> str:
        """JSON that `load` reads, one column a line. `editor`: it names the file beside it that editors complete from."""
        return as_text({**vars(self), "format": self.extra}, editor=editor)


def tell_persons(ids: pd.Series[Any]) -> NDArray[np.intp]:
    """(n,) numbers of persons in the order of their first rows; −1 where nothing says whose a row is."""
    if not check.told_apart(ids.dropna().unique(), ids.dtype):
        raise SchemaError(f"Expected {ids.name!r} as texts or whole numbers: of floats so large, several are one and the same.")
    words = texts(ids, ())
    return words.where(words != "").factorize()[0].astype(np.intp)
