"""A schema read off the data, for a person to confirm or correct. It looks at all rows, so it is not public until then.

Each column is shown to a list of recognisers, from a constant to free text; the first that knows it makes the schema's column,
with a note of what it saw.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dperm.data.schema.columns import Column
from dperm.data.schema.entries import SchemaError, as_numbers, as_table, texts
from dperm.data.schema.moments import ISO, moments
from dperm.data.schema.privacy_units import row_units
from dperm.data.schema.ranges import TargetRange
from dperm.data.schema.schema import Schema

if TYPE_CHECKING:
    import pandas as pd

_MOST_CATEGORIES = 50
_MOST_LABELS = 20
_FEW_NUMBERS = 10  # whole ones of a target: labels, if nobody says otherwise
_STRANGERS = 0.1  # of a column of numbers, which are none; half of it may be, where these are few words
_FEW_STRANGERS = 5
_MOST_STRANGERS = 50  # different ones
_WORDS = 3.0  # on average, in free text
_LETTERS = 40.0
_RARE = 0.01  # of the rows, for a label that may be a slip
_FEW_ROWS, _PART = 10, 0.01  # a text in fewer rows, or in less than this part of them, is no category: it tells of few persons
_OFTEN, _SPIKE = 0.01, 5.0  # of the rows, and times the next value: a number so frequent may stand for a missing value
_SCALE = 3  # up to which values are few: a 9 among them stands apart
_ABOVE = 30  # rows that may stand above a header
_ROWS = 20  # from which on values that are all different tell something
_PERSONS = 1.05  # rows of each, on average
_ID = re.compile(r"(^|[^a-z])(id|ids|uuid|guid|key|mrn|ssn|iban|pid|index|row)([^a-z]|$)|(nr|no|number|num|nummer)$")
_BOUND = re.compile(r"([<>≤≥~]=?|ca\.?|about|over|under)\s*([+-]?[\d.,]+)", re.IGNORECASE)
_ZONE = re.compile(r":\d\d(?:\.\d+)?\s?(?:Z|[+-]\d\d:?\d\d)$")
_TRUTHS = [{"true", "false"}, {"yes", "no"}, {"y", "n"}, {"t", "f"}, {"ja", "nein"}, {"j", "n"}, {"wahr", "falsch"}]
_TRUTHS += [{"oui", "non"}, {"vrai", "faux"}, {"si", "no"}, {"sí", "no"}, {"on", "off"}]
#: how dates are written, the likelier first: those that have two orders of days and months are told apart or said to be not told
_DATES = (
    "%d.%m.%Y",
    "%d/%m/%Y",
    "%m/%d/%Y",
    "%d-%m-%Y",
    "%Y/%m/%d",
    "%d.%m.%y",
    "%m/%d/%y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d, %Y",
)
_FIRST_YEAR, _LAST_YEAR = 1000, 9998  # of four digits, with a year behind them
_TIMES = ("", " %H:%M", " %H:%M:%S")


@dataclass(frozen=True)
class _Seen:
    """A column as it was read: its entries that are not missing, also as texts, and as the numbers that some are."""

    name: str
    values: pd.Series[Any]
    words: pd.Series[Any]
    numbers: NDArray[np.float64]
    counts: dict[str, int]  # of each text, the most frequent first
    decimal: str

    @classmethod
    def of(cls, name: str, values: pd.Series[Any], decimal: str) -> _Seen:
        values = values.dropna()
        words = texts(values, ())
        kept = (words != "").to_numpy(dtype=bool)
        values, words = values[kept], words[kept]
        codes = words.str.match(r"-?0\d").to_numpy(dtype=bool) if len(words) else np.zeros(0, dtype=bool)
        numbers = np.full(len(values), np.nan) if values.dtype.kind in "bM" else as_numbers(values, decimal)
        if codes.any():  # a leading zero, as in postal codes: none of them is a number
            numbers[:] = np.nan
        numbers[np.isinf(numbers)] = np.nan
        return cls(name, values, words, numbers, words.value_counts().to_dict(), decimal)

    @property
    def all_numbers(self) -> bool:
        return bool(len(self.numbers)) and not np.isnan(self.numbers).any()

    @property
    def whole(self) -> bool:
        return self.all_numbers and bool(np.all(np.mod(self.numbers, 1) == 0))

    @property
    def all_different(self) -> bool:
        return len(self.counts) == len(self.words) >= _ROWS

    @property
    def named_id(self) -> bool:
        return bool(_ID.search(self.name.lower()) or re.search(r"[a-z](ID|Id)$", self.name))


def _nothing(seen: _Seen) -> Column | None:
    if len(seen.counts) > 1:
        return None
    return Column(seen.name, "ignore", note=f"only {next(iter(seen.counts))!r}" if seen.counts else "all missing")


def _truth(seen: _Seen) -> Column | None:
    known = {word.lower() for word in seen.counts}
    if known not in _TRUTHS and known != {"0", "1"}:
        return None
    spelt, read = _spellings(seen.counts)
    return Column(seen.name, "category", categories=tuple(sorted(spelt)), read=read, note="yes or no")


def _moment(seen: _Seen) -> Column | None:
    if seen.values.dtype.kind == "M":
        fit = [""]
    elif np.isnan(seen.numbers).all() and seen.words.str.contains(r"\d").all():
        forms = ["", *(form + time for form in _DATES for time in _TIMES)]
        for rows in (seen.words.iloc[:100], seen.words):  # most forms fail in the first
            forms = [form for form in forms if moments(rows, form or ISO).notna().all()]
        fit = forms
    else:
        return None
    if not fit:
        return _clock(seen)
    found = moments(seen.values, fit[0] or ISO)
    timed = bool(((found.dt.hour != 0) | (found.dt.minute != 0)).any())
    first, last = found.min(), found.max()
    if first.year < _FIRST_YEAR or last.year > _LAST_YEAR:
        return Column(seen.name, "ignore", note=f"dates beyond the years {_FIRST_YEAR} to {_LAST_YEAR}")
    zoned = getattr(seen.values.dtype, "tz", None) is not None or bool(seen.words.str.contains(_ZONE).any())
    doubt = any((moments(seen.values, form or ISO) != found).any() for form in fit[1:])
    return Column(
        seen.name,
        "date",
        (f"{first.year}-01-01", f"{last.year + 1}-01-01"),
        format=fit[0],
        parts=("year", "month", "weekday", *(("hour",) if timed else ())),
        note=f"{first.date()} to {last.date()}"
        + (": days or months first? Both fit" if doubt else "")
        + (", in UTC, as zones are named" if zoned else ""),
    )


def _clock(seen: _Seen) -> Column | None:
    """Times of day: hours of one day, which has no meaning else."""
    for form in ("%H:%M", "%H:%M:%S"):
        if moments(seen.words.iloc[:100], form).notna().all() and moments(seen.words, form).notna().all():
            return Column(seen.name, "date", ("1900-01-01", "1900-01-02"), format=form, parts=("hour",), note="times of day")
    return None


def _identity(seen: _Seen) -> Column | None:
    many = len(seen.counts) > _MOST_CATEGORIES
    named = seen.named_id and (many or seen.all_different)
    if seen.whole:
        running = seen.all_different and np.ptp(seen.numbers) + 1 <= 1.01 * len(seen.numbers)
        if not (running or named):
            return None
    elif not np.isnan(seen.numbers).all() or seen.words.str.contains(r"\s").any() or not (named or seen.all_different):
        return None
    each = len(seen.words) / len(seen.counts)
    if each >= _PERSONS:
        most = max(seen.counts.values())
        return Column(
            seen.name, "ignore", note=f"an id that repeats, up to {most:,} times: does it tell persons apart? Then it is the unit"
        )
    return Column(seen.name, "ignore", note="an id: different in each row")


def _number(seen: _Seen) -> Column | None:
    known = seen.numbers[~np.isnan(seen.numbers)]
    strangers = Counter(seen.words[np.isnan(seen.numbers)].tolist())
    read = {word: _bound(word, seen.decimal) for word in sorted(strangers)}
    foreign = sum(count for word, count in strangers.items() if read[word] is None)
    worded = len(strangers) <= _FEW_STRANGERS and not any(map(str.isdigit, "".join(strangers)))
    if (
        not len(known)
        or len(known) < len(seen.numbers) / 2
        or foreign > (0.5 if worded else _STRANGERS) * len(seen.numbers)
        or len(strangers) > _MOST_STRANGERS
    ):
        return None
    read = {word: bound for word, bound in read.items() if bound is not None}
    low, high = float(known.min()), float(known.max())
    note = f"{'whole numbers' if np.all(np.mod(known, 1) == 0) else 'numbers'} from {low:.6g} to {high:.6g}"
    if foreign:
        note += f"; {foreign:,} entries are none, and count as missing"
    if (code := _code(known)) is not None:
        note += f'; does {code} stand for a missing value? Then say so: "read": {{"{code}": null}}'
    unknown = "ignore" if foreign else "error"
    return Column(seen.name, "number", _outwards(seen.name, known), unknown=unknown, read=read, note=note)


def _code(known: NDArray[np.float64]) -> int | None:
    """A number that often stands for a missing value, -1 or 99 and the like, where it stands apart from the others."""
    different, counts = np.unique(known, return_counts=True)
    if len(different) < 3:
        return None
    often = int(np.argmax(counts))  # within the range, too: much more often than any other
    nines = set(f"{abs(different[often]):g}") == {"9"} and abs(different[often]) > 9
    if nines and counts[often] > max(_OFTEN * len(known), _SPIKE * np.delete(counts, often).max()):
        return int(different[often])
    for code, others in ((different[-1], different[:-1]), (different[0], different[1:])):
        text = f"{abs(code):g}"
        nines = set(text) == {"9"} and (code < 0 or len(text) > 1)
        nines |= code == 9 and others[-1] <= _SCALE  # 0, 1 and 9: no or yes, and not known
        apart = others[0] >= 0 if code < 0 else code > 2 * others[-1] and others[0] >= 0
        if apart and (nines or code == -1) and (known == code).sum() > 1:
            return int(code)
    return None


def _category(seen: _Seen) -> Column | None:
    if seen.all_different or _prose(seen):
        return None
    spelt, read = _spellings(seen.counts)
    least = min(_FEW_ROWS, _PART * len(seen.words))
    common = [word for word in spelt if spelt[word] >= least]
    kept = tuple(sorted(sorted(common, key=lambda word: -spelt[word])[:_MOST_CATEGORIES]))
    if not any(spelt[word] > 1 for word in kept):
        return None
    beyond, rare = len(spelt) - len(kept), len(spelt) - len(common)
    covered = sum(spelt[word] for word in kept) / len(seen.words)
    numeric = int(np.isfinite(seen.numbers).sum())
    note = f"{len(spelt):,} values" + (f", the {len(kept)} most frequent: {covered:.0%} of the rows" if beyond else "")
    if rare:
        note += f"; {rare:,} in less than {math.ceil(least)} rows each are no category of their own"
    if numeric > len(seen.words) / 2 and len(spelt) > _FEW_NUMBERS:
        note += f'; {numeric / len(seen.words):.0%} are numbers: is it a number, with "unknown": "ignore"?'
    return Column(
        seen.name, "category", categories=kept, other=True, read={k: v for k, v in read.items() if v in kept}, note=note
    )


def _prose(seen: _Seen) -> bool:
    words, letters = seen.words.str.split().str.len().mean(), seen.words.str.len().mean()
    return len(seen.counts) > _MOST_CATEGORIES and (words > _WORDS or letters > _LETTERS)


def _text(seen: _Seen) -> Column:
    few = "a different text in nearly each row" if len(seen.counts) > len(seen.words) / 2 else "texts of few rows each"
    return Column(seen.name, "ignore", note="free text" if _prose(seen) else few)


_RECOGNISERS: Sequence[Callable[[_Seen], Column | None]] = (_nothing, _truth, _moment, _identity, _number, _category, _text)


def _header_below(frame: pd.DataFrame, target: str) -> str:
    """Where a table's first rows hold its target's name, its header is there."""
    above = np.flatnonzero((frame.head(_ABOVE).astype(str) == str(target)).to_numpy().any(axis=1))
    return f" Row {above[0] + 1} holds it: is that the header? --skip-lines leaves out what is above." if len(above) else ""


def propose(
    frame: Any,
    target: str,
    name: str = "table",
    *,
    unit: str = "",
    task: Literal["classification", "regression"] | None = None,
) -> Schema:
    """A schema read off the data, for a person to confirm or correct: it looked at the rows, so it is not public.

    Numbers get their extremes rounded outwards; bounds among them, such as "> 50", are listed with what they are read as, and
    other entries, such as "n/a", count as missing. Texts get their values, the 50 most frequent and "other". Dates become years,
    months and weekdays. Ids, free text and columns of one value are ignored. The target is labels where it holds texts or at
    most 10 different whole numbers, unless `task` says otherwise. `unit`: the column that tells persons apart. `note` says of
    each column what was seen.
    SchemaError for a target or unit that is no column, a target of one value, and for a table without a feature.
    """
    read = as_table(frame)
    frame = read.frame
    if target not in frame.columns:
        raise SchemaError(
            f"Expected target to be one of the columns {list(map(str, frame.columns[:20]))}, got {target!r}."
            + _header_below(frame, target)
        )
    if unit and (unit not in frame.columns or unit == target):
        raise SchemaError(f"Expected a unit among the other columns {list(map(str, frame.columns[:20]))}, got {unit!r}.")
    decimal = read.decimal or "."
    columns: list[Column] = []
    classes: tuple[str, ...] = ()
    target_range: TargetRange | None = None
    for column in map(str, frame.columns):
        seen = _Seen.of(column, frame[column], decimal)
        if column == target:
            label, classes, target_range = _label(seen, task)
            columns.append(label)
        elif column == unit:
            columns.append(Column(column, "ignore", note="tells persons apart"))
        else:
            columns.append(next(found for recognise in _RECOGNISERS if (found := recognise(seen)) is not None))
    gaps = any(column.is_feature and column.absent(frame[column.name], decimal).any() for column in columns)
    label = columns[list(map(str, frame.columns)).index(target)]
    untold = label.unknown == "ignore" or bool(label.absent(frame[target], decimal).any())
    schema = Schema(
        name=name,
        target=target,
        columns=tuple(columns),
        classes=classes,
        target_range=target_range,
        missing="separate" if gaps else "middle" if untold else "error",
        unit=unit,
        proposed=True,
        extra=dict(read.format),
        source="Proposed by looking at the data: ranges, categories and labels are not public until confirmed.",
    )
    if unit:
        row_units(schema, frame)
    return schema


def _label(seen: _Seen, task: str | None) -> tuple[Column, tuple[str, ...], TargetRange | None]:
    """The target's column, and its labels or its range."""
    found = _number(seen)
    different = np.unique(seen.numbers[~np.isnan(seen.numbers)])
    few = len(different) <= _FEW_NUMBERS and bool(np.all(np.mod(different, 1) == 0))
    if task == "regression" and found is None:
        wrong = next(iter(seen.counts), "nothing")
        raise SchemaError(f"Expected numbers in the target {seen.name!r} for a regression, got {wrong!r}.")
    if found is not None and (task == "regression" or (task is None and not few)):
        return replace(found, type="label", range=None), (), TargetRange(*found.ends)
    if found is not None:  # whole numbers as labels, and what stands among them for nothing
        strangers = set(seen.words[np.isnan(seen.numbers)])
        spelt = {word: count for word, count in seen.counts.items() if word not in strangers}
        read, ordered = dict[str, Any](), sorted(spelt, key=float)
    else:
        spelt, read = _spellings(seen.counts)
        ordered = sorted(spelt)
    if len(ordered) < 2:
        raise SchemaError(f"The target {seen.name!r} is {ordered[0] if ordered else 'missing'!r} in all rows.")
    if len(ordered) > _MOST_LABELS and task is None:
        raise SchemaError(
            f"The target {seen.name!r} holds {len(ordered):,} different texts, such as {ordered[0]!r}: is it the right column?"
        )
    odd = [word for word in ordered if spelt[word] < _RARE * len(seen.words)] if found is None else []
    close = {word: get_close_matches(word, [other for other in ordered if other not in odd], 1) for word in odd}
    rarest = min(spelt, key=lambda word: spelt[word])
    note = f"{len(ordered)} labels, the rarest {rarest!r} with {spelt[rarest] / len(seen.words):.2g} of the rows"
    if found is not None and len(different) > 2:
        note += "; if these are counts or amounts, it is a regression"
    for word, alike in close.items():
        if alike:
            note += f"; {word!r} for {alike[0]!r}? Then say what it is read as"
        elif len(ordered) > 2:
            note += f"; is {word!r}, in few rows, a label of its own?"
    unknown = "error" if found is None else found.unknown
    return Column(seen.name, "label", unknown=unknown, read=read, note=note), tuple(ordered), None


