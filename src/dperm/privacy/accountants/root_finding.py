"""Roots and minima of functions of one number, by SciPy. `scipy.optimize` takes longer to load than all else that an accounting
command needs (benchmarks/results/imports.md), so that it is loaded where a number is first looked for.
"""

from __future__ import annotations

from collections.abc import Callable


def root(function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float = 2.0**-50) -> float:
    """A place between `low` and `high` that is at most xtol + rtol·|x| from a root. ValueError where the function has one sign at
    both; RuntimeError where 100 steps do not arrive."""
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=xtol, rtol=rtol))


def least(function: Callable[[float], float], low: float, high: float, *, xtol: float = 1e-5) -> tuple[float, float]:
    """The place of a least value between `low` and `high`, to about `xtol`, and that value."""
    from scipy.optimize import minimize_scalar

    found = minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": xtol})
    return float(found.x), float(found.fun)
