"""Bolt-on: how far neighbours can end apart, in both regimes, and the defect of dividing it by the batch's size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import Training, attack, overall, replay
from dperm.estimators import DPLinearSVC, DPLogisticRegression
from dperm.mechanisms import BoltOn, BoltOnPerturbation, Budget, OneVsRest
from dperm.objectives import Huber, LinearObjective, Logistic, PublicFacts, Softmax
from dperm.privacy import Relation
from dperm.release import Channel, SpendLog

BUDGET = Budget(1e-5, 1.0)


def objective(loss: Any = None, **settings: Any) -> LinearObjective:
    return LinearObjective(loss or Logistic(), 3, public_size=40, relation="replace_one", intercept_scale=0.5, **settings)


def bolt_on(**settings: Any) -> BoltOnPerturbation:
    return BoltOnPerturbation(budget=Budget(1e-5), noise_multiplier=3.0, **settings)


REGIMES = {
    "constant": bolt_on(epochs=3, batch_size=4, learning_rate=0.5),
    "constant, one record a batch": bolt_on(epochs=2, batch_size=1, learning_rate=2.0),
    "constant, regularised": bolt_on(epochs=3, batch_size=4, learning_rate=0.5, strong_convexity=8.0),
    "falling": bolt_on(epochs=3, batch_size=4, strong_convexity=8.0),
    "falling, more than a pass before 1/(γt) is below 1/β": bolt_on(epochs=4, batch_size=10, strong_convexity=1.0),
}


LOSSES = {"logistic": Logistic(), "huber": Huber(0.5), "softmax": Softmax(3)}


def allowed() -> list[tuple[str, str]]:
    """Regimes and losses, short of steps above 2/β."""
    pairs = [(name, loss) for name in REGIMES for loss in LOSSES]
    return [(n, loss) for n, loss in pairs if (REGIMES[n].learning_rate or 0) <= 2 / objective(LOSSES[loss]).facts.smoothness]


@pytest.mark.fast_cases("constant-softmax", "falling-logistic")
@pytest.mark.parametrize(("name", "loss"), allowed())
def test_neighbours_end_no_further_apart_than_stated(name: str, loss: str) -> None:
    problem = objective(LOSSES[loss])
    found = replay(Training.of_mechanism(REGIMES[name], problem), both_ways=False)
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.1  # and the bound is not far from what happens


def test_the_bounds_are_those_of_the_paper() -> None:
    facts = objective().facts
    steep = facts.lipschitz
    constant, falling = REGIMES["constant"], REGIMES["falling"]
    assert constant.sensitivity(facts, 40) == pytest.approx(2 * 3 * steep * 0.5 / 4, rel=1e-6)
    assert falling.sensitivity(facts, 40) == pytest.approx(2 * steep / 8.0, rel=1e-6)
    rates = falling.rates(facts, 40)
    modulus = 8.0 / 40
    assert len(rates) == 30 and rates[0] == pytest.approx(1 / (facts.smoothness + modulus))
    assert rates[-1] == pytest.approx(1 / (modulus * 30))


def test_it_is_ordinary_descent_before_the_noise() -> None:
    problem, rng = objective(radius=0.3), np.random.default_rng(0)
    rows, targets = rng.normal(size=(10, 3)) * 0.3, np.where(rng.random(10) < 0.5, 1.0, -1.0)
    mechanism = bolt_on(epochs=2, batch_size=10, learning_rate=0.5, strong_convexity=2.0)
    quiet = type("Quiet", (BoltOnPerturbation,), {"sensitivity": lambda *_: 1e-9})(**vars(mechanism))
    found = quiet.release(problem, problem.records(rows, targets), Channel.open(0)).theta
    theta, extended = np.zeros(4), np.column_stack([rows, np.full(10, 0.5)])
    for _ in range(2):
        slopes = -targets / (1 + np.exp(targets * (extended @ theta)))
        theta = theta - 0.5 * (extended.T @ slopes / 10 + 2.0 / 10 * theta)
        theta *= min(1.0, 0.3 / np.linalg.norm(theta))
    assert found == pytest.approx(theta, abs=1e-5)  # rows keep 21 binary digits


def some_pairs(mechanism: BoltOnPerturbation, every: int) -> Training:
    """Its training, with some of the pairs that audits replay: all take a minute. There are four kinds of them at each place, in
    turns: every odd number takes all kinds."""
    training = Training.of_mechanism(mechanism, objective())
    return replace(training, replay_pairs=training.replay_pairs[::every])


class DividedByTheBatch(BoltOnPerturbation):
    """Planted, after a library that does: the falling rate's sensitivity divided by the size of a batch."""

    def sensitivity(self, facts: PublicFacts, records: int) -> float:
        return super().sensitivity(facts, records) / self.batch_size


