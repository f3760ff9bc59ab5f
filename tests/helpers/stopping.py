"""Exact privacy of runs that stop, or go on, by what they released: a walk of privacy losses, every path of it.

Each step of a run is randomised response: the true bit with probability p = e^s ÷ (1 + e^s). Its privacy loss is ±s, so that the
loss of n steps is s·(2·Binomial(n, p) − n), and everything below is a finite sum.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.stats import binom

from dperm._types import Array

__all__ = ["delta_of_adaptive_budget", "delta_of_stopped_run", "epsilon_of_steps"]


def _chance(size: float) -> float:
    return math.exp(size) / (1 + math.exp(size))


def _excess(epsilon: float, losses: Array) -> Array:
    """1 − e^{ε − loss}, where that is above 0: what an outcome adds to δ."""
    return -np.expm1(np.minimum(epsilon - losses, 0.0))


def _losses(size: float, steps: int) -> tuple[Array, Array]:
    """The losses of so many steps, and their chances."""
    ones = np.arange(steps + 1)
    return size * (2 * ones - steps), binom.pmf(ones, steps, _chance(size))


def delta_of_steps(size: float, steps: int, epsilon: float) -> float:
    """δ(ε) of so many steps, fixed beforehand."""
    losses, chances = _losses(size, steps)
    return float(chances @ _excess(epsilon, losses))


@functools.lru_cache(maxsize=1 << 12)
def epsilon_of_steps(size: float, steps: int, delta: float) -> float:
    """ε(δ) of so many steps, fixed beforehand: what an exact accountant says of them."""
    losses, chances = _losses(size, steps)
    low, high = 0.0, size * steps
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if chances @ _excess(middle, losses) > delta else (low, middle)
    return high


def delta_of_stopped_run(size: float, most: int, delta: float) -> tuple[float, float]:
    """The δ that a run really needs that stops after k of at most `most` steps, and then states ε_k, the ε at δ of k steps.

    Σ over all outcomes of (P − e^{ε_k}·Q)⁺, k where each stops: for the rule that stops once the loss is above ε_k, and for the
    best of all rules.
    """
    losses = size * np.arange(-most - 1, most + 2, dtype=float)
    start, p = most + 1, _chance(size)
    stated = [epsilon_of_steps(size, k, delta) for k in range(1, most + 1)]
    reach, first = np.zeros_like(losses), 0.0
    reach[start] = 1.0
    for k, epsilon in enumerate(stated, start=1):
        reach = p * np.roll(reach, 1) + (1 - p) * np.roll(reach, -1)
        stops = (losses > epsilon + 1e-12) | (k == most)
        first += float(reach[stops] @ _excess(epsilon, losses[stops]))
        reach[stops] = 0.0
    value = _excess(stated[-1], losses)
    for epsilon in reversed(stated[:-1]):
        value = np.maximum(_excess(epsilon, losses), p * np.roll(value, -1) + (1 - p) * np.roll(value, 1))
    return first, p * value[start + 1] + (1 - p) * value[start - 1]


def delta_of_adaptive_budget(size: float, leak: float, epsilon: float, delta: float) -> float:
    """The δ that a budget (ε, δ) really needs that takes whatever an exact accountant says fits, on every path.

    Two kinds of releases: steps as above, and one that tells everything with probability `leak`. After whatever was released, the
    next may be of either kind, as long as the exact composition of those released, by their numbers, stays within (ε, δ).
    """

    def fits(steps: int, leaks: int) -> bool:
        hidden = (1 - leak) ** leaks
        return 1 - hidden + hidden * delta_of_steps(size, steps, epsilon) <= delta

    most = [0]
    while fits(0, most[0] + 1):
        most[0] += 1
    while fits(len(most), 0):
        most.append(max(leaks for leaks in range(most[0] + 1) if fits(len(most), leaks)))
    p = _chance(size)

    @functools.cache
    def value(steps: int, leaks: int, ahead: int) -> float:
        """What the best choices from here on add to δ, the loss being `ahead`·s."""
        best = float(_excess(epsilon, np.array(size * ahead)))
        if steps + 1 < len(most) and leaks <= most[steps + 1]:
            best = max(best, p * value(steps + 1, leaks, ahead + 1) + (1 - p) * value(steps + 1, leaks, ahead - 1))
        if leaks < most[steps]:
            best = max(best, leak + (1 - leak) * value(steps, leaks + 1, ahead))
        return best

    return value(0, 0, 0)
