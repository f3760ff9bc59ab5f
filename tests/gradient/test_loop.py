"""The one loop against plain code fed with the same draws, and its laws."""

from __future__ import annotations

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit.recording import Recorder
from dperm.gradient import SGD, Averaged, Clip, Constant, ExponentialDecay, FullBatch, Plan, Poisson, descend
from dperm.objectives import LinearObjective, Logistic, Softmax
from dperm.release import Channel, SystemSource, UnpaidReleaseError

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(300, 5))
LABELS = np.where(RNG.random(300) < 0.5, 1.0, -1.0)


def recorded(seed: int = 1) -> tuple[Channel, Recorder]:
    recorder = Recorder(SystemSource(Randomness.fixed(seed)))
    return Channel(recorder), recorder


@pytest.mark.parametrize("sampler", [Poisson(0.1), FullBatch()], ids=repr)
def test_against_plain_code_with_the_same_draws(sampler: Poisson) -> None:
    objective = LinearObjective(Logistic(), 5, intercept_scale=0.5, strong_convexity=3.0, radius=0.8)
    plan = Plan(sampler, Clip(0.4), ExponentialDecay(1.3, 0.3, 20), Averaged(SGD(0.5, 0.9), 30), 60, 250)
    channel, recorder = recorded()
    channel.charge(plan.event(objective.relation), "test")
    theta = descend(plan, objective, objective.records(ROWS, LABELS), channel, np.zeros(6))

    scaled = ROWS * np.minimum(1, 1 / np.linalg.norm(ROWS, axis=1))[:, None]
    full = np.hstack([scaled, np.full((300, 1), 0.5)])
    here, velocity, total = np.zeros(6), np.zeros(6), np.zeros(6)
    for step in range(60):
        chosen = recorder.recording.inclusions[step] if isinstance(sampler, Poisson) else np.arange(300)
        slope = -LABELS[chosen] / (1 + np.exp(LABELS[chosen] * (full[chosen] @ here)))
        gradients = full[chosen] * slope[:, None]
        gradients *= np.minimum(1, 0.4 / np.linalg.norm(gradients, axis=1))[:, None]
        release = recorder.recording.releases[step]
        assert np.allclose(release.query, gradients.sum(axis=0), atol=1e-4)  # rows and coefficients are cut to a grid
        assert np.array_equal(release.query, np.rint(release.query / release.step) * release.step)
        assert 0.4 < release.sensitivity < 0.4 * (1 + 2e-6)  # of the rounded query
        assert release.noise == pytest.approx(release.sensitivity * 1.3 * np.exp(-0.3 * (step // 20)), rel=1e-12)
        gradient = release.released / (sampler.rate * 250) + 3.0 / 250 * here
        velocity = 0.9 * velocity + gradient
        here = here - 0.5 * velocity
        if np.linalg.norm(here) > 0.8:
            here *= 0.8 / np.linalg.norm(here)
        if step >= 30:
            total += here
    # the average is of updates before projection only where the ball is active; both lie in the ball
    assert np.linalg.norm(theta) <= 0.8 * (1 + 1e-12)
    assert len(recorder.recording.releases) == 60
    if np.linalg.norm(here) < 0.79:
        assert np.allclose(theta, total / 30)


def test_the_denominator_is_public() -> None:
    """Twice the records, each twice as rarely drawn: the scale of a step depends on public_size alone."""
    objective = LinearObjective(Logistic(), 5)
    for rows, labels in ((ROWS, LABELS), (ROWS[:10], LABELS[:10]), (ROWS[:0], LABELS[:0])):
        plan = Plan(Poisson(0.5), Clip(1.0), Constant(1.0), SGD(1.0), 1, 40)
        channel, recorder = recorded(3)
        channel.charge(plan.event(objective.relation), "test")
        theta = descend(plan, objective, objective.records(rows, labels), channel, np.zeros(5))
        assert np.allclose(theta, -recorder.recording.releases[0].released / 20)


def test_a_plan_cannot_run_on_another_plans_charge() -> None:
    objective = LinearObjective(Logistic(), 5)
    cheap = Plan(Poisson(0.1), Clip(1.0), Constant(2.0), SGD(1.0), 5, 300)
    dear = Plan(Poisson(0.1), Clip(1.0), Constant(1.0), SGD(1.0), 5, 300)
    longer = Plan(Poisson(0.1), Clip(1.0), Constant(2.0), SGD(1.0), 6, 300)
    shuffled = Plan(FullBatch(), Clip(1.0), Constant(2.0), SGD(1.0), 5, 300)
    for other in (dear, longer, shuffled):
        channel, _ = recorded()
        channel.charge(cheap.event(objective.relation), "test")
        with pytest.raises(UnpaidReleaseError):
            descend(other, objective, objective.records(ROWS, LABELS), channel, np.zeros(5))


def test_softmax_runs_through_the_same_loop() -> None:
    objective = LinearObjective(Softmax(3), 5, intercept_scale=0.5)
    plan = Plan(FullBatch(), Clip(1.0), Constant(0.01), SGD(1.0, 0.9), 200, 300)
    channel, _ = recorded()
    channel.charge(plan.event(objective.relation), "test")
    targets = np.argmax(ROWS[:, :3], axis=1).astype(float)
    theta = descend(plan, objective, objective.records(ROWS, targets), channel, np.zeros(18))
    scores = objective.predict(theta, objective.records(ROWS, targets).take(np.arange(300)))
    assert np.mean(scores.argmax(axis=1) == targets) > 0.9


def test_progress_is_told_every_step() -> None:
    objective = LinearObjective(Logistic(), 5)
    plan = Plan(FullBatch(), Clip(1.0), Constant(1.0), SGD(1.0), 4, 300)
    channel, _ = recorded()
    channel.charge(plan.event(objective.relation), "test")
    seen: list[int] = []
    descend(plan, objective, objective.records(ROWS, LABELS), channel, np.zeros(5), seen.append)
    assert seen == [1, 2, 3, 4]
