"""How far one record moves descents that add noise at their end, or hide their steps, where it moves them as far as it can.

Where every margin is far below 1 the smoothed hinge's gradient is ∓row to the last digit, whatever θ is: a record of the largest
norm that is replaced by its opposite moves each step that uses it by 2L times the rate over the batch's size.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from dperm._random import NORMAL_ERROR
from dperm.mechanisms import BoltOnPerturbation, LastIterateDescent
from dperm.mechanisms.base import Budget
from dperm.objectives import LinearObjective, SmoothedHinge
from dperm.privacy import Gaussian, PureDP, Relation
from dperm.privacy.events import HiddenIterates, RandomStop
from dperm.release import Channel
from helpers.asked import Asked, Question, moves

NORM = 1.5
ROWS = np.random.default_rng(0).normal(size=(6, 2)) * 0.3
ROWS[4] = [0.9, 1.2]
SIGNS = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])


def problem(**changes: Any) -> LinearObjective:
    settings = {"data_norm": NORM, "public_size": 6, "relation": Relation.REPLACE_ONE} | changes
    return LinearObjective(SmoothedHinge(0.01), 2, **settings)


def moved(mechanism: Any, objective: LinearObjective) -> list[tuple[Question, float]]:
    def run(signs: Any) -> Any:
        def train(source: Asked) -> Any:
            channel = Channel.open(source)
            channel.charge(mechanism.event(objective.facts), mechanism.name)
            return mechanism.train(objective, objective.records(ROWS, signs), channel)

        return train

    return moves(run(SIGNS), run(np.where(np.arange(6) == 4, -SIGNS, SIGNS)))


def bolt_on(**changes: Any) -> BoltOnPerturbation:
    settings: dict[str, Any] = {"epochs": 3, "batch_size": 2, "learning_rate": 1e-3, "noise_multiplier": 4.0} | changes
    return BoltOnPerturbation(budget=Budget(1e-5, 1.0), **settings)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epochs": 1, "batch_size": 6},
        {"batch_size": 4},  # the last batch is not full
        {"learning_rate": None, "strong_convexity": 1e7},
        {"learning_rate": None, "strong_convexity": 1e7, "epochs": 1, "batch_size": 3},
        {"noise_multiplier": None, "pure_epsilon": 0.5},
    ],
    ids=str,
)
def test_a_replaced_record_moves_the_end_of_bolt_on_by_the_sensitivity(changes: dict[str, Any]) -> None:
    """At a constant rate once a pass; at rates that fall as 1/(γt) all passes together move the end by 2L/(γn), whose first step
    is a little shorter."""
    mechanism = bolt_on(**changes)
    ((question, distance),) = moved(mechanism, problem())
    assert 0.999 < distance <= 1
    event = mechanism.event(problem().facts)
    charged = 1 / event.epsilon if isinstance(event, PureDP) else event.noise_multiplier if isinstance(event, Gaussian) else None
    assert question.noise == pytest.approx(charged, rel=1e-12)


def test_rates_of_bolt_on_by_hand() -> None:
    """Lemma 6 of Wu et al. 2017 needs η ≤ 2/β, and Lemma 8 steps of min(1/β, 1/(γt)), β with the quadratic term's γ = Λ/n."""
    facts = replace(problem().facts, smoothness=10.0)
    assert bolt_on(learning_rate=0.2).rates(facts, 5).tolist() == [0.2] * 9  # three batches of two in each of three passes
    assert bolt_on().rates(facts, 0).size == 0 and bolt_on().rates(facts, 1).size == 3
    for changes in ({"learning_rate": 0.2000001}, {"learning_rate": 0.2, "strong_convexity": 1e-3}):
        with pytest.raises(ValueError, match="at most 2/β"):
            bolt_on(**changes).rates(facts, 5)
    falling = bolt_on(learning_rate=None, strong_convexity=12.0, epochs=2).rates(facts, 4)  # γ = 3, β = 13
    assert falling == pytest.approx([1 / 13, 1 / 13, 1 / 13, 1 / 13])
    alone = bolt_on(learning_rate=None, strong_convexity=13.0)  # γ = 13, β = 23, of one record, and of none
    assert alone.event(replace(facts, public_size=None)) == alone.event(facts)  # of a number of records that is not yet stated
    assert alone.rates(facts, 1) == pytest.approx([1 / 23, 1 / 26, 1 / 39])
    assert bolt_on(learning_rate=None, strong_convexity=80.0, epochs=2).rates(facts, 4) == pytest.approx(
        [1 / 30, 1 / 40, 1 / 60, 1 / 80]
    )


