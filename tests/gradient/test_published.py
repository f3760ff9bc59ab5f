"""Algorithms as they were published, where that is not private: they run, are claimed, and the auditor refutes them. Their sound
counterparts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dperm.audit import Training, attack
from dperm.estimators import DPLogisticRegression
from dperm.gradient import Plan, PublishedNormalisedPlan, UnitAtLeast
from dperm.mechanisms import Budget, Method, NormalisedGradient, PublishedNormalisedGradient, TraditionalGradient
from dperm.objectives import Logistic, Task
from dperm.privacy import Composed, Relation, SelfComposed, epsilon
from dperm.release import Channel

TASK = Task(loss=Logistic(), features=3, classes=2, public_size=500)
BUDGET = Budget(1e-5, 1.0)


@pytest.mark.parametrize("method", [PublishedNormalisedGradient()], ids=["m-NGP"])
@pytest.mark.parametrize("relation", list(Relation))
def test_published_algorithms_are_refuted_without_hints(method: Method, relation: Relation) -> None:
    """At a stated ε = 1, by the pairs that every linear objective is attacked with."""
    task = Task(loss=Logistic(), features=3, classes=2, public_size=500, relation=relation)
    training = Training.of_mechanism(*method.build(task, BUDGET))
    assert training.certificate.epsilon is None and training.certificate.target_epsilon == 1.0
    results = attack(training, trials=1000)
    assert any(result.refuted for result in results), "\n".join(map(str, results))
    assert results[-1].epsilon_lower > 2.0


def test_a_claim_names_its_reason_and_no_epsilon() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 3))
    model = DPLogisticRegression(mechanism=PublishedNormalisedGradient(), public_size=500, classes=[False, True])
    model.fit(rows, rows[:, 0] > 0)
    certificate = model.certificate_
    assert (certificate.status, certificate.epsilon, certificate.target_epsilon) == ("claimed", None, 1.0)
    assert "normalises the mean gradient before the noise" in str(certificate)
    with pytest.raises(ValueError, match="known number"):
        DPLogisticRegression(mechanism=PublishedNormalisedGradient(), classes=[False, True]).fit(rows, rows[:, 0] > 0)


def test_what_published_m_ngp_really_costs() -> None:
    """Its noise is that of a Gaussian mechanism on what really moves: thousands of ε."""
    mechanism, objective = PublishedNormalisedGradient().build(TASK, BUDGET)
    event = mechanism.event(objective.facts)
    assert isinstance(event, Composed) and isinstance(event.events[0], SelfComposed)
    assert epsilon(event.events[0], 1e-5) > 1000


def test_published_m_ngp_is_its_formula() -> None:
    rng = np.random.default_rng(0)
    mechanism, objective = PublishedNormalisedGradient(epochs=1, learning_rate=0.5).build(TASK, BUDGET)
    plan: Any = mechanism.plan
    assert isinstance(plan, PublishedNormalisedPlan)
    rows, targets = rng.normal(size=(500, 3)) * 0.1, np.where(rng.random(500) < 0.5, 1.0, -1.0)
    releases = [mechanism.release(objective, objective.records(rows, targets), Channel.open(seed)).theta for seed in range(400)]
    gradient = -(rows.T @ targets) / 2 / 500
    assert np.mean(releases, axis=0) == pytest.approx(-0.5 * gradient / np.linalg.norm(gradient), abs=0.01)
    claimed = plan.noise_multiplier * objective.facts.lipschitz / 500
    assert np.std(releases, axis=0).mean() == pytest.approx(0.5 * claimed, rel=0.1)


def test_the_certified_counterpart_normalises_after_the_noise_at_the_same_price() -> None:
    made = [method.build(TASK, BUDGET)[0] for method in (TraditionalGradient(), NormalisedGradient())]
    plain, normalised = (mechanism.plan for mechanism in made)
    assert isinstance(normalised, Plan) and normalised.post == UnitAtLeast()
    assert plain.steps == normalised.steps == math.ceil(math.log(500))
    facts = TASK.objective().facts
    assert made[0].event(facts) == made[1].event(facts)
    assert made[1].certificate(facts, Channel.open().provenance).status == "certified"
