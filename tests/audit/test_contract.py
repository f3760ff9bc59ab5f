"""Everything certified is audited and never refuted, and something in each audit could have been."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from dperm.audit import Training, attack, overall, replay
from dperm.mechanisms import Mechanism
from dperm.objectives import LinearObjective
from helpers.catalogue import EPSILON, catalogue, certified_parts, parts_of, recipes

CATALOGUE = list(catalogue())
#: as others, but with a filter whose noise is found anew for each run
LONG = {"recipe dpis, smoothed", "recipe dpis, adaptive", "recipe dpis, size released"}


def covering() -> set[str]:
    """Names of few entries that together have every certified part under every relation that any has it under."""
    parts = {
        name: {(part, objective.facts.relation) for part in parts_of(mechanism, objective)}
        for name, mechanism, objective in CATALOGUE
        if name not in LONG
    }
    chosen, left = set[str](), set().union(*parts.values())
    while left:
        best = max(parts, key=lambda name: len(parts[name] & left))
        chosen.add(best)
        left -= parts[best]
    return chosen


def entries(always: Collection[str] = ()) -> pytest.MarkDecorator:
    """All of them; those that do not run `always` are slow."""
    marks = {False: [pytest.mark.slow], True: []}
    params = [pytest.param(*entry[1:], id=entry[0], marks=marks[entry[0] in always]) for entry in CATALOGUE]
    return pytest.mark.parametrize(("mechanism", "objective"), params)


def test_everything_certified_is_in_the_catalogue() -> None:
    assert {name for name, *_ in CATALOGUE} >= LONG
    covered = set().union(*(parts_of(mechanism, objective) for _, mechanism, objective in CATALOGUE))
    assert certified_parts() - covered == set(), "certified, but not audited: add it to tests/helpers/catalogue"
    named = {name.removeprefix("recipe ").partition(",")[0] for name, *_ in CATALOGUE if name.startswith("recipe ")}
    assert recipes() - named == set(), "a recipe that is not audited: add it to tests/helpers/catalogue"


@entries(covering())
def test_nothing_certified_moves_more_than_it_is_charged(mechanism: Mechanism, objective: LinearObjective) -> None:
    replayed = replay(Training.of_mechanism(mechanism, objective))
    assert replayed.verdict == "consistent", replayed
    assert replayed.details["largest_movement"] > 0.02


@pytest.mark.slow
@entries()
def test_nothing_certified_is_refuted_by_many_trials(mechanism: Mechanism, objective: LinearObjective) -> None:
    training = Training.of_mechanism(mechanism, objective)
    results = attack(training, trials=5000 if training.many is None else 50_000)
    assert overall(results) == "consistent", "\n".join(map(str, results))
    replayed, game = results
    assert replayed.details["largest_movement"] > 0.02
    assert game.epsilon_lower <= EPSILON
    assert game.auc > 0.51  # the worlds do differ, by four standard errors and more: an attack that sees nothing refutes nothing
