"""The effects of an additive model as numbers: what each level of each column adds to a prediction, and what of it is noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dperm._types import Array
from dperm.data import Column, Schema, TargetRange
from dperm.data.schema.level_contrasts import MISSING, LevelContrasts, level_contrasts
from dperm.data.schema.ranges import CountRange
from dperm.mechanisms.without_records import WithoutRecords
from dperm.report.effect_words import plain
from dperm.report.level_noise import LevelNoise, known_noise, unit_of_coefficients
from dperm.report.refits import Refits

#: The probability that noise alone passes any of a page's bands, or any of its thresholds.
CHANCE = 0.05


@dataclass(frozen=True)
class MayBeEmpty:
    """A level that maybe no record has: "(other)", or a missing value.

    Attributes
    ----------
    name : str
        "(other)" or "missing".
    height : float
        What it adds to a prediction beyond the column's average, as the heights of other levels.
    without : float
        The height that a level without records has but for noise: that of a coefficient of 0.
    reach : float or None
        How far from `without` noise alone brings such a level. Of all these levels of a model it brings one farther in 1 of 20
        trainings (`CHANCE`). None where the mechanism's law is not known.
    noise : float or None
        The standard deviation of `height` by chance, where it is known.
    """

    name: str
    height: float
    without: float
    reach: float | None = None
    noise: float | None = None

    @property
    def stands_out(self) -> bool:
        """Whether records must have it: it is beyond what noise does to a level that nobody has."""
        return self.reach is not None and abs(self.height - self.without) > self.reach


@dataclass(frozen=True)
class Effect:
    """What a column does to a prediction: in points of the model's score for the later class, or in the target's units.

    Heights are compared with the average over the places that are not in `may_be_empty`, see `LevelContrasts`.

    Attributes
    ----------
    column : str
        The column's name; of a pair of columns "first × second", whose heights are added to those of its columns.
    places : tuple
        Numbers in the column's own units, or categories, or of a pair the features' names.
    heights : (k,)
        At the places.
    log : bool
        Whether places are on a logarithmic scale.
    missing : float or None
        The height of a missing value, None where it has none of its own.
    noise : (k,) or None
        The standard deviations of heights by chance, where they are known.
    sides : pair of lists of str or None
        Of a pair: the names of what its first column has, and its second.
    may_be_empty : tuple of MayBeEmpty
        The levels that maybe no record has, of a column.
    counted : (k,) of bool or None
        The places that some record is taken to have, which count in `spread`. None: all.
    """

    column: str
    places: tuple[float, ...] | tuple[str, ...]
    heights: Array
    log: bool = False
    missing: float | None = None
    noise: Array | None = None
    sides: tuple[list[str], list[str]] | None = None
    may_be_empty: tuple[MayBeEmpty, ...] = ()
    counted: NDArray[np.bool_] | None = None

    @property
    def is_curve(self) -> bool:
        return not isinstance(self.places[0], str)

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(k,) Which places some record is taken to have."""
        return np.ones(len(self.heights), dtype=bool) if self.counted is None else self.counted

    @property
    def spread(self) -> float:
        """The difference between the highest and the lowest level that some record is taken to have."""
        heights = [*self.heights[self.kept], *(level.height for level in self.may_be_empty if level.stands_out)]
        return float(max(heights) - min(heights)) if heights else 0.0

    @property
    def ends(self) -> tuple[int, int]:
        """The numbers of the lowest and of the highest place, among those that some record is taken to have, where there are."""
        among = np.flatnonzero(self.kept) if self.kept.any() else np.arange(len(self.heights))
        return int(among[self.heights[among].argmin()]), int(among[self.heights[among].argmax()])

    def place(self, number: int) -> str:
        """The place of this number, from 0, as a reader sees it."""
        place = self.places[number]
        return place if isinstance(place, str) else plain(place, 4)

    def beyond(self, deviations: float) -> float | None:
        """What exceeds noise: the part of the highest level above the average that is beyond so many standard deviations, and
        that of the lowest level below it. None where noise is not known.

        Of the levels that maybe no record has those count that stand out; where no threshold is known, those that are beyond
        their own noise, of which the law covers empty levels too.
        """
        if self.noise is None:
            return None
        levels = [level for level in self.may_be_empty if level.stands_out or level.reach is None]
        heights = np.array([*self.heights[self.kept], *(level.height for level in levels if level.noise is not None)])
        noise = np.array([*self.noise[self.kept], *(level.noise for level in levels if level.noise is not None)])
        sure = np.sign(heights) * np.maximum(np.abs(heights) - deviations * noise, 0.0)
        return float(sure.max(initial=0.0) - sure.min(initial=0.0))


