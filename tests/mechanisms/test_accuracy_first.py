"""Accuracy first: the law of its path, what it releases and charges, when it stops, and what breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest

from dperm._random import Randomness
from dperm.audit import Training, replay
from dperm.estimators import DPLogisticRegression, DPRidge, model_from_json, model_to_json
from dperm.mechanisms import AccuracyFirst, AskRecords, Budget, GradualRelease, LookAtOthers
from dperm.mechanisms.minimiser import solve
from dperm.objectives import Logistic, Task
from dperm.privacy import AboveThreshold, Composed, Gaussian, PureDP, Relation, SelfComposed, epsilon, stopping_path
from dperm.privacy.events import leaves
from dperm.release import Channel, FallingNoise, Noise, PureNoise, SpendLog, SystemSource, UnpaidReleaseError
from dperm.release.threshold import ThresholdTest
from helpers.said import flat

BUDGET = Budget(1e-5, 4.0)
TASK = Task(loss=Logistic(), features=3, classes=2, public_size=2000, intercept_scale=0.5)
RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(2000, 3)) / 2
SIGNS = np.where(ROWS[:, 0] + 0.1 * RNG.normal(size=2000) > 0, 1.0, -1.0)
HELD = (ROWS[:500], SIGNS[:500])


def never(**changes: Any) -> GradualRelease:
    """A path that runs to its end: of a row that is held out with either label, half is the most that anybody gets right."""
    either = (ROWS[[0, 0]], np.array([-1.0, 1.0]))
    mechanism: Any = AccuracyFirst(accuracy=0.999, held_out=either, stops=6, **changes).build(TASK, BUDGET)[0]
    return mechanism


class Kept(LookAtOthers):
    """Looks at what is released, and goes on."""

    def test(self, objective: Any, records: Any, channel: Any, question: Any) -> Any:
        self.seen: list[Any]
        object.__setattr__(self, "seen", [])
        return lambda theta: bool(self.seen.append(theta.copy()))  # type: ignore[func-returns-value]


@pytest.mark.slow
def test_the_joint_law_of_the_releases_is_a_brownian_path() -> None:
    mechanism = never(strong_convexity=30.0)
    watched = Kept(goal="accuracy", target=0.9, rows=HELD[0], targets=HELD[1])
    mechanism = replace(mechanism, stopping=watched)
    problem = TASK.objective()
    records = problem.records(ROWS, SIGNS)
    steep = problem.with_strong_convexity(30.0)
    centre = solve(steep, records, 0.0, mechanism.residual(steep.facts)).theta
    runs = []
    for _ in range(400):
        mechanism.train(problem, records, paid(mechanism, problem))
        runs.append(np.stack(watched.seen) - centre)
    noise = np.array(runs)  # (runs, stops, p)
    spread = mechanism.sensitivity(problem.facts) / np.array(mechanism.signals)
    units = noise / spread[:, None]
    found = np.einsum("rip,rjp->ij", units, units) / (units.shape[0] * units.shape[2])
    signals = np.array(mechanism.signals)
    expected = np.minimum.outer(signals, signals) / np.maximum.outer(signals, signals)  # W(t) has covariance min(s, t)… in 1/μ²
    assert np.abs(found - expected).max() < 5 * np.sqrt(2 / (units.shape[0] * units.shape[2]))


def paid(mechanism: GradualRelease, problem: Any) -> Channel:
    channel = Channel(SystemSource(Randomness.from_system()))
    channel.charge(mechanism.event(problem.facts), mechanism.name)
    return channel


def test_a_path_costs_what_its_last_point_costs_alone() -> None:
    mechanism = never()
    event = mechanism.event(TASK.objective().facts)
    for stop in (1, 3, 6):
        parts = [leaf for leaf in leaves(event) if isinstance(leaf, Gaussian)]
        assert len(parts) == 6
        first = replace(mechanism, signals=mechanism.signals[:stop], levels=mechanism.levels[:stop])
        alone = epsilon(Gaussian(1 / mechanism.signals[stop - 1]), 1e-5)
        assert epsilon(first.event(TASK.objective().facts), 1e-5) == pytest.approx(alone, rel=1e-6)


@pytest.mark.fast_cases("None")
@pytest.mark.parametrize("held_out", [HELD, None])
def test_it_stops_where_it_is_good_enough_and_says_what_that_took(held_out: Any) -> None:
    rows, labels = ROWS, np.where(SIGNS > 0, "yes", "no")
    given = None if held_out is None else (held_out[0], np.where(held_out[1] > 0, "yes", "no"))
    method = AccuracyFirst(accuracy=0.85, held_out=given)
    model = DPLogisticRegression(epsilon=8.0, public_size=2000, classes=["no", "yes"], mechanism=method).fit(rows, labels)
    certificate = model.certificate_
    certificate.verify()
    assert model.trace_["reached"] and model.score(rows, labels) > 0.8
    assert 1 <= model.trace_["stopped_after"] < 40
    assert certificate.ex_post.epsilon < certificate.epsilon <= 8.0
    assert certificate.status == "certified" and "ex post" in flat(certificate)
    asked = [leaf for leaf in leaves(certificate.event) if isinstance(leaf, AboveThreshold)]
    assert [leaf.epsilon for leaf in asked] == ([] if given else [pytest.approx(0.8)])
    assert [charge.event for charge in SpendLog.current().charges()] == [certificate.event]  # the whole path, whatever was used
    again, _ = model_from_json(model_to_json(model))
    assert again.certificate_ == certificate and np.array_equal(again.predict(rows), model.predict(rows))


def test_what_is_easy_costs_less_than_what_is_hard() -> None:
    spent = []
    for accuracy in (0.6, 0.9):
        method = AccuracyFirst(accuracy=accuracy, held_out=HELD)
        found = [
            DPLogisticRegression(epsilon=8.0, public_size=2000, classes=[-1, 1], mechanism=method)
            .fit(ROWS, SIGNS)
            .certificate_.ex_post.epsilon
            for _ in range(3)
        ]
        spent.append(float(np.median(found)))
    assert spent[0] < 0.7 * spent[1]


def test_what_decides_is_named() -> None:
    problem = TASK.objective()
    mechanism = never()
    said = flat(mechanism.certificate(problem.facts, Channel.open().provenance))
    assert "held-out records that models are measured on are public" in said and "stopping rule" not in said
    mine = replace(mechanism, stopping=Unasked(goal="accuracy", target=0.6, rows=HELD[0], targets=HELD[1]))
    assert "stopping rule" in flat(mine.certificate(problem.facts, Channel.open().provenance))
    asks = AccuracyFirst(accuracy=0.8, stops=6).build(TASK, BUDGET)[0]
    assert "held-out records" not in flat(asks.certificate(problem.facts, Channel.open().provenance))


def test_a_target_that_is_not_reached_ends_the_path() -> None:
    mechanism = never()
    problem = TASK.objective()
    release = mechanism.release(problem, problem.records(ROWS, SIGNS), Channel.open())
    assert release.trace["reached"] is False and release.trace["stopped_after"] == 6
    assert release.certificate.ex_post is not None and release.certificate.ex_post.epsilon == pytest.approx(4.0, rel=1e-4)


def test_a_loss_of_regression_is_a_target_too() -> None:
    targets = np.clip(ROWS[:, 0], -1, 1)
    method = AccuracyFirst(loss=0.05)
    model = DPRidge(epsilon=8.0, public_size=2000, target_bound=1.0, mechanism=method).fit(ROWS, targets)
    assert model.trace_["reached"] in (True, False) and model.certificate_.ex_post is not None


# The question that is charged


class Door:
    """Noise of a channel that is not charged."""

    source = SystemSource(Randomness.from_system())

    def release(self, query: Any, noise: Noise) -> Any:
        return self.source.noisy(query, replace(noise, step=2.0**-20))


@pytest.mark.slow
def test_above_threshold_is_private_at_its_epsilon() -> None:
    """Both worlds' chances of each sequence of answers."""
    event, door, runs = AboveThreshold(1.0, queries=3), Door(), 6000
    counts = np.zeros((2, 4))
    for world, shift in enumerate((0.0, 1.0)):
        for _ in range(runs):
            test = ThresholdTest(door, event, 1.0)  # type: ignore[arg-type]
            answers = (test.above(query) for query in (-2.0 + shift, -2.0 + shift, 1.0 - shift))
            counts[world, next((place for place, answer in enumerate(answers) if answer), 3)] += 1
    rates = counts / runs
    error = 5 * np.sqrt(rates.max(axis=0) / runs)
    assert np.all(rates[0] <= np.e * rates[1] + error) and np.all(rates[1] <= np.e * rates[0] + error)
    assert np.abs(np.log(rates[0] / rates[1])).max() > 0.1  # the worlds differ


