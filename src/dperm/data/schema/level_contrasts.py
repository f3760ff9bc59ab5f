"""How the heights of a column's levels are made of a linear model's coefficients: contrasts, by the schema alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array
from dperm.data.schema.column_pairs import Pair
from dperm.data.schema.columns import OTHER, Column, Encoding
from dperm.data.schema.schema import Schema

MISSING = "missing"


@dataclass(frozen=True)
class LevelContrasts:
    """The levels of a column, and for each the vector v of which vᵀw, w the model's coefficients of `features`, is its height.

    A height is what the level adds to a prediction beyond the average of the levels of its column. In that are, all alike, the
    knots of a number, the ends of a straight line, or the categories that the schema names. "(other)" and "missing" are
    not in it: maybe no record has them, and their noise would then be in the heights of all others. Of the cells of a pair of
    columns those are left out of the average that belong to such a level of either column.

    Attributes
    ----------
    name : str
        The column's, or the pair's.
    features : slice
        The features that are made of it, w of them among those of the schema.
    places : tuple
        Its levels: numbers, categories, or of a pair the features' names.
    vectors : (k, w)
        The contrast of each place, already divided by what features are divided by (`Schema.divisor`).
    average : (w,)
        The average that each contrast is compared with, as its weights of the features: −averageᵀw is the height that a level has
        where its coefficient is 0.
    may_be_empty : (k,) of bool
        Which places maybe no record has.
    missing : (w,) or None
        The contrast of a missing value, where the model has a feature for it. Maybe no record has it.
    sides : pair of lists of str or None
        The names of the features of the first column and of the second, of a pair.
    """

    name: str
    features: slice
    places: tuple[float, ...] | tuple[str, ...]
    vectors: Array
    average: Array
    may_be_empty: NDArray[np.bool_]
    missing: Array | None = None
    sides: tuple[list[str], list[str]] | None = None

    def compared_with(self, average: Array) -> LevelContrasts:
        """The same levels beside another average (w,)."""
        moved = self.average - average
        missing = None if self.missing is None else self.missing + moved
        return replace(self, vectors=self.vectors + moved, average=average, missing=missing)


def level_contrasts(schema: Schema, reference: Callable[[slice], Array | None] | None = None) -> Iterator[LevelContrasts]:
    """Yield the levels of each column that features are made of, in the schema's order, then those of its pairs.

    The vectors of two levels may be subtracted: v₁ − v₂ is the contrast between them. `reference(features)` gives the
    weights (w,) of a column's features in another average, which add up to 1, or None. A straight line has no levels to be
    averaged, and keeps its middle.
    """
    at, encoding = 0, schema.encoding
    for part in schema.parts:
        features = slice(at, at + part.width(encoding))
        at = features.stop
        made = (_of_pair if isinstance(part, Pair) else _of_column)(part, encoding, features)  # pyright: ignore[reportArgumentType]
        weights = None if reference is None else reference(features)
        if weights is not None and (schema.curves or (isinstance(part, Column) and part.type == "category")):
            made = made.compared_with(weights)
        missing = None if made.missing is None else made.missing / schema.divisor
        yield replace(made, vectors=made.vectors / schema.divisor, average=made.average / schema.divisor, missing=missing)


def _of_column(column: Column, encoding: Encoding, features: slice) -> LevelContrasts:
    identity = np.eye(column.width(encoding))
    own = identity[: len(identity) - encoding.separate]
    levels = own
    if column.type != "number":
        places = (*column.categories, *((OTHER,) if column.other else ()))
        average = own[: len(column.categories)].mean(axis=0)
    elif not encoding.curves:
        places, levels, average = column.ends, np.stack([0 * own[0], own[0]]), own[0] / 2
    else:
        places, average = tuple(column.knots(encoding.curves).tolist()), own.mean(axis=0)
        if column.curve_scale == "cyclic":  # the end is the start
            places, levels = (*places, column.ends[1]), np.concatenate([own, own[:1]])
    may_be_empty = np.array([column.other and place == OTHER for place in places])
    missing = identity[-1] - average if encoding.separate else None
    return LevelContrasts(column.name, features, places, levels - average, average, may_be_empty, missing)


def _of_pair(pair: Pair, encoding: Encoding, features: slice) -> LevelContrasts:
    inner = pair.encoding(encoding)
    first, second = (_doubtful(column, inner) for column in (pair.first, pair.second))
    may_be_empty = (first[:, None] | second[None, :]).ravel()
    cells = np.eye(len(may_be_empty))
    average = cells[~may_be_empty].mean(axis=0)
    places, sides = tuple(pair.features(encoding)), pair.sides(encoding)
    return LevelContrasts(pair.name, features, places, cells - average, average, may_be_empty, sides=sides)


def _doubtful(column: Column, encoding: Encoding) -> NDArray[np.bool_]:
    """(width,) Which features of a column maybe no record has."""
    found = np.zeros(column.width(encoding), dtype=bool)
    if encoding.separate:
        found[-1] = True
    if column.type == "category" and column.other:
        found[len(column.categories)] = True
    return found
