"""Random allocation: each record joins one of t steps, or k of them, drawn uniformly, and no other.

Theorem. Let a step release Σ of bounded vectors with Gaussian noise of multiplier σ, steps chosen by what earlier ones gave.
With s = 1/σ and x_1, …, x_t independent standard normals, U = (1/t) Σ exp(s·x_i − s²/2) dominates all t steps together:

    δ(ε) ≤ E(U − e^ε)₊ for a data set with the record against the one without,  δ(ε) ≤ E(1 − e^ε·U)₊ the other way,

with equality for a record whose vector is as long as it may be and known in every step.

Proof. Other records' places are the same on both sides: hold them. Without the record, step i's noise along the record's vector,
whose length is s_i ≤ s in units of the noise, is a standard normal x_i whatever came before; so the likelihood ratio of all
outputs is (1/t) Σ exp(s_i·x_i − s_i²/2), s_i known once the first i − 1 outputs are. Both δ are means of convex functions of this
ratio, over outputs without the record. Lognormals of mean 1 rise with s_i in the convex order, and a sum over the steps to come
is a convex function of the sum so far: replace s_i by s, from the last step to the first. ∎  (Chua and others 2025 and Feldman &
Shenfeld 2025 have the same pair.)

Corollary. Where a record joins k of t steps, a uniformly drawn set of k, all steps are dominated by the composition of k random
allocations, one in each of k blocks of steps that have ⌊t/k⌋ or ⌈t/k⌉ steps and t in all.

Proof. Put the steps in a uniformly drawn order, cut it into such blocks, and draw one step of each. The set that is drawn has the
same law whatever the steps are called: it is uniform. Tell also which blocks they were: drawn without looking at the data, this
only helps to tell neighbours apart. Given them, the likelihood ratio of all outputs is the product over blocks b of
(1/|b|) Σ_{i∈b} exp(s_i·x_i − s_i²/2), however blocks take turns. It is linear in each exponential, so that s_i can be replaced by
s as above: what is left is the product of k independent U. ∎  (Feldman & Shenfeld 2025 have k blocks of ⌊t/k⌋ steps; blocks of
all t steps cost less.)

On a grid of ln U every value is split between its neighbours so that the mean stays: convex functions can only rise, and the
error is of second order. A sum of t lognormals is made by the binary digits of t: of m there are made 2m, and one is added where
the digit is 1. Grids become finer as sums become closer to their mean.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array
from dperm.privacy.accountants.loss_bound import log_normal_mass

_GRID = 0.03  # of the standard deviation of U: its variance grows by about a thousandth
_CUT = 1e-30  # mass that may be cut off at one end of a sum
_REACH = 12.0  # standard deviations of ln of one lognormal; beyond lies less than _CUT
_MOST_NOISE = 1e6  # more is taken for as much
_MOST_POINTS = 400  # of the grid, in units of _GRID: 13,000
_COARSER = 3  # at most, halvings of its grid that one lognormal may do without where it joins a sum of many
LEAST_NOISE = 0.05  # with less, losses of one step are beyond what is composed


@dataclass(frozen=True, eq=False)
class Ratio:
    """A positive variable: `mass` (k,) at e^{h·(start + 0, 1, …)}/parts, and what was cut off its ends, at most."""

    mass: Array
    start: int
    h: float
    parts: int
    lost: float

    @property
    def losses(self) -> Array:
        """Logarithms of its values."""
        return self.h * np.arange(self.start, self.start + self.mass.size, dtype=np.float64) - math.log(self.parts)

    @property
    def support(self) -> tuple[float, float]:
        losses = self.losses
        return float(losses[0]), float(losses[-1])

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-masses of losses in (edges[i], edges[i+1]]; see `dperm.privacy.accountants.dominating_pairs.LossPair`."""
        losses = self.losses
        inside = losses <= edges[-1]
        losses, mass = np.maximum(losses[inside], edges[0]), self.mass[inside]
        cell = np.maximum(np.searchsorted(edges, losses, side="left") - 1, 0)
        p, q = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        np.add.at(p, cell, mass * np.exp(losses))
        np.add.at(q, cell, mass)
        return p, q


def _lognormal(s: float, h: float) -> Ratio:
    reach = _REACH * s + s * s / 2
    start, stop = math.floor(-reach / h), math.ceil(reach / h)
    edges = h * np.arange(start, stop + 1, dtype=np.float64)
    x: Array = edges / s + s / 2
    q = np.exp(log_normal_mass(x[:-1], x[1:]))
    mean = np.exp(log_normal_mass(x[:-1] - s, x[1:] - s) - edges[:-1])  # in units of the lower edge
    upper = np.clip((mean - q) / math.expm1(h), 0.0, q)
    mass = np.zeros(edges.size)
    mass[1:] += upper
    mass[:-1] += q - upper
    return Ratio(mass, start, h, 1, _CUT)


