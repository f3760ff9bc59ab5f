"""Rows, parameters, factors, rates and noise at the ends of what doubles hold: nothing overflows, and no record hides others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit.recording import Recorder
from dperm.estimators import DPLogisticRegression
from dperm.gradient import SGD, AdaptiveClip, Clip, Constant, FullBatch, Normalise, Plan, Poisson, Unit
from dperm.mechanisms import Budget, Gradient, GradientPerturbation, ObjectivePerturbation, Output
from dperm.objectives import Huber, LinearObjective, Logistic, Squared
from dperm.objectives.linear import LinearPass
from dperm.release import Channel, SpendLog, SystemSource


def gradient(objective: LinearObjective, **changes: Any) -> GradientPerturbation:
    parts: dict[str, Any] = {
        "sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(2.0), "update": SGD(0.1), "steps": 6,
        "public_size": objective.public_size or 40,
    }  # fmt: skip
    return GradientPerturbation(budget=Budget(1e-5), plan=Plan(**(parts | changes)))


def fitted(model: DPLogisticRegression, rows: Any, labels: Any) -> tuple[float, float]:
    found = model.fit(rows, labels)
    return float(found.coef_[0, 0]), found.trace_["noise_std"]


@pytest.mark.parametrize("bound", [1e-25, 1e-16, 1e-10, 1.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_row_of_zeros_wipes_nobody_out(bound: float, intercept: bool) -> None:
    """401 deviations of the noise apart, at a printed ε of 1."""
    rows, labels = np.zeros((3000, 2)), np.ones(3000, dtype=int)
    rows[:, 0] = bound
    method = Output(strong_convexity=2e5 * bound**2)
    model = DPLogisticRegression(epsilon=1.0, mechanism=method, data_norm=bound, fit_intercept=intercept, classes=[0, 1])
    without, _ = fitted(model, rows, labels)
    with_one, noise = fitted(model, np.vstack([rows, np.zeros((1, 2))]), np.append(labels, 1))
    assert abs(with_one - without) < 12 * noise


@pytest.mark.parametrize("short", [0.0, 1e-30, 1e-100, 5e-324])
def test_rows_far_shorter_than_the_rest_leave_the_residual_certified(short: float) -> None:
    rng = np.random.default_rng(0)
    objective = LinearObjective(Logistic(), 3, intercept_scale=0.5, strong_convexity=1.0)
    rows, labels = rng.normal(size=(500, 3)), np.where(rng.random(500) < 0.5, 1.0, -1.0)
    errors = []
    for last in (1.0, short):
        rows[-1] = last
        errors.append(objective.exact_gradient(rng.normal(size=3 + 1), objective.records(rows, labels))[1])
    assert errors[1] < 2 * errors[0] + 1e-12


@pytest.mark.slow
def test_hardly_any_draws_are_hardly_any() -> None:
    """Beyond 2⁴⁴ trials in a row one record was drawn for certain: 1,066 deviations of the noise at a printed ε of 0."""
    source = SystemSource(Randomness.fixed(1))
    for rate in (1e-20, 1e-300, 5e-324):
        assert sum(len(drawn) for drawn in source.draw(Poisson(rate), 20_000_000, 900_000)) == 0
    rate, total = 1e-13, 0
    for _ in range(40):
        total += sum(len(drawn) for drawn in source.draw(Poisson(rate), 10**9, 50_000))  # 5 expected each
    assert 120 < total < 280


@pytest.mark.parametrize("bounding", [Normalise, Unit])
def test_bounds_whose_inverse_is_infinite_are_refused(bounding: Any) -> None:
    for tiny in (1e-310, 1e-101):
        with pytest.raises(ValueError, match="between 1e-100 and 1e100"):
            bounding(tiny)


class NoNumber(Clip):
    """A stranger's: 0/0 for a record whose gradient is 0."""

    def factors(self, norms: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.clipping_norm * (norms / np.square(norms))


def test_a_factor_that_is_no_number_adds_nothing() -> None:
    objective = LinearObjective(Huber(0.1), 2, public_size=40)
    rows = np.ones((4, 2))
    records = objective.records(np.vstack([rows, [[np.nan, 0.0]], np.zeros((1, 2))]), np.ones(6))
    recorder = Recorder()
    release = gradient(objective, bounding=NoNumber(0.5)).release(objective, records, Channel.open(recorder))
    assert np.isfinite(release.theta).all()
    assert all(np.isfinite(item.query).all() for item in recorder.recording.releases)


def test_records_see_no_parameters_beyond_the_doubles() -> None:
    """θ of 10³⁰⁰: products overflowed by their place in a batch, and one record moved others' parts by 4 sensitivities."""
    objective = LinearObjective(Logistic(), 7, public_size=4)
    rng = np.random.default_rng(0)
    row = rng.normal(size=7)
    for size in (1e150, 1e200, 1e303, np.inf, np.nan):
        for theta in (rng.normal(size=7) * size, rng.normal(size=(3, 7)) * size):
            parts = [
                LinearPass(objective, theta, next(objective.records(np.tile(row, (n, 1)), np.ones(n)).batches())) for n in (3, 4)
            ]
            sums = [part.weighted_sum(np.minimum(1, 0.5 / np.maximum(part.norms, 0.5)), 0.5) for part in parts]
            assert np.isfinite(sums).all()
            assert np.linalg.norm(sums[1] - sums[0], axis=-1).max() <= 0.5 * (1 + 1e-9)
    for theta in (np.full(7, 1e99), np.zeros(7)):
        assert np.allclose(objective.seen(theta), theta, rtol=1e-8)


def test_a_learning_rate_without_measure_fails_no_fit() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = DPLogisticRegression(
        mechanism=Gradient(sampling="full", learning_rate=1e303),
        public_size=40,
        classes=[0, 1],
        delta=1e-3,
        random_state=0,
    )
    with np.errstate(over="raise", invalid="raise"):
        model.fit(X, np.arange(40) % 2)


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 1e-13, "delta": 0.0, "mechanism": "output"},
        {"epsilon": 1e-14, "delta": 0.0, "mechanism": "output", "public_size": 50},
        {"epsilon": 1e-13, "mechanism": "output"},
        {"epsilon": 1e-13, "mechanism": "gradient"},
    ],
)
def test_noise_that_no_double_holds_is_refused_before_the_charge(settings: dict[str, Any]) -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(ValueError, match="epsilon >"):
        DPLogisticRegression(classes=[0, 1], **settings).fit(X, np.arange(50) % 2)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("multiplier", [1e14, 1e17, 1e20])
