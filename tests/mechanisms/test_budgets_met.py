"""Every method spends its budget, and no more: of one model and of one for each of three classes, with a size that is public or
released with noise, and at δ = 0 where it can."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import (
    AccuracyFirst,
    BoltOn,
    BoltOnPerturbation,
    Budget,
    Coordinate,
    CoordinateDescent,
    FrankWolfe,
    FrankWolfeDescent,
    Gradient,
    GreedyCoordinate,
    GreedyDescent,
    LastIterate,
    LastIterateDescent,
    Method,
    Objective,
    Output,
    OutputPerturbation,
    Preconditioned,
)
from dperm.objectives import LinearObjective, Logistic, PrivacyUnit, PublicFacts, SmoothedHinge, Squared, Task
from dperm.privacy import Composed, PureDP, Relation, Risk, epsilon
from dperm.privacy.events import leaves
from dperm.published import PublishedPidp
from dperm.release import Channel
from helpers.asked import Asked

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
OUTPUT = Output(strong_convexity=5.0)
METHODS: dict[str, Method] = {
    "output": OUTPUT,
    "objective": Objective(strong_convexity=5.0),
    "objective, generic": Objective(calibration="generic", strong_convexity=5.0),
    "bolt-on": BoltOn(epochs=2, learning_rate=0.1),
    "last iterate": LastIterate(epochs=2, batch_size=40),
    "vertices": FrankWolfe(steps=10),
    "coordinates": Coordinate(epochs=3),
    "greedy": GreedyCoordinate(steps=10),
    "accuracy first": AccuracyFirst(accuracy=0.9, stops=5, strong_convexity=5.0),
    "preconditioned": Preconditioned(),
    "gradient": Gradient(sampling="full", epochs=3),
}
REPLACED = ("bolt-on", "last iterate")
PURE = ("output", "bolt-on", "accuracy first", "vertices")  # choices alone are pure
ONE = ("accuracy first",)  # of two classes alone


def facts_for(name: str, size: int | None = 200) -> PublicFacts:
    relation = REPLACE if name in REPLACED else ADD
    loss: Any = Squared(1.0, 5.0) if name == "preconditioned" else Logistic()
    return LinearObjective(loss, 3, data_norm=1.0, public_size=size, relation=relation, radius=loss.ball).facts


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("delta", [1e-5, 0.0])
def test_a_method_spends_its_budget_and_no_more(name: str, delta: float, models: int) -> None:
    facts = facts_for(name)
    if delta == 0.0 and name not in PURE:
        with pytest.raises(ValueError):
            METHODS[name].calibrated(facts, Budget(delta, 2.0), models)
        return
    if models > 1 and name in (*ONE, "preconditioned"):
        return
    mechanism = METHODS[name].calibrated(facts, Budget(delta, 2.0), models)
    spent = epsilon(mechanism.event(facts), delta)
    if name == "accuracy first":  # what the whole path costs is less than what its last stop does ex post
        assert 1.0 < spent <= 2.0
    else:
        assert 1.99 < spent <= 2.0
    if models > 1:  # each model is paid for, and none of them twice
        one = METHODS[name].calibrated(facts, Budget(delta, 2.0), 1)
        assert sum(leaves(mechanism.event(facts)).values()) == 3 * sum(leaves(one.event(facts)).values())


def test_shares_that_are_rounded_up_do_not_add_up_to_more() -> None:
    """Of thirds, sevenths and elevenths of many budgets some are rounded up: their sums stay within."""
    facts = facts_for("output")
    for models in (3, 7, 11):
        for budget in np.linspace(0.5, 3.0, 40).tolist():
            spent = epsilon(OUTPUT.calibrated(facts, Budget(0.0, budget), models).event(facts), 0.0)
            assert budget * (1 - 1e-12) < spent <= budget
    for budget in np.linspace(0.5, 3.0, 200).tolist():
        count = PureDP(budget / 20, ADD)
        rest = OutputPerturbation.calibrate(facts, budget, 0.0, strong_convexity=5.0, beside=count).event(facts)
        assert budget * (1 - 1e-12) < epsilon(Composed((count, rest)), 0.0) <= budget


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize(
    ("name", "delta"), [("output", 0.0), ("output", 1e-5), ("coordinates", 1e-5), ("greedy", 1e-5), ("gradient", 1e-5)]
)
def test_a_size_that_is_released_is_paid_from_the_same_budget(name: str, delta: float, models: int) -> None:
    """A twentieth of ε is the count's. Of several models, one is trained for each class."""
    facts = facts_for(name, None)
    mechanism: Any = METHODS[name].size_released(facts, Budget(delta, 2.0), models)
    event = mechanism.event(facts)
    counts = [leaf for leaf in leaves(event) if isinstance(leaf, PureDP) and leaf.epsilon == pytest.approx(0.1)]
    assert len(counts) == 1 and 1.98 < epsilon(event, delta) <= 2.0
    assert mechanism.target_classes == (3 if models == 3 else 0)
    with pytest.raises(ValueError, match="Expected facts under"):
        mechanism.event(replace(facts, relation=REPLACE))


