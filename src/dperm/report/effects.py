"""What an additive model says of each column: a curve, or a bar for each category. Made from the model alone, for free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm._types import Array
from dperm.data import Column, Schema
from dperm.data.schema.column_pairs import Pair
from dperm.data.schema.columns import OTHER, Encoding
from dperm.data.schema.ranges import CountRange
from dperm.objectives import Logistic
from dperm.objectives.targets import Log
from dperm.report.figures import effects_figure
from dperm.report.page import rendered
from dperm.report.refits import Refits

_MOST_DRAWN = 100  # columns: each takes its time, and nobody looks at thousands


@dataclass(frozen=True)
class Effect:
    """Of one column on the prediction (the score of the later class, or the target in the units that the model was trained on), 0
    on average over `places`.

    `heights` (k,) at `places`: numbers in the column's own units, or its categories; `missing` is the height of a missing value,
    None where it has none of its own. `noise` (k,): their standard deviations by chance, where they are known. Of a
    pair of columns, what it adds to theirs: `places` are the features' names, `sides` what the first column and the second have.
    """

    column: str
    places: tuple[float, ...] | tuple[str, ...]
    heights: Array
    log: bool = False
    missing: float | None = None
    noise: Array | None = None
    sides: tuple[list[str], list[str]] | None = None

    @property
    def is_curve(self) -> bool:
        return not isinstance(self.places[0], str)

    @property
    def spread(self) -> float:
        """Between the highest and the lowest: how much the column can do."""
        return float(self.heights.max() - self.heights.min())


def effects(
    model: Any, schema: Schema, label: Any = None, refits: Refits | None = None, *, constant: str | None = None
) -> list[Effect]:
    """One for each feature column of a fitted linear estimator, in the schema's order, then its pairs, for `label`: of two
    classes the later one by default. Without the column `constant`, which has one value in all rows that the model is for, as
    the one of `fit_by` has.

    A straight line is a curve of two points. How far heights are off by chance is public after output perturbation by Gaussian
    noise, as far as that noise goes. With `refits` to the records it is told of every mechanism, as far as the choice of records
    goes, too, and what is returned is then for the data holder alone (NOT PRIVATE). ValueError for a
    model of other features.
    """
    if not hasattr(model, "coef_"):
        raise ValueError(f"Expected a linear model, got {type(model).__name__}: a network says nothing of one column alone.")
    table = np.atleast_2d(model.coef_)
    if table.shape[1] != schema.dimension:
        raise ValueError(f"Expected a model of the schema's {schema.dimension} features, got one of {table.shape[1]}.")
    known = list(getattr(model, "classes_", ()))
    one = len(table) == 1  # of two classes, or of classes with an order
    label = known[-1] if label is None and known and one else label
    if known and label not in known:
        raise ValueError(
            f"Expected one of the labels {list(map(str, known[:8]))} for a model of {len(known)} classes, got {label!r}."
        )
    if label is not None and not known:
        raise ValueError(f"Expected no label for a regression, got {label!r}.")
    if known and one and label not in (known[0], known[-1]):
        raise ValueError(f"Expected an end of the order, {known[0]!s} or {known[-1]!s}, as label, got {label!r}.")
    row = 0 if one else known.index(label)  # pyright: ignore[reportArgumentType]
    sign = -1.0 if one and known and label == known[0] else 1.0
    weights = sign * table[row] / schema.divisor
    noise = _public_noise(model) if refits is None else refits.root(row)
    found: list[Effect] = []
    at = 0
    for column in schema.parts:
        part = slice(at, at + column.width(schema.encoding))
        at = part.stop
        if isinstance(column, Pair):
            above = np.eye(part.stop - part.start) - 1 / (part.stop - part.start)
            spread = None if noise is None else np.linalg.norm(above @ noise[part], axis=1) / schema.divisor
            names = tuple(column.features(schema.encoding))
            found.append(Effect(column.name, names, above @ weights[part], noise=spread, sides=column.sides(schema.encoding)))
            continue
        places, levels, middle = _reading(column, schema.encoding)
        above = levels - middle
        missing = float(weights[part][-1] - middle @ weights[part]) if schema.encoding.separate else None
        spread = None if noise is None else np.linalg.norm(above @ noise[part], axis=1) / schema.divisor
        log = column.type == "number" and (column.curve_scale if schema.curves else column.scale) == "log"
        found.append(Effect(column.name, places, above @ weights[part], log, missing, spread))
    return [effect for effect in found if effect.column != constant]


def _public_noise(model: Any) -> Array | None:
    """A root N (d, d) of the covariance NNᵀ of what Gaussian output perturbation adds to coefficients; None of others. Of
    regressions the trace is about targets as they are inside, and coefficients are in the target's units."""
    trace = model.trace_
    if not {"noise_std", "sensitivity"} <= set(trace):
        return None
    unit = 1.0 if hasattr(model, "classes_") else model._unit_of_targets()
    return unit * trace["noise_std"] * np.eye(model.n_features_in_)


def _reading(column: Column, encoding: Encoding) -> tuple[tuple[Any, ...], Array, Array]:
    """Of a column its places, which of its features make up the height at each (k, width), and those that make up the average
    (width,)."""
    features = np.eye(column.width(encoding))
    own = features[: len(features) - encoding.separate]
    if column.type != "number":
        return (*column.categories, *((OTHER,) if column.other else ())), own, own.mean(axis=0)
    if not encoding.curves:
        return column.ends, np.stack([0 * own[0], own[0]]), own[0] / 2
    places = tuple(column.knots(encoding.curves).tolist())
    if column.curve_scale == "cyclic":  # the end is the start
        return (*places, column.ends[1]), np.concatenate([own, own[:1]]), own.mean(axis=0)
    return places, own, own.mean(axis=0)


def plot_effects(model: Any, schema: Schema, label: Any = None, refits: Refits | None = None) -> str:
    """An SVG picture of all effects; with `refits` NOT PRIVATE, see `effects`."""
    return effects_figure(effects(model, schema, label, refits), private=refits is not None)


def effects_page(
    model: Any, schema: Schema, label: Any = None, refits: Refits | None = None, *, constant: str | None = None
) -> str:
    """The same as a page, the columns that can do most first; with `refits` NOT PRIVATE, see `effects`."""
    found = sorted(effects(model, schema, label, refits, constant=constant), key=lambda effect: -effect.spread)
    classes: list[Any] = list(getattr(model, "classes_", ()))
    loss = model.objective_.loss
    score = "log-odds" if (isinstance(loss.plain, Logistic) and not loss.margin) or loss.outputs > 1 else "scores"
    amount = f"logarithm of {schema.target}" if isinstance(loss.plain.link, Log) else schema.target
    what = f"{score} of {classes[-1] if label is None else label}" if classes else amount
    scaled = schema.target_range is not None and not isinstance(schema.target_range, CountRange)
    return rendered(
        "effects.html",
        title=schema.title or schema.name,
        what=what,
        range=schema.target_range if scaled else None,
        figure=effects_figure(found[:_MOST_DRAWN], private=refits is not None),
        drawn=min(len(found), _MOST_DRAWN),
        found=found,
        certificate=model.certificate_,
        curves=schema.curves,
        looked=0 if refits is None else len(refits.models),
        surfaces=any(effect.sides is not None for effect in found),
    )
