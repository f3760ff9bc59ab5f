"""How far one record moves what output perturbation and accuracy first release, where it moves them as far as it can."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import AskRecords, GradualRelease, LookAtOthers, Objective, OutputPerturbation, accuracy_first, output
from dperm.mechanisms.accuracy_first import AccuracyFirst
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.minimiser import certain_tolerance, solve
from dperm.objectives import (
    LinearObjective,
    Logistic,
    Loss,
    PoissonLoss,
    QNormHinge,
    SmoothedHinge,
    Squared,
    Task,
)
from dperm.objectives.weighted import Weighted
from dperm.privacy import Gaussian, PureDP, Relation
from dperm.privacy.events import leaves
from dperm.release import Channel
from helpers.asked import Asked, Question, moves
from helpers.losses import every_loss, one_output

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
NORM, MODULUS = 1.5, 200.0
SIDE = np.array([[0.6, 0.8]]) * NORM
REST = np.array([[1.0, 0.0], [-0.5, 1.0], [0.0, -1.0]])
SIGNS = np.array([1.0, -1.0, 1.0])


def problem(relation: Relation) -> LinearObjective:
    """Where every margin is far below 1, as here, each record's gradient is ∓row to the last digit and the minimiser is
    Σ sign·row/Λ: one record moves it by its whole Lipschitz constant over Λ, and nothing can move it further."""
    return LinearObjective(SmoothedHinge(0.01), 2, data_norm=NORM, public_size=3, relation=relation)


def neighbours(objective: LinearObjective) -> tuple[Any, Any]:
    """A record of the largest norm, and none or its opposite."""
    here = objective.records(np.vstack([REST, SIDE]), np.append(SIGNS, 1.0))
    if objective.facts.relation is ADD:
        return here, objective.records(REST, SIGNS)
    return here, objective.records(np.vstack([REST, SIDE]), np.append(SIGNS, -1.0))


def gradual(delta: float) -> GradualRelease:
    """A path that is walked to its end: of one row with either label, half is the most that anybody gets right."""
    either = (REST[[0, 0]], np.array([-1.0, 1.0]))
    method = AccuracyFirst(accuracy=0.999, held_out=either, stops=4, strong_convexity=MODULUS)
    mechanism: Any = method.calibrated(problem(ADD).facts, Budget(delta, 1.0), 1)
    return mechanism


MECHANISMS = {
    "output": OutputPerturbation(budget=Budget(1e-5, 1.0), strong_convexity=MODULUS, noise_multiplier=3.0),
    "output, pure": OutputPerturbation(budget=Budget(0.0, 1.0), strong_convexity=MODULUS, pure_epsilon=1.0),
    "accuracy first": gradual(1e-5),
    "accuracy first, pure": gradual(0.0),
}


def released(mechanism: Mechanism, objective: LinearObjective) -> list[tuple[Question, float]]:
    def run(records: Any) -> Any:
        def train(source: Asked) -> Any:
            channel = Channel.open(source)
            channel.charge(mechanism.event(objective.facts), mechanism.name)
            return mechanism.train(objective, records, channel)

        return train

    here, there = neighbours(objective)
    return moves(run(here), run(there))


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_sensitivity_is_what_the_farthest_neighbours_move(name: str, relation: Relation) -> None:
    objective = problem(relation)
    found = released(MECHANISMS[name], objective)
    assert len(found) == (4 if name == "accuracy first" else 1)
    for _, moved in found:
        assert 0.9999 < moved <= 1


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_noise_is_what_is_charged(name: str) -> None:
    """Parts of the event, each paid for one release: of output perturbation one, of a path all of it, or its last point."""
    objective = problem(ADD)
    mechanism = MECHANISMS[name]
    parts = leaves(mechanism.event(objective.facts))
    charged = [1 / part.epsilon if isinstance(part, PureDP) else part.noise_multiplier for part in parts.elements()]
    assert all(isinstance(part, Gaussian | PureDP) for part in parts)
    noise = [question.noise for question, _ in released(mechanism, objective)]
    assert sorted(noise) == pytest.approx(sorted(charged), rel=1e-12)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", MECHANISMS)
def test_both_solvers_may_stop_short_on_the_far_side(name: str, relation: Relation) -> None:
    """Every θ with a gradient of length γ is allowed. Of a quadratic these are the points around the minimiser at distance γ/Λ:
    two of them, of neighbours, on the line through both minimisers, are as far apart as is charged."""
    mechanism: Any = MECHANISMS[name]
    if isinstance(mechanism, OutputPerturbation):
        mechanism = replace(mechanism, tolerance=0.3)
    objective = problem(relation)
    facts = replace(objective.facts, size_limit=10**14)  # rounding of so many records is as large as a record
    slack = mechanism.residual(facts if name.startswith("accuracy") else objective.facts)
    assert slack > 0.1
    here, there = (SIGNS @ REST + sign * SIDE[0] for sign in (1.0, 0.0 if relation is ADD else -1.0))
    towards = SIDE[0] / NORM
    ends = (here + slack * towards) / MODULUS, (there - slack * towards) / MODULUS
    charged = mechanism.sensitivity(facts if name.startswith("accuracy") else objective.facts)
    assert np.linalg.norm(ends[0] - ends[1]) == pytest.approx(charged, rel=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_solver_is_asked_for_what_it_reaches_on_every_data_set(name: str) -> None:
    mechanism: Any = MECHANISMS[name]
    for limit in (10, 10**13):
        facts = replace(problem(ADD).facts, size_limit=limit)
        assert mechanism.residual(facts) == certain_tolerance(facts, MODULUS)
        if isinstance(mechanism, OutputPerturbation):
            with pytest.raises(ValueError, match="tolerance >="):
                replace(mechanism, tolerance=0.99 * certain_tolerance(facts, MODULUS)).event(facts)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_solver_may_stop_as_short_as_is_charged_and_no_shorter(
    name: str, relation: Relation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a sensitivity is above the movement of the minimiser itself is for two solvers, as short as they were told to stop."""
    mechanism: Any = MECHANISMS[name]
    if isinstance(mechanism, OutputPerturbation):
        mechanism = replace(mechanism, tolerance=0.3)
    asked: list[float] = []
    for module in (accuracy_first, output):
        monkeypatch.setattr(module, "solve", lambda *given: (asked.append(given[3]), solve(*given))[1])
    ((question, _), *_) = released(mechanism, problem(relation))
    minimisers = NORM * (1 if relation is ADD else 2)
    left = question.sensitivity * MODULUS - minimisers
    assert len(asked) == 2 and asked[0] == asked[1] > 0
    assert 2 * asked[0] <= left < 2.2 * asked[0]  # and what the grid of a release adds


