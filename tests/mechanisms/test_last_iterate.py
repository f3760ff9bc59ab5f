"""Noisy SGD whose last iterate alone is released."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import Training, replay
from dperm.audit.recording import Recorder
from dperm.estimators import DPLogisticRegression, DPRidge
from dperm.mechanisms import Budget, LastIterate, LastIterateDescent
from dperm.objectives import Huber, LinearObjective, Logistic, Squared, Task
from dperm.privacy import Relation, epsilon
from dperm.release import Channel, GaussianNoise, HiddenNoise, LastIterateNoise, Noise, SpendLog, UnpaidReleaseError
from helpers.asked import smaller
from helpers.catalogue.common import DELTA, REPLACE
from helpers.catalogue.last_iterate import COUNT

RNG = np.random.default_rng(0)


def problem(**settings: Any) -> tuple[LastIterateDescent, LinearObjective]:
    chosen = LastIterate(**{"epochs": 4, "batch_size": 8, "radius": 5.0, **settings})
    task = Task(loss=Logistic(), features=3, public_size=COUNT, relation=REPLACE, intercept_scale=0.5)
    mechanism, objective = chosen.build(task, Budget(DELTA, 2.0))
    assert isinstance(mechanism, LastIterateDescent)
    return mechanism, objective


def data(count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(count, 3)), np.where(RNG.random(count) < 0.5, 1.0, -1.0)


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.3), Squared(1.0, 2.0)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("strong", [0.0, 12.0])
def test_steps_bring_iterates_no_further_apart_than_stated(loss: Any, strong: float) -> None:
    """φ(θ) = θ − η(…) on the worst batches: the bound that everything hidden rests on."""
    objective = LinearObjective(loss, 3, public_size=COUNT, relation=REPLACE, radius=2.0 if loss.name == "squared" else None)
    facts = objective.facts
    for rate in (0.1 / facts.smoothness, 1.0 / facts.smoothness, 1.9 / facts.smoothness):
        mine = LastIterateDescent(
            budget=Budget(DELTA), epochs=1, batch_size=4, learning_rate=rate, radius=2.0, noise_multiplier=1.0,
            strong_convexity=strong,
        )  # fmt: skip
        if rate > 2 / (facts.smoothness + strong / COUNT):
            with pytest.raises(ValueError, match="at most 2/β"):
                mine.event(facts)
            continue
        bound, largest = mine.contraction(facts, COUNT), 0.0
        rows = np.vstack([np.eye(3)[:1].repeat(4, axis=0), RNG.normal(size=(4, 3))])
        targets = np.ones(8) if loss.name != "squared" else np.linspace(-1, 1, 8)
        records = objective.records(rows, targets)
        for parts in (np.arange(4), np.arange(4, 8), np.arange(4, 6)):
            (batch,) = next(iter(records.stream([parts])))
            for _ in range(200):
                ends = [RNG.normal(size=3) * RNG.choice([0.01, 0.3, 1.0]) for _ in range(2)]
                ends[1] = ends[0] + (ends[1] if RNG.random() < 0.5 else np.eye(3)[0] * 1e-3)

                steps = [
                    end - rate * (objective.plain_gradient(end, batch) / 4 + strong / COUNT * end) for end in ends
                ]  # fmt: skip
                gap = float(np.linalg.norm(ends[0] - ends[1]))
                largest = max(largest, float(np.linalg.norm(steps[0] - steps[1])) / gap)
        assert largest <= bound * (1 + 1e-9)


def test_a_run_releases_its_last_iterate_alone() -> None:
    mechanism, objective = problem()
    recorder = Recorder()
    release = mechanism.release(objective, objective.records(*data()), Channel.open(recorder))
    kinds = [item.kind for item in recorder.recording.releases]
    assert kinds == ["hidden"] * 19 + ["gaussian"]
    assert np.linalg.norm(release.theta) <= mechanism.radius * (1 + 1e-12)
    assert release.certificate.accountant == "exact Gaussian"
    assert 1.999 < (release.certificate.epsilon or 0) <= 2.0
    release.certificate.verify()
    assert set(release.trace) == {"steps"}


def test_iterates_before_the_last_cannot_leave() -> None:
    mechanism, objective = problem()
    channel = Channel.open()
    channel.charge(mechanism.event(objective.facts), "test")
    channel.release(np.zeros(4), HiddenNoise(1.0, mechanism.noise_multiplier))
    channel.release(np.zeros(4), LastIterateNoise(1.0, mechanism.noise_multiplier))
    with pytest.raises(UnpaidReleaseError, match="but the last one, once"):
        channel.release(np.zeros(4), LastIterateNoise(1.0, mechanism.noise_multiplier))
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(4), GaussianNoise(1.0, mechanism.noise_multiplier))
    other = Channel.open()
    other.charge(mechanism.event(objective.facts), "test")
    with pytest.raises(UnpaidReleaseError):
        other.release(np.zeros(4), HiddenNoise(1.0, mechanism.noise_multiplier / 2))


@pytest.mark.slow
def test_random_stops_are_uniform() -> None:
    mechanism, objective = problem(random_stop=True, epochs=None)
    records = objective.records(*data())
    stops = np.array([mechanism.release(objective, records, Channel.open()).trace["steps"] for _ in range(500)])
    counts = np.bincount(stops, minlength=6)[1:]
    assert counts.sum() == 500 and np.all(abs(counts - 100) < 55)


def test_it_learns_and_costs_less_than_all_iterates() -> None:
    rows = RNG.normal(size=(4000, 4)) / 4
    labels = np.where(rows[:, 0] + 0.1 * RNG.normal(size=4000) > 0, 1, 0)
    model = DPLogisticRegression(epsilon=1.0, mechanism="last-iterate", relation="replace_one", classes=[0, 1])
    assert model.fit(rows, labels).score(rows, labels) > 0.85
    mine, objective = problem(epochs=20)
    event: Any = mine.event(objective.facts)
    every = epsilon(replace(event.whole, noise_multiplier=event.noise_multiplier / math.sqrt(event.passes)), DELTA)
    assert every > 1.5 * epsilon(event, DELTA)


# Refusals, before any charge


def test_refusals() -> None:
    mechanism, objective = problem()
    with pytest.raises(ValueError, match="Expected 40 records"):
        mechanism.release(objective, objective.records(*data(39)), Channel.open())
    with pytest.raises(ValueError, match="at most 2/β"):
        problem(learning_rate=10.0)
    with pytest.raises(ValueError, match="batch_size of at most public_size = 40"):
        problem(batch_size=41)
    with pytest.raises(ValueError, match="one pass with random_stop"):
        problem(random_stop=True)
    with pytest.raises(ValueError, match="replace_one"):
        LastIterate().build(Task(loss=Logistic(), features=3, public_size=40), Budget(DELTA, 1.0))
    with pytest.raises(ValueError, match="radius of at most 1"):
        chosen = LastIterate(radius=3.0, epochs=1, batch_size=8)
        made, objective = chosen.build(
            Task(loss=Squared(1.0, 1.0), features=3, public_size=COUNT, relation=REPLACE), Budget(DELTA, 1.0)
        )
        made.release(objective, objective.records(*data()), Channel.open())
    with pytest.raises(ValueError):
        LastIterate(radius=0.0)
    assert SpendLog.current().charges() == []
    with pytest.raises(ValueError, match="replace_one"):  # asked before a size is: none would help
        LastIterate().build(Task(loss=Logistic(), features=3), Budget(DELTA, 1.0))


# Planted defects


def refuted(mechanism: LastIterateDescent, objective: LinearObjective) -> str:
    for _ in range(4):  # its draws are at random: of twenty, one finds too little
        result = replay(Training.of_mechanism(mechanism, objective))
        if result.refuted:
            return " ".join(result.findings)
    raise AssertionError(str(result))


def test_a_record_that_moves_a_step_twice_as_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of adding a record where one is replaced."""
    mechanism, objective = problem()
    monkeypatch.setattr(LastIterateDescent, "move", lambda self, facts: self.learning_rate * facts.lipschitz / self.batch_size)
    assert "moved by" in refuted(mechanism, objective)


