"""Coefficients of a model of a table, with standard errors and intervals, in words that a report takes over."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dperm._types import Array
from dperm.data import Column, Dataset, Schema
from dperm.data.schema.constant_sums import constant_sums
from dperm.data.schema.level_contrasts import LevelContrasts, level_contrasts
from dperm.inference import ContrastNoise, Interval, ReleasedDerivatives, contrast_intervals, estimable, release_derivatives
from dperm.objectives import Logistic
from dperm.privacy import Assumption
from dperm.report.effect_values import unit_of_heights
from dperm.report.effect_words import heights_of, plain

_FORMAT = "dperm intervals 1"
_WITHIN_RANGES = Assumption(
    "No number of a record lay outside the range of its column.",
    "caller",
    "looked at before the charge; that it is so is known from the results",
    "numbers within ranges",
)


@dataclass(frozen=True)
class Coefficient:
    """What a column does, beside its interval: of a category a level rather than the one that most records have, of a number one
    unit more of it, of a curve a knot rather than the one that most records are near.

    Attributes
    ----------
    column, what : str
        "age" and "per unit", or "job" and "nurse rather than clerk".
    interval : Interval or None
        In the target's units, or in log-odds of the later class. None where the noise of the release hides it.
    """

    column: str
    what: str
    interval: Interval | None


@dataclass(frozen=True)
class CoefficientTable:
    """All coefficients of a model of a table, and what was released for them.

    Attributes
    ----------
    coefficients : list of Coefficient
        In the schema's order.
    released : ReleasedDerivatives
        From which they follow, with its certificate.
    level : float
        Share of such intervals that hold what they estimate.
    refused : str
        Why there are no intervals; empty where there are.
    """

    coefficients: list[Coefficient]
    released: ReleasedDerivatives
    level: float = 0.95
    refused: str = ""
    format: str = field(default=_FORMAT, init=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [
            {"column": each.column, "what": each.what, **({} if each.interval is None else vars(each.interval))}
            for each in self.coefficients
        ]
        return {
            "format": self.format,
            "level": self.level,
            "refused": self.refused,
            "coefficients": rows,
            "released": self.released.to_dict(),
        }


def released_of(data: Mapping[str, Any]) -> ReleasedDerivatives:
    """What was released, from a file as `CoefficientTable.to_dict` gives it. ValueError for other files."""
    if data.get("format") != _FORMAT:
        raise ValueError("Expected a file that `dperm intervals` wrote, got another.")
    return ReleasedDerivatives.from_dict(data["released"])


def coefficient_table(
    model: Any, dataset: Dataset, schema: Schema, *, epsilon: float, delta: float, spread: str, clipped: str, level: float
) -> CoefficientTable:
    """Release derivatives at a model's parameters on the records that it was trained on, charge for them, and tell coefficients.

    ValueError, before anything is charged, for a schema that was read off the data, and as `release_derivatives` has it.
    """
    if schema.proposed:
        raise ValueError("Expected a model by a confirmed schema: ranges and categories of this one were read off the data.")
    longest = math.sqrt(len(schema.parts))
    if not schema.curves and model.objective_.data_norm < longest * (1 - 1e-9):
        raise ValueError(
            "Expected a model whose rows are not scaled down: train it with --curves of 3 or more, or with --curves 0 "
            f"--data-norm {math.ceil(1e3 * longest) / 1e3:g}, which is as long as rows of {len(schema.parts)} columns can be."
        )
    if clipped == "refuse" and spread != "noise":
        _refuse_clipped(dataset)
    bounds = dataset.target_range
    inside = bounds is not None and getattr(model, "stated_range", None) is None
    targets = bounds.scaled(dataset.targets) if inside and bounds is not None else dataset.targets
    released = release_derivatives(
        model, dataset.features, targets, dataset.groups,
        epsilon=epsilon, delta=delta, spread=spread, clipped=clipped, label=dataset.name,
    )  # fmt: skip
    certificate = dataset.certified_beside(released.certificate)
    if clipped == "refuse" and spread != "noise":
        certificate = certificate.with_assumptions(_WITHIN_RANGES)
    return table_of(model, schema, replace(released, certificate=certificate), level)


def _refuse_clipped(dataset: Dataset) -> None:
    """ValueError for records of which a number, or the target, lies outside its range, and is clipped to it."""
    survey = dataset.survey
    if survey is None:
        raise ValueError('Expected clipped="named" for a named set: whether it has numbers outside of their ranges is not known.')
    found = [*([f"{survey.targets_outside:,} targets"] if survey.targets_outside else [])]
    found += [f"{count:,} entries of {name}" for name, count in survey.outside.items()]
    if found:
        raise ValueError(
            f"Expected numbers within the schema's ranges, got {', '.join(found)} outside, which are clipped: coefficients are "
            "not those of the records as they are. State wider ranges, or --clipped named."
        )


def table_of(model: Any, schema: Schema, released: ReleasedDerivatives, level: float = 0.95) -> CoefficientTable:
    """The table of what was released before, at no further cost."""
    never = never_seen(model, schema)
    mass = np.where(released.present(model), np.diagonal(released.hessian), 0.0)
    rows = [(each.name, what, vector) for each in level_contrasts(schema) for what, vector in _differences(each, schema, mass)]
    wide = np.zeros((len(rows), len(released.theta)))
    for place, (_, _, (features, vector)) in enumerate(rows):
        wide[place, features] = vector
    names = [f"{column}: {what}" for column, what, _ in rows]
    known, refused = estimable(model, released, wide, never=never), ""
    found: dict[int, Interval] = {}
    if released.spread == "noise":
        refused = "only the noise of the model's training was asked for"
    elif known.any():
        try:
            places = np.flatnonzero(known)
            determined = [names[place] for place in places]
            unit = unit_of_heights(model, schema)
            intervals = contrast_intervals(model, released, unit * wide[known], determined, level=level, never=never)
            found = dict(zip(places.tolist(), intervals, strict=True))
        except ValueError as error:
            refused = str(error)
    coefficients = [Coefficient(column, what, found.get(place)) for place, (column, what, _) in enumerate(rows)]
    return CoefficientTable(coefficients, released, level, refused)


def meaning_of(model: Any, schema: Schema) -> str:
    """A sentence that says what coefficients are measured in."""
    loss, classes = model.objective_.loss, list(getattr(model, "classes_", ()))
    if classes and isinstance(loss.plain, Logistic) and not loss.plain.margin:
        return f"Log-odds of {schema.target} = {classes[-1]}: e to the power of a coefficient is an odds ratio."
    if classes:
        why = ", for the model was trained with a margin; --margin 0 of `dperm train` makes log-odds"
        return f"Points of the model's score for {schema.target} = {classes[-1]}. They are no log-odds{why}."
    heights = heights_of(model, schema)
    if heights.kind == "factor":
        return f"Logarithms of factors of the {heights.label}: e to the power of a coefficient multiplies it."
    return f"In units of {heights.label}."


def never_seen(model: Any, schema: Schema) -> Any:
    """(k, p) directions of a model's parameters in which no row of the schema has a component."""
    return constant_sums(schema, model.objective_.intercept_scale)


