"""Calibration: the least noise, or the most steps, that a budget pays for. Never above the target."""

from __future__ import annotations

import math
from collections.abc import Callable

from dperm import _validate as check
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.accounting import best_epsilon
from dperm.privacy.accountants.pld import TOLERANCE
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, excess
from dperm.privacy.accountants.risk import Risk
from dperm.privacy.events import Event, PrivacyProfile

_COARSE = 1e-3  # grid tolerance of the search; the answer is certified on the fine grid
_SLACK = 2e-5  # relative distance below the target at which the search stops
_LARGEST = 1e9
_FAR = 50.0  # ln of a ratio of δs


def calibrate(
    make_event: Callable[[float], Event],
    epsilon: float | Risk,
    delta: float | None = None,
    *,
    start: float = 1.0,
    draft: bool = False,
) -> float:
    """Smallest noise x, to about 1e-5 relative, for which `make_event(x)` is (ε, δ)-private, or keeps a `Risk`, which needs no δ.

    `make_event` maps a noise level to an event; more noise must mean more privacy. The answer's own ε is never above
    the target. Raises ValueError where no noise up to 1e9 reaches it (something in the event is not paid for by x).
    `start` is a guess; `draft` skips the certification, for rules that compare noise levels and charge nothing by them.
    """
    check.positive("start", start)
    if isinstance(epsilon, Risk):
        return epsilon.noise_for(make_event, start=start)
    check.positive("epsilon", epsilon)
    delta = _stated(delta)

    def spent(log_x: float, tolerance: float = TOLERANCE) -> float:
        return best_epsilon(make_event(math.exp(log_x)), delta, tolerance)[0]

    def excess(log_x: float) -> float:
        value = spent(log_x, _COARSE)
        return math.log(value / epsilon) if value else -math.inf

    low, high = _bracket(excess, math.log(start), epsilon, delta)
    log_x, slope = _secant(excess, low, high)
    if draft:
        return math.exp(log_x)
    return _certify(spent, log_x, slope, epsilon)


def calibrate_below(make_event: Callable[[float], Event], profile: PrivacyProfile, *, start: float = 1.0) -> float:
    """Smallest noise x, to about 1e-5 relative, for which `make_event(x)` stays below `profile` at every ε, so that it may take
    its place in a `ProfileFilter`.

    As for `calibrate`; `start` is a guess. BudgetExceeded where no noise is enough, ValueError where any is.
    """

    def beyond(log_x: float) -> float:
        return max(excess(make_event(math.exp(log_x)), profile), -_FAR)  # a finite number, for the search

    low = high = math.log(start)
    while beyond(low) <= 0:
        low, high = low - 0.2, low
        if low < -25.0:
            raise ValueError(f"Expected a profile that noise matters to, got {profile}.")
    while beyond(high) > 0:
        low, high = high, high + 0.2
        if high > 25.0:
            raise BudgetExceeded(f"No noise keeps a part within {profile}.")
    root = root_finding.root(beyond, low, high, xtol=1e-5)
    while beyond(root) > 0:
        root += 1e-5
    return math.exp(root)


def _unreachable(epsilon: float, delta: float) -> ValueError:
    return ValueError(
        f"Expected a target that noise can reach, got epsilon={epsilon!r} at delta={delta!r}: other parts exceed it, or use up "
        "delta."
    )


def _insensitive() -> ValueError:
    return ValueError("Expected make_event to lose privacy as its noise falls to 1e-9, but its epsilon stays below target.")


def _bracket(
    excess: Callable[[float], float], at: float, epsilon: float, delta: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Points (log x, excess) on both sides of the root, at most a factor e apart."""
    end, value = math.log(_LARGEST), excess(at)
    if value > 0:
        low = (at, value)
        while low[0] < end:
            point = min(low[0] + (1.0 if low[1] == math.inf else min(max(0.9 * low[1], 0.05), 2.0)), end)
            value = excess(point)
            if value <= 0:
                return low, (point, value)
            low = (point, value)
        raise _unreachable(epsilon, delta)
    high = (at, value)
    while high[0] > -end:
        point = max(high[0] - (1.0 if value == -math.inf else min(max(-0.9 * value, 0.05), 2.0)), -end)
        value = excess(point)
        if value > 0:
            return (point, value), high
        high = (point, value)
    raise _insensitive()


def _secant(excess: Callable[[float], float], low: tuple[float, float], high: tuple[float, float]) -> tuple[float, float]:
    """Root of the coarse curve to 1e-4 and the slope d ln ε / d ln x near it."""
    slope = -1.0
    for _ in range(60):
        finite = math.isfinite(low[1]) and math.isfinite(high[1])
        width = high[0] - low[0]
        if finite:
            slope = (high[1] - low[1]) / width
        if width < 1e-4 or (finite and abs(high[1]) < 1e-4):
            break
        # Secant steps inside the bracket, a little towards the nearer end so that both ends move.
        share = low[1] / (low[1] - high[1]) if finite else 0.5
        point = low[0] + width * min(max(share, 0.02), 0.98)
        value = excess(point)
        if abs(value) < 1e-4:
            return point, slope
        low, high = ((point, value), high) if value > 0 else (low, (point, value))
    return high[0], min(slope, -1e-3)


def _certify(spent: Callable[[float], float], log_x: float, slope: float, epsilon: float) -> float:
    """Walk on the fine curve until ε is within _SLACK below the target."""
    best = math.inf
    for _ in range(20):
        value = spent(log_x)
        if value <= epsilon:
            best = min(best, log_x)
            if value >= epsilon * (1 - _SLACK):
                break
        if not 0 < value < math.inf:
            break  # ε jumps here
        log_x += math.log(value / (epsilon * (1 - _SLACK / 2))) / -slope  # aim just below the target
    while best == math.inf:
        log_x += 1e-4
        best = log_x if spent(log_x) <= epsilon else math.inf
    return math.exp(best)


def calibrate_steps(
    make_event: Callable[[int], Event], epsilon: float | Risk, delta: float | None = None, *, limit: int = 10**9
) -> int:
    """Largest number of steps for which `make_event(steps)` is (ε, δ)-private, or keeps a `Risk`; 0 where one is too much, and
    never more than `limit`."""
    if isinstance(epsilon, Risk):
        fits = _kept(make_event, epsilon)
    else:
        fits = _within(make_event, check.positive("epsilon", epsilon), _stated(delta))

    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _kept(make_event: Callable[[int], Event], risk: Risk) -> Callable[[int], bool]:
    return lambda steps: risk.admits(make_event(steps))


def _within(make_event: Callable[[int], Event], epsilon: float, delta: float) -> Callable[[int], bool]:
    return lambda steps: best_epsilon(make_event(steps), delta)[0] <= epsilon


def _stated(delta: float | None) -> float:
    if delta is None:
        raise TypeError("Expected delta beside epsilon.")
    return check.fraction("delta", delta, zero=True)
