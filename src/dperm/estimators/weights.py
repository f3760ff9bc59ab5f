"""Weights of records: public ones of their classes, private ones of their own below a public bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._column import column, refuse_other_than_numbers
from dperm.privacy import Assumption

Array = NDArray[np.float64]


def admit_class_weight(given: Any) -> dict[str, float] | None:
    """Weights by the labels' texts, the largest 1. ValueError for what is no table of weights, also for "balanced"."""
    if given is None:
        return None
    if given == "balanced":
        raise ValueError('Expected class_weight as public numbers, got "balanced": that counts the labels, which is not private.')
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"Expected class_weight as weights by label, such as {{'no': 1, 'yes': 4}}, got {given!r}.")
    weights = {str(label): check.positive(f"class_weight of {label!r}", weight) for label, weight in given.items()}
    if len(weights) < len(given):
        raise ValueError(f"Expected class_weight with one weight a label, got {given!r}.")
    most = max(weights.values())
    return {label: weight / most for label, weight in weights.items()}


def weights_by_class(weights: dict[str, float], index: NDArray[np.integer], classes: NDArray[Any]) -> Array:
    """(n,) weights of records of the classes `index` (n,). ValueError unless each of `classes`, and nothing else, has one."""
    known = [str(label) for label in classes]
    if set(known) != set(weights):
        raise ValueError(f"Expected class_weight with one weight of each of the classes {known}, got those of {list(weights)}.")
    return np.array([weights[label] for label in known])[index]


def admit_weights(size: int, sample_weight: Any, most: float | None) -> Array:
    """(size,) weights in [0, 1] of records: each one's own, clipped to `most` and relative to it.

    ValueError for weights without a bound, a bound without weights, and weights below 0 or not finite.
    """
    if (sample_weight is None) != (most is None):
        raise ValueError(
            "Expected sample_weight in fit and max_sample_weight together: how much one record may count is public, how much "
            "each does is private."
        )
    weights = np.ones(size)
    if sample_weight is not None and most is not None:
        given = column("weights", sample_weight, size)
        refuse_other_than_numbers("weights", given)
        own = given.astype(np.float64)
        if not np.isfinite(own).all() or own.min(initial=0.0) < 0:
            raise ValueError("Expected sample_weight to be finite and at least 0.")
        weights = np.minimum(own / most, 1.0)
    return weights


def weight_assumptions(class_weight: dict[str, float] | None, most: float | None) -> list[Assumption]:
    """What a certificate says of weights."""
    said: list[Assumption] = []
    if class_weight is not None:
        told = ", ".join(f"{label}: {weight:.4g}" for label, weight in class_weight.items())
        said.append(Assumption(f"The weights of classes are public ({told}).", "caller", "stated", "class weights"))
    if most is not None:
        text = f"A record counts at most as much as a weight of {most:g}; what it counts is as private as it is."
        said.append(Assumption(text, "library", "enforced: larger weights are clipped", "record weights"))
    return said


def bounded(most: Any) -> float | None:
    """A public bound on weights. ValueError for anything but a finite number above 0."""
    if most is None:
        return None
    most = check.positive("max_sample_weight", most)
    if math.isinf(most):
        raise ValueError("Expected a finite max_sample_weight.")
    return most
