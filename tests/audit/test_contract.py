"""Everything certified is audited and never refuted, and something in each audit could have been."""

from __future__ import annotations

import pytest

from dperm.audit import Training, attack, overall, replay
from dperm.objectives.checking import refuse_contradictions
from helpers.catalogue import EPSILON, MODULES, catalogue, certified_parts, covering, entries_of, parts_of, recipes
from helpers.trials import trials_agree

#: as others, but with a filter whose noise is found anew for each run
LONG = {"recipe dpis, smoothed", "recipe dpis, adaptive", "recipe dpis, size released"}
_SHARES = 8  # of a module's entries: what may take minutes is in several tests


def test_everything_certified_is_in_the_catalogue() -> None:
    assert {name for name, *_ in catalogue()} >= LONG
    covered = set().union(*(parts_of(mechanism, objective) for _, mechanism, objective in catalogue()))
    assert certified_parts() - covered == set(), "certified, but not audited: add it to tests/helpers/catalogue"
    named = {name.removeprefix("recipe ").partition(",")[0] for name, *_ in catalogue() if name.startswith("recipe ")}
    assert recipes() - named == set(), "a recipe that is not audited: add it to tests/helpers/catalogue"


def test_no_loss_contradicts_itself() -> None:
    """What a stranger's is held to when an objective is made."""
    audited = {(objective.loss, objective.row_norm, objective.radius) for _, _, objective in catalogue()}
    for loss, row_norm, radius in audited:
        if loss.outputs == 1:
            refuse_contradictions(loss, row_norm, radius)


@pytest.mark.parametrize("module", MODULES)
def test_nothing_certified_moves_more_than_it_is_charged(module: str) -> None:
    """Each part of each module's entries, alone and in many trials at once; the slow tests have every entry."""
    for name, mechanism, objective in covering([entry for entry in entries_of(module) if entry[0] not in LONG]):
        replayed = replay(Training.of_mechanism(mechanism, objective))
        assert replayed.verdict == "consistent", f"{name}: {replayed}"
        assert replayed.details["largest_movement"] > 0.02, f"{name}: of what is charged; pairs that move so little test nothing"
        trials_agree(mechanism, objective)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(_SHARES))
@pytest.mark.parametrize("module", MODULES)
def test_nothing_certified_is_refuted_by_many_trials(module: str, share: int) -> None:
    for name, mechanism, objective in entries_of(module)[share::_SHARES]:
        training = Training.of_mechanism(mechanism, objective)
        results = attack(training, trials=5000 if training.many is None else 50_000)
        assert overall(results) == "consistent", name + "\n" + "\n".join(map(str, results))
        replayed, game = results
        assert replayed.details["largest_movement"] > 0.02, name
        assert game.epsilon_lower <= EPSILON, name
        assert game.auc > 0.51, name  # the worlds differ, by four standard errors and more: what sees nothing refutes nothing
