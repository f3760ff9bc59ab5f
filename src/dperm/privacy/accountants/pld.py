"""Privacy loss distributions: composition by FFT, exponentially tilted so that the tail that matters keeps its digits.

A mechanism's pair (P, Q) is laid on a grid of losses by splitting every interval's mass between its two ends so that
both its P-mass and its Q-mass are kept: the profile is then exact at grid points and linear in e^ε between them, above
the true one ("connect the dots", Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022). Before the FFT each
distribution is multiplied by e^{λ·loss} and normalised; the λ that is optimal for Rényi accounting puts the mean of the
composition near the ε asked for. Aliasing, truncation and rounding are then errors relative to a
Chernoff bound, not to 1, and are added to δ. Every result is an upper bound.

A composition is tuned to a place (ε, δ) of the profile. Tilt and grid suit ε. Losses so large that together they are met with
a chance of at most a hundred-thousandth of δ count as infinite: without them Chernoff's bound stays near the truth. Where samples
are rare even that is far from it, as one loss alone makes the sum large; there runs with a loss beyond a small multiple of ε are
bounded by themselves, nearly exactly (`_Jump`). The ε that a composition gives is a better place than the one it was tuned to:
losses are composed again there until it no longer falls. Many copies are composed in levels: groups of copies, laid on a coarser
grid once composed, then groups of these.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from dperm._types import Array
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.dominating_pairs import (
    LOSS_CAP,
    MOST_NOISE,
    Cells,
    LossPair,
    cells,
    composed_pairs,
    gaussian_pair,
    symmetric,
)
from dperm.privacy.accountants.gaussian import solve_decreasing
from dperm.privacy.events import Event, Gaussian, leaves

#: Relative growth of the composition's variance that the grid may cause; ε grows by about as much.
TOLERANCE = 2e-5
_ALIASED = 1e-12  # mass of the tilted composition allowed outside the window
_CUT = math.log(1e-5)  # ln of the part of δ that losses counted as infinite may take
_BELOW = 1e-8  # tilted mass below the range on which all copies of a pair are laid: it is moved up to the range
_VANISHED = -110.0  # logarithm of what is left out of a frequency: with all others far less than the slack of `log_delta`
_OUTSIDE = 3e-40  # P-mass of one event outside its support
_WIDEST_CELL = 20.0  # so that a cell beyond the largest finite loss still ends within doubles
_MAX_POINTS = 1 << 19
_JUMPS_HELD = 8  # of the largest losses, by a window
_MOST_COPIES = 1 << 12  # composed at once: √copies sets the number of points
_COUNTLESS = 1e14  # copies: what rounding of each may add to ln δ is more than 1 for all of them
_SMALLEST = 1e-8  # ε that grids resolve
_SETTLED = 1e-4  # relative part of ε that slack may be before a composition is made again
_MOST_PLACES = 8  # that losses are composed at
_FALLS = 1e-3  # relative; an ε that falls by less is no better place
_ANCHORS = (0.02, 0.3, 0.9)  # where `deltas` composes, in units of the largest ε
_JUMPS = (1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 64.0)  # places of cuts, in units of ε, that are tried
_RATES = (2.0, 8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0, 65536.0)  # of Chernoff bounds on what others lose, in units of 1/ε
_TAILS = 1e-12  # rounding of the mass beyond a place, relative
_STEPS = (7.0, 5.0, 3.0, 1.5, 0.5, 0.15, 0.05, 0.015)  # exponents tried in Chernoff bounds, in units of 1/std
_EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class _Discrete:
    """P-masses `mass` at losses h·(start + 0, 1, …). `doubt`: P-mass there that rounding may have moved, at most."""

    mass: Array
    start: int
    h: float
    doubt: Array | None = None

    @functools.cached_property
    def losses(self) -> Array:
        return self.h * np.arange(self.start, self.start + self.mass.size, dtype=np.float64)

    @functools.cached_property
    def log_mass(self) -> Array:
        return _log(self.mass)

    def tilted(self, tilt: float) -> _Tilted:
        exponent = self.log_mass + tilt * self.losses
        weights, log_moment = _normalised(exponent)
        # an exponent is rounded in its last digits, and so is each mass, as a difference of two distribution functions: an error
        # in one of those moves mass between neighbouring cells, of which tilted sums have no more than their part times 1 + λh
        size = np.abs(np.where(weights > 0, self.log_mass, 0.0)) + np.abs(tilt * self.losses)
        rounding = 4 * _EPS * (2 + tilt + float(weights @ size))
        doubtful = 0.0 if self.doubt is None else _total(_log(self.doubt) + tilt * self.losses - log_moment)
        return _Tilted(weights, self.start, self.h, log_moment, 0.0, rounding, doubtful)

    def log_moment(self, t: float) -> float:
        """ln Σ mass·e^{t·loss}."""
        return _log_total(self.log_mass + t * self.losses)


@dataclass(frozen=True)
class _Tilted:
    """A distribution multiplied by e^{λ·loss}: `weights`, summing to 1, at losses h·(start + 0, 1, …), times e^{log_moment}.

    `missing`: weight that is nowhere among them, at most. `rounding`: how far logarithms of the weights may be too small.
    `doubtful`: weight that they may have too far down, at most, however little that is of their logarithms.
    """

    weights: Array
    start: int
    h: float
    log_moment: float
    missing: float
    rounding: float
    doubtful: float

    @functools.cached_property
    def losses(self) -> Array:
        return self.h * np.arange(self.start, self.start + self.weights.size, dtype=np.float64)

    @functools.cached_property
    def log_weights(self) -> Array:
        return _log(self.weights)

    @functools.cached_property
    def mean(self) -> float:
        return float(self.weights @ self.losses)

    @functools.cached_property
    def variance(self) -> float:
        return float(self.weights @ np.square(self.losses - self.mean))

    def further(self, t: float) -> float:
        """ln Σ weights·e^{t·(loss − mean)}."""
        return _log_total(self.log_weights + t * (self.losses - self.mean))

    def relaid(self, h: float, tilt: float) -> _Tilted:
        """The same on a coarser grid, P- and Q-masses kept (see `lay`)."""
        below = np.floor(self.losses / h)
        above = np.maximum(self.losses - h * below, 0.0)  # the distance from the grid point below
        share = np.minimum(np.expm1(-above) / math.expm1(-h), 1.0)
        start = int(below[0])
        places = (below - start).astype(np.intp)
        size = int(places[-1]) + 2
        lower = np.bincount(places, self.weights * (1 - share) * np.exp(-tilt * above), size)
        upper = np.bincount(places + 1, self.weights * share * np.exp(tilt * (h - above)), size)
        weights = np.asarray(lower + upper, dtype=np.float64)
        total = float(weights.sum())
        moment = self.log_moment + math.log(total)
        rounding = self.rounding + 16 * _EPS
        return _Tilted(weights / total, start, h, moment, self.missing / total, rounding, self.doubtful / total)


def _log(values: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _normalised(exponents: Array) -> tuple[Array, float]:
    """Probabilities ∝ e^exponents, and ln Σ e^exponents."""
    peak = float(exponents.max())
    weights = np.exp(exponents - peak)
    total = float(weights.sum())
    return weights / total, peak + math.log(total)


def _log_total(exponents: Array) -> float:
    """ln Σ e^exponents."""
    peak = float(exponents.max())
    return peak + math.log(float(np.exp(exponents - peak).sum()))


def _total(exponents: Array) -> float:
    """Σ e^exponents, at most e^600 each."""
    return float(np.exp(np.minimum(exponents, LOSS_CAP)).sum())


def _laid(found: Cells, grid: Array) -> tuple[Array, Array]:
    """P-masses at the points of `grid`, of cells between them, so that P- and Q-masses stay, and what may be wrong of them."""
    p, width = np.maximum(found.p, 0.0), np.diff(grid)  # some are rounded to less
    upper = np.clip(found.gain / -np.expm1(-width), 0.0, p)
    mass, doubt = np.zeros(grid.size), np.zeros(grid.size)
    mass[1:] += upper
    mass[:-1] += p - upper
    doubt[1:] = np.exp(width) * (found.doubt + np.maximum(found.gain + p * np.expm1(-width), 0.0))
    return mass, doubt


def lay(pair: LossPair, h: float, low: float = -LOSS_CAP, high: float = LOSS_CAP) -> _Discrete:
    """Lay a pair on the grid h·ℤ from `low` to `high`: lower losses are moved up to `low`, larger ones are left out."""
    cut, high = high < pair.support[1], min(high, pair.support[1])
    low = min(max(low, pair.support[0]), high)
    start, stop = math.floor(low / h) - 1, math.ceil(high / h) + 1
    grid = h * np.arange(start, stop + 1, dtype=np.float64)
    edges = np.minimum(grid, high) if cut else grid
    below, found = _split(cells(pair, np.concatenate([[-math.inf], edges])))
    mass, doubt = _laid(found, grid)
    mass[0] += max(below.p[0], 0.0)
    return _Discrete(mass, start, h, doubt)


def _split(found: Cells) -> tuple[Cells, Cells]:
    """The first cell, which has no lower end, and all others."""
    first, others = (
        Cells(found.p[part], found.q[part], found.gain[part], found.doubt[part]) for part in (slice(1), slice(1, None))
    )
    return first, others


def infinite_mass(pair: LossPair) -> float:
    """Upper bound on the P-mass of losses that no grid holds."""
    return _Rough(pair).infinite


class _Rough:
    """A pair laid on two thousand points, dense around 0 and nowhere sparse: what tilts, ranges and grids are chosen from."""

    def __init__(self, pair: LossPair) -> None:
        self.pair = pair
        low, high = max(pair.support[0], -LOSS_CAP), min(pair.support[1], LOSS_CAP)
        width = max(high - low, 1e-12)
        near = width * np.geomspace(1e-12, 1.0, 400)
        edges = np.concatenate([-near, [0.0], near, np.linspace(low - 1e-3 * width, high + 1e-3 * width, 1001)])
        edges = np.unique(edges[(edges >= low - 1e-3 * width) & (edges <= high + 1e-3 * width)])
        below, found = _split(cells(pair, np.concatenate([[-math.inf], edges])))
        p, q = np.append(below.p, found.p), np.append(below.q, found.q)
        #: P-mass of an infinite loss: what lies outside, and the rounding of that difference
        self.infinite = _OUTSIDE if pair.support[1] <= LOSS_CAP else max(0.0, 1.0 - float(p.sum())) + 1e-15
        positive = edges[:-1] >= 0
        #: upper bound on δ(0), a total variation
        self.at_zero = float(np.sum((p[1:] - q[1:])[positive])) + 16 * _EPS + self.infinite + (p[0] if edges[0] > 0 else 0.0)
        p, q = np.maximum(p, 0.0), np.maximum(q, 0.0)  # some are rounded to less
        self.edges = edges
        self._above = np.append(np.cumsum(p[:0:-1])[::-1], 0.0) + self.infinite  # P-mass beyond each edge
        self._below = np.cumsum(p)  # and up to it
        #: no loss is less; −inf where that is not known
        self.least: float = getattr(pair, "least", -math.inf)
        self._q_below = max(0.0, float(q[0]))
        mass, self._doubt = _laid(found, edges)
        mass[0] += p[0]
        self._log_mass = _log(mass)

    def beyond(self, mass: float) -> tuple[int, float]:
        """The number of points up to the least place at or above 0 beyond which no more P-mass than this lies, and that mass."""
        fits = (self._above <= mass) & (self.edges >= 0)
        last = int(np.argmax(fits)) if fits.any() else len(self.edges) - 1
        return last + 1, float(self._above[last])

    def larger_than(self, loss: float) -> tuple[int, float, float, float]:
        """The number of points up to the first at or above `loss`, that place, and P- and Q-masses of larger losses."""
        last = int(np.searchsorted(self.edges, loss))
        if last == len(self.edges):
            return last, math.inf, self.infinite, 0.0
        p, q = self.pair.masses(np.array([self.edges[last], math.inf]))
        return last + 1, float(self.edges[last]), float(p[0]), float(q[0])

    def lower_moment(self, t: float) -> float:
        """Upper bound on ln E_Q e^{−t·loss} for t ≥ 0, where `least` is known: e^{−t·loss} is convex in e^loss, so that laying
        raises it. Above the last point it is less than 1, at a mass that rounding has many times over."""
        exponents = self._log_mass - (1 + t) * self.edges
        weights, log_moment = _normalised(exponents)
        size = np.where(weights > 0, np.abs(self._log_mass), 0.0) + (1 + t) * np.abs(self.edges)
        below = math.log(self._q_below) - t * self.least if self._q_below > 0 else -math.inf
        moved = (1 + t) * _total(_log(self._doubt[1:]) - (1 + t) * self.edges[:-1] - log_moment)
        return float(np.logaddexp(log_moment, below)) + 16 * _EPS * (4 + float(weights @ size)) + moved

    def tilted(self, tilt: float, points: int) -> tuple[float, float, float]:
        """ln Σ mass·e^{tilt·loss} of so many points, and mean and variance of the losses so weighted."""
        losses = self.edges[:points]
        weights, log_moment = _normalised(self._log_mass[:points] + tilt * losses)
        mean = float(weights @ losses)
        return log_moment, mean, float(weights @ np.square(losses - mean))

    def log_moment(self, tilt: float, points: int) -> float:
        return _log_total(self._log_mass[:points] + tilt * self.edges[:points])

    def span(self, tilt: float, points: int, log_least: float) -> tuple[float, float]:
        """Where losses matter: what lies below has a tilted mass of no more than e^log_least even when it is moved up."""
        small = _log(self._below) + tilt * self.edges <= log_least
        first = max(0, int(np.argmin(small)) - 1) if not small.all() else 0
        return float(self.edges[min(first, points - 2)]), float(self.edges[points - 1])


def _convolved(parts: Sequence[tuple[_Tilted, int]], aliased: float) -> _Tilted:
    """Copies of tilted distributions on one grid, composed in a window that leaves out a mass of about `aliased`."""
    if len(parts) == 1 and parts[0][1] == 1:
        return parts[0][0]
    h = parts[0][0].h
    mean = sum(count * part.mean for part, count in parts)
    deviation = max(math.sqrt(sum(count * part.variance for part, count in parts)), h)
    (above, lost_above), (below, lost_below) = (_window(parts, deviation, side, aliased) for side in (1.0, -1.0))
    size = next_fast_len(math.ceil((above + below) / h) + 2, real=True)
    first = math.floor((mean - below) / h)
    transform = 4 * _EPS * math.log2(2 * size)  # error of a sum of 1: a few last digits at each of log₂(size) stages
    turn = 2 * np.sin(np.pi / size * np.arange(size // 2 + 1))  # |e^{−iθ} − 1|
    left: Any = slice(None)  # frequencies that are not next to nothing yet: of many copies they are few
    log_size: Any = 0.0
    angle: Any = 0.0
    log_bound: Any = 0.0  # of the size that a frequency may have
    log_gap: Any = 0.0  # how far that is above the size that it is found to have
    shift = 0
    for part, count in parts:
        peak, factor, spread = _less_one(part, size)
        factor = factor[left]
        sizes = np.hypot(1 + factor.real, factor.imag)
        error = (transform * turn[left] + 2 * _EPS) * spread + 4 * _EPS * np.abs(factor)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_one = 0.5 * np.log1p(np.maximum(2 * factor.real + np.square(np.abs(factor)), -1.0))
            angle_one = np.arctan2(factor.imag, 1 + factor.real)
            above = np.log1p(error / sizes)
            log_bound = log_bound + count * np.log(sizes + error)
            log_gap = log_gap + count * (above + 4 * _EPS * (np.abs(log_one) + np.abs(angle_one)))
        stays = log_bound > _VANISHED
        log_size, angle = ((before if np.ndim(before) == 0 else before[stays]) for before in (log_size, angle))
        log_size, angle = log_size + count * log_one[stays], angle + count * angle_one[stays]
        log_bound, log_gap = log_bound[stays], log_gap[stays]
        left = np.flatnonzero(stays) if isinstance(left, slice) else left[stays]
        shift += (part.start + peak) * count
    spectrum = np.zeros(size // 2 + 1, dtype=np.complex128)
    spectrum[left] = np.exp(log_size) * (np.cos(angle) + 1j * np.sin(angle))
    weights = np.maximum(irfft(spectrum, size), 0.0)
    weights = np.roll(weights, (shift - first) % size)
    # Cauchy and Schwarz, then Parseval: errors of all weights add up to no more than the norm of the spectrum's errors
    errors = np.exp(log_bound) * (transform - np.expm1(-log_gap))
    rounded = math.sqrt(2.0 * float(np.sum(np.square(errors)))) + size * math.exp(_VANISHED)
    gone = sum(count * math.log1p(part.missing) for part, count in parts)
    missing = (math.expm1(gone) if gone < 1 else math.inf) + lost_above + lost_below + rounded
    total = float(weights.sum())
    log_moment = sum(count * part.log_moment for part, count in parts) + math.log(total)
    rounding = sum(count * part.rounding for part, count in parts) + 4 * _EPS
    moved = sum(count * math.log1p(part.doubtful) for part, count in parts)
    doubtful = math.expm1(moved) if moved < 1 else math.inf
    return _Tilted(weights / total, first, h, log_moment, missing / total, rounding, doubtful / total)


def _less_one(part: _Tilted, size: int) -> tuple[int, Any, float]:
    """The place k of the largest weight, the Fourier transform of the weights around it less 1, and Σ |weight's distance from k|.

    Σ w_m·(e^{−imθ} − 1) is (e^{−iθ} − 1)·Σ S_j·e^{−ijθ}, where S_j is the weight above j for j ≥ 0, and less the weight up to j
    for j < 0 (summation by parts). So rounding, in proportion to θ·Σ |S_j|, is small where most weight lies at one place, as of
    rare samples, and where θ is small: other frequencies are next to nothing where copies are many.
    """
    peak = int(np.argmax(part.weights))
    sums = np.concatenate([-np.cumsum(part.weights[:peak]), np.cumsum(part.weights[:peak:-1])[::-1]])
    wrapped = np.zeros(-(-max(sums.size, 1) // size) * size)
    wrapped[: sums.size] = sums
    theta = 2 * np.pi / size * np.arange(size // 2 + 1)
    turned = np.exp(1j * np.remainder(peak * np.arange(size // 2 + 1), size) * (2 * np.pi / size))
    transformed = rfft(wrapped.reshape(-1, size).sum(axis=0)) * turned
    # e^{−iθ} − 1 without cancellation
    return peak, transformed * (-2j * np.sin(theta / 2) * np.exp(-0.5j * theta)), float(np.abs(sums).sum())


def _window(parts: Sequence[tuple[_Tilted, int]], deviation: float, side: float, aliased: float) -> tuple[float, float]:
    """A distance from the mean, and Chernoff's bound on the mass beyond it on one side: `aliased`, unless points are too few."""
    best = math.inf
    tried: list[tuple[float, float]] = []
    for step in _STEPS:
        rate = step / deviation
        moment = sum(count * part.further(side * rate) for part, count in parts)
        tried.append((rate, moment))
        reach = (moment - math.log(aliased)) / rate
        if reach > best:
            break
        best = reach
    most = _MAX_POINTS * parts[0][0].h
    if best <= most:
        return max(best, parts[0][0].h), aliased
    return most, math.exp(min(0.0, *(moment - most * rate for rate, moment in tried)))