def test_noise_multipliers_that_no_double_holds(multiplier: float) -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    records = objective.records(np.ones((40, 3)), np.ones(40))
    for mechanism in (
        gradient(objective, noise=Constant(multiplier)),
        ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=1.0, output_multiplier=multiplier),
    ):
        with pytest.raises(ValueError, match="noise"):
            mechanism.release(objective, records, Channel.open(0))
    assert SpendLog.current().charges() == []


def test_adaptive_clipping_overflows_nowhere() -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    records = objective.records(np.ones((40, 3)), np.ones(40))
    for bounding in (AdaptiveClip(0.5, learning_rate=1e4), AdaptiveClip(0.5, learning_rate=1e300, count_weight=1e90)):
        release = gradient(objective, bounding=bounding).release(objective, records, Channel.open(0))
        assert np.isfinite(release.theta).all()
    with pytest.raises(ValueError, match="count_weight"):
        AdaptiveClip(0.5, count_weight=1e300)


class Rough(Squared):
    """A stranger's: slopes of single precision."""

    def slope(self, t: Any, y: Any) -> Any:
        return super().slope(t, y).astype(np.float32)


def test_slopes_of_single_precision_are_refused() -> None:
    with pytest.raises(ValueError, match="double precision"):
        LinearObjective(Rough(1.0, 2.0), 2, radius=2.0)
