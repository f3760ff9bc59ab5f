"""In which steps one record may take part, and how far it then moves all releases of a run together.

With a strategy C, a record that contributes vectors u_i of at most unit length in the steps i of a set π moves the releases C·G
by Σ_i C[:, i]·u_i in each coordinate: a squared length of Σ_{i,j∈π} (CᵀC)_ij ⟨u_i, u_j⟩. As |⟨u_i, u_j⟩| ≤ 1, that is at most
Σ_{i,j∈π} |(CᵀC)_ij|, and reaches it where CᵀC has no negative entry in π (all u_i equal). Where the columns of π have no row in
common, it is the sum of their squared lengths. Charged is Σ_{i,j∈π} (|C|ᵀ|C|)_ij, no less: noise is cut as it is kept, which may
take from single entries of C (see `Strategy.products`).

Sources: Choquette-Choo, McMahan, Rush, Thakurta 2023, "Multi-epoch matrix factorization mechanisms", Theorem 3.1 and Corollary;
Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", Section 3.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dperm import _validate as check
from dperm._types import Array

#: (steps − lag,) the inner products of column i of a strategy, its entries taken by size, with column i + lag, for every i.
Products = Callable[[int], Array]

_NEVER = 1 << 62
_ROUNDED = 1 + 1e-12  # sums of up to a hundred thousand squares of doubles


@dataclass(frozen=True)
class Participation(ABC):
    """The sets π of steps in which one record may take part, of those that are charged together."""

    @property
    @abstractmethod
    def separation(self) -> int:
        """The least number of steps between two in which a record takes part."""

    @abstractmethod
    def squared(self, products: Products, steps: int, bands: int) -> float:
        """An upper bound on the largest squared movement. `products` are those of the strategy's columns, which are zero from lag
        `bands` on."""

    def rows(self, steps: int, bands: int) -> int:
        """How many releases a record may move."""
        return steps

    @abstractmethod
    def admits(self, pattern: tuple[int, ...]) -> bool:
        """Whether a record may take part in these steps, in rising order, and in no others."""


@dataclass(frozen=True)
class Once(Participation):
    """In one step, or in none; `within`: in one of those that are charged together, and again as many steps later at the
    earliest, so that strategies of more bands are refused. Exact."""

    within: int | None = None

    @property
    def separation(self) -> int:
        return self.within or _NEVER

    def squared(self, products: Products, steps: int, bands: int) -> float:
        if bands > self.separation:
            raise ValueError(f"Expected a strategy of at most {self.within} bands with as many groups of records, got {bands}.")
        return float(products(0).max())

    def rows(self, steps: int, bands: int) -> int:
        return min(bands, steps)

    def admits(self, pattern: tuple[int, ...]) -> bool:
        return len(pattern) <= 1


@dataclass(frozen=True)
class Periodic(Participation):
    """In some of the steps i, i + period, i + 2·period, … of one i. Exact where C has no negative entries, or fewer bands
    than the period has steps; an upper bound elsewhere."""

    period: int

    def __post_init__(self) -> None:
        check.integer("period", self.period)

    @property
    def separation(self) -> int:
        return self.period

    def squared(self, products: Products, steps: int, bands: int) -> float:
        period = self.period
        total = np.bincount(np.arange(steps) % period, products(0))
        for lag in range(period, min(bands, steps), period):
            weights = 2 * np.abs(products(lag))
            total += np.bincount(np.arange(len(weights)) % period, weights, minlength=len(total))
        return float(total.max())

    def admits(self, pattern: tuple[int, ...]) -> bool:
        return len({step % self.period for step in pattern}) <= 1


@dataclass(frozen=True)
class Apart(Participation):
    """In at most `most` steps, each at least `least` after the one before. Exact where C has at most `least` bands; elsewhere the
    upper bound Σ_{i∈π} max_{π'∋i} Σ_{j∈π'} |(CᵀC)_ij|.

    To choose the steps of a largest Σ_{i,j∈π} |(CᵀC)_ij| one by one does not find it, for each step's part of the sum depends on
    all others: what such a programme finds can be less than three quarters of the truth.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        check.integer("least", self.least)
        check.integer("most", self.most)

    @property
    def separation(self) -> int:
        return self.least

    def squared(self, products: Products, steps: int, bands: int) -> float:
        own = products(0)
        most = min(self.most, -(-steps // self.least))
        reached = own.copy()
        if bands > self.least and most > 1:
            gram = np.zeros((steps, steps))  # row i: what column i shares with each
            for lag in range(self.least, min(bands, steps)):
                shared = np.abs(products(lag))
                first = np.arange(steps - lag)
                gram[first, first + lag] = gram[first + lag, first] = shared
            after = _best(gram, self.least, most - 1)  # (picks, steps + 1, steps): the best of the steps from each on
            before = _best(gram[:, ::-1], self.least, most - 1)
            for step in range(steps):
                later, earlier = min(steps, step + self.least), min(steps, steps - 1 - step + self.least)
                reached[step] += max(before[count, earlier, step] + after[most - 1 - count, later, step] for count in range(most))
        return float(_best(reached[None], self.least, most)[most, 0, 0])

    def admits(self, pattern: tuple[int, ...]) -> bool:
        apart = all(later - earlier >= self.least for earlier, later in itertools.pairwise(pattern))
        return apart and len(pattern) <= self.most


def _best(weights: Array, least: int, most: int) -> Array:
    """(most + 1, steps + 1, m) the largest sums of weights (m, steps), of up to so many steps from each one on, `least` apart."""
    rows, steps = weights.shape
    best = np.zeros((most + 1, steps + 1, rows))
    for step in reversed(range(steps)):
        after = min(steps, step + least)
        best[1:, step] = np.maximum(best[1:, step + 1], best[:-1, after] + weights[:, step])
    return best


def squared_sensitivity(products: Products, participation: Participation, steps: int, bands: int) -> float:
    """How far one record moves all releases together, squared, in units of the longest vector that it contributes to a step.
    Never too small."""
    return _ROUNDED * participation.squared(products, steps, bands)