@pytest.mark.fast_cases("constant")
@pytest.mark.parametrize("regime", ["falling", "constant"])
def test_dividing_by_the_batch_is_refuted(regime: str) -> None:
    found = replay(some_pairs(DividedByTheBatch(**vars(REGIMES[regime])), 23 if regime == "falling" else 7))
    assert found.refuted and "movement" in found.details["kinds"]


class TooFast(BoltOnPerturbation):
    """Planted: what a pass moves is counted once."""

    def sensitivity(self, facts: PublicFacts, records: int) -> float:
        return super().sensitivity(facts, records) / self.epochs


def test_counting_one_pass_of_many_is_refuted() -> None:
    mechanism = TooFast(**vars(bolt_on(epochs=20, batch_size=4, learning_rate=0.05)))
    assert overall(attack(some_pairs(mechanism, 23), trials=1000)) == "refuted"


def test_what_would_bring_neighbours_apart_is_refused() -> None:
    facts = objective().facts
    with pytest.raises(ValueError, match="at most 2/β"):
        bolt_on(learning_rate=1.01 * 2 / facts.smoothness).event(facts)
    added = LinearObjective(Logistic(), 3, public_size=40).facts
    with pytest.raises(ValueError, match="replace_one"):
        bolt_on(learning_rate=0.1).event(added)
    with pytest.raises(ValueError, match="strong_convexity > 0"):
        bolt_on()
    with pytest.raises(ValueError, match="exactly one"):
        BoltOnPerturbation(budget=BUDGET, learning_rate=0.1)
    rng = np.random.default_rng(0)
    hinge = DPLinearSVC(half_width=0, mechanism="bolt-on", relation="replace_one", classes=[0, 1])
    with pytest.raises(ValueError, match="smooth loss"):
        hinge.fit(rng.normal(size=(30, 2)), np.arange(30) % 2)


@pytest.mark.parametrize("method", [BoltOn(), BoltOn(strong_convexity=20.0), BoltOn(learning_rate=0.1, epochs=2)])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_estimators_learn_with_it(method: BoltOn, delta: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(4000, 3))
    labels = rows[:, 0] > 0
    model = DPLogisticRegression(epsilon=3.0, delta=delta, mechanism=method, relation="replace_one", classes=[False, True])
    model.fit(rows, labels)
    assert model.certificate_.relation is Relation.REPLACE_ONE
    assert 2.99 < model.certificate_.epsilon <= 3.0
    assert model.score(rows, labels) > 0.9


def test_records_left_out_are_refused_where_order_counts() -> None:
    """One that is put at the end moves all others to other batches: 88 times the sensitivity at a certified ε = 1."""
    rows = np.random.default_rng(0).normal(size=(30, 2))
    for classes, labels in (([0, 1], np.arange(30) % 2), ([0, 1, 2], np.arange(30) % 3)):
        model = DPLogisticRegression(mechanism="bolt-on", relation="replace_one", classes=classes)
        apart = DPLinearSVC(mechanism="bolt-on", relation="replace_one", classes=classes)
        for each in (model, apart):
            with pytest.raises(ValueError, match="no records left out"):
                each.fit(rows, labels, absent=1)
    for wrong in (1e300, 1e-250):
        with pytest.raises(ValueError, match="strong_convexity"):
            bolt_on(strong_convexity=wrong)


def test_what_a_part_cannot_train_is_refused_before_the_charge() -> None:
    """Steps of 0.5 are allowed for the 40 records that are stated, and not for the one that comes."""
    problem = objective()
    each = OneVsRest.of(REGIMES["constant, regularised"], 3)
    with pytest.raises(ValueError, match="at most 2/β"):
        each.release(problem, problem.records(np.eye(3)[:1], [0]), Channel.open())
    assert SpendLog.current().charges() == []
