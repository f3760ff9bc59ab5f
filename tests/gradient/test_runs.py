"""What all runs of noisy descent do alike: observers see what is drawn, no records are ordinary, and a record's slots count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.gradient import (
    SGD,
    AdaptiveClip,
    Clip,
    Constant,
    FullBatch,
    Gradients,
    ImportancePlan,
    IndividualPlan,
    Normalise,
    Plan,
    Poisson,
    SvrgPlan,
)
from dperm.gradient.policy import runs_by_parts
from dperm.gradient.query import PerExampleGradient
from dperm.objectives import LinearObjective, Logistic
from dperm.objectives.parts import PartedRecords
from dperm.privacy import Gaussian, PrivacyProfile, Relation, SelfComposed
from dperm.published import PublishedNormalisedPlan
from dperm.release import Channel, GaussianNoise
from helpers.asked import Asked
from helpers.engines import LocalEngine

ADD = Relation.ADD_OR_REMOVE_ONE
SIZE = 150
ROWS = np.random.default_rng(0).normal(size=(SIZE, 3)) / 3
SIGNS = np.where(np.arange(SIZE) % 3, 1.0, -1.0)
PROBLEM = LinearObjective(Logistic(), 3, public_size=SIZE)

PLAN = Plan(Poisson(0.5), Clip(0.2), Constant(2.0), SGD(0.1), 4, SIZE)
WHOLE = Plan(FullBatch(), Clip(0.2), Constant(2.0), SGD(0.1), 4, SIZE)
INDIVIDUAL = IndividualPlan(0.2, 2.0, 4, 2.0, SGD(0.1), SIZE)
IMPORTANCE = ImportancePlan(PrivacyProfile((0.0,), (0.5,)), 30, 1, 0.2, SGD(0.1), SIZE, norm_noise=5.0)


def started(policy: Any, source: Asked, size: int = SIZE, **settings: Any) -> Any:
    channel = Channel.open(source)
    channel.charge(policy.event(ADD), "test")
    return policy.gradients(PROBLEM, PROBLEM.records(ROWS[:size], SIGNS[:size]), channel, **settings)


class Drawing(Asked):
    """Keeps who was drawn, and who of those was proposed."""

    def draw(self, draw: Any, records: int, steps: int) -> Any:
        self.drawn: list[Any] = []
        for included in super().draw(draw, records, steps):
            self.drawn.append(included)
            yield included

    def thin(self, indices: Any, keep: Any, coin: Any) -> Any:
        stayed = super().thin(indices, keep, coin)
        if coin[1] == 0:
            self.drawn[-1] = stayed
        return stayed


@pytest.mark.parametrize("policy", [PLAN, WHOLE, INDIVIDUAL, IMPORTANCE], ids=lambda policy: policy.kind)
def test_an_observer_sees_each_record_of_a_draw_once(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dperm.objectives.records._CHUNK_BYTES", 1)  # batches of 64, where all are read
    source, seen = Drawing(), list[int]()
    run = started(policy, source, observe=lambda at_theta: seen.append(len(at_theta.norms)))
    for _ in range(3):
        before = sum(seen)
        run(np.zeros(3))
        expected = SIZE if policy.rate == 1 else len(source.drawn[run.step - 1])
        assert sum(seen) - before == expected > 0
    assert run.step == 3
    other = started(policy, Drawing())
    assert other(np.zeros(3)).shape == (3,)  # nobody has to look


@pytest.mark.parametrize(
    "policy",
    [WHOLE, INDIVIDUAL, Plan(FullBatch(), AdaptiveClip(0.2), Constant(2.0), SGD(0.1), 4, SIZE)],
    ids=lambda policy: f"{policy.kind}, {type(getattr(policy, 'bounding', Clip(1.0))).__name__}",
)
def test_without_records_a_step_is_released_all_the_same(policy: Any) -> None:
    source = Asked()
    assert started(policy, source, size=0)(np.zeros(3)).tolist() == [0, 0, 0]
    assert len(source.questions) == 1 and not source.questions[0].query.any()


@pytest.mark.parametrize("chunk", [1, 1 << 21])
def test_all_batches_of_a_step_are_in_its_sum(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step gives is the released sum over the public batch size, and the regulariser's step."""
    monkeypatch.setattr("dperm.objectives.records._CHUNK_BYTES", chunk)
    problem = LinearObjective(Logistic(), 3, public_size=SIZE, strong_convexity=6.0)
    theta = np.array([0.3, -0.2, 0.1])
    scaled = ROWS * np.minimum(1, 1 / np.linalg.norm(ROWS, axis=1))[:, None]
    every = scaled * (-SIGNS / (1 + np.exp(SIGNS * (scaled @ theta))))[:, None]
    clipped = every * np.minimum(1, 0.2 / np.linalg.norm(every, axis=1))[:, None]
    for policy in (WHOLE, INDIVIDUAL):
        channel = Channel.open(Asked())
        channel.charge(policy.event(ADD), "test")
        run = policy.gradients(problem, problem.records(ROWS, SIGNS), channel)
        assert run(theta) == pytest.approx(clipped.mean(0) + 6.0 / SIZE * theta, abs=1e-6)


