"""What an additive model says of each column: a curve, or a bar for each category. Made from the model alone, for free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.data import Schema
from dperm.data.columns import OTHER
from dperm.report.figures import effects_figure
from dperm.report.page import environment, machine

__all__ = ["Effect", "effects", "effects_page", "plot_effects"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Effect:
    """Of one column on the prediction (log-odds of the later class, or the target on [−1, 1]), 0 on average over `places`.

    `heights` (k,) at `places`: numbers in the column's own units, or its categories; `missing` is the height of a missing value,
    None where it has none of its own. `noise`: the standard deviation of a height's noise, where it is public.
    """

    column: str
    places: tuple[float, ...] | tuple[str, ...]
    heights: Array
    log: bool = False
    missing: float | None = None
    noise: float | None = None

    @property
    def is_curve(self) -> bool:
        return not isinstance(self.places[0], str)

    @property
    def spread(self) -> float:
        """Between the highest and the lowest: how much the column can do."""
        return float(self.heights.max() - self.heights.min())


def effects(model: Any, schema: Schema, label: Any = None) -> list[Effect]:
    """One for each feature column of a fitted linear estimator, in the schema's order, for `label`: of two classes the later
    one by default.

    A straight line is a curve of two points. The noise of heights is public after output perturbation by Gaussian noise; other
    mechanisms carry theirs through the records' Hessian, which is private. ValueError where the model has other features.
    """
    table = np.atleast_2d(model.coef_)
    if table.shape[1] != schema.dimension:
        raise ValueError(f"Expected a model of the schema's {schema.dimension} features, got one of {table.shape[1]}.")
    known = list(getattr(model, "classes_", ()))
    label = known[-1] if label is None and len(known) == 2 else label
    if known and label not in known:
        raise ValueError(f"Expected one of the labels {known[:8]} for a model of {len(known)} classes, got {label!r}.")
    if label is not None and not known:
        raise ValueError(f"Expected no label for a regression, got {label!r}.")
    row = known.index(label) if len(table) > 1 else 0  # pyright: ignore[reportArgumentType]
    sign = -1.0 if len(table) == 1 and known and label == known[0] else 1.0
    weights = sign * table[row] / schema.divisor
    spread = model.trace_.get("noise_std") if "sensitivity" in model.trace_ else None
    noise = None if spread is None else float(spread) / schema.divisor
    found: list[Effect] = []
    at = 0
    for column in schema.feature_columns:
        width = column.width(schema.encoding)
        own = weights[at : at + width]
        at += width
        missing = None
        if schema.encoding.separate:
            own, missing = own[:-1], float(own[-1])
        places: tuple[Any, ...] = (*column.categories, *((OTHER,) if column.other else ()))
        log = False
        middle = float(own.mean()) if column.type != "number" or schema.curves else float(own[0]) / 2
        if column.type == "number" and schema.curves:
            knots = column.knots(schema.curves)
            places, log = tuple(knots.tolist()), column.curve_scale == "log"
            if column.curve_scale == "cyclic":  # the end is the start
                places, own = (*places, column.ends[1]), np.append(own, own[0])
        elif column.type == "number":
            places, own = column.ends, np.array([0.0, float(own[0])])
        found.append(Effect(column.name, places, own - middle, log, None if missing is None else missing - middle, noise))
    return found


def plot_effects(model: Any, schema: Schema, label: Any = None) -> str:
    """An SVG picture of all effects."""
    return effects_figure(effects(model, schema, label))


def effects_page(model: Any, schema: Schema, label: Any = None) -> str:
    """The same as a page, the columns that can do most first."""
    found = sorted(effects(model, schema, label), key=lambda effect: -effect.spread)
    classes: list[Any] = list(getattr(model, "classes_", ()))
    what = f"log-odds of {classes[-1] if label is None else label}" if classes else f"{schema.target}, on [−1, 1]"
    return (
        environment()
        .get_template("effects.html")
        .render(
            title=schema.title or schema.name,
            what=what,
            figure=effects_figure(found),
            found=found,
            certificate=model.certificate_,
            curves=schema.curves,
            machine=machine(),
        )
    )