@pytest.mark.parametrize("method", [GreedyCoordinate(), GreedyCoordinate(steps=7), Output(), OUTPUT], ids=repr)
def test_what_runs_after_a_size_was_released_costs_the_same_whatever_the_size_is(method: Method) -> None:
    facts = facts_for("greedy", None)
    mechanism: Any = method.size_released(facts, Budget(1e-5, 2.0), 1)
    sized = [replace(facts, public_size=size) for size in (2, 300, 10**6)]
    first, *others = [mechanism.made_for(each).event(each) for each in sized]
    assert others == [first] * 2
    if isinstance(method, GreedyCoordinate):
        assert set(leaves(first).values()) == {method.steps or 50}


@pytest.mark.parametrize(("sampling", "rows"), [("balls_and_bins", None), ("balls_and_bins", 7), ("rows", 7), ("poisson", 7)])
def test_no_size_that_may_be_released_refuses_a_batch(sampling: str, rows: int | None) -> None:
    """A refusal after the release would be one more output. Batches stay as they are stated, but for sizes that have no room for
    two of them in three: then they are larger than half of all."""
    facts = LinearObjective(Logistic(), 3, unit=PrivacyUnit(rows)).facts
    method = Gradient(sampling=sampling, expected_batch_size=90.0, epochs=2)
    for size in (1, 2, 13, 60, 89, 134, 135, 136, 1000):
        sized = replace(facts, public_size=size)
        batch = method._for_noisy(sized).expected_batch_size
        assert batch is not None
        whole = size * (7 if sampling == "rows" else 1)
        if sampling == "poisson" or whole >= 135:
            assert batch == 90
        else:
            assert whole / 2 < batch < 90
            method._for_noisy(sized).at(sized, Budget(1e-5, 2.0), 1, 1.0)
    assert method._for_noisy(facts) == method
    left_open = Gradient(sampling=sampling, epochs=2)
    assert left_open._for_noisy(replace(facts, public_size=10)) == left_open


def test_settings_left_open_follow_from_public_facts() -> None:
    """Bolt-on: 1/√n, or the largest that is allowed, 2/β. A last iterate: 1/β with the quadratic term's, radius 20 or the loss's
    own, and with a random stop one pass of batches of √n."""
    facts = replace(facts_for("bolt-on"), public_size=100)
    for delta in (0.0, 1e-5):
        output: Any = OUTPUT.calibrated(facts, Budget(delta, 2.0), 1)
        assert output.strong_convexity == 5.0
    bolt_on: Any = BoltOn().calibrated(facts, Budget(1e-5, 2.0), 1)
    assert bolt_on.learning_rate == pytest.approx(0.1)
    steep: Any = BoltOn().calibrated(replace(facts, smoothness=100.0), Budget(1e-5, 2.0), 1)
    assert steep.learning_rate == pytest.approx(0.02)
    for chosen in (BoltOn(strong_convexity=20.0), BoltOn(learning_rate=0.05), BoltOn(learning_rate=0.05, strong_convexity=2.0)):
        made: Any = chosen.calibrated(facts, Budget(1e-5, 2.0), 1)
        assert (made.learning_rate, made.strong_convexity) == (chosen.learning_rate, chosen.strong_convexity or 0.0)
    last: Any = LastIterate(strong_convexity=50.0, epochs=4, random_stop=False).calibrated(facts, Budget(1e-5, 2.0), 1)
    assert last.learning_rate == pytest.approx(1 / (facts.smoothness + 0.5))
    assert (last.radius, last.epochs, last.strong_convexity) == (20.0, 4, 50.0)
    said: Any = LastIterate(epochs=1, learning_rate=0.5, radius=7.0, batch_size=100).calibrated(facts, Budget(1e-5, 2.0), 1)
    assert (said.learning_rate, said.radius, said.batch_size, said.strong_convexity) == (0.5, 7.0, 100, 0.0)
    wide: Any = LastIterate(epochs=1).calibrated(replace(facts, radius=30.0), Budget(1e-5, 2.0), 1)
    assert wide.radius == 20.0
    for wrong, size, message in ((LastIterate(epochs=1, batch_size=101), 100, "at most"), (LastIterate(epochs=1), None, "size")):
        with pytest.raises(ValueError, match=message):
            wrong.calibrated(replace(facts, public_size=size), Budget(1e-5, 2.0), 1)
    ball: Any = LastIterate(epochs=1).calibrated(replace(facts, radius=3.0), Budget(1e-5, 2.0), 1)
    assert ball.radius == 3.0
    stopped: Any = LastIterate(random_stop=True).calibrated(facts, Budget(1e-5, 2.0), 1)
    assert (stopped.epochs, stopped.batch_size, stopped.random_stop) == (1, 10, True)
    by_rule: Any = LastIterate().calibrated(replace(facts, public_size=5000), Budget(1e-5, 2.0), 1)
    assert by_rule.epochs > 1 and by_rule.batch_size == math.ceil(5000 / by_rule.epochs)  # as many passes as batches