class _Halves(Gradients[Any]):
    """Uses a sum before it leaves: a mean of it and of what it was at the step before, which leaves in its place."""

    def start(self) -> None:
        self._before: Any = None

    def __call__(self, theta: Any) -> Any:
        everyone, bounding = next(self.records.stream([None])), self.policy.bounding
        total = self.bounded_sum(theta, everyone, bounding, PerExampleGradient(), 2.0)
        mean = total.value if self._before is None else (total.value + self._before) / 2
        self._before, self.step = total.value, self.step + 1
        return self.channel.release(mean, GaussianNoise(total.sensitivity, 2.0, what=total.what))


def test_a_sum_may_be_used_before_it_leaves() -> None:
    source = Asked()
    channel = Channel.open(source)
    channel.charge(WHOLE.event(ADD), "test")
    run = _Halves(WHOLE, PROBLEM, PROBLEM.records(ROWS, SIGNS), channel)
    points = [np.zeros(3), np.ones(3)]
    for theta in points:
        run(theta)
    other = started(WHOLE, Asked())
    first, second = (SIZE * other(theta) for theta in points)
    assert [question.sensitivity for question in source.questions] == pytest.approx([0.2, 0.2], rel=1e-5)
    assert source.questions[0].query == pytest.approx(first, abs=1e-5)
    assert source.questions[1].query == pytest.approx((first + second) / 2, abs=1e-5)


class _Run(Gradients[Any]):
    def __call__(self, theta: Any) -> Any:
        self.step += 1
        everyone = next(self.records.stream([None]))
        return self.released_sum(theta, everyone, self.policy.given, PerExampleGradient(), 2.0, 1.0, slots=self.policy.rows)


class Mine(PublishedNormalisedPlan):
    """Whose run bounds by a bounding that keeps a state, and never hands one over."""

    run = _Run
    given, rows = AdaptiveClip(0.2, count_weight=0.5), 3


def test_a_sum_without_a_state_is_bounded_as_a_run_begins_and_its_slots_are_charged() -> None:
    channel = Channel.open(source := Asked())
    channel.charge(SelfComposed(Gaussian(2.0), 2), "test")
    run: Any = Mine(0.2, 2.0, 2, SGD(0.1), SIZE).gradients(PROBLEM, PROBLEM.records(ROWS, SIGNS), channel)
    bounding, state = AdaptiveClip(0.2, count_weight=0.5), {"clipping_norm": 0.2}
    (batch,) = PROBLEM.records(ROWS, SIGNS).batches()
    expected = bounding.query(PROBLEM.per_example(np.zeros(3), batch), state)
    assert run(np.zeros(3)) == pytest.approx(expected, abs=1e-5)
    assert source.questions[0].sensitivity == pytest.approx(3 * np.hypot(1.0, 0.5), rel=1e-5)
    assert source.questions[0].noise == 2.0


def test_a_run_says_at_which_norm_it_cuts() -> None:
    """0 where it does not cut at one."""
    policies: list[tuple[Any, float]] = [
        (PLAN, 0.2),
        (Plan(FullBatch(), AdaptiveClip(0.4), Constant(2.0), SGD(0.1), 4, SIZE), 0.4),
        (Plan(FullBatch(), Normalise(), Constant(2.0), SGD(0.1), 4, SIZE), 0.0),
        (INDIVIDUAL, 0.2),
        (IMPORTANCE, 0.2),
        (SvrgPlan(0.5, 1, 4, 0.2, 5.0, 2.0, SGD(0.1), SIZE), 0.0),
    ]
    for policy, norm in policies:
        assert started(policy, Asked()).clipping_norm == norm, policy
    adaptive = started(policies[1][0], Asked())
    adaptive(np.zeros(3))
    assert adaptive.clipping_norm == adaptive.public()["clipping_norm"] != 0.4


def test_an_adaptive_bound_of_a_run_is_the_one_that_it_came_to() -> None:
    source = Asked()
    run = started(Plan(FullBatch(), bounding := AdaptiveClip(0.4), Constant(2.0), SGD(0.1), 4, SIZE), source)
    (batch,) = PROBLEM.records(ROWS, SIGNS).batches()
    at_theta = PROBLEM.per_example(np.zeros(3), batch)
    for question in range(3):
        state = {"clipping_norm": run.clipping_norm}
        run(np.zeros(3))
        assert source.questions[question].query == pytest.approx(bounding.query(at_theta, state), abs=1e-5)
    assert state["clipping_norm"] < 0.35


class Silent(Plan):
    """A stranger's, which does not say how its sums may be computed."""


class Parting(Plan):
    """A stranger's that says it."""

    by_parts = True


class Whole(Plan):
    by_parts = False


def test_sums_are_computed_by_parts_where_a_policy_says_so_itself() -> None:
    for kind, expected in ((Plan, True), (Silent, False), (Parting, True), (Whole, False)):
        assert runs_by_parts(kind(FullBatch(), Clip(0.2), Constant(2.0), SGD(0.1), 4, SIZE)) == expected
    assert not runs_by_parts(INDIVIDUAL)


def test_a_draw_of_nobody_is_released_where_records_are_in_parts() -> None:
    plan = Plan(Poisson(1e-12), Clip(0.2), Constant(2.0), SGD(0.1), 2, SIZE)
    channel = Channel.open(source := Asked())
    channel.charge(plan.event(ADD), "test")
    parted: Any = PartedRecords(PROBLEM, LocalEngine(), [(ROWS[:70], SIGNS[:70]), (ROWS[70:], SIGNS[70:])])
    assert plan.gradients(PROBLEM, parted, channel)(np.zeros(3)).tolist() == [0, 0, 0]
    assert len(source.questions) == 1
