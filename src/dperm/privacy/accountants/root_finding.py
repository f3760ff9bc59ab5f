"""Roots and minima of functions of one number. `scipy.optimize` takes longer to load than all else that most accounting commands
need (benchmarks/results/imports.md): roots are found without it, and it is loaded where a least value is first looked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 100


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float = 2.0**-50) -> float:
    """A place between `low` and `high` that is at most xtol + rtol·|x| from a root. ValueError where the function has one sign at
    both, or is no number somewhere; RuntimeError where 100 steps do not arrive.

    By Brent 1973, Algorithms for Minimization Without Derivatives, chapter 4, in the steps of SciPy's `brentq`.
    """

    def value(x: float) -> float:
        if math.isnan(y := float(function(x))):
            raise ValueError(f"The function is no number at {x!r}.")
        return y

    before, here, across = float(low), float(high), 0.0  # a root lies between `here`, the best place, and `across`
    at_before, at_here, at_across = value(before), value(here), 0.0
    if not at_before:
        return before
    if not at_here:
        return here
    if (at_before < 0) == (at_here < 0):
        raise ValueError(f"Expected values of two signs at {low:g} and {high:g}, got {at_before:g} and {at_here:g}.")
    last = step = 0.0
    for _ in range(_STEPS):
        if at_before and at_here and (at_before < 0) != (at_here < 0):
            across, at_across, last = before, at_before, here - before
            step = last
        if abs(at_across) < abs(at_here):
            before, here, across = here, across, here
            at_before, at_here, at_across = at_here, at_across, at_here
        near, half = (xtol + rtol * abs(here)) / 2, (across - here) / 2
        if not at_here or abs(half) < near:
            return here
        tried = math.inf
        if abs(last) > near and abs(at_here) < abs(at_before):
            if before == across:  # by a line
                tried = -at_here * (here - before) / (at_here - at_before)
            else:  # by an inverse parabola
                slope, other = (at_before - at_here) / (before - here), (at_across - at_here) / (across - here)
                if below := other * slope * (at_across - at_before):
                    tried = -at_here * (at_across * other - at_before * slope) / below
        short = 2 * abs(tried) < min(abs(last), 3 * abs(half) - near)
        last, step = (step, tried) if short else (half, half)
        before, at_before = here, at_here
        here += step if abs(step) > near else math.copysign(near, half)
        at_here = value(here)
    raise RuntimeError(f"No root was found between {low:g} and {high:g} in {_STEPS} steps.")


def least(function: Callable[[float], float], low: float, high: float, *, xtol: float = 1e-5) -> tuple[float, float]:
    """The place of a least value between `low` and `high`, to about `xtol`, and that value."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xtol})
    return float(found.x), float(found.fun)
