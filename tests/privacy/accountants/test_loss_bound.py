"""Profiles of piecewise-linear privacy losses, where rounding eats them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dperm.privacy import ObjectivePerturbationEvent
from dperm.privacy.accountants.loss_bound import HalfNormal, Law, LossBound, Normal, Rayleigh
from dperm.privacy.accountants.objective_perturbation import loss_bound


def gaussian_profile(s: float, value: float) -> mpmath.mpf:
    """Balle & Wang 2018, Theorem 8, in 60 digits."""
    s, e = mpmath.mpf(s), mpmath.mpf(value)
    return mpmath.ncdf(s / 2 - e / s) - mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)


@pytest.mark.parametrize("s", [1e-17, 1e-15, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 5.0])
def test_a_profile_is_never_below_the_truth_at_absurd_noise(s: float) -> None:
    """3e-40 was printed where 4e-18 is true: P- and Q-masses cancelled."""
    bound = LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))
    with mpmath.workdps(60):
        for value in (0.0, 0.3 * s, 2.0 * s):
            exact = gaussian_profile(s, value)
            assert exact <= bound.delta(value) <= exact + 1e-13


def test_a_tiny_profile_is_not_much_above_the_truth() -> None:
    """Where nothing is left of the difference, what the largest loss of each piece gives away."""
    for s in (1e-17, 1e-15):
        bound = LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))
        with mpmath.workdps(60):
            assert gaussian_profile(s, 0.0) <= bound.delta(0.0) <= 1.5 * gaussian_profile(s, 0.0)


@pytest.mark.parametrize("noise", [1e3, 1e9, 1e16, 1e18])
def test_objective_perturbation_at_absurd_noise(noise: float) -> None:
    """A loss of c + s·|Z| + s²/2 with c = ln(1 + β/Λ): its profile is at least 1 − e^{ε − c} below c."""
    event = ObjectivePerturbationEvent(noise, 1.0, 1e-12, 1.0)
    bound = loss_bound(event)
    c, s = mpmath.log1p(mpmath.mpf(1e-12)), 1 / mpmath.mpf(noise)
    with mpmath.workdps(40):
        for value in (0.0, 5e-13):
            place = max(mpmath.mpf(0), (mpmath.mpf(value) - c - s * s / 2) / s)
            q = mpmath.exp(value - c) * 2 * mpmath.ncdf(-(place + s))
            exact = 2 * mpmath.ncdf(-place) - q
            assert exact <= bound.delta(value) <= 1.3 * exact + 1e-15


def test_moments_round_up() -> None:
    """E e^{t·R} of R = sY + s²/2 is e^{t(t+1)s²/2} for a normal Y."""
    for s in (1e-9, 1e-4, 0.3):
        bound = LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))
        for t in (0.1, 1.0, 30.0):
            exact = t * (t + 1) * s * s / 2
            assert exact <= bound.log_moment(t) <= exact * (1 + 1e-12) + 1e-13
    ray = LossBound(Rayleigh(), np.array([1e-9]), np.array([0.0]), np.array([]))
    assert ray.log_moment(1.0) >= 1e-9 * float(mpmath.sqrt(mpmath.pi / 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("slope", [5e-324, 1e-308, 1e-300, 1e-170])
@pytest.mark.parametrize("law", [Normal(), HalfNormal(), Rayleigh()], ids=lambda law: type(law).__name__)
def test_slopes_that_are_nearly_zero_neither_warn_nor_flatter(law: Law, slope: float) -> None:
    """Where a loss of c + slope·Y reaches ε was an overflow; δ(ε) is 1 − e^{ε − c} to all digits."""
    for pieces in (1, 2):
        slopes, constants = np.array([slope, 1.0])[:pieces], np.array([1.0, 1.0 - 20.0])[:pieces]
        bound = LossBound(law, slopes, constants, np.array([20.0])[: pieces - 1])
        for value in (0.0, 0.5, 1.0 - 1e-12, 1.0, 1.5, 600.0):
            exact = max(0.0, -np.expm1(value - 1.0))
            assert exact <= bound.delta(value) <= exact + 1e-12
        p, q = bound.masses(np.array([0.0, 0.5, 1.0 - 1e-9, 1.0 + 1e-9, 2.0]))
        assert p == pytest.approx([0, 0, 1, 0], abs=1e-12) and q == pytest.approx([0, 0, np.exp(-1.0), 0], abs=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("s", [1e9, 1e20, 1e60])
def test_losses_of_which_doubles_hold_no_single_unit_do_not_overflow(s: float) -> None:
    """Their last digits are worth far more than 700, which exponents take no more of."""
    for law in (Normal(), HalfNormal(), Rayleigh()):
        bound = LossBound(law, np.array([s]), np.array([s * s / 2]), np.array([]))
        for place in (-20.0, 0.0, 0.1, 3.0, 20.0):
            assert 0 <= bound.delta(s * place + s * s / 2) <= 1
