"""Which sums of a schema's features are the same for rows: directions in which no row, or hardly any, has a component."""

from __future__ import annotations

import numpy as np

from dperm._types import Array
from dperm.data.schema.column_pairs import Pair
from dperm.data.schema.columns import Column
from dperm.data.schema.schema import Schema


def constant_sums(schema: Schema, intercept_scale: float = 0.0) -> Array:
    """Find, by the schema alone, directions u with xᵀu = 0 for every row x that it encodes, but for rows with an unknown category
    that is ignored, or with a missing one that has no feature of its own.

    The features of a category add up to 1 in each row that has one of them, and so do the knots of a curve. Of a pair of columns
    the products with one category's feature add up to that feature.

    Parameters
    ----------
    schema : Schema
        How rows are encoded.
    intercept_scale : float
        The constant feature that comes last, after those of the schema; 0 where there is none.

    Returns
    -------
    (k, p) array
        One direction a row, p being the number of features, the constant one included.
    """
    size = schema.dimension + (intercept_scale > 0)
    places: dict[str, slice] = {}
    at = 0
    for part in schema.parts:
        places[part.name] = slice(at, at + part.width(schema.encoding))
        at = places[part.name].stop
    constant = [part for part in schema.parts if _adds_up(part, schema)]
    found: list[Array] = []
    for place, part in enumerate(constant):
        direction = np.zeros(size)
        direction[places[part.name]] = 1.0
        if intercept_scale:
            direction[-1] = -1.0 / schema.divisor / intercept_scale
        elif place:
            direction[places[constant[0].name]] = -1.0
        if intercept_scale or place:
            found.append(direction)
    for pair in (part for part in schema.parts if isinstance(part, Pair)):
        found.extend(_margins(pair, schema, places, size))
    return np.array(found).reshape(len(found), size)


def _adds_up(part: Column | Pair, schema: Schema) -> bool:
    """Whether its features add up to the same for every row whose values are known."""
    if isinstance(part, Pair):
        return _adds_up(part.first, schema) and _adds_up(part.second, schema)
    return part.type != "number" or schema.curves > 0


def _margins(pair: Pair, schema: Schema, places: dict[str, slice], size: int) -> list[Array]:
    """Directions in which a pair's products with one category's feature are beside that feature."""
    inner = pair.encoding(schema.encoding)
    shape = pair.first.width(inner), pair.second.width(inner)
    cells = np.arange(places[pair.name].start, places[pair.name].stop).reshape(shape)
    found: list[Array] = []
    for column, other, table in ((pair.first, pair.second, cells), (pair.second, pair.first, cells.T)):
        if column.type != "category" or not _adds_up(other, schema):
            continue
        for level, products in enumerate(table):
            direction = np.zeros(size)
            direction[products] = 1.0
            direction[places[column.name].start + level] = -1.0
            found.append(direction)
    return found
