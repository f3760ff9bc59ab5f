"""What runs tell of the noise in their gradients, and the update that makes use of it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from dperm.gradient import (
    SGD,
    Adam,
    AdamBC,
    AdaptiveClip,
    Averaged,
    Clip,
    Constant,
    CyclicPoisson,
    ExponentialAverage,
    FixedOrder,
    FullBatch,
    LaplacianSmoothing,
    Plan,
    Poisson,
    Policy,
    Unit,
    UnitAtLeast,
    Update,
)
from dperm.gradient.correlation import BestFor
from dperm.gradient.correlation.given_matrix import GivenMatrix
from dperm.gradient.recipes import dpis
from dperm.gradient.update import noise_after, noise_estimated
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Relation
from dperm.release import Channel

SIZE, STEPS, WIDTH = 40, 12, 4000
ADD = Relation.ADD_OR_REMOVE_ONE


def given(matrix: np.ndarray) -> GivenMatrix:
    return GivenMatrix.of(np.eye(STEPS) + np.tril(matrix, -1))


def plan(**parts: Any) -> Plan:
    usual: dict[str, Any] = {"sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(3.0), "update": SGD(0.1)}
    return Plan(**{**usual, "steps": STEPS, "public_size": SIZE, **parts})


PLANS: dict[str, Policy] = {
    "full": plan(),
    "poisson": plan(sampler=Poisson(0.3), bounding=Unit(0.1)),
    "adaptive clipping": plan(bounding=AdaptiveClip(0.5, learning_rate=0.5)),
    "smoothed": plan(post=LaplacianSmoothing(2.0)),
    "bands": plan(sampler=CyclicPoisson(0.4, 4), correlation=BestFor("banded", 4), update=SGD(0.1, momentum=0.9)),
    "signed": plan(sampler=FixedOrder(4), correlation=given(np.random.default_rng(0).normal(size=(STEPS, STEPS)) / 3)),
    "buffers": plan(sampler=FixedOrder(4), correlation=BestFor("buffered", 2)),
    "importance": dpis(epsilon=2.0, delta=1e-5, public_size=SIZE, expected_batch_size=4, epochs=2, clipping_norm=0.5),
}


@pytest.mark.parametrize("policy", PLANS.values(), ids=PLANS)
def test_noise_is_as_large_as_it_is_told(policy: Policy) -> None:
    """Of records without features, whose gradients are nothing but noise."""
    objective = LinearObjective(Logistic(), WIDTH, data_norm=1.0, public_size=SIZE)
    records = objective.records(np.zeros((SIZE, WIDTH)), np.ones(SIZE))
    channel = Channel.open(5)
    channel.charge(policy.event(ADD), "test")
    gradients = policy.gradients(objective, records, channel)
    assert gradients.noise_deviation is None
    theta, seen = np.zeros(WIDTH), list[tuple[float, float]]()
    for _ in range(STEPS):
        gradient = gradients(theta)
        told = gradients.noise_deviation
        assert told is not None
        seen.append((told, float(np.std(gradient))))
    assert all(abs(found / told - 1) < 0.06 for told, found in seen)  # five standard errors
    assert policy.tells_noise


def test_it_is_told_of_a_run_that_passed_over_steps() -> None:
    """Nothing is kept of the noise before them: that of the next step is as in the first one."""
    policy = PLANS["bands"]
    objective = LinearObjective(Logistic(), WIDTH, data_norm=1.0, public_size=SIZE)
    channel = Channel.open(5)
    channel.charge(policy.event(ADD), "test")
    gradients = policy.gradients(objective, objective.records(np.zeros((SIZE, WIDTH)), np.ones(SIZE)), channel)
    theta, told = np.zeros(WIDTH), list[float]()
    for step in range(8):
        if step == 4:
            gradients.skip(4)
        found = float(np.std(gradients(theta)))
        told.append(gradients.noise_deviation or np.nan)
        assert abs(found / told[-1] - 1) < 0.06
    assert told[4:] == told[:4] and told[0] < told[3]


@pytest.mark.parametrize("size", [1, 2, 5, 6])
def test_smoothing_says_what_it_leaves_of_noise(size: int) -> None:
    rows = np.array([LaplacianSmoothing(2.0).apply(row) for row in np.eye(size)])
    assert np.linalg.norm(rows, axis=0) == pytest.approx(LaplacianSmoothing(2.0).noise_left(size))


@pytest.mark.parametrize(("decay", "steps"), [(0.9, 5), (0.9, 60), (0.99, 40)])
def test_the_error_of_a_mean_square_of_noise_is_its_deviation(decay: float, steps: int) -> None:
    total = 0.0
    for _ in range(steps):
        total = noise_after(total, 0.7, decay)
    mean, error = noise_estimated(total, decay, steps)
    weights = decay ** np.arange(steps)
    squares = (0.7 * np.random.default_rng(0).normal(size=(40_000, steps))) ** 2 @ (weights / weights.sum())
    assert mean == pytest.approx(0.49) and squares.mean() == pytest.approx(mean, rel=0.02)
    assert squares.std() == pytest.approx(error, rel=0.03)


def moved(update: Update, noise: float, means: np.ndarray, steps: int = 4000) -> np.ndarray:
    """How far each number moves on average in the last half of the steps, in learning rates."""
    generator, theta = np.random.default_rng(1), np.zeros(len(means))
    state, half = update.init(theta), np.zeros(len(means))
    for step in range(steps):
        update.told_noise(noise, state)
        theta = update.step(theta, means + noise * generator.normal(size=len(means)), state)
        half = theta.copy() if step == steps // 2 else half
    return (half - theta) / (0.01 * (steps // 2))


def test_without_what_noise_adds_steps_are_those_of_gradients_without_noise() -> None:
    """Adam moves a number by the sign of its gradient, whatever its size; under noise by its size ÷ that of the noise."""
    means = np.array([1.0, -0.5])
    assert moved(Adam(0.01), 0.0, means) == pytest.approx([1, -1], rel=1e-3)
    assert np.abs(moved(Adam(0.01), 1.0, means)) == pytest.approx([1 / np.sqrt(2), 0.5 / np.sqrt(1.25)], rel=0.1)
    assert np.abs(moved(AdamBC(0.01), 1.0, means)) == pytest.approx([1, 1], rel=0.12)


def test_where_there_is_nothing_but_noise_steps_stay_small() -> None:
    still = np.abs(moved(AdamBC(0.01), 1.0, np.zeros(200)))
    assert still.max() < 1  # less than what Adam moves a number whose gradient is always the same
    assert np.abs(moved(AdamBC(0.01, floor=10.0), 1.0, np.zeros(200))).max() < still.max() / 2


@pytest.mark.parametrize("around", [lambda update: update, lambda u: Averaged(u, 1), lambda u: ExponentialAverage(u, 0.5)])
def test_averages_pass_on_what_they_are_told(around: Any) -> None:
    update = around(AdamBC(0.01))
    assert update.needs_noise
    state = update.init(np.zeros(2))
    with pytest.raises(ValueError, match="noise is known"):
        update.told_noise(None, state)
    with pytest.raises(ValueError, match="told_noise before every step"):
        update.step(np.zeros(2), np.ones(2), state)


def test_a_plan_whose_noise_is_not_known_is_refused_before_it_is_charged() -> None:
    unknown = plan(update=AdamBC(0.01), post=UnitAtLeast())
    objective = LinearObjective(Logistic(), 2, data_norm=1.0, public_size=SIZE)
    records = objective.records(np.zeros((SIZE, 2)), np.ones(SIZE))
    channel = Channel.open(5)
    with pytest.raises(ValueError, match="subtracts its variance"):
        GradientPerturbation(plan=unknown, budget=Budget(1e-5, 1.0)).release(objective, records, channel)
    assert channel.charge_id is None


def test_a_linear_model_is_trained_with_it() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    signs = np.sign(rows @ [1.0, -1.0, 0.5])
    objective = LinearObjective(Logistic(), 3, data_norm=1.0, public_size=2000)
    settings = plan(
        sampler=CyclicPoisson(0.4, 4), correlation=BestFor("banded", 4), update=AdamBC(0.05), public_size=2000, steps=80
    )
    channel = Channel.open(5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        release = GradientPerturbation(plan=settings, budget=Budget(1e-5, 3.0)).release(
            objective, objective.records(rows, signs), channel
        )
    assert float(np.mean(np.sign(rows @ release.theta) == signs)) > 0.9
    assert "AdamBC" in release.certificate.to_json()
