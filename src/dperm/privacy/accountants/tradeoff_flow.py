"""Trade-off curves by how fast they grow while records come and go: minimisers of means of losses, and replaced records.

Let records enter the objective gradually, and let `time` run from 0 to 1. If no event of probability α gains probability faster
than `speed`·G(α), G concave, then its probability at the end is at most F(α), where F follows α' = speed·G(α) for that time.
F is the trade-off curve of a pair. Theorem, the losses' G, and proofs: docs/objective-perturbation.md.

Points are normal quantiles z, α = Φ(−z). Nothing here rounds in favour of privacy: G lies below its tangents, along which the
flow has a closed form.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import exprel, log_ndtr, ndtr, ndtri, ndtri_exp

from dperm._types import Array
from dperm.privacy.accountants.loss_bound import TAIL, LossBound, Normal

_NODES = 2048
_FAR = 37.0  # quantiles whose tail is still a double
_FASTEST = 10.0
_UNKNOWN = 1e9  # stands for any loss: it is far above what counts as infinite
_ROOT = math.sqrt(2 * math.pi)


def _density(z: Array) -> Array:
    return np.exp(-np.square(z) / 2) / _ROOT


class Gain(ABC):
    """Half of a curve: how much probability an event of probability Φ(−z) ≤ ½ can gain, or its complement lose, per unit of
    time.

    A concave function of the tail Φ(−z), at quantiles z ≥ 0. From `edge` on it is `factor`·φ(z), the Gaussian mechanism's. Where
    there is no edge, its slope rises by no more than `factor` for each quantile, and gain ÷ φ(z) falls, once the slope is at
    least `factor`·z.
    """

    edge: float = math.inf
    factor: float = 1.0

    @abstractmethod
    def value(self, z: Array) -> Array:
        """The gain at quantiles z in [0, edge]."""

    @abstractmethod
    def slope(self, z: Array) -> Array:
        """Its derivative by the tail, or a slope of a tangent where there are several."""


@dataclass(frozen=True)
class GaussianGain(Gain):
    """φ(z), of the Gaussian mechanism: the most that an event loses by slopes alone, the sign of which is known."""

    edge = 0.0

    def value(self, z: Array) -> Array:
        return _density(z)

    def slope(self, z: Array) -> Array:
        return z


@dataclass(frozen=True)
class TiedGain(Gain):
    """min(∫_z^∞ rφ, φ(0)), r(z) = sup over p in [0, 1] of p(1 − p)·edge + p·z: slope and curvature are tied, as in the logistic
    loss."""

    edge: float

    def value(self, z: Array) -> Array:
        return np.minimum(self._whole(z), 1 / _ROOT)

    def slope(self, z: Array) -> Array:
        return np.where(self._whole(z) < 1 / _ROOT, np.square(self.edge + z) / (4 * self.edge), 0.0)

    def _whole(self, z: Array) -> Array:
        edge, at = self.edge, _density(np.array(self.edge))
        middle = (edge**2 + 1) * (ndtr(-z) - ndtr(-edge)) + (2 * edge + z) * _density(z) - 3 * edge * at
        return middle / (4 * edge) + at


@dataclass(frozen=True)
class HingeGain(Gain):
    """min(curvature·Φ(−z) + φ(z), φ(0)): the sign of the slope is known, and curvature is up to its bound wherever it likes."""

    curvature: float

    def value(self, z: Array) -> Array:
        return np.minimum(self.curvature * ndtr(-z) + _density(z), 1 / _ROOT)

    def slope(self, z: Array) -> Array:
        return np.where(self.curvature * ndtr(-z) + _density(z) < 1 / _ROOT, self.curvature + z, 0.0)


@dataclass(frozen=True)
class TwoSidedGain(Gain):
    """min(curvature·α + 2φ(w(α)), 2φ(w(1 − α))), α = Φ(−z) = 2Φ(−w(α)): nothing is known of the slope but its bound.

    With `losing` the second alone, at 1 − α: what an event's complement loses.
    """

    curvature: float
    losing: bool = False

    def _widths(self, z: Array) -> tuple[Array, Array]:
        """w(α) and w(1 − α), of the tail and of the rest."""
        return -ndtri_exp(log_ndtr(-z) - math.log(2)), -ndtri(ndtr(z) / 2)

    def value(self, z: Array) -> Array:
        tail, rest = self._widths(z)
        if self.losing:
            return 2 * _density(tail)
        return np.minimum(self.curvature * ndtr(-z) + 2 * _density(tail), 2 * _density(rest))

    def slope(self, z: Array) -> Array:
        tail, rest = self._widths(z)
        if self.losing:
            return tail
        return np.where(self.curvature * ndtr(-z) + 2 * _density(tail) < 2 * _density(rest), self.curvature + tail, -rest)


@dataclass(frozen=True)
class BothGains(Gain):
    """Of a record that is replaced: one comes while another goes."""

    coming: Gain
    going: Gain

    @property
    def edge(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return max(self.coming.edge, self.going.edge)

    @property
    def factor(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.coming.factor + self.going.factor

    def value(self, z: Array) -> Array:
        return self.coming.value(z) + self.going.value(z)

    def slope(self, z: Array) -> Array:
        return self.coming.slope(z) + self.going.slope(z)


class _Half:
    """The flow along tangents of one `Gain`, from z = 0 outwards: what time it takes to get to a quantile, and back.

    Tangents touch at `_NODES` quantiles; piece i, of the i-th, is between tails `cuts[i]` ≥ `cuts[i + 1]`.
    """

    def __init__(self, gain: Gain) -> None:
        self.gain, self.edge = gain, min(gain.edge, _FAR)
        z = np.linspace(0.0, self.edge, _NODES if self.edge else 1)
        self._tails = ndtr(-z)
        self._values, self._slopes = gain.value(z), gain.slope(z)
        gaps = np.diff(self._slopes)
        crossings = np.diff(self._slopes * self._tails - self._values) / np.where(gaps > 0, gaps, 1.0)
        middles = (self._tails[1:] + self._tails[:-1]) / 2
        inner = np.clip(np.where(gaps > 0, crossings, middles), self._tails[1:], self._tails[:-1])
        self._cuts = np.concatenate([[0.5], inner, self._tails[-1:]])
        self._times = np.concatenate([[0.0], np.cumsum(self._durations(self._cuts[1:], np.arange(len(z))))])

    def _at(self, tails: Array, pieces: Any) -> Array:
        return self._values[pieces] + self._slopes[pieces] * (tails - self._tails[pieces])

    def _durations(self, tails: Array, pieces: Any) -> Array:
        """From a piece's start, its larger tail, to these tails: ∫ dα/(g + r·α) = ln(ratio of both ends)/r."""
        start, slope = self._cuts[pieces], self._slopes[pieces]
        share = (start - tails) / self._at(tails, pieces)
        bent = slope * share
        flat = np.abs(bent) < 1e-8
        return share * np.where(flat, 1 - bent / 2, np.log1p(bent) / np.where(flat, 1.0, bent))

    def times(self, z: Array) -> Array:
        """Of quantiles z ≥ 0."""
        tails = np.maximum(ndtr(-z), self._tails[-1])
        pieces = self._pieces(tails)
        return self._times[pieces] + self._durations(tails, pieces) + np.maximum(z - self.edge, 0.0) / self.gain.factor

    def _pieces(self, tails: Array) -> Any:
        return np.minimum(np.searchsorted(-self._cuts, -tails, side="right"), len(self._values)) - 1

    def quantiles(self, times: Array) -> Array:
        """Inverse of `times`."""
        pieces = np.minimum(np.searchsorted(self._times, times, side="right"), len(self._values)) - 1
        left = np.minimum(times, self._times[-1]) - self._times[pieces]
        start = self._cuts[pieces]
        moved = self._at(start, pieces) * left * exprel(-self._slopes[pieces] * left)
        inside = -ndtri(np.maximum(start - moved, 1e-320))
        return inside + np.maximum(times - self._times[-1], 0.0) * self.gain.factor

    def log_values(self, z: Array) -> Array:
        """ln of the tangents' curve."""
        tails = np.maximum(ndtr(-z), self._tails[-1])
        beyond = math.log(self.gain.factor / _ROOT) - np.square(z) / 2
        return np.where(z > self.edge, beyond, np.log(self._at(tails, self._pieces(tails))))

    def slopes(self, z: Array) -> Array:
        tails = np.maximum(ndtr(-z), self._tails[-1])
        return np.where(z > self.edge, self.gain.factor * z, self._slopes[self._pieces(tails)])