def test_after_yes_there_is_no_other_question_and_unpaid_ones_are_refused() -> None:
    event = AboveThreshold(5.0, queries=2)
    channel = Channel(SystemSource(Randomness.from_system()))
    channel.charge(event, "question")
    test = ThresholdTest(channel, event, 1.0)
    assert test.above(1e6)
    with pytest.raises(UnpaidReleaseError, match="said yes"):
        test.above(0.0)
    with pytest.raises(UnpaidReleaseError, match="pure release"):
        channel.release(np.zeros(1), PureNoise(1.0, event.rate))  # what is compared is not paid for as a release
    channel = Channel(SystemSource(Randomness.from_system()))
    channel.charge(event, "question")
    test = ThresholdTest(channel, event, 1.0)
    assert not test.above(-1e6) and not test.above(-1e6)
    with pytest.raises(UnpaidReleaseError):
        test.above(-1e6)


# What breaks it


class Unasked(LookAtOthers):
    """Asks the records without paying."""

    def test(self, objective: Any, records: Any, channel: Any, question: Any) -> Any:
        return lambda theta: self.excess(objective, records, theta) >= 0


class Halved(AskRecords):
    """A question whose sensitivity is stated as a quarter."""

    def sensitivity(self, relation: Relation) -> float:
        return super().sensitivity(relation) / 4