@pytest.mark.parametrize("name", ["bolt-on", "last iterate"])
def test_a_ball_holds_what_leaves_and_every_step_before_it(name: str) -> None:
    """Constants hold in the ball, and the charge for hidden steps counts its diameter: whatever noise was, the next step starts
    within it."""
    radius = 0.05
    objective = LinearObjective(SmoothedHinge(0.01), 2, data_norm=1.0, public_size=4, relation=REPLACE, radius=radius)
    method: Method = (
        BoltOn(epochs=3, batch_size=2, learning_rate=0.02) if name == "bolt-on" else LastIterate(epochs=3, batch_size=2)
    )
    mechanism = method.calibrated(objective.facts, Budget(1e-5, 2.0), 1)
    rate = mechanism.learning_rate  # pyright: ignore[reportAttributeAccessIssue]
    far = [np.array([30.0, -40.0])] * 6  # what noise may do
    source = Asked(answers=far if name == "last iterate" else ())
    channel = Channel.open(source)
    channel.charge(mechanism.event(objective.facts), mechanism.name)
    records = objective.records(np.tile([[0.6, 0.8]], (4, 1)), np.ones(4))
    theta, _ = mechanism.train(objective, records, channel)
    if name == "bolt-on":
        (question,) = source.questions
        assert np.linalg.norm(question.query) == pytest.approx(radius)
    else:
        steps = [np.linalg.norm(question.query) for question in source.questions]
        assert len(steps) == 6 and max(steps) <= radius + rate * 1.0 + 1e-12
        assert np.linalg.norm(theta) <= radius * (1 + 1e-12)


@pytest.mark.parametrize("name", ["output", "bolt-on", "objective", "accuracy first"])
def test_the_noise_that_is_told_is_the_noise_that_was_added(name: str) -> None:
    """The standard deviation in the trace, against what the source was asked for, but for the grid's share of a millionth."""
    objective = LinearObjective(
        SmoothedHinge(0.5), 2, data_norm=1.0, public_size=4, relation=REPLACE if name == "bolt-on" else ADD
    )
    method = replace(METHODS[name], batch_size=2) if isinstance(METHODS[name], BoltOn) else METHODS[name]
    if isinstance(method, AccuracyFirst):  # of one row with either label, half is the most that anybody gets right
        method = replace(method, held_out=(np.ones((2, 2)), np.array([-1.0, 1.0])))
    mechanism = method.calibrated(objective.facts, Budget(1e-5, 2.0), 1)
    source = Asked()
    channel = Channel.open(source)
    channel.charge(mechanism.event(objective.facts), mechanism.name)
    _, trace = mechanism.train(objective, objective.records(np.tile([[0.6, 0.8]], (4, 1)), np.ones(4)), channel)
    added = [question.noise * question.sensitivity for question in source.questions]
    if name == "accuracy first":  # the mean of releases, weighted by their precisions
        assert len(added) == trace["stopped_after"] == 5 and not trace["reached"]
        added = [1 / math.sqrt(sum(1 / std**2 for std in added))]
    told = trace["output_noise_std" if name == "objective" else "noise_std"]
    assert added == pytest.approx([told], rel=1e-5)


