"""The Gaussian mechanism's profile and its inverses over the whole range of numbers, against formulas in many digits."""

from __future__ import annotations

import itertools
import math
import sys

import mpmath
import numpy as np
import pytest

from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon, gaussian_log_delta, gaussian_mu

TINY = (5e-324, 1e-323, 1.5e-323, 1e-320, 1e-310, 2.3e-308)


def true_log_delta(s: float, epsilon: float) -> mpmath.mpf:
    """ln δ(ε), Balle & Wang 2018, Theorem 8: two tails, each in so many digits that their difference keeps 30."""
    with mpmath.workdps(50 + int(max(0.0, -2 * math.log10(s)))):
        s_, e_ = mpmath.mpf(s), mpmath.mpf(epsilon)
        return mpmath.log(mpmath.ncdf(s_ / 2 - e_ / s_) - mpmath.exp(e_) * mpmath.ncdf(-s_ / 2 - e_ / s_))


@pytest.mark.parametrize("s", [1e-3, 0.03, 0.3, 1.0, 4.0, 30.0, 300.0, 3e4])
def test_log_delta_bounds_the_truth_from_above_and_closely(s: float) -> None:
    """At quantiles x on both sides, so that ε is negative, 0 and above; rounding of x is what costs digits where s is large."""
    for x in np.linspace(-29.9, 30.1, 41):
        epsilon = float(x) * s + s * s / 2
        if epsilon >= -600:
            truth, found = true_log_delta(s, epsilon), gaussian_log_delta(s, epsilon)
            assert truth <= found <= truth + 1e-11 * (1 + s), (x, epsilon)
            assert found <= 0


def test_log_delta_of_no_noise_and_of_endless_noise() -> None:
    assert gaussian_log_delta(0.0, 0.0) == gaussian_log_delta(0.0, 3.0) == -math.inf
    # without a signal the loss is 0: δ(−ε) = 1 − e^{−ε}
    assert gaussian_log_delta(0.0, -1.0) == pytest.approx(math.log(-math.expm1(-1.0)), rel=1e-14)
    assert gaussian_log_delta(1e200, 1.0) == 0.0
    assert gaussian_log_delta(1e3, 1.0) == gaussian_log_delta(1e3, -1.0) == 0.0
    assert -math.inf < gaussian_log_delta(1e-290, 1.0) < -1e190
    assert gaussian_delta(1e290, 1.0) == 5e-324


@pytest.mark.parametrize("noise", [1e-3, 0.2, 1.0, 40.0, 1e5])
def test_an_epsilon_has_the_delta_that_was_asked_for(noise: float) -> None:
    """In many digits it suffices, and a little less does not."""
    for delta in (1e-200, 1e-30, 1e-9, 1e-3, 0.3, 0.99):
        found = gaussian_epsilon(noise, delta)
        assert gaussian_delta(noise, found) <= delta
        with mpmath.workdps(30):
            log_target = mpmath.log(mpmath.mpf(delta))
            s = 1 / mpmath.mpf(noise)
            assert true_log_delta(s, found) <= log_target
            if found:
                assert true_log_delta(s, found * (1 - 2e-9)) > log_target


def test_deltas_below_the_normal_range_are_kept() -> None:
    for noise, delta in itertools.product((0.1, 1.0, 1e3), TINY):
        found = gaussian_epsilon(noise, delta)
        assert gaussian_delta(noise, found) <= delta
        assert gaussian_epsilon(noise, delta / 4 or delta) >= found
        assert found <= gaussian_epsilon(noise, sys.float_info.min) * 1.05


@pytest.mark.parametrize("epsilon", [1e-300, 1e-9, 0.01, 1.0, 30.0, 1e4, 1e100])
def test_calibration_takes_all_of_the_budget_and_no_more(epsilon: float) -> None:
    for delta in (1e-300, 1e-20, 1e-5, 0.5, 0.999):
        s = gaussian_mu(epsilon, delta)
        target = mpmath.log(mpmath.mpf(delta))
        assert gaussian_log_delta(s, epsilon) <= math.log(delta)
        assert gaussian_log_delta(s * (1 + 3e-12), epsilon) > math.log(delta)
        if epsilon < 1e3:
            with mpmath.workdps(30):
                assert true_log_delta(s, epsilon) <= target
                more = 1 + 1e-10 + 1e-307 / delta  # as near as doubles of such a size are
                assert true_log_delta(s * more, epsilon) > target
