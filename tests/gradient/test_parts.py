"""Bounding, noise schedules, updates and plans, each by itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dperm.audit import Training, replay
from dperm.gradient import (
    SGD,
    Adam,
    Averaged,
    Clip,
    Constant,
    CyclicPoisson,
    ExponentialDecay,
    FullBatch,
    Normalise,
    Plan,
    Poisson,
    PoissonRows,
    Update,
)
from dperm.gradient.recipes import dp_sgd, full_batch_descent, small_scale
from dperm.mechanisms import Budget, GradientPerturbation
from dperm.privacy import Composed, Gaussian, PoissonSampled, Relation, SelfComposed, epsilon
from helpers.catalogue.common import objective

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


@pytest.mark.parametrize("bounding", [Clip(0.3), Clip(2.0), Normalise(0.01), Normalise(1.0)], ids=repr)
@given(norms=st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
def test_no_record_exceeds_the_bound(bounding: Clip, norms: list[float]) -> None:
    lengths = np.array(norms) * bounding.factors(np.array(norms))
    assert np.all(lengths <= bounding.bound * (1 + 1e-12))
    assert bounding.sensitivity(ADD) == bounding.bound
    assert bounding.sensitivity(REPLACE) == 2 * bounding.bound


def test_clipping_leaves_short_gradients_alone() -> None:
    assert np.array_equal(Clip(1.0).factors(np.array([0.0, 0.5, 1.0, 2.0])), [1, 1, 1, 0.5])


def test_decay_is_constant_within_an_epoch_and_charged_step_by_step() -> None:
    levels = ExponentialDecay(2.0, 0.5, 10).levels(25)
    assert [count for _, count in levels] == [10, 10, 5]
    assert [level for level, _ in levels] == pytest.approx([2.0, 2 * math.exp(-0.5), 2 * math.exp(-1)])
    plan = Plan(Poisson(0.1), Clip(1.0), ExponentialDecay(2.0, 0.5, 10), SGD(0.1), 25, 100)
    event = plan.event(ADD)
    assert event == Composed(tuple(SelfComposed(PoissonSampled(0.1, Gaussian(level)), count) for level, count in levels))
    assert epsilon(event, 1e-5) > epsilon(SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 25), 1e-5)


def test_the_event_comes_from_the_parts() -> None:
    assert dp_sgd(noise_multiplier=1.5, public_size=1000, expected_batch_size=100, epochs=3, clipping_norm=1).event(
        ADD
    ) == SelfComposed(PoissonSampled(0.1, Gaussian(1.5)), 30)
    full = full_batch_descent(noise_multiplier=4.0, public_size=10, steps=7, clipping_norm=1)
    assert full.event(REPLACE) == SelfComposed(Gaussian(4.0, REPLACE), 7)
    assert full.sampler == FullBatch()
    assert full.expected_batch_size == 10


def run(update: Update, gradients: list[np.ndarray]) -> np.ndarray:
    theta = np.zeros(2)
    state = update.init(theta)
    for gradient in gradients:
        theta = update.step(theta, gradient, state)
    return update.result(theta, state)


def test_updates_by_hand() -> None:
    gradients = [np.array([1.0, -2.0]), np.array([0.5, 0.0]), np.array([-1.0, 1.0])]
    assert np.allclose(run(SGD(0.1), gradients), -0.1 * sum(gradients))
    velocity, theta, seen = np.zeros(2), np.zeros(2), []
    for gradient in gradients:
        velocity = 0.9 * velocity + gradient
        theta = theta - 0.1 * velocity
        seen.append(theta)
    assert np.allclose(run(SGD(0.1, 0.9), gradients), theta)
    assert np.allclose(run(Averaged(SGD(0.1, 0.9), skip=1), gradients), (seen[1] + seen[2]) / 2)
    assert np.allclose(run(Averaged(SGD(0.1, 0.9), skip=3), gradients), theta)
    m = v = np.zeros(2)
    theta = np.zeros(2)
    for t, gradient in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        theta = theta - 0.1 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    assert np.allclose(run(Adam(0.1), gradients), theta)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Clip(0.0), "clipping_norm > 0, got 0"),
        (lambda: Poisson(0.0), "sampling_rate"),
        (lambda: SGD(0.1, 1.0), "momentum"),
        (lambda: Constant(-1.0), "noise_multiplier"),
        (lambda: Plan(FullBatch(), Clip(1.0), Constant(1.0), SGD(1.0), 0, 10), "steps >= 1, got 0"),
        (lambda: Plan(FullBatch(), Clip(1.0), Constant(1.0), SGD(1.0), 5, 0), "public_size >= 1, got 0"),
    ],
)
def test_bad_parts_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_small_scale_keeps_the_ratio_of_noise_to_signal_and_costs_more() -> None:
    for decay in (0.0, 0.1):
        plan = dp_sgd(noise_multiplier=4.0, public_size=10_000, expected_batch_size=800, epochs=3, clipping_norm=1.0, decay=decay)
        small = small_scale(plan, 8)
        assert small.expected_batch_size == pytest.approx(100) and (small.steps, small.update) == (plan.steps, plan.update)
        for (level, count), (other, others) in zip(plan.noise.levels(plan.steps), small.noise.levels(small.steps), strict=True):
            assert count == others and other / small.expected_batch_size == pytest.approx(level / plan.expected_batch_size)
        relation = Relation.ADD_OR_REMOVE_ONE
        assert epsilon(small.event(relation), 1e-5) > 1.5 * epsilon(plan.event(relation), 1e-5)
        assert small_scale(plan, 1) == plan
    for wrong in (0.5, -1.0, float("nan")):
        with pytest.raises(ValueError, match="factor"):
            small_scale(plan, wrong)


@pytest.mark.parametrize(
    ("settings", "scaled"),
    [
        ({"sampling": "cyclic_poisson"}, CyclicPoisson(0.04, 2)),
        ({"correlation": "banded", "bands": 4}, CyclicPoisson(0.08, 4)),
        ({"sampling": "rows", "max_rows_per_unit": 2, "public_size": 500}, PoissonRows(0.02, 2)),
        ({"sampling": "balls_and_bins"}, "got balls and bins"),
        ({"sampling": "fixed_size"}, "got fixed size"),
        ({"sampling": "fixed_order", "correlation": "banded", "bands": 4}, "got fixed order"),
        ({"sampling": "reshuffled"}, "got reshuffled"),
    ],
    ids=lambda case: case.get("sampling", "banded") if isinstance(case, dict) else None,
)
def test_small_scale_draws_as_the_plan_does_or_refuses(settings: dict[str, Any], scaled: Any) -> None:
    common: dict[str, Any] = {"public_size": 1000, "expected_batch_size": 100, "epochs": 4, "clipping_norm": 1.0}
    plan = dp_sgd(noise_multiplier=4.0, **(common | settings))
    if isinstance(scaled, str):
        with pytest.raises(ValueError, match=scaled):
            small_scale(plan, 5)
        return
    small = small_scale(plan, 5)
    assert small.sampler == scaled and small.correlation == plan.correlation
    assert small.expected_batch_size == pytest.approx(plan.expected_batch_size / 5)
    if plan.correlated:
        ratio = small.joint_sensitivity(1.0, 0.8, 10) / plan.joint_sensitivity(1.0, 4.0, 10)
        assert ratio == pytest.approx(1, rel=1e-3)  # so that noise ÷ batch is the same


def test_full_batches_have_no_smaller_ones() -> None:
    with pytest.raises(ValueError, match="got full batch"):
        small_scale(full_batch_descent(noise_multiplier=1.0, public_size=10, steps=3, clipping_norm=1.0), 2)


def test_what_a_correlated_plan_at_small_scale_charges_is_what_runs() -> None:
    plan = dp_sgd(
        noise_multiplier=4.0, public_size=60, expected_batch_size=12, epochs=4, clipping_norm=0.3, correlation="banded", bands=3
    )
    mechanism = GradientPerturbation(budget=Budget(1e-5), plan=small_scale(plan, 1.5))
    result = replay(Training.of_mechanism(mechanism, objective()))
    assert result.verdict == "consistent", str(result)
    assert result.details["largest_movement"] > 0.9
