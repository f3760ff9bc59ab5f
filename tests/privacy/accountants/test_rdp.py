from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dperm.privacy import (
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PoissonSampled,
    PureDP,
    Relation,
    SelfComposed,
    UnsupportedEventError,
)
from dperm.privacy.accountants.rdp import rdp, rdp_delta, rdp_epsilon


def exact_sampled_gaussian(q: float, sigma: float, order: float, reverse: bool = False) -> float:
    """Rényi divergence of (1−q)N(0) + qN(1) from N(0), or the other way round, by quadrature in 30 digits."""
    with mpmath.workdps(30):

        def log_ratio(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.log(1 - q + q * mpmath.exp((2 * x - 1) / (2 * mpmath.mpf(sigma) ** 2)))

        power = order if not reverse else 1 - order

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x, 0, sigma) * mpmath.exp(power * log_ratio(x))

        points = sorted({-20 * sigma, 0.0, 0.5, 1.0, order, order + 20 * sigma})
        return float(mpmath.log(mpmath.quad(integrand, points)) / (order - 1))


@pytest.mark.fast_cases("0.01-0.8-32.0", "0.2-1.5-1.25", "0.5-3.0-4.75")
@pytest.mark.parametrize("order", [1.25, 2.0, 2.5, 4.75, 8.0, 32.0])
@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.8), (0.2, 1.5), (0.5, 3.0), (0.001, 5.0)])
def test_sampled_gaussian_bounds_quadrature(order: float, q: float, sigma: float) -> None:
    ours = float(rdp(PoissonSampled(q, Gaussian(sigma)), np.array([order]))[0])
    exact = exact_sampled_gaussian(q, sigma, order)
    assert ours >= exact * (1 - 1e-9)
    assert ours >= exact_sampled_gaussian(q, sigma, order, reverse=True) * (1 - 1e-9)
    if order == int(order):
        assert ours == pytest.approx(exact, rel=1e-8)
    else:
        assert ours <= 1.02 * exact + 1e-12


@pytest.mark.parametrize("order", [1.5, 2.0, 8.0])
def test_laplace_and_randomised_response_against_quadrature(order: float) -> None:
    e = 0.7
    pure = float(rdp(PureDP(e), np.array([order]))[0])
    p = 1 / (1 + math.exp(-e))
    assert pure == pytest.approx(math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1))
    with mpmath.workdps(30):
        density = lambda x, centre: mpmath.exp(-abs(x - centre) * e) * e / 2  # noqa: E731
        integral = mpmath.quad(lambda x: density(x, 0) ** order * density(x, 1) ** (1 - order), [-100, 0, 1, 101])
    laplace = float(rdp(Laplace(math.sqrt(2) / e), np.array([order]))[0])
    assert laplace == pytest.approx(float(mpmath.log(integral) / (order - 1)), rel=1e-9)


def test_conversion_round_trip() -> None:
    event = SelfComposed(PoissonSampled(0.01, Gaussian(1.1)), 1000)
    epsilon = rdp_epsilon(event, 1e-5)
    assert rdp_delta(event, epsilon) == pytest.approx(1e-5, rel=1e-6)


def test_agrees_with_dp_accounting() -> None:
    """Against the published implementation, where the design trusts it: Gaussian and Poisson-sampled Gaussian."""
    from dp_accounting import dp_event
    from dp_accounting.rdp import RdpAccountant

    for q, sigma, steps in ((1.0, 4.0, 10), (0.01, 1.1, 1000), (0.1, 2.0, 100)):
        orders = list(range(2, 64))
        accountant = RdpAccountant(orders=orders)
        accountant.compose(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma)), steps)
        ours = rdp_epsilon(SelfComposed(PoissonSampled(q, Gaussian(sigma)), steps), 1e-5, np.array(orders, dtype=float))
        assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


def test_exponential_mechanism_is_its_zcdp_bound() -> None:
    assert rdp(ExponentialMechanism(2.0), np.array([3.0]))[0] == pytest.approx(3.0 * 4 / 8)


def test_replace_one_sampling_is_refused() -> None:
    with pytest.raises(UnsupportedEventError, match="add/remove only"):
        rdp_epsilon(PoissonSampled(0.1, Gaussian(1.0, Relation.REPLACE_ONE)), 1e-5)


# Item 17: curves round up


