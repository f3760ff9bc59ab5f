"""Sums of weighted outer products Σ w·xxᵀ of records' rows: made exactly, released once, and read as a symmetric matrix.

A record moves such a sum by w·xxᵀ, of Frobenius norm w·‖x‖² ≤ most·B². Under replace-one it moves by at most √2 times that, since
outer products have no negative inner product. Entries above the diagonal are released once, times √2, so that the vector that is
released is as long as the matrix. The noise of the matrix is then symmetric: of standard deviation τ on the diagonal, and τ/√2
off it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from dperm._types import Array
from dperm.objectives import Batch, LinearObjective, Records
from dperm.objectives.parts import exact_total
from dperm.privacy import Relation
from dperm.release import Channel, GaussianNoise
from dperm.release.grid import Grid, power_below

# Binary digits of rows in a sum: products of two have 40, and those of EXACT_ROWS = 2¹³ rows add up to at most 2⁵³.
_DIGITS = 20

#: whose matrix of p × p is released
MOST_PARAMETERS = 2000

#: weights (b,) in [0, 1] of a batch's rows
Weights = Callable[[Batch], Array]


def sensitivity(objective: LinearObjective, most: float = 1.0) -> float:
    """How far one record moves most·Σ w·xxᵀ in the Frobenius norm, for weights in [0, 1]."""
    return most * objective.row_norm**2 * (math.sqrt(2) if objective.relation is Relation.REPLACE_ONE else 1.0)


def refuse_many_parameters(objective: LinearObjective) -> None:
    """ValueError for more parameters than a matrix is released of."""
    if objective.dimension > MOST_PARAMETERS:
        raise ValueError(
            f"Expected at most {MOST_PARAMETERS:,} parameters, whose Gram matrix is released, got {objective.dimension:,}."
        )


def released_matrix(
    objective: LinearObjective,
    records: Records,
    channel: Channel,
    weights: Weights,
    *,
    most: float = 1.0,
    noise_multiplier: float,
    what: str,
) -> Array:
    """most·Σ w·xxᵀ (p, p) with noise of `noise_multiplier` sensitivities, symmetric."""
    moved = sensitivity(objective, most)
    triangle = upper_triangle(objective, records, weights, most)
    # Below this both roundings of a number move it by half a step each.
    largest = Grid.of(moved, noise_multiplier * moved, len(triangle)).largest / 2
    noise = GaussianNoise(moved, noise_multiplier, what=what)
    return symmetric(np.asarray(channel.release(np.clip(triangle, -largest, largest), noise)), objective.dimension)


def upper_triangle(objective: LinearObjective, records: Records, weights: Weights, most: float = 1.0) -> Array:
    """(p(p + 1)/2,) upper triangle of most·Σ w·xxᵀ, times √2 off the diagonal. Rows are truncated to 20 digits of their bound, so
    that sums are exact and no row becomes longer; the sum is rounded to a double, and by its factor once more."""
    unit = 2 * power_below(objective.row_norm) * 2.0**-_DIGITS  # no row is longer than 2²⁰ of them
    matrix = exact_total(records, functools.partial(_products, objective, unit, weights)).value()
    if matrix is None:
        matrix = np.zeros((objective.dimension,) * 2)
    matrix = matrix * unit**2
    factors = np.full(matrix.shape, most * math.sqrt(2))
    np.fill_diagonal(factors, most)
    return (matrix * factors)[np.triu_indices(len(matrix))]


def symmetric(triangle: Array, dimension: int) -> Array:
    """The matrix (p, p) of an upper triangle as `upper_triangle` has it."""
    matrix = np.zeros((dimension, dimension))
    matrix[np.triu_indices(dimension)] = triangle
    matrix = (matrix + matrix.T) / math.sqrt(2)  # off the diagonal each entry was multiplied by √2
    np.fill_diagonal(matrix, np.diagonal(matrix) / math.sqrt(2))
    return matrix


def _products(objective: LinearObjective, unit: float, weights: Weights, batch: Batch) -> Array:
    """(p, p) Σ w·xxᵀ of a batch, in squares of `unit`. What is no number weighs 0."""
    given = weights(batch)
    roots = np.sqrt(batch.counted(np.fmin(np.fmax(given, 0.0), 1.0)))  # a person's rows count by their shares
    scaled = batch.units / unit * roots
    constant = np.trunc(objective.intercept_scale / unit * roots)
    rows: Any
    if sp.issparse(batch.rows):
        rows = batch.rows.multiply(scaled[:, None]).tocsr()
        rows.data = np.trunc(rows.data)
        product = (rows.T @ rows).toarray()
    else:
        rows = np.trunc(batch.rows * scaled[:, None])
        product = rows.T @ rows
    if objective.intercept_scale:
        cross = np.asarray(rows.T @ constant).ravel()
        product = np.block([[product, cross[:, None]], [cross[None], np.array([[constant @ constant]])]])
    return product
