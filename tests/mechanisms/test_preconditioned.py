"""Preconditioned descent: least squares without noise, what it costs, what it reaches, and what breaks it."""

from __future__ import annotations

import math
from dataclasses import replace
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
    noise, steps, mean = made.noise_multiplier, made.steps, made.mean_share
    expected: Any = made.event(objective.facts)
    *once, descent = expected.events
    assert isinstance(expected, Composed)
    assert isinstance(descent, SelfComposed)
    assert descent.count == steps and 0.02 < mean < 0.5
    rest = 1 - 0.05 - 0.036 - 0.054 - mean
    shares = [0.05, 0.036, 0.054, mean, rest / steps]
    found = [leaf.noise_multiplier for leaf in (*once, descent.event)]
    assert found == pytest.approx([noise / math.sqrt(share) for share in shares])
    assert epsilon(expected, 1e-5) == pytest.approx(epsilon(Gaussian(noise), 1e-5), rel=1e-6)
    assert 3.999 < epsilon(expected, 1e-5) <= 4.0
    recorder = Recorder()
    release = made.release(objective, objective.records(RNG.normal(size=(60, 3)), RNG.normal(size=60)), Channel.open(recorder))
    assert [len(item.query) for item in recorder.recording.releases] == [10, 1, 1, 4, 1, *[4] * (steps - 1)]
    assert release.certificate.accountant == "exact Gaussian"
    assert made.released_kinds == {"Gram matrix", "sum of targets", "sum of squared residuals", "sum of gradients"}
    assert made.forewarning == ""


def test_where_the_signal_is_weak_the_mean_is_all_that_is_released() -> None:
    weak = Budget(1e-5, 0.1)
    made, objective = Preconditioned().build(task(), weak)
    assert isinstance(made, PreconditionedDescent) and made.steps == 0
    assert made.event(objective.facts) == Gaussian(made.noise_multiplier)
    assert made.released_kinds == {"sum of targets"}
    recorder = Recorder()
    records = objective.records(RNG.normal(size=(60, 3)), np.full(60, 0.5))
    release = made.release(objective, records, Channel.open(recorder))
    (only,) = recorder.recording.releases
    assert only.query == pytest.approx([30.0]) and not release.theta[:3].any()
    without, _ = Preconditioned().build(task(intercept_scale=0.0), weak)  # nothing could hold a mean
    assert isinstance(without, PreconditionedDescent)
    assert without.steps > 0 and without.mean_share == 0
    assert "sum of targets" not in without.released_kinds


def test_a_mean_that_is_drowned_in_noise_stays_near_the_middle_of_the_range() -> None:
    """A model of few records of one target: its answers are no farther off than that target is from the middle."""
    found = [
        float(DPRidge(epsilon=0.05, target_range=(0, 10), public_size=30).fit(np.zeros((30, 2)), np.full(30, 9.0)).intercept_)
        for _ in range(20)
    ]
    assert np.abs(np.array(found) - 5).mean() < 1.0


def test_skewed_targets_are_predicted_from_their_mean() -> None:
    """Few records whose targets lie near one end of the range, of which no feature says anything: descent from the middle of the
    range would not get there."""
    rows = RNG.normal(size=(300, 20)) / 10
    targets = np.clip(RNG.exponential(3, size=300), 0, 100)
    model = DPRidge(epsilon=1.0, target_range=(0, 100), public_size=300).fit(rows, targets)
    assert abs(model.predict(rows).mean() - 3) < 6  # four standard deviations of what is released for it


def test_what_noise_alone_moves_predictions_by_is_taken_out() -> None:
    """Of two steps along two eigenvectors, by hand. The third, of a negative eigenvalue, counts for nothing."""
    shape = module._Shape(np.ones(3), np.array([4.0, 1.0, -2.0]), np.array([4.0, 2.0, 2.0]), np.eye(3))
    noises = [(0.5, 3.0), (1.0, 2.0)]
    moved = np.array([2.0, 1.0, 100.0])
    length = 4 * 2.0**2 + 1.0
    # the last iterate: of the first step's noise nothing and half are left, and of the way 0 and 3/4 · 1/2
    last = [(1 * 2 / 4) ** 2, (1 * 2 / 2) ** 2 + (0.5 * 0.5 * 3 / 2) ** 2]
    wanted = 4 * (2.0**2 - last[0]) + (1 - last[1]) / (1 - 0.375)
    assert shape.kept(moved, noises, 1) == pytest.approx(wanted / length)
    # the mean of both iterates
    mean = [((1 * 2 / 4) ** 2 + (0.5 * 3 / 4) ** 2) / 4, ((1 * 2 / 2) ** 2 + (0.5 * 3 / 2 * 1.5) ** 2) / 4]
    wanted = 4 * (2.0**2 - mean[0]) / (1 - 0.25) + (1 - mean[1]) / (1 - (0.75 + 0.375) / 2)
    assert shape.kept(moved, noises, 0) == pytest.approx(min(1, wanted / length))
    assert shape.kept(0.1 * moved, noises, 1) == 0.0 == shape.kept(np.zeros(3), noises, 1)
    assert shape.kept(1e9 * moved, noises, 0) == 1.0


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


def test_a_mean_needs_an_intercept() -> None:
    made, _ = Preconditioned().build(task(), BUDGET)
    objective = task(intercept_scale=0.0).objective()
    with pytest.raises(ValueError, match="Expected an intercept"):
        made.release(objective, objective.records(np.eye(3), np.ones(3)), Channel.open())
    with pytest.raises(ValueError, match="mean_share of at most"):
        replace(made, mean_share=0.6)
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


def test_targets_that_are_not_cut_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = module._sum_of_targets
    monkeypatch.setattr(module, "_sum_of_targets", lambda o, most, batch: 3 * whole(o, most, batch))
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
