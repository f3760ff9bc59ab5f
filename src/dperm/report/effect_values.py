"""The effects of an additive model as numbers: what each level of each column adds to a prediction, and what of it is noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array
from dperm.data import Column, Schema, TargetRange
from dperm.data.schema.level_contrasts import MISSING, LevelContrasts, level_contrasts
from dperm.data.schema.ranges import CountRange
from dperm.mechanisms.released_mass import ReleasedMass
from dperm.mechanisms.without_records import WithoutRecords
from dperm.report.effect_words import plain
from dperm.report.level_noise import LevelNoise, known_noise, unit_of_coefficients
from dperm.report.refits import Refits

#: The probability that noise alone passes any of a page's bands, or any of its thresholds.
CHANCE = 0.05
_HELD = 0.5  # of the deviation of a level without records: one with less is taken to have some


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
    held : bool
        Whether records are known to have it, or the noise of its coefficient is known and less than half of that of a level
        without records, so that some must have it.
    """

    name: str
    height: float
    without: float
    reach: float | None = None
    noise: float | None = None
    held: bool = False

    @property
    def stands_out(self) -> bool:
        """Whether it is beyond what noise does to a level that nobody has."""
        return self.reach is not None and abs(self.height - self.without) > self.reach

    @property
    def counts(self) -> bool:
        """Whether some record is taken to have it."""
        return self.held or self.stands_out

    @property
    def judged(self) -> bool:
        """Whether its height counts beside those of other levels: some record is taken to have it; or no threshold is known, and
        its own noise is, which is that of an empty level if it is one."""
        return self.counts or (self.reach is None and self.noise is not None)


@dataclass(frozen=True)
class Effect:
    """What a column does to a prediction: in points of the model's score for the later class, or in the target's units.

    Heights are compared with the average over the places that are not in `may_be_empty`, see `LevelContrasts`.

    Attributes
    ----------
    column : str
        The column's name, or "first × second" for a pair of columns. A pair adds its heights to those of its columns.
    places : tuple
        Numbers in the column's own units, or categories, or of a pair the features' names.
    heights : (k,)
        At the places.
    log : bool
        Whether places are on a logarithmic scale.
    missing : float or None
        The height of a missing value, None where the model has no feature for it.
    noise : (k,) or None
        The standard deviations of heights by chance, where they are known.
    sides : pair of lists of str or None
        Of a pair: the names of what its first column has, and its second.
    may_be_empty : tuple of MayBeEmpty
        The levels that maybe no record has, of a column.
    counted : (k,) of bool or None
        The places that some record is taken to have, which count in `spread`. None: all.
    mass : (k,) or None
        How much records say at each place, in proportion, where that was released: see `LevelNoise.mass` and `ReleasedMass`.
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
    mass: Array | None = None

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
        heights = [*self.heights[self.kept], *(level.height for level in self.may_be_empty if level.counts)]
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

        Of the levels that maybe no record has those count that are `judged`.
        """
        if self.noise is None:
            return None
        levels = [(level.height, level.noise) for level in self.may_be_empty if level.judged and level.noise is not None]
        heights = np.array([*self.heights[self.kept], *(height for height, _ in levels)])
        noise = np.array([*self.noise[self.kept], *(each for _, each in levels)])
        sure = np.sign(heights) * np.maximum(np.abs(heights) - deviations * noise, 0.0)
        return float(sure.max(initial=0.0) - sure.min(initial=0.0))


def deviations_for(found: Sequence[Effect], noise: LevelNoise | None) -> float:
    """How many standard deviations a band has: noise passes any of these effects' bands in at most 1 of 20 trainings (`CHANCE`),
    by the union bound over all heights. 0 where no noise is known."""
    heights = sum(len(effect.heights) + len(effect.may_be_empty) for effect in found)
    return 0.0 if noise is None else noise.reach(CHANCE / max(heights, 1))


