"""Profiles with stated points against the convex hull in 800 digits: no bound below it, and next to none above."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dperm.privacy import ApproximateDP, Composed, PrivacyProfile, SelfComposed, delta, epsilon
from dperm.privacy.accountants.dominating_pairs import loss_pairs

Corners = list[tuple[mpmath.mpf, mpmath.mpf]]

DIGITS = 800  # more than lie between the largest e^ε and the smallest δ


def exact_hull(profile: PrivacyProfile) -> Corners:
    """The lower convex hull in (e^ε, δ) of the points, their mirror images and (0, 1)."""
    stated = [(mpmath.exp(mpmath.mpf(e)), mpmath.mpf(d)) for e, d in zip(profile.epsilons, profile.deltas, strict=True)]
    mirrored = [(1 / x, 1 - 1 / x + y / x) for x, y in stated if x > 1]
    corners: Corners = []
    for point in [(mpmath.mpf(0), mpmath.mpf(1)), *sorted(mirrored), *stated]:
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) >= _slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def _slope(a: tuple[mpmath.mpf, mpmath.mpf], b: tuple[mpmath.mpf, mpmath.mpf]) -> mpmath.mpf:
    return (b[1] - a[1]) / (b[0] - a[0])


def exact_delta(corners: Corners, value: float) -> mpmath.mpf:
    x = mpmath.exp(mpmath.mpf(value))
    for a, b in itertools.pairwise(corners):
        if x <= b[0]:
            return a[1] + _slope(a, b) * (x - a[0])
    return corners[-1][1]


def exact_epsilon(corners: Corners, target: float) -> mpmath.mpf:
    for a, b in itertools.pairwise(corners):
        if target >= b[1]:
            return mpmath.log(max(mpmath.mpf(1), a[0] + (target - a[1]) / _slope(a, b) if a[1] > target else a[0]))
    return mpmath.inf


losses = st.one_of(st.floats(0, 3), st.floats(0, 1e-6), st.floats(0, 600), st.floats(-12, 2.7).map(lambda power: 10**power))
chances = st.one_of(st.floats(-300, 0), st.floats(-20, 0)).map(lambda power: 10**power)


@st.composite
def profiles(draw: st.DrawFn) -> PrivacyProfile:
    epsilons = sorted(draw(st.lists(losses, min_size=1, max_size=6, unique=True)))
    deltas = draw(st.lists(chances, min_size=len(epsilons), max_size=len(epsilons)))
    return PrivacyProfile(tuple(epsilons), tuple(sorted(deltas, reverse=True)))


@settings(deadline=None, max_examples=50)
@given(profiles(), st.floats(0, 1))
@example(PrivacyProfile((1, 8), (0.5, 1e-18)), 0.5)
@example(PrivacyProfile((1, 5.6825), (0.3, 3.394248e-12)), 0.999999)
@example(PrivacyProfile((1, 20), (0.1, 1e-25)), 0.1)
@example(PrivacyProfile((70, 292, 400, 590), (1e-3, 1e-167, 1e-200, 1e-290)), 0.7)
@example(PrivacyProfile((0.0, 1e-300, 1e-290), (1e-3, 1e-4, 1e-5)), 0.3)
@example(PrivacyProfile((600.0,), (1.0,)), 1.0)
@example(PrivacyProfile((1.0, 2.0), (1e-322, 5e-324)), 0.7)
@example(PrivacyProfile((0.0, 1.5e-322), (1e-3, 1e-4)), 0.4)
@pytest.mark.filterwarnings("error")
def test_stated_points_are_bounds_to_the_last_digits(profile: PrivacyProfile, share: float) -> None:
    """At all points, a number before and after them, and between: never below the truth; above by less than 1e-11 of ε and δ."""
    places = {share * profile.epsilons[-1]}
    targets = {max(profile.deltas[-1], share * profile.deltas[0])}
    for e, d in zip(profile.epsilons, profile.deltas, strict=True):
        places |= {max(0.0, math.nextafter(e, -1)), e, math.nextafter(e, math.inf)}
        targets |= {math.nextafter(d, 0), d, math.nextafter(d, 2)} - {math.nextafter(1, 2)}
    with mpmath.workdps(DIGITS):
        nearly = 1 - mpmath.mpf(10) ** -400  # for the rounding of the truth
        corners = exact_hull(profile)
        for place in places:
            found, truth = delta(profile, place), exact_delta(corners, place)
            assert type(found) is float
            assert found <= 1
            assert truth * nearly <= found <= truth * (1 + mpmath.mpf(1e-11)) + 1e-306, (place, found)
        for target in targets - {1.0}:
            found, truth = epsilon(profile, target), exact_epsilon(corners, target)
            assert type(found) is float
            assert truth * nearly <= found, (target, found)
            assert found == 0 or exact_delta(corners, found * (1 - 1e-11)) >= target * (1 - 1e-11), (target, found)


def test_rounding_of_chords_is_allowed_for() -> None:
    """Several hundred chords, whose ends lie near each other and far apart: what doubles make of them is never below."""
    rng = np.random.default_rng(0)
    with mpmath.workdps(60):
        for _ in range(300):
            first, second = np.sort(10 ** rng.uniform(-6, 1) * rng.uniform(0, 1, 2))
            deltas = 10 ** -np.sort(rng.uniform(0, rng.choice([0.1, 6.0]), 2))
            one, two = PrivacyProfile((second,), (deltas[1],)), PrivacyProfile((first, second), tuple(deltas))
            far = PrivacyProfile((rng.uniform(40, 500),), (deltas[1],))  # its chord begins at (−inf, 1)
            for profile in (one, two, far):
                corners, share = exact_hull(profile), rng.uniform()
                end = profile.epsilons[-1]
                place = end - share * (end - profile.epsilons[0] if profile is two else min(end, 1.0))
                found, truth = delta(profile, place), exact_delta(corners, place)
                assert truth <= found <= truth * (1 + mpmath.mpf(1e-13))
                target = deltas[1] + share * ((deltas[0] if profile is two else 1.0) - deltas[1])
                if deltas[1] < target < 1:
                    found, truth = epsilon(profile, target), exact_epsilon(corners, target)
                    assert truth <= found <= truth + 1e-12 * (1 + truth)


@pytest.mark.parametrize("smallest", [1e-18, 1e-40, 1e-59])
def test_a_stated_point_with_a_small_delta_keeps_it_where_it_is_composed(smallest: float) -> None:
    profile = PrivacyProfile((1, 8), (0.5, smallest))
    assert loss_pairs(profile).infinite == smallest
    assert epsilon(SelfComposed(profile, 2), 2 * smallest) == 16
    assert delta(SelfComposed(profile, 2), 16) >= smallest
    both = Composed((profile, ApproximateDP(0.1, smallest)))
    assert epsilon(both, 2 * smallest) == pytest.approx(8.1, rel=1e-12)
