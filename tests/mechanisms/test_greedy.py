"""Greedy coordinate descent: its steps against plain ones, what it costs, what it finds, and what breaks it."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import dperm.mechanisms.greedy as module
from dperm.audit import Training, replay
from dperm.audit.recording import Recorder
from dperm.estimators import DPLogisticRegression, model_from_json, model_to_json
from dperm.mechanisms import Budget, FrankWolfe, GreedyCoordinate, GreedyDescent
from dperm.mechanisms.entrywise import entry_limit, entrywise_gradient
from dperm.mechanisms.greedy import _scores
from dperm.objectives import Logistic, Softmax, Squared, Task
from dperm.privacy import Composed, ExponentialMechanism, Gaussian, Relation, SelfComposed, epsilon
from dperm.release import Channel, ExponentialChoice, Noise, SpendLog

RNG = np.random.default_rng(0)
BUDGET = Budget(1e-5, 4.0)
REPLACE = Relation.REPLACE_ONE


def task(**changes: Any) -> Task:
    return Task(**{"loss": Logistic(), "features": 3, "classes": 2, "public_size": 60, "intercept_scale": 0.5} | changes)


def test_without_noise_it_takes_the_steps_of_greedy_coordinate_descent() -> None:
    rows = RNG.normal(size=(300, 3)) / 3
    signs = np.sign(rows[:, 0] - 0.5 * rows[:, 1] + 0.1 * RNG.normal(size=300))
    objective = task(public_size=300).objective()
    records = objective.records(rows, signs)
    made = GreedyDescent(budget=Budget(1e-5), steps=30, noise_multiplier=1e-9, public_size=300, l1=0.02, l2=0.05, box=3.0)
    channel = Channel.open()
    channel.charge(made.event(objective.facts), "descent")
    theta, trace = made.train(objective, records, channel)
    mine, rate = np.zeros(4), 1 / (objective.curvature * objective.row_norm**2 + 0.05)
    for _ in range(30):
        smooth = objective.evaluate(mine, records)[1] / 300 + 0.05 * mine
        wanted = mine - rate * smooth
        wanted[:3] = np.sign(wanted[:3]) * np.maximum(abs(wanted[:3]) - rate * 0.02, 0)
        wanted = np.clip(wanted, -3, 3)
        place = int(abs(wanted - mine).argmax())
        mine[place] = wanted[place]
    assert theta == pytest.approx(mine, abs=1e-4) and trace["steps"] == 30


def test_what_it_costs() -> None:
    made: Any
    made, objective = GreedyCoordinate(steps=20).build(task(), BUDGET)
    noise = made.noise_multiplier
    parts = (SelfComposed(ExponentialMechanism(2 / noise), 20), SelfComposed(Gaussian(noise), 20))
    assert made.event(objective.facts) == Composed(parts)
    assert 3.99 < epsilon(Composed(parts), 1e-5) <= 4.0
    assert epsilon(parts[0], 1e-5) < 4.0 and epsilon(parts[1], 1e-5) < 4.0
    recorder = Recorder()
    rows = RNG.normal(size=(60, 3))
    made.release(objective, objective.records(rows, np.sign(rows[:, 0])), Channel.open(recorder))
    assert [len(item.query) for item in recorder.recording.releases if len(item.query) == 1] == [1] * 20


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3),
    st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    st.floats(0, 1e3),
    st.floats(0, 1e4),
)
def test_a_record_moves_a_score_no_further_than_its_gradient(
    gradient: list[float], moved: list[float], theta: list[float], penalty: float, edge: float
) -> None:
    first, change, place = np.array(gradient), np.array(moved), np.array(theta)
    penalties = np.array([penalty, penalty, 0.0])
    scores = [_scores(0.7 * place, each, place, penalties, edge, 1.0)[0] for each in (first, first + change)]
    assert np.all(abs(scores[0] - scores[1]) <= abs(change).max() * (1 + 2.0**-20) + 1e-9)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("mechanism", [GreedyCoordinate, FrankWolfe])
def test_a_bound_on_entries_finds_what_a_bound_on_rows_does_not(sparse: bool, mechanism: Any) -> None:
    rows = (RNG.random((4000, 400)) < 0.1).astype(float)  # 40 ones a row
    labels = rows[:, 5] + rows[:, 9] - rows[:, 17] + 0.3 * RNG.normal(size=4000) > 0.3
    given = sp.csr_array(rows) if sparse else rows
    model = DPLogisticRegression(
        epsilon=2.0, classes=[False, True], fit_intercept=False, data_norm=8.0, public_size=4000,
        mechanism=mechanism(entry_bound=1.0, steps=30),
    ).fit(given, labels)  # fmt: skip
    assert model.coef_[0, 5] > 0 and model.coef_[0, 9] > 0 > model.coef_[0, 17]
    assert model.certificate_.status == "certified" and 1.9 < model.certificate_.epsilon <= 2.0
    model.certificate_.verify()
    again, _ = model_from_json(model_to_json(model))
    assert np.array_equal(again.coef_, model.coef_) and again.mechanism == model.mechanism


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", [Logistic(), Squared(1.0, 100.0)])
def test_no_record_has_an_entry_above_the_limit(sparse: bool, loss: Any) -> None:
    """Rows of one huge entry, of zeros, of numbers that are none, one by one."""
    objective = task(loss=loss, classes=0 if loss.name == "squared" else 2, data_norm=50.0, relation=REPLACE).objective()
    limit = entry_limit(objective, 0.2)
    assert limit < objective.facts.lipschitz
    theta = np.array([3.0, -50.0, 20.0, 1.0])
    for row in ([40.0, 0, 0], [0, 0, 0], [0.2, 0.2, -0.2], [np.nan, 1, 1], [1e-300, 0, 30.0], [1e200, 0, 0]):
        for target in (-1.0, 1.0):
            given = np.array([row], dtype=np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                records = objective.records(sp.csr_array(given) if sparse else given, np.array([target]))
            assert abs(entrywise_gradient(objective, records, theta, limit, 1.0)).max() <= limit
    assert entry_limit(objective, None) == entry_limit(objective, 1e9) == objective.facts.lipschitz
    if loss.name == "logistic":  # whose slope is at most 1, of an entry of the row or of the constant feature 0.5
        assert entry_limit(objective, 0.2) == 0.5
        assert entry_limit(objective, 0.8) == 0.8


def test_steps_by_rule_grow_with_records_and_epsilon() -> None:
    def steps(size: int, target: float) -> int:
        made: Any = GreedyCoordinate().build(task(public_size=size), Budget(1e-5, target))[0]
        return made.steps

    assert 10 == steps(20, 1.0) < steps(10_000, 1.0) < steps(10_000, 4.0) <= 500


def test_refusals() -> None:
    rows, labels = RNG.normal(size=(60, 3)), np.arange(60) % 2
    for message, settings in (
        ("l1", {"l1": -1.0}),
        ("steps", {"steps": 0}),
        ("box", {"box": 0.0}),
        ("entry", {"entry_bound": 0}),
    ):
        with pytest.raises(ValueError, match=message):
            DPLogisticRegression(classes=[0, 1], public_size=60, mechanism=GreedyCoordinate(**settings)).fit(rows, labels)
    with pytest.raises(ValueError, match="one output"):
        made, objective = GreedyCoordinate(steps=2).build(task(loss=Softmax(3), classes=3), BUDGET)
        made.release(objective, objective.records(rows, np.arange(60) % 3.0), Channel.open())
    with pytest.raises(ValueError, match="bounded slope"):
        GreedyCoordinate(steps=2).build(task(loss=Squared(1.0), classes=0), BUDGET)
    for settings in ({"l2": 1e306}, {"l1": 1e306}, {"l2": 1e-306}):
        with pytest.raises(ValueError, match="between 1e-100 and 1e100"):
            GreedyCoordinate(**settings)
    for method in (GreedyCoordinate(steps=2), FrankWolfe(steps=2)):
        made, objective = method.build(task(features=0, intercept_scale=0.0), BUDGET)
        with pytest.raises(ValueError, match="at least one parameter"):
            made.release(objective, objective.records(np.zeros((60, 0)), np.ones(60)), Channel.open())
    assert SpendLog.current().charges() == []


# Planted defects


def refuted(method: Any = None, relation: Relation = Relation.ADD_OR_REMOVE_ONE, loss: Any = None) -> str:
    made, objective = (method or GreedyCoordinate(steps=4)).build(
        task(loss=loss or Logistic(), classes=0 if loss else 2, relation=relation), BUDGET
    )
    result = replay(Training.of_mechanism(made, objective))
    assert result.refuted, str(result)
    return " ".join(result.findings)


@pytest.mark.parametrize("method", [GreedyCoordinate(steps=4, entry_bound=0.1), FrankWolfe(radius=2.0, steps=4, entry_bound=0.1)])
def test_entries_that_are_not_held_are_found(method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import dperm.mechanisms.entrywise as entrywise

    monkeypatch.setattr(entrywise, "_largest_entries", lambda batch: np.zeros(len(batch.units)))
    monkeypatch.setattr(entrywise, "entry_limit", lambda objective, bound: bound)
    for user in (module, __import__("dperm.mechanisms.frank_wolfe", fromlist=["entry_limit"])):
        monkeypatch.setattr(user, "entry_limit", lambda objective, bound: bound)
    assert "moved by" in refuted(method)


def test_the_noise_of_adding_where_a_record_is_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "entrywise_moved", lambda objective, limit: limit)
    assert "moved by" in refuted(GreedyCoordinate(steps=4, entry_bound=0.3), REPLACE)


def test_scores_by_the_square_of_a_move_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_scores", lambda *given: (_scores(*given)[0] ** 2, _scores(*given)[1]))
    assert "moved by" in refuted()


def test_a_choice_that_was_not_drawn_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By neighbours that choose another parameter: now and then none of those that replay draws does, so it may ask thrice."""
    release = Channel.release

    def undrawn(channel: Channel, query: Any, noise: Noise) -> Any:
        return int(np.argmax(query)) if isinstance(noise, ExponentialChoice) else release(channel, query, noise)

    monkeypatch.setattr(Channel, "release", undrawn)
    for _ in range(2):
        with contextlib.suppress(AssertionError):
            assert refuted()
            return
    assert refuted()