def test_each_of_several_models_by_pidp_sgd_is_claimed_at_its_share() -> None:
    """And makes so many times as many steps as there are records, one at the least."""
    facts = replace(facts_for("output"), public_size=40)
    several: Any = PublishedPidp(epochs=0.5).calibrated(facts, Budget(3e-5, 3.0), 3)
    one: Any = PublishedPidp(epochs=0.5).calibrated(facts, Budget(1e-5, 1.0), 1)
    assert several.mechanism.plan == one.plan
    assert (one.plan.steps, one.plan.epsilon, one.plan.delta) == (20, 1.0, 1e-5)
    shortest: Any = PublishedPidp(epochs=1e-3).calibrated(facts, Budget(1e-5, 1.0), 1)
    assert shortest.plan.steps == 1


UNBOUNDED = [
    (OutputPerturbation(budget=Budget(1e-5), strong_convexity=1.0, noise_multiplier=1.0), ("lipschitz", "smoothness")),
    (BoltOnPerturbation(budget=Budget(1e-5), learning_rate=0.1, noise_multiplier=1.0), ("lipschitz", "smoothness")),
    (
        LastIterateDescent(
            budget=Budget(1e-5), epochs=1, batch_size=1, learning_rate=0.1, radius=1.0, noise_multiplier=1.0, random_stop=True
        ),
        ("lipschitz", "smoothness"),
    ),
    (METHODS["accuracy first"].calibrated(facts_for("output"), Budget(1e-5, 2.0), 1), ("lipschitz", "smoothness")),
    (GreedyDescent(budget=Budget(1e-5), steps=1, noise_multiplier=1.0, public_size=9), ("lipschitz", "smoothness")),
    (FrankWolfeDescent(budget=Budget(1e-5), radius=1.0, steps=1, step_epsilon=1.0), ("lipschitz",)),
    (
        CoordinateDescent(budget=Budget(1e-5), epochs=1, clipping_norm=1.0, noise_multiplier=1.0, public_size=9),
        ("smoothness",),
    ),
]


@pytest.mark.parametrize(("mechanism", "needed"), UNBOUNDED, ids=lambda given: getattr(given, "name", ""))
def test_a_mechanism_has_no_event_for_a_loss_without_the_bounds_that_it_needs(mechanism: Any, needed: tuple[str, ...]) -> None:
    facts = facts_for("bolt-on")
    mechanism.event(facts)
    for name in needed:
        with pytest.raises(ValueError, match="Expected"):
            mechanism.event(replace(facts, **{name: math.inf}))


@pytest.mark.parametrize("models", [2, 3])
def test_accuracy_first_stops_one_model_alone(models: int) -> None:
    with pytest.raises(ValueError, match="stops one model"):
        METHODS["accuracy first"].calibrated(facts_for("output"), Budget(1e-5, 2.0), models)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ("fixed_size", "its share tells how many records are"),
        ("truncated_poisson", "what is charged depends on it"),
        ("rows", "persons of several rows"),
    ],
)
def test_samplings_that_need_a_public_fact_have_no_released_size(sampling: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gradient(sampling=sampling, expected_batch_size=9.0).size_released(facts_for("output", None), Budget(1e-5, 2.0), 1)


def test_importance_sampling_of_a_stated_batch_that_is_too_large_is_refused() -> None:
    facts = replace(facts_for("output"), public_size=100)
    with pytest.raises(ValueError, match="nothing is left of sampling"):
        Gradient(sampling="importance", expected_batch_size=90.0, epochs=2).calibrated(facts, Budget(1e-5, 2.0), 1)


def test_a_risk_is_kept_without_a_delta() -> None:
    """Of a pure mechanism: an advantage of 0.1 is that of ε with (e^ε − 1)/(e^ε + 1) = 0.1."""
    task = Task(loss=Logistic(), features=3, classes=2, public_size=100)
    budget = OUTPUT.budget(task, 0.0, Risk(advantage=0.1))
    assert budget.delta == 0.0
    assert budget.epsilon == pytest.approx(math.log(1.1 / 0.9), rel=1e-3)


def test_importance_sampling_is_made_for_the_least_size_that_may_be_released_before_the_charge() -> None:
    made: list[int | None] = []
    objective = LinearObjective(Logistic(), 3)
    mechanism: Any = Gradient(sampling="importance", epochs=2).size_released(objective.facts, Budget(1e-5, 2.0), 1)
    watched = replace(mechanism, make=lambda facts: (made.append(facts.public_size), mechanism.make(facts))[1])
    watched.refuse(objective, 50)
    assert made == [1]
