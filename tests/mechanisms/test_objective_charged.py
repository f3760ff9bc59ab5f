"""What objective perturbation adds and is charged for, against the published numbers and what its solver may leave."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import ObjectivePerturbation, objective
from dperm.mechanisms.base import Budget
from dperm.mechanisms.minimiser import solve
from dperm.objectives import LinearObjective, Logistic, PrivacyUnit, RegularisedSum, SmoothedHinge
from dperm.privacy import Gaussian, Relation
from dperm.privacy.events import ObjectivePerturbationEvent, leaves
from dperm.release import Channel, Noise
from helpers.asked import Asked

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


@pytest.mark.parametrize(("epsilon", "logarithm", "times"), [(1.0, 12.0, 10.0), (4.0, 10.5, 2.5)])
def test_kifer_s_noise_by_hand(epsilon: float, logarithm: float, times: float) -> None:
    """Theorem 2 of Kifer, Smith, Thakurta 2012: σ = L·√(8·ln(2/δ) + 4ε)/ε, and 8·12 + 4 = 8·10.5 + 16 = 100; Λ ≥ 2β/ε."""
    facts = LinearObjective(Logistic(), 3, data_norm=2.0, public_size=100).facts
    assert (facts.lipschitz, facts.smoothness) == (2.0, 1.0)
    delta = 2 * math.exp(-logarithm)
    least = 2.0 / epsilon
    made = ObjectivePerturbation.calibrate(facts, epsilon, delta, calibration="kifer", strong_convexity=least)
    assert made.noise_std == pytest.approx(2.0 * times, rel=1e-12)
    twice = ObjectivePerturbation.calibrate(
        facts, 2 * epsilon, 2 * delta, calibration="kifer", strong_convexity=least, copies=2
    )  # each at half of both
    assert twice.noise_std == pytest.approx(2.0 * times, rel=1e-12)
    with pytest.raises(ValueError, match="2·smoothness/epsilon"):
        ObjectivePerturbation.calibrate(facts, epsilon, delta, calibration="kifer", strong_convexity=least * 0.999)
    for changes, said in (({"relation": REPLACE}, "add_or_remove_one"), ({"unit": PrivacyUnit(2)}, "one row a person")):
        with pytest.raises(ValueError, match=said):
            ObjectivePerturbation.calibrate(replace(facts, **changes), epsilon, delta, calibration="kifer")
    by_rule = ObjectivePerturbation.calibrate(facts, epsilon, delta, calibration="kifer")
    assert by_rule.strong_convexity >= least and by_rule.noise_std == pytest.approx(2.0 * times, rel=1e-12)


def test_the_solver_is_told_to_stop_where_the_second_noise_covers_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = LinearObjective(SmoothedHinge(0.5), 2, data_norm=1.0, public_size=10)
    mechanism = ObjectivePerturbation(
        budget=Budget(1e-5, 1.0), noise_std=3.0, strong_convexity=7.0, tolerance=0.25, output_multiplier=11.0
    )
    asked: list[float] = []
    monkeypatch.setattr(objective, "solve", lambda *given: (asked.append(given[3]), solve(*given))[1])
    source = Asked()
    channel = Channel.open(source)
    channel.charge(mechanism.event(problem.facts), mechanism.name)
    mechanism.train(problem, problem.records(np.eye(2), np.ones(2)), channel)
    (question,) = source.questions
    assert asked == [0.25]
    assert question.sensitivity == pytest.approx(2 * 0.25 / 7, rel=1e-5)


def test_the_second_noise_covers_what_the_solver_may_leave() -> None:
    """Of no records J is (Λ/2)‖θ‖² + bᵀθ, and the solver may end anywhere within ‖∇J‖ ≤ γ: two such ends, as far apart as can be,
    are the query's sensitivity apart. The noise of both releases is what the event says."""
    objective = LinearObjective(SmoothedHinge(0.5), 2, data_norm=1.0, public_size=10)
    mechanism = ObjectivePerturbation(
        budget=Budget(1e-5, 1.0), noise_std=3.0, strong_convexity=7.0, tolerance=0.25, output_multiplier=11.0
    )
    drawn: list[Any] = []

    class Drawn(Asked):
        def noisy(self, query: Any, noise: Noise) -> Any:
            if noise.kind != "objective":
                return super().noisy(query, noise)
            drawn.append((len(query), noise.level))
            return np.array([0.5, -1.0])

    source = Drawn()
    channel = Channel.open(source)
    event = mechanism.event(objective.facts)
    channel.charge(event, mechanism.name)
    mechanism.train(objective, objective.records(np.empty((0, 2)), np.empty(0)), channel)
    (question,) = source.questions
    problem = RegularisedSum(
        objective.with_strong_convexity(7.0), objective.records(np.empty((0, 2)), np.empty(0)), np.array([0.5, -1.0])
    )
    ends = [np.array([-0.5, 1.0]) / 7 + sign * 0.25 / 7 * np.array([0.6, 0.8]) for sign in (1, -1)]
    for end in ends:
        assert np.linalg.norm(problem.evaluate(end, hessian=False)[1]) == pytest.approx(0.25)
    assert question.sensitivity == pytest.approx(np.linalg.norm(ends[0] - ends[1]), rel=1e-5)
    parts = list(leaves(event).elements())
    assert {type(part) for part in parts} == {ObjectivePerturbationEvent, Gaussian} and len(parts) == 2
    assert drawn == [(2, 3.0)] and question.noise == pytest.approx(11.0)
    assert Gaussian(11.0) in parts and ObjectivePerturbationEvent(3.0, 1.0, 0.5, 7.0, loss="smoothed_hinge") in parts
