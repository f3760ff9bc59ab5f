"""Roots and minima are SciPy's, value for value: it is the oracle, and every ε is what it was with it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from dperm.privacy.accountants import brent


def curves(count: int) -> list[Callable[[float], float]]:
    rng = np.random.default_rng(0)

    def curve() -> Callable[[float], float]:
        a, b, c, d, e, f, rate = (3 * rng.normal(size=7)).tolist()
        return lambda x: a + b * x + c * x * x + d * x**3 + e * math.sin(3 * x) + f * math.exp(rate * x / 3)

    return [curve() for _ in range(count)]


def watched(function: Callable[[float], float]) -> tuple[Callable[[float], float], list[float]]:
    """The function, and where it was asked."""
    asked: list[float] = []

    def ask(x: float) -> float:
        asked.append(float(x))
        return function(x)

    return ask, asked


@pytest.mark.parametrize(("xtol", "rtol"), [(1e-4, 2.0**-50), (1e-13, 2.0**-50), (1e-9, 1e-10)])
def test_roots_are_those_of_scipy_after_the_same_steps(xtol: float, rtol: float) -> None:
    found = 0
    for curve in curves(1000):
        if curve(-2.0) * curve(3.0) < 0:
            (ours, here), (theirs, there) = watched(curve), watched(curve)
            assert brent.root(ours, -2.0, 3.0, xtol=xtol, rtol=rtol) == brentq(theirs, -2.0, 3.0, xtol=xtol, rtol=rtol)
            assert here == there
            found += 1
    assert found > 500


@pytest.mark.parametrize("xtol", [0.03, 1e-5, 1e-9])
def test_minima_are_those_of_scipy_after_the_same_steps(xtol: float) -> None:
    for curve in curves(500):
        (ours, here), (theirs, there) = watched(curve), watched(curve)
        best = minimize_scalar(theirs, bounds=(-2.0, 3.0), method="bounded", options={"xatol": xtol})
        assert brent.least(ours, -2.0, 3.0, xtol=xtol) == (float(best.x), float(best.fun))
        assert here == there


@pytest.mark.parametrize("steep", [lambda x: math.inf if x > 1 else -math.inf, lambda x: 1.0 if x > 1 else -1.0])
def test_a_jump_is_found_by_halving(steep: Callable[[float], float]) -> None:
    assert brent.root(steep, 0.0, 3.0, xtol=1e-9) == brentq(steep, 0.0, 3.0, xtol=1e-9) == pytest.approx(1.0, abs=1e-8)


def test_where_there_is_no_root_an_error_says_so() -> None:
    with pytest.raises(ValueError, match="two signs"):
        brent.root(lambda x: x * x + 1, -1.0, 1.0, xtol=1e-9)
    with pytest.raises(ValueError, match="NaN"):
        brent.root(lambda x: math.nan, -1.0, 1.0, xtol=1e-9)
    with pytest.raises(RuntimeError, match="No root was reached"):
        brent.root(lambda x: 1.0 if x > 1 / 3 else -1.0, 0.0, 1.0, xtol=0.0, rtol=0.0)
