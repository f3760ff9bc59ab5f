"""Bounds of other mechanisms by Gaussian ones hold at every ε, and are nearly the least that do."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dperm.privacy import ApproximateDP, Composed, Gaussian, Laplace, PoissonSampled, PureDP, SelfComposed
from dperm.privacy.accountants.budget_costs import _lower_hull, gdp_bounds  # pyright: ignore[reportPrivateUsage]
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.privacy.events import Event, PrivacyProfile, UnsupportedEventError


def sampled(rate: float, noise: float, size: float) -> float:
    """δ(ε) of one step of noise on samples, the larger of both directions, from normal tails."""
    more = math.log1p((math.exp(size) - 1) / rate) if size else 0.0  # (1 − q) + q·e^x = e^ε at x, the unsampled pair's loss
    at = noise * more + 1 / (2 * noise)
    first = rate * ndtr(1 / noise - at) - (math.exp(size) - 1 + rate) * ndtr(-at)
    if math.exp(size) * (1 - rate) >= 1:
        return first
    low = -math.log((math.exp(-size) - (1 - rate)) / rate)
    at = noise * low + 1 / (2 * noise)  # of the mirrored pair
    inside = 1 - math.exp(size) * (1 - rate)
    return max(first, inside * ndtr(1 / noise - at) - math.exp(size) * rate * ndtr(-at))


def approximate(epsilon: float, delta: float, size: float) -> float:
    """Randomised response that fails with chance δ."""
    return delta + (1 - delta) * max(0.0, -math.expm1(size - epsilon)) / (1 + math.exp(-epsilon))


def laplace(noise: float, size: float) -> float:
    return max(0.0, -math.expm1((size - math.sqrt(2) / noise) / 2))


CASES: list[tuple[Event, float, Callable[[float], float]]] = [
    (PureDP(3.0), 1e-6, lambda size: approximate(3.0, 0.0, size)),
    (ApproximateDP(8.0, 4e-7), 1e-3, lambda size: approximate(8.0, 4e-7, size)),
    (Laplace(2.0), 1e-6, lambda size: laplace(2.0, size)),
    (PoissonSampled(0.3, Gaussian(1.0)), 0.05, lambda size: sampled(0.3, 1.0, size)),
    (PoissonSampled(0.001, Gaussian(0.7)), 1e-6, lambda size: sampled(0.001, 0.7, size)),
    (PoissonSampled(0.9, Gaussian(0.3)), 0.3, lambda size: sampled(0.9, 0.3, size)),
]


@pytest.mark.parametrize(("event", "mass", "profile"), CASES, ids=[str(event) for event, *_ in CASES])
def test_a_bound_lets_through_what_the_profile_does(event: Event, mass: float, profile: Callable[[float], float]) -> None:
    """δ(ε) ≤ m + (1 − m)·δ_μ(ε) at every ε, for each bound; and μ is hardly above the least at which that holds."""
    bounds = [bound for bound in gdp_bounds(event, mass) if bound.mass]
    asides = [bound.mass for bound in bounds]
    assert asides == sorted(asides, reverse=True)
    assert asides[0] <= mass
    if isinstance(event, PoissonSampled):  # whose δ falls without an end: nearly all of the mass can be used
        assert asides[0] > 0.8 * mass
    for bound in (bounds[0], bounds[len(bounds) // 2], bounds[-1]):
        needed = 0.0
        for size in (0.0, *np.geomspace(1e-3, 40.0, 80).tolist()):
            left = (profile(size) - bound.mass) / (1 - bound.mass)
            if left > 1e-14:
                needed = max(needed, gaussian_mu(size, left))
        assert needed <= math.sqrt(bound.mu_squared) <= 1.06 * needed


@pytest.mark.parametrize("size", [1e-59, 1e-12, 3e-7, 9e-5, 1.1e-4, 0.3, 9.0, 60.0])
def test_pure_privacy_is_bounded_by_its_largest_slope(size: float) -> None:
    """Neighbours are told apart no better than by randomised response, whose errors meet at 1/(1 + e^ε) = Φ(−μ/2)."""
    with mpmath.workdps(60 + int(size)):
        exact = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(mpmath.mpf(size) / 2))
        (bound,) = gdp_bounds(PureDP(size), 0.0)
        assert exact**2 <= bound.mu_squared <= exact**2 * (1 + mpmath.mpf(1e-8))
        assert bound.mass == 0.0


def test_gaussian_noise_and_pure_parts_add_their_squares() -> None:
    pure, other = (gdp_bounds(PureDP(size), 0.0)[0].mu_squared for size in (0.3, 0.05))
    event = Composed((SelfComposed(Gaussian(4.0), 3), Gaussian(1.5), SelfComposed(PureDP(0.3), 5), PureDP(0.05)))
    (bound,) = gdp_bounds(event, 0.0)
    assert bound.mu_squared == pytest.approx(3 / 16 + 1 / 2.25 + 5 * pure + other, rel=1e-8)
    assert bound.mu_squared > (3 / 16 + 1 / 2.25) * (1 + 1e-12)
    (alone,) = gdp_bounds(Gaussian(1.5), 1e-6)
    assert 1 / 2.25 < alone.mu_squared < 1 / 2.25 * (1 + 1e-8)


def test_parts_of_another_kind_are_counted_beside_gaussian_noise() -> None:
    """Three equal parts and two Gaussians: what the parts need by themselves, and the Gaussians' squares."""
    part = ApproximateDP(0.5, 1e-8)
    beside = gdp_bounds(Composed((SelfComposed(Gaussian(2.0), 2), SelfComposed(part, 3))), 1e-6)
    alone = gdp_bounds(SelfComposed(part, 3), 1e-6)
    assert [bound.mass for bound in beside] == [bound.mass for bound in alone]
    for with_noise, without in zip(beside, alone, strict=True):
        assert with_noise.mu_squared == pytest.approx(without.mu_squared + 0.5, rel=2e-9)
    # three times a part: never fewer than its three chances to fail, and a larger μ than one part has
    assert alone[-1].mass >= 3e-8 * (1 - 1e-7)
    assert alone[-1].mu_squared > 2 * gdp_bounds(part, 1e-6)[-1].mu_squared


