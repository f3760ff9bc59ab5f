"""A penalty on roughness: neighbouring features' weights are drawn together, whatever the records are."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dperm import _validate as check
from dperm._types import Array

#: Pairs of features that are next to each other on a curve, by their numbers.
Neighbours = tuple[tuple[int, int], ...]

_MOST_WEIGHT = 1e6


def admit_neighbours(given: Any, features: int) -> Neighbours:
    """Pairs of different features below `features`, each pair once. ValueError for anything else."""
    try:
        pairs = tuple((int(first), int(second)) for first, second in given)
        whole = all(first == pair[0] and second == pair[1] for (first, second), pair in zip(pairs, given, strict=True))
    except (TypeError, ValueError):
        raise ValueError(f"Expected neighbours as pairs (i, j) of features' numbers, got {given!r}.") from None
    for pair, stated in zip(pairs, given, strict=True):
        named = whole and not any(isinstance(end, bool | np.bool_) for end in stated)
        if not (named and min(pair) >= 0 and max(pair) < features and pair[0] != pair[1]):
            numbers = f"0 to {features - 1}"
            raise ValueError(f"Expected pairs of different features among {numbers} as neighbours, got {tuple(stated)!r}.")
    if len({frozenset(pair) for pair in pairs}) < len(pairs):
        raise ValueError("Expected each pair of neighbours once.")
    return pairs


@dataclass(frozen=True)
class Roughness:
    """θᵀRθ = weight·Σ (θ_i − θ_j)² over pairs of neighbours: R is `weight` times their graph's Laplacian.

    An objective counts it beside ‖θ‖²: its regulariser is (Λ/2)(‖θ‖² + θᵀRθ). R is public and not negative, so that what is
    known of (Λ/2)‖θ‖² holds with it: strong convexity Λ, and what a mechanism costs (docs/objective-perturbation.md).
    """

    neighbours: Neighbours
    weight: float = 1.0

    def __post_init__(self) -> None:
        highest = max((max(pair) for pair in self.neighbours), default=0)
        object.__setattr__(self, "neighbours", admit_neighbours(self.neighbours, highest + 1))
        # a number of another kind would make R by its own arithmetic: that of truth values, or of few bits
        weight = check.positive("the roughness penalty's weight", self.weight)
        if isinstance(self.weight, bool | np.bool_) or not weight <= _MOST_WEIGHT:
            raise ValueError(f"Expected a weight of the roughness penalty up to {_MOST_WEIGHT:g}, got {self.weight!r}.")
        object.__setattr__(self, "weight", weight)

    @functools.cached_property
    def _degree(self) -> int:
        return int(np.bincount(np.ravel(self.neighbours)).max()) if self.neighbours else 0

    @property
    def bound(self) -> float:
        """Of R's largest eigenvalue: twice the most neighbours that a feature has, times the weight (Gershgorin)."""
        return 2.0 * self._degree * self.weight

    @property
    def rounding(self) -> float:
        """Rθ as it is computed is within 2⁻⁵¹·rounding·‖θ‖ of the true one: a sum of so many differences."""
        return self.bound * (1 + self._degree)

    def matrix(self, features: int) -> Any:
        """R (features, features), CSR."""
        return _laplacian(self, features)

    def times(self, weights: Array) -> Array:
        """R·weights, of features along the last axis but one: (…, d, K)."""
        flat = np.moveaxis(weights, -2, 0)
        found = self.matrix(len(flat)) @ flat.reshape(len(flat), -1)
        return np.moveaxis(found.reshape(flat.shape), 0, -2)


@functools.lru_cache(maxsize=32)
def _laplacian(roughness: Roughness, features: int) -> Any:
    first, second = np.array(roughness.neighbours, dtype=np.intp).reshape(-1, 2).T
    one_end, other_end = np.concatenate([first, second]), np.concatenate([second, first])
    weights = np.full(len(one_end), roughness.weight, dtype=np.float64)
    shape = (features, features)
    diagonal = sp.coo_array((weights, (one_end, one_end)), shape=shape)
    return sp.csr_array(diagonal - sp.coo_array((weights, (one_end, other_end)), shape=shape))
