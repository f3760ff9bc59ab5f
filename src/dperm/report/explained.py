"""One prediction explained: what each value of a row does to it. Arithmetic on the released model, which costs no privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dperm._types import Array
from dperm.data import ReadTable, Schema, SchemaEncoder, SchemaError
from dperm.data.schema.column_pairs import Pair
from dperm.data.schema.entries import as_table
from dperm.data.schema.level_contrasts import MISSING, LevelContrasts, level_contrasts
from dperm.data.schema.row_faults import clipped_rows, row_faults
from dperm.objectives import RECORD
from dperm.report.effect_values import effects, range_inside, row_of, unit_of_heights
from dperm.report.effect_words import Heights, heights_of
from dperm.report.level_noise import LevelNoise
from dperm.report.page import rendered


@dataclass(frozen=True)
class Part:
    """What one column of a row adds to its prediction, beyond the average of the column's levels.

    Attributes
    ----------
    column, value : str
        The column, or the pair of columns, and the entry of the row; "missing" where there is none.
    height : float
        What it adds: points of the score, or in the target's units, as the heights of `dperm.report.effects.effects`.
    remark : str
        What to know of the entry: that it was taken at the end of its range, or that its level may be noise alone.
    """

    column: str
    value: str
    height: float
    remark: str = ""


@dataclass(frozen=True)
class Explanation:
    """A prediction as a sum: `constant` plus the heights of `parts` is `total`.

    Attributes
    ----------
    parts : tuple of Part
        One for each column, in the schema's order, and for each pair.
    constant : float
        The prediction of a row that has the average of every column, in the units of heights.
    total : float
        The model's score of the label, or its prediction, of counts with a logarithmic link the logarithm of that.
    probability : float or None
        Of the label, where the model states some.
    prediction : float or str
        The model's answer: a label, or a number in the target's units.
    heights : Heights
        The unit of heights.
    noise : float or None
        How much of the total may be noise of values that maybe no record has, which are those with the remark "maybe noise
        alone": if no record has any of them, noise adds more to the total, or takes more from it, in at most 1 of 20 trainings.
        0 where the row has no such value, None where the law of that noise is not known.
    """

    parts: tuple[Part, ...]
    constant: float
    total: float
    probability: float | None
    prediction: Any
    heights: Heights
    noise: float | None = 0.0

    @property
    def ordered(self) -> list[Part]:
        """The parts, those first that do most."""
        return sorted(self.parts, key=lambda part: -abs(part.height))

    @property
    def answer(self) -> str:
        """The prediction in words, with what of it may be noise of values that maybe no record has."""
        about = "" if self.noise == 0 else "about "
        if self.heights.kind != "points":
            return f"{self.heights.label} {about}{self.heights.level(self.total)}{self._doubt}"
        said = f"{about}{self.total:.2f} points{self._doubt}, so {self.prediction}"
        if self.probability is None:
            return said
        return f"{said}; {self.heights.label} has a probability of {about}{self.probability:.3g}"

    @property
    def _doubt(self) -> str:
        """What of the prediction may be noise of values that maybe no record has, or nothing."""
        if self.noise == 0:
            return ""
        much = "an amount that is not known" if self.noise is None else self.heights.size(self.noise)
        sign = "" if self.noise is None or self.heights.kind == "factor" else "±"
        unit = " points" if self.noise is not None and self.heights.kind == "points" else ""
        return f", of which {sign}{much}{unit} may be noise of values that maybe no record has"

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON has it."""
        parts = [vars(part) for part in self.parts]
        answer = self.prediction if isinstance(self.prediction, str) else float(self.prediction)
        return {
            "parts": parts,
            "constant": self.constant,
            "total": self.total,
            "probability": self.probability,
            "prediction": answer,
            "unit": self.heights.axis,
            "noise": self.noise,
        }


