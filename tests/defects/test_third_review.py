"""What a third review found: of linear models, the log, threads and the auditor."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit import Pair, Training, replay
from dperm.audit.recording import Recorder
from dperm.estimators import DPLogisticRegression
from dperm.gradient import SGD, AdaptiveClip, Averaged, Clip, Constant, FullBatch, Normalise, Plan, Poisson, Unit, descend
from dperm.mechanisms import Budget, Gradient, GradientPerturbation, ObjectivePerturbation, Output, OutputPerturbation
from dperm.objectives import Huber, LinearObjective, Logistic, Squared
from dperm.objectives.linear import LinearPass
from dperm.release import Channel, SpendLog, SystemSource, UnpaidReleaseError


def gradient(objective: LinearObjective, **changes: Any) -> GradientPerturbation:
    parts: dict[str, Any] = {
        "sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(2.0), "update": SGD(0.1), "steps": 6,
        "public_size": objective.public_size or 40,
    }  # fmt: skip
    return GradientPerturbation(budget=Budget(1e-5), plan=Plan(**(parts | changes)))


def fitted(model: DPLogisticRegression, rows: Any, labels: Any) -> tuple[float, float]:
    found = model.fit(rows, labels)
    return float(found.coef_[0, 0]), found.trace_["noise_std"]


# 1: rows of zeros, and rows far shorter than the constant feature


@pytest.mark.parametrize("bound", [1e-25, 1e-16, 1e-10, 1.0])
@pytest.mark.parametrize("intercept", [False, True])
def test_review_3_1_a_row_of_zeros_wipes_nobody_out(bound: float, intercept: bool) -> None:
    """401 deviations of the noise apart, at a printed ε of 1."""
    rows, labels = np.zeros((3000, 2)), np.ones(3000, dtype=int)
    rows[:, 0] = bound
    method = Output(strong_convexity=2e5 * bound**2)
    model = DPLogisticRegression(1.0, mechanism=method, data_norm=bound, fit_intercept=intercept, classes=[0, 1])
    without, _ = fitted(model, rows, labels)
    with_one, noise = fitted(model, np.vstack([rows, np.zeros((1, 2))]), np.append(labels, 1))
    assert abs(with_one - without) < 12 * noise


@pytest.mark.parametrize("short", [0.0, 1e-30, 1e-100, 5e-324])
def test_review_3_1_rows_far_shorter_than_the_rest_leave_the_residual_certified(short: float) -> None:
    rng = np.random.default_rng(0)
    objective = LinearObjective(Logistic(), 3, intercept_scale=0.5, strong_convexity=1.0)
    rows, labels = rng.normal(size=(500, 3)), np.where(rng.random(500) < 0.5, 1.0, -1.0)
    errors = []
    for last in (1.0, short):
        rows[-1] = last
        errors.append(objective.exact_gradient(rng.normal(size=3 + 1), objective.records(rows, labels))[1])
    assert errors[1] < 2 * errors[0] + 1e-12


# 2: rates at which a run sees nobody


@pytest.mark.slow
def test_review_3_2_hardly_any_draws_are_hardly_any() -> None:
    """Beyond 2⁴⁴ trials in a row one record was drawn for certain: 1,066 deviations of the noise at a printed ε of 0."""
    source = SystemSource(Randomness.fixed(1))
    for rate in (1e-20, 1e-300, 5e-324):
        assert sum(len(drawn) for drawn in source.draw(Poisson(rate), 20_000_000, 900_000)) == 0
    rate, total = 1e-13, 0
    for _ in range(40):
        total += sum(len(drawn) for drawn in source.draw(Poisson(rate), 10**9, 50_000))  # 5 expected each
    assert 120 < total < 280


# 3: factors that are no numbers


@pytest.mark.parametrize("bounding", [Normalise, Unit])
def test_review_3_3_bounds_whose_inverse_is_infinite_are_refused(bounding: Any) -> None:
    for tiny in (1e-310, 1e-101):
        with pytest.raises(ValueError, match="between 1e-100 and 1e100"):
            bounding(tiny)


class NoNumber(Clip):
    """A stranger's: 0/0 for a record whose gradient is 0."""

    def factors(self, norms: Any) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.clipping_norm * (norms / np.square(norms))


def test_review_3_3_a_factor_that_is_no_number_adds_nothing() -> None:
    objective = LinearObjective(Huber(0.1), 2, public_size=40)
    rows = np.ones((4, 2))
    records = objective.records(np.vstack([rows, [[np.nan, 0.0]], np.zeros((1, 2))]), np.ones(6))
    recorder = Recorder()
    release = gradient(objective, bounding=NoNumber(0.5)).release(objective, records, Channel.open(recorder))
    assert np.isfinite(release.theta).all()
    assert all(np.isfinite(item.query).all() for item in recorder.recording.releases)


