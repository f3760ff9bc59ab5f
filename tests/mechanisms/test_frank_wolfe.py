"""Frank–Wolfe on the L1 ball: the law of its choices, its steps against plain ones, what it costs, and what breaks it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.stats import chisquare
from sklearn.base import clone

from dperm._exact import Digits, largest
from dperm._random import NoiseStream, Randomness, _hopeful, _Keystream, _with_gumbel
from dperm.audit import Training, replay
from dperm.audit.recording import Recorder
from dperm.estimators import DPLasso, DPLogisticRegression, DPRidge, model_from_json, model_to_json
from dperm.mechanisms import Budget, FrankWolfe, FrankWolfeDescent
from dperm.objectives import Logistic, Task
from dperm.privacy import ExponentialMechanism, Relation, SelfComposed, epsilon
from dperm.release import Channel, ExponentialChoice, Noise, PureNoise, SpendLog, SystemSource, UnpaidReleaseError
from helpers.asked import smaller

SURE = 1e-9
BUDGET = Budget(1e-5, 4.0)
TASK = Task(loss=Logistic(), features=3, classes=2, public_size=60, intercept_scale=0.5)
RNG = np.random.default_rng(0)


# The exponential mechanism


@pytest.mark.parametrize("scale", [0.2, 1.0, 30.0])
def test_choices_have_the_law_of_the_exponential_mechanism(scale: float) -> None:
    scores = np.array([0.0, 0.5, 0.5, 1.0, -0.3])
    stream = NoiseStream(bytes([1]) * 32)
    counts = np.bincount([stream.chosen(scores, scale) for _ in range(6000)], minlength=5)
    chances = np.exp(scores / scale) / np.exp(scores / scale).sum()
    kept = 6000 * chances > 5
    found, expected = counts[kept], 6000 * chances[kept]
    assert chisquare(found, expected * found.sum() / expected.sum()).pvalue > SURE
    assert counts[~kept].sum() < 30


def test_the_largest_is_found_from_all_the_digits_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(2).normal(size=12)
    usual = NoiseStream(bytes([2]) * 32)
    expected = [usual.chosen(scores, 1.0) for _ in range(40)]
    again = NoiseStream(bytes([2]) * 32)
    # with functions that know nothing every candidate is a contender
    monkeypatch.setattr(np, "log1p", lambda values: np.full_like(values, np.nan))
    assert [again.chosen(scores, 1.0) for _ in range(40)] == expected
    # the same digits but for the 65th: the smaller number has the larger noise
    first, second = Digits(1 << 63, 64, lambda bits: 7), Digits(1 << 63, 64, lambda bits: 5)
    assert largest([0.0, 0.0], [first, second], 1.0) == 1


@pytest.mark.parametrize("spread", [0.0, 0.3, 3.0, 30.0, 300.0])
def test_nobody_who_could_be_the_largest_is_left_out(spread: float) -> None:
    rng = np.random.default_rng(4)
    for key in range(40):
        scores = spread * rng.normal(size=500)
        words = _Keystream(bytes([key]) * 32).words(500)
        values, _ = _with_gumbel(scores, 1.0, words)
        assert NoiseStream(bytes([key]) * 32).chosen(scores, 1.0) == values.argmax()
        assert values.argmax() in _hopeful(scores, 1.0, words)
    few = _hopeful(np.zeros(100_000), 1.0, _Keystream(bytes(32)).words(100_000))
    assert len(few) < 100
    unknown = np.array([0, 1 << 63, 1 << 62], dtype=np.uint64)  # of the first, no digit is known
    assert 0 in _hopeful(np.zeros(3), 1.0, unknown)


def test_ties_and_far_scores() -> None:
    stream = NoiseStream(bytes([3]) * 32)
    drawn = np.array([stream.chosen(np.zeros(4), 1.0) for _ in range(2000)])
    assert chisquare(np.bincount(drawn, minlength=4)).pvalue > SURE
    assert {stream.chosen(np.array([0.0, 1e6, -1e6]), 1.0) for _ in range(50)} == {1}


def test_choices_are_paid_for_one_by_one() -> None:
    channel = Channel(SystemSource(Randomness.from_system()))
    channel.charge(SelfComposed(ExponentialMechanism(0.5), 2), "choices")
    for _ in range(2):
        assert channel.release(np.array([0.0, 100.0]), ExponentialChoice(1.0, 0.5)) in (0, 1)
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.array([0.0, 1.0]), ExponentialChoice(1.0, 0.5))
    channel = Channel(SystemSource(Randomness.from_system()))
    channel.charge(ExponentialMechanism(0.5), "a choice")
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.array([0.0, 1.0]), ExponentialChoice(1.0, 0.6))
    with pytest.raises(UnpaidReleaseError):
        channel.release(np.zeros(1), PureNoise(1.0, 0.5))


# The descent


def test_steps_are_those_of_frank_and_wolfe() -> None:
    """With hardly any noise: the linear minimiser over the ball, and steps of 2/(t + 2)."""
    rows = RNG.normal(size=(200, 3)) / 3
    signs = np.sign(rows[:, 0] - 0.5 * rows[:, 1])
    objective = replace(TASK, public_size=200).objective()
    records = objective.records(rows, signs)
    mechanism = FrankWolfeDescent(budget=Budget(1e-5), radius=4.0, steps=25, step_epsilon=1e6)
    channel = Channel(SystemSource(Randomness.from_system()))
    channel.charge(mechanism.event(objective.facts), "descent")
    theta, trace = mechanism.train(objective, records, channel)
    mine = np.zeros(4)
    for step in range(25):
        gradient = objective.evaluate(mine, records)[1]
        place = int(np.abs(gradient).argmax())
        mine *= 1 - 2 / (step + 2)
        mine[place] -= 2 / (step + 2) * 4.0 * np.sign(gradient[place])
    assert theta == pytest.approx(mine) and np.abs(theta).sum() <= 4.0 * (1 + 1e-12)
    assert trace == {"steps": 25, "non_zero": int(np.count_nonzero(mine))}


def test_what_it_costs_is_less_than_by_concentrated_privacy() -> None:
    mechanism, objective = FrankWolfe(radius=2.0, steps=50).build(TASK, BUDGET)
    event = mechanism.event(objective.facts)
    (leaf,) = [event.event] if isinstance(event, SelfComposed) else []
    assert isinstance(leaf, ExponentialMechanism) and leaf.relation is Relation.ADD_OR_REMOVE_ONE
    rho = 50 * leaf.epsilon**2 / 8
    spent = epsilon(event, 1e-5)
    assert 3.99 < spent <= 4.0
    assert spent < rho + 2 * np.sqrt(rho * np.log(1e5))  # the usual conversion is looser


@pytest.mark.parametrize("sparse", [False, True])
def test_it_finds_the_few_features_that_matter(sparse: bool) -> None:
    rows = (RNG.random((20_000, 100)) < 0.03) / 3.0
    labels = rows[:, 5] - rows[:, 17] + 0.02 * RNG.normal(size=20_000) > 0
    given = sp.csr_array(rows) if sparse else rows
    model = DPLogisticRegression(
        epsilon=4.0, classes=[False, True], fit_intercept=False, mechanism=FrankWolfe(radius=20.0, steps=20)
    ).fit(given, labels)
    assert model.coef_[0, 5] > 0 > model.coef_[0, 17]
    assert np.count_nonzero(model.coef_) <= 20 and np.abs(model.coef_).sum() <= 20.0 * (1 + 1e-12)
    assert model.certificate_.status == "certified" and 3.9 < model.certificate_.epsilon <= 4.0
    model.certificate_.verify()
    again, _ = model_from_json(model_to_json(model))
    assert np.array_equal(again.coef_, model.coef_) and again.mechanism == model.mechanism


def test_steps_by_rule_grow_with_records_and_epsilon() -> None:
    def steps(size: int, target: float) -> int:
        made: Any = FrankWolfe(radius=5.0).build(replace(TASK, public_size=size), Budget(1e-5, target))[0]
        return made.steps

    assert steps(1000, 1.0) < steps(10_000, 1.0) <= steps(10_000, 4.0) <= 2000
    unknown: Any = FrankWolfe(radius=5.0).build(replace(TASK, public_size=None), BUDGET)[0]
    assert unknown.steps == 50


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("target", [0.5, 4.0])
def test_steps_by_rule_at_delta_0_balance_gain_and_noise(relation: Relation, target: float) -> None:
    """What is left to gain after T steps, 4βr²n/T, is the noise of a choice at the ε₀ that the budget leaves to each step."""
    task = replace(TASK, relation=relation, public_size=3000)
    mechanism, objective = FrankWolfe(radius=5.0).build(task, Budget(0.0, target))
    assert isinstance(mechanism, FrankWolfeDescent)
    facts = objective.facts
    gain = 4 * facts.smoothness * 5.0**2 * 3000 / mechanism.steps
    moved = 5.0 * facts.lipschitz * (1 if relation is Relation.ADD_OR_REMOVE_ONE else 2)
    noise = 2 * moved * np.log(2 * facts.dimension) / mechanism.step_epsilon
    assert mechanism.steps > 5
    assert gain / noise == pytest.approx(1.0, rel=1.1 / mechanism.steps)
    assert target * (1 - 1e-4) < mechanism.steps * mechanism.step_epsilon <= target  # pure ε-DP adds up


@pytest.mark.parametrize("classes", [[False, True], [0, 1, 2]])
def test_it_trains_at_delta_0_through_the_front_door(classes: list[Any]) -> None:
    rows = RNG.normal(size=(60, 3)) / 4
    labels = np.array(classes)[np.arange(60) % len(classes)]
    model = DPLogisticRegression(epsilon=3.0, delta=0.0, classes=classes, mechanism="frank-wolfe", public_size=60).fit(
        rows, labels
    )
    certificate = model.certificate_
    assert (certificate.status, certificate.delta) == ("certified", 0.0)
    assert 2.999 < certificate.epsilon <= 3.0
    certificate.verify()


def test_lasso_is_ridge_on_the_l1_ball() -> None:
    rows = RNG.normal(size=(4000, 20)) / 5
    targets = 2 * rows[:, 3] + 0.1 * RNG.normal(size=4000)
    model = DPLasso(epsilon=4.0, radius=2.0, target_bound=2.0, public_size=4000, fit_intercept=False).fit(rows, targets)
    assert model.score(rows, targets) > 0.3 and np.abs(model.coef_).argmax() == 3
    assert np.abs(model.coef_).sum() <= 2.0 * (1 + 1e-12) and model.certificate_.epsilon <= 4.0
    again, _ = model_from_json(model_to_json(model))
    assert type(again) is DPLasso and np.array_equal(again.predict(rows), model.predict(rows))
    assert clone(model).set_params(radius=3.0, steps=7).mechanism == FrankWolfe(radius=3.0, steps=7)


# What breaks it


class Laplace(FrankWolfeDescent):
    """The paper's noise for a step, charged as an exponential mechanism of this ε: a quarter of what it takes."""

    def train(self, objective: Any, records: Any, channel: Any) -> Any:
        class Door:
            def release(self, scores: Any, noise: ExponentialChoice) -> int:
                return channel.release(scores, smaller(noise, 1 / 4))

        return super().train(objective, records, Door())  # type: ignore[arg-type]


