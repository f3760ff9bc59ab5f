"""How far one record moves each kind of release of descents by coordinates and by vertices, and of preconditioned descent."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import CoordinateDescent, FrankWolfeDescent, GreedyDescent, PreconditionedDescent
from dperm.mechanisms.base import Budget, Mechanism
from dperm.objectives import LinearObjective, SmoothedHinge, Squared
from dperm.privacy import Relation
from dperm.privacy.events import leaves
from dperm.release import Channel
from helpers.asked import Asked, Question, moves

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
NORM = 1.5
BUDGET = Budget(1e-5, 1.0)
REST = np.random.default_rng(0).uniform(-0.4, 0.4, size=(5, 3))
SIGNS = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
ALONG = np.array([NORM, 0.0, 0.0])  # the largest row: its gradient has one entry, of the largest size
ACROSS = np.array([0.0, 0.0, NORM])
EVEN = np.full(3, NORM / math.sqrt(3))

Record = tuple[Any, float]


def moved(mechanism: Mechanism, objective: LinearObjective, one: Record, other: Record) -> list[tuple[Question, float]]:
    """Of neighbours: one has the record, and the other another in its place or none."""

    def run(*more: Record) -> Any:
        rows = np.vstack([REST, *(row for row, _ in more)])
        targets = np.array([*SIGNS, *(target for _, target in more)])

        def train(source: Asked) -> Any:
            channel = Channel.open(source)
            channel.charge(mechanism.event(objective.facts), mechanism.name)
            return mechanism.train(objective, objective.records(rows, targets), channel)

        return train

    return moves(run(one), run(*([other] if objective.relation is REPLACE else [])))


def charged_as_asked(mechanism: Mechanism, objective: LinearObjective, asked: list[tuple[Question, float]]) -> bool:
    """Whether the releases are those that the event pays for, by kind and noise."""
    paid = Counter[tuple[str, float]]()
    for leaf, count in leaves(mechanism.event(objective.facts)).items():
        pays: Any = leaf.pays_for
        paid[pays.kind, round(1 / pays.noise if pays.kind == "choice" else pays.noise, 9)] += count
    return Counter((question.kind, round(question.noise, 9)) for question, _ in asked) == paid


def problem(relation: Relation, **changes: Any) -> LinearObjective:
    """Where margins are far below 1, a record's gradient is ∓row whatever θ is."""
    return LinearObjective(SmoothedHinge(0.01), 3, data_norm=NORM, public_size=6, relation=relation, **changes)


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize("bound", [None, 0.3])
@pytest.mark.parametrize("kind", ["greedy", "vertices"])
def test_a_choice_and_a_step_move_by_the_sensitivity(kind: str, bound: float | None, relation: Relation) -> None:
    """A record moves scores, and a step's gradient, by entries of a row of the largest length, or with the largest entry that is
    stated: entries beyond that bound are cut to it."""
    mechanism: Mechanism
    if kind == "greedy":
        mechanism = GreedyDescent(budget=BUDGET, steps=3, noise_multiplier=5.0, public_size=6, entry_bound=bound)
    else:
        mechanism = FrankWolfeDescent(budget=BUDGET, steps=3, radius=0.1, step_epsilon=0.5, entry_bound=bound)
    objective = problem(relation)
    found = moved(mechanism, objective, (ALONG, 1.0), (ALONG, -1.0))
    assert charged_as_asked(mechanism, objective, found)
    choices = [distance for question, distance in found if question.kind == "choice"]
    steps = [distance for question, distance in found if question.kind == "gaussian"]
    assert len(choices) == 3 and len(steps) == (3 if kind == "greedy" else 0)
    assert max(choices) <= 1 and max(steps, default=1.0) <= 1
    if relation is ADD or kind == "vertices":
        assert max(choices) > 0.9999
    else:  # scores are sizes: opposite records move them apart only as far as others keep the sum's sign
        assert max(choices) > 0.2
    if kind == "greedy":
        assert max(steps) > 0.9999


def test_scores_of_sizes_move_by_twice_a_record_where_others_keep_the_sign() -> None:
    objective = problem(REPLACE)
    mechanism = GreedyDescent(budget=BUDGET, steps=1, noise_multiplier=5.0, public_size=6)
    rest = np.vstack([ALONG, ALONG])

    def run(sign: float) -> Any:
        def train(source: Asked) -> Any:
            channel = Channel.open(source)
            channel.charge(mechanism.event(objective.facts), mechanism.name)
            return mechanism.train(objective, objective.records(np.vstack([rest, ALONG]), np.array([1.0, 1.0, sign])), channel)

        return train

    (choice, far), (_, step) = moves(run(1.0), run(-1.0))
    assert choice.kind == "choice"
    assert 0.9999 < far <= 1
    assert 0.9999 < step <= 1