def deviations_for(found: Sequence[Effect]) -> float:
    """How many standard deviations a band has: noise of a normal law passes any of these effects' bands in at most 1 of 20
    trainings (`CHANCE`), by the union bound over all heights."""
    heights = sum(len(effect.heights) + len(effect.may_be_empty) for effect in found)
    return -float(ndtri(CHANCE / 2 / max(heights, 1)))


def ranked(found: Sequence[Effect]) -> tuple[list[Effect], list[Effect]] | None:
    """The columns that do more than noise does, by how much, and the others in their order; None where noise is not known."""
    deviations = deviations_for(found)
    beyond = [effect.beyond(deviations) for effect in found]
    if any(each is None for each in beyond):
        return None
    order = sorted(range(len(found)), key=lambda place: -(beyond[place] or 0.0))
    first = [found[place] for place in order if beyond[place]]
    return first, [effect for effect, each in zip(found, beyond, strict=True) if not each]


def effects(
    model: Any,
    schema: Schema,
    label: Any = None,
    refits: Refits | None = None,
    *,
    constant: str | None = None,
    noise: LevelNoise | None = None,
) -> list[Effect]:
    """List what each column does to a prediction of a fitted linear estimator, in the schema's order, then what its pairs do.

    Heights are points of the score of `label`, of two classes the later one by default, or in the units of a regression's target:
    a model that states no range of the target is taken to be trained on [−1, 1] of the schema's, as `Dataset.fit` and `dperm
    train` do. Of counts with a logarithmic link they are logarithms. A straight line is a curve of two points. The column
    `constant`, which has one value in all rows that the model is for, as the one of `fit_by` has, is left out.

    How far heights are off by chance is public after output perturbation by Gaussian noise. `noise` states it for this label of
    any model, in the units of its `coef_`. With `refits` to the records it is known of every mechanism, as far as the choice of
    records goes, too, and what is returned is then for the data holder alone (NOT PRIVATE).

    How far noise brings a level that no record has is public of output and objective perturbation, whose traces state it; see
    `dperm.mechanisms.without_records.WithoutRecords` for the derivation.

    ValueError for a model of other features or without the label, and for both `refits` and `noise`.
    """
    row, sign = row_of(model, schema, label)
    noise = noise_of(model, schema, label, refits, noise)
    unit = unit_of_heights(model, schema)
    weights = unit * sign * np.atleast_2d(model.coef_)[row]
    columns = [each for each in zip(schema.parts, level_contrasts(schema), strict=True) if each[0].name != constant]
    reaches = iter(_reaches(model, schema, [contrasts for _, contrasts in columns]))
    found: list[Effect] = []
    for part, contrasts in columns:
        effect = _effect(contrasts, weights[contrasts.features], noise, unit, reaches)
        if isinstance(part, Column) and part.type == "number":
            effect = replace(effect, log=(part.curve_scale if schema.curves else part.scale) == "log")
        found.append(effect)
    return found


def noise_of(
    model: Any, schema: Schema, label: Any = None, refits: Refits | None = None, noise: LevelNoise | None = None
) -> LevelNoise | None:
    """The noise of a label's coefficients: as it was given, by refits, or as the model's trace states it; None where it is not
    known. ValueError for both `refits` and `noise`."""
    row, _ = row_of(model, schema, label)
    if refits is not None and noise is not None:
        raise ValueError("Expected refits or noise, got both: bands have one meaning.")
    return noise or known_noise(model, refits, row)