def ranked(found: Sequence[Effect], noise: LevelNoise | None) -> tuple[list[Effect], list[Effect]] | None:
    """The columns that do more than noise does, by how much, and the others in their order; None where noise is not known."""
    deviations = deviations_for(found, noise)
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

    How far heights are off by chance is public after output perturbation. `noise` states it for this label of
    any model, in the units of its `coef_`. With `refits` to the records it is known of every mechanism, as far as the choice of
    records goes, too, and what is returned is then for the data holder alone (NOT PRIVATE).

    How far noise brings a level that no record has is public for output and objective perturbation: the model's trace states it.
    `dperm.mechanisms.without_records.WithoutRecords` has the derivation.

    ValueError for a model of other features, without the label or with coefficients that are not finite, and for both `refits`
    and `noise`.
    """
    row, sign = row_of(model, schema, label)
    noise = noise_of(model, schema, label, refits, noise)
    unit = unit_of_heights(model, schema)
    weights = unit * sign * np.atleast_2d(model.coef_)[row]
    reference = None if noise is None else noise.reference
    columns = [each for each in zip(schema.parts, level_contrasts(schema, reference), strict=True) if each[0].name != constant]
    empties = _empties(model, schema, [contrasts for _, contrasts in columns], noise)
    released = released_mass(model)
    found: list[Effect] = []
    for part, contrasts in columns:
        effect = _effect(contrasts, weights[contrasts.features], noise, unit, empties)
        mass = None if noise is None else noise.mass(contrasts.features)
        if mass is None and released is not None:
            mass = released.diagonal[contrasts.features]
        effect = replace(effect, mass=_mass(contrasts, mass))
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
        if hasattr(model, "steps"):
            raise ValueError(
                "Expected a linear model, got a pipeline: give its last step, and the schema of its encoder, as in "
                "effects(pipeline[-1], pipeline[0].schema_)."
            )
        raise ValueError(f"Expected a linear model, got {type(model).__name__}: a network says nothing of one column alone.")
    table = np.atleast_2d(model.coef_)
    if table.shape[1] != schema.dimension:
        raise ValueError(
            f"Expected a model of the schema's {schema.dimension} features, got one of {table.shape[1]}. The schema of a fitted "
            "TableEncoder, curves included, is its schema_: pipeline[0].schema_ where it is the first step."
        )
    if not np.isfinite(table).all():
        raise ValueError("Expected finite coefficients: this training diverged, and the model says nothing.")
    known: list[Any] = list(getattr(model, "classes_", ()))
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
    return (0 if one else known.index(label)), (-1.0 if one and known and label == known[0] else 1.0)


@dataclass(frozen=True)
class _Empty:
    """What is known of a feature that maybe no record has: see `MayBeEmpty`."""

    reach: float | None = None
    held: bool = False


def _empties(model: Any, schema: Schema, columns: Sequence[LevelContrasts], noise: LevelNoise | None) -> dict[int, _Empty]:
    """What is known of each feature that maybe no record has, by its number. Features of pairs are left out."""
    features = {feature: contrasts for contrasts in columns for feature in _features_that_may_be_empty(contrasts)}
    if not features:
        return {}
    law, mass = WithoutRecords.of(model.trace_), released_mass(model)
    rough = model.objective_.roughness
    joined = set() if rough is None else {feature for pair in rough.neighbours for feature in pair}
    inside = unit_of_coefficients(model)
    unit = inside * unit_of_heights(model, schema) / schema.divisor
    reach = None if law is None else unit * law.reach(CHANCE / len(features))
    found: dict[int, _Empty] = {}
    for feature, contrasts in features.items():
        width = contrasts.features.stop - contrasts.features.start
        alone = np.eye(width)[[feature - contrasts.features.start]]
        held = mass is not None and bool(mass.present[feature])
        if noise is not None and (known := noise.present(contrasts.features)) is not None:
            held = bool(known[feature - contrasts.features.start])
        elif noise is not None and law is not None and feature not in joined:
            held |= bool(noise.deviations(alone, contrasts.features)[0] < _HELD * inside * law.deviation)
        found[feature] = _Empty(None if feature in joined else reach, held)
    return found


def _features_that_may_be_empty(contrasts: LevelContrasts) -> list[int]:
    if contrasts.sides is not None:
        return []
    found = [contrasts.features.start + int(place) for place in np.flatnonzero(contrasts.may_be_empty)]
    return [*found, contrasts.features.stop - 1] if contrasts.missing is not None else found


def _effect(
    contrasts: LevelContrasts, weights: Array, noise: LevelNoise | None, unit: float, empties: Mapping[int, _Empty]
) -> Effect:
    """An effect by the column's own weights, in the units of heights."""
    vectors = contrasts.vectors if contrasts.missing is None else np.vstack([contrasts.vectors, contrasts.missing])
    heights = vectors @ weights
    spread = None if noise is None else unit * _admitted(noise, vectors, contrasts)
    count, start = len(contrasts.places), contrasts.features.start
    without = -float(contrasts.average @ weights)
    levels: list[MayBeEmpty] = []
    for feature in _features_that_may_be_empty(contrasts):
        place = count if contrasts.missing is not None and feature == contrasts.features.stop - 1 else feature - start
        name = MISSING if place == count else str(contrasts.places[place])
        known = empties[feature]
        own = None if spread is None else float(spread[place])
        levels.append(MayBeEmpty(name, float(heights[place]), without, known.reach, own, known.held))
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


def _admitted(noise: LevelNoise, vectors: Array, contrasts: LevelContrasts) -> Array:
    """The standard deviations of these contrasts (k,). ValueError for what are none: they may come from anybody."""
    found = np.asarray(noise.deviations(vectors, contrasts.features), dtype=np.float64)
    if found.shape != (len(vectors),) or not (np.isfinite(found) & (found >= 0)).all():
        raise ValueError(
            f"Expected {len(vectors)} finite standard deviations of 0 or more for {contrasts.name!r} from {type(noise).__name__}"
            f", got {found.tolist() if found.ndim < 2 else found.shape}."
        )
    return found


def released_mass(model: Any) -> ReleasedMass | None:
    """How much records say of each parameter, as the model's training released it; None where it did not."""
    return ReleasedMass.of(model.trace_, model.objective_.dimension // model.objective_.outputs)


def _mass(contrasts: LevelContrasts, known: Array | None) -> Array | None:
    """(k,) How much records say at each place of a curve or of categories, of what is known (w,) of its features; None where
    nothing is, and of others."""
    width = contrasts.features.stop - contrasts.features.start - (contrasts.missing is not None)
    count = len(contrasts.places)
    if known is None or contrasts.sides is not None or width < 2:
        return None
    return np.maximum(known[np.arange(count) % width], 0.0)  # the end of a cycle is its start
