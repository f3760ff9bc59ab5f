"""Influence on linear models, against refits without the records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm.influence import LinearInfluence
from dperm.objectives import (
    Hinge,
    LinearObjective,
    Logistic,
    Loss,
    RegularisedSum,
    Roughness,
    SmoothedHinge,
    Softmax,
    Squared,
)
from dperm.solvers import minimise, minimise_softmax

RNG = np.random.default_rng(0)
N, D = 300, 6
ROWS = RNG.normal(size=(N, D)) / np.sqrt(D)
LABELS = np.where(ROWS[:, 0] + 0.3 * RNG.normal(size=N) > 0, 1.0, -1.0)
NUMBERS = np.clip(ROWS @ np.arange(D) / 4 + 0.1 * RNG.normal(size=N), -1, 1)


def objective(loss: Loss | None = None, **changes: Any) -> LinearObjective:
    settings = {"data_norm": 2.0, "intercept_scale": 0.5, "strong_convexity": 1.0, "public_size": N} | changes
    return LinearObjective(loss or Logistic(), settings.pop("features", D), **settings)


def refitted(problem: LinearObjective, rows: Any, targets: Any) -> np.ndarray:
    return minimise(RegularisedSum(problem, problem.records(rows, targets)), 1e-10, problem.radius).theta


CASES = [
    (objective(Logistic()), LABELS),
    (objective(SmoothedHinge(0.5)), LABELS),
    (objective(Logistic(), intercept_scale=0.0, strong_convexity=0.1), LABELS),
    (objective(Squared(1.0, 50.0), radius=50.0), NUMBERS),
    (objective(strong_convexity=0.5, roughness=Roughness(((0, 1), (1, 2), (4, 5)), 4.0)), LABELS),
]


@pytest.mark.parametrize(("problem", "targets"), CASES, ids=[f"{case.loss.name}-{case.strong_convexity}" for case, _ in CASES])
@pytest.mark.parametrize("storage", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_influence_is_what_leaving_does(problem: LinearObjective, targets: np.ndarray, storage: Any) -> None:
    rows = storage(ROWS)
    influence = LinearInfluence.at_minimiser(problem, problem.records(rows, targets), 1e-10)
    chosen = np.arange(0, N, 10)
    truth = np.stack([refitted(problem, np.delete(ROWS, i, 0), np.delete(targets, i)) for i in chosen]) - influence.theta
    stepped, first = influence.parameters(chosen), influence.parameters(chosen, step=False)
    size = np.linalg.norm(truth, axis=1)
    wrong = np.linalg.norm(stepped - truth, axis=1)
    tolerance = 1e-6 if problem.loss.name == "squared" else 0.05
    assert np.all(wrong <= tolerance * size.max())  # a step is exact for the squared loss
    assert np.corrcoef(stepped.ravel(), truth.ravel())[0, 1] > 0.99
    assert np.linalg.norm(first - truth) > np.linalg.norm(stepped - truth)
    assert np.allclose(influence.lengths()[chosen], np.linalg.norm(stepped, axis=1))
    assert np.all(np.linalg.norm(first - truth, axis=1) <= influence.error_bound())
    direction = RNG.normal(size=problem.dimension)
    assert np.allclose(influence.on(direction)[chosen], stepped @ direction)
    assert np.allclose(influence.on(direction, step=False)[chosen], first @ direction)


def test_scores_of_other_records() -> None:
    problem = objective()
    rows, targets = ROWS[:250], LABELS[:250]
    influence = LinearInfluence.at_minimiser(problem, problem.records(rows, targets), 1e-10)
    others = problem.records(ROWS[250:], LABELS[250:])
    new = refitted(problem, rows[1:], targets[1:])

    def predictions(theta: np.ndarray) -> np.ndarray:
        return np.concatenate([problem.predict(theta, batch) for batch in others.batches()])

    moved = predictions(new) - predictions(influence.theta)
    assert np.allclose(influence.on_predictions(ROWS[250:])[0], moved, atol=0.02 * np.abs(moved).max())
    before = problem.evaluate(influence.theta, others)[0]
    left = [refitted(problem, np.delete(rows, i, 0), np.delete(targets, i)) for i in range(0, 250, 10)]
    helped = [(problem.evaluate(theta, others)[0] - before) / 50 for theta in left]
    assert np.corrcoef(influence.on_loss(ROWS[250:], LABELS[250:])[::10], helped)[0, 1] > 0.99


def test_groups_leave_and_records_arrive() -> None:
    problem = objective()
    influence = LinearInfluence.at_minimiser(problem, problem.records(ROWS, LABELS), 1e-10)
    group = np.arange(0, N, 6)
    truth = refitted(problem, np.delete(ROWS, group, 0), np.delete(LABELS, group))
    stepped, first = influence.without(group), influence.without(group, step=False)
    assert np.linalg.norm(stepped - truth) < 0.2 * np.linalg.norm(truth - influence.theta)
    assert np.linalg.norm(stepped - truth) < np.linalg.norm(first - truth)
    assert np.allclose(influence.without([7]) - influence.theta, influence.parameters([7])[0])
    mask = np.isin(np.arange(N), group)
    assert np.array_equal(influence.without(mask), stepped)
    more, signs = RNG.normal(size=(20, D)) / 2, np.ones(20)
    grown = refitted(problem, np.vstack([ROWS, more]), np.append(LABELS, signs))
    arrived = influence.with_more(more, signs)
    assert np.linalg.norm(arrived - grown) < 0.3 * np.linalg.norm(grown - influence.theta)
    assert np.allclose(influence.without([]), influence.theta)


@pytest.mark.parametrize("storage", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_fewer_records_than_features(storage: Any) -> None:
    """By the Gram matrix of the records, the same numbers."""
    rows = RNG.normal(size=(30, 60)) / 8
    problem = objective(features=60)
    wide = LinearInfluence.at_minimiser(problem, problem.records(storage(rows), LABELS[:30]), 1e-10)
    plain = LinearInfluence(problem, wide.records, wide.theta)
    plain.__dict__["_few"] = False
    assert wide._few
    assert np.allclose(wide.parameters(), plain.parameters()) and np.allclose(wide.lengths(), plain.lengths())
    assert np.allclose(wide.without([1, 2, 3]), plain.without([1, 2, 3]))


def test_what_has_no_influence_is_refused() -> None:
    problem = objective(strong_convexity=0.0)
    rows = np.column_stack([ROWS[:, 0], ROWS[:, 0]])
    singular = objective(features=2, strong_convexity=0.0, intercept_scale=0.0)
    with pytest.raises(ValueError, match="the Hessian at the minimiser is singular"):
        LinearInfluence(singular, singular.records(rows, LABELS), np.zeros(2)).parameters([0])
    with pytest.raises(ValueError, match="strong_convexity > 0"):
        LinearInfluence.at_minimiser(problem, problem.records(ROWS, LABELS))
    held = objective(radius=0.1)
    with pytest.raises(ValueError, match="holds the minimiser"):
        LinearInfluence.at_minimiser(held, held.records(ROWS, LABELS))
    influence = LinearInfluence.at_minimiser(objective(), objective().records(ROWS, LABELS))
    with pytest.raises(ValueError, match="indices from 0 to 299"):
        influence.parameters([300])
    assert LinearInfluence(replace(problem), influence.records, influence.theta).error_bound() == np.inf


@pytest.mark.parametrize("features", [4, 80], ids=["few features", "few records"])
def test_softmax(features: int) -> None:
    rows = RNG.normal(size=(60, features)) / np.sqrt(features)
    classes = (rows[:, :3] + 0.2 * RNG.normal(size=(60, 3))).argmax(axis=1).astype(float)
    problem = objective(Softmax(3), features=features)
    influence = LinearInfluence.at_minimiser(problem, problem.records(rows, classes))
    chosen = np.arange(0, 60, 6)
    truth = np.stack(
        [
            minimise_softmax(problem, problem.records(np.delete(rows, i, 0), np.delete(classes, i))) - influence.theta
            for i in chosen
        ]
    )
    stepped, first = influence.parameters(chosen), influence.parameters(chosen, step=False)
    assert np.corrcoef(stepped.ravel(), truth.ravel())[0, 1] > 0.99
    assert np.linalg.norm(stepped - truth) < 0.05 * np.linalg.norm(truth) < np.linalg.norm(first - truth) * 5
    assert np.allclose(influence.lengths()[chosen], np.linalg.norm(stepped, axis=1))
    direction = RNG.normal(size=problem.dimension)
    assert np.allclose(influence.on(direction)[chosen], stepped @ direction)
    assert np.allclose(influence.without([6]) - influence.theta, influence.parameters([6])[0])
    moved = influence.on_predictions(rows[:2])
    assert moved.shape == (60, 2, 3)
    group = np.arange(12)
    left = minimise_softmax(problem, problem.records(rows[12:], classes[12:]))
    assert np.linalg.norm(influence.without(group) - left) < 0.25 * np.linalg.norm(left - influence.theta)


def test_targets_and_scores_that_cannot_be_are_refused() -> None:
    objective = LinearObjective(Logistic(), 2, strong_convexity=1.0)
    zeros = objective.records(np.eye(2), np.array([0.0, 1.0]))
    for make in (LinearInfluence.at_minimiser, lambda o, r: LinearInfluence(o, r, np.zeros(2))):
        with pytest.raises(ValueError, match="targets of -1 and 1"):
            make(objective, zeros)
    influence = LinearInfluence.at_minimiser(objective, objective.records(np.eye(2), np.array([-1.0, 1.0])))
    with pytest.raises(ValueError, match=r"shape \(2,\), got \(3,\)"):
        influence.on(np.ones(3))
    for wrong in ([1, 1], [0.5], np.ones(3, dtype=bool), [2]):
        with pytest.raises(ValueError, match="Expected"):
            influence.without(wrong)
    assert np.array_equal(influence.without(np.array([True, False])), influence.without([0]))
    for call in (
        lambda: influence.on_predictions(np.full((1, 2), np.nan)),
        lambda: influence.with_more(np.full((1, 2), np.nan), [1.0]),
    ):
        with pytest.raises(ValueError, match="Expected finite rows"):
            call()
    hinge = LinearObjective(Hinge(), 2, strong_convexity=1.0)
    with pytest.raises(ValueError, match="Expected a smooth loss"):
        LinearInfluence.at_minimiser(hinge, hinge.records(np.eye(2), np.array([-1.0, 1.0])))


def test_a_loss_without_a_bound_on_its_slopes_is_minimised_all_the_same() -> None:
    """It used to stop at θ = 0."""
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(60, 2)) * 0.3, rng.normal(size=60)
    objective = LinearObjective(Squared(5.0), 2, strong_convexity=1.0, data_norm=2.0)
    influence = LinearInfluence.at_minimiser(objective, objective.records(rows, targets))
    assert influence.theta == pytest.approx(np.linalg.solve(rows.T @ rows + np.eye(2), rows.T @ targets), rel=1e-4)
    assert influence.error_bound() == np.inf