def test_42_a_step_and_its_mirror_image_move_coordinates_alike_and_no_further_than_numbers_are_cut() -> None:
    """Numbers at both sides of both cuts: of θ, of the place and of the gradient, and of where a step ends."""
    values = np.array([-1e9, -7.0, -2.0, -0.5, 0.0, 0.5, 2.0, 7.0, 1e9])
    theta, place, gradient = (each.ravel() for each in np.meshgrid(values, values, values))
    penalties = np.full(theta.shape, 0.25)
    for edge, reach in ((3.0, 5.0), (math.inf, 5.0)):
        moved, _ = _scores(place, gradient, theta, penalties, edge, reach / module._REACH)
        assert np.array_equal(moved, _scores(-place, -gradient, -theta, penalties, edge, reach / module._REACH)[0])
        assert moved.max() <= min(edge, 2 * reach) + reach


def moved_exactly(place: float, gradient: float, theta: float, penalty: float, edge: float, reach: float) -> Fraction:
    """|argmin (x − (place − gradient))²/2 + penalty·|x| over |x| ≤ edge, − θ|: the least of where it can be, and exactly."""
    before, place_cut, gradient_cut = (Fraction(min(max(each, -reach), reach)) for each in (theta, place, gradient))
    wanted, weight = place_cut - gradient_cut, Fraction(penalty)
    found = [Fraction(0), wanted - weight, wanted + weight]
    if edge < math.inf:
        found = [each for each in found if abs(each) <= edge] + [Fraction(edge), -Fraction(edge)]
    after = min(found, key=lambda x: (x - wanted) ** 2 / 2 + weight * abs(x))
    return abs(after - before)


def test_42_scores_are_those_of_a_proximal_step_but_for_the_rounding_that_is_charged() -> None:
    """In sensitivities of 1: numbers of all sizes, also beyond where they are cut, whose rounding would otherwise be above 1."""
    rng, reach = np.random.default_rng(0), module._REACH
    sizes = [1.0, 1e3, reach / 3, reach, 1e12, 1e200]
    for _ in range(1000):
        place, gradient, theta = (float(rng.normal()) * rng.choice(sizes) for _ in range(3))
        penalty = float(rng.choice([0.0, 0.3, 1e3, 1e12]))
        edge = float(rng.choice([0.5, 2e3, 1e9, math.inf]))
        given = (np.array([each]) for each in (place, gradient, theta, penalty))
        (found,), charged = _scores(*given, edge, 1.0)  # type: ignore[call-arg]
        assert 1 < charged <= 1 + 2.0**-19
        # of two neighbours each may be rounded the other way
        assert abs(Fraction(found) - moved_exactly(place, gradient, theta, penalty, edge, reach)) <= (charged - 1) / 2
