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
from dperm.privacy.rdp import rdp, rdp_delta, rdp_epsilon


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