@pytest.mark.parametrize("strong", [0.0, 30.0])
@pytest.mark.parametrize("radius", [None, 0.01, 0.04])
@pytest.mark.parametrize("count", [0, 1, 6])
def test_each_step_of_bolt_on_ends_within_the_ball_on_which_the_loss_is_bounded(
    count: int, radius: float | None, strong: float
) -> None:
    """Steps by hand, one record after the other: what leaves is where they lead."""
    mechanism = bolt_on(learning_rate=0.02, strong_convexity=strong, batch_size=1)
    objective = problem(public_size=count or None, radius=radius)
    rows, signs = 300 * ROWS[:count], SIGNS[:count]
    scaled = rows * np.minimum(1.0, NORM / np.linalg.norm(rows, axis=1))[:, None]
    source = Asked()
    channel = Channel.open(source)
    channel.charge(mechanism.event(objective.facts), mechanism.name)
    released, trace = mechanism.train(objective, objective.records(rows, signs), channel)
    theta = np.zeros(2)
    for (number,) in mechanism._order(count):
        margin = signs[number] * float(scaled[number] @ theta)
        slope = -signs[number] / (1 + np.exp((margin - 1) / 0.01))
        theta = theta - 0.02 * (slope * scaled[number] + strong / count * theta)
        if radius is not None:
            theta = theta * min(1.0, radius / np.linalg.norm(theta))
    (question,) = source.questions
    assert question.query == pytest.approx(theta, abs=1e-5)
    assert np.array_equal(released, question.query)
    assert trace["noise_std"] == pytest.approx(4.0 * mechanism.sensitivity(objective.facts, count), rel=1e-12)


def last_iterate(**changes: Any) -> LastIterateDescent:
    settings: dict[str, Any] = {
        "epochs": 3,
        "batch_size": 2,
        "learning_rate": 1e-3,
        "radius": 5.0,
        "noise_multiplier": 4.0,
    } | changes
    return LastIterateDescent(budget=Budget(1e-5, 1.0), **settings)


@pytest.mark.parametrize("changes", [{}, {"batch_size": 4}, {"epochs": 1, "batch_size": 6}, {"strong_convexity": 0.5}], ids=str)
def test_a_replaced_record_moves_the_steps_that_use_it_by_the_sensitivity(changes: dict[str, Any]) -> None:
    mechanism = last_iterate(**changes)
    found = moved(mechanism, problem())
    event = mechanism.event(problem().facts)
    assert isinstance(event, HiddenIterates) and len(found) == event.batches * event.passes
    used = [distance for _, distance in found if distance > 1e-9]
    assert len(used) == mechanism.epochs  # once a pass, in the same place of each
    assert used == pytest.approx([1.0] * mechanism.epochs, rel=1e-5) and max(used) <= 1
    assert [question.noise for question, _ in found] == pytest.approx([event.noise_multiplier] * len(found), rel=1e-12)


def test_hidden_steps_bring_others_together_as_is_charged() -> None:
    """A step is θ ↦ θ − η∇: the two ends of its spectrum, at curvature 0 and at β, beside the quadratic term's γ = Λ/n."""
    facts = replace(problem().facts, smoothness=100.0)
    for rate, modulus in ((1e-3, 0.0), (1e-3, 60.0), (0.018, 60.0), (0.0199, 0.0)):
        steps = [abs(1 - rate * (curvature + modulus / 6)) for curvature in np.linspace(0, 100, 1001)]
        charged = last_iterate(learning_rate=rate, strong_convexity=modulus).contraction(facts, 6)
        assert max(steps) <= charged <= min(1.0, max(steps) * (1 + 1e-11))
    assert last_iterate(strong_convexity=60.0).contraction(facts, 1) == pytest.approx(0.94, rel=1e-11)  # γ = 60, of one record
    assert last_iterate(strong_convexity=60.0).contraction(facts, 0) == last_iterate(strong_convexity=60.0).contraction(facts, 1)
    for changes in ({"learning_rate": 0.0200001}, {"learning_rate": 0.02, "strong_convexity": 1e-3}):
        with pytest.raises(ValueError, match="at most 2/β"):
            last_iterate(**changes).contraction(facts, 6)
    assert last_iterate(learning_rate=0.01, strong_convexity=0.0).contraction(replace(facts, smoothness=1e-9), 6) == 1.0