def contrast_noise(model: Any, schema: Schema, data: Mapping[str, Any]) -> ContrastNoise:
    """The noise of privacy in a model's contrasts, by a file of `dperm intervals`. ValueError for a file of another model."""
    return ContrastNoise.of(model, released_of(data), never=never_seen(model, schema))


def _differences(contrasts: LevelContrasts, schema: Schema, mass: Array) -> list[tuple[str, tuple[slice, Any]]]:
    """The differences that a column has: in words, and as a vector of its features. `mass` (p,) is the Hessian's diagonal."""
    places, vectors = contrasts.places, contrasts.vectors
    if isinstance(places[0], str) or schema.curves:
        own = mass[contrasts.features][: len(places)]
        first = int(np.argmax(own)) if len(own) else 0
        return [
            (f"{_said(place)} rather than {_said(places[first])}", (contrasts.features, vector - vectors[first]))
            for place, vector in zip(places, vectors, strict=True)
            if np.any(vector != vectors[first])  # the end of a cycle is its start
        ]
    low, high = float(places[0]), float(places[1])
    if not np.any(vectors[1] != vectors[0]):
        return []
    column = next(part for part in schema.parts if part.name == contrasts.name)
    logarithmic = isinstance(column, Column) and column.scale == "log"
    what, width = (f"{_said(high)} rather than {_said(low)}", 1.0) if logarithmic else ("per unit", high - low)
    return [(what, (contrasts.features, (vectors[1] - vectors[0]) / width))]


def _said(place: Any) -> str:
    return place if isinstance(place, str) else plain(float(place), 4)


def as_json(table: CoefficientTable) -> str:
    return json.dumps(table.to_dict(), indent=1, ensure_ascii=False)
