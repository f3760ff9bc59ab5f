from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize

import dperm.solvers.newton as newton
from dperm.objectives import Huber, LinearObjective, Logistic, Loss, RegularisedSum, SmoothedHinge, Squared
from dperm.solvers import SolverError, minimise
from helpers.losses import every_loss, labelled, smooth

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(400, 6))
LABELS = np.where(ROWS @ np.arange(6) + RNG.normal(size=400) > 0, 1.0, -1.0)


def problem(loss: Loss, modulus: float = 0.5, linear: float = 0.0, scale: float = 1.0) -> RegularisedSum:
    objective = LinearObjective(loss, 6, data_norm=scale, intercept_scale=0.5, strong_convexity=modulus, radius=loss.ball)
    return RegularisedSum(objective, objective.records(ROWS, labelled(loss, LABELS)), np.full(7, linear))


@pytest.mark.parametrize("loss", every_loss(Huber(0.1), Huber(0.5), SmoothedHinge(0.05), Squared(1.0, 5.0), of=smooth), ids=repr)
@pytest.mark.parametrize("linear", [0.0, 30.0])
@pytest.mark.parametrize("modulus", [1e-3, 0.5, 50.0])
def test_the_certified_norm_is_the_true_one(loss: Loss, linear: float, modulus: float) -> None:
    target = problem(loss, modulus, linear)
    found = minimise(target, 1e-8)
    assert found.residual <= 1e-8
    _, gradient, _ = target.evaluate(found.theta, False)
    # its bound on rounding included, which is far above what rounding did, and the more the longer θ is
    rounding = 1e-10 + 3e-13 * np.linalg.norm(found.theta)
    assert np.linalg.norm(gradient) <= found.residual <= np.linalg.norm(gradient) + rounding


@pytest.mark.parametrize("radius", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.3), Squared(1.0, 5.0)], ids=repr)
def test_the_ball_against_scipy(radius: float, loss: Loss) -> None:
    target = problem(loss, 0.1)
    found = minimise(target, 1e-8, radius)
    assert np.linalg.norm(found.theta) <= radius * (1 + 1e-12)
    value = target.evaluate(found.theta, False)[0]
    other = scipy_minimize(
        lambda theta: target.evaluate(theta, False)[0],
        np.zeros(7),
        jac=lambda theta: target.evaluate(theta, False)[1],
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda theta: radius**2 - theta @ theta, "jac": lambda theta: -2 * theta},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert value <= other.fun + 1e-6


def test_an_inactive_ball_changes_nothing() -> None:
    target = problem(Logistic())
    assert np.array_equal(minimise(target, 1e-8).theta, minimise(target, 1e-8, 1e6).theta)


def test_large_dimensions_use_products_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newton, "_DENSE_LIMIT", 3)
    target = problem(Logistic(), 0.01, 3.0)
    sparse = minimise(target, 1e-8)
    monkeypatch.undo()
    assert np.allclose(sparse.theta, minimise(target, 1e-8).theta, atol=1e-5)


def test_separable_data_and_zero_rows() -> None:
    objective = LinearObjective(Logistic(), 2, strong_convexity=1e-4)
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]] * 50)
    labels = np.array([1.0, -1.0, 1.0] * 50)
    assert minimise(RegularisedSum(objective, objective.records(rows, labels)), 1e-8).residual <= 1e-8


def test_an_unreachable_tolerance_is_an_error() -> None:
    with pytest.raises(SolverError, match="tolerance"):
        minimise(problem(Logistic()), 1e-18)
