"""Roots of functions of one number, beside SciPy's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from scipy.optimize import brentq

from dperm.privacy.accountants.root_finding import root

FUNCTIONS: dict[str, Callable[[float, float, float], float]] = {
    "exponential": lambda x, a, b: math.exp(x) - b,
    "cubic": lambda x, a, b: x**3 - a,
    "steep": lambda x, a, b: math.tanh(b * (x - a)),
    "bent": lambda x, a, b: (x - a) * abs(x - a) ** 0.3,
    "jump": lambda x, a, b: -1.0 if x < a else 1.0,
    "infinite": lambda x, a, b: math.inf if x > a + b else x - a,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_roots_are_those_of_scipy_to_the_last_bit_by_the_same_steps(name: str) -> None:
    rng = random.Random(0)
    for _ in range(500):
        a, b, low, high = rng.uniform(-3, 3), rng.uniform(0.1, 5), rng.uniform(-20, -3.1), rng.uniform(3.1, 20)
        xtol, rtol = 10 ** rng.uniform(-13, -2), rng.choice([2.0**-50, 1e-13, 1e-4])
        asked: list[float] = []

        def function(x: float, a: float = a, b: float = b, asked: list[float] = asked) -> float:
            asked.append(x)
            return FUNCTIONS[name](x, a, b)

        theirs = brentq(function, low, high, xtol=xtol, rtol=rtol)
        steps = asked.copy()
        asked.clear()
        assert root(function, low, high, xtol=xtol, rtol=rtol) == theirs
        assert asked == steps


def test_ends_that_are_roots_are_found_at_once() -> None:
    assert root(lambda x: x - 2, 2.0, 5.0, xtol=1e-9) == 2.0
    assert root(lambda x: x - 5, 2.0, 5.0, xtol=1e-9) == 5.0


def test_what_has_no_root_is_refused() -> None:
    with pytest.raises(ValueError, match="two signs at 1 and 2"):
        root(lambda x: x, 1.0, 2.0, xtol=1e-9)
    with pytest.raises(ValueError, match="no number"):
        root(lambda x: math.nan if 1.2 < x < 1.8 else x - 1.5, 1.0, 2.0, xtol=1e-9)
    with pytest.raises(RuntimeError, match="100 steps"):
        root(lambda x: math.copysign(1.0, x - 1e-300), -1e300, 1e300, xtol=1e-320, rtol=0.0)
