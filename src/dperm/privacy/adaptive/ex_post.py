"""What a mechanism costs that is stopped on the way: a query released with less and less noise, until what was seen is enough.

X_1, X_2, … are the query plus independent Gaussian noise, and Y_k is the mean of X_1, …, X_k weighted by their precisions. So
(Y_k) is the query plus one Brownian path in 1/time, whose later points make the earlier ones post-processing (Whitehouse, Wu,
Ramdas, Rogers 2022). With μ_k the sensitivity of Y_k in units of its noise, the privacy loss of (X_1, …, X_k) is a Gaussian walk
L_k ~ N(μ_k²/2, μ_k²) with independent increments.

If the run stops at k, by a rule that saw X_1, …, X_k and public facts alone, it is charged ε_k. That is *ex-post* private
(Ligett, Neel, Roth, Waggoner, Wu 2017) with δ when, for every stopping rule and every set of outcomes O_k at k,

    Σ_k [P(O_k) − e^{ε_k} Q(O_k)] ≤ δ.

The left side is at most sup E_P(1 − e^{ε_τ − L_τ})⁺ over stopping times τ of the walk: an optimal stopping problem in one number,
solved here backwards. In r = e^{−L} its value is convex at every k (a maximum of convex functions and their means), so chords
between grid points, and increments split between neighbouring grid points that keep the mean of r, bound it from above.

With δ = 0, Y_k is the query plus noise of density ∝ e^{−μ_k‖b‖/Δ}, and each Y_k is Y_{k+1} plus noise that depends on nothing
(Ligett and others 2017; in any dimension: `NoiseStream.rounded_balls`). Y_1, …, Y_k are made of Y_k, whose densities are within
e^{μ_k} of each other everywhere: so ε_k = μ_k, whatever rule stops.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

from dperm import _validate as check
from dperm._types import Array
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from dperm.privacy.events import LARGEST_NUMBER, AboveThreshold, Composed, Event, Gaussian, PureDP, Relation

_REACH = 9.0  # standard deviations of the walk, and of each step, that the grid holds; what is beyond is added to the bound
_BEYOND = 1e-18  # P(|N(0, 1)| > 9), rounded up
_ROUNDING = 1e-15  # of one convolution, relative to the largest value, 1
_FARTHEST = 700.0  # of losses
MOST_STOPS = 256  # of a path: each takes a convolution
_FINEST, _MOST = 0.05, 1 << 15  # a grid's step in units of the smallest increment; and how many points at most
_SLACK = 1e-3  # of δ: how near the levels come to it
_NEAR = 1e-4  # of ε: how near the last level of a path comes to it
_ROUNDS = 6


@dataclass(frozen=True)
class ExPost:
    """Where a run stopped, and what that costs: stop `stop` = k, counted from 1, costs (`epsilons[k − 1]`, `delta`) ex post.

    `signals[k − 1]` is μ_k, the sensitivity of what k releases tell in units of its noise (of its density's scale, where `delta`
    is 0); `asked` the ε of an
    AboveThreshold that decided to stop, already within `epsilons`; 0 where the decision cost nothing. Ex-post privacy with δ > 0
    is not closed under post-processing: a smaller ε must not be read off what is made of the release.
    """

    signals: tuple[float, ...]
    epsilons: tuple[float, ...]
    delta: float
    stop: int
    asked: float = 0.0

    def __post_init__(self) -> None:
        for name in ("signals", "epsilons"):
            numbers = tuple(float(check.finite(name, value)) for value in getattr(self, name))
            if len(numbers) > MOST_STOPS:
                raise ValueError(f"Expected at most {MOST_STOPS} {name}, got {len(numbers)}.")
            object.__setattr__(self, name, numbers)
        at = _rising(self.signals)
        object.__setattr__(self, "delta", float(check.fraction("delta", self.delta, zero=True)))
        object.__setattr__(self, "asked", float(check.non_negative("asked", self.asked)))
        if self.delta > 0:
            _gaussian(at)
        if len(self.epsilons) != len(self.signals):
            raise ValueError(f"Expected as many epsilons as signals, got {len(self.epsilons)} and {len(self.signals)}.")
        object.__setattr__(self, "stop", check.integer("stop", self.stop))
        if not self.stop <= len(self.signals):
            raise ValueError(f"Expected stop from 1 to {len(self.signals)}, got {self.stop}.")

    @property
    def epsilon(self) -> float:
        """What the run cost, ex post."""
        return self.epsilons[self.stop - 1]

    @property
    def multipliers(self) -> Array:
        """(K,) noise multipliers of the releases X_k by themselves, which are Gaussian."""
        return 1 / np.sqrt(np.diff(np.square(self.signals), prepend=0.0))

    def event(self, relation: Relation) -> Event:
        """What the whole path costs."""
        releases: list[Event] = [PureDP(self.signals[-1], relation)]
        if self.delta > 0:
            releases = [Gaussian(float(multiplier), relation) for multiplier in self.multipliers]
        question = self.question(relation)
        return Composed((*releases, *([question] if question else [])))

    def question(self, relation: Relation) -> AboveThreshold | None:
        """What decided to stop, where that is charged."""
        return AboveThreshold(self.asked, relation, len(self.signals)) if self.asked else None

    def verify(self) -> None:
        """Solve for δ again. ValueError where the ε stated do not keep it."""
        if self.delta == 0:
            if any(
                epsilon < (signal + self.asked) * (1 - 1e-12) for epsilon, signal in zip(self.epsilons, self.signals, strict=True)
            ):
                raise ValueError(f"The ex-post statement needs epsilons of {self.signals}, and states {self.epsilons}.")
            return
        needed = stopping_delta(self.signals, [value - self.asked for value in self.epsilons])
        if not needed <= self.delta * (1 + 1e-9):
            raise ValueError(f"The ex-post statement needs delta = {needed:.4g}, and states {self.delta:.4g}.")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; `ExPost(**data)` inverts it."""
        return {**vars(self), "signals": list(self.signals), "epsilons": list(self.epsilons)}

    def __str__(self) -> str:
        spent = f"({self.epsilon:.4g}, {self.delta:.2g})" if self.delta else f"epsilon {self.epsilon:.4g}"
        return (
            f"Stopped at release {self.stop} of {len(self.signals)}: {spent} ex post, for this "
            "outcome, whatever rule stopped it (late stops cost more so than the path by itself). Ex-post privacy is not closed "
            "under post-processing; other accounts take the ε above."
        )