def _spellings(counts: dict[str, int]) -> tuple[dict[str, int], dict[str, Any]]:
    """Texts with their counts, each in its most frequent spelling, and which others are read as it."""
    spelt: dict[str, int] = {}
    first: dict[str, str] = {}
    read: dict[str, Any] = {}
    for word, count in counts.items():  # the most frequent first
        plain = " ".join(word.casefold().split())
        kept = first.setdefault(plain, word)
        spelt[kept] = spelt.get(kept, 0) + count
        if kept != word:
            read[word] = kept
    return spelt, read


def _bound(word: str, decimal: str) -> float | None:
    """The number in "> 50"; None for what stands for nothing."""
    import pandas as pd

    found = _BOUND.fullmatch(word.strip())
    if not found:
        return None
    number = float(as_numbers(pd.Series([found.group(2)]), decimal)[0])
    return None if math.isnan(number) else number


def _outwards(column: str, numbers: NDArray[np.float64]) -> tuple[float, float]:
    """The extremes, rounded outwards to two digits of the span."""
    low, high = float(numbers.min()), float(numbers.max())
    span = high - low
    if not math.isfinite(span):
        raise SchemaError(f"Expected numbers of a finite span in column {column!r}, got {low:g} to {high:g}.")
    unit = 10.0 ** (math.floor(math.log10(span)) - 1) if span > 0 else max(1.0, abs(low))
    bottom, top = math.floor(round(low / unit, 9)), math.ceil(round(high / unit, 9)) + (span == 0)
    return min(low, round(bottom * unit, 12)), max(high, round(top * unit, 12))


def confirmed(schema: Schema, *, answered: bool = False) -> Schema:
    """The same as what is public: without a word of how it was proposed. For somebody who knows its ranges, categories and labels
    from elsewhere than the rows.

    SchemaError where a note asks something, such as whether 999 stands for a missing value: correct the column and take its note
    out, or say that all of it is right as it is by `answered`.
    """
    if not answered and (asked := [f"{column.name}: {column.note}" for column in schema.columns if "?" in column.note]):
        raise SchemaError(
            f"Expected answers to what the proposal asks: {'; '.join(asked)}. Correct these columns and take their notes out, or "
            "say that they are right: --yes on the command line, answered=True in Python."
        )
    return replace(schema.without_notes(), proposed=False, source="" if schema.proposed else schema.source)