def test_a_hull_keeps_what_lies_below_all_chords() -> None:
    """Of points with a falling height: by brute force over all chords."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 3, 9, 30):
        slopes = np.sort(rng.uniform(1.0, 50.0, count))
        heights = np.sort(slopes**-1.0 * rng.uniform(0.7, 1.0, count))[::-1]
        ends = [(first, last) for first in range(count) for last in range(first + 2, count)]
        above = {
            place
            for first, last in ends
            for place in range(first + 1, last)
            if heights[place] >= np.interp(slopes[place], slopes[[first, last]], heights[[first, last]])
        }
        kept = [place for place in range(count) if place not in above]
        found = _lower_hull(slopes, heights)
        assert found[0].tolist() == slopes[kept].tolist()
        assert found[1].tolist() == heights[kept].tolist()


def test_what_loses_nothing_needs_no_gaussian() -> None:
    for bound in gdp_bounds(PrivacyProfile((0.0, 1.0), (1e-7, 1e-9)), 1e-6)[:1]:
        assert bound.mu_squared == 0
        assert 1e-7 <= bound.mass <= 1e-6


def test_where_nothing_may_be_set_aside_is_said() -> None:
    with pytest.raises(UnsupportedEventError, match="with nothing set aside: only Gaussian noise"):
        gdp_bounds(Laplace(5.0), 0.0)
    with pytest.raises(UnsupportedEventError, match=r"with δ = 1e-06 set aside"):
        gdp_bounds(ApproximateDP(0.1, 1e-5), 1e-6)


def test_bounds_are_numbers_where_nearly_everything_is_given_away() -> None:
    """Up to where doubles end: what no finite μ bounds is left out."""
    for event, mass in ((PureDP(400.0), 1e-3), (PureDP(590.0), 1e-6), (ApproximateDP(40.0, 5e-5), 1e-3), (Laplace(0.003), 1e-6)):
        for bound in gdp_bounds(event, mass):
            assert math.isfinite(bound.mu_squared)
            assert bound.mass <= mass