def small(stopping: Any) -> Any:
    task = replace(TASK, public_size=60)
    mechanism: Any = AccuracyFirst(accuracy=0.6, check_share=0.3, stops=8, strong_convexity=1.0).build(task, BUDGET)[0]
    return Training.of_mechanism(replace(mechanism, stopping=stopping), task.objective())


def test_planted_defects_are_found() -> None:
    goal: Any = {"goal": "accuracy", "target": 0.6}
    found = replay(small(Halved(**goal, epsilon=1.2)), both_ways=False)
    assert found.refuted and "movement" in found.details["kinds"]
    assert replay(small(AskRecords(**goal, epsilon=1.2)), both_ways=False).verdict == "consistent"
    unasked = (replay(small(Unasked(**goal, rows=HELD[0], targets=HELD[1])), both_ways=False) for _ in range(6))
    assert any(each.refuted for each in unasked)  # neighbours stop elsewhere though all releases are the same


class Boasts(AccuracyFirst):
    """A stranger's method, with levels of its own making."""

    key = "boasts"

    def calibrated(self, facts: Any, budget: Any, models: int) -> Any:
        made: Any = super().calibrated(facts, budget, models)
        return replace(made, levels=tuple(1e-3 * (stop + 1) for stop in range(len(made.levels))))


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_levels_that_do_not_hold_are_refused_before_a_charge(delta: float) -> None:
    method = Boasts(accuracy=0.6, held_out=HELD, stops=6)
    with pytest.raises(ValueError, match="ex-post statement needs"):
        DPLogisticRegression(epsilon=3.0, delta=delta, public_size=2000, classes=[-1, 1], mechanism=method).fit(ROWS, SIGNS)
    assert SpendLog.current().charges() == []