class _Flow:
    """Both halves: an event of probability Φ(−z) gains by `rising` where z ≥ 0; of others the complement loses by `falling`."""

    def __init__(self, rising: Gain, falling: Gain) -> None:
        self.rising = _Half(rising)
        self.falling = self.rising if falling == rising else _Half(falling)

    def _each(self, z: Array, name: str, sign: float) -> Array:
        up, down = getattr(self.rising, name), getattr(self.falling, name)
        return np.where(z >= 0, up(np.maximum(z, 0.0)), sign * down(np.maximum(-z, 0.0)))

    def earlier(self, z: Array, time: float) -> Array:
        """Where what is at z now was that long ago: further out, since probabilities grow."""
        return self._each(self._each(z, "times", -1.0) + time, "quantiles", -1.0)

    def log_values(self, z: Array) -> Array:
        return self._each(z, "log_values", 1.0)

    def slopes(self, z: Array) -> Array:
        return self._each(z, "slopes", -1.0)


def flow_bound(rising: Gain, falling: Gain, speed: float) -> LossBound:
    """The loss of the pair whose curve flows for a time of 1, as a function of the normal quantile at the end; and, of the two,
    whichever is larger, that of the other direction, the gains exchanged.

    Increasing, and never below the truth. ValueError for a `speed` above 10, at which nothing is private.
    """
    if not speed <= _FASTEST:
        raise ValueError(f"Expected noise of at least a tenth of what a record moves, got 1/{speed:.3g} of it.")
    one = _one_direction(rising, falling, speed)
    return one if rising == falling else _larger(one, _one_direction(falling, rising, speed))


