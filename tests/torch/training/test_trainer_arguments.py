"""Optimizers, schedulers, callbacks and recipes that a trainer takes, and those that it refuses before the charge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dperm.gradient import Plan
from dperm.gradient.recipes import recipe
from dperm.release import SpendLog
from dperm.torch import Callback, PrivateTrainer
from helpers.oracle import cross_entropy

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 3)), np.arange(300) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


SETTINGS: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "public_size": 300}
SIMPLE: dict[str, Any] = {**SETTINGS, "epochs": 2, "expected_batch_size": 30, "clipping_norm": 1.0}
DATA = torch.from_numpy(X).float(), torch.from_numpy(Y)


def test_a_fit_after_refused_steps_takes_the_optimizer() -> None:
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0), **SIMPLE)
    with pytest.raises(ValueError, match="not finite"):
        next(trainer.steps((DATA[0] * torch.nan, DATA[1])))
    trainer.fit(DATA)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert trainer.certificate is not None and "loop" not in str(trainer.certificate.public_facts["update"])
    with pytest.raises(ValueError, match="runs once"):
        trainer.fit(DATA, ema_decay=0.9)
    assert trainer._session.spec.options.ema_decay is None


def test_schedulers_do_not_fail_after_the_charge() -> None:
    model, other = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedules = torch.optim.lr_scheduler
    trainer = PrivateTrainer(model, cross_entropy, optimizer, **SIMPLE)
    wrong: list[Any] = [schedules.StepLR, schedules.StepLR(torch.optim.SGD(other.parameters(), lr=0.1), 1)]
    for schedule in wrong:
        with pytest.raises((TypeError, ValueError), match="scheduler"):
            trainer.fit(DATA, scheduler=schedule)
    assert SpendLog.current().charges() == []
    short = schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    trainer.fit(DATA, scheduler=short, scheduler_interval="step")
    assert trainer.plan is not None
    assert trainer.plan.steps == 20
    assert short.last_epoch == 10


class Counting(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, step: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize("given", [lambda counting: (each for each in [counting]), lambda counting: counting])
def test_callbacks_of_any_kind_are_called(given: Any) -> None:
    model, counting = network(), Counting()
    trainer = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), **SIMPLE)
    trainer.fit(DATA, callbacks=given(counting))
    assert counting.steps == 20


@recipe
def numbered(*, noise_multiplier: float, public_size: int) -> Any:
    return 7


def test_recipes_that_return_no_plan_are_named() -> None:
    model = network()
    wrong: list[tuple[Any, str]] = [
        (numbered, "got int: pass a recipe"),
        (lambda *, noise: None, "marked by dperm.gradient.recipes.recipe"),
        (Plan, "Expected a plan or a recipe"),
    ]
    for plan, text in wrong:
        with pytest.raises((ValueError, TypeError), match=text):
            PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), plan, **SETTINGS).fit(DATA)
    assert SpendLog.current().charges() == []
