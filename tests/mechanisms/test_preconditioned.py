"""Preconditioned descent: least squares without noise, what it costs, what it reaches, and what breaks it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dperm.mechanisms.preconditioned as module
import dperm.mechanisms.second_moments as second_moments
from dperm.audit import Training, replay
from dperm.audit.recording import Recorder
from dperm.estimators import DPRidge, model_from_json, model_to_json
from dperm.mechanisms import Budget, Gradient, Output, Preconditioned, PreconditionedDescent
from dperm.objectives import Logistic, Squared, Task
from dperm.privacy import Composed, Gaussian, Relation, SelfComposed, epsilon
from dperm.release import Channel, Noise, SpendLog
from helpers.asked import Asked, smaller

RNG = np.random.default_rng(0)
BUDGET = Budget(1e-5, 4.0)
REPLACE = Relation.REPLACE_ONE


def task(**changes: Any) -> Task:
    return Task(**{"loss": Squared(1.0), "features": 3, "public_size": 60, "intercept_scale": 0.5} | changes)


def table(count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    rows = RNG.normal(size=(count, 5)) * np.geomspace(1, 0.05, 5)
    rows /= 1.01 * np.linalg.norm(rows, axis=1).max()
    return rows, np.clip(2 * rows[:, 0] - 15 * rows[:, 3] + 20 * rows[:, 4] + 0.05 * RNG.normal(size=count), -1, 1)


def test_without_noise_it_is_least_squares() -> None:
    rows, targets = table(2000)
    with pytest.warns(UserWarning):
        model = DPRidge(epsilon=1e9, delta=0.1, public_size=2000, fit_intercept=False).fit(rows, targets)
    assert model.coef_ == pytest.approx(np.linalg.lstsq(rows, targets, rcond=None)[0], abs=0.1)


def test_it_is_ahead_of_plain_descent_where_features_differ() -> None:
    rows, targets = table()
    other, truth = table(5000)
    scores = {}
    for name, mechanism, radius in (("auto", "auto", None), ("full", Gradient(sampling="full"), 50.0)):
        model = DPRidge(epsilon=1.0, mechanism=mechanism, radius=radius, public_size=len(rows)).fit(rows, targets)
        scores[name] = model.score(other, truth)
        assert model.certificate_.epsilon <= 1.0
    assert scores["auto"] > max(0.6, scores["full"] + 0.05)


def test_what_it_costs() -> None:
    made, objective = Preconditioned().build(task(), BUDGET)
    assert isinstance(made, PreconditionedDescent)
    noise, steps = made.noise_multiplier, made.steps
    expected: Any = made.event(objective.facts)
    gram, scale, descent = expected.events
    assert isinstance(expected, Composed)
    assert isinstance(descent, SelfComposed)
    assert descent.count == steps
    found = [gram.noise_multiplier, scale.noise_multiplier, descent.event.noise_multiplier]
    assert found == pytest.approx([noise / math.sqrt(0.05), noise / math.sqrt(0.06), noise * math.sqrt(steps / 0.89)])
    assert epsilon(expected, 1e-5) == pytest.approx(epsilon(Gaussian(noise), 1e-5), rel=1e-6)
    assert 3.999 < epsilon(expected, 1e-5) <= 4.0
    recorder = Recorder()
    release = made.release(objective, objective.records(RNG.normal(size=(60, 3)), RNG.normal(size=60)), Channel.open(recorder))
    assert [len(item.query) for item in recorder.recording.releases] == [10, 4, 1, *[4] * (steps - 1)]
    assert release.certificate.accountant == "exact Gaussian"


@pytest.mark.parametrize("extreme", [1e-9, 1.0, 1e9])
def test_rows_and_targets_of_any_size(extreme: float) -> None:
    rows, targets = table(400)
    model = DPRidge(epsilon=1.0, public_size=400, target_bound=extreme).fit(rows * extreme, targets * extreme)
    assert np.isfinite(model.coef_).all()
    again, _ = model_from_json(model_to_json(model))
    assert np.array_equal(again.predict(rows), model.predict(rows)) and again.radius is None


def test_a_radius_is_there_for_methods_that_need_one() -> None:
    for settings, radius in (
        ({}, None),
        ({"mechanism": "gradient"}, None),
        ({"mechanism": "output"}, 5.0),
        ({"mechanism": "tgp"}, 5.0),
        ({"delta": 0.0}, 5.0),
        ({"mechanism": "output", "radius": 2.0}, 2.0),
    ):
        _, objective = DPRidge(public_size=60, **settings).mechanism_for(features=3)
        assert objective.radius == radius


def test_a_ball_is_kept() -> None:
    rows, targets = table(400)
    model = DPRidge(epsilon=0.01, radius=0.5, fit_intercept=False).fit(rows, targets)  # of a private number of records
    assert np.linalg.norm(model.coef_) <= 0.5 * (1 + 1e-12) and model.certificate_.epsilon <= 0.01


def test_refusals() -> None:
    rows, targets = table(60)
    with pytest.raises(ValueError, match="regression"):
        Preconditioned().build(task(loss=Logistic(), classes=2), BUDGET)
    with pytest.raises(ValueError, match="a radius for output"):
        made, objective = Output().build(task(), BUDGET)
        made.release(objective, objective.records(rows[:, :3], targets), Channel.open())
    with pytest.raises(ValueError, match="delta"):
        DPRidge(mechanism="preconditioned", delta=0.0, public_size=60).fit(rows, targets)
    with pytest.raises(ValueError, match="at most 2,000 parameters"):
        DPRidge(mechanism="preconditioned", public_size=60).fit(sp.csr_array((60, 3000)), targets)
    assert SpendLog.current().charges() == []


# Planted defects


def refuted(relation: Relation = Relation.ADD_OR_REMOVE_ONE) -> str:
    made, objective = Preconditioned().build(task(relation=relation), BUDGET)
    result = replay(Training.of_mechanism(made, objective))
    assert result.refuted, str(result)
    return " ".join(result.findings)


def test_a_gram_matrix_of_unbounded_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    triangle = second_moments.upper_triangle
    monkeypatch.setattr(second_moments, "upper_triangle", lambda *given: 2 * triangle(*given))
    assert "moved by" in refuted()


def test_residuals_that_are_not_clipped_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient = module._gradient
    monkeypatch.setattr(module, "_gradient", lambda o, theta, clip, batch: 3 * gradient(o, theta, clip, batch))
    assert "moved by" in refuted()


def test_a_scale_that_is_read_off_the_records_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Channel.release

    def bare(self: Channel, query: Any, noise: Noise) -> Any:
        found = release(self, query, noise)
        return query if len(query) == 1 else found

    monkeypatch.setattr(Channel, "release", bare)
    assert "depends on records" in refuted()


def test_the_noise_of_adding_where_a_record_is_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = Channel.release
    monkeypatch.setattr(Channel, "release", lambda self, query, noise: release(self, query, smaller(noise, 0.5)))
    assert "moved by" in refuted(REPLACE)


def test_a_gram_matrix_is_cut_at_both_ends_to_what_its_grid_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    made, objective = Preconditioned().build(task(), BUDGET)
    records = objective.records(np.eye(3), np.ones(3))
    asked: list[Any] = []
    for sign in (1.0, -1.0):
        monkeypatch.setattr(second_moments, "upper_triangle", lambda *_, sign=sign: sign * np.array([-1e300, 1e300] * 5))
        source = Asked()
        channel = Channel.open(source)
        channel.charge(made.event(objective.facts), "test")
        made.train(objective, records, channel)
        asked.append(source.questions[0].query)
    assert np.array_equal(asked[0], -asked[1])
    assert np.abs(asked[0]).max() < 1e300
