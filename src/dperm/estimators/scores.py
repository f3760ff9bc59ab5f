"""Scores of rows in parts, as sums over the parts: what scikit-learn's metrics give of all rows, up to rounding."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import kl_div
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.utils.validation import check_array

from dperm._column import column
from dperm._types import Array
from dperm.distributed.sums import PartSums

Predict = Callable[[Any], NDArray[Any]]


# Classes


def accuracy_of_parts(predict: Predict, sums: PartSums) -> float:
    """The weight of the rows with the right label, relative to that of all."""
    right, weight = sums.of_rows(functools.partial(_right, predict), _both)
    return right / _some(weight)


def _right(predict: Predict, X: Any, y: Any, sample_weight: Any) -> tuple[float, float]:
    from sklearn.metrics import accuracy_score

    weights = _weights(sample_weight, X.shape[0])
    weight = float(weights.sum())
    truth = column("targets y", y, X.shape[0])
    counted = weights if weight else None  # scikit-learn refuses weights that are all 0
    right = accuracy_score(truth, predict(X), normalize=False, sample_weight=counted)
    return float(right) if weight else 0.0, weight


def _both(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return first[0] + second[0], first[1] + second[1]


# Means: R² and D² of divergences that the mean minimises

Divergence = Callable[[Any, Any], Any]


def squared_divergence(y: Any, mean: Any) -> Any:
    """Of R²."""
    return (y - mean) ** 2


def poisson_divergence(y: Any, mean: Any) -> Any:
    """Half the Poisson deviance. ValueError for counts below 0."""
    if np.any(np.asarray(y) < 0):
        raise ValueError("Expected counts >= 0, got negative ones.")
    return kl_div(y, mean)


@dataclass(frozen=True)
class _Explained:
    """Of some rows: how many, their weight, their weighted mean, and the divergence from the mean and from predictions."""

    rows: int
    weight: float
    mean: float
    spread: float
    error: float


def share_explained(predict: Predict, sums: PartSums, divergence: Divergence) -> float:
    """1 − Σ d(y, ŷ) / Σ d(y, ȳ) for a Bregman divergence d."""
    found = sums.of_rows(functools.partial(_explained, predict, divergence), functools.partial(_joined, divergence))
    return _share(found.rows, _some(found.weight), found.error, found.spread)


def _explained(predict: Predict, divergence: Divergence, X: Any, y: Any, sample_weight: Any) -> _Explained:
    y, weights, predicted = _targets(y), _weights(sample_weight, X.shape[0]), predict(X)
    there = weights > 0  # a divergence of others may be infinite
    rows, y, weights, predicted = len(y), y[there], weights[there], predicted[there]
    weight = float(weights.sum())
    mean = float(weights @ y) / weight if weight else 0.0
    spread, error = (float(weights @ divergence(y, point)) for point in (mean, predicted))
    return _Explained(rows, weight, mean, spread, error)


def _joined(divergence: Divergence, first: _Explained, second: _Explained) -> _Explained:
    """Spreads add up to that about the common mean with those of the means (Banerjee et al. 2005, "Clustering with Bregman
    divergences", theorem 3); of squares this is Chan's formula."""
    weight = first.weight + second.weight
    mean = first.mean + (second.mean - first.mean) * (second.weight / weight) if weight else 0.0
    between = sum(part.weight * float(divergence(part.mean, mean)) for part in (first, second))
    spread = first.spread + second.spread + between
    return _Explained(first.rows + second.rows, weight, mean, spread, first.error + second.error)


# Quantiles: D² of the pinball loss

_DIGIT = 16  # bits of a target's place in order that are looked at in one pass


def pinball_of_parts(predict: Predict, sums: PartSums, quantile: float) -> float:
    """1 − Σ ρ(y − ŷ) / Σ ρ(y − q) for the pinball loss ρ and a quantile q of the targets. These are read six times, X once."""
    rows, weight, error = sums.of_rows(functools.partial(_pinball_of_rows, predict, quantile), _all_three)
    _some(weight)
    best = _quantile(sums, quantile * weight)
    spread = sums.of_targets(functools.partial(_pinball_of_targets, quantile, best), float.__add__)
    return _share(rows, weight, error, spread)


def _pinball_of_rows(predict: Predict, quantile: float, X: Any, y: Any, sample_weight: Any) -> tuple[int, float, float]:
    weights = _weights(sample_weight, X.shape[0])
    return len(weights), float(weights.sum()), float(weights @ _pinball(quantile, _targets(y) - predict(X)))


def _all_three(first: tuple[int, float, float], second: tuple[int, float, float]) -> tuple[int, float, float]:
    return first[0] + second[0], first[1] + second[1], first[2] + second[2]


def _pinball_of_targets(quantile: float, best: float, y: Any, sample_weight: Any) -> float:
    return float(_weights(sample_weight, len(y)) @ _pinball(quantile, _targets(y) - best))


def _pinball(quantile: float, errors: Array) -> Array:
    return np.where(errors > 0, quantile, quantile - 1) * errors


def _quantile(sums: PartSums, below: float) -> float:
    """The first target in order up to which targets weigh as much as `below`; found digit by digit of its place, so that no
    process has them all."""
    place = 0
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        weights = sums.of_targets(functools.partial(_weights_by_digit, place, shift), np.add)
        upto = np.cumsum(weights)
        there = np.flatnonzero(weights)
        digit = int(np.clip(np.searchsorted(upto, below), there[0], there[-1]))  # rounding may point where nobody is
        below -= float(upto[digit] - weights[digit])
        place = place << _DIGIT | digit
    return float(_at_place(np.array([place], dtype=np.uint64))[0])


def _weights_by_digit(place: int, shift: int, y: Any, sample_weight: Any) -> Array:
    """The weight of targets whose place begins with `place`, by the digit that follows."""
    places = _place(_targets(y)) >> np.uint64(shift)
    within = (places >> np.uint64(_DIGIT)) == np.uint64(place)
    digits = (places[within] & np.uint64(2**_DIGIT - 1)).astype(np.intp)
    weights = _weights(sample_weight, len(places))[within]
    return np.bincount(digits, weights, 2**_DIGIT).astype(np.float64)  # whole numbers where there is nobody


_SIGN = np.uint64(1 << 63)


def _place(numbers: Array) -> NDArray[np.uint64]:
    """Integers in the order of the numbers."""
    bits = numbers.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _at_place(places: NDArray[np.uint64]) -> Array:
    return np.where(places & _SIGN, places ^ _SIGN, ~places).view(np.float64)


# What all of them need


def _targets(y: Any) -> Array:
    """ValueError for what is no column of finite numbers."""
    return np.ascontiguousarray(check_array(column("targets y", y), ensure_2d=False), dtype=np.float64)


def _weights(sample_weight: Any, size: int) -> Array:
    if sample_weight is None:
        return np.ones(size)
    weights = _targets(column("weights", sample_weight, size))
    if (weights < 0).any():
        raise ValueError("Expected sample_weight to be finite and at least 0.")
    return weights


def _some(weight: float) -> float:
    if not weight > 0:
        raise ValueError("Expected weights with a sum above 0, got 0.")
    return weight


def _share(rows: int, weight: float, error: float, spread: float) -> float:
    """As scikit-learn has it where targets are all the same, or one."""
    if rows < 2:
        warnings.warn(
            "A share of what is explained is not defined with less than two rows.", UndefinedMetricWarning, stacklevel=4
        )
        return float("nan")
    if not spread:
        return 0.0 if error else 1.0
    return 1.0 - error / spread