def stopping_epsilons(signals: Sequence[float], delta: float) -> tuple[float, ...]:
    """(K,) levels ε_k that keep δ whatever rule stops the walk: those of the k-th alone at one smaller δ', as large as may be."""
    at = [float(signal) for signal in _rising(signals)]
    target = check.fraction("delta", delta) - 4 * _rounding(len(at))  # so that whoever solves again finds no more than `delta`
    if not target > 0.5 * delta:
        raise ValueError(
            f"Expected delta of at least {8 * _rounding(len(at)):.1g}, which {len(at)} stops are found to, got {delta:g}."
        )

    @functools.cache
    def levels(log_delta: float) -> tuple[float, ...]:
        return tuple(gaussian_epsilon(1 / signal, math.exp(log_delta)) for signal in at)

    def excess(log_delta: float) -> float:
        return math.log(stopping_delta(at, levels(log_delta))) - math.log(target)

    high = math.log(target)
    if excess(high) <= 0:  # one stop: nothing is chosen
        return levels(high)
    low = high - 1.0
    while excess(low) > 0:
        low, high = low - 1.0, low
    found = root_finding.root(excess, low, high, xtol=_SLACK)
    while excess(found) > 0:
        found -= _SLACK
    return levels(found)


@functools.lru_cache(maxsize=64)
def stopping_path(epsilon: float, delta: float, stops: int, span: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(`stops`,) signals, in equal ratios, the last `span` times as large as the first, and their levels, the last of which is
    `epsilon`, or less by at most 1e-4 of it."""
    shape = np.geomspace(1 / check.positive("span", span), 1.0, check.integer("stops", stops))
    shape[-1] = 1.0
    if delta == 0:
        signals = tuple(float(value) for value in check.positive("epsilon", epsilon) * shape)
        return signals, signals
    largest = gaussian_mu(check.positive("epsilon", epsilon), delta)
    for _ in range(_ROUNDS):
        signals = tuple(float(value) for value in largest * shape)
        levels = stopping_epsilons(signals, delta)
        if epsilon * (1 - _NEAR) <= levels[-1] <= epsilon:
            return signals, levels
        # δ' hardly depends on the scale: with it the next scale is found
        largest = gaussian_mu(epsilon * (1 - _NEAR / 2), gaussian_delta(1 / signals[-1], levels[-1]))
    raise ValueError(
        f"Expected an epsilon at which {stops} stops can be told apart, got {epsilon:g} at delta = {delta:g}: no noise is found."
    )


def stopping_delta(signals: Sequence[float], epsilons: Sequence[float]) -> float:
    """An upper bound on the least δ with which stops at ε_k are ex-post private, for every rule that stops: about 1e-3 of it,
    and some 1e-13, too large. ValueError for signals that do not rise."""
    at = _gaussian(_rising(signals))
    levels = np.asarray(epsilons, dtype=np.float64)
    if levels.shape != (len(at),) or not (levels >= 0).all():
        raise ValueError(f"Expected {len(at)} epsilons of at least 0, got {epsilons!r}.")
    squares = np.square(at)
    steps = np.diff(squares, prepend=0.0)
    low = min(0.0, float(np.min(squares / 2 - _REACH * at)))  # the walk starts at 0
    high = float(np.max(squares / 2 + _REACH * at))
    width = max(_FINEST * float(np.sqrt(steps.min())), (high - low) / _MOST)
    cells = np.arange(math.floor(low / width), math.ceil(high / width) + 1)
    losses = cells * width
    value = np.zeros(len(losses))
    for step, level in zip(steps[::-1], levels[::-1], strict=True):
        value = np.maximum(value, -np.expm1(np.minimum(level - losses, 0.0)))
        first, weights = _increments(float(step), width)
        # E value(ℓ + increment); beyond the grid: 1 above, and below what there is at its lower end
        below, above = max(0, -first), first + len(weights) - 1
        mean = _correlated(np.pad(value, (below, above), constant_values=(value[0], 1.0)), weights)
        value = mean[first + below :][: len(losses)]
    return min(1.0, float(value[-cells[0]]) + _rounding(len(at)))


def _rounding(stops: int) -> float:
    """What `stopping_delta` adds to be sure."""
    return stops * (_BEYOND + _ROUNDING)


def robbins_epsilon(signal: float, delta: float, rho: float) -> float:
    """The level of Robbins's normal mixture at μ = `signal`, valid at all times of the path at once (Whitehouse et al. 2022,
    Theorem 3.3): μ²/2 + √((μ² + ρ) ln((μ² + ρ)/(ρδ²))). For comparison; `stopping_epsilons` needs less."""
    time = check.positive("signal", signal) ** 2
    spread = time + check.positive("rho", rho)
    return time / 2 + math.sqrt(spread * math.log(spread / (rho * check.fraction("delta", delta) ** 2)))


def _correlated(values: Array, weights: Array) -> Array:
    """Σ_i weights[i]·values[j + i], for every j at which all are there."""
    size = int(next_fast_len(len(values), real=True))
    product = irfft(rfft(values, size) * np.conj(rfft(weights, size)), size)
    return product[: len(values) - len(weights) + 1]


def _increments(variance: float, width: float) -> tuple[int, Array]:
    """N(variance/2, variance) on multiples of `width`, with the mean of e^{−increment} kept: the first one, and the weights."""
    spread = math.sqrt(variance)
    first = math.floor((variance / 2 - _REACH * spread) / width)
    last = math.ceil((variance / 2 + _REACH * spread) / width)
    edges: Array = np.arange(first, last + 1, dtype=np.float64) * width
    # of each cell its mass, and its mass of N(−variance/2, variance), which is that of e^{−increment}
    mass = _normal_masses((edges - variance / 2) / spread)
    other = _normal_masses((edges + variance / 2) / spread)
    # mass·(1 − share) at the left edge and mass·share at the right one: e^{−a}(mass − right) + e^{−b} right = other
    right = np.clip((mass - other * np.exp(edges[:-1])) / -math.expm1(-width), 0.0, mass)
    weights = np.zeros(len(edges))
    weights[:-1] += mass - right
    weights[1:] += right
    return first, weights


def _normal_masses(edges: Array) -> Array:
    flipped = edges[:-1] > 0
    return np.where(flipped, ndtr(-edges[:-1]) - ndtr(-edges[1:]), ndtr(edges[1:]) - ndtr(edges[:-1]))


def _rising(signals: Sequence[float]) -> Array:
    values = np.asarray(signals, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not (np.diff(values, prepend=0.0) > 0).all() or not np.isfinite(values).all():
        raise ValueError(f"Expected signals that rise from above 0, got {signals!r}.")
    return values


def _gaussian(signals: Array) -> Array:
    """The signals as they are. ValueError where doubles hold no losses of a Gaussian walk at them, or no steps between them."""
    last = float(signals[-1])
    if not (last < LARGEST_NUMBER and last**2 / 2 + _REACH * last < _FARTHEST):
        raise ValueError(
            f"Expected signals of at most 29, whose losses doubles hold, got {last:.3g}: less epsilon, or a larger delta."
        )
    if not signals[0] > 1 / LARGEST_NUMBER:  # the squares of larger doubles rise as they do: none is below the normal range
        raise ValueError("Expected signals whose squares rise from above 0.")
    return signals