def test_a_claim_states_no_stop_and_small_deltas_hold() -> None:
    method = AccuracyFirst(accuracy=0.6, stops=6)
    for delta in (1e-12, 1e-9):
        certificate = DPLogisticRegression(epsilon=3.0, delta=delta, public_size=2000, classes=[-1, 1], mechanism=method)
        certificate.fit(ROWS, SIGNS).certificate_.verify()
    claimed = certificate.certificate_.only_claimed("ranges were read off the data")
    assert claimed.ex_post is None and "ex post" not in flat(claimed)


def test_losses_of_held_out_records_count_as_they_are() -> None:
    """Half of the losses are far above the target: cut at a few targets, their mean would be below it."""
    problem = TASK.objective()
    theta = np.array([4.0, 0.0, 0.0, 0.0])
    others = LookAtOthers(goal="loss", target=0.5, rows=HELD[0], targets=np.where(np.arange(500) % 2, 1.0, -1.0))
    enough = others.test(problem, None, None, None)  # type: ignore[arg-type]
    held = problem.records(others.rows, others.targets)
    assert problem.evaluate(theta, held)[0] / 500 > 0.8 and not enough(theta)
    asked = AskRecords(goal="loss", target=0.1, epsilon=1.0)
    assert asked.sensitivity(Relation.ADD_OR_REMOVE_ONE) == pytest.approx(0.4)
    assert asked.sensitivity(Relation.REPLACE_ONE) == pytest.approx(0.5)


# What cannot be


def test_columns_of_another_order_and_what_is_no_pair_are_refused() -> None:
    frame = pandas.DataFrame(ROWS, columns=["a", "b", "c"])
    given = (frame[["c", "b", "a"]], SIGNS)
    with pytest.raises(ValueError, match="held-out records: The feature names"):
        model = DPLogisticRegression(public_size=2000, classes=[-1, 1], mechanism=AccuracyFirst(accuracy=0.8, held_out=given))
        model.fit(frame, SIGNS)
    with pytest.raises(ValueError, match="feature names"):
        DPLogisticRegression(classes=[-1, 1]).epsilon_path(frame, SIGNS, held_out=given)
    with pytest.raises(TypeError, match="held_out as"):
        AccuracyFirst(accuracy=0.8, held_out=ROWS)  # type: ignore[arg-type]
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize(
    ("method", "task", "message"),
    [
        (AccuracyFirst(), TASK, "accuracy=...\\) or"),
        (AccuracyFirst(accuracy=0.8), replace(TASK, public_size=None), "public_size"),
        (AccuracyFirst(accuracy=0.8), replace(TASK, classes=3), "two classes"),
    ],
)
def test_what_cannot_be_built_is_refused(method: AccuracyFirst, task: Task, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        method.build(task, BUDGET)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accuracy": 1.2}, "target|accuracy"),
        ({"accuracy": 0.8, "loss": 0.1}, "got both"),
        ({"accuracy": 0.8, "stops": 1}, "stops"),
        ({"accuracy": 0.8, "span": 1.0}, "span above 1"),
        ({"accuracy": 0.8, "check_share": 0.0}, "check_share"),
        ({"accuracy": 0.8, "held_out": (ROWS[:3, :2], ["no", "yes", "no"])}, "held-out records: X has 2 features"),
        ({"accuracy": 0.8, "held_out": (ROWS[:3], ["no", "yes", "maybe"])}, "held-out labels"),
        ({"accuracy": 0.8, "held_out": (ROWS[:0], [])}, "held-out records: Found array with 0 sample"),
        ({"accuracy": 0.8, "held_out": (ROWS[:3] * np.nan, ["no", "yes", "no"])}, "held-out records: Input X contains NaN"),
        ({"accuracy": 0.8, "stops": 6, "held_out": (ROWS[:3], ["no", "no", "no"])}, "held-out records of both classes"),
        ({"accuracy": 0.8, "held_out": (ROWS[:3], [True, False, True])}, "held-out labels among .'no', 'yes'., got False"),
        ({"accuracy": 90}, "accuracy"),
    ],
)
def test_bad_settings_are_refused_before_a_charge(settings: dict[str, Any], message: str) -> None:
    labels = np.where(SIGNS > 0, "yes", "no")
    with pytest.raises(ValueError, match=message):
        model = DPLogisticRegression(public_size=2000, classes=["no", "yes"], mechanism=AccuracyFirst(**settings))
        model.fit(ROWS, labels)
    assert SpendLog.current().charges() == []


