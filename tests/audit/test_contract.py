"""Everything certified is audited and never refuted, and something in each audit could have been."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dperm.audit import AuditResult, Pair, Training, attack, extreme_pairs, overall, replay, worst_pairs
from dperm.mechanisms import Mechanism
from dperm.objectives import Loss
from dperm.objectives.checking import refuse_contradictions
from helpers.catalogue import EPSILON, MODULES, catalogue, certified_parts, concrete, covering, entries_of, parts_of, recipes
from helpers.losses import all_losses
from helpers.trials import trials_agree

#: as others, but with a filter whose noise is found anew for each run
LONG = {"recipe dpis", "recipe dpis, smoothed", "recipe dpis, adaptive", "recipe dpis, size released"}
_SHARES = 8  # of a module's entries: what may take minutes is in several tests
_REACHED = 0.9  # of what is charged for each kind of release
_DOCS = Path(__file__).parents[2] / "docs" / "audit.md"


def kinds_of(mechanism: Mechanism) -> set[str]:
    """The kinds of release that a training by this mechanism makes, as it states them."""
    return set(mechanism.released_kinds).union(*map(kinds_of, mechanism.inner()))


def gaps() -> dict[tuple[str, str], float]:
    """What docs/audit.md lists: (kind of release, relation or "both") → the most of the charge that neighbours reach."""
    listed = re.findall(r"^\| ([a-z -]+) \| (add/remove|replace-one|both) \| ([0-9.]+) \|", _DOCS.read_text(), re.MULTILINE)
    return {(kind, relation): float(most) for kind, relation, most in listed}


def reaches(name: str, mechanism: Any, training: Training, result: AuditResult) -> set[tuple[str, str]]:
    """The gaps that a result needs. AssertionError where a kind moves by less than `_REACHED` and no gap says so, and where other
    kinds were compared than there are."""
    assert result.verdict == "consistent", f"{name}: {result}"
    assert result.details["movement"].keys() == kinds_of(mechanism), name
    assert set(result.unseen) <= {kind for kind, moved in result.details["movement"].items() if moved < _REACHED}, name
    needed: set[tuple[str, str]] = set()
    relation = "replace-one" if training.relation.value == "replace_one" else "add/remove"
    for kind, moved in result.details["movement"].items():
        if moved >= _REACHED:
            continue
        gap = next((gap for gap in gaps() if gap[0] == kind and gap[1] in (relation, "both")), None)
        assert gap is not None, f"{name}: the {kind} moves by {moved:.3g} of what is charged; pairs that move little test nothing"
        assert moved <= gaps()[gap], f"{name}: the {kind} moves by {moved:.3g}, docs/audit.md says {gaps()[gap]}"
        needed.add(gap)
    return needed


def every_sixth(pairs: list[Pair], turn: int) -> list[Pair]:
    """A sixth of the pairs, half of them reversed, so that entries in turn have all of them. Those that are much like the worst
    pairs are left out."""
    others = [pair for pair in pairs if not pair.name.startswith(("a row of the largest norm", "against aligned records"))]
    return [pair.reversed() if (number + turn // 6) % 2 else pair for number, pair in enumerate(others) if number % 6 == turn % 6]


def test_everything_certified_is_in_the_catalogue() -> None:
    assert {name for name, *_ in catalogue()} >= LONG
    assert {type(loss) for loss in all_losses()} == concrete(Loss), "a loss that is in none of the modules of dperm.objectives"
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
def test_nothing_certified_moves_more_than_it_is_charged_and_each_kind_nearly_as_much(module: str) -> None:
    """Every part over its worst pairs, under each relation; and over some of all pairs, alone and in many trials at once.

    The slow tests have every entry, and every pair in both directions.
    """
    entries = covering([entry for entry in entries_of(module) if entry[0] not in LONG], by_neighbours=True)
    parts = {name for name, *_ in covering(entries)}
    for turn, (name, mechanism, objective) in enumerate(entries):
        training, pairs = Training.of_mechanism(mechanism, objective), worst_pairs(mechanism, objective)
        if name in parts:
            pairs = [*pairs, *every_sixth(extreme_pairs(objective, classes=mechanism.target_classes), turn)]
            trials_agree(mechanism, objective)
        reaches(name, mechanism, training, replay(training, pairs, both_ways=False))


def test_gaps_that_are_listed_are_there() -> None:
    """Each is needed by an entry: one that was closed is taken off the list."""
    needed: set[tuple[str, str]] = set()
    for module, entry in (("svrg", "svrg, squared, replace_one"), ("quantile", "objective, quantile loss, add_or_remove_one")):
        name, mechanism, objective = next(each for each in entries_of(module) if each[0] == entry)
        training = Training.of_mechanism(mechanism, objective)
        needed |= reaches(name, mechanism, training, replay(training, worst_pairs(mechanism, objective), both_ways=False))
    assert needed == set(gaps())


@pytest.mark.slow
@pytest.mark.parametrize("share", range(_SHARES))
@pytest.mark.parametrize("module", MODULES)
def test_nothing_certified_is_refuted_by_many_trials(module: str, share: int) -> None:
    for name, mechanism, objective in entries_of(module)[share::_SHARES]:
        training = Training.of_mechanism(mechanism, objective)
        results = attack(training, trials=5000 if training.many is None else 50_000)
        assert overall(results) == "consistent", name + "\n" + "\n".join(map(str, results))
        replayed, game = results
        reaches(name, mechanism, training, replayed)
        assert game.epsilon_lower <= EPSILON, name
        assert game.auc > 0.51, name  # the worlds differ, by four standard errors and more: what sees nothing refutes nothing