@dataclass(frozen=True)
class _Jump:
    """Runs in which at least one copy has a loss above `c`: the event A.

    With S for the sum of all losses, E_P (1 − e^{ε−S})₊ on A is P(A) − e^ε·Q(A) + E_Q (e^ε − e^S)₊ on A. The last term needs
    the other copies to lose what the one has gained: with n·q the mean number under Q of copies beyond c, it is at most
    n·q·e^ε·Q(the others' sum is below ε − c), and that at most e^{log_moment − rate·(c − ε)} (Chernoff), where log_moment is
    that of −rate·S under Q, of all copies: each has a mean of e^{−rate·loss} of at least 1 (Jensen).
    """

    p: float  # P(A), from above
    q: float  # Q(A), from below
    rate: float
    log_rest: float  # ln of n·q·e^{log_moment − rate·c}, from above
    tuned: float  # an ε that the rate suits

    def delta(self, epsilon: float) -> float:
        """Upper bound on the part of δ(ε) that A has, which does not rise with ε."""
        return min(self.p, self._at(min(epsilon, self.tuned)), self._at(epsilon))

    def _at(self, epsilon: float) -> float:
        rest = self.log_rest + (1 + self.rate) * epsilon
        return max(0.0, self.p - math.exp(min(epsilon, LOSS_CAP)) * self.q) + math.exp(min(rest, 0.0))


