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

    def restarts(self, bands: int) -> bool:
        """Whether it is proved that a record moves no more in all where a run by a Toeplitz strategy of no negative entry and of
        so many bands is interrupted, and goes on with a later period, new places of the records and nothing kept."""
        return False

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

    def restarts(self, bands: int) -> bool:
        """Yes: a record is in one step, and the rows of its column before an interruption are a part of the column, so that they
        are no longer than it."""
        return True

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

    def restarts(self, bands: int) -> bool:
        """See `Toeplitz.restarts`: all that a record moves can begin with the first step of a period, in each part of the run."""
        return True

    def admits(self, pattern: tuple[int, ...]) -> bool:
        return len({step % self.period for step in pattern}) <= 1


@dataclass(frozen=True)
class Apart(Participation):
    """In at most `most` steps (None: in any number), each at least `least` after the one before, and in no two of one epoch of
    `period` steps. Exact where C has at most `least` bands; elsewhere the upper bound Σ_{i∈π} max_{π'∋i} Σ_{j∈π'} |(CᵀC)_ij|.

    To choose the steps of a largest Σ_{i,j∈π} |(CᵀC)_ij| one by one does not find it, for each step's part of the sum depends on
    all others: what such a programme finds can be less than three quarters of the truth.
    """

    least: int
    most: int | None = None
    period: int = 1

    def __post_init__(self) -> None:
        check.integer("least", self.least)
        check.integer("period", self.period)
        if self.most is not None:
            check.integer("most", self.most)

    @property
    def separation(self) -> int:
        return self.least

    def squared(self, products: Products, steps: int, bands: int) -> float:
        step = np.arange(steps)
        after = np.minimum(np.maximum(step + self.least, (step // self.period + 1) * self.period), steps)
        before = np.maximum(np.minimum(step - self.least, step // self.period * self.period - 1), -1)
        most = None if self.most is None or self.most * self.least >= steps else self.most
        reached = products(0)
        if bands > self.least:
            fewer = None if most is None else most - 1
            reached = reached + _of_others(products, after, before, fewer, self.least, min(bands, steps))
        return float(_best(reached[None], after, most)[-1, 0, 0])

    def restarts(self, bands: int) -> bool:
        """An interruption cuts each column of C at the end of the part of the run that its step is in. Where no two columns of a
        record have a row in common, the record moves all releases by the sum of the squared lengths of its cut columns. Its
        steps are in epochs of their own, in both parts, though two of them may be nearer than `least`. In the place of each take
        the first step of its epoch: a column of no fewer rows, and so no shorter. These first steps are `period` apart, and a
        record may be in all of them without an interruption. (With more bands a step soon after the interruption, and one late
        before it, would have to be moved apart, and others nearer to each other: nothing is proved of that.)"""
        return self.most is None and bands <= self.least <= self.period

    def admits(self, pattern: tuple[int, ...]) -> bool:
        apart = all(
            later - earlier >= self.least and later // self.period > earlier // self.period
            for earlier, later in itertools.pairwise(pattern)
        )
        return apart and (self.most is None or len(pattern) <= self.most)


_AT_ONCE = 1 << 22  # products of columns


def _of_others(products: Products, after: Array, before: Array, most: int | None, least: int, bands: int) -> Array:
    """(steps,) max_{π'∋i} Σ_{j∈π', j≠i} |(CᵀC)_ij| for every step i, with at most so many others. Steps that come next to a step
    are no earlier than `after`, or no later than `before` (steps,) say. Columns share no row with those `bands` away."""
    steps = len(after)
    found = np.zeros(steps)
    layers = 1 if most is None else most + 1
    many = max(1, min(bands, _AT_ONCE // (min(steps, 3 * bands) * layers)))
    for start in range(0, steps, many):
        mine = np.arange(start, min(steps, start + many))
        low, high = max(0, start - bands), min(steps, start + many + bands)
        shared = np.zeros((len(mine), high - low))  # row i: what its column shares with each
        for lag in range(least, bands):
            common = products(lag)
            ahead, behind = mine[mine + lag < steps], mine[mine >= lag]
            shared[ahead - start, ahead + lag - low] = common[ahead]
            shared[behind - start, behind - lag - low] = common[behind - lag]
        next_up = np.minimum(after, high) - low
        next_down = high - 1 - np.maximum(before, low - 1)  # counted from the last one
        upwards = _best(shared, next_up[low:high], most)
        downwards = _best(shared[:, ::-1], next_down[low:high][::-1], most)
        row = np.arange(len(mine))
        found[mine] = (upwards[:, next_up[mine], row] + downwards[::-1, next_down[mine], row]).max(axis=0)
    return found


def _best(weights: Array, after: Array, most: int | None) -> Array:
    """(most + 1, steps + 1, m) the largest sums of weights (m, steps), of up to so many steps from each one on, each no earlier
    than `after` (steps,) says of the one before it; None: (1, steps + 1, m), of any number."""
    rows, steps = weights.shape
    best = np.zeros((1 if most is None else most + 1, steps + 1, rows))
    some, fewer = (slice(None), slice(None)) if most is None else (slice(1, None), slice(-1))
    for step in reversed(range(steps)):
        best[some, step] = np.maximum(best[some, step + 1], best[fewer, after[step]] + weights[:, step])
    return best


def squared_sensitivity(products: Products, participation: Participation, steps: int, bands: int) -> float:
    """How far one record moves all releases together, squared, in units of the longest vector that it contributes to a step.
    Never too small."""
    return _ROUNDED * participation.squared(products, steps, bands)