@pytest.mark.parametrize("radius", [5.0, 0.25])
def test_hidden_steps_are_charged_for_the_ball_that_they_stay_in(radius: float) -> None:
    """Nothing before the passes that count is further apart than the ball is wide, in units of what a record moves a step."""
    mechanism, facts = last_iterate(radius=radius), problem().facts
    event = mechanism.event(facts)
    one_step = np.linalg.norm(2 * ROWS[4]) * 1e-3 / 2
    assert isinstance(event, HiddenIterates)
    assert event.diameter == pytest.approx(2 * radius / one_step, rel=1e-6)
    assert (event.batches, event.passes) == (3, 3) and last_iterate(batch_size=4).batches(6) == 2
    stopped = last_iterate(epochs=1, random_stop=True).event(facts)
    assert isinstance(stopped, RandomStop)
    assert stopped.steps == 3
    assert stopped.contraction == event.contraction


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("strong", [0.0, 300.0])
@pytest.mark.parametrize("radius", [5.0, 0.25])
def test_hidden_steps_begin_within_the_ball_that_is_charged(count: int, radius: float, strong: float) -> None:
    """Rows of zeros have no gradient: a step is θ·(1 − ηΛ/n) from where noise has taken θ, brought back to the ball."""
    mechanism, objective = last_iterate(radius=radius, strong_convexity=strong), problem(public_size=count)
    rng = np.random.default_rng(0)
    steps = mechanism.epochs * mechanism.batches(count)
    taken = [rng.normal(size=2) * scale for scale in (1e-3, 0.1, 1.0, 100.0, 1e6, 0.2, 10.0, 1e3, 1e9)][:steps]
    assert len(taken) == steps
    source = Asked(answers=taken)
    channel = Channel.open(source)
    channel.charge(mechanism.event(objective.facts), mechanism.name)
    end, _ = mechanism.train(objective, objective.records(np.zeros((count, 2)), SIGNS[:count]), channel)
    held = [point * min(1.0, radius / np.linalg.norm(point)) for point in taken]
    assert end == pytest.approx(held[-1], rel=1e-12)
    assert np.linalg.norm(end) <= radius * (1 + 1e-12)
    wanted = [np.zeros(2), *((1 - mechanism.learning_rate * strong / count) * point for point in held[:-1])]
    assert len(source.questions) == steps
    for question, point in zip(source.questions, wanted, strict=True):
        assert question.query == pytest.approx(point, rel=1e-12, abs=0)


def test_a_random_stop_is_after_each_number_of_steps_alike() -> None:
    """Three batches: as is charged, a run ends after one, two or three steps, each a third of the time."""
    mechanism, objective, source = last_iterate(epochs=1, random_stop=True), problem(), Asked()
    records = objective.records(ROWS, SIGNS)
    stops: list[int] = []
    for _ in range(300):
        source.questions.clear()
        channel = Channel.open(source)
        channel.charge(mechanism.event(objective.facts), mechanism.name)
        _, trace = mechanism.train(objective, records, channel)
        assert [question.kind for question in source.questions] == ["hidden"] * (trace["steps"] - 1) + ["gaussian"]
        stops.append(trace["steps"])
    counts = np.bincount(stops, minlength=5)
    assert counts[[0, 4]].tolist() == [0, 0]
    assert np.all(np.abs(counts[1:4] - 100) < 5 * np.sqrt(300 * 2 / 9))


# Rounding, by the standard model of arithmetic: each operation is right to a share of 2⁻⁵³ (Higham 2002, §2.2)