# Pure privacy


@pytest.mark.parametrize("held_out", [HELD, None])
def test_with_delta_0_a_stop_costs_the_epsilon_of_its_release(held_out: Any) -> None:
    method = AccuracyFirst(accuracy=0.8, held_out=held_out)
    model = DPLogisticRegression(epsilon=30.0, delta=0.0, public_size=2000, classes=[-1, 1], mechanism=method).fit(ROWS, SIGNS)
    certificate = model.certificate_
    certificate.verify()
    asked = 0.0 if held_out else 3.0
    assert certificate.delta == 0 and certificate.epsilon == pytest.approx(30.0)
    assert leaves(certificate.event) == leaves(
        Composed((PureDP(30.0 - asked), *([AboveThreshold(3.0, queries=40)] if asked else [])))
    )
    stated = certificate.ex_post
    assert model.trace_["reached"] and model.score(ROWS, SIGNS) > 0.75
    assert stated.epsilon == stated.signals[stated.stop - 1] + asked < 0.5 * certificate.epsilon
    again, _ = model_from_json(model_to_json(model))
    assert again.certificate_ == certificate
    with pytest.raises(ValueError, match="ex-post statement needs"):
        replace(certificate, ex_post=replace(stated, epsilons=[0.9 * value for value in stated.epsilons])).verify()


@pytest.mark.slow
def test_ends_of_a_pure_path_are_private_at_their_epsilon() -> None:
    """One number, two worlds one sensitivity apart, a rule that stops at large releases: chances of ending at k in a set."""
    signals, runs = (0.25, 0.5, 1.0, 1.5), 3000
    counts = np.zeros((2, 4, 6))
    for world, query in enumerate((0.0, 1.0)):
        channel = Channel(SystemSource(Randomness.from_system()))
        channel.charge(SelfComposed(PureDP(signals[-1]), runs), "paths")
        for _ in range(runs):
            path = channel.release(np.array([query]), FallingNoise(1.0, signals))[:, 0]
            stop = next((place for place, value in enumerate(path) if value > 1.0), 3)
            counts[world, stop, int(np.digitize(path[stop], [-0.5, 0.5, 1.2, 1.8, 3.0]))] += 1
    rates = counts / runs
    factor = np.exp(signals)[:, None]
    for one, other in (rates, rates[::-1]):
        error = 5 * np.sqrt((one + factor**2 * other) / runs) + 10 / runs  # of the difference
        assert np.all(one <= factor * other + error)
    assert np.any(rates[0] > 1.2 * rates[1] + 5 * np.sqrt(rates.max(axis=0) / runs))  # the worlds differ


class Jumps(GradualRelease):
    """A path with an eighth of the noise that was charged."""

    def _releases(self, theta: Any, sensitivity: float, channel: Any) -> Any:
        return channel.release(theta, FallingNoise(sensitivity / 8, self.signals))


def test_pure_paths_are_replayed() -> None:
    task = replace(TASK, public_size=60)
    budget = Budget(0.0, 4.0)
    mechanism: Any = AccuracyFirst(accuracy=0.6, stops=8, strong_convexity=1.0).build(task, budget)[0]
    assert replay(Training.of_mechanism(mechanism, task.objective()), both_ways=False).verdict == "consistent"
    found = replay(Training.of_mechanism(Jumps(**vars(mechanism)), task.objective()), both_ways=False)
    assert found.refuted and "movement" in found.details["kinds"]