def range_inside(model: Any, schema: Schema) -> TargetRange | None:
    """The range of amounts that the model saw on [−1, 1]; None where its answers are in the target's units themselves, or are
    labels."""
    known = schema.target_range
    if known is None or isinstance(known, CountRange) or getattr(model, "stated_range", None) is not None:
        return None
    return known


def unit_of_heights(model: Any, schema: Schema) -> float:
    """What coefficients are multiplied by to be in the target's units: half the range that the model saw on [−1, 1]."""
    known = range_inside(model, schema)
    return 1.0 if known is None else known.high / 2 - known.low / 2


def row_of(model: Any, schema: Schema, label: Any) -> tuple[int, float]:
    """The row of `coef_` that scores the label, and its sign. ValueError where there is none."""
    if not hasattr(model, "coef_"):
        raise ValueError(f"Expected a linear model, got {type(model).__name__}: a network says nothing of one column alone.")
    table = np.atleast_2d(model.coef_)
    if table.shape[1] != schema.dimension:
        raise ValueError(f"Expected a model of the schema's {schema.dimension} features, got one of {table.shape[1]}.")
    known: list[Any] = list(getattr(model, "classes_", ()))
    label = known[-1] if label is None and len(known) == 2 else label
    if known and label not in known:
        raise ValueError(
            f"Expected one of the labels {list(map(str, known[:8]))} for a model of {len(known)} classes, got {label!r}."
        )
    if label is not None and not known:
        raise ValueError(f"Expected no label for a regression, got {label!r}.")
    return (known.index(label) if len(table) > 1 else 0), (-1.0 if len(table) == 1 and known and label == known[0] else 1.0)


def _reaches(model: Any, schema: Schema, columns: Sequence[LevelContrasts]) -> Iterator[float | None]:
    """How far noise alone brings the height of each level that maybe no record has, in the order of the columns, their places
    and then their missing values; pairs have none."""
    own = [contrasts for contrasts in columns if contrasts.sides is None]
    features = [feature for contrasts in own for feature in _features_that_may_be_empty(contrasts)]
    law = WithoutRecords.of(model.trace_)
    if law is None:
        yield from (None for _ in features)
        return
    rough = model.objective_.roughness
    joined = set() if rough is None else {feature for pair in rough.neighbours for feature in pair}
    unit = unit_of_heights(model, schema) * unit_of_coefficients(model) / schema.divisor
    reach = unit * law.reach(CHANCE / len(features)) if features else 0.0
    yield from (None if feature in joined else reach for feature in features)


def _features_that_may_be_empty(contrasts: LevelContrasts) -> list[int]:
    found = [contrasts.features.start + int(place) for place in np.flatnonzero(contrasts.may_be_empty)]
    return [*found, contrasts.features.stop - 1] if contrasts.missing is not None else found


def _effect(
    contrasts: LevelContrasts, weights: Array, noise: LevelNoise | None, unit: float, reaches: Iterator[float | None]
) -> Effect:
    """An effect by the column's own weights, in the units of heights."""
    vectors = contrasts.vectors if contrasts.missing is None else np.vstack([contrasts.vectors, contrasts.missing])
    heights = vectors @ weights
    spread = None if noise is None else unit * noise.deviations(vectors, contrasts.features)
    count = len(contrasts.places)
    named = [(int(place), str(contrasts.places[place])) for place in np.flatnonzero(contrasts.may_be_empty)]
    if contrasts.missing is not None:
        named.append((count, MISSING))
    without = -float(contrasts.average @ weights)
    levels = [
        MayBeEmpty(name, float(heights[place]), without, next(reaches), None if spread is None else float(spread[place]))
        for place, name in ([] if contrasts.sides is not None else named)
    ]
    return Effect(
        contrasts.name,
        contrasts.places,
        heights[:count],
        missing=None if contrasts.missing is None else float(heights[-1]),
        noise=None if spread is None else spread[:count],
        sides=contrasts.sides,
        may_be_empty=tuple(levels),
        counted=~contrasts.may_be_empty,
    )
