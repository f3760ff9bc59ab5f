"""Columns of a table, the parts of dates among them, and the features that they become: by public facts alone, each value by
itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.entries import SchemaError
from dperm.data.schema.moments import decimal_year, moments

if TYPE_CHECKING:
    import pandas as pd

import math
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Literal

from dperm._types import Array
from dperm.data.schema.entries import as_numbers, decimal_hint, is_number, numbers, texts
from dperm.data.schema.moments import ISO
from dperm.data.schema.ranges import checked_range
from dperm.data.schema.written_forms import FORMS, piece_of, read_forms

if TYPE_CHECKING:
    import pandas as pd

Scale = Literal["linear", "log", "cyclic"]

_TYPES = ("number", "category", "date", "ignore", "label")
_PARTS = ("year", "month", "weekday", "hour")
_USUAL_PARTS = _PARTS[:3]
_MISSING = -2  # in place of a category
_SCALES = ("linear", "log", "cyclic")
MEASURES = ("amount", "count", "ordinal")  # what a target may be: a number of the first two kinds, or labels with an order
_DECADES = 1000.0  # a range that spans as much is logarithmic where nothing is said of it
OTHER = "(other)"
_FEWEST, _MOST = 3, 200  # knots
_MOST_PIECES = 9  # of an entry


@dataclass(frozen=True)
class Encoding:
    """How columns become features.

    `curves` = 0: a number is its place in its range, on [0, 1]. With K knots it is K features, a hat function for each: piecewise
    linear, two are not 0, and they add up to 1; their weights are the heights of a curve at the knots. `separate`: a missing
    value is a category of its own, also of a number. `lenient`: what should be a number and is none counts as missing. `decimal`:
    the mark of numbers that are texts.
    """

    curves: int = 0
    separate: bool = False
    lenient: bool = False
    decimal: str = "."

    def __post_init__(self) -> None:
        if isinstance(self.curves, bool) or not isinstance(self.curves, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"Expected curves to be a whole number, got {self.curves!r}.")
        if self.curves and not _FEWEST <= self.curves <= _MOST:
            raise SchemaError(f"Expected curves of {_FEWEST} to {_MOST} knots, or 0 for straight lines, got {self.curves}.")


@dataclass(frozen=True)
class Column:
    """`number` needs `range` (values outside are clipped), `category` needs `categories`, `date` a range of dates; `label` is the
    target, and what is to be ignored is not looked at.

    `scale` of a number's curve: knots are as far apart on a "linear" or "log" scale, or the range's ends are one and the same,
    "cyclic" (hours of a day: [0, 24]). None: "log" for ranges from 0 to 1,000 and more, and from above 0 over a factor of 1,000;
    otherwise "linear". `other`: values that are none of the categories have one of their own. What is in no category, or no
    number, date or label, is refused; or, if `unknown` is "ignore", it belongs to no category, whose features are all 0 then, or
    counts as missing. `format` of dates, as `strptime` has it ("": ISO 8601), and the `parts` that they become: the "year" with
    its fraction, "month" and "hour" as cycles, "weekday".
    `read`: entries that stand for something else, for a number, a category, a label, or, None, for a missing value. `note` is for
    the people who edit the schema. `range` of a label: that of a target that is a number, which the schema then holds as its
    `target_range`. `measure` of such a label: an "amount", or a "count" (of visits, of days). "": an amount. Of labels:
    "ordinal" where the schema's classes stand in their order, from the least to the greatest.
    `also_reads`: further forms that numbers are written in, see `written_forms.FORMS`. `column`: the table's column that it is
    made of, where that has another name. `split`, of a number: a mark between several numbers in each entry, such as / in 120/80,
    of which it is the one of number `piece`, from 1.
    """

    name: str
    type: Literal["number", "category", "date", "ignore", "label"]
    range: tuple[float, float] | tuple[str, str] | None = None
    categories: tuple[str, ...] = ()
    scale: Scale | None = None
    other: bool = False
    unknown: Literal["error", "ignore"] = "error"
    format: str = ""
    parts: tuple[str, ...] = ()
    read: Mapping[str, str | float | None] = field(default_factory=dict[str, "str | float | None"])
    measure: Literal["", "amount", "count", "ordinal"] = ""
    also_reads: tuple[str, ...] = ()
    column: str = ""
    split: str = ""
    piece: int = 1
    note: str = ""

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise SchemaError(f"Expected type of column {self.name!r} to be {', '.join(_TYPES)}, got {self.type!r}.")
        object.__setattr__(self, "categories", tuple(str(value) for value in self.categories))
        object.__setattr__(self, "parts", tuple(self.parts) or (_USUAL_PARTS if self.type == "date" else ()))
        if self.type == "date":
            object.__setattr__(self, "range", self._admitted_dates())
        elif self.parts or self.format:
            raise SchemaError(f"Expected parts and a format of dates alone, got some for {self.name!r}, a {self.type}.")
        if self.unknown not in ("error", "ignore") or (self.unknown == "ignore" and (self.type == "ignore" or self.other)):
            raise SchemaError(
                f'Expected unknown of "error" or "ignore", or others of a category, got {self.unknown!r} for {self.name!r}.'
            )
        read: Any = self.read
        if not isinstance(read, Mapping) or not all(
            isinstance(key, str) and (value is None or isinstance(value, str | int | float)) for key, value in read.items()
        ):
            raise SchemaError(f"Expected read to say what entries stand for in {self.name!r}, got {self.read!r}.")
        self._admit_read()
        self._admit_forms()
        if not isinstance(self.note, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"Expected a note of text for {self.name!r}, got {self.note!r}.")
        if self.type == "number":
            object.__setattr__(self, "range", checked_range(self.range, f"column {self.name!r}"))
        if self.type == "label" and self.categories:
            raise SchemaError(f"Expected no categories of the target {self.name!r}: its labels are the schema's classes.")
        if self.type == "label" and self.range is not None:
            object.__setattr__(self, "range", checked_range(self.range, f"the target {self.name!r}"))
        if self.measure not in ("", *MEASURES) or (self.measure and self.type != "label"):
            raise SchemaError(
                f"Expected measure of {', '.join(MEASURES)} or none, of a target, got {self.measure!r} for {self.name!r}."
            )
        if self.type == "category" and len(set(self.categories)) != max(1, len(self.categories)):
            raise SchemaError(f"Expected distinct categories for column {self.name!r}, got {list(self.categories)!r}.")
        if self.other and OTHER in self.categories:
            raise SchemaError(f"Expected no category named {OTHER!r} in {self.name!r}, which has others.")
        if type(self.other) is not bool or (self.other and self.type != "category"):
            raise SchemaError(f"Expected other to be true or false, of a category, got {self.other!r} for {self.name!r}.")
        if self.scale is not None:
            if self.type != "number" or self.scale not in _SCALES:
                raise SchemaError(f"Expected scale of {', '.join(_SCALES)} for a number, got {self.scale!r} for {self.name!r}.")
            if self.scale == "log" and self.ends[0] < 0:
                raise SchemaError(
                    f"Expected a range from 0 or above for the log scale of column {self.name!r}, got {self.range}."
                )

    def _admit_read(self) -> None:
        """Entries stand for what the column may hold; for labels the schema knows these."""
        for entry, meant in self.read.items():
            fits = meant is None or self.type in ("label", "ignore")
            if self.type == "number":
                fits = fits or is_number(meant)
            elif self.type == "category":
                fits = fits or str(meant) in (*self.categories, *((OTHER,) if self.other else ()))
            elif self.type == "date":
                import pandas as pd

                fits = fits or bool(moments(pd.Series([meant], dtype="object"), self.form).notna().all())
            if not fits:
                what = {
                    "number": "a finite number",
                    "category": "one of its categories",
                    "date": f"a date of the form {self.form}",
                }
                raise SchemaError(
                    f"Expected read of {self.name!r} to give {what[self.type]}, or null, got {meant!r} for {entry!r}."
                )

    def _admit_forms(self) -> None:
        """Further forms of numbers, and numbers that are parts of entries."""
        object.__setattr__(self, "also_reads", tuple(self.also_reads))
        if odd := [form for form in self.also_reads if form not in FORMS]:
            raise SchemaError(f"Expected also_reads of {' and '.join(FORMS)} for {self.name!r}, got {odd[0]!r}.")
        if self.also_reads and self.type in ("category", "date"):
            raise SchemaError(f"Expected also_reads of a number, got {list(self.also_reads)} for {self.name!r}, a {self.type}.")
        if not isinstance(self.column, str) or (self.column and self.type == "label"):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(f"Expected column to name the table's column of a feature, got {self.column!r} for {self.name!r}.")
        if not isinstance(self.split, str) or (self.split and self.type not in ("number", "ignore")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SchemaError(
                f"Expected split to be a mark between numbers, got {self.split!r} for {self.name!r}, a {self.type}."
            )
        if type(self.piece) is not int or not 1 <= self.piece <= _MOST_PIECES or (self.piece > 1 and not self.split):
            raise SchemaError(f"Expected piece from 1 to {_MOST_PIECES}, with split, got {self.piece!r} for {self.name!r}.")

    def _admitted_dates(self) -> tuple[str, str]:
        if odd := [part for part in self.parts if part not in _PARTS]:
            raise SchemaError(f"Expected parts of {', '.join(_PARTS)} for {self.name!r}, got {odd[0]!r}.")
        if self.format and "%" not in self.format:
            raise SchemaError(
                f'Expected the format of {self.name!r} as strptime has it, such as "%d.%m.%Y", got {self.format!r}.'
            )
        if len(set(self.parts)) < len(self.parts):
            raise SchemaError(f"Expected each part of {self.name!r} once, got {list(self.parts)!r}.")
        if self.range is None or isinstance(self.range, str) or len(self.range) != 2:
            raise SchemaError(f"Expected a range of two dates for column {self.name!r}, got {self.range!r}.")
        first, last = (decimal_year(end) for end in self.dates)
        if not first < last:
            raise SchemaError(f"Expected a range of two dates in order for column {self.name!r}, got {list(self.range)!r}.")
        return self.dates

    @property
    def is_feature(self) -> bool:
        return self.type in ("number", "category", "date")

    @property
    def source(self) -> str:
        """The column of the table that it is made of."""
        return self.column or self.name

    @property
    def ends(self) -> tuple[float, float]:
        """Of a number's range."""
        low, high = self.range or (0.0, 0.0)
        return float(low), float(high)

    @property
    def dates(self) -> tuple[str, str]:
        """The first and the last of a range of dates."""
        first, last = self.range or ("", "")
        return str(first), str(last)

    @property
    def form(self) -> str:
        """How dates are written."""
        return self.format or ISO

    def entries(self, values: pd.Series[Any]) -> pd.Series[Any]:
        """What the entries stand for."""
        if not (self.read or self.also_reads or self.split):
            return values
        import pandas as pd

        if self.split:
            found = [piece_of(word, self.split, self.piece) if isinstance(word, str) else None for word in values]
            values = pd.Series(found, index=values.index, dtype="object")

        known = {key.strip(): value for key, value in self.read.items()}
        words = texts(values, self.categories)  # 99 is read as "99" is, whatever else the column holds
        found = [known.get(word, value) if isinstance(word, str) else value for word, value in zip(words, values, strict=True)]
        if self.also_reads:
            found = [read_forms(value, self.also_reads) if isinstance(value, str) else value for value in found]
        return pd.Series(found, index=values.index, dtype="object")

    def absent(self, values: pd.Series[Any], decimal: str = ".") -> NDArray[np.bool_]:
        """(n,): which entries are missing, or count as that."""
        entries = self.entries(values)
        missing = entries.isna().to_numpy()
        if self.unknown == "ignore" and self.type == "number":
            return missing | ~np.isfinite(as_numbers(entries, decimal))
        if self.unknown == "ignore" and self.type == "date":
            return moments(entries, self.form).isna().to_numpy()
        return missing

    def unread(self, values: pd.Series[Any], decimal: str = ".") -> tuple[int, str]:
        """How many entries say something and count as missing, for it is no number or date; and one of them."""
        if self.unknown != "ignore" or self.type not in ("number", "date"):
            return 0, ""
        odd = values[self.absent(values, decimal) & self.entries(values).notna().to_numpy()]
        return len(odd), str(odd.iloc[0]) if len(odd) else ""

    @property
    def curve_scale(self) -> Scale:
        """The scale of its curve, by rule where none is stated."""
        if self.scale is not None:
            return self.scale
        low, high = self.ends
        return "log" if low >= 0 and high >= _DECADES * (low or 1.0) else "linear"

    def place(self, values: Array, scale: Scale) -> Array:
        """Where numbers lie in the range, on [0, 1]; those outside are clipped, those that are missing stay so."""
        low, high = self.ends
        values = np.clip(values, low, high)
        if scale != "log":
            return (values - low) / (high - low)
        if low:
            return (np.log(values) - math.log(low)) / (math.log(high) - math.log(low))
        return np.log1p(values) / math.log1p(high)

    def knots(self, count: int) -> Array:
        """(count,) numbers at which the curve's pieces meet: as many features."""
        low, high = self.ends
        scale = self.curve_scale
        if scale == "cyclic":
            return low + (high - low) * np.arange(count) / count
        places = np.linspace(0.0, 1.0, count)
        if scale == "linear":
            return low + (high - low) * places
        if not low:
            return np.expm1(places * math.log1p(high))
        return np.clip(np.exp(math.log(low) + places * (math.log(high) - math.log(low))), low, high)

    def width(self, encoding: Encoding) -> int:
        """Features it becomes."""
        if not self.is_feature:
            return 0
        own = len(self.categories) + self.other if self.type == "category" else (encoding.curves or 1)
        return own + encoding.separate

    def features(self, encoding: Encoding) -> list[str]:
        """Their names: `column=category`, `column≈knot`."""
        if not self.is_feature:
            return []
        if self.type == "category":
            names = [f"{self.name}={category}" for category in (*self.categories, *((OTHER,) if self.other else ()))]
        else:
            names = [f"{self.name}≈{knot:.6g}" for knot in self.knots(encoding.curves)] if encoding.curves else [self.name]
        return [*names, f"{self.name} missing"] if encoding.separate else names

    def encode(self, values: pd.Series[Any], encoding: Encoding) -> NDArray[np.float32]:
        """(n, width): of squared length at most 1. SchemaError, naming column and value, for what does not fit."""
        values = self.entries(values)
        table = np.zeros((len(values), self.width(encoding)), dtype=np.float32)
        if self.type == "category":
            codes = _codes(values, self, lenient=self.unknown == "ignore")
            missing = codes == _MISSING
            rows = np.flatnonzero(codes >= 0)
            table[rows, codes[rows]] = 1.0
        else:
            given = numbers(values, self.name, decimal=encoding.decimal, lenient=encoding.lenient or self.unknown == "ignore")
            missing = np.isnan(given)
            places = self.place(given, self.curve_scale if encoding.curves else (self.scale or "linear"))
            places = np.where(missing, 0.5, places)  # the middle, unless they are a category of their own
            if encoding.curves:
                _add_hats(table, places, encoding.curves, cyclic=self.curve_scale == "cyclic")
            else:
                table[:, 0] = places
        if encoding.separate:
            table[missing] = 0.0
            table[missing, -1] = 1.0
        return table

    def faults(self, values: pd.Series[Any], encoding: Encoding) -> dict[int, str]:
        """By row, from 0, what `encode` would refuse, in words."""
        values = self.entries(values)
        if self.type == "category":
            text = texts(values, self.categories)
            lenient = self.other or self.unknown == "ignore"
            broken = text.notna().to_numpy() & ~text.isin(self.categories).to_numpy() & (not lenient)
            what = f"which is none of its {len(self.categories)} categories"
        elif self.type == "date":
            lenient = encoding.lenient or self.unknown == "ignore"
            broken = (moments(values, self.form).isna() & values.notna()).to_numpy() & (not lenient)
            what = f"which is no date of the form {self.form}"
        else:
            given = as_numbers(values, encoding.decimal)
            lenient = encoding.lenient or self.unknown == "ignore"
            broken = values.notna().to_numpy() & ~np.isfinite(given) & (not lenient)
            what = "which is no finite number"
        held = {int(row): str(values.iloc[row]) for row in np.flatnonzero(broken)}
        mark = encoding.decimal if self.type == "number" else "."
        return {row: f"column {self.name!r} holds {entry!r}, {what}{decimal_hint(entry, mark)}" for row, entry in held.items()}

    def outside(self, values: pd.Series[Any], decimal: str = ".") -> NDArray[np.bool_]:
        """(n,): which entries are numbers or dates outside the range: they are taken at its end."""
        entries = self.entries(values)
        if self.type == "number":
            (low, high), given = self.ends, as_numbers(entries, decimal)
            return np.isfinite(given) & ((given < low) | (given > high))
        if self.type == "date":
            (first, last), found = (np.datetime64(end) for end in self.dates), moments(entries, self.form).to_numpy()
            return (found < first) | (found > last)
        return np.zeros(len(values), dtype=bool)

    def neighbours(self, encoding: Encoding) -> list[tuple[int, int]]:
        """Which of its features are next to each other on its curve; none where it has no curve."""
        if self.type != "number" or not encoding.curves:
            return []
        pairs = [(knot, knot + 1) for knot in range(encoding.curves - 1)]
        return [*pairs, (encoding.curves - 1, 0)] if self.curve_scale == "cyclic" else pairs


def _add_hats(table: NDArray[np.float32], places: Array, count: int, *, cyclic: bool) -> None:
    at = places * (count if cyclic else count - 1)
    lower = np.minimum(at.astype(np.intp), count - (1 if cyclic else 2))
    share, rows = at - lower, np.arange(len(places))
    table[rows, lower] = 1 - share
    table[rows, (lower + 1) % count] += share.astype(np.float32)


def _codes(values: pd.Series[Any], column: Column, *, lenient: bool) -> NDArray[np.int64]:
    """Index of each value's category, one more for others where there may be some; −1 where it is unknown, −2 where missing."""
    import pandas as pd

    categories = column.categories
    text = texts(values, categories)
    codes = pd.Index(list(categories), dtype="object").get_indexer(pd.Index(text, dtype="object")).astype(np.int64)
    codes[text.isna().to_numpy()] = _MISSING
    unknown = codes == -1
    if column.other:
        codes[unknown] = len(categories)
    elif unknown.any() and not lenient:
        raise SchemaError(
            f"Expected column {column.name!r} to hold one of its {len(categories)} categories, got {text[unknown].iloc[0]!r}."
        )
    return codes