def test_a_pure_path_that_doubles_do_not_hold_is_refused_before_a_charge() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        DPLogisticRegression(
            epsilon=1e-9, delta=0.0, public_size=2000, classes=[-1, 1], mechanism=AccuracyFirst(accuracy=0.8, span=1e6)
        ).fit(ROWS, SIGNS)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("loss", [1e-201, 1e201, 1e300])
def test_a_target_that_no_release_can_be_asked_about_is_refused_before_a_charge(loss: float) -> None:
    with pytest.raises(ValueError, match="Expected a sensitivity between"):
        DPRidge(public_size=2000, mechanism=AccuracyFirst(loss=loss, stops=6)).fit(ROWS, SIGNS)
    assert SpendLog.current().charges() == []


def test_a_pure_path_of_few_levels_far_apart_is_refused_before_a_charge() -> None:
    """Its noise is of fifty million parts, and would be drawn for minutes; 40 levels over the usual span take 140."""
    settings: dict[str, Any] = {"delta": 0.0, "public_size": 2000, "classes": [-1, 1]}
    with pytest.raises(ValueError, match="more stops or a smaller span"):
        DPLogisticRegression(mechanism=AccuracyFirst(accuracy=0.8, span=5000.0, stops=2), **settings).fit(ROWS, SIGNS)
    assert SpendLog.current().charges() == []
    DPLogisticRegression(mechanism=AccuracyFirst(accuracy=0.8, span=200.0, stops=40), **settings).fit(ROWS, SIGNS)
    assert len(SpendLog.current().charges()) == 1


def test_paths_are_those_of_the_budget() -> None:
    signals, levels = stopping_path(4.0, 1e-5, 6, 64.0)
    assert never().signals == signals and never().levels == levels


def _pure(ratios: list[float], features: int) -> tuple[GradualRelease, Any]:
    """A path at δ = 0 whose scales fall by these ratios, and public facts with this number of features."""
    task = Task(loss=Logistic(), features=features, classes=2, public_size=2000)
    signals = tuple(1e-3 * float(part) for part in np.cumprod([1.0, *ratios]))
    stopping = LookAtOthers(goal="accuracy", target=0.9, rows=np.zeros((2, features)), targets=np.array([-1.0, 1.0]))
    made = GradualRelease(
        budget=Budget(0.0, signals[-1]), strong_convexity=1.0, signals=signals, levels=signals, stopping=stopping
    )
    return made, task.objective().facts


@pytest.mark.parametrize(
    ("ratios", "features", "parts"),
    [
        ([500.0], 3, 2 * (500**2 - 1)),  # (p + 1)/2 parts for each unit of the ratio's square beyond 1
        ([525.0], 3, 2 * (525**2 - 1)),
        ([1.1] * 20, 250_000, 250_001 / 2 * 20 * 0.21),
        ([1.1] * 20, 245_000, 245_001 / 2 * 20 * 0.21),
    ],
)
def test_a_pure_path_of_too_many_parts_is_refused_before_the_charge(ratios: list[float], features: int, parts: float) -> None:
    mechanism, facts = _pure(ratios, features)
    assert facts.dimension == features
    if parts <= 524_288:
        assert mechanism.event(facts).to_dict()["type"] == "Composed"
        return
    with pytest.raises(ValueError, match=f"noise is made of {parts:.2g}".replace("+", r"\+")):
        mechanism.event(facts)


def test_a_question_that_no_grid_holds_is_refused_before_the_charge() -> None:
    asked = replace(never(), stopping=AskRecords(goal="loss", target=1e195, epsilon=1e-57))
    with pytest.raises(ValueError, match="with noise of"):
        asked.event(TASK.objective().facts)