def test_a_path_without_noise_stays_where_it_is() -> None:
    """Each point is the mean of the releases so far: of equal ones that is what they are."""
    objective = problem(ADD)
    here, _ = neighbours(objective)
    mechanism = replace(gradual(1e-5), stopping=(watched := Watched(goal="accuracy", target=0.9, rows=REST, targets=SIGNS)))
    channel = Channel.open(Asked())
    channel.charge(mechanism.event(objective.facts), mechanism.name)
    mechanism.train(objective, here, channel)
    assert len(watched.seen) == 4
    assert np.allclose(watched.seen, (SIGNS @ REST + SIDE[0]) / MODULUS, rtol=1e-5, atol=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Watched(LookAtOthers):
    """Keeps what it is shown, and is never content."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seen", [])

    seen = ()

    def test(self, objective: Any, records: Any, channel: Any, question: Any) -> Any:
        seen: Any = self.seen
        return lambda theta: seen.append(np.array(theta)) is not None


class Uncut(AskRecords):
    """Of losses that count for less than twice the target."""

    cut = 1.5


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("kind", [AskRecords, Uncut])
@pytest.mark.parametrize(("goal", "target"), [("accuracy", 0.2), ("accuracy", 0.7), ("loss", 0.2), ("loss", 3.0)])
def test_no_record_moves_the_excess_further_and_one_does(kind: Any, goal: Any, target: float, relation: Relation) -> None:
    stopping = kind(goal=goal, target=target, epsilon=1.0)
    classes = goal == "accuracy"
    loss = Logistic() if classes else Squared(100.0, 1.0)
    objective = LinearObjective(loss, 1, data_norm=1.0, relation=relation, radius=None if classes else 1.0)
    theta = np.array([1.0])
    others = [(0.5, 1.0), (-0.5, 1.0), (0.25, -1.0)]
    one = [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (0.0, 0.0 if not classes else 1.0), (0.5, 100.0 if not classes else -1.0)]

    def excess(*more: tuple[float, float]) -> float:
        rows, targets = np.array([*others, *more]).T
        return stopping.excess(objective, objective.records(rows[:, None], targets), theta)

    if relation is ADD:
        found = [abs(excess(record) - excess()) for record in one]
    else:
        found = [abs(excess(record) - excess(other)) for record in one for other in one]
    assert max(found) == pytest.approx(stopping.sensitivity(relation), rel=1e-12)
    assert math.isfinite(max(found)) and max(found) > 0


@pytest.mark.parametrize(("goal", "target"), [("accuracy", 0.7), ("loss", 0.2)])
def test_a_record_of_half_the_weight_moves_the_excess_by_half(goal: Any, target: float) -> None:
    stopping = AskRecords(goal=goal, target=target, epsilon=1.0)
    objective = LinearObjective(Weighted(Logistic()), 1, data_norm=1.0)
    rows = np.array([[1.0], [-0.5], [0.25]])

    def excess(weight: float) -> float:
        records = objective.records(rows, np.array([[1.0, 1.0], [1.0, weight], [-1.0, 1.0]]))
        return stopping.excess(objective, records, np.array([1.0]))

    others = objective.records(rows[[0, 2]], np.array([[1.0, 1.0], [-1.0, 1.0]]))
    assert excess(0.0) == stopping.excess(objective, others, np.array([1.0])) != excess(1.0)
    assert excess(0.5) == pytest.approx((excess(0.0) + excess(1.0)) / 2, rel=1e-12)


@pytest.mark.parametrize(("target", "reached"), [(0.5, True), (0.5 + 1e-9, False)])
def test_public_records_that_just_reach_a_target_reach_it(target: float, reached: bool) -> None:
    rows, targets = np.ones((4, 1)), np.array([1.0, 1.0, -1.0, -1.0])
    objective = LinearObjective(Logistic(), 1, data_norm=1.0)
    stopping = LookAtOthers(goal="accuracy", target=target, rows=rows, targets=targets)
    enough = stopping.test(objective, objective.records(rows[:0], targets[:0]), Channel.open(Asked()), None)
    assert enough(np.ones(1)) == reached


class AnyWeight(Weighted):
    """A stranger's weights, which are clipped to [0, 1] wherever they are used, but not where they are admitted."""

    def admit(self, targets: Any) -> Any:
        return np.column_stack([super().admit(targets)[:, 0], targets[:, 1]]) if targets.ndim == 2 else super().admit(targets)

    def value(self, t: Any, y: Any) -> Any:
        return super().value(t, super().admit(y))

    def slope(self, t: Any, y: Any) -> Any:
        return super().slope(t, super().admit(y))

    def curvature(self, t: Any, y: Any) -> Any:
        return super().curvature(t, super().admit(y))


LOSSES = every_loss(QNormHinge(), Squared(100.0, 2.0), of=one_output)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_no_record_of_any_loss_moves_the_question_of_a_threshold_further(loss: Loss, relation: Relation) -> None:
    """A record, alone, at many predictions and targets: losses below 0 count as 0, and large ones for five targets."""
    stopping = AskRecords(goal="loss", target=0.05, epsilon=1.0)
    objective = LinearObjective(loss, 1, radius=2.0, relation=relation)
    largest = 1.0 if loss.targets.classification else float(max(map(abs, loss.targets.extremes)))
    found: list[float] = []
    for target in (-largest, -0.5 * largest, 0.0, 0.5 * largest, largest):
        if loss.targets.classification and abs(target) != 1:
            continue
        for row in np.linspace(-1, 1, 11):
            record = objective.records(np.array([[row]]), np.array([target]))
            found.append(stopping.excess(objective, record, np.array([2.0])))
    # an empty table's excess is 0: of adding, each of these is a movement; of replacing, so is each difference
    moved = max(map(abs, found)) if relation is ADD else max(found) - min(found)
    assert moved <= stopping.sensitivity(relation) * (1 + 1e-12)
    assert max(found) <= stopping.target * (1 + 1e-12)
    assert min(found) == pytest.approx(-4 * stopping.target, rel=1e-12)  # the upper end of the clip is reached


@pytest.mark.parametrize(("value", "counted"), [(-1e9, 0.0), (-math.inf, 0.25), (math.nan, 0.25), (math.inf, 0.25), (1e9, 0.25)])
def test_a_loss_that_is_anything_after_all_counts_within_the_same_bounds(
    value: float, counted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's loss that changes after it was checked: what is not finite is as bad as can be."""
    objective = LinearObjective(Squared(100.0, 2.0), 1, radius=2.0)
    record = objective.records(np.ones((1, 1)), np.ones(1))
    monkeypatch.setattr(Squared, "value", lambda self, t, y: np.full(len(t), value))
    stopping = AskRecords(goal="loss", target=0.05, epsilon=1.0)
    assert stopping.excess(objective, record, np.ones(1)) == pytest.approx(0.05 - counted, rel=1e-12)


def test_losses_below_0_count_as_0() -> None:
    """Poisson's are: e² − 10·2 at the largest prediction and target."""
    stopping = AskRecords(goal="loss", target=0.05, epsilon=1.0)
    objective = LinearObjective(PoissonLoss(10.0, 2.0), 1, radius=2.0)
    assert objective.loss.value(np.array([2.0]), np.array([10.0]))[0] < -12
    record = objective.records(np.ones((1, 1)), np.array([10.0]))
    assert stopping.excess(objective, record, np.array([2.0])) == 0.05


@pytest.mark.parametrize("weight", [-1e9, -0.5, 0.0, 1.0, 1.5, 1e9])
@pytest.mark.parametrize(("goal", "target"), [("accuracy", 0.7), ("loss", 0.2)])
def test_a_stranger_s_weight_counts_for_no_more_than_a_record_and_for_no_less_than_none(
    weight: float, goal: Any, target: float
) -> None:
    stopping = AskRecords(goal=goal, target=target, epsilon=1.0)
    objective = LinearObjective(AnyWeight(Logistic()), 1)

    def excess(counted: float) -> float:
        return stopping.excess(objective, objective.records(np.ones((1, 1)), np.array([[-1.0, counted]])), np.array([1.0]))

    assert excess(weight) == excess(1.0 if weight >= 1 else 0.0)
    assert 0 < abs(excess(1.0)) <= stopping.sensitivity(ADD)


def test_what_is_released_is_the_minimiser_and_the_noise_is_what_the_trace_says() -> None:
    """The minimiser is Σ sign·row/Λ here; the noise is the product of what a channel was asked for."""
    objective = problem(ADD)
    records, rows = objective.records(REST, SIGNS), REST * np.minimum(1, NORM / np.linalg.norm(REST, axis=1))[:, None]
    mechanism, source = MECHANISMS["output"], Asked()
    channel = Channel.open(source)
    channel.charge(mechanism.event(objective.facts), mechanism.name)
    theta, trace = mechanism.train(objective, records, channel)
    assert theta == pytest.approx(SIGNS @ rows / MODULUS, rel=1e-5)
    (question,) = source.questions
    assert trace["noise_std"] == pytest.approx(question.noise * question.sensitivity, rel=1e-5)
    perturbed, objective = Objective().build(Task(loss=Logistic(), features=2, public_size=3), Budget(1e-5, 1.0))
    source = Asked()
    channel = Channel.open(source)
    channel.charge(perturbed.event(objective.facts), perturbed.name)
    _, trace = perturbed.train(objective, objective.records(REST, SIGNS), channel)
    (question,) = source.questions
    assert trace["output_noise_std"] == pytest.approx(question.noise * question.sensitivity, rel=1e-5)
