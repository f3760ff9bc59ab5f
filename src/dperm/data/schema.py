"""A small public schema for a table: column types, ranges, categories and labels, stated before anyone looks at the rows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.data.columns import Column, Encoding, checked_range
from dperm.data.entries import SchemaError, as_numbers, decimal_of, numbers, texts
from dperm.data.pairs import Pair, admit_pairs
from dperm.data.targets import TargetRange
from dperm.data.text import OPTIONS
from dperm.privacy import Certificate, epsilon

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Column", "Schema", "SchemaError", "propose", "tell_persons"]

_MOST_CATEGORIES = 50
_MOST_ROWS = 8192  # of a person
_COLUMN_KEYS = {"name", "type", "range", "categories", "scale", "other"}
#: Entries of a schema file; the last four belong to the registry of named sets.
_KEYS = {
    "name", "target", "columns", "classes", "target_range", "missing", "curves", "pairs", "unit", "unit_rows", "proposed",
    "found", "title", "source", "licence", "format", "dimension", "files", "bundled", "openml",
}  # fmt: skip


#: Entries of a format: how a text is written, and labels of named sets.
_FORMAT = {*OPTIONS, "label_suffix", "other_label"}
#: What entries of a file are.
_KINDS: tuple[tuple[type, tuple[str, ...], str], ...] = (
    (str, ("name", "target", "missing", "unit", "title", "source", "licence"), "text"),
    (list, ("columns", "classes", "pairs"), "a list"),
    (dict, ("format",), "an object"),
    (bool, ("proposed",), "true or false"),
)


@dataclass(frozen=True)
class Schema:
    """Columns in order, the target's labels (or range, for regression), and what to do about missing values.

    `missing`: "error" refuses a table with missing values, "drop" leaves such records out, "middle" puts a number in the
    middle of its range and a category at all zeros, "separate" makes a category of them. Each decides record by record, so
    neighbours stay neighbours; where the number of records is public, those that were left out count: see `Dataset.absent`.
    `curves`: knots of the curve that each number gets, see `Encoding`; 0: a straight line. With curves features are divided by
    the root of the number of columns and pairs, so that no row is longer than 1.
    `pairs`: two columns' names each, of which a model says something together where it has curves; see `Pair`.
    `unit`: the column that tells persons apart, where one may have several rows; it is no feature. At most `unit_rows` rows of a
    person are used. "": each row is a person.
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
    unit_rows: int = 64
    proposed: bool = False
    title: str = ""
    source: str = ""
    licence: str = ""
    found: Mapping[str, Any] | None = field(default=None, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        doubled = sorted({name for name in names if names.count(name) > 1})
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
        check.choice("missing", self.missing, ("error", "drop", "middle", "separate"))
        if type(self.unit) is not str:
            raise SchemaError(f"Expected the unit to be the name of a column, got {self.unit!r}.")
        if type(self.unit_rows) is not int or not 1 <= self.unit_rows <= _MOST_ROWS:
            raise SchemaError(f"Expected unit_rows to be a whole number from 1 to {_MOST_ROWS:,}, got {self.unit_rows!r}.")
        if self.unit and any(column.name == self.unit and column.type != "ignore" for column in self.columns):
            raise SchemaError(
                f"Expected the unit {self.unit!r} to be no feature and no target: give it the type ignore, or leave it out."
            )
        object.__setattr__(self, "pairs", admit_pairs(self.pairs, self.feature_columns, self.encoding))
        if self.dimension == 0:
            raise SchemaError("Expected at least one feature column.")

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.curves, self.missing == "separate", lenient=self.found is not None)

    def _decimal(self, frame: pd.DataFrame) -> str:
        return decimal_of(frame, self.extra.get("decimal", "."))

    def _encoding_of(self, frame: pd.DataFrame) -> Encoding:
        return replace(self.encoding, decimal=self._decimal(frame))

    @property
    def feature_columns(self) -> list[Column]:
        """Those that features are made of, in order."""
        return [column for column in self.columns if column.is_feature]

    @property
    def parts(self) -> list[Column | Pair]:
        """What features are made of, in order: columns, and with curves pairs."""
        known = {column.name: column for column in self.feature_columns}
        pairs = [Pair(known[first], known[second]) for first, second in self.pairs if self.curves]
        return [*self.feature_columns, *pairs]

    @property
    def features(self) -> list[str]:
        """Names of the encoded features, `column=category` for one-hot ones, `column≈knot` for those of a curve."""
        return [name for part in self.parts for name in part.features(self.encoding)]

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

    def encode(self, frame: pd.DataFrame) -> tuple[NDArray[np.float32], NDArray[Any]]:
        """Features (n, dimension) in [0, 1] — numbers by their public range or curve, categories one-hot — and targets (n,).

        Raises SchemaError, naming column and value, where the table does not fit. Speaks to the data holder only.
        """
        if self.target not in frame.columns:
            raise SchemaError(
                f"Expected the target column {self.target!r}, but the table has {list(map(str, frame.columns[:12]))} …"
            )
        unlabelled = ~self.labelled(frame)
        if unlabelled.any() and self.missing == "error":
            raise SchemaError(f"Expected no missing values in the target {self.target!r}, got {int(unlabelled.sum())}.")
        frame = frame.loc[~unlabelled]
        features, kept = self.encode_features(frame)
        return features, self._targets(frame.loc[kept, self.target], self._decimal(frame))

    def found_on_records(self) -> Certificate | None:
        """What finding it cost, where it was found privately. SchemaError where that protects others than its unit does."""
        if self.found is None:
            return None
        try:
            certificate = Certificate.from_json(json.dumps(self.found))
            certificate.verify()
        except ValueError as error:
            raise SchemaError(f"The schema's certificate of how it was found cannot be used: {error}") from None
        if self.unit != certificate.public_facts.get("unit", ""):
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

    def persons(self, frame: pd.DataFrame) -> NDArray[np.intp]:
        """(n,) whose each row is, as a number. SchemaError where a row does not say."""
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

    def usable(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """(n,): which records `encode` keeps."""
        mask = self.labelled(frame).copy()
        if self.missing == "drop":
            for column in self.feature_columns:
                mask &= ~frame[column.name].isna().to_numpy()
        return mask

    def labelled(self, frame: pd.DataFrame) -> NDArray[np.bool_]:
        """(n,) records with a target; where labels were found, with one of those."""
        values = frame[self.target]
        if self.found is None:
            return values.notna().to_numpy()
        if self.classes:
            return texts(values, self.classes).astype(str).isin(self.classes).to_numpy()
        return ~np.isnan(numbers(values, self.target, decimal=self._decimal(frame), lenient=True))

    def encode_features(self, frame: pd.DataFrame) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Features of the kept records, and which records (n,) were kept: all, unless `missing` is "drop"."""
        used = self.feature_columns
        absent = [column.name for column in used if column.name not in frame.columns]
        if absent:
            raise SchemaError(f"Expected columns {absent[:5]}, but the table has {list(map(str, frame.columns[:12]))} …")
        missing = np.zeros(len(frame), dtype=bool)
        if self.missing in ("error", "drop"):
            for column in used:
                missing |= frame[column.name].isna().to_numpy()
        if missing.any() and self.missing == "error":
            worst = max((column.name for column in used), key=lambda name: int(frame[name].isna().sum()))
            raise SchemaError(
                f"Expected no missing values, got {int(missing.sum())} records with some (column {worst!r} has most). "
                'Set "missing" to "drop", "middle" or "separate" in the schema.'
            )
        frame = frame.loc[~missing]
        features = np.zeros((len(frame), self.dimension), dtype=np.float32)
        encoding, at = self._encoding_of(frame), 0
        for part in self.parts:
            width = part.width(encoding)
            given = frame if isinstance(part, Pair) else frame[part.name]
            features[:, at : at + width] = part.encode(given, encoding)
            at += width
        features /= np.float32(self.divisor)
        return features, ~missing

    def faults(self, frame: pd.DataFrame) -> dict[int, str]:
        """By row, from 0, why `encode_features` would refuse it or leave it out: the first reason, in words. SchemaError where a
        column is not there."""
        absent = [column.name for column in self.feature_columns if column.name not in frame.columns]
        if absent:
            raise SchemaError(f"Expected columns {absent[:5]}, but the table has {list(map(str, frame.columns[:12]))} …")
        found: dict[int, str] = {}
        for column in self.feature_columns:
            faults = column.faults(frame[column.name], self._encoding_of(frame))
            if self.missing in ("error", "drop"):
                rows = np.flatnonzero(frame[column.name].isna().to_numpy())
                faults |= {int(row): f"column {column.name!r} is missing" for row in rows}
            found = faults | found
        return dict(sorted(found.items()))

    def _targets(self, values: pd.Series[Any], decimal: str) -> NDArray[Any]:
        if self.target_range is not None:
            return np.clip(numbers(values, self.target, decimal=decimal), *self.target_range)
        labels = texts(values, self.classes).astype(str)
        suffix, other = self.extra.get("label_suffix", ""), self.extra.get("other_label")
        if suffix:
            labels = labels.str.removesuffix(suffix)
        if other:
            labels = labels.where(labels.isin(self.classes), other)
        unknown = sorted(set(labels.unique()) - set(self.classes))
        if unknown:
            raise SchemaError(f"Expected labels {list(self.classes)} in {self.target!r}, got {unknown[:5]}.")
        return labels.to_numpy(dtype=str)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Schema:
        """Raises SchemaError for a missing or inconsistent entry."""
        unknown = set(data) - _KEYS
        if unknown:
            raise SchemaError(f"Expected only the entries {sorted(_KEYS)} in a schema, got {sorted(unknown)[:3]}.")
        if "unit_rows" in data and not data.get("unit"):
            raise SchemaError("Expected a unit with unit_rows: the column that tells persons apart.")
        if "found" in data and not (isinstance(data["found"], dict) and data["found"]):
            raise SchemaError("Expected found to be the certificate that the schema was found by, or no such entry.")
        for kind, names, what in _KINDS:
            for name in names:
                if name in data and type(data[name]) is not kind:
                    raise SchemaError(f"Expected {name} to be {what}, got {data[name]!r}.")
        if odd := sorted(set(data.get("format", {})) - _FORMAT):
            raise SchemaError(f"Expected the entries {sorted(_FORMAT)} in a format, got {odd[:3]}.")
        try:
            for item in data["columns"]:
                if not isinstance(item, dict) or set(item) - _COLUMN_KEYS or not isinstance(item.get("categories", []), list):
                    raise SchemaError(f"Expected a column with name, type, range or a list of categories, got {item!r}.")
                if type(item.get("name")) is not str:
                    raise SchemaError(f"Expected a column's name to be text, got {item.get('name')!r}.")
                if odd := [value for value in item.get("categories", ()) if not isinstance(value, str | int | float)]:
                    raise SchemaError(f"Expected categories of {item['name']!r} to be texts or numbers, got {odd[0]!r}.")
            columns = tuple(
                Column(
                    item["name"],
                    item["type"],
                    item.get("range"),
                    tuple(item.get("categories", ())),
                    item.get("scale"),
                    item.get("other", False),
                )
                for item in data["columns"]
            )
            bounds = data.get("target_range")
            return cls(
                name=data["name"],
                target=data["target"],
                columns=columns,
                classes=tuple(data.get("classes", ())),
                target_range=bounds,
                missing=data.get("missing", "error"),
                curves=data.get("curves", 0),
                pairs=data.get("pairs", ()),
                unit=data.get("unit", ""),
                unit_rows=data.get("unit_rows", 64),
                proposed=bool(data.get("proposed", False)),
                title=data.get("title", ""),
                source=data.get("source", ""),
                licence=data.get("licence", ""),
                found=data.get("found"),
                extra=data.get("format", {}),
            )
        except (KeyError, TypeError) as error:
            raise SchemaError(f"A schema needs name, target, columns and classes or target_range: {error!r}.") from None

    @classmethod
    def load(cls, path: str | Path) -> Schema:
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if not isinstance(data, dict):
                raise SchemaError(f"Expected {path} to hold an object, a schema, got {str(data)[:40]!r}.")
            return cls.from_dict(data)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise SchemaError(f"Cannot read the schema {path}: {error}") from None

    def to_json(self) -> str:
        """JSON that `load` reads, one column a line."""
        data = {key: value for key, value in asdict(self).items() if value not in ("", (), None, {}) and key != "columns"}
        if not self.curves:
            del data["curves"]
        if not self.unit:
            del data["unit_rows"]
        data.pop("extra", None)
        if self.extra:
            data["format"] = dict(self.extra)
        head = json.dumps(data, indent=2, ensure_ascii=False)
        lines: list[str] = []
        for column in self.columns:
            entry: dict[str, Any] = {"name": column.name, "type": column.type}
            if column.range is not None:
                entry["range"] = list(column.range)
            if column.categories:
                entry["categories"] = list(column.categories)
            if column.scale is not None:
                entry["scale"] = column.scale
            if column.other:
                entry["other"] = True
            lines.append("    " + json.dumps(entry, ensure_ascii=False))
        return head[:-2] + ',\n  "columns": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def tell_persons(ids: pd.Series[Any]) -> NDArray[np.intp]:
    """(n,) numbers of persons in the order of their first rows; −1 where nothing says whose a row is."""
    words = texts(ids, ())
    return words.where(words != "").factorize()[0].astype(np.intp)


def propose(frame: pd.DataFrame, target: str, name: str = "table") -> Schema:
    """A schema read off the data, for a person to confirm or correct: it looked at the rows, so it is not public.

    Numbers get their extremes rounded outwards, texts their values (more than 50: ignored), a target of texts or of at
    most 20 whole numbers becomes a label.
    """
    if target not in frame.columns:
        raise SchemaError(f"Expected target to be one of the columns {list(map(str, frame.columns[:20]))}, got {target!r}.")
    columns: list[Column] = []
    classes: tuple[str, ...] = ()
    target_range: TargetRange | None = None
    for column in map(str, frame.columns):
        values = frame[column].dropna()
        numbers = _all_numbers(values, decimal_of(frame, "."))
        texts = sorted({str(value).strip() for value in values.unique()})
        if column == target:
            if numbers is not None and (len(texts) > 20 or not np.all(np.mod(numbers, 1) == 0)):
                target_range = TargetRange(*_outwards(column, numbers))
            else:
                classes = tuple(texts)
            columns.append(Column(column, "label"))
        elif numbers is not None:
            columns.append(Column(column, "number", _outwards(column, numbers)))
        else:
            kind: Literal["category", "ignore"] = "category" if 1 < len(texts) <= _MOST_CATEGORIES else "ignore"
            columns.append(Column(column, kind, categories=tuple(texts) if kind == "category" else ()))
    return Schema(
        name=name,
        target=target,
        columns=tuple(columns),
        classes=classes,
        target_range=target_range,
        missing="middle" if frame.drop(columns=[target]).isna().any(axis=None) else "error",
        proposed=True,
        extra=frame.attrs.get("format", {}),
        source="Proposed by looking at the data: ranges, categories and labels are not public until confirmed.",
    )


def _all_numbers(values: pd.Series[Any], decimal: str) -> NDArray[np.float64] | None:
    """The values as numbers, or None where some are not, or read like codes (a leading zero, as in postal codes)."""
    if len(values) == 0 or values.dtype.kind == "b":
        return None
    text = values.astype(str).str.strip()
    if text.str.match(r"-?0\d").any():
        return None
    numbers = as_numbers(text, decimal)
    return None if np.isnan(numbers).any() else numbers


def _outwards(column: str, numbers: NDArray[np.float64]) -> tuple[float, float]:
    """The extremes, rounded outwards to two digits of the span."""
    low, high = float(numbers.min()), float(numbers.max())
    span = high - low
    if not math.isfinite(span):
        raise SchemaError(f"Expected numbers of a finite span in column {column!r}, got {low:g} to {high:g}.")
    unit = 10.0 ** (math.floor(math.log10(span)) - 1) if span > 0 else max(1.0, abs(low))
    top = math.floor(high / unit) + (1 if high % unit or span == 0 else 0)
    return round(math.floor(low / unit) * unit, 12), round(top * unit, 12)