def lost(operations: int) -> Fraction:
    """The share of the sum of its absolute terms by which a chain of so many operations is off at most: γ of Higham's Lemma 3.1,
    whose denominator is 1 here to ten digits."""
    return operations * Fraction(1, 2**53)


def step_lost(facts: Any, batch: int, rate: float, reach: float, farthest: float) -> Fraction:
    """How far rounding takes one step, θ within `reach` before and after, and within `farthest` before it is projected.

    A prediction is a sum of d products, whose error moves a slope by the smoothness; of a batch's mean gradient each entry is a
    sum of b products; then come one product, one difference and one sum; and a projection, which multiplies by a quotient of
    which half as many roundings as there are parameters are in the root.
    """
    parameters = facts.dimension
    gradient = Fraction(facts.smoothness) * Fraction(reach) * lost(parameters) + Fraction(facts.lipschitz) * lost(batch)
    return Fraction(rate) * gradient + lost(2) * Fraction(farthest) + lost(parameters // 2 + 3) * Fraction(reach)


LIPSCHITZ = 10.0

#: What the facts, the settings, and the number of records are: one term after another is by far the largest.
ROUNDED = {
    "predictions": ({"dimension": 10**9, "smoothness": 4.0, "radius": 50.0}, {"learning_rate": 0.5}, 100),
    "means": ({"dimension": 2, "smoothness": 1e-3, "radius": 0.1}, {"learning_rate": 100.0, "batch_size": 10**9}, 10**9),
    "projections": ({"dimension": 10**9, "smoothness": 1e-6, "radius": 5.0}, {"learning_rate": 0.5}, 100),
    "steps": ({"dimension": 1, "smoothness": 1e-6, "radius": 1e4}, {"learning_rate": 1.0, "batch_size": 1}, 10**5),
    "the way that θ can have gone": ({"dimension": 10**9, "smoothness": 1e-6, "radius": 1e9}, {"learning_rate": 0.5}, 100),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_takes_the_end_of_bolt_on_no_further_than_its_sensitivity_says(name: str) -> None:
    """Steps bring iterates no further apart, so that what is lost adds up, of both neighbours. Nor is more than 16 times that
    charged."""
    changes, settings, records = ROUNDED[name]
    facts = replace(problem().facts, lipschitz=LIPSCHITZ, **changes)
    mechanism = bolt_on(**settings)
    steps = mechanism.epochs * -(-records // mechanism.batch_size)
    rate = Fraction(mechanism.learning_rate or 0.0)
    reach = min(Fraction(facts.radius or 0.0), 10 * steps * rate)  # each step goes no further than its rate times the slope
    needed = 2 * steps * step_lost(facts, mechanism.batch_size, float(rate), float(reach), float(reach + 10 * rate))
    apart = 20 * mechanism.epochs * rate / mechanism.batch_size
    charged = Fraction(mechanism.sensitivity(facts, records)) - apart * (1 + Fraction(1, 2**40))
    assert needed <= charged <= 16 * needed


@pytest.mark.parametrize("noise", [1e-3, 1e4])
@pytest.mark.parametrize("name", ["predictions", "means", "projections", "steps"])
def test_rounding_takes_hidden_steps_no_further_than_is_charged(name: str, noise: float) -> None:
    """In units of a step's movement by a record, of both neighbours. No double is as unlikely as noise of more than 38 standard
    deviations."""
    changes, settings, records = ROUNDED[name]
    facts = replace(problem().facts, lipschitz=LIPSCHITZ, public_size=records, **changes)
    mechanism = last_iterate(noise_multiplier=noise, **settings, radius=changes["radius"])
    event: Any = mechanism.event(facts)
    move = 20 * mechanism.learning_rate / mechanism.batch_size
    farthest = mechanism.radius + 38 * noise * move * facts.dimension**0.5
    needed = 2 * step_lost(facts, mechanism.batch_size, mechanism.learning_rate, mechanism.radius, farthest) / Fraction(move)
    needed += 2 * Fraction(NORMAL_ERROR * noise * facts.dimension**0.5)  # numbers are that far from the normals they stand for
    assert needed <= Fraction(event.rounding) <= 16 * needed
