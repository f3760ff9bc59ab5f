"""Issue 43: hundreds of generated models. Wrong ones are refused or harmless, right ones train; written by somebody who did not
write what runs them."""

from __future__ import annotations

import os
import random
import secrets
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dperm.torch import ModuleObjective
from dperm.torch.tensors.nested import call_model
from helpers.generated_models import (
    RECORDS,
    Case,
    batch_way,
    neighbours,
    production,
    single_norms,
    trains,
)
from helpers.right_models import right_models
from helpers.wrong_models import wrong_models

WRONG, RIGHT = wrong_models(), right_models()
FAST = 8  # of each, by a fixed stride; the others are slow


def some(cases: Sequence[Case]) -> list[Any]:
    """Cases with their numbers, of which about FAST are not slow."""
    stride = -(-len(cases) // FAST) | 1  # odd, so that it meets every setting
    return [
        pytest.param(number, case, id=f"{number}-{case.idiom}", marks=[] if number % stride == 0 else [pytest.mark.slow])
        for number, case in enumerate(cases)
    ]


def hold(number: int, case: Case) -> None:
    """Refused before the charge, or within what is charged, by whole runs and by passes alone."""
    found = neighbours(case, [number % 3])  # which raises where a run fails after its charge
    if found.refused:
        assert isinstance(found.error, ValueError | TypeError), f"{case.name}: {found.message}"
        return
    assert found.furthest <= 1 + 1e-4, case.name
    passed = production(case, [(number + 1) % 3])
    assert not passed.refused, passed.message
    assert passed.furthest <= 1e-4, case.name


def test_there_are_hundreds_and_their_names_differ() -> None:
    assert len(WRONG) >= 300 and len({case.name for case in WRONG}) == len(WRONG)
    assert len(RIGHT) >= 300 and len({case.name for case in RIGHT}) == len(RIGHT)


@pytest.mark.filterwarnings("ignore")  # of slow ways, and of PyTorch: what is said is no matter here
@pytest.mark.parametrize(("number", "case"), some(WRONG))
def test_a_wrong_model_is_refused_before_the_charge_or_moves_a_query_by_what_is_charged(number: int, case: Case) -> None:
    hold(number, case)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("number", "case"), some(RIGHT))
def test_a_right_model_trains_and_its_norms_are_those_of_single_records(number: int, case: Case) -> None:
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
    assert torch.allclose(found.norms.double(), expected, rtol=1e-3, atol=1e-5), case.name


#: right models that draw by a shape that is a tuple
BY_PLACE = ("two towers with drawn negatives", "cut out", "word dropout", "skip grams")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("number", "case"), some(RIGHT))
def test_a_right_model_moves_a_query_by_one_record(number: int, case: Case) -> None:
    assert neighbours(case, [number % 3], align=True).furthest <= 1 + 1e-4, case.name


@pytest.mark.fast_cases("cut out", "word dropout")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("idiom", BY_PLACE)
def test_draws_of_right_models_go_by_record(idiom: str) -> None:
    case = next(case for case in RIGHT if case.idiom == idiom)
    assert neighbours(case, [0], align=True).furthest <= 1 + 1e-4, case.name


@pytest.mark.filterwarnings("ignore")
def test_wrong_models_are_wrong_where_they_see_all_records() -> None:
    """The attack itself: under plain autograd on the whole batch one record moves the clipped sum of many of them by more."""
    plain = [case for case in WRONG[:30] if not case.draws and case.physical != 1 and case.rows == 1]
    moved = [batch_way(case) for case in plain if _runs(case)]
    assert sum(movement > 1.05 for movement in moved) > len(moved) / 3


def _runs(case: Case) -> bool:
    try:
        model, loss = case.make()
        inputs, targets = case.data(range(RECORDS))
        return loss(call_model(model, inputs), targets).shape == (RECORDS,)
    except Exception:  # a model that PyTorch itself cannot run is no attack
        return False


class Signed(nn.Module):
    """A sign for all that it is given, by a coin; losses of equal and opposite records cancel whatever the sign is."""

    def __init__(self, coin: Callable[[], int]) -> None:
        super().__init__()
        self.layer, self.coin = nn.Linear(6, 1, bias=False), coin

    def forward(self, x: Tensor) -> Tensor:
        sign = 2.0 * int(self.coin()) - 1.0
        return self.layer(x)[:, 0] * sign + 1e-9 * torch.rand(len(x))  # what draws in every mode is not looked at