@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_coordinates_move_by_the_sensitivity(relation: Relation) -> None:
    """A row of one entry moves the mean squares furthest; slopes beyond their clip move each step by twice the clip, or once.
    Replaced, two rows' squares are at right angles at most: √2, which is charged."""
    mechanism = CoordinateDescent(budget=BUDGET, epochs=2, clipping_norm=0.05, noise_multiplier=5.0, public_size=6)
    objective = problem(relation)
    (_, scales), *steps = moved(mechanism, objective, (EVEN, 1.0), (EVEN, -1.0))
    assert scales <= 1 and len(steps) == 6
    assert all(0.9999 < distance <= 1 for _, distance in steps)
    once = [question.sensitivity for question, _ in steps[:3]]  # coordinates share the clip of the whole gradient
    assert math.hypot(*once) == pytest.approx(0.05 * (1 if relation is ADD else 2), rel=1e-5)
    found = moved(mechanism, objective, (ALONG, 1.0), (ACROSS, 1.0))
    assert charged_as_asked(mechanism, objective, found)
    assert 0.9999 < found[0][1] <= 1
    # the longest vector of squares: its one entry is that of the whole row, and is not cut
    assert found[0][0].sensitivity == pytest.approx(NORM**2 * (1 if relation is ADD else math.sqrt(2)), rel=1e-5)


def descent(**changes: Any) -> PreconditionedDescent:
    settings = {"steps": 4, "step_size": 1e-9, "floor": 1.0, "kappa": 0.01, "noise_multiplier": 3.0, "mean_share": 0.1}
    return PreconditionedDescent(budget=BUDGET, public_size=6, **settings | changes)


@pytest.mark.parametrize("most", [1.0, 2.0])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_preconditioned_releases_move_by_the_sensitivity(relation: Relation, most: float) -> None:
    """Of the Gram matrix: rows at right angles. Of the squared residuals: the largest, and none. Of the mean and of steps: the
    longest row with a residual beyond the clip, and with the opposite one."""
    settings: Any = {"data_norm": NORM, "public_size": 6, "relation": relation, "radius": 5.0, "intercept_scale": 1e-3}
    objective = LinearObjective(Squared(most, 5.0), 3, **settings)
    mechanism = descent()
    pairs = (((ALONG, most), (ACROSS, most)), ((EVEN, most), (EVEN, 0.0)), ((EVEN, most), (EVEN, -most)))
    runs = [moved(mechanism, objective, *pair) for pair in pairs]
    assert all(charged_as_asked(mechanism, objective, run) for run in runs)
    assert runs[0][1][0].query == pytest.approx([1 + most])  # of SIGNS and the record
    # near the start, a mean of 0 in the trials, each of six residuals is a target
    assert runs[0][2][0].query == runs[0][4][0].query == pytest.approx([5 + most**2], rel=0.02)
    found = [max(run[place][1] for run in runs) for place in range(8)]
    for distance in found:
        assert 0.98 < distance <= 1  # a mean that is not quite 0 takes a hundredth of what replaced squares move by


@pytest.mark.parametrize("most", [1.0, 2.0])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_a_mean_alone_moves_by_the_sensitivity(relation: Relation, most: float) -> None:
    settings: Any = {"data_norm": NORM, "public_size": 6, "relation": relation, "intercept_scale": 0.5}
    objective = LinearObjective(Squared(most), 3, **settings)
    found = moved(descent(steps=0), objective, (EVEN, most), (EVEN, -most))
    assert charged_as_asked(descent(steps=0), objective, found)
    ((question, distance),) = found
    assert question.sensitivity == pytest.approx(most if relation is ADD else 2 * most, rel=1e-6) and 0.9999 < distance <= 1


def test_an_absent_record_moves_no_release_of_preconditioned_descent() -> None:
    objective = LinearObjective(Squared(1.0, 5.0), 3, data_norm=NORM, public_size=6, radius=5.0, intercept_scale=0.5)
    mechanism = descent(steps=3, step_size=0.1, kappa=1.0)
    found = moved(mechanism, objective, (np.full(3, np.nan), 1.0), (ALONG, 1.0))
    assert [distance for _, distance in found] == [0.0] * 7
