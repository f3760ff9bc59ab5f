"""Privacy losses bounded by an increasing piecewise-linear function of one variable with a known law.

If the privacy loss of a mechanism is at most R(Y), then δ(ε) ≤ E(1 − e^{ε−R(Y)})₊, and this profile, taken at all real ε,
is a dominating pair: it composes. Everything needed — profile, Rényi curve, masses on a grid of losses — has a
closed form on every linear piece.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from dperm._types import Array
from dperm.privacy.accountants import root_finding

#: Variables beyond this many standard deviations carry mass < 1e-40: counted as an infinite privacy loss.
TAIL = 13.5


_EPS = float(np.finfo(np.float64).eps)
_STEP = 0.25  # of the variable


def _rounding(*parts: Array) -> Array:
    """What a sum of these may be wrong by: each is right to a few units in its last place."""
    total = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in parts)))
    for part in parts:
        total += np.where(np.isfinite(part), np.abs(part), 0.0)
    return 8 * _EPS * (1.0 + total)


def log_normal_mass(a: Array, b: Array) -> Array:
    """ln(Φ(b) − Φ(a)) for a ≤ b, accurate in both tails."""
    flip = a > 0
    low, high = np.where(flip, -b, a), np.where(flip, -a, b)
    log_high = log_ndtr(high)
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = np.minimum(log_ndtr(low) - log_high, 0.0)
        return np.where(log_high == -np.inf, -np.inf, log_high + np.log(-np.expm1(gap)))


class Law(ABC):
    """The law of the base variable Y."""

    #: Interval outside which P(Y) < 1e-40.
    support: tuple[float, float]

    @abstractmethod
    def log_tilted_mass(self, a: Array, b: Array, slope: Array | float) -> Array:
        """ln E[e^{slope·Y}; a < Y ≤ b] elementwise."""


class Normal(Law):
    support = (-TAIL, TAIL)

    def log_tilted_mass(self, a: Array, b: Array, slope: Array | float) -> Array:
        return np.square(slope) / 2 + log_normal_mass(a - slope, b - slope)


class HalfNormal(Law):
    """|Z| for standard normal Z."""

    support = (0.0, TAIL)

    def log_tilted_mass(self, a: Array, b: Array, slope: Array | float) -> Array:
        return math.log(2) + np.square(slope) / 2 + log_normal_mass(a - slope, b - slope)


class Rayleigh(Law):
    """The norm of a two-dimensional standard normal: density y·e^{−y²/2}."""

    support = (0.0, TAIL)

    def log_tilted_mass(self, a: Array, b: Array, slope: Array | float) -> Array:
        # ∫ y e^{ty − y²/2} dy = −e^{ty − y²/2} + t ∫ e^{ty − y²/2} dy; in units of e^{t²/2} to stay finite
        t = np.asarray(slope, dtype=float)
        ends = np.exp(-np.square(a - t) / 2) - np.exp(-np.square(b - t) / 2)
        middle = t * math.sqrt(2 * math.pi) * np.exp(log_normal_mass(a - t, b - t))
        with np.errstate(divide="ignore"):
            return np.square(t) / 2 + np.log(np.maximum(ends + middle, 0.0))


def upper_envelope(slopes: Array, intercepts: Array) -> tuple[Array, Array, Array]:
    """Lines on top of max_k (intercepts[k] + slopes[k]·y): their slopes, intercepts, and the breakpoints between.

    `slopes` must strictly increase.
    """
    kept: list[int] = []
    breaks: list[float] = []
    m, c = slopes.tolist(), intercepts.tolist()
    for k in range(len(m)):
        while kept:
            j = kept[-1]
            crossing = (c[j] - c[k]) / (m[k] - m[j])
            if breaks and crossing <= breaks[-1]:
                kept.pop()
                breaks.pop()
                continue
            breaks.append(crossing)
            break
        kept.append(k)
    return slopes[kept], intercepts[kept], np.array(breaks)


@dataclass(frozen=True)
class LossBound:
    """R(y) = intercepts[k] + slopes[k]·y on (breaks[k−1], breaks[k]], increasing, y of law `law`.

    slopes, intercepts: (pieces,); breaks: (pieces − 1,), increasing.
    """

    law: Law
    slopes: Array
    intercepts: Array
    breaks: Array

    @functools.cached_property
    def _kept(self) -> tuple[Array, Array, Array]:
        """Slopes, intercepts and breaks of the pieces that meet the law's support: others would break the order of ends."""
        low, high = self.law.support
        first = int(np.searchsorted(self.breaks, low, side="right"))
        last = int(np.searchsorted(self.breaks, high, side="left"))
        return self.slopes[first : last + 1], self.intercepts[first : last + 1], self.breaks[first:last]

    @functools.cached_property
    def _ends(self) -> Array:
        """(kept pieces + 1,) ends of the kept pieces."""
        low, high = self.law.support
        return np.concatenate([[low], self._kept[2], [high]])

    def __call__(self, y: Array) -> Array:
        piece = np.searchsorted(self.breaks, y, side="left")
        return self.intercepts[piece] + self.slopes[piece] * y

    @property
    def support(self) -> tuple[float, float]:
        """Losses outside have P-mass < 3e-40."""
        low, high = self(np.array(self.law.support))
        return float(low), float(high)

    def _inverse(self, losses: Array) -> Array:
        """sup {y : R(y) ≤ loss}."""
        slopes, intercepts, _ = self._kept
        ends = self._ends
        values = np.concatenate([intercepts + slopes * ends[:-1], [self.support[1]]])
        values = np.maximum.accumulate(values)  # increasing but for rounding
        piece = np.clip(np.searchsorted(values, losses, side="right") - 1, 0, slopes.size - 1)
        slope = slopes[piece]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # an infinite y is clipped to its piece
            y = np.where(slope > 0, (losses - intercepts[piece]) / slope, ends[piece + 1])
        y = np.clip(y, ends[piece], ends[piece + 1])
        return np.where(losses < values[0], ends[0], y)

    def _cells(self, cuts: Array) -> tuple[Array, Array, NDArray[np.intp]]:
        """Split the support at `cuts` too: lower ends, upper ends, piece numbers."""
        points = np.unique(np.concatenate([self._ends, cuts]))
        a, b = points[:-1], points[1:]
        return a, b, np.searchsorted(self.breaks, (a + b) / 2, side="left")

    def delta(self, epsilon: float) -> float:
        """Upper bound on E(1 − e^{ε − R})₊, any real ε: above it by what rounding may take away."""
        start = self._inverse(np.array([epsilon]))
        steps = np.arange(self.law.support[0], self.law.support[1], _STEP)  # so that the second bound below is of use
        a, b, piece = self._cells(np.concatenate([start, steps]))
        inside = a >= start[0]
        a, b, piece = a[inside], b[inside], piece[inside]
        slopes, intercepts = self.slopes[piece], self.intercepts[piece]
        log_p = self.law.log_tilted_mass(a, b, np.zeros_like(a))
        log_tilted = self.law.log_tilted_mass(a, b, -slopes)
        log_q = epsilon - intercepts + log_tilted
        # both are rounded, and where noise is large nothing but rounding is left of their difference
        p = np.exp(log_p + _rounding(log_p))
        # where R ≥ ε, as in all of these cells but for rounding, q is no more than p: to cap it at 1 loses nothing
        q = np.exp(np.minimum(log_q - _rounding(np.array(epsilon), intercepts, np.square(slopes), log_tilted), 0.0))
        highest = intercepts + slopes * b + _rounding(intercepts, slopes * b, np.array(epsilon)) - 8 * _EPS
        by_highest = -p * np.expm1(np.minimum(epsilon - highest, 0.0)) * (1 + 4 * _EPS)
        return float(min(1.0, np.sum(np.minimum(np.maximum(p - q, 0.0) + _EPS * p, by_highest)) + 3e-40))

    def log_moment(self, t: float) -> float:
        """ln E[e^{t·R}] for t ≥ 0."""
        low, high = self.law.support
        # Tilting moves the mass by t·slope: the last piece must reach as far as the tilted law does.
        ends = np.concatenate([[low], np.clip(self.breaks, low, None), [high + t * float(self.slopes[-1]) + TAIL]])
        ends = np.maximum.accumulate(ends)
        masses = self.law.log_tilted_mass(ends[:-1], ends[1:], t * self.slopes)
        return float(logsumexp(t * self.intercepts + masses + _rounding(t * self.intercepts, np.square(t * self.slopes), masses)))

    def rdp(self, orders: Array) -> Array:
        return np.array([self.log_moment(float(order) - 1) / (order - 1) for order in orders])

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-masses of losses in (edges[i], edges[i+1]]: two arrays of shape (edges − 1,)."""
        cuts = self._inverse(edges)
        a, b, piece = self._cells(cuts)
        p = np.exp(self.law.log_tilted_mass(a, b, np.zeros_like(a)))
        q = np.exp(-self.intercepts[piece] + self.law.log_tilted_mass(a, b, -self.slopes[piece]))
        # Flat pieces are atoms; the midpoint's loss tells which interval a cell belongs to, (lo, hi] as promised.
        bin_of = np.searchsorted(edges, self.intercepts[piece] + self.slopes[piece] * (a + b) / 2, side="left") - 1
        inside = (bin_of >= 0) & (bin_of < edges.size - 1)
        count = edges.size - 1
        totals = [np.bincount(bin_of[inside], weights=masses[inside], minlength=count) for masses in (p, q)]
        return np.asarray(totals[0], dtype=np.float64), np.asarray(totals[1], dtype=np.float64)

    def above(self, loss: float) -> tuple[float, float]:
        """P- and Q-mass of losses > `loss`."""
        edges = np.array([loss, self.support[1] + 1.0])
        p, q = self.masses(edges) if loss < self.support[1] else (np.zeros(1), np.zeros(1))
        return float(p[0]), float(q[0])


class SymmetrisedLoss:
    """The pair of a mechanism whose two directions are both bounded by the profile of `bound` at ε ≥ 0.

    The profile h of one direction is 1 − α + α·h'(1/α) for the other's h', α = e^ε. So below α = 1 both lie under
    1 − α + α·δ(−ln α), which `bound` by itself does not know: it takes R for the loss at every ε. Profiles are convex: between
    e^−a and e^a they lie under the chord, for any a. With the least a for which what is left is no negative mass, this is the
    convex envelope: losses of `bound` beyond a, their mirror images, and atoms at ±a. Proof: docs/objective-perturbation.md.
    """

    def __init__(self, bound: LossBound) -> None:
        self._bound = bound
        self.edge = 0.0
        if self._left(0.0) < 0:
            high = max(bound.support[1], 1e-300)
            self.edge, step = root_finding.root(self._left, 0.0, high, xtol=1e-13 * high), 1e-13 * high
            while self._left(self.edge) < 0:  # where it jumps the root may lie before that
                self.edge, step = self.edge + step, 4 * step
        self._atom = max(0.0, self._left(self.edge)) / (1 + math.exp(-self.edge))

    def _left(self, edge: float) -> float:
        """Mass that neither losses beyond `edge` nor their mirror images have."""
        p, q = self._bound.above(edge)
        return 1.0 - p - q

    @property
    def support(self) -> tuple[float, float]:
        high = max(self._bound.support[1], self.edge)
        return -high, high

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-masses of losses in (edges[i], edges[i+1]]: two arrays of shape (edges − 1,)."""
        # beyond the edge: a cell that holds it has what lies above it
        p, q = self._bound.masses(np.maximum(edges, self.edge))
        mirrored_q, mirrored_p = (values[::-1] for values in self._bound.masses(np.maximum(-edges[::-1], self.edge)))
        p, q = p + mirrored_p, q + mirrored_q
        for loss, mass in ((self.edge, self._atom), (-self.edge, self._atom * math.exp(-self.edge))):
            cell = int(np.searchsorted(edges, loss, side="left")) - 1
            if 0 <= cell < len(p):
                p[cell] += mass
                q[cell] += mass * math.exp(-loss)
        return p, q
