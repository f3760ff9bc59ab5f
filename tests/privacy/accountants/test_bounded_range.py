"""Item 16: exponential mechanisms cost what the worst choices of their range cost, adaptively, and hardly more."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from dperm.privacy import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    PureDP,
    RandomAllocation,
    Relation,
    SelfComposed,
    delta,
    epsilon,
)
from dperm.privacy.accountants.accounting import best_epsilon
from dperm.privacy.accountants.bounded_range import blocks, loss_atoms
from dperm.privacy.accountants.budget_costs import gdp_bounds
from dperm.privacy.accountants.rdp import rdp_delta, rdp_epsilon

Profile = Callable[[np.ndarray], np.ndarray]


def none_left(x: np.ndarray) -> np.ndarray:
    """δ(x) of no mechanism, at any real x."""
    return np.maximum(-np.expm1(x), 0.0)


def before_choice(size: float, rest: Profile, thresholds: int = 601) -> Profile:
    """δ of a choice of range `size`, the worst of these many, followed by what has the profile `rest` whatever was chosen."""
    t = np.linspace(0.0, size, thresholds)
    p = np.expm1(size - t) * np.exp(t) / math.expm1(size)

    def profile(x: np.ndarray) -> np.ndarray:
        return np.array([np.max(p * rest(each - t) + (1 - p) * rest(each - t + size)) for each in x.ravel()]).reshape(x.shape)

    return profile


def before_noise(multiplier: float, rest: Profile) -> Profile:
    """δ of Gaussian noise, followed by the same."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    losses = nodes / multiplier + 1 / (2 * multiplier**2)
    chances = weights / weights.sum()
    return lambda x: np.array([chances @ rest(each - losses) for each in x.ravel()]).reshape(x.shape)


def tabulated(profile: Profile, reach: float, points: int = 401) -> Profile:
    """Linear between points: of a profile whose bends are small in between."""
    at = np.linspace(-reach, reach, points)
    values = profile(at)
    return lambda x: np.where(x < -reach, none_left(x), np.where(x > reach, 0.0, np.interp(x, at, values)))


def at(profile: Profile, x: float) -> float:
    return float(profile(np.array([x]))[0])


def test_one_choice_costs_its_exact_profile() -> None:
    for size in (1e-3, 0.2, 1.0, 4.0, 30.0):
        for share in (0.0, 0.3, 0.9, 0.9999):
            x = share * size
            with mpmath.workdps(25):  # the largest over t of p_t(1 − e^{x − t}): Dong, Durfee, Rogers 2020
                worst = max(
                    (mpmath.exp(size) - mpmath.exp(t)) / (mpmath.exp(size) - 1) * (1 - mpmath.exp(x - t))
                    for t in (x + (size - x) * mpmath.mpf(i) / 400 for i in range(401))
                )
            found = delta(ExponentialMechanism(size), x)
            assert float(worst) * (1 - 1e-14) <= found <= float(worst) * (1 + 3e-5)
            assert epsilon(ExponentialMechanism(size), found) == pytest.approx(x, rel=1e-9, abs=1e-12)
    assert delta(ExponentialMechanism(1.0), 1.0) == 0.0 and epsilon(ExponentialMechanism(1.0), 0.9) == 0.0
    assert epsilon(ExponentialMechanism(1.0), 1e-6) == pytest.approx(0.99841, abs=1e-5)  # 2.42 by Rényi divergences


@pytest.mark.parametrize("relation", Relation)
def test_pure_epsilon(relation: Relation) -> None:
    choice = ExponentialMechanism(0.3, relation)
    assert epsilon(choice, 0.0) == 0.3
    assert epsilon(Composed((SelfComposed(choice, 3), PureDP(0.2, relation))), 0.0) == pytest.approx(1.1)
    assert delta(SelfComposed(choice, 3), 0.9 * (1 + 1e-12)) == 0.0
    assert epsilon(Composed((choice, Gaussian(3.0, relation))), 0.0) == math.inf
    assert epsilon(SelfComposed(choice, 3), 1e-300) <= 0.9 * (1 + 1e-12)


@pytest.mark.parametrize(("size", "count"), [(0.2, 2), (1.0, 2), (1.0, 3), (4.0, 3)])
def test_never_below_the_adaptive_recursion_and_within_a_thousandth(size: float, count: int) -> None:
    rest = none_left
    for _ in range(count - 1):
        rest = tabulated(before_choice(size, rest, 401), count * size, 1201)
    event = SelfComposed(ExponentialMechanism(size), count)
    for share in (0.05, 0.2, 0.5, 0.8):
        x = share * size * count
        worst = at(before_choice(size, rest), x)
        assert worst * (1 - 1e-4) <= delta(event, x) <= worst * (1 + 1e-3)


def test_adaptive_choices_cost_more_than_fixed_ones() -> None:
    found = delta(SelfComposed(ExponentialMechanism(1.0), 2), 0.2)
    assert 0.2365 <= found < 0.2367  # 0.2299, the optimum of fixed pairs, would be too little
    t = np.linspace(0, 1, 201)
    p = np.expm1(1 - t) * np.exp(t) / math.expm1(1)
    first, second = np.meshgrid(np.arange(201), np.arange(201))
    fixed = sum(
        chance * none_left(0.2 - t[first] + a - t[second] + b)
        for a, b, chance in (
            (0, 0, p[first] * p[second]),
            (0, 1, p[first] * (1 - p[second])),
            (1, 0, (1 - p[first]) * p[second]),
            (1, 1, (1 - p[first]) * (1 - p[second])),
        )
    )
    assert float(np.max(fixed)) == pytest.approx(0.2299, abs=1e-4)


