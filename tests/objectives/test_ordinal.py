"""The ordinal loss: its value is that of the law, its constants are reached and never exceeded, its probabilities add up."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from dperm.objectives import LinearObjective, OrdinalLogistic
from dperm.objectives.ordinal import CumulativeLogits, Ranks, thresholds_of

CUTS = [(0.3,), (-1.0, 1.0), (-0.5, 0.5), (-4.0, 4.0), (-2.0, -1.99999, 3.0), (-1.0, 0.0, 2.0, 2.5), (-100.0, -60.0, 100.0)]


def law(cuts: tuple[float, ...], t: float, rank: int) -> mpmath.mpf:
    """P(class `rank`), as it is defined."""
    below = [mpmath.mpf(0), *(1 / (1 + mpmath.exp(mpmath.mpf(t) - mpmath.mpf(cut))) for cut in cuts), mpmath.mpf(1)]
    return below[rank + 1] - below[rank]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_values_and_derivatives_are_those_of_the_law(cuts: tuple[float, ...]) -> None:
    loss = OrdinalLogistic(cuts)
    t = np.array([-30.0, -2.5, -0.5, 0.0, 0.7, 4.0, 30.0])
    with mpmath.workdps(120):
        for rank in range(len(cuts) + 1):
            y = np.full_like(t, rank - len(cuts) / 2)

            def value(at: mpmath.mpf, rank: int = rank) -> mpmath.mpf:
                return -mpmath.log(law(cuts, at, rank))

            for of, order in ((loss.value, 0), (loss.slope, 1), (loss.curvature, 2)):
                exact = [float(mpmath.diff(value, mpmath.mpf(at), order)) for at in t]
                np.testing.assert_allclose(of(t, y), exact, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("gap", [1e-5, 0.1, 1.0, 2.0, 2.6339, 2.634, 3.0, 6.0, 40.0])
def test_the_curvature_that_is_stated_is_reached_and_not_exceeded(gap: float) -> None:
    loss, y = OrdinalLogistic((-gap / 2, gap / 2)), np.zeros(1)
    grid = np.linspace(-gap - 8, gap + 8, 20_001)
    found = loss.curvature(grid, np.zeros_like(grid))
    best = grid[found.argmax()]
    top = minimize_scalar(lambda t: -loss.curvature(np.array([t]), y)[0], bounds=(best - 0.01, best + 0.01), method="bounded")
    stated = loss.smoothness(1.0)
    assert max(found.max(), -float(top.fun)) == pytest.approx(stated, rel=1e-6)
    assert found.max() <= stated * (1 + 1e-12)
    assert 0.25 <= stated <= 0.5


@given(
    st.lists(st.floats(-20, 20), min_size=1, max_size=9),
    st.floats(-1e4, 1e4),
    st.floats(0.01, 100),
)
@settings(max_examples=200, deadline=None)
def test_no_slope_and_no_curvature_exceeds_the_constants(cuts: list[float], t: float, norm: float) -> None:
    apart = tuple(float(cut) for cut in np.sort(cuts) + 1e-5 * np.arange(len(cuts)))
    loss = OrdinalLogistic(apart)
    ranks = np.arange(len(apart) + 1) - len(apart) / 2
    at = np.full_like(ranks, t)
    slopes, curvatures = loss.slope(at, ranks), loss.curvature(at, ranks)
    assert np.abs(slopes).max() * norm <= loss.lipschitz(norm) * (1 + 1e-12)
    assert curvatures.min() >= 0
    assert curvatures.max() * norm**2 <= loss.smoothness(norm) * (1 + 1e-12)
    assert np.all(np.diff(slopes) <= 1e-12)  # the higher the class, the more it pulls upwards
    assert np.all(np.isfinite(loss.value(at, ranks)))
    at_zero = loss.value(np.zeros_like(ranks), ranks)
    assert at_zero.max() <= loss.at_zero() * (1 + 1e-12)


def test_the_slope_bound_is_reached_by_every_class_and_has_no_factor_of_their_number() -> None:
    for cuts in CUTS:
        loss = OrdinalLogistic(cuts)
        for rank in np.arange(len(cuts) + 1) - len(cuts) / 2:
            slopes = loss.slope(np.array([-300.0, 300.0]), np.full(2, rank))
            assert np.abs(slopes).max() == pytest.approx(1.0)
        assert loss.lipschitz(3.0) == 3.0


def test_gradients_of_records_are_no_longer_than_the_bound() -> None:
    """By differences, of rows with an intercept: what a mechanism adds up."""
    rng = np.random.default_rng(0)
    loss = OrdinalLogistic((-1.0, 0.0, 2.0, 2.5))
    objective = LinearObjective(loss, 3, data_norm=1.0, intercept_scale=0.5)
    longest = 0.0
    for _ in range(50):
        theta, row, rank = rng.normal(size=4) * 20, rng.normal(size=3), float(rng.integers(0, 5) - 2)
        records = objective.records((row / np.linalg.norm(row))[None], np.array([rank]))
        step, gradient = 1e-5, np.zeros(4)
        for place in range(4):
            moved = [theta + sign * step * np.eye(4)[place] for sign in (1, -1)]
            up, down = (objective.evaluate(each, records)[0] for each in moved)
            gradient[place] = (up - down) / (2 * step)
        longest = max(longest, float(np.linalg.norm(gradient)))
        assert np.allclose(objective.evaluate(theta, records)[1], gradient, atol=1e-6)
    assert 0.99 * objective.facts.lipschitz < longest <= objective.facts.lipschitz * (1 + 1e-6)


def test_two_classes_are_logistic_regression() -> None:
    loss, t = OrdinalLogistic((0.0,)), np.linspace(-5, 5, 21)
    assert np.allclose(loss.value(t, np.full(21, 0.5)), np.logaddexp(0, -t))
    assert np.allclose(loss.value(t, np.full(21, -0.5)), np.logaddexp(0, t))
    assert loss.smoothness(2.0) == 1.0


@pytest.mark.parametrize("cuts", CUTS, ids=str)
def test_probabilities_add_up_and_the_median_class_is_the_nearest(cuts: tuple[float, ...]) -> None:
    link, t = CumulativeLogits(cuts), np.concatenate([np.linspace(-110, 110, 301), [-1e300, 1e300]])
    chances = link.inverse(t)
    assert chances.shape == (303, len(cuts) + 1) and chances.min() >= 0
    assert np.allclose(chances.sum(axis=1), 1.0)
    with mpmath.workdps(120):
        for row, at in zip(chances[:300:23], t[:300:23], strict=True):
            np.testing.assert_allclose(row, [float(law(cuts, at, rank)) for rank in range(len(row))], rtol=1e-6, atol=1e-40)
    ranks = np.arange(len(cuts) + 1)
    distances = chances @ np.abs(ranks[:, None] - ranks)  # (n, K) expected distance from each answer
    found = distances[np.arange(len(t)), link.median(t)]
    assert np.all(found <= distances.min(axis=1) + 1e-9)


def test_thresholds_meet_the_shares_that_are_stated() -> None:
    shares = np.array([0.1, 0.2, 0.6, 0.1])
    assert CumulativeLogits(thresholds_of(shares)).inverse(np.zeros(1))[0] == pytest.approx(shares)
    assert thresholds_of(np.ones(3)) == pytest.approx((-math.log(2), math.log(2)))
    assert np.all(np.diff(thresholds_of(np.array([1.0, 1e-30, 1e-30, 1.0]))) > 0)


@pytest.mark.parametrize("cuts", [(), (1.0, 1.0), (1.0, 0.0), (0.0, math.nan), (0.0, math.inf), (-101.0,), (0.0, 1e-7)])
def test_other_thresholds_are_refused(cuts: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="thresholds"):
        OrdinalLogistic(cuts)


@pytest.mark.parametrize("targets", [[0.5], [2.0], [-1.5], [math.nan]])
def test_targets_that_are_no_ranks_are_refused(targets: list[float]) -> None:
    with pytest.raises(ValueError, match="ranks from -1 to 1"):
        OrdinalLogistic((-1.0, 1.0)).admit(np.array(targets))
    assert Ranks(4).extremes == (1.5, -1.5) and Ranks(4).between == (-0.5, 0.5)


@pytest.mark.parametrize("gap", [1e-5, 1.0, 2.6, 2.7, 6.0, 20.0, 60.0, 190.0])
def test_the_third_derivative_stays_within_its_bound_and_reaches_it(gap: float) -> None:
    loss, t = OrdinalLogistic((-gap / 2, gap / 2)), np.linspace(-gap - 10, gap + 10, 400_001)
    most = max(np.abs(np.diff(loss.curvature(t, np.full_like(t, rank)))).max() / (t[1] - t[0]) for rank in (-1.0, 0.0, 1.0))
    assert loss.bend(2.0) / 8 * (1 - 1e-3) <= most <= loss.bend(2.0) / 8
