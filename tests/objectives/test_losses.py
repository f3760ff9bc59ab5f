"""Losses: derivatives by differences, constants never exceeded."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import mean_pinball_loss

from dperm.objectives import Huber, LinearObjective, Logistic, Loss, PoissonLoss, QuantileLoss, SmoothedHinge, Softmax, Squared
from dperm.objectives.checking import refuse_contradictions
from dperm.objectives.targets import Signs
from helpers.losses import every_loss, labelled, one_output, smooth

SOME = [Logistic(), Logistic(0.3), Logistic(3.0), Huber(0.1), Huber(0.5), SmoothedHinge(0.1), SmoothedHinge(1.0)]
BINARY = every_loss(*SOME, of=lambda loss: smooth(loss) and isinstance(loss.targets, Signs))
GRID = np.linspace(-6, 6, 1201) + 1e-4  # off the joints of Huber's loss


@pytest.mark.parametrize("loss", every_loss(*SOME, QuantileLoss(0.8, 2.0), QuantileLoss(0.1, 1.0, 0.5), of=smooth), ids=repr)
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_derivatives_by_differences(loss: Loss, sign: float) -> None:
    h, y = 1e-5, labelled(loss, np.full_like(GRID, sign))
    numeric = (loss.value(GRID + h, y) - loss.value(GRID - h, y)) / (2 * h)
    assert np.allclose(loss.slope(GRID, y), numeric, atol=1e-8)
    numeric = (loss.slope(GRID + h, y) - loss.slope(GRID - h, y)) / (2 * h)
    assert np.allclose(loss.curvature(GRID, y), numeric, atol=1e-6)


@pytest.mark.parametrize("loss", BINARY, ids=repr)
@given(t=st.floats(-1e6, 1e6), y=st.sampled_from([-1.0, 1.0]), norm=st.floats(0.01, 100))
def test_slope_and_curvature_stay_within_the_constants(loss: Loss, t: float, y: float, norm: float) -> None:
    slope = loss.slope(np.array([t]), np.array([y]))[0]
    curvature = loss.curvature(np.array([t]), np.array([y]))[0]
    assert abs(slope) * norm <= loss.lipschitz(norm) * (1 + 1e-12)
    assert 0 <= curvature * norm**2 <= loss.smoothness(norm) * (1 + 1e-12)
    assert slope * y <= 0  # the sign the sharp bound relies on


@pytest.mark.parametrize("loss", [Logistic(), Logistic(2.0), SmoothedHinge(0.3)], ids=repr)
def test_slope_ties_curvature(loss: Loss) -> None:
    """The sharp bound's premise: slope −p·y gives curvature p(1 − p)·4β (B = 1)."""
    p = np.abs(loss.slope(GRID, np.ones_like(GRID)))
    assert np.allclose(loss.curvature(GRID, np.ones_like(GRID)), 4 * loss.smoothness(1.0) * p * (1 - p), atol=1e-12)