def test_choices_that_take_turns_with_noise() -> None:
    """A choice sees the noise before it, and noise is added to what was chosen: no order costs more than is charged."""
    size, noise = 0.8, 2.0
    profile = none_left
    for _ in range(2):
        profile = tabulated(before_noise(noise, profile), 6.0)
        profile = tabulated(before_choice(size, profile, 201), 6.0)
    event = Composed((SelfComposed(ExponentialMechanism(size), 2), SelfComposed(Gaussian(noise), 2)))
    for x in (0.3, 1.0, 2.0):
        assert at(profile, x) * (1 - 1e-3) <= delta(event, x) <= at(profile, x) * 1.3


def test_choices_of_two_ranges_that_take_turns() -> None:
    profile = none_left
    for size in (0.3, 1.0, 0.3, 1.0):
        profile = tabulated(before_choice(size, profile, 201), 2.6, 1041)
    event = Composed((SelfComposed(ExponentialMechanism(0.3), 2), SelfComposed(ExponentialMechanism(1.0), 2)))
    for x in (0.2, 1.0, 1.8):
        assert at(profile, x) * (1 - 1e-3) <= delta(event, x) <= at(profile, x) * 1.3


@pytest.mark.parametrize(("size", "count", "target"), [(0.1, 10, 1e-6), (0.3, 50, 1e-6), (0.03, 1000, 1e-6), (0.5, 4, 1e-9)])
def test_many_choices_cost_less_than_by_renyi_divergences(size: float, count: int, target: float) -> None:
    event = SelfComposed(ExponentialMechanism(size), count)
    found, accountant = best_epsilon(event, target)
    assert accountant == "PLD"
    assert found < 0.95 * rdp_epsilon(event, target)
    # by the best of fixed choices, two-point losses of the largest variance: never less than these
    high = np.log((1 + math.exp(size)) / 2)
    chance = np.expm1(size - high) * np.exp(high) / math.expm1(size)
    hits = np.arange(count + 1)
    log_choose = np.array([math.lgamma(count + 1) - math.lgamma(n + 1) - math.lgamma(count - n + 1) for n in hits])
    mass = np.exp(log_choose + hits * math.log(chance) + (count - hits) * math.log1p(-chance))
    losses = hits * high + (count - hits) * (high - size)
    assert float(mass @ np.maximum(-np.expm1(found - losses), 0.0)) <= target


def test_the_least_of_all_accountants() -> None:
    event = SelfComposed(ExponentialMechanism(1e-3), 10**6)
    assert best_epsilon(event, 1e-200)[1] == "RDP" and delta(event, 15.3) <= rdp_delta(event, 15.3)
    assert best_epsilon(SelfComposed(ExponentialMechanism(800.0), 3), 1e-6) == (2400.0, "basic composition")
    assert delta(SelfComposed(ExponentialMechanism(800.0), 2), 700.0) == 1.0  # e^800 is no double
    for choice in (ExponentialMechanism(1e-12), ExponentialMechanism(20.0)):
        for count in (1, 5, 70):
            assert 0 <= epsilon(SelfComposed(choice, count), 1e-6) <= count * choice.epsilon
            assert 0 < delta(SelfComposed(choice, count), 0.5 * count * choice.epsilon) <= 1
    mixed = Composed((SelfComposed(ExponentialMechanism(0.1), 10), RandomAllocation(8, Gaussian(1.0)), Laplace(5.0)))
    parts = epsilon(RandomAllocation(8, Gaussian(1.0)), 1e-5)
    assert parts < epsilon(mixed, 1e-5) < parts + 1.0 + math.sqrt(2) / 5


def test_never_more_than_pure_mechanisms_and_never_falling() -> None:
    for count in (1, 2, 63, 64, 65, 129):
        choices, pure = SelfComposed(ExponentialMechanism(0.2), count), SelfComposed(PureDP(0.2), count)
        assert epsilon(choices, 1e-6) < epsilon(pure, 1e-6)
    costs = [epsilon(SelfComposed(ExponentialMechanism(0.2), count), 1e-6) for count in range(60, 70)]
    assert costs == sorted(costs)


@pytest.mark.parametrize(("size", "count"), [(1e-9, 3), (0.2, 1), (0.5, 40), (2.0, 64), (20.0, 6), (400.0, 1)])
def test_dominating_pairs_are_pairs(size: float, count: int) -> None:
    losses, masses = map(np.array, loss_atoms(size, count))
    assert np.all(masses >= 0) and np.array_equal(losses, -losses[::-1])
    assert 1 - 1e-12 <= masses.sum() <= 1 + 1e-7 and 1 - 1e-12 <= masses @ np.exp(-losses) <= 1 + 1e-7
    assert losses.max() <= size * count * (1 + 1e-12)


def test_blocks_hold_all_choices() -> None:
    for size in (1e-6, 0.1, 3.0, 50.0, 400.0):
        for count in (1, 2, 63, 64, 65, 1000, 12_345):
            found = blocks(size, count)
            assert sum(length * number for length, number in found.items()) == count
            assert max(found) <= 64 and max(found) - min(found) <= 1


def test_a_gaussian_budget_takes_choices() -> None:
    (first, *_) = gdp_bounds(SelfComposed(ExponentialMechanism(0.1), 50), 1e-6)
    variance = 50 * 0.1**2 / 4
    assert variance < first.mu_squared < 2 * variance and first.mass <= 1e-6
