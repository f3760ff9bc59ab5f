"""A schema found privately: which columns are numbers, their ranges, categories and labels, from noisy counts.

Three rounds of counts with Gaussian noise, so that the whole costs one Gaussian and a little δ. How many entries of each column
read as numbers, as texts, and are missing; for each end of each range, by bisection over a fixed grid of round numbers, how many
records lie beyond; and how often each text occurs, of which those are kept that a value nobody else has would reach with a chance
of at most δ/10 in all columns together (Korolova and others 2009). Nothing needs to be known beforehand but the columns' names.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from dperm import _validate as check
from dperm.data.schema.columns import OTHER, Column
from dperm.data.schema.entries import SchemaError
from dperm.data.schema.privacy_units import unit_numbers
from dperm.data.schema.ranges import TargetRange
from dperm.data.schema.schema import Schema
from dperm.data.schema_search.counting import (
    GRID,
    ColumnCounts,
    Table,
    Whole,
    added,
    counted,
    table_of,
    values_added,
    values_counted,
)
from dperm.privacy import ApproximateDP, Assumption, Certificate, Composed, Event, Gaussian, Relation, SelfComposed, calibrate
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel, CountNoise, GaussianNoise

if TYPE_CHECKING:
    import pandas as pd


_PROBES = math.ceil(math.log2(len(GRID)))
_SHARES = {"kinds": 0.05, "ends": 0.55, "values": 0.4}  # of the Gaussian's μ²
_SELECTION = 0.1  # of δ, for values that nobody else has
_CERTAIN = 4.0  # standard deviations
_LABELS = 20  # of numbers, at most
_LEAST = 1e-12  # an ε that stands for none


@dataclass(frozen=True)
class _Plan:
    """The noise multipliers of the three rounds: that of the whole is `noise`."""

    noise: float
    delta: float
    relation: Relation

    def of(self, what: str, times: int = 1) -> float:
        return self.noise * math.sqrt(times / _SHARES[what])

    @property
    def event(self) -> Event:
        kinds, ends, values = (
            Gaussian(self.of(what, times), self.relation) for what, times in (("kinds", 1), ("ends", _PROBES), ("values", 1))
        )
        selection = ApproximateDP(_LEAST, _SELECTION * self.delta, self.relation)
        return Composed((kinds, SelfComposed(ends, _PROBES), values, selection))


def find(
    frame: Any,
    target: str,
    epsilon: float,
    delta: float = 1e-5,
    *,
    name: str = "table",
    unit: str = "",
    classes: Sequence[str] = (),
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    random_state: Any = None,
    progress: Callable[[int, int], None] | None = None,
) -> Schema:
    """A schema of a table's columns, found within (ε, δ) and charged; its certificate is in `found`.

    Numbers get the least range of round ends beyond which few records lie; other columns the values that are common enough, and
    "other". Where some column has missing values, these are a category of their own. The target is labels where it holds few
    different values, or where `classes` states them. `unit`: the column that tells persons apart, one row of each of whom is
    looked at. SchemaError for a table that cannot be used, before anything is charged; and afterwards for a target of which
    nothing common was found.

    `frame` may be one of Dask, whose parts are counted where they are, each once, on whatever Dask runs; or the path of a
    Parquet, Arrow or Feather file, or of a folder of Parquet files, which are read a part at a time, twice; `progress(rows, all)`
    is told then.

    Entries must be read each by itself: `pandas.read_csv(…, dtype=str)`, as `read_table` does. A type that a reader takes from a
    whole column changes how all of its entries read when one is another.
    """
    table = table_of(frame, progress)
    if unit and not isinstance(table, Whole):
        raise SchemaError("Expected a frame in memory with a unit: the rows of a person may be in several parts of another.")
    plan = _planned(check.positive("epsilon", epsilon), check.fraction("delta", delta), Relation(relation))
    names = _searched(table.columns, target, unit, classes)
    written = table.written
    if isinstance(table, Whole) and unit:
        table = _first_rows(table, unit)
    counts = table.total(functools.partial(counted, names=names, decimal=table.decimal), added)
    channel = Channel.open(random_state, label=name)
    certificate = _certificate(plan, channel, unit, parted=table.elsewhere)
    channel.charge(certificate.event, certificate.mechanism, persons=certificate.of_persons)
    kinds, gaps, ranges, values = _asked(table, counts, target, channel, plan)
    found = [_column(column, column == target, kinds[column], ranges, values) for column in names]
    try:
        labels, bounds = _target(target, kinds[target], tuple(classes), values[target], ranges)
        if not any(column.is_feature for column in found):
            raise SchemaError("Nothing in the other columns was common enough to be found: raise epsilon, or state a schema.")
    except SchemaError as error:
        raise SchemaError(f"{error} The search was charged: epsilon = {certificate.epsilon:.4g} is spent.") from None
    return Schema(
        name=name,
        target=target,
        columns=tuple(found),
        classes=labels,
        target_range=bounds,
        extra=written,
        missing="separate" if gaps - {target} else "middle",
        unit=unit,
        source=f"Found privately, at epsilon = {certificate.epsilon:.4g} and delta = {delta:g}.",
        found=json.loads(certificate.to_json()),
    )


def _searched(columns: Sequence[Any], target: str, unit: str, classes: Sequence[str]) -> list[str]:
    """The columns that are looked at, the target among them. SchemaError for a table or labels that cannot be used."""
    if not all(isinstance(column, str) for column in columns) or len(set(columns)) < len(columns):
        raise SchemaError("Expected columns with names, each once.")
    for column, what in ((target, "target"), *(((unit, "unit"),) if unit else ())):
        if column not in columns:
            raise SchemaError(f"Expected the {what} {column!r} among the columns {list(columns[:20])}.")
    if isinstance(classes, str) or len(set(classes)) == 1:
        raise SchemaError(f"Expected classes as a list of at least two labels, got {classes!r}.")
    names = [column for column in columns if column != unit]
    if target not in names or len(names) < 2:
        raise SchemaError("Expected a target, and at least one column beside it and the unit.")
    return names


def _first_rows(table: Whole, unit: str) -> Whole:
    """The first row of each person. SchemaError where a row does not say whose it is."""
    number = unit_numbers(table.frame[unit])
    if (number < 0).any():
        raise SchemaError(f"Expected to be told whose each row is, but {unit!r} is missing in some.")
    return Whole(replace(table.table, frame=table.frame.iloc[np.unique(number, return_index=True)[1]]))


def _asked(
    table: Table, columns: dict[str, ColumnCounts], target: str, channel: Channel, plan: _Plan
) -> tuple[dict[str, str], set[str], dict[str, tuple[float, float]], dict[str, dict[str, float]]]:
    """The three rounds of noisy counts: what each column holds, which have gaps, the ranges of numbers, and common values."""
    replaced = plan.relation is Relation.REPLACE_ONE
    kinds, gaps = _kinds(columns, channel, plan, replaced)
    numeric = [column for column in columns if kinds[column] == "number"]
    ranges = dict(zip(numeric, _ends([columns[column] for column in numeric], channel, plan), strict=True))
    worded = [column for column in columns if kinds[column] == "text" or column == target]
    together = {column: kinds[column] == "number" for column in worded}  # known only now: most columns of numbers are not asked
    texts = table.total(functools.partial(values_counted, names=together, decimal=table.decimal), values_added)
    common = _common([texts[column] for column in worded], channel, plan, replaced)
    values = dict(zip(worded, common, strict=True))
    return kinds, gaps, ranges, values


def _column(
    name: str, is_target: bool, kind: str, ranges: dict[str, tuple[float, float]], values: dict[str, dict[str, float]]
) -> Column:
    """A column of the schema, by what was found of it."""
    if is_target:
        return Column(name, "label")
    if name in ranges and ranges[name][0] < ranges[name][1]:
        return Column(name, "number", ranges[name])
    if kind == "text" and values[name]:
        return Column(name, "category", categories=tuple(sorted(values[name])), other=True)
    return Column(name, "ignore")


def _planned(epsilon: float, delta: float, relation: Relation) -> _Plan:
    noise = calibrate(lambda noise: _Plan(noise, delta, relation).event, epsilon, delta)
    return _Plan(noise, delta, relation)


def _kinds(columns: dict[str, ColumnCounts], channel: Channel, plan: _Plan, replaced: bool) -> tuple[dict[str, str], set[str]]:
    """Which columns hold numbers, texts, or hardly anything; and in which values are missing."""
    counts = np.array([[column.numbers, column.others, column.missing] for column in columns.values()], dtype=np.float64)
    # in each column a record counts at most once; one that is replaced moves at most two of the numbers by 1
    moved = math.sqrt(len(columns) * (2 if replaced else 1))
    noise = plan.of("kinds")
    noisy = np.asarray(channel.release(counts.ravel(), GaussianNoise(moved, noise))).reshape(-1, 3)
    enough = noisy > _CERTAIN * noise * moved
    named = np.where(noisy[:, 0] >= noisy[:, 1], "number", "text")
    kinds = {
        column: str(kind) if known.any() else "ignore" for column, kind, known in zip(columns, named, enough[:, :2], strict=True)
    }
    return kinds, {column for column, known in zip(columns, enough[:, 2], strict=True) if known}


def _ends(columns: list[ColumnCounts], channel: Channel, plan: _Plan) -> list[tuple[float, float]]:
    """For each column of numbers the ends beyond which about as many records lie as the noise hides."""
    ends = 2 * len(columns)
    moved = math.sqrt(ends)  # a record moves each count by at most 1, replaced or not
    noise = plan.of("ends", _PROBES)
    few = _CERTAIN * noise * moved
    low, high = np.zeros(ends, dtype=int), np.full(ends, len(GRID) - 1)
    for _ in range(_PROBES if ends else 0):
        middle = (low + high) // 2
        beyond = np.empty(ends)
        for number, column in enumerate(columns):
            # the upper end at GRID[i]; the lower one at GRID[−1 − i]
            beyond[2 * number] = column.above[middle[2 * number]]
            beyond[2 * number + 1] = column.below[-1 - middle[2 * number + 1]]
        noisy = np.asarray(channel.release(beyond, GaussianNoise(moved, noise)))
        down = noisy <= few
        low, high = np.where(down | (low == high), low, middle + 1), np.where(down, middle, high)
    return [(float(GRID[-1 - high[2 * number + 1]]), float(GRID[high[2 * number]])) for number in range(len(columns))]


def _common(counted: list[pd.Series[Any]], channel: Channel, plan: _Plan, replaced: bool) -> list[dict[str, float]]:
    """For each column, of which there is at least the target's, the texts that are common enough, with noisy counts."""
    noise, moved = plan.of("values"), math.sqrt(len(counted) * (2 if replaced else 1))
    counts = np.concatenate([count.to_numpy(dtype=np.float64) for count in counted])
    noisy = channel.release(counts, CountNoise(moved, noise))
    # a text that one record alone has is in all columns together kept with a chance of at most _SELECTION·δ
    least = 2.0 - noise * moved * float(ndtri(_SELECTION * plan.delta / len(counted)))
    found: list[dict[str, float]] = []
    start = 0
    for count in counted:
        part = noisy[start : start + len(count)]
        start += len(count)
        kept = np.flatnonzero(part >= least)
        found.append({str(count.index[place]): float(part[place]) for place in kept})
    return found