@pytest.mark.parametrize("norm", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(
    "loss",
    every_loss(
        *SOME, PoissonLoss(5.0, 1.5), PoissonLoss(0.3, 0.2), QuantileLoss(0.9, 3.0), QuantileLoss(0.5, 1e-3), of=one_output
    ),
    ids=repr,
)
def test_our_own_losses_pass_what_a_stranger_s_must(loss: Loss, norm: float) -> None:
    refuse_contradictions(loss, norm, loss.ball)
    objective = LinearObjective(loss, 3, data_norm=norm, radius=loss.ball)
    far = 5.0 if loss.ball is None else loss.ball * norm
    t = np.linspace(-far, far, 2001)
    for target in loss.targets.extremes:
        assert loss.curvature(t, np.full_like(t, target)).max() <= objective.curvature * (1 + 1e-9)
    # at zero, a loss is no further above its least than stated
    everywhere = np.linspace(-30, 30, 60_001)
    for target in loss.targets.extremes:
        values = loss.value(everywhere, np.full_like(everywhere, target))
        assert loss.value(np.zeros(1), np.array([target]))[0] - values.min() <= loss.at_zero() + 1e-9


def test_the_slope_of_counts_is_as_exact_as_stated() -> None:
    """Also where e^t and y nearly cancel."""
    loss, rng = PoissonLoss(5.0, 1.5), np.random.default_rng(0)
    t = rng.uniform(-1.5, 1.5, 400)
    for y in (np.exp(t), rng.uniform(0, 5, 400)):
        found = loss.slope(t, y)
        with mpmath.workdps(40):
            for at, target, slope in zip(t, y, found, strict=True):
                wrong = abs(mpmath.exp(mpmath.mpf(at)) - mpmath.mpf(target) - mpmath.mpf(slope))
                assert wrong <= loss.slope_error(abs(at), abs(slope), np.inf)


@pytest.mark.parametrize("margin", [0.0, 2.0, 40.0])
def test_the_slope_of_a_margin_is_as_exact_as_stated(margin: float) -> None:
    loss, rng = Logistic(margin), np.random.default_rng(0)
    t = np.concatenate([rng.uniform(-60, 60, 200), margin + rng.uniform(-1e-6, 1e-6, 50), rng.normal(0, 1e3, 50)])
    for y in (np.ones_like(t), -np.ones_like(t)):
        found = loss.slope(t, y)
        with mpmath.workdps(60):
            for at, target, slope in zip(t, y, found, strict=True):
                p = 1 / (1 + mpmath.exp(mpmath.mpf(target) * mpmath.mpf(at) - mpmath.mpf(margin)))
                assert abs(-target * p - mpmath.mpf(slope)) <= loss.slope_error(abs(at), max(abs(slope), 2.0**-400), 0.25)


@pytest.mark.parametrize("loss", [*BINARY, Logistic(100.0)], ids=repr)
def test_a_probability_is_that_of_its_best_answer(loss: Loss) -> None:
    """With labels of that probability, the mean slope is 0 at t."""
    t = np.linspace(-5, 5, 101)
    p = loss.link.inverse(t)
    ones = np.ones_like(t)
    assert np.allclose(p * loss.slope(t, ones) + (1 - p) * loss.slope(t, -ones), 0.0, atol=1e-12)
    assert np.all(np.diff(p) >= -1e-12)
    assert np.allclose(p + loss.link.inverse(-t), 1.0)
    assert np.array_equal(np.isfinite(loss.link.inverse(np.array([-1e300, -800.0, 800.0, 1e300]))), [True] * 4)


def test_probabilities_of_margins() -> None:
    t = np.linspace(-5, 5, 101)
    assert np.array_equal(Logistic().link.inverse(t), expit(t))
    assert np.allclose(Logistic(1e-9).link.inverse(t), expit(t))
    # by hand: σ(3)/(σ(3) + σ(1)) at t = 1, a = 2
    assert Logistic(2.0).link.inverse(np.ones(1))[0] == pytest.approx(0.952574 / (0.952574 + 0.731059), rel=1e-5)
    assert np.array_equal(Logistic(2.0).link.inverse(np.array([-1e4, 1e4])), [0.0, 1.0])


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_the_least_mean_is_at_the_quantile(quantile: float) -> None:
    """Near it: smoothed over h. With a small h it is the pinball loss itself."""
    y = np.random.default_rng(0).uniform(-1, 1, 4001)
    t = np.linspace(-1, 1, 801)
    sharp = QuantileLoss(quantile, 1.0, 1e-4)
    mean = np.array([sharp.value(np.full_like(y, at), y).mean() for at in t])
    pinball = np.array([mean_pinball_loss(y, np.full_like(y, at), alpha=quantile) for at in t])
    assert np.allclose(mean, pinball, atol=1e-4)
    for width in (1e-4, 0.1):
        loss = QuantileLoss(quantile, 1.0, width)
        mean = np.array([loss.value(np.full_like(y, at), y).mean() for at in t])
        assert t[mean.argmin()] == pytest.approx(np.quantile(y, quantile), abs=0.02)
    assert QuantileLoss(quantile, 5.0).half_width == 0.5
    assert (sharp.lipschitz(2.0), QuantileLoss(quantile, 1.0, 0.5).smoothness(2.0)) == (2 * max(quantile, 1 - quantile), 4.0)
    assert np.array_equal(sharp.admit(np.array([-9.0, 0.3, 9.0])), [-1.0, 0.3, 1.0])


def test_a_loss_s_ball_is_required() -> None:
    for radius in (None, 3.0):
        with pytest.raises(ValueError, match="at most 2, the ball in which the poisson loss's constants hold"):
            LinearObjective(PoissonLoss(5.0, 2.0), 3, radius=radius)
    assert LinearObjective(PoissonLoss(5.0, 2.0), 3, radius=1.0).facts.target_bound == 5.0


def test_constants_of_the_table() -> None:
    assert (Logistic().lipschitz(2.0), Logistic().smoothness(2.0)) == (2.0, 1.0)
    assert (Huber(0.1).lipschitz(2.0), Huber(0.1).smoothness(2.0)) == (2.0, pytest.approx(20.0))
    assert (SmoothedHinge(0.5).lipschitz(2.0), SmoothedHinge(0.5).smoothness(2.0)) == (2.0, 2.0)
    assert (Squared(3.0, 5.0).lipschitz(2.0), Squared(3.0, 5.0).smoothness(2.0)) == (2 * (10 + 3), 4.0)
    assert (Softmax(4).lipschitz(2.0), Softmax(4).smoothness(2.0)) == (pytest.approx(2 * math.sqrt(2)), 2.0)
    assert Squared(1.0).lipschitz(1.0) == math.inf


@given(st.lists(st.floats(-30, 30), min_size=3, max_size=3), st.integers(0, 2), st.floats(0.1, 3))
def test_softmax_constants(scores: list[float], label: int, norm: float) -> None:
    t, y = np.array([scores]), np.array([float(label)])
    slope = Softmax(3).slope(t, y)[0]
    assert np.linalg.norm(slope) * norm <= Softmax(3).lipschitz(norm) * (1 + 1e-12)
    p = slope.copy()
    p[label] += 1
    hessian = np.diag(p) - np.outer(p, p)
    assert np.linalg.eigvalsh(hessian).max() * norm**2 <= Softmax(3).smoothness(norm) * (1 + 1e-9)
    h = 1e-6
    for k in range(3):
        step = np.eye(3)[k] * h
        numeric = (Softmax(3).value(t + step, y)[0] - Softmax(3).value(t - step, y)[0]) / (2 * h)
        assert slope[k] == pytest.approx(numeric, abs=1e-6)


def test_extreme_margins_stay_finite() -> None:
    for loss in BINARY:
        for t in (-1e300, -745.0, 745.0, 1e300):
            values = [f(np.array([t]), np.array([1.0]))[0] for f in (loss.value, loss.slope, loss.curvature)]
            assert np.all(np.isfinite(values))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Huber(0.0),
        lambda: SmoothedHinge(-1.0),
        lambda: Squared(0.0),
        lambda: Softmax(1),
        lambda: Logistic(-1.0),
        lambda: Logistic(101.0),
        lambda: QuantileLoss(0.0),
        lambda: QuantileLoss(1.0),
        lambda: QuantileLoss(0.5, 0.0),
        lambda: QuantileLoss(0.5, 1.0, 0.0),
    ],
)
def test_bad_constants_are_refused(make: object) -> None:
    with pytest.raises(ValueError, match="Expected"):
        make()


@pytest.mark.parametrize(("bound", "radius"), [(20.0, 0.5), (2.0, 0.5), (0.1, 2.0), (10.0, 2.0)])
def test_the_slope_bound_of_counts_is_the_largest_slope(bound: float, radius: float) -> None:
    """By all predictions within the ball and all targets of a fine grid: none is steeper, and the steepest is as steep."""
    loss = PoissonLoss(bound, radius)
    t, y = (grid.ravel() for grid in np.meshgrid(np.linspace(-radius, radius, 401), np.linspace(0, bound, 401)))
    steepest = np.abs(np.exp(t) - y).max()
    assert steepest * (1 - 1e-12) <= loss.lipschitz(1.0) <= steepest * (1 + 1e-11)