def _doubled(ratio: Ratio, h: float) -> Ratio:
    """The sum of two independent ones, on a grid h: that of `ratio`, or one that is a power of 2 times as fine."""
    finer = round(ratio.h / h)
    mass, size = ratio.mass, ratio.mass.size
    cells, shares = _lifts(ratio.h * np.arange(size, dtype=np.float64), h)
    least = int(cells[0])
    total = np.zeros(finer * (size - 1) + 2)
    for d in range(size):  # e^a + e^{a−d} is e^a·(1 + e^{−d})
        product = mass[d:] * mass[: size - d] * (2.0 if d else 1.0)
        place, end = finer * d + int(cells[d]) - least, finer * (size - d)
        total[place + 1 : place + 1 + end : finer] += shares[d] * product
        product *= 1 - shares[d]
        total[place : place + end : finer] += product
    return _trimmed(Ratio(total, finer * ratio.start + least, h, 2 * ratio.parts, 2 * ratio.lost))


def _with_one(ratio: Ratio, one: Ratio) -> Ratio:
    """The sum with an independent one, whose grid is a power of 2 times as coarse: one value of it after another."""
    h = ratio.h
    own = np.arange(one.start, one.start + one.mass.size) * round(one.h / h)
    others = np.arange(ratio.start, ratio.start + ratio.mass.size)
    ends = [0, -1]  # of the sums: both places rise with both values
    least, most = (_lifts(h * np.abs(own[ends] - others[ends]), h)[0] + np.maximum(own[ends], others[ends])).tolist()
    total = np.zeros(most - least + 2)
    for place, mass in zip(own, one.mass, strict=True):
        cells, shares = _lifts(h * np.abs(others - place), h)
        cells += np.maximum(others, place) - least
        upper = mass * shares * ratio.mass
        first, last = int(cells[0]), int(cells[-1])
        total[first : last + 1] += np.bincount(cells - first, mass * ratio.mass - upper)
        total[first + 1 : last + 2] += np.bincount(cells - first, upper)
    return _trimmed(Ratio(total, least, h, ratio.parts + one.parts, ratio.lost + one.lost))


def _lifts(gaps: Array, h: float) -> tuple[NDArray[np.int64], Array]:
    """ln(1 + e^{−gap}) on a grid of h: its cell, and the share of the upper end that keeps the mean of e to its power."""
    above = np.log1p(np.exp(-gaps))
    cells = np.floor(above / h)
    return cells.astype(np.int64), np.clip(np.expm1(above - cells * h) / math.expm1(h), 0.0, 1.0)


def _trimmed(ratio: Ratio) -> Ratio:
    """Without next to nothing at either end, and with a mass of 1: rounding would double with every doubling."""
    below = np.cumsum(ratio.mass)
    above = np.cumsum((ratio.mass * np.exp(np.minimum(ratio.losses, 700.0)))[::-1])
    low = int(np.searchsorted(below, _CUT))
    high = ratio.mass.size - int(np.searchsorted(above, _CUT))
    mass = ratio.mass[low:high]
    return Ratio(mass / mass.sum(), ratio.start + low, ratio.h, ratio.parts, ratio.lost + 2 * _CUT)


@functools.lru_cache(maxsize=64)
def allocation_ratio(steps: int, noise_multiplier: float) -> Ratio:
    """U of the theorem above, or one that is larger in the convex order."""
    assert noise_multiplier >= LEAST_NOISE
    s = 1 / min(noise_multiplier, _MOST_NOISE)
    # of ln U: that of U, or where that is far from normal, about that of ln of one lognormal
    spread = min(math.sqrt(math.expm1(min(s * s, 100.0)) / steps), 1.0) * max(1.0, s)
    finest = _GRID * max(spread, (2 * _REACH * s + s * s) / _MOST_POINTS if s > 1 else 0.0)  # larger s spread further
    # sums of few lognormals may lie on coarser grids: their errors are averaged
    coarsest = _GRID * math.sqrt(math.expm1(min(s * s, 1.0))) * max(1.0, s)
    levels = max(0, min(math.floor(math.log2(steps) / 2), math.floor(math.log2(coarsest / finest))))
    h = finest * (1 << levels)
    ones = [_lognormal(s, h * (1 << coarser)) for coarser in range(_COARSER + 1)]
    ratio = ones[0]
    for doubling, digit in enumerate(f"{steps:b}"[1:]):
        if doubling % 2 and levels:
            levels, h = levels - 1, h / 2
        ratio = _doubled(ratio, h)
        if digit == "1":
            ratio = _with_one(ratio, ones[min(_COARSER, doubling // 2)])
    return ratio