@dataclass(frozen=True)
class _Composition:
    """A composition in one direction, tilted by `tilt`. `infinite`: P-mass of an infinite loss. `jump`: what is known of runs in
    which a copy has a loss beyond those that were composed."""

    whole: _Tilted
    tilt: float
    infinite: float
    jump: _Jump | None = None

    def log_delta(self, epsilon: float) -> float:
        """ln of an upper bound on δ(ε)."""
        return self._log_delta(epsilon)[0]

    def _log_delta(self, epsilon: float) -> tuple[float, float]:
        """The same, and the part of it that is slack."""
        lam = self.tilt
        total = self._beyond(epsilon)
        slack = self.whole.missing * math.exp(_log_peak(lam)) + self.whole.doubtful + 1e-26
        log_scale = self.whole.log_moment + self.whole.rounding - lam * epsilon
        log_jump = _log_of(self.jump.delta(epsilon)) if self.jump else -math.inf
        logs = [log_scale + math.log(total + slack), log_jump, _log_of(self.infinite)]
        largest = max(logs)
        if largest >= 0:
            return 0.0, 1.0
        log_delta = largest + math.log(sum([math.exp(log - largest) for log in logs]))
        if log_delta >= 0:
            return 0.0, 1.0
        return log_delta, 1.0 - total * math.exp(log_scale - log_delta) - math.exp(log_jump - log_delta)

    def _beyond(self, epsilon: float) -> float:
        """δ(ε) without slack, in units of e^{log-moment − tilt·ε}."""
        lam, losses = self.tilt, self.whole.losses
        first = int(np.searchsorted(losses, epsilon, side="right"))
        last = int(np.searchsorted(losses, epsilon + 60.0 / max(lam, 1e-12), side="right"))  # e^{−60}: below the slack
        gap = losses[first:last] - epsilon
        return float(np.dot(self.whole.weights[first:last], np.exp(-lam * gap) * -np.expm1(-gap)))

    def loose(self, epsilon: float) -> float:
        """About how much of ε is slack, relative: what is due to rounding, to a window or to losses that count as infinite."""
        return self._log_delta(epsilon)[1] / max(self.tilt * epsilon, 1e-300)