def _target(
    target: str, kind: str, classes: tuple[str, ...], values: dict[str, float], ranges: dict[str, tuple[float, float]]
) -> tuple[tuple[str, ...], TargetRange | None]:
    """Labels, or a range. SchemaError where neither was found."""
    if classes:
        return classes, None
    if kind == "ignore":
        raise SchemaError(
            f"The target {target!r} holds hardly anything that could be found: state the labels (classes), or raise epsilon."
        )
    whole = OTHER not in values and all(_is_whole(value) for value in values)
    if kind == "number" and not (2 <= len(values) <= _LABELS and whole):
        low, high = ranges[target]
        if not low < high:
            raise SchemaError(f"The target {target!r} is {low:g} in nearly all records: there is nothing to learn.")
        return (), TargetRange(low, high)
    if len(values) < 2:
        raise SchemaError(
            f"Fewer than two labels of {target!r} were common enough to be found: state the labels (classes), or raise epsilon."
        )
    return tuple(sorted(values, key=lambda value: (float(value) if whole else 0.0, value))), None


def _is_whole(value: str) -> bool:
    try:
        return float(value).is_integer()
    except ValueError:
        return False


def _certificate(plan: _Plan, channel: Channel, unit: str, *, parted: bool) -> Certificate:
    whose = statements.persons(1) if unit else [statements.ONE_RECORD]
    named = Assumption("The columns' names, and which is the target, are public.", "caller", "stated", "columns")
    apart = Assumption(
        "Each entry was read by itself, as text or a type fixed beforehand: no column's type was taken from its entries.",
        "caller",
        "so by `dperm data propose`; for frames of one's own, stated",
        "entries apart",
    )
    return Certificate.issue(
        mechanism="a schema from noisy counts",
        event=plan.event,
        delta=plan.delta,
        paper="exact Gaussian composition; Korolova, Kenthapadi, Mishra, Ntoulas 2009 (values kept by their noisy counts)",
        assumptions=[*whose, named, apart, *([statements.PARTS] if parted else [])],
        public_facts={"max_rows_per_unit": 1, "unit": unit} if unit else {},
        not_charged=(statements.WRITTEN, statements.INPUT_CHECKS),
        provenance=channel.provenance,
    )
