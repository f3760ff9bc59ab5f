"""Profiles of piecewise-linear privacy losses, where rounding eats them."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from dperm.privacy import ObjectivePerturbationEvent
from dperm.privacy.loss_bound import LossBound, Normal, Rayleigh
from dperm.privacy.objective_perturbation import loss_bound


def gaussian_profile(s: float, value: float) -> mpmath.mpf:
    """Balle & Wang 2018, Theorem 8, in 60 digits."""
    s, e = mpmath.mpf(s), mpmath.mpf(value)
    return mpmath.ncdf(s / 2 - e / s) - mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)


@pytest.mark.parametrize("s", [1e-17, 1e-15, 1e-12, 1e-6, 1e-3, 0.1, 1.0, 5.0])
def test_item_17_a_profile_is_never_below_the_truth_at_absurd_noise(s: float) -> None:
    """3e-40 was printed where 4e-18 is true: P- and Q-masses cancelled."""
    bound = LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))
    with mpmath.workdps(60):
        for value in (0.0, 0.3 * s, 2.0 * s):
            exact = gaussian_profile(s, value)
            assert exact <= bound.delta(value) <= exact + 1e-13


def test_item_17_a_tiny_profile_is_not_much_above_the_truth() -> None:
    """Where nothing is left of the difference, what the largest loss of each piece gives away."""
    for s in (1e-17, 1e-15):
        bound = LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))
        with mpmath.workdps(60):
            assert gaussian_profile(s, 0.0) <= bound.delta(0.0) <= 1.5 * gaussian_profile(s, 0.0)


@pytest.mark.parametrize("noise", [1e3, 1e9, 1e16, 1e18])
def test_item_17_objective_perturbation_at_absurd_noise(noise: float) -> None:
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


def test_item_17_moments_round_up() -> None:
    """E e^{t·R} of R = sY + s²/2 is e^{t(t+1)s²/2} for a normal Y."""
    for s in (1e-9, 1e-4, 0.3):
        bound = LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))
        for t in (0.1, 1.0, 30.0):
            exact = t * (t + 1) * s * s / 2
            assert exact <= bound.log_moment(t) <= exact * (1 + 1e-12) + 1e-13
    ray = LossBound(Rayleigh(), np.array([1e-9]), np.array([0.0]), np.array([]))
    assert ray.log_moment(1.0) >= 1e-9 * float(mpmath.sqrt(mpmath.pi / 2))