class Sharper(SystemSource):
    """Choices with a third of the noise."""

    def noisy(self, query: Any, noise: Noise) -> Any:
        return super().noisy(query, smaller(noise, 1 / 3))


def test_planted_defects_are_found() -> None:
    mechanism, objective = FrankWolfe(radius=2.0, steps=6).build(TASK, BUDGET)
    found = replay(Training.of_mechanism(Laplace(**vars(mechanism)), objective))
    assert found.refuted and "movement" in found.details["kinds"]
    more = FrankWolfeDescent(**(vars(mechanism) | {"steps": 7}))

    class Longer(FrankWolfeDescent):
        def event(self, facts: Any) -> Any:
            return mechanism.event(facts)

    found = replay(Training.of_mechanism(Longer(**vars(more)), objective))
    assert found.refuted and "unpaid" in found.details["kinds"]


def test_choices_that_are_too_good_are_found() -> None:
    from dperm.audit.noise import NoiseSeen, noise_findings

    scores = np.linspace(0, 5, 8)
    for source, refuted in ((SystemSource, False), (Sharper, True)):
        recorder = Recorder(source(Randomness.from_system()))
        for _ in range(400):
            recorder.noisy(scores, ExponentialChoice(1.0, 0.8, step=2.0**-20))
        findings = noise_findings([NoiseSeen.of(recorder.recording)])
        assert bool(findings) == refuted, findings


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ({"radius": 0.0}, {}, "radius"),
        ({"radius": -1.0}, {}, "radius"),
        ({"steps": 0}, {}, "steps"),
        ({"steps": 5}, {"delta": 1.0}, "delta"),
    ],
)
def test_bad_input_is_refused_before_a_charge(method: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DPLogisticRegression(classes=[0, 1], mechanism=FrankWolfe(**method), **changes).fit(np.eye(4), [0, 1, 0, 1])
    assert SpendLog.current().charges() == []


def test_a_ball_beyond_which_the_loss_is_unbounded_is_refused() -> None:
    with pytest.raises(ValueError, match="L1 radius of at most"):
        DPRidge(target_bound=1.0, radius=2.0, mechanism=FrankWolfe(radius=3.0, steps=5)).fit(np.eye(4), np.ones(4))
    assert SpendLog.current().charges() == []