def _one_direction(rising: Gain, falling: Gain, speed: float) -> LossBound:
    """ln F'(α): on each of many cells a line through the value at the upper end, no steeper than the curve. Where all of the way
    is `factor`·φ it is the Gaussian mechanism's line itself."""
    flow, gaussian = _Flow(rising, falling), rising.factor * speed
    high, low = min(rising.edge, TAIL), max(-falling.edge, -TAIL)
    if low > -TAIL:
        low = max(-TAIL, -float(flow.falling.quantiles(flow.falling.times(np.array([-low])) + speed)[0]))
    nodes = np.union1d(np.linspace(low, high, _NODES), [0.0])
    before = flow.earlier(nodes, speed)
    logs = flow.log_values(nodes)
    values = np.maximum.accumulate(logs - flow.log_values(before))
    # who comes from where tails are no doubles any more: what is lost there is not known
    values[before >= (_FAR if rising.edge > _FAR else math.inf)] = _UNKNOWN
    beyond = gaussian**2 / 2
    if rising.edge <= TAIL:
        values = np.minimum(values, gaussian * high + beyond)
    elif rising.edge < math.inf:
        beyond += gaussian * (rising.edge - TAIL)  # what it is at the edge, and it increases
    elif rising.slope(np.array([TAIL]))[0] < rising.factor * TAIL:
        values[-1] = _UNKNOWN  # so much curvature that events gain all that there is even here
    # Further out the loss rises no faster than the Gaussian's: it is the integral of slopes along the way, slopes rise by no more
    # than `factor` for each quantile, and ways from further out stay as near to each other, since the pace falls.
    beyond = max(beyond, float(values[-1]) - gaussian * high)
    densities = np.minimum(-np.square(nodes[1:]), -np.square(nodes[:-1])) / 2 - math.log(_ROOT)
    steepness = (flow.slopes(before[:-1]) - flow.slopes(nodes[1:])) * np.exp(densities - np.maximum(logs[1:], logs[:-1]))
    steepness = np.clip(steepness, 0.0, np.diff(values) / np.diff(nodes))
    first = (0.0, float(values[0]))
    if low > -TAIL:
        first = (falling.factor * speed, (falling.factor * speed) ** 2 / 2)
    slopes = np.concatenate([[first[0]], steepness, [gaussian]])
    return LossBound(Normal(), slopes, np.concatenate([[first[1]], values[1:] - steepness * nodes[1:], [beyond]]), nodes)


def _larger(one: LossBound, other: LossBound) -> LossBound:
    """The larger of two bounds, both of a normal variable."""
    breaks = np.union1d(one.breaks, other.breaks)
    (slopes, intercepts), (others, constants) = (_lines(bound, breaks) for bound in (one, other))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # nearly parallel lines cross beyond all pieces
        crossings = (constants - intercepts) / (slopes - others)
    ends = np.concatenate([[-np.inf], breaks, [np.inf]])
    breaks = np.union1d(breaks, crossings[(crossings > ends[:-1]) & (crossings < ends[1:])])
    (slopes, intercepts), (others, constants) = (_lines(bound, breaks) for bound in (one, other))
    middles = _middles(breaks)
    first = intercepts + slopes * middles >= constants + others * middles
    return LossBound(Normal(), np.where(first, slopes, others), np.where(first, intercepts, constants), breaks)


def _middles(breaks: Array) -> Array:
    """A point of each piece."""
    return np.concatenate([[breaks[0] - 1], (breaks[1:] + breaks[:-1]) / 2, [breaks[-1] + 1]])


def _lines(bound: LossBound, breaks: Array) -> tuple[Array, Array]:
    """Slopes and intercepts of a bound between breaks, its own among them."""
    pieces = np.searchsorted(bound.breaks, _middles(breaks), side="left")
    return bound.slopes[pieces], bound.intercepts[pieces]
