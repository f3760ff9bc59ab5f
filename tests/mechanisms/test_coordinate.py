"""Coordinate descent: against scikit-learn without noise, and against planted defects with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import ElasticNet, LogisticRegression

from dperm.audit import Training, replay
from dperm.audit.recording import Recorder
from dperm.estimators import DPElasticNet, DPLogisticRegression, model_from_json, model_to_json
from dperm.mechanisms import Budget, Coordinate, CoordinateDescent
from dperm.objectives import Logistic, Softmax, Squared, Task
from dperm.objectives.sums import exact_sum
from dperm.privacy import Composed, Gaussian, Relation, SelfComposed, epsilon
from dperm.release import Channel, SpendLog
from dperm.release.grid import Grid
from helpers.asked import smaller

RNG = np.random.default_rng(0)
BUDGET = Budget(1e-5, 4.0)


def table(count: int = 3000, features: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rows = RNG.normal(size=(count, features)) * np.geomspace(1, 0.05, features)
    rows /= 1.01 * np.linalg.norm(rows, axis=1).max()
    return rows, np.clip(3 * rows[:, 0] - 20 * rows[:, 3] + 0.05 * RNG.normal(size=count), -1, 1)


@pytest.mark.parametrize("l1_ratio", [0.0, 0.5, 1.0])
def test_without_noise_it_is_scikit_learn_s_elastic_net(l1_ratio: float) -> None:
    rows, targets = table()
    settings = {"alpha": 3e-3, "l1_ratio": l1_ratio, "fit_intercept": False}
    model = DPElasticNet(epsilon=1e9, radius=50.0, epochs=400, public_size=3000, **settings).set_params(delta=0.1)
    with pytest.warns(UserWarning):
        model.fit(rows, targets)
    if l1_ratio:
        theirs = (
            ElasticNet(alpha=3e-3, l1_ratio=l1_ratio, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(rows, targets).coef_
        )
    else:
        theirs = np.linalg.solve(rows.T @ rows / 3000 + 3e-3 * np.eye(5), rows.T @ targets / 3000)
    assert model.coef_ == pytest.approx(theirs, abs=2e-2)
    if l1_ratio == 1.0:
        assert np.array_equal(model.coef_ == 0, abs(theirs) < 1e-12) and (model.coef_ == 0).any()


def test_without_noise_it_is_logistic_regression() -> None:
    rows, targets = table()
    labels = np.where(targets + 0.5 * RNG.normal(size=3000) > 0, 1, 0)
    method = Coordinate(l2=1e-3, epochs=300, clipping_norm=100.0)
    with pytest.warns(UserWarning):
        mine = DPLogisticRegression(
            epsilon=1e12, delta=0.1, mechanism=method, classes=[0, 1], public_size=3000, fit_intercept=False
        ).fit(rows, labels)
    theirs = LogisticRegression(C=1 / 3, fit_intercept=False, tol=1e-10, max_iter=10_000).fit(rows, labels)
    assert mine.coef_ == pytest.approx(theirs.coef_, abs=0.05)


def test_penalties_of_the_classifier() -> None:
    rows, targets = table()
    labels = np.where(targets + 0.5 * RNG.normal(size=3000) > 0, 1, 0)
    model = DPLogisticRegression(epsilon=1e9, delta=0.1, penalty="l1", alpha=0.01, classes=[0, 1], public_size=3000)
    model.set_params(fit_intercept=False)
    with pytest.warns(UserWarning):
        coefficients = model.fit(rows, labels).coef_[0]
    theirs = LogisticRegression(C=1 / 30, l1_ratio=1.0, solver="liblinear", fit_intercept=False).fit(rows, labels).coef_[0]
    assert np.array_equal(coefficients == 0, theirs == 0)
    assert (theirs == 0).any()
    assert (theirs != 0).any()
    again, _ = model_from_json(model_to_json(model))
    assert again.penalty == "l1" and np.array_equal(again.coef_, model.coef_)
    for penalty, l1, l2 in (("l1", 0.01, 0.0), ("l2", 0.0, 0.01), ("elasticnet", 0.005, 0.005)):
        made: Any = model.set_params(penalty=penalty, epsilon=1.0).mechanism_for(features=5)[0]
        assert (made.l1, made.l2) == (l1, l2)
    for wrong, match in (
        ({"penalty": "l0"}, "penalty"),
        ({"alpha": -1.0}, "alpha"),
        ({"mechanism": "output"}, "mechanism='auto'"),
    ):
        with pytest.raises(ValueError, match=match):
            DPLogisticRegression(**({"penalty": "l1", "classes": [0, 1]} | wrong)).fit(rows, labels)
    assert len(SpendLog.current().charges()) == 1


def test_sparse_rows_are_trained_as_dense_ones() -> None:
    rows, _ = table()
    rows[RNG.random(rows.shape) < 0.6] = 0
    labels = (rows[:, 0] > 0).astype(int)
    found = [
        DPLogisticRegression(
            epsilon=1.0, mechanism=Coordinate(epochs=3), classes=[0, 1], public_size=3000, random_state=3
        ).fit(each, labels).coef_
        for each in (rows, sp.csr_array(rows))
    ]  # fmt: skip
    assert found[0] == pytest.approx(found[1], abs=1e-9)


def test_what_it_costs() -> None:
    task = Task(loss=Logistic(), features=4, classes=2, public_size=100, intercept_scale=0.5)
    made, objective = Coordinate(epochs=6).build(task, BUDGET)
    assert isinstance(made, CoordinateDescent)
    noise = made.noise_multiplier
    expected = Composed((Gaussian(noise / math.sqrt(0.1 * 30)), SelfComposed(Gaussian(noise), 30)))
    assert made.event(objective.facts) == expected
    assert epsilon(expected, 1e-5) == pytest.approx(epsilon(Gaussian(noise / math.sqrt(33)), 1e-5))
    assert 3.999 < epsilon(expected, 1e-5) <= 4.0
    recorder = Recorder()
    rows = RNG.normal(size=(100, 4))
    release = made.release(objective, objective.records(rows, np.where(rows[:, 0] > 0, 1.0, -1.0)), Channel.open(recorder))
    assert [len(item.query) for item in recorder.recording.releases] == [5] + [1] * 30
    assert release.certificate.accountant == "exact Gaussian"


def test_exact_sums_of_both_signs() -> None:
    values = RNG.normal(size=1000)
    total = exact_sum(values, 0.5)[0]
    assert total == pytest.approx(np.clip(values, -0.5, 0.5).sum(), abs=1000 * 2.0**-30)
    assert total == exact_sum(values[::-1], 0.5)[0] == -exact_sum(-values, 0.5)[0]
    assert exact_sum(np.array([np.nan, np.inf, -np.inf, 3.0]), 1.0)[0] == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("extreme", [1e-9, 1e9])
def test_rows_of_any_size(extreme: float) -> None:
    rows, targets = table(400)
    model = DPElasticNet(epsilon=1.0, public_size=400).fit(rows * extreme, targets)
    assert np.isfinite(model.coef_).all() and np.all(abs(model.coef_) <= 5.0)


def test_estimator() -> None:
    rows, targets = table()
    model = DPElasticNet(epsilon=4.0, radius=30.0, alpha=1e-4).fit(rows, targets)
    assert model.score(rows, targets) > 0.2
    assert model.certificate_.epsilon <= 4.0
    again, _ = model_from_json(model_to_json(model))
    assert type(again) is DPElasticNet and np.array_equal(again.predict(rows), model.predict(rows))


def test_refusals() -> None:
    rows, targets = table(100)
    for message, settings in (
        ("alpha", {"alpha": -1.0}),
        ("l1_ratio", {"l1_ratio": 1.5}),
        ("epochs", {"epochs": 0}),
        ("radius", {"radius": 0.0}),
    ):
        with pytest.raises(ValueError, match=message):
            DPElasticNet(**settings).fit(rows, targets)
    with pytest.raises(ValueError, match="one output"):
        task = Task(loss=Softmax(3), features=5, classes=3, public_size=100)
        made, objective = Coordinate(epochs=2).build(task, BUDGET)
        made.release(objective, objective.records(rows, np.arange(100) % 3.0), Channel.open())
    assert SpendLog.current().charges() == []


# Planted defects


def refuted(relation: Relation = Relation.ADD_OR_REMOVE_ONE, loss: Any = None) -> str:
    task = Task(loss=loss or Logistic(), features=3, public_size=60, relation=relation, intercept_scale=0.5)
    made, objective = Coordinate(epochs=2).build(task, BUDGET)
    result = replay(Training.of_mechanism(made, objective))
    assert result.refuted, str(result)
    return " ".join(result.findings)


def test_coordinates_that_are_not_clipped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import dperm.mechanisms.coordinate as module

    monkeypatch.setattr(module, "exact_sum", lambda values, bound: np.array([float(np.sum(values))]))
    assert "moved by" in refuted(loss=Squared(1.0, 2.0))


def test_the_noise_of_adding_where_a_record_is_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Channel.release
    monkeypatch.setattr(Channel, "release", lambda self, query, noise: release(self, query, smaller(noise, 0.5)))
    assert "moved by" in refuted(Relation.REPLACE_ONE)


def test_scales_that_are_not_noisy_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    scales = CoordinateDescent._scales

    def known(self: CoordinateDescent, objective: Any, columns: Any, channel: Channel, moves: int) -> np.ndarray:
        scales(self, objective, columns, channel, moves)
        return np.array([columns.squares(place).sum() + 1e-3 for place in range(objective.dimension)])

    monkeypatch.setattr(CoordinateDescent, "_scales", known)
    assert "depends on records" in refuted()


def test_grids_cover_single_numbers() -> None:
    assert Grid.of(1e-3, 1.0, 1).sensitivity <= 1e-3 * (1 + 2.0**-13)
