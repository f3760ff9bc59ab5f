"""Random allocation: each record joins one of t steps, drawn uniformly, and no other.

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

On a grid of ln U every value is split between its neighbours so that the mean stays: convex functions can only rise, and the
error is of second order. Sums of 2m lognormals are made of two sums of m.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dperm.privacy.loss_bound import log_normal_mass

__all__ = ["LEAST_NOISE", "Ratio", "allocation_ratio"]

Array = NDArray[np.float64]

_GRID = 0.03  # of the standard deviation of U: its variance grows by about a thousandth
_CUT = 1e-30  # mass that may be cut off at one end of a sum
_REACH = 12.0  # standard deviations of ln of one lognormal; beyond lies less than _CUT
_MOST_NOISE = 1e6  # more is taken for as much
_MOST_POINTS = 400  # of the grid, in units of _GRID: 13,000
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
        """P- and Q-masses of losses in (edges[i], edges[i+1]]; see `dperm.privacy.pairs.LossPair`."""
        losses = self.losses
        inside = losses <= edges[-1]
        losses, mass = np.maximum(losses[inside], edges[0]), self.mass[inside]
        cell = np.maximum(np.searchsorted(edges, losses, side="left") - 1, 0)
        p, q = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        np.add.at(p, cell, mass * np.exp(losses))
        np.add.at(q, cell, mass)
        return p, q

    def refined(self, halvings: int) -> Ratio:
        """The same on a grid that is 2^halvings times as fine."""
        mass = np.zeros((self.mass.size - 1 << halvings) + 1)
        mass[:: 1 << halvings] = self.mass
        return Ratio(mass, self.start << halvings, self.h / (1 << halvings), self.parts, self.lost)


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


def _sum(a: Ratio, b: Ratio) -> Ratio:
    """Of two independent ones of one grid."""
    h = a.h
    start = min(a.start, b.start)
    size = max(a.start + a.mass.size, b.start + b.mass.size) - start
    first, second = np.zeros(size), np.zeros(size)
    first[a.start - start :][: a.mass.size] = a.mass
    second[b.start - start :][: b.mass.size] = b.mass
    # e^{ih} + e^{(i−d)h} = e^{ih}(1 + e^{−dh}): how far above e^{ih} depends on d alone
    above = np.log1p(np.exp(-h * np.arange(size)))
    cells = np.floor(above / h).astype(np.intp)
    share = np.clip(np.expm1(above - cells * h) / math.expm1(h), 0.0, 1.0)
    total = np.zeros(size + int(cells[0]) + 2)
    for d in range(size):
        product = first[d:] * second[: size - d]
        if d:
            product += second[d:] * first[: size - d]
        place = d + cells[d]
        total[place + 1 : place + 1 + product.size] += share[d] * product
        product *= 1 - share[d]
        total[place : place + product.size] += product
    return _trimmed(Ratio(total, start, h, a.parts + b.parts, a.lost + b.lost))


def _trimmed(ratio: Ratio) -> Ratio:
    below = np.cumsum(ratio.mass)
    above = np.cumsum((ratio.mass * np.exp(np.minimum(ratio.losses, 700.0)))[::-1])
    low = int(np.searchsorted(below, _CUT))
    high = ratio.mass.size - int(np.searchsorted(above, _CUT))
    return Ratio(ratio.mass[low:high], ratio.start + low, ratio.h, ratio.parts, ratio.lost + 2 * _CUT)


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
    power, rest = _lognormal(s, h), None
    doublings = steps.bit_length() - 1
    for doubling in range(doublings + 1):
        if steps >> doubling & 1:
            rest = power if rest is None else _sum(rest, power)
        if doubling == doublings:
            break
        power = _sum(power, power)
        if doubling % 2 and levels:
            levels -= 1
            power, rest = power.refined(1), rest and rest.refined(1)
    assert rest is not None
    return rest