COINS: dict[str, Callable[[], int]] = {
    "os.urandom": lambda: os.urandom(1)[0] & 1,
    "secrets": lambda: secrets.randbelow(2),
    "SystemRandom": lambda: random.SystemRandom().randrange(2),
    "Random": lambda: random.Random().randrange(2),
    "default_rng": lambda: int(np.random.default_rng().integers(2)),
    "uuid4": lambda: uuid.uuid4().int & 1,
    "clock": lambda: time.perf_counter_ns() // 100 % 2,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("coin", COINS)
def test_a_coin_of_the_system_is_refused_or_the_same_in_all_physical_batches(coin: str) -> None:
    """Pairs that cancel, in physical batches of two: their sum is zero, whatever the coins. A record without a gradient in front
    parts all pairs. No coupling of coins makes a sum that is always zero one that is mostly long."""
    torch.manual_seed(0)
    half = torch.randn(12, 6)
    x = torch.cat([torch.zeros(1, 6), torch.stack([half, -half], 1).reshape(24, 6)])
    objective = ModuleObjective(Signed(COINS[coin]), lambda outputs, targets: outputs + 0 * targets)
    try:
        objective.prepare(x, torch.zeros(25))
    except ValueError:
        return
    for start in (1, 0):
        sums = []
        for _ in range(4):
            objective.engine.draws.next_step()
            parts = [x[begin : begin + 2] for begin in range(start, 25, 2)]
            passes = [objective.per_example(objective.theta, (part, torch.zeros(len(part)))) for part in parts]
            sums.append(sum(found.weighted_sum((1 / found.norms).clamp(max=1.0)) for found in passes).norm())
        assert float(torch.stack(sums).mean()) <= 1 + 1e-4, coin


class Centring(TorchDispatchMode):
    """A mode of the user's, which lies below what batches records."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        return out - out.mean(0) if function is torch.ops.aten.tanh.default else out


def by_mode(h: Tensor) -> Tensor:
    with Centring():
        return torch.tanh(h)


def by_default_hooks(h: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, lambda kept: kept - kept.mean(0)):
        return torch.tanh(h) * h


def by_unwrapping(h: Tensor) -> Tensor:
    inner = torch._C._functorch.get_unwrapped(h) if torch._C._functorch.is_batchedtensor(h) else h
    return h + inner.detach().reshape(-1)[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("below", [by_mode, by_default_hooks, by_unwrapping])
def test_what_lies_below_the_batching_is_refused_or_harmless(below: Callable[[Tensor], Tensor]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(6, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.leave(below(self.enter(x)))

    torch.manual_seed(0)
    x, y = torch.randn(12, 6), torch.arange(12) % 2
    objective = ModuleObjective(Net(), nn.CrossEntropyLoss(reduction="none"))
    sums = []
    for scale in (1.0, 50.0):
        x[-1] *= scale
        try:
            found = objective.evaluate(x, y)
        except ValueError:
            return
        factors = (0.1 / found.norms).clamp(max=1.0)
        factors[-1] = 0.0
        sums.append(found.weighted_sum(factors))
    assert float((sums[0] - sums[1]).norm()) / 0.1 <= 1e-4


PLACES: dict[str, Callable[[Tensor], Tensor]] = {
    "randint": lambda x: torch.randint(0, 2, (len(x),)).float()[:, None],
    "rand": lambda x: (torch.rand(x.shape) < 0.5).float(),
    "randn": lambda x: (torch.randn((len(x), 1)) < 0).float(),
}


@pytest.mark.parametrize("draw", PLACES)
def test_draws_of_a_shape_do_not_repeat_in_the_next_physical_batch(draw: str) -> None:
    """Records and their negatives in the next batch: with equal draws their gradients cancel in every step, whoever is there."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * (2 * PLACES[draw](x) - 1))[:, 0]

    torch.manual_seed(0)
    x, y = torch.randn(16, 6), torch.zeros(16)
    objective = ModuleObjective(Net(), lambda outputs, targets: outputs + 0 * targets)
    objective.prepare(x, y)
    one, other = (objective.per_example(objective.theta, (part, y)).weighted_sum(torch.ones(16)) for part in (x, -x))
    assert float((one + other).norm()) > 1e-3
