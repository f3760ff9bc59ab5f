"""What counts of right and wrong guesses prove about ε, and when they contradict a certificate.

A distinguisher of two neighbouring data sets has a false-positive rate a and a false-negative rate b. A mechanism whose
profile is δ(ε) allows only a, b with e^ε·a + b ≥ 1 − δ(ε) and a + e^ε·b ≥ 1 − δ(ε) for every ε ≥ 0 (Kairouz, Oh,
Viswanath 2015). Confidence bounds on a and b are exact (Clopper and Pearson 1934).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr, betaincinv, ndtri

from dperm import _validate as check
from dperm._types import Array
from dperm.privacy import Event, delta
from dperm.privacy.accountants.gaussian import gaussian_epsilon

_GRID = 65  # values of ε at which a trade-off curve is bounded: a coarser grid refutes less, never more
_CANDIDATES = 400  # thresholds that are looked at
COARSE = 1e-2  # relative grid error of the PLD here; its δ(ε) is an upper bound at any


def upper_bound(errors: ArrayLike, trials: int, confidence: float) -> Array:
    """Clopper–Pearson: the true rate is at most this with the given confidence; `errors` of `trials` were seen."""
    errors = np.asarray(errors, dtype=float)
    with np.errstate(invalid="ignore"):
        bound = betaincinv(errors + 1, np.maximum(trials - errors, 1e-300), confidence)
    return np.where(errors >= trials, 1.0, bound)


def epsilon_from_rates(false_positive: ArrayLike, false_negative: ArrayLike, delta: float) -> Array:
    """Largest ε that rates (a, b) contradict at `delta`: ln((1 − δ − b)/a) or ln((1 − δ − a)/b), and 0 at least."""
    a, b = np.broadcast_arrays(np.asarray(false_positive, dtype=float), np.asarray(false_negative, dtype=float))
    with np.errstate(divide="ignore"):
        values = [np.log(np.maximum(1 - delta - y, 0) / x) for x, y in ((a, b), (b, a))]
    return np.maximum(np.maximum(*values), 0.0)


@functools.lru_cache(maxsize=64)
def trade_off(event: Event, trials: int) -> TradeOff:
    """The curve of an event, as far out as `trials` can see; kept, because audits come in series."""
    return TradeOff(event, math.log(max(trials, 20)) + 2)


class TradeOff:
    """The least false-negative rate that an event allows at each false-positive rate, bounded from below on a grid of ε.

    Raises UnsupportedEventError for an event that no accountant bounds.
    """

    def __init__(self, event: Event, largest_epsilon: float = 16.0) -> None:
        self._event = event
        # dense near 0, where attacks at moderate rates live, and reaching as far as trials can prove anything
        self.epsilons = largest_epsilon * np.linspace(0.0, 1.0, _GRID) ** 1.5

    @functools.cached_property
    def deltas(self) -> Array:
        """δ at each ε of the grid, upper bounds."""
        deltas = np.zeros(_GRID)
        for index, epsilon in enumerate(self.epsilons):
            deltas[index] = delta(self._event, float(epsilon), COARSE)
            if deltas[index] < 1e-12:  # smaller than any rate that can be measured: rounded up from here on
                deltas[index:] = 1e-12
                break
        return deltas

    def excess(self, false_positive: ArrayLike, false_negative: ArrayLike) -> Array:
        """How far the point (a, b) lies below the curve: positive means that no (a, b) ≤ this point is allowed."""
        a = np.asarray(false_positive, dtype=float)[..., None]
        b = np.asarray(false_negative, dtype=float)[..., None]
        allowed = 1 - self.deltas
        growth = np.exp(self.epsilons)
        # divided by e^ε: the excess of the rate that is small, so that far tails count as they should
        return np.maximum((allowed - b) / growth - a, (allowed - a) / growth - b).max(axis=-1)


@dataclass(frozen=True)
class Threshold:
    """A test "score > value means the second world", or, where `flipped`, "score < value"."""

    value: float
    flipped: bool = False

    def errors(self, first: Array, second: Array) -> tuple[int, int]:
        """False positives among the first world's scores, false negatives among the second's."""
        if self.flipped:
            return int((first < self.value).sum()), int((second >= self.value).sum())
        return int((first > self.value).sum()), int((second <= self.value).sum())


def choose_threshold(first: Array, second: Array, merit: Callable[[Array, Array], Array], confidence: float) -> Threshold:
    """The threshold whose confidence box has the largest `merit(a, b)` on these scores; to be used on others.

    `confidence` is of the whole box: half of what may go wrong for each side.
    """
    best, chosen = -math.inf, Threshold(0.0)
    for flipped in (False, True):  # a tail may point the other way than the bulk
        sign = -1.0 if flipped else 1.0
        low, high = np.sort(sign * first), np.sort(sign * second)
        candidates = _between(np.concatenate([low, high]))
        a = upper_bound(len(low) - np.searchsorted(low, candidates, side="right"), len(low), 1 - (1 - confidence) / 2)
        b = upper_bound(np.searchsorted(high, candidates, side="right"), len(high), 1 - (1 - confidence) / 2)
        merits = merit(a, b)
        place = int(np.argmax(merits))
        if merits[place] > best:
            best, chosen = float(merits[place]), Threshold(sign * float(candidates[place]), flipped)
    return chosen


def _between(scores: Array) -> Array:
    """Thresholds halfway between neighbouring scores, at the quantiles of `_levels`: others' scores fall beside them."""
    values = np.unique(scores)
    if len(values) == 1:
        return values
    places = np.unique(np.round(_levels() * (len(values) - 2)).astype(int))
    low, high = values[places], values[places + 1]
    return np.where(np.isfinite(low) & np.isfinite(high), low + (high - low) / 2, low)


