"""What every look along ε starts from: a smooth problem, and directions of the noise that stay the same at every ε."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dperm import _validate as check
from dperm.objectives import LinearObjective

Array = NDArray[np.float64]


def refuse_rough(objective: LinearObjective) -> None:
    """ValueError for an objective whose minimiser is not smooth in ε."""
    if objective.radius is not None:
        raise ValueError("Expected an objective without a ball: what a ball holds is not smooth in epsilon.")
    if not objective.facts.smoothness < math.inf or objective.outputs > 1:
        raise ValueError(f"Expected a smooth loss of one output, got {objective.loss.name}.")


def admit_directions(
    objective: LinearObjective, draws: int, directions: ArrayLike | None, random_state: int | np.random.Generator | None
) -> Array:
    """(m, p): those that are given, or standard normals. ValueError where their shape does not fit."""
    if directions is None:
        shape = check.integer("draws", draws), objective.dimension
        return np.random.default_rng(random_state).standard_normal(shape)
    found = np.atleast_2d(np.asarray(directions, dtype=np.float64))
    if found.ndim != 2 or found.shape[1] != objective.dimension or not len(found):
        raise ValueError(f"Expected directions of shape (m, {objective.dimension}), got {np.shape(directions)}.")
    return found