def test_review_3_3_replay_finds_queries_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LinearPass.weighted_sum

    def spoilt(self: LinearPass, factors: Any, bound: float | None = None) -> Any:
        found = original(self, factors, bound)
        return found * np.nan if (self.norms > 0.4).any() else found

    monkeypatch.setattr(LinearPass, "weighted_sum", spoilt)
    objective = LinearObjective(Logistic(), 2, public_size=40)
    pair = Pair.adding("long", (0.1 * np.ones((5, 2)), np.ones(5)), np.array([1.0, 1.0]), -1.0)
    training = replace(Training.of_mechanism(gradient(objective, bounding=Clip(5.0)), objective), replay_pairs=[pair])
    assert replay(training).refuted


# 4: parameters beyond the doubles


def test_review_3_4_records_see_no_parameters_beyond_the_doubles() -> None:
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


def test_review_3_4_a_learning_rate_without_measure_fails_no_fit() -> None:
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


# 5: runs that are continued


def test_review_3_5_a_run_that_reserved_nothing_is_not_continued(tmp_path: Path) -> None:
    """A finished one was released again and again, without a charge."""
    log = SpendLog(tmp_path / "log.db")
    objective = LinearObjective(Logistic(), 2, public_size=40)
    records = objective.records(np.ones((40, 2)), np.ones(40))
    for mechanism in (
        gradient(objective),
        ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=1.0),
    ):
        channel = Channel.open(log=log)
        mechanism.release(objective, records, channel)
        with pytest.raises(UnpaidReleaseError, match="reserved no steps"):
            Channel.open(log=log).resume(channel.charge_id, channel.event)


def test_review_3_5_no_more_is_reserved_than_was_charged(tmp_path: Path) -> None:
    log = SpendLog(tmp_path / "log.db")
    event = gradient(LinearObjective(Logistic(), 2)).plan.event(LinearObjective(Logistic(), 2).relation)
    channel = Channel.open(log=log)
    channel.keep_reservations()
    channel.charge(event, "test")
    for limit in (7, 60):
        with pytest.raises(UnpaidReleaseError, match="6 releases"):
            channel.reserve(1, limit)
    assert channel.reserve(6, 6) == (0, 6)
    again = Channel.open(log=log)
    again.resume(channel.charge_id, event)
    with pytest.raises(UnpaidReleaseError, match="6 releases"):
        again.reserve(1, 12)
    assert again.reserve(1, 6) == (6, 6)


# 6: logs of workers