def _levels() -> Array:
    """Quantiles to look at: dense at both ends, where most is proven."""
    middle = np.linspace(0.0, 1.0, _CANDIDATES // 2)
    tail = np.logspace(-6, -1, _CANDIDATES // 4)
    return np.unique(np.concatenate([middle, tail, 1 - tail]))


@dataclass(frozen=True)
class Estimate:
    """An estimate of ε, and its interval. It rests on a model of the scores: never a proof, never a verdict.

    `high` is None where nothing bounds it from above: worlds that never overlap.
    """

    epsilon: float
    low: float
    high: float | None
    method: str


def area_under_curve(first: Array, second: Array) -> tuple[float, float]:
    """P(second > first) + P(equal)/2, and its standard error (DeLong, DeLong, Clarke-Pearson 1988)."""
    low, high = np.sort(first), np.sort(second)
    above = (np.searchsorted(low, second, side="left") + np.searchsorted(low, second, side="right")) / (2 * len(first))
    below = 1 - (np.searchsorted(high, first, side="left") + np.searchsorted(high, first, side="right")) / (2 * len(second))
    variance = sum(float(part.var(ddof=1)) / len(part) if len(part) > 1 else 0.25 for part in (above, below))
    return float(above.mean()), math.sqrt(variance)


def gdp_estimate(first: Array, second: Array, delta: float, confidence: float) -> Estimate | None:
    """ε(δ) of the Gaussian mechanism whose two worlds overlap as these scores do: μ = √2·Φ⁻¹(AUC).

    Exact where scores are Gaussian (Nasr et al. 2023 read μ off one threshold; the area uses all of them). Elsewhere it
    can be far too large: randomised response at ε = 1 would be given 3.7 at δ = 1e-5. None at δ = 0, where no Gaussian
    mechanism is private.
    """
    if delta == 0:
        return None
    area, error = area_under_curve(first, second)
    area = max(area, 1 - area)
    spread = float(ndtri(1 - (1 - confidence) / 2)) * error
    # scores that never overlap have no spread: as if one comparison in the smaller world might have gone wrong
    seen = 1 - float(upper_bound(0, min(len(first), len(second)), 1 - (1 - confidence) / 2))
    middle, low = (_epsilon_of_area(min(value, seen), delta) for value in (area, area - spread))
    high = None if area + spread >= 1 - 1e-12 or area == 1 else _epsilon_of_area(area + spread, delta)
    return Estimate(middle, low, high, "Gaussian DP")


def _epsilon_of_area(area: float, delta: float) -> float:
    mu = math.sqrt(2) * float(ndtri(max(area, 0.5)))
    return gaussian_epsilon(1 / mu, delta) if mu > 1e-9 else 0.0


# One run (Steinke, Nasr, Jagielski 2023)


def one_run_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Bound on the probability of `correct` or more right guesses of `guesses`, of `canaries` included by fair coins.

    Under (ε, 0): a binomial tail with success rate e^ε/(1 + e^ε). δ adds 2·canaries·δ·max_i P[correct > W ≥ correct − i]/i
    (Theorem 5.2).
    """
    if correct <= 0:
        return 1.0
    rate = 1 / (1 + math.exp(-epsilon))
    below = bdtr(np.arange(correct), guesses, rate)  # P[W ≤ k], k < correct
    tail = 1 - float(below[-1])
    if delta == 0:
        return min(tail, 1.0)
    shortfall = below[-1] - np.append(below[:-1][::-1], 0.0)  # P[correct > W ≥ correct − i], i = 1 … correct
    slope = float((shortfall / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * slope)


def one_run_epsilon(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """Largest ε that `correct` of `guesses` right guesses refute with the given confidence."""
    check.fraction("confidence", confidence)
    allowed = 1 - confidence
    if one_run_p_value(canaries, guesses, correct, 0.0, delta) > allowed:
        return 0.0
    low, high = 0.0, 1.0
    while one_run_p_value(canaries, guesses, correct, high, delta) <= allowed and high < 60:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        if one_run_p_value(canaries, guesses, correct, middle, delta) <= allowed:
            low = middle
        else:
            high = middle
    return low
