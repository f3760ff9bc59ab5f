"""Rényi curves and conversions to their last digits: never below the truth, and hardly above it."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dperm.privacy import FilteredRdp, Gaussian, HiddenIterates, Laplace, PoissonSampled, SelfComposed
from dperm.privacy.accountants.rdp import ORDERS, orders_for, rdp, rdp_delta, rdp_epsilon, rdp_to_epsilon


def log_moment(q: float, sigma: float, order: float, digits: int = 40) -> mpmath.mpf:
    """ln E[(1 − q + q·e^{(2z − 1)/2σ²})^α], z ~ N(0, σ²), by the rule of trapezoids: of functions without poles in a
    strip of half-width w, as here of πσ², its error falls as e^{−2πw/h}."""
    with mpmath.workdps(digits):
        rate, noise, a = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.mpf(order)
        h = min(noise**2, noise) / 4
        first, count = -14 * noise, int((order + 28 * sigma) / float(h))
        total = mpmath.mpf(0)
        for place in range(count):
            z = first + place * h
            total += mpmath.exp(-(z**2) / (2 * noise**2)) * (1 - rate + rate * mpmath.exp((2 * z - 1) / (2 * noise**2))) ** a
        return mpmath.log(total * h / (noise * mpmath.sqrt(2 * mpmath.pi)))


SAMPLED = [(0.3, 1.0), (0.01, 0.5), (0.9, 2.0), (1e-3, 0.3), (0.5, 5.0), (0.999, 0.4), (1e-6, 0.25)]


@pytest.mark.parametrize(("q", "sigma"), SAMPLED)
def test_curves_of_samples_are_the_integral_at_any_order(q: float, sigma: float) -> None:
    """Never below it; above by what is cut off of a series at fractional orders, which is a part of the moment."""
    orders = [1.05, 1.5, 2.5, 3.0, 7.3, *([12.0, 13.9] if sigma > 0.3 else [])]
    found = rdp(PoissonSampled(q, Gaussian(sigma)), np.array(orders))
    for order, value in zip(orders, found.tolist(), strict=True):
        with mpmath.workdps(40):
            exact = log_moment(q, sigma, order)
            moment = mpmath.mpf(value) * (mpmath.mpf(order) - 1)
            cut_off = 2e-3 if order < 2 else 1e-6 if order == 2.5 else 0.0
            assert exact <= moment <= exact * (1 + mpmath.mpf(cut_off + 2e-13))


def test_where_the_moment_is_nearly_one_a_chord_between_whole_orders_is_left() -> None:
    """Where a divergence grows as its order does, chords lie above it by 2/α below an order of 2, and by 7 % from there."""
    for q, sigma, order in ((1e-9, 1.0, 1.5), (1e-20, 0.4, 1.2), (1e-9, 3.0, 2.5)):
        with mpmath.workdps(70):
            exact = log_moment(q, sigma, order, digits=70) / (mpmath.mpf(order) - 1)
            found = mpmath.mpf(float(rdp(PoissonSampled(q, Gaussian(sigma)), np.array([order]))[0]))
            assert exact <= found <= exact * 1.07 * 2 / min(order, 2.0)


@pytest.mark.parametrize("order", [1.01, 1.9, 2.0, 40.0, 16384.0])
@pytest.mark.parametrize("sigma", [0.0077, 0.01, 0.013, 0.7, 27.0, 31.0, 1e4])
def test_conversions_round_up_at_each_order(sigma: float, order: float) -> None:
    """Canonne, Kamath, Steinke 2020, Proposition 12, in 50 digits, both ways."""
    orders = np.array([order])
    with mpmath.workdps(50):
        a = mpmath.mpf(order)
        curve = a / (2 * mpmath.mpf(sigma) ** 2)
        for target in (0.5, 1e-5, 1e-300):
            exact = curve + (mpmath.log(1 / mpmath.mpf(target)) + (a - 1) * mpmath.log(1 - 1 / a) - mpmath.log(a)) / (a - 1)
            found = rdp_epsilon(Gaussian(sigma), target, orders)
            assert exact <= found <= max(exact, mpmath.mpf(0)) * (1 + mpmath.mpf(1e-12)) + mpmath.mpf(1e-12)
            for size in (0.0, 0.4, *(float(curve) * share for share in (1.0, 1.0007, 1.003, 1.01, 1.07, 1.5))):
                log_delta = (a - 1) * (curve - mpmath.mpf(size) + mpmath.log(1 - 1 / a)) - mpmath.log(a)
                value = rdp_delta(Gaussian(sigma), size, orders)
                if log_delta > -700:
                    at_most = mpmath.exp(log_delta + mpmath.mpf(1e-14) * (a - 1) * (curve + mpmath.mpf(size) + 1))
                    assert min(mpmath.mpf(1), mpmath.exp(log_delta)) <= value <= min(1, at_most * (1 + mpmath.mpf(1e-12)))
                else:
                    assert value < 1e-300


def test_the_best_order_is_taken_and_infinite_ones_are_passed_over() -> None:
    event = SelfComposed(Gaussian(3.0), 4)
    each = [rdp_epsilon(event, 1e-6, np.array([order])) for order in ORDERS]
    assert rdp_epsilon(event, 1e-6) == min(each)
    assert rdp_delta(event, 2.0) == min(rdp_delta(event, 2.0, np.array([order])) for order in ORDERS)
    curve = np.where(ORDERS > 5, np.inf, rdp(event, ORDERS))
    assert rdp_to_epsilon(ORDERS, curve, 1e-6) == min(each[: int(np.sum(ORDERS <= 5))])
    # a large δ: nothing is left of ε, and never less than nothing
    assert rdp_epsilon(Gaussian(1e4), 0.5) == 0.0
    filtered = FilteredRdp(7.3, 0.2)
    assert orders_for(filtered).max() == 7.3
    assert rdp_epsilon(filtered, 1e-6) == pytest.approx(rdp_epsilon(filtered, 1e-6, np.array([7.3])), rel=1e-12)


def test_extreme_noise_gives_numbers_without_warnings() -> None:
    orders = np.array([1.5, 2.0, 300.0])
    for noise in (1e-59, 1e-3, 1.0, 1e9, 1e59):
        loss = math.sqrt(2) / noise
        curve = rdp(Laplace(noise), orders)
        assert np.all(curve <= loss * (1 + 1e-12))
        assert np.all(curve > (0.5 * loss if loss > 10 else 0.0))
    hidden = HiddenIterates(2.0, 20, 10, 1.0, 50.0, 1e-9)
    assert rdp(hidden, orders).tolist() == rdp(hidden.whole, orders).tolist()
