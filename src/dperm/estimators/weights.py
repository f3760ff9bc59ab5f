"""Weights of records: public ones of their classes, private ones of their own below a public bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.privacy import Assumption

__all__ = ["admit_class_weight", "admit_weights", "bounded", "refuse_strange_labels", "weight_assumptions"]

Array = NDArray[np.float64]


def admit_class_weight(given: Any) -> dict[str, float] | None:
    """Weights by the labels' texts, the largest 1. ValueError for what is no table of weights, also for "balanced"."""
    if given is None:
        return None
    if given == "balanced":
        raise ValueError('Expected class_weight as public numbers, got "balanced": that counts the labels, which is not private.')
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"Expected class_weight as weights by label, such as {{'no': 1, 'yes': 4}}, got {given!r}.")
    weights = {str(label): check.non_negative(f"class_weight of {label!r}", weight) for label, weight in given.items()}
    most = max(weights.values())
    if not most or len(weights) < len(given):
        raise ValueError(f"Expected class_weight with one weight a label, some above 0, got {given!r}.")
    return {label: weight / most for label, weight in weights.items()}


def refuse_strange_labels(class_weight: dict[str, float] | None, classes: NDArray[Any]) -> None:
    """ValueError for weights of what is no class: the others would be relative to them."""
    if strange := sorted(set(class_weight or ()) - {str(label) for label in classes}):
        raise ValueError(f"Expected class_weight to have weights of {list(map(str, classes))} alone, got one of {strange[0]!r}.")


def admit_weights(
    labels: NDArray[Any], class_weight: dict[str, float] | None, sample_weight: Any, most: float | None, size: int
) -> Array:
    """(size,) weights in [0, 1]: of each record's label times its own, longer ones clipped to `most`.

    ValueError for weights without a bound, a bound without weights, weights below 0 or not finite, and labels without a weight.
    """
    if (sample_weight is None) != (most is None):
        raise ValueError(
            "Expected sample_weight in fit and max_sample_weight together: how much one record may count is public, how much "
            "each does is private."
        )
    weights = np.ones(size)
    if sample_weight is not None and most is not None:
        own = np.asarray(sample_weight, dtype=np.float64)
        if own.shape != (size,):
            raise ValueError(f"Expected {size} weights, one a row, got shape {own.shape}.")
        if not np.isfinite(own).all() or own.min(initial=0.0) < 0:
            raise ValueError("Expected sample_weight to be finite and at least 0.")
        weights = np.minimum(own / most, 1.0)
    if class_weight is not None:
        known = [str(label) for label in labels]
        unweighted = sorted(set(known) - set(class_weight))
        if unweighted:
            raise ValueError(f"Expected class_weight to have a weight of each class, got none of {unweighted[:5]}.")
        weights = weights * np.array([class_weight[label] for label in known])
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
