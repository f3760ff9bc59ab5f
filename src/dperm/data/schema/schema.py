"""The public schema of a table: its column types, ranges, categories and labels are declared before anyone looks at the rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dperm import _validate as check
from dperm._files import read_bounded
from dperm._json import unique_names
from dperm.data.schema.column_pairs import Pair, admit_pairs
from dperm.data.schema.columns import OTHER, Column, Encoding
from dperm.data.schema.date_parts import date_parts
from dperm.data.schema.entries import SchemaError, is_number
from dperm.data.schema.ranges import CountRange, TargetRange, checked_range
from dperm.data.schema.schema_file import as_text, given_by
from dperm.privacy.accountants.gaussian import gaussian_mu

_LONGEST = 1 << 26  # bytes of a schema
_MOST_ROWS = 8192  # of a person
#: knots, and the least signal that they need: fitted on made tables alone, see docs/curves.md
_RULE = ((12, 150.0), (8, 50.0), (5, 10.0))
#: where the number of records is private: the most of these that leave so few parameters
_UNKNOWN, _PARAMETERS = (8, 5), 1000


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
    `target_range`: the range of a target that is a number, also given as the `range` of the target's own column, where files have
    it. A `CountRange` where that column's `measure` is "count".
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
        self._settle_target()
        if self.classes and len(set(self.classes)) < max(2, len(self.classes)):
            raise SchemaError(f"Expected at least two distinct classes, got {list(self.classes)}.")
        for entry, meant in self.label.read.items():
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
        if self.unit and any(column.source == self.unit and column.type != "ignore" for column in self.columns):
            raise SchemaError(
                f"Expected the unit {self.unit!r} to be no feature and no target: give it the type ignore, or leave it out."
            )
        if copies := [column.name for column in self.columns if column.is_feature and column.source == self.target]:
            raise SchemaError(
                f"Expected features of other columns than the target {self.target!r}, got {copies[0]!r}: a model would read the "
                "answer. Give it the type ignore, or take it out."
            )
        pairs = admit_pairs(self.pairs, self._feature_parts, self.encoding) if self.pairs else ()
        object.__setattr__(self, "pairs", pairs)
        if self.dimension == 0:
            raise SchemaError("Expected at least one feature column.")

    def _settle_target(self) -> None:
        """The target's range comes with its column or beside it, and is kept beside it: one range, however it is stated."""
        label, given = self.label, self.target_range
        if label.range is not None:
            if self.classes:
                raise SchemaError(
                    f"Expected a range of the target {self.target!r}, of a regression, or classes, its labels, got both: take "
                    "one out."
                )
            if given is not None and tuple(given) != label.range:
                raise SchemaError(
                    f"Expected one range of the target, got target_range {list(given)} and, in the row of {self.target!r}, "
                    f"{list(label.range)}: take target_range out."
                )
            given = TargetRange(*label.ends)
            columns = (replace(column, range=None) if column is label else column for column in self.columns)
            object.__setattr__(self, "columns", tuple(columns))
        if (not self.classes) == (given is None):
            raise SchemaError(
                "Expected either classes, the labels of a target, or a range in the target's row, of a target that is a number."
            )
        if given is None:
            if label.measure not in ("", "ordinal") or (label.measure and not self.classes):
                raise SchemaError(
                    f"Expected no measure of the target {self.target!r}, which has labels, or ordinal where classes have an "
                    f"order, got {label.measure!r}."
                )
            return
        if label.measure == "ordinal":
            raise SchemaError(f"Expected classes of the target {self.target!r}, in their order, for the measure ordinal.")
        low, high = checked_range(given, "the target")
        if label.measure == "count" and low < 0:
            raise SchemaError(f"Expected counts from 0 or above in the target {self.target!r}, got the range {[low, high]}.")
        kind = CountRange if label.measure == "count" else TargetRange
        object.__setattr__(self, "target_range", kind(low, high))

    @property
    def ordered(self) -> bool:
        """Whether the target's labels have an order: that of `classes`."""
        return bool(self.classes) and self.label.measure == "ordinal"

    def order_asked(self) -> str:
        """The order of the classes, as a question to whoever states it."""
        return f'Order of "{self.target}": {" < ".join(self.classes)}. Is that so, from the least to the greatest?'

    def measured_as(self, measure: Literal["amount", "count", "ordinal"]) -> Schema:
        """The same, its target a number of this kind, or labels in the order of `classes`. SchemaError for labels that are to be
        numbers, for numbers that are to be labels, and for counts below 0."""
        columns = (replace(column, measure=measure) if column.name == self.target else column for column in self.columns)
        return replace(self, columns=tuple(columns))

    @property
    def encoding(self) -> Encoding:
        return Encoding(self.curves, self.missing == "separate", lenient=self.found is not None)

    @property
    def label(self) -> Column:
        """The column of the target."""
        return next(column for column in self.columns if column.name == self.target)

    @property
    def feature_columns(self) -> list[Column]:
        """Those that features are made of, in order."""
        return [column for column in self.columns if column.is_feature]

    def table_columns(self, *, features: bool = False) -> list[str]:
        """The columns of a table that it speaks of, each once, in order; with `features` those that features are made of."""
        columns = self.feature_columns if features else self.columns
        return list(dict.fromkeys(column.source for column in columns))

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
            raise SchemaError(
                f"A schema needs name, target, columns and classes or a range in the target's row: {error!r}."
            ) from error

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
        columns = self.columns
        if self.target_range is not None:  # where its reader looks for it: in the target's row
            ends = tuple(self.target_range)
            columns = tuple(replace(column, range=ends) if column.name == self.target else column for column in columns)
        return as_text({**vars(self), "format": self.extra, "columns": columns, "target_range": None}, editor=editor)


def usual_knots(schema: Schema, epsilon: float, delta: float, public_size: int | None = None) -> int:
    """How many knots curves get, by a public rule: as many as the signal S = n·μ/√d lets be told apart, d the features that there
    are then; 0: straight lines.

    Where the number of records is private, 8 or 5 as long as there are no more than 1,000 parameters. Without numbers there is
    nothing to bend.
    """
    if not any(isinstance(part, Column) and part.type == "number" for part in schema.parts):
        return 0
    models = len(schema.classes) if len(schema.classes) > 2 else 1
    if public_size is None:
        few = (knots for knots in _UNKNOWN if models * schema.with_curves(knots).dimension <= _PARAMETERS)
        return next(few, 0)
    strength = public_size * (gaussian_mu(epsilon, delta) if delta else epsilon)
    for knots, least in _RULE:
        if strength >= least * math.sqrt(models * schema.with_curves(knots).dimension):
            return knots
    return 0
