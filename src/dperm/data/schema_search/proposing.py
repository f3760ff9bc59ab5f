"""A schema read off the data, for a person to confirm or correct. It looks at all rows, so it is not public until then.

Each column is shown to a list of recognisers, from a constant to free text; the first that knows it makes the schema's column,
with a note of what it saw.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.data.schema.columns import Column
from dperm.data.schema.entries import SchemaError, as_numbers, as_table
from dperm.data.schema.privacy_units import unit_numbers
from dperm.data.schema.ranges import TargetRange
from dperm.data.schema.schema import Schema
from dperm.data.schema.written_forms import read_forms
from dperm.data.schema_search.recognisers import is_truth, number, recognised
from dperm.data.schema_search.seen import Seen, listed

if TYPE_CHECKING:
    import pandas as pd

#: Units that must hold a value for it to be proposed.
LEAST_UNITS = 10
_MOST_LABELS = 20
_FEW_NUMBERS = 10  # whole ones of a target: labels, if nobody says otherwise
_RARE = 0.01  # of the rows, for a label that may be a slip
_ABOVE = 30  # rows that may stand above a header
_ENDS, _NARROW = (
    0.01,
    0.02,
)  # of a target's numbers, on either side, and of their span, which the others lie in: a slip may be there


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
    least_units: int = LEAST_UNITS,
) -> Schema:
    """A schema read off the data, for a person to confirm or correct: it looked at the rows, so it is not public, and it is for
    the data holder alone until it is confirmed. Notes name entries of single rows; nothing of them stays in a confirmed schema.

    Numbers get their extremes rounded outwards; bounds among them, such as "> 50" or "3+", are read as the number in them, and
    other entries, such as "n/a", count as missing. Texts get their values, the 50 most frequent, and "other" where there are
    more. Dates become years, months and weekdays. Ids, people's names, free text and columns of one value are ignored. The target
    is labels where it holds texts or at most 10 different whole numbers, unless `task` says otherwise. `unit`: the column that
    tells persons apart. A category or label that fewer than `least_units` persons hold is not proposed; without a unit each row
    counts as a person. `note` says of each column what was seen.
    SchemaError for a target or unit that is no column, a target of one value, and for a table without a feature.
    """
    read = as_table(frame)
    frame = read.frame
    least = check.integer("least_units", least_units)
    if target not in frame.columns:
        raise SchemaError(
            f"Expected target to be one of the columns {list(map(str, frame.columns[:20]))}, got {target!r}."
            + _header_below(frame, target)
        )
    units = _units(frame, unit, target) if unit else None
    decimal = read.decimal or "."
    columns: list[Column] = []
    classes: tuple[str, ...] = ()
    target_range: TargetRange | None = None
    for column in map(str, frame.columns):
        if column == unit:
            columns.append(Column(column, "ignore", note="tells persons apart"))
            continue
        seen = Seen.of(column, frame[column], decimal, units, least)
        if column == target:
            label, classes, target_range = _label(seen, task)
            columns.append(label)
        else:
            columns += [_apart(found, frame) for found in recognised(seen)]
    gaps = any(column.is_feature and column.absent(frame[column.source], decimal).any() for column in columns)
    label = next(column for column in columns if column.name == target)
    untold = label.unknown == "ignore" or bool(label.absent(frame[target], decimal).any())
    return Schema(
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


def _apart(column: Column, frame: pd.DataFrame) -> Column:
    """The same under a name that no other column of the table has."""
    name = column.name
    while name != column.source and name in frame.columns:
        name += " of both"
    return replace(column, name=name)


def _units(frame: pd.DataFrame, unit: str, target: str) -> NDArray[np.intp]:
    """(n,) numbers of the units that rows belong to. SchemaError for a unit that is no column, and where a row does not say."""
    if unit not in frame.columns or unit == target:
        raise SchemaError(f"Expected a unit among the other columns {list(map(str, frame.columns[:20]))}, got {unit!r}.")
    units = unit_numbers(frame[unit])
    if lost := int((units < 0).sum()):
        raise SchemaError(f"Expected to be told whose each row is, but {unit!r} is missing in {lost} of {len(frame)}.")
    return units


def _label(seen: Seen, task: str | None) -> tuple[Column, tuple[str, ...], TargetRange | None]:
    """The target's column, and its labels or its range."""
    found = number(seen)
    further = _further(seen, found)
    different = np.unique([*seen.numbers[~np.isnan(seen.numbers)], *further.values()])
    few = len(different) <= _FEW_NUMBERS and bool(np.all(np.mod(different, 1) == 0))
    if task == "regression" and found is None:
        wrong = next(iter(seen.counts), "nothing")
        raise SchemaError(f"Expected numbers in the target {seen.name!r} for a regression, got {wrong!r}.")
    if found is not None and (task == "regression" or (task is None and not few)):
        return replace(found, type="label", range=None, note=found.note + _far(seen)), (), TargetRange(*found.ends)
    read: dict[str, Any]
    if found is not None:  # whole numbers as labels, however they are written, and what stands among them for nothing
        whole = {word: number for word, number in zip(seen.words, seen.numbers, strict=True) if not np.isnan(number)}
        plain = {word: f"{value:.0f}" if value % 1 == 0 else word for word, value in whole.items()}
        plain |= {word: word for word in further}  # "3+" is a label of its own: no number is read in a label
        read = {word: meant for word, meant in plain.items() if word != meant}
        spelt: dict[str, int] = {}
        for word, meant in plain.items():
            spelt[meant] = spelt.get(meant, 0) + seen.counts[word]
        values = whole | further
        ordered = sorted(spelt, key=lambda word: (float(values.get(word, word)), word))
    else:
        spelt, read = seen.spelt
        ordered = sorted(spelt)
    if len(ordered) < 2:
        raise SchemaError(f"The target {seen.name!r} is {ordered[0] if ordered else 'missing'!r} in all rows.")
    if len(ordered) > _MOST_LABELS and task is None:
        raise SchemaError(
            f"The target {seen.name!r} holds {len(ordered):,} different texts, such as {ordered[0]!r}: is it the right column?"
        )
    labels, note = _common(seen, spelt, read, ordered)
    if found is not None and len(different) > 2:
        note += "; if these are counts or amounts, it is a regression"
    note += "" if found is not None else _slips(seen, spelt, ordered)
    unknown = "ignore" if len(labels) < len(ordered) else "error" if found is None else found.unknown
    read = {word: meant for word, meant in read.items() if meant in labels}
    return Column(seen.name, "label", unknown=unknown, read=read, note=note), tuple(labels), None


