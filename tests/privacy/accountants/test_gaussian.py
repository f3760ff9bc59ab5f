from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dperm.privacy.accountants.gaussian import _mills, gaussian_delta, gaussian_epsilon, gaussian_log_delta, gaussian_mu


def exact_log_delta(s: float, epsilon: float) -> float:
    """Balle & Wang 2018, Theorem 8, in 60 digits."""
    with mpmath.workdps(60):
        s_, e_ = mpmath.mpf(s), mpmath.mpf(epsilon)
        value = mpmath.ncdf(s_ / 2 - e_ / s_) - mpmath.exp(e_) * mpmath.ncdf(-s_ / 2 - e_ / s_)
        return float(mpmath.log(value)) if value > 0 else -math.inf


@pytest.mark.parametrize("s", [1e-5, 1e-3, 0.03, 0.3, 1.0, 4.0, 20.0, 100.0])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-3, 0.1, 1.0, 5.0, 50.0, 500.0, -1.0])
def test_profile_against_sixty_digits(s: float, epsilon: float) -> None:
    expected = exact_log_delta(s, epsilon)
    if expected < -1e5:  # below anything representable: all that is asked is to be below too
        assert gaussian_log_delta(s, epsilon) < -1e5
        return
    assert gaussian_log_delta(s, epsilon) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=100)
@given(st.floats(-3, 12), st.one_of(st.floats(-6, 37), st.floats(-5, 1.5).map(lambda power: 10**power)), st.booleans())
@example(math.log10(6e8), 0.5, False)
@example(-3.0, 0.0, False)
@example(9.5, 29.999, False)
@example(9.5, 30.001, True)
def test_delta_is_never_below_eighty_digits(power: float, x: float, negative: bool) -> None:
    """At ε = x·s + s²/2, or 0: at most a few last digits above, more where noise is so small that x has lost them."""
    noise = 10**power
    epsilon = max(0.0, x / noise + 0.5 / noise**2) * (-1 if negative else 1)
    with mpmath.workdps(80 + int(max(0.0, 2 * power))):
        s, e = 1 / mpmath.mpf(noise), mpmath.mpf(epsilon)
        truth = mpmath.ncdf(s / 2 - e / s) - mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)
        found = gaussian_delta(noise, epsilon)
        assert truth <= found <= truth * (1 + mpmath.mpf(1e-11) * (1 + 0.1 / noise) ** 2) + 1e-300


@pytest.mark.parametrize("noise", [1e-60, 1e-9, 1.0, 1e9, 1e60])
@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-30, 1.0, 600.0, 1e300])
def test_delta_at_the_ends_of_the_range_of_numbers(noise: float, epsilon: float) -> None:
    assert 0 < gaussian_delta(noise, epsilon) <= 1
    assert gaussian_delta(noise, epsilon) <= gaussian_delta(noise, 0.0)


@pytest.mark.parametrize("s", [0.01, 0.27, 1.0, 5.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_inverses_never_flatter(s: float, delta: float) -> None:
    epsilon = gaussian_epsilon(1 / s, delta)
    assert gaussian_delta(1 / s, epsilon) <= delta
    assert gaussian_delta(1 / s, epsilon * (1 - 1e-6)) > delta
    assert gaussian_mu(epsilon, delta) == pytest.approx(s, rel=1e-7)


@pytest.mark.parametrize("epsilon", [1e12, 1e15, 1e18, 1e100, 1e300])
def test_calibration_ends_for_any_epsilon(epsilon: float) -> None:
    """From 1e15 on it never did: δ was known less finely than it stepped."""
    mu = gaussian_mu(epsilon, 1e-6)
    assert 0 < mu < math.sqrt(2 * epsilon) and gaussian_log_delta(mu, epsilon) <= math.log(1e-6)


def test_classical_calibration_is_looser() -> None:
    """σ = Δ√(2 ln(1.25/δ))/ε holds for ε < 1, and is never better than the exact calibration."""
    for epsilon in (0.1, 0.5, 0.9):
        for delta in (1e-3, 1e-6):
            assert 1 / gaussian_mu(epsilon, delta) < math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def test_mills_ratio_is_as_near_as_is_assumed() -> None:
    """docs/accounting.md: nobody proves the last digits of erfcx, so they are measured, over all of the range that is used."""
    generator = np.random.default_rng(0)
    tiny = 10.0 ** generator.uniform(-12, 3, 300)
    for x in np.concatenate([generator.uniform(-30, 40, 1000), tiny, -np.minimum(tiny, 30.0)]).tolist():
        value, error = _mills(x)
        with mpmath.workdps(40):
            place = mpmath.mpf(x)
            exact = mpmath.sqrt(mpmath.pi / 2) * mpmath.exp(place**2 / 2) * mpmath.erfc(place / mpmath.sqrt(2))
            assert abs(value - exact) <= 0.8 * error