def exact_pure(e: float, order: float) -> mpmath.mpf:
    e, a = mpmath.mpf(e), mpmath.mpf(order)
    p = 1 / (1 + mpmath.exp(-e))
    return mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)


def exact_laplace(e: float, order: float) -> mpmath.mpf:
    """From the three pieces of the integral of p^α·q^{1−α}: left of both centres, between them, right of both."""
    e, a = mpmath.mpf(e), mpmath.mpf(order)
    outside = (mpmath.exp((a - 1) * e) + mpmath.exp(-a * e)) / 2
    between = (mpmath.exp((a - 1) * e) - mpmath.exp(-a * e)) / (2 * (2 * a - 1))
    return mpmath.log(outside + between) / (a - 1)


def exact_integer_order(q: float, sigma: float, order: int) -> mpmath.mpf:
    """Mironov, Talwar, Zhang 2019, section 3.3, from the first term on, in 60 digits."""
    rate, noise = mpmath.mpf(q), mpmath.mpf(sigma)
    terms = [
        mpmath.binomial(order, m) * (1 - rate) ** (order - m) * rate**m * mpmath.exp((m * m - m) / (2 * noise**2))
        for m in range(order + 1)
    ]
    return mpmath.log(mpmath.fsum(terms)) / (order - 1)


@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 7.25, 300.0])
@pytest.mark.parametrize("e", [1e-14, 1e-10, 1e-6, 9e-4, 1.1e-3, 0.3, 40.0])
def test_curves_of_pure_events_round_up(e: float, order: float) -> None:
    """Near 1 a moment has no digits for a divergence of 1e-10: curves were below the truth by up to 5e-8 of it."""
    with mpmath.workdps(80):
        noise = math.sqrt(2) / e
        for event, exact in ((PureDP(e), exact_pure(e, order)), (Laplace(noise), exact_laplace(math.sqrt(2) / noise, order))):
            ours = mpmath.mpf(float(rdp(event, np.array([order]))[0]))
            assert exact <= ours <= exact * (1 + mpmath.mpf(1e-11))


@pytest.mark.parametrize("order", [2, 3, 17, 128])
@pytest.mark.parametrize(("q", "sigma"), [(1e-9, 1.0), (1e-6, 30.0), (1e-3, 300.0), (0.01, 0.7), (0.5, 5.0)])
def test_curves_of_samples_round_up(q: float, sigma: float, order: int) -> None:
    with mpmath.workdps(60):
        exact = exact_integer_order(q, sigma, order)
        ours = mpmath.mpf(float(rdp(PoissonSampled(q, Gaussian(sigma)), np.array([float(order)]))[0]))
        assert exact <= ours <= exact * (1 + mpmath.mpf(1e-10))


@pytest.mark.parametrize("order", [1.3, 2.5, 9.75])
@pytest.mark.parametrize(("q", "sigma"), [(1e-6, 3.0), (1e-3, 100.0), (0.3, 20.0)])
def test_fractional_orders_round_up(q: float, sigma: float, order: float) -> None:
    """Where the divergence is tiny a chord between whole orders is all that is left: at most α/(2·(α − 1)) as much again."""
    exact = exact_sampled_gaussian(q, sigma, order)
    ours = float(rdp(PoissonSampled(q, Gaussian(sigma)), np.array([order]))[0])
    assert exact * (1 - 1e-13) <= ours <= exact * 2 / min(order, 2.0) * 1.07


def test_conversions_round_up() -> None:
    """Canonne, Kamath, Steinke 2020, Proposition 12, in 40 digits, from the curve of a Gaussian."""
    orders = np.array([1.5, 2.0, 5.0, 20.0, 300.0])
    with mpmath.workdps(40):
        for sigma, target in ((1e-3, 1e-5), (1.0, 1e-12), (500.0, 1e-3)):
            values = []
            for a in map(mpmath.mpf, orders.tolist()):
                curve = a / (2 * mpmath.mpf(sigma) ** 2)
                values.append(
                    curve + (mpmath.log(1 / mpmath.mpf(target)) + (a - 1) * mpmath.log(1 - 1 / a) - mpmath.log(a)) / (a - 1)
                )
            exact = max(mpmath.mpf(0), min(values))
            ours = rdp_epsilon(Gaussian(sigma), target, orders)
            assert exact <= ours <= exact * (1 + mpmath.mpf(1e-13)) + 1e-14
            assert rdp_delta(Gaussian(sigma), ours, orders) <= target * (1 + 1e-9)
