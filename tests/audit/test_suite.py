"""How long an audit takes is planned before it starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dperm.audit import AttackPlan, AuditResult, Training, attack, learned, planned_attack
from dperm.audit.replay import RUNS, replay_pair
from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import Gradient


def a_training() -> Training:
    return Training.of_mechanism(*DPLogisticRegression(epsilon=2.0, mechanism="output").mechanism_for(3, 2, None))


def test_as_much_is_planned_as_fits_and_never_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    training = a_training()
    monkeypatch.setattr("dperm.audit.suite._seconds", lambda run: 0.01)
    pairs, replayed = len(training.candidate_pairs), len(training.replay_pairs) * 0.01
    for limit in (6.0, 12.0):
        plan = planned_attack(training, seconds=limit)
        assert plan.trials == int((limit - replayed) / (0.01 * (2 + pairs / 2))) and 0.9 * limit < plan.seconds <= limit
    assert planned_attack(training, seconds=1e-6).trials == 20
    assert planned_attack(training, seconds=1e9).trials == planned_attack(training).trials == 400
    stated = planned_attack(training, trials=50, seconds=1e-6)
    assert stated == AttackPlan(50, 20, replayed + 0.01 * (2 * pairs * 20 + 100))
    with pytest.raises(ValueError, match="trials >= 20"):
        planned_attack(training, trials=3)


def test_plans_are_kept_and_say_how_long() -> None:
    results = attack(a_training(), trials=AttackPlan(40, 20, 100.0))
    assert results[-1].trials == 40
    assert str(AttackPlan(40, 20, 100.0)).startswith("Expected to take about 1.7 minutes: replay")
    assert "about 12 seconds" in str(AttackPlan(40, 20, 12.0))


def test_a_neighbour_takes_as_many_trainings_as_plans_count() -> None:
    training = Training.of_mechanism(*DPLogisticRegression(epsilon=2.0, mechanism=Gradient(epochs=2)).mechanism_for(3, 2, None))
    runs: list[int] = []

    def run(data: Any, source: Any) -> Any:
        runs.append(len(data[1]))
        return training.run(data, source)

    replay_pair(replace(training, run=run), training.replay_pairs[0])
    assert len(runs) == RUNS


def test_what_was_learned_is_one_sentence() -> None:
    training = a_training()
    results = attack(replace(training, replay_pairs=training.replay_pairs[:4]), trials=200)
    text = learned(results)
    assert text.startswith("What was learned: all queries stayed within") and text.count(".\n") == 0
    nothing = [replace(result, epsilon_lower=0.0 if result.epsilon_lower is not None else None) for result in results]
    assert "could prove nothing" in learned(nothing)
    refuted: list[AuditResult] = [replace(results[0], verdict="refuted")]
    assert learned(refuted) == "What was learned: the mechanism gives away more than its certificate states."
