"""Issue 43: hundreds of generated models. Wrong ones are refused or harmless, right ones train; written by somebody who did not
write what runs them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dperm.torch import ModuleObjective
from dperm.torch.structure import call_model
from helpers.generated_models import RECORDS, Case, batch_way, neighbours, production, single_norms, trains
from helpers.right_models import right_models
from helpers.wrong_models import wrong_models

WRONG, RIGHT = wrong_models(), right_models()
FAST = 40  # of each, by a fixed stride; the others are slow

#: what is known to go wrong, by idiom
KNOWN: dict[str, str] = {}


def some(cases: Sequence[Case], known: dict[str, str] | None = None) -> list[Any]:
    """All cases with their numbers, of which FAST are not slow."""
    stride = -(-len(cases) // FAST) | 1  # odd, so that it meets every setting
    params = []
    for number, case in enumerate(cases):
        marks = [] if number % stride == 0 else [pytest.mark.slow]
        params.append(pytest.param(number, case, id=f"{number}-{case.idiom}", marks=marks))
    return params


def test_43_there_are_hundreds_and_their_names_differ() -> None:
    assert len(WRONG) >= 300 and len({case.name for case in WRONG}) == len(WRONG)
    assert len(RIGHT) >= 300 and len({case.name for case in RIGHT}) == len(RIGHT)


@pytest.mark.filterwarnings("ignore")  # of slow ways, and of PyTorch: what is said is no matter here
@pytest.mark.parametrize(("number", "case"), some(WRONG))
def test_43_a_wrong_model_is_refused_before_the_charge_or_moves_a_query_by_what_is_charged(number: int, case: Case) -> None:
    if case.idiom in KNOWN:
        pytest.xfail(KNOWN[case.idiom])
    found = neighbours(case, [number % 3])  # which raises where a run fails after its charge
    if found.refused:
        assert isinstance(found.error, ValueError | TypeError), case.name
        return
    assert found.moved, case.name
    assert found.furthest <= 1 + 1e-4, case.name
    passed = production(case, [(number + 1) % 3])
    assert not passed.refused, passed.message
    assert passed.furthest <= 1e-4, case.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("number", "case"), some(RIGHT))
def test_43_a_right_model_trains_and_its_norms_are_those_of_single_records(number: int, case: Case) -> None:
    run = trains(case)
    assert not run.refused, f"{case.name}: {run.message}"
    if case.draws:
        return
    model, loss = case.make()
    inputs, targets = case.data(range(8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ModuleObjective(model.eval(), loss).evaluate(inputs, targets)
    expected = single_norms(model, loss, inputs, targets, call_model)
    assert torch.allclose(found.norms.double(), expected, rtol=1e-3, atol=1e-6), case.name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("number", "case"), some(RIGHT))
def test_43_a_right_model_moves_a_query_by_one_record(number: int, case: Case) -> None:
    assert neighbours(case, [number % 3]).furthest <= 1 + 1e-4, case.name
    assert production(case, [(number + 1) % 3]).furthest <= 1e-4, case.name


@pytest.mark.filterwarnings("ignore")
def test_43_wrong_models_are_wrong_where_they_see_all_records() -> None:
    """The attack itself: under plain autograd on the whole batch one record moves the clipped sum of many of them by more."""
    plain = [case for case in WRONG[:150] if not case.draws and case.physical != 1 and case.rows == 1]
    moved = [batch_way(case) for case in plain if _runs(case)]
    assert sum(movement > 1.05 for movement in moved) > len(moved) / 3


def _runs(case: Case) -> bool:
    try:
        model, loss = case.make()
        inputs, targets = case.data(range(RECORDS))
        return loss(call_model(model, inputs), targets).shape == (RECORDS,)
    except Exception:  # a model that PyTorch itself cannot run is no attack
        return False
