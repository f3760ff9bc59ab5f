"""Wherever the library releases, half of the sensitivity is refuted by replay: each mechanism, policy, bounding and recipe.

The places are found by walking the library's source, and what runs through them by walking the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.audit import Training
from dperm.mechanisms import Budget, ObjectivePerturbation
from dperm.mechanisms import objective as perturbation
from dperm.objectives import LinearObjective, Records, RegularisedSum
from dperm.privacy import Relation
from dperm.privacy.events import leaves
from dperm.release import Channel
from dperm.solvers import Solution
from helpers.catalogue import MODULES, common, entries_of, parts_of
from helpers.catalogue.common import Entry
from helpers.halving import Place, asked, is_found, places, places_in, places_of

#: Places that no entry of the catalogue reaches: the tests that halve the sensitivity there …
ELSEWHERE = {
    "data/schema_search/private_search.py": "data/schema_search/test_finding.py",
    "estimators/search.py": "estimators/test_search.py",
    "report/released.py": "report/test_released.py",
    "torch/features/channel_normalisation.py": "torch/features/test_normalisation.py",
}
#: … and what is only claimed to be private.
CLAIMED = {"published/pidp_sgd.py", "published/m_ngp.py"}

#: It covers what solvers leave, and replay leaves minimisers out: halved by itself below.
SOLVED = "mechanisms/objective.py, ObjectivePerturbation.train (2)"


def chosen(module: str) -> Iterator[Entry]:
    """Few entries of a module that have each of its parts, kinds of event and recipes, between each kind of neighbours."""
    traits: dict[str, set[object]] = {}
    for name, mechanism, objective in entries_of(module):
        kinds = parts_of(mechanism, objective) | {type(leaf) for leaf in leaves(mechanism.event(objective.facts))}
        traits[name] = {(kind, objective.relation) for kind in kinds}
        if name.startswith("recipe "):
            traits[name] |= {name.partition(",")[0], ("public size", mechanism.plan.public_size is not None)}
    left = set[object]().union(*traits.values())
    for entry in sorted(entries_of(module), key=lambda entry: -len(traits[entry[0]])):
        if traits[entry[0]] & left:
            left -= traits[entry[0]]
            yield entry


@cache
def trainings(module: str) -> tuple[tuple[str, Relation, Training, list[Place]], ...]:
    """The name, neighbours, training and releasing places of each chosen entry: found once for all tests of this file."""
    made = [(name, each.relation, Training.of_mechanism(mechanism, each)) for name, mechanism, each in chosen(module)]
    return tuple((name, relation, training, places_of(training)) for name, relation, training in made)


def refuse_half(name: str, training: Training, place: Place) -> None:
    """AssertionError where replay calls half of the sensitivity at a place consistent."""
    assert is_found(training, place), f"{name}: half of the sensitivity of {place} is called consistent"


@pytest.mark.parametrize("module", MODULES)
def test_half_of_any_sensitivity_is_refuted(module: str) -> None:
    """Each place that a module's entries release at, between each kind of neighbours; the slow test has it in every entry."""
    halved: set[tuple[Place, object]] = set()
    for name, relation, training, released in trainings(module):
        for place in released:
            if str(place) != SOLVED and (place, relation) not in halved:
                halved.add((place, relation))
                refuse_half(name, training, place)


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_half_of_any_sensitivity_is_refuted_in_every_entry(module: str) -> None:
    for name, _, training, released in trainings(module):
        for place in released:
            if str(place) != SOLVED:
                refuse_half(name, training, place)


def test_the_noise_on_a_minimiser_covers_all_that_its_solver_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that stops as far from the minimum as it may, and for the neighbour on the other side: at a distance of
    tolerance ÷ Λ, where records say nothing. Nine tenths of the sensitivity would not cover it."""
    objective = common.objective(intercept_scale=0.0)
    mechanism = ObjectivePerturbation(budget=Budget(1e-5), noise_std=5.0, strong_convexity=3.0, tolerance=1e-3)
    solved = perturbation.solve

    def far(problem: LinearObjective, records: Records, linear: Any, tolerance: float, noise_std: float) -> Solution:
        exact = solved(problem, records, linear, tolerance, noise_std)
        theta = -np.asarray(linear) / problem.strong_convexity
        theta[0] += (tolerance if len(records) == 1 else -tolerance) / problem.strong_convexity
        residual = RegularisedSum(problem, records, linear).evaluate(theta, False)[1]
        assert np.linalg.norm(residual) <= mechanism.residual(problem.facts) * (1 + 1e-9)
        return replace(exact, theta=theta)

    monkeypatch.setattr(perturbation, "solve", far)
    (released,) = places_in("mechanisms/objective.py")[1:]
    queries: list[Any] = []
    charged = 0.0
    for count in (1, 2):
        records = objective.records(np.zeros((count, 3)), np.ones(count))
        channel = Channel.open(0)
        for place, query, sensitivity in asked(lambda: mechanism.release(objective, records, channel)):  # noqa: B023
            if place == released:
                queries.append(query)
                charged = sensitivity
    assert 0.999 * charged < np.linalg.norm(queries[1] - queries[0]) <= charged * (1 + 1e-9)


def test_every_place_that_releases_is_run() -> None:
    left = {place for place in places() if place.module not in CLAIMED | set(ELSEWHERE)}
    for module in sorted(MODULES, key="persons".__eq__):  # its entries take seconds to make, and are the last that are needed
        for _, _, _, released in trainings(module) if left else ():
            left -= set(released)
    assert left == set(), "it releases, and no entry of the catalogue runs through it"


@pytest.mark.parametrize(("module", "tests"), ELSEWHERE.items(), ids=ELSEWHERE)
def test_what_is_no_mechanism_is_halved_elsewhere(module: str, tests: str) -> None:
    assert f'places_in("{module}")' in (Path(__file__).parents[1] / tests).read_text()
