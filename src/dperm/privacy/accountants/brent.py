"""Roots and minima between two bounds by Brent's methods, step by step as SciPy takes them: `scipy.optimize` alone loads longer
than all else that an accounting command needs (benchmarks/results/imports.md)."""

from __future__ import annotations

import math
from collections.abc import Callable

_MOST_STEPS = 100
_MOST_VALUES = 500
_GOLDEN = 0.5 * (3.0 - math.sqrt(5.0))
_ROOT_EPS = math.sqrt(2.2e-16)


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float = 2.0**-50) -> float:
    """A place between `low` and `high`, of which one is above zero and one below, that is at most xtol + rtol·|x| from a root.
    ValueError where both are on one side, or a value is NaN; RuntimeError where 100 steps do not arrive."""
    before, here, other = float(low), float(high), 0.0
    f_before, f_here, f_other = _number(function, before), _number(function, here), 0.0
    last = step = 0.0
    if f_before == 0:
        return before
    if f_here == 0:
        return here
    if (f_before < 0) == (f_here < 0):
        raise ValueError(f"Expected values of two signs at {low:g} and {high:g}, got {f_before:g} and {f_here:g}.")
    for _ in range(_MOST_STEPS):
        if f_before != 0 and f_here != 0 and (f_before < 0) != (f_here < 0):
            other, f_other = before, f_before
            last = step = here - before
        if abs(f_other) < abs(f_here):
            before, here, other = here, other, here
            f_before, f_here, f_other = f_here, f_other, f_here
        near, half = (xtol + rtol * abs(here)) / 2, (other - here) / 2
        if f_here == 0 or abs(half) < near:
            return here
        last, step = _step(before, here, other, f_before, f_here, f_other, near, half, last, step)
        before, f_before = here, f_here
        here += step if abs(step) > near else math.copysign(near, half)
        f_here = _number(function, here)
    raise RuntimeError(f"No root was reached within {_MOST_STEPS} steps between {low:g} and {high:g}.")


def _step(
    before: float,
    here: float,
    other: float,
    f_before: float,
    f_here: float,
    f_other: float,
    near: float,
    half: float,
    last: float,
    step: float,
) -> tuple[float, float]:
    """By a line or a parabola through what is known, where that is short enough; else to the middle."""
    if abs(last) > near and abs(f_here) < abs(f_before):
        if before == other:
            tried = -f_here * (here - before) / (f_here - f_before)
        else:
            to_before, to_other = (f_before - f_here) / (before - here), (f_other - f_here) / (other - here)
            below = to_other * to_before * (f_other - f_before)
            tried = -f_here * (f_other * to_other - f_before * to_before) / below if below else math.inf
        if 2 * abs(tried) < min(abs(last), 3 * abs(half) - near):
            return step, tried
    return half, half


def _number(function: Callable[[float], float], x: float) -> float:
    if math.isnan(value := float(function(x))):
        raise ValueError(f"Expected a number at {x:g}, got NaN.")
    return value


def least(function: Callable[[float], float], low: float, high: float, *, xtol: float = 1e-5) -> tuple[float, float]:
    """The place of a least value between `low` and `high`, to about `xtol`, and that value."""
    low, high = float(low), float(high)
    first = low + _GOLDEN * (high - low)
    best, second, third = first, first, first
    f_best = f_second = f_third = float(function(first))
    step = last = 0.0
    for _ in range(_MOST_VALUES - 1):
        middle, near = 0.5 * (low + high), _ROOT_EPS * abs(best) + xtol / 3.0
        if not abs(best - middle) > 2.0 * near - 0.5 * (high - low):
            break
        fits = False
        if abs(last) > near:
            r, q = (best - second) * (f_best - f_third), (best - third) * (f_best - f_second)
            p, q = (best - third) * q - (best - second) * r, 2.0 * (q - r)
            p, q = (-p if q > 0.0 else p), abs(q)
            if fits := abs(p) < abs(0.5 * q * last) and q * (low - best) < p < q * (high - best):
                last, step = step, p / q
                if best + step - low < 2.0 * near or high - (best + step) < 2.0 * near:
                    step = near if middle >= best else -near
        if not fits:
            last = (low if best >= middle else high) - best
            step = _GOLDEN * last
        x = best + (1.0 if step >= 0 else -1.0) * max(abs(step), near)
        value = float(function(x))
        if value <= f_best:
            low, high = (best, high) if x >= best else (low, best)
            third, f_third, second, f_second, best, f_best = second, f_second, best, f_best, x, value
        else:
            low, high = (x, high) if x < best else (low, x)
            if value <= f_second or second == best:
                third, f_third, second, f_second = second, f_second, x, value
            elif value <= f_third or third in (best, second):
                third, f_third = x, value
    return best, f_best