def _further(seen: Seen, found: Column | None) -> dict[str, float]:
    """Texts among a target's numbers that are numbers only in further forms, such as "3+", with the numbers in them."""
    if found is None or not found.also_reads:
        return {}
    import pandas as pd

    odd = seen.words[np.isnan(seen.numbers)].unique().tolist()
    read = as_numbers(pd.Series([read_forms(word, found.also_reads) for word in odd], dtype="object"), seen.decimal)
    return {word: float(number) for word, number in zip(odd, read, strict=True) if np.isfinite(number)}


def _common(seen: Seen, spelt: dict[str, int], read: dict[str, Any], ordered: list[str]) -> tuple[list[str], str]:
    """The labels that many enough hold, in order, and a note of the others. Yes and no everybody knows, whoever holds them.
    SchemaError where less than two are left."""
    holders = seen.holders(read)
    public = is_truth(ordered) or ordered == ["0", "1"]
    labels = [label for label in ordered if public or holders[label] >= seen.least]
    if len(labels) < 2:
        raise SchemaError(
            f"Expected at least two labels in {seen.name!r} that {seen.least} {seen.whose} or more hold, got {len(labels)} of "
            f"{len(ordered)}. Where all labels are public, write them into a schema, or propose with --least-units 1 "
            "(least_units=1)."
        )
    rarest = min(labels, key=lambda label: spelt[label])
    note = f"{len(labels)} labels, the rarest {rarest!r} with {spelt[rarest] / len(seen.words):.2g} of the rows"
    if dropped := [label for label in ordered if label not in labels]:
        note += (
            f"; less than {seen.least} {seen.whose} hold {listed(spelt, dropped)}: are these labels? They are none here, and "
            "such rows are left out"
        )
    return labels, note


def _slips(seen: Seen, spelt: dict[str, int], ordered: list[str]) -> str:
    """Labels of few rows, which may be slips of others."""
    odd = [word for word in ordered if spelt[word] < _RARE * len(seen.words)]
    note = ""
    for word in odd:
        if alike := get_close_matches(word, [other for other in ordered if other not in odd], 1):
            note += f"; is {word!r} another spelling of {alike[0]!r}? Then add it under 'read'"
        elif len(ordered) > 2:
            note += f"; is {word!r}, in few rows, a label of its own?"
    return note


def _far(seen: Seen) -> str:
    """A question about a target's numbers that lie far from all others: its range bounds what is learnt and answered."""
    numbers = np.sort(seen.numbers[~np.isnan(seen.numbers)])
    few = max(1, round(_ENDS * len(numbers)))
    inner = numbers[few:-few]
    if len(inner) < 3 or not 0 < np.ptp(inner) < _NARROW * np.ptp(numbers):  # pyright: ignore[reportUnknownArgumentType]
        return ""
    return (
        f"; nearly all lie from {inner[0]:.6g} to {inner[-1]:.6g}: are {numbers[0]:.6g} and {numbers[-1]:.6g} right, or slips? "
        "Then narrow its range, to which others are clipped"
    )


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