def test_review_3_6_a_worker_that_is_used_again_charges_the_log_of_now(tmp_path: Path) -> None:
    """Workers kept the log of the block in which they were started."""
    code = f"""
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from dperm.privacy import Gaussian
from dperm.release import SpendLog, spend_log
def fit(_):
    SpendLog.current().charge(Gaussian(1.0), mechanism="fit")
    return os.getpid()
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        with spend_log({str(tmp_path / "block.db")!r}) as log:
            inside = list(pool.map(fit, range(3)))
        outside = list(pool.map(fit, range(4)))
    assert set(inside) == set(outside)
    print(len(log.charges()), len(SpendLog.current().charges()))
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3", "4"], done.stderr


# 7: threads


def test_review_3_7_threads_share_no_memory_of_records() -> None:
    """Queries were up to 47 sensitivities from the true ones."""
    objective = LinearObjective(Logistic(), 20, public_size=400)
    rng = np.random.default_rng(0)
    records = objective.records(rng.normal(size=(400, 20)), np.where(rng.random(400) < 0.5, 1.0, -1.0))
    plan = Plan(Poisson(0.3), Clip(0.5), Constant(1.0), SGD(0.1), 300, 400)
    recorders = [Recorder(SystemSource(Randomness.fixed(seed))) for seed in range(2)]

    def run(recorder: Recorder) -> None:
        channel = Channel.open(recorder)
        channel.charge(plan.event(objective.relation), "test")
        descend(plan, objective, records, channel, np.zeros(20))

    together = [Recorder(SystemSource(Randomness.fixed(seed))) for seed in range(2)]
    threads = [threading.Thread(target=run, args=(recorder,)) for recorder in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for alone, other in zip(recorders, together, strict=True):
        run(alone)
        for a, b in zip(alone.recording.releases, other.recording.releases, strict=True):
            assert np.array_equal(a.query, b.query) and np.array_equal(a.released, b.released)


def test_review_3_7_threads_share_no_noise() -> None:
    """Of 111,000 numbers up to 3,734 were handed out twice."""
    source = SystemSource(Randomness.from_system())
    parts: list[np.ndarray] = []

    def draw() -> None:
        for _ in range(400):
            parts.append(source.randomness.noise.standard_normal(117))

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drawn = np.concatenate(parts)
    assert len(drawn) == 4 * 400 * 117 and len(np.unique(drawn)) == len(drawn)


# 8: what certificates say


def test_review_3_8_one_against_the_rest_admits_no_more_records_than_its_parts() -> None:
    objective = LinearObjective(Logistic(), 2, public_size=10, size_limit=50)
    part = ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=1.0)
    from dperm.mechanisms import OneVsRest

    records = objective.records(np.ones((60, 2)), np.zeros(60))
    with pytest.raises(ValueError, match="at most 50 records"):
        OneVsRest.of(part, 3).release(objective, records, Channel.open(0))


@dataclass(frozen=True)
class Mine(SGD):
    pass


class MyObjective(LinearObjective):
    pass


class MyMechanism(GradientPerturbation):
    pass


def test_review_3_8_strangers_are_named_wherever_they_sit() -> None:
    objective = LinearObjective(Logistic(), 2, public_size=40)
    mine = MyObjective(Logistic(), 2, public_size=40)
    plan = gradient(objective).plan

    def assumed(mechanism: Any, problem: Any = objective) -> str:
        records = problem.records(np.ones((40, 2)), np.ones(40))
        release = mechanism.release(problem, records, Channel.open())
        return " ".join(assumption.text for assumption in release.certificate.assumptions)

    for update in (Mine(0.1), Averaged(Mine(0.1), 2), Averaged(Averaged(Mine(0.1), 1), 2)):
        assert "Mine reads released numbers alone" in assumed(gradient(objective, update=update))
    assert "MyObjective" in assumed(gradient(objective), mine)
    assert "MyMechanism" in assumed(MyMechanism(budget=Budget(1e-5), plan=plan))
    assert "Mine" not in assumed(gradient(objective)) and "My" not in assumed(gradient(objective))


class Seeded(Randomness):
    pass


def test_review_3_8_only_our_own_randomness_is_believed() -> None:
    honest = Randomness.from_system()
    assert Channel(SystemSource(honest)).private
    assert not Channel(SystemSource(Seeded(honest.noise, honest.sampling, "mine", private=True))).private


# The auditor


@pytest.mark.parametrize("multiplier", [1e-5, 1e-6, 1e-9])
def test_review_3_9_noise_finer_than_the_grid_is_no_finding(multiplier: float) -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    training = Training.of_mechanism(gradient(objective, noise=Constant(multiplier)), objective)
    found = replay(training)
    assert found.verdict == "consistent", str(found)


def test_review_3_9_pure_noise_finer_than_the_grid_is_no_finding() -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    mechanism = OutputPerturbation(budget=Budget(0.0), strong_convexity=1.0, pure_epsilon=1e10)
    found = replay(Training.of_mechanism(mechanism, objective))
    assert found.verdict == "consistent", str(found)


# Failures after the charge


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon": 1e-13, "delta": 0.0, "mechanism": "output"},
        {"epsilon": 1e-14, "delta": 0.0, "mechanism": "output", "public_size": 50},
        {"epsilon": 1e-13, "mechanism": "output"},
        {"epsilon": 1e-13, "mechanism": "gradient"},
    ],
)
def test_review_3_10_noise_that_no_double_holds_is_refused_before_the_charge(settings: dict[str, Any]) -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(ValueError, match="epsilon >"):
        DPLogisticRegression(classes=[0, 1], **settings).fit(X, np.arange(50) % 2)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("multiplier", [1e14, 1e17, 1e20])
def test_review_3_10_noise_multipliers_that_no_double_holds(multiplier: float) -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    records = objective.records(np.ones((40, 3)), np.ones(40))
    for mechanism in (
        gradient(objective, noise=Constant(multiplier)),
        ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=1.0, output_multiplier=multiplier),
    ):
        with pytest.raises(ValueError, match="noise"):
            mechanism.release(objective, records, Channel.open(0))
    assert SpendLog.current().charges() == []


def test_review_3_10_adaptive_clipping_overflows_nowhere() -> None:
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


def test_review_3_11_slopes_of_single_precision_are_refused() -> None:
    with pytest.raises(ValueError, match="double precision"):
        LinearObjective(Rough(1.0, 2.0), 2, radius=2.0)