def explain(
    model: Any, schema: Schema, row: Any, label: Any = None, *, constant: str | None = None, noise: LevelNoise | None = None
) -> Explanation:
    """Explain the prediction of a fitted linear estimator for one row: a mapping of the table's columns to entries, or a table of
    one row.

    A mapping has an entry for each column that features are made of; None says that it is missing, where the schema fills missing
    values. A column that was left out is refused: what the model says of missing values may be noise alone. `label`, `constant`
    and `noise`, which may say what heights are compared with, are those of `dperm.report.effects.effects`. Nothing is charged,
    and nothing of the row is kept.

    SchemaError for a row that does not fit the schema, ValueError for a model of other features and for another number of rows.
    """
    place, sign = row_of(model, schema, label)
    table = _one_row(schema, row)
    if faults := row_faults(schema, table):
        raise SchemaError(f"The row does not fit the schema: {faults[0]}.")
    X = SchemaEncoder(schema, table).features()[0].astype(np.float64)
    unit = unit_of_heights(model, schema)
    weights = unit * sign * np.atleast_2d(model.coef_)[place]
    seen = _as_seen(model, X)
    clipped = set(clipped_rows(schema, table).get(0, "").split(", "))
    doubtful = {
        effect.column: {level.name: level.reach for level in effect.may_be_empty if not level.counts}
        for effect in effects(model, schema, label, noise=noise)
    }
    inside = range_inside(model, schema)
    middle = 0.0 if inside is None else float(inside.restored(0.0))
    start = unit * sign * float(np.ravel(model.intercept_)[place]) + middle
    total = start + float(seen @ weights)
    parts: list[Part] = []
    reference = None if noise is None else noise.reference
    reaches: dict[str, float | None] = {}
    for part, contrasts in zip(schema.parts, level_contrasts(schema, reference), strict=True):
        mine, average = weights[contrasts.features], float(contrasts.average @ weights[contrasts.features])
        start += average
        height = float(seen[contrasts.features] @ mine) - average
        columns = (part.first, part.second) if isinstance(part, Pair) else (part,)
        value = ", ".join(_entry(table.frame[column.source].iloc[0]) for column in columns)
        remark = "taken at the end of its range" if any(_of(column) in clipped for column in columns) else ""
        level = _level(contrasts, seen)
        if level in doubtful[part.name]:
            reaches[part.name] = doubtful[part.name][level]
        elif isinstance(part, Pair) and (part.first.name in reaches or part.second.name in reaches):
            reaches[part.name] = None  # the law of such a cell's noise is not stated
        if part.name in reaches:
            remark = "maybe noise alone"
        parts.append(Part(part.name, value, height, remark))
    if constant is not None:
        start += sum(part.height for part in parts if part.column == constant)
        parts = [part for part in parts if part.column != constant]
    answers = model.predict(X)
    if hasattr(model, "classes_"):
        prediction: Any = str(answers[0])
    else:
        prediction = float((answers if inside is None else inside.restored(answers))[0])
    heights, shorter = heights_of(model, schema, label), float(np.linalg.norm(seen)) / (float(np.linalg.norm(X)) or 1.0)
    doubt = _joint_reach(list(reaches.values()), shorter)
    return Explanation(tuple(parts), start, total, _probability(model, X, label), prediction, heights, doubt)


def _joint_reach(reaches: list[float | None], shorter: float) -> float | None:
    """How far from 0 the noise of several levels without records brings their sum in a row that was scaled by `shorter`.

    By `WithoutRecords` their parameters have a law that is the same in all directions, or are such a vector moved towards 0. So
    the sum of a_j·θ_j has the law of ‖a‖·θ_1, and the reaches, a_j times that of θ_1, add up in squares.
    """
    known = [reach for reach in reaches if reach is not None]
    return shorter * float(np.linalg.norm(known)) if len(known) == len(reaches) else None


def _level(contrasts: LevelContrasts, seen: Array) -> str:
    """The level that maybe no record has and the row has, by its feature; nothing where there is none."""
    features = seen[contrasts.features]
    if contrasts.missing is not None and features[-1] > 0:
        return MISSING
    places = np.flatnonzero(contrasts.may_be_empty)
    return str(contrasts.places[places[0]]) if contrasts.sides is None and len(places) and features[places[0]] > 0 else ""


def _of(column: Any) -> str:
    """The name of the schema's column, also of a part of a date."""
    return getattr(column, "date", column).name


def _probability(model: Any, X: Array, label: Any) -> float | None:
    if not hasattr(model, "predict_proba"):
        return None
    known = list(model.classes_)
    return float(model.predict_proba(X)[0, len(known) - 1 if label is None else known.index(label)])


def _as_seen(model: Any, X: Array) -> Array:
    """(d,) The row as the model sees it: scaled to its bound, where it is longer."""
    rows = replace(model.objective_, unit=RECORD).records(X, np.zeros(len(X)), keep=False)
    (batch,) = rows.batches()
    return np.asarray(batch.rows * batch.units[:, None], dtype=np.float64)[0]


def _entry(value: Any) -> str:
    return MISSING if value is None or value != value else str(value)


def _one_row(schema: Schema, row: Any) -> ReadTable:
    """A table of one row with all columns that features are made of."""
    import pandas as pd

    known = schema.table_columns(features=True)
    if isinstance(row, Mapping):
        given: dict[str, Any] = dict(row)
        if wrong := [name for name in given if name not in schema.table_columns()]:
            raise SchemaError(f"Expected values of the columns {known[:12]}, got one of {wrong[0]!r}.")
        if absent := [name for name in known if name not in given]:
            filled = schema.missing not in ("error", "drop")
            empty = " Say which are missing: None, or --row 'name='." if filled else ""
            raise SchemaError(f"Expected an entry for each of the columns, got none for {absent[:12]}.{empty}")
        row = pd.DataFrame({name: pd.Series([given.get(name)], dtype="object") for name in known})
    table = as_table(row)
    if len(table.frame) != 1:
        raise ValueError(f"Expected one row, got {len(table.frame):,}.")
    return table


def explanation_page(found: Explanation, title: str) -> str:
    """Write an explanation as a page, which holds the row."""
    most = max((abs(part.height) for part in found.parts), default=0.0) or 1.0
    widths = [(part, round(50 * abs(part.height) / most, 2)) for part in found.ordered]
    return rendered("explained.html", found=found, title=title, widths=widths)
