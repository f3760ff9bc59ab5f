"""Scores of a linear model as probabilities of its classes."""

from __future__ import annotations

import numpy as np

from dperm._types import Array
from dperm.objectives.linear import LinearObjective


def class_probabilities(objective: LinearObjective, scores: Array) -> Array:
    """Probabilities (n, K) by the loss's link of scores (n,) of two classes, or (n, K) of more.

    Scores of one softmax model have them as they are; those of one model a class are normalised, and alike where all are 0.
    """
    chances = objective.loss.link.inverse(scores)
    if chances.ndim == 1:
        return np.column_stack([1 - chances, chances])
    if objective.outputs > 1:
        return chances
    total = chances.sum(axis=1, keepdims=True)
    return np.where(total > 0, chances / np.where(total > 0, total, 1.0), 1.0 / chances.shape[1])