def _log_of(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _in_levels(
    parts: Sequence[tuple[_Tilted, int]], levels: int, group: int, tilt: float, spacing: Callable[[int], float]
) -> _Tilted:
    """Copies on one grid, composed in groups of so many, then groups of these, each level on a grid for as many as are left."""
    for _ in range(levels - 1):
        copies = sum(count // group for _, count in parts) + 1
        aliased = _ALIASED / copies / levels
        rest = [(part, count % group) for part, count in parts if count % group]
        groups = [(_convolved([(part, group)], aliased), count // group) for part, count in parts if count >= group]
        groups += [(_convolved(rest, aliased), 1)] if rest else []
        if hopeless := [part for part, _ in groups if part.missing >= 1]:
            return replace(hopeless[0], missing=math.inf)
        h, coarser = groups[0][0].h, spacing(copies)
        parts = [(part.relaid(coarser, tilt) if coarser > 1.5 * h else part, count) for part, count in groups]
    return _convolved(parts, _ALIASED)


class _Direction:
    """Pairs, with counts, whose composition is one direction of an event. `infinite`: P-mass that has an infinite loss anyway."""

    def __init__(self, pairs: Sequence[tuple[LossPair, int]], infinite: float, tolerance: float) -> None:
        self._parts = [(_Rough(pair), count) for pair, count in pairs]
        self._copies = sum(count for _, count in pairs)
        self._given = infinite
        self._tolerance = tolerance
        self.coarse = False  # whether a grid had to be coarser than the tolerance asks for, so that bounds are loose
        #: bound on the P-mass of an infinite loss
        self.infinite = min(1.0, infinite + sum(count * rough.infinite for rough, count in self._parts))

    def epsilon(self, delta: float) -> float:
        if self.infinite >= delta or self._copies > _COUNTLESS:
            return math.inf
        log_target, log_cut = math.log(delta), math.log(delta - self._given) + _CUT
        if self._given + sum(count * rough.at_zero for rough, count in self._parts) <= delta:
            return 0.0  # total variations add up
        if max(rough.at_zero for rough, _ in self._parts) <= delta and self.log_delta(0.0) <= log_target:
            return 0.0
        points = self._points(log_cut)
        _, renyi = self._minimise(lambda t: (self._log_moment(t, points) - log_target + _log_peak(t)) / t)
        place, best = renyi, math.inf
        for _ in range(_MOST_PLACES):
            place = max(place, _SMALLEST)
            composition = self._compose(place, log_cut, 0.01)
            if composition.infinite >= delta:
                return best
            found = solve_decreasing(lambda e, at=composition: at.log_delta(e) - log_target, scale=place)
            falls = found < best * (1 - _FALLS)
            best = min(best, found)
            if not falls or best <= _SMALLEST or (found > 0.5 * place and composition.loose(found) <= _SETTLED):
                break
            place = best
        return best

    def log_delta(self, epsilon: float) -> float:
        return self.at(epsilon, epsilon).log_delta(epsilon) if self.infinite < 0.5 and self._copies <= _COUNTLESS else 0.0

    def at(self, epsilon: float, beyond: float) -> _Composition:
        """The composition for `epsilon`, which is good for profiles up to the ε `beyond`."""
        points = self._points(-math.inf)
        _, log_delta = self._minimise(lambda t: self._log_moment(t, points) - t * beyond + _log_peak(t))
        for _ in range(_MOST_PLACES - 1):
            composition = self._compose(epsilon, log_delta + _CUT, 0.1, max(epsilon, beyond))
            found = composition.log_delta(beyond)
            if _log_of(composition.infinite - self._given) <= found + _CUT / 2 or found > log_delta - 1:
                return composition
            log_delta = min(log_delta, found)
        return self._compose(epsilon, log_delta + _CUT, 0.1, max(epsilon, beyond))

    def _points(self, log_mass: float) -> list[int]:
        """Points of each part up to where losses count as infinite, which all together are met with a chance of e^log_mass."""
        each = math.exp(log_mass) / self._copies
        return [rough.beyond(each)[0] for rough, _ in self._parts]

    def _log_moment(self, t: float, points: Sequence[int]) -> float:
        return sum([count * rough.log_moment(t, some) for (rough, count), some in zip(self._parts, points, strict=True)])

    def _minimise(self, objective: Callable[[float], float]) -> tuple[float, float]:
        """The tilt with the smallest objective, and that value."""
        log_tilt, value = root_finding.least(lambda log_t: objective(math.exp(log_t)), -9.0, 23.0, xtol=0.03)
        return math.exp(log_tilt), value

    def _jump(self, epsilon: float, log_cut: float, largest: float) -> tuple[list[int], _Jump] | None:
        """Points of each part up to a place between ε and `largest` beyond which runs are bounded apart, with a slack of no more
        than e^log_cut, and that bound; None where there is none, as where it is not known what losses are at least."""
        if any(rough.least == -math.inf for rough, _ in self._parts):
            return None
        if epsilon <= 0 or _JUMPS[0] * epsilon >= largest:
            return None
        counts = [count for _, count in self._parts]
        moments = [(rate / epsilon, self._lower_moment(rate / epsilon)) for rate in _RATES]
        for factor in _JUMPS:
            beyond = [rough.larger_than(factor * epsilon) for rough, _ in self._parts]
            place = min(at for _, at, _, _ in beyond)
            expected = sum(count * q for count, (_, _, _, q) in zip(counts, beyond, strict=True)) * (1 + _TAILS)
            if not place < largest or expected <= 0:
                return None
            rest, rate = min((moment - t * (place - epsilon), t) for t, moment in moments)
            p, q = (-math.expm1(sum(n * math.log1p(-each[k]) for n, each in zip(counts, beyond, strict=True))) for k in (2, 3))
            if np.logaddexp(math.log(expected) + rest + epsilon, math.log(2 * _TAILS * p)) <= log_cut:
                bound = _Jump(p * (1 + _TAILS), q * (1 - _TAILS), rate, math.log(expected) + rest - rate * epsilon, epsilon)
                return [points for points, _, _, _ in beyond], bound
        return None

    def _lower_moment(self, t: float) -> float:
        return sum(count * rough.lower_moment(t) for rough, count in self._parts)

    def _compose(self, epsilon: float, log_cut: float, fine: float, far: float = 0.0) -> _Composition:
        """Tuned to ε, or to `fine`/tilt where ε is less: δ falls by a factor of e every 1/tilt. The largest losses count as
        infinite: a P-mass of e^log_cut in all copies together."""
        each = math.exp(log_cut) / self._copies
        cuts = [rough.beyond(each) for rough, _ in self._parts]
        points = [some for some, _ in cuts]
        infinite = self._given + sum(count * mass for (_, count), (_, mass) in zip(self._parts, cuts, strict=True))
        jump = None
        largest = max(float(rough.edges[some - 1]) for (rough, _), some in zip(self._parts, points, strict=True))
        if found := self._jump(max(epsilon, far), log_cut, largest):
            (points, jump), infinite = found, self._given
        tilt, _ = self._minimise(lambda t: self._log_moment(t, points) - t * epsilon + _log_peak(t))
        rough = [part.tilted(tilt, some) for (part, _), some in zip(self._parts, points, strict=True)]
        variance = sum(count * each for (_, count), (_, _, each) in zip(self._parts, rough, strict=True))
        levels = max(1, math.ceil(math.log(self._copies) / math.log(_MOST_COPIES)))
        group = math.ceil(self._copies ** (1 / levels)) if levels > 1 else self._copies
        resolved = max(epsilon, fine / tilt)
        spacing = functools.partial(self._spacing, levels=levels, variance=variance, tilt=tilt, epsilon=resolved)
        h = spacing(self._copies)
        spans = [
            part.span(tilt, some, log_moment + math.log(_BELOW / self._copies))
            for (part, _), some, (log_moment, _, _) in zip(self._parts, points, rough, strict=True)
        ]
        widest = max(high - low for low, high in spans)
        finest = max(_JUMPS_HELD * widest, 40 * math.sqrt(variance * group / self._copies)) / _MAX_POINTS
        self.coarse = self.coarse or h < finest
        h = min(max(h, finest), _WIDEST_CELL)
        while True:
            parts = [
                (lay(part.pair, h, *span).tilted(tilt), count) for (part, count), span in zip(self._parts, spans, strict=True)
            ]
            whole = _in_levels(parts, levels, group, tilt, spacing)
            if whole.missing < 1 or levels == 1 or h >= widest / 1000:
                return _Composition(whole, tilt, min(infinite, 1.0), jump)
            h *= 8  # windows were too narrow

    def _spacing(self, copies: int, levels: int, variance: float, tilt: float, epsilon: float) -> float:
        """Of a grid for so many copies, whose part of the tolerance is the same at all levels.

        Splitting masses adds h²/6 to one copy's variance, and up to t²h²/8 to its log-moment: ε moves by copies·t·h²/8. The grid
        must resolve ε too.
        """
        tolerance = self._tolerance / levels
        return min(
            math.sqrt(max(variance, 1e-300) * 6 * tolerance / copies),
            math.sqrt(8 * tolerance * epsilon / (tilt * copies)),
            max(epsilon, 0.1 / tilt) * math.sqrt(tolerance),
        )


class PrivacyLossDistribution:
    """The composed privacy loss of an event, both directions. Raises UnsupportedEventError where it has no bound."""

    def __init__(self, event: Event, tolerance: float = TOLERANCE) -> None:
        counts = leaves(event)
        # Gaussians compose exactly into one, under any relation (Dong, Roth, Su 2022, Corollary 3.3).
        squares = sum(n * min(1 / leaf.noise_multiplier, 1e100) ** 2 for leaf, n in counts.items() if isinstance(leaf, Gaussian))
        pairs = [pair for leaf, n in counts.items() if not isinstance(leaf, Gaussian) for pair in composed_pairs(leaf, n)]
        if squares > 0:
            pairs.append((symmetric(gaussian_pair(max(math.sqrt(squares), 1 / MOST_NOISE))), 1))
        self._astray = min(1.0, sum(n * leaf.astray for leaf, n in counts.items()))
        # nor is there hope where all losses are beyond the largest that counts as finite
        hopeless = any(pair.infinite >= 1 or max(pair.remove.support[0], pair.add.support[0]) >= LOSS_CAP for pair, _ in pairs)
        self._infinite = 1.0 if hopeless else -math.expm1(sum(n * math.log1p(-pair.infinite) for pair, n in pairs))
        self._directions: list[_Direction] = []
        if pairs and not hopeless:
            self._directions.append(_Direction([(pair.remove, n) for pair, n in pairs], self._infinite, tolerance))
            if any(pair.remove is not pair.add for pair, _ in pairs):
                self._directions.append(_Direction([(pair.add, n) for pair, n in pairs], self._infinite, tolerance))

    @property
    def coarse(self) -> bool:
        """Whether a grid had to be coarser than the tolerance asks for, so that bounds are loose."""
        return any(direction.coarse for direction in self._directions)

    def epsilon(self, delta: float) -> float:
        """Upper bound on the smallest ε ≥ 0 with δ(ε) ≤ `delta`; inf where no finite ε is found."""
        if self._infinite >= 1:
            return math.inf
        tried = 0.0
        while (left := delta - self._gone_astray(tried)) > 0:
            found = max((direction.epsilon(left) for direction in self._directions), default=0.0)
            if found <= tried or not self._astray:
                return max(found, tried)
            tried = found * (1 + 1e-6)  # what goes astray costs more the larger ε is: up to where both agree
        return math.inf

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ(ε)."""
        if self._infinite >= 1:
            return 1.0
        kept = max((math.exp(direction.log_delta(epsilon)) for direction in self._directions), default=0.0)
        return min(1.0, kept + self._gone_astray(epsilon))

    def _gone_astray(self, epsilon: float | Array) -> Any:
        """What a mechanism that is another with a small chance adds to δ, on both sides: |P − P'| and e^ε·|Q − Q'|."""
        return self._astray * (1 + np.exp(np.minimum(epsilon, LOSS_CAP))) if self._astray else 0.0

    def deltas(self, epsilons: Sequence[float]) -> Array:
        """The same at each of `epsilons`, from a few compositions: near what each would have of its own, but for one or two steps
        at tiny ε, where it is far above."""
        points = np.asarray(epsilons, dtype=float)
        if self._infinite >= 1 or any(direction.infinite >= 0.5 for direction in self._directions):
            return np.ones(len(points))
        largest = float(points.max())
        places = [share * max(largest, 1e-6) for share in _ANCHORS]
        log_deltas = np.full(len(points), -math.inf)
        for direction in self._directions:
            logs = np.zeros(len(points))
            for number, place in enumerate(places):
                near = points > (places[number - 1] + place) / 2 if number else np.full(len(points), True)
                if np.any(near & (logs > log_deltas)):  # the other direction may be the larger one already
                    composition = direction.at(place, largest)
                    logs = np.minimum(logs, [composition.log_delta(epsilon) for epsilon in points])
            log_deltas = np.maximum(log_deltas, logs)
        return np.minimum(np.exp(log_deltas) + self._gone_astray(points), 1.0)


def _log_peak(t: float) -> float:
    """ln max over x ≥ 0 of e^{−tx}(1 − e^{−x})."""
    return -t * math.log1p(1 / t) - math.log1p(t)


def pld_epsilon(event: Event, delta: float, tolerance: float = TOLERANCE) -> float:
    return PrivacyLossDistribution(event, tolerance).epsilon(delta)


def pld_epsilon_and_doubt(event: Event, delta: float, tolerance: float = TOLERANCE) -> tuple[float, bool]:
    """`pld_epsilon`, and whether its grid was too coarse for the tolerance: another accountant may then give less."""
    distribution = PrivacyLossDistribution(event, tolerance)
    return distribution.epsilon(delta), distribution.coarse


def pld_delta(event: Event, epsilon: float, tolerance: float = TOLERANCE) -> float:
    return PrivacyLossDistribution(event, tolerance).delta(epsilon)