def test_noise_that_falls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, objective = problem()
    plain = Channel.release

    def quieter_inside(self: Channel, query: Any, noise: Noise) -> Any:
        return plain(self, query, smaller(noise, 1 / 3 if noise.kind == "hidden" else 1.0))

    monkeypatch.setattr(Channel, "release", quieter_inside)
    assert "moved by" in refuted(mechanism, objective)


def test_steps_that_are_shared_by_all_batches_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches, charged as a pass of many: a record moves every step."""
    mechanism, objective = problem()
    monkeypatch.setattr(LastIterateDescent, "train", every_batch_is_full)
    result = replay(Training.of_mechanism(mechanism, objective))
    assert result.details["largest_movement"] <= 1 + 1e-6  # each movement is charged: what is wrong is how many there are
    assert result.refuted and "moved 5 steps of a pass" in " ".join(result.findings)


def every_batch_is_full(
    self: LastIterateDescent, objective: LinearObjective, records: Any, channel: Channel
) -> tuple[Any, dict[str, Any]]:
    theta, move, steps = np.zeros(objective.dimension), self.move(objective.facts), self.epochs * self.batches(len(records))
    (everyone,) = next(iter(records.stream([None])))
    for step in range(1, steps + 1):
        query = theta - self.learning_rate * objective.plain_gradient(theta, everyone) / self.batch_size
        noise = (LastIterateNoise if step == steps else HiddenNoise)(move, self.noise_multiplier)
        theta = channel.release(query, noise)
    return theta, {}


def test_an_order_that_changes_from_pass_to_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one that uses each batch in all its passes at once: the last record's uses then lie together at the end."""
    mechanism, objective = problem()

    def bunched(self: LastIterateDescent, records: int, steps: int) -> Any:
        order = np.random.default_rng(records).permutation(records)
        for step in range(steps):
            start = step // self.epochs * self.batch_size
            yield np.sort(order[start : start + self.batch_size])

    def turning(self: LastIterateDescent, records: int, steps: int) -> Any:
        for step in range(steps):
            order = np.random.default_rng(step // self.batches(records)).permutation(records)
            start = step % self.batches(records) * self.batch_size
            yield np.sort(order[start : start + self.batch_size])

    monkeypatch.setattr(LastIterateDescent, "_order", bunched)
    assert "steps of a pass, one is charged" in refuted(mechanism, objective)
    monkeypatch.setattr(LastIterateDescent, "_order", turning)
    assert "the order is charged as fixed" in refuted(mechanism, objective)


def test_a_hidden_run_is_not_continued() -> None:
    mechanism, objective = problem()
    event = mechanism.event(objective.facts)
    first = Channel.open()
    charge = first.charge(event, "test", continuable=True)
    with pytest.raises(UnpaidReleaseError, match="cannot be continued"):
        Channel.open().resume(charge, event)


def test_regressions_have_a_radius_of_their_own() -> None:
    rows = RNG.normal(size=(400, 3)) / 4
    model = DPRidge(epsilon=4.0, mechanism="last-iterate", relation="replace_one").fit(rows, rows[:, 0])
    assert model.certificate_.public_facts["l2_radius"] == 5.0


def test_the_relation_is_replace_one() -> None:
    assert problem()[1].relation is Relation.REPLACE_ONE
