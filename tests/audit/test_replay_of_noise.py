"""Replay where noise is finer than the grid, falls with a private size, or is added to queries that are no numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dperm.audit import Pair, Training, replay
from dperm.gradient import SGD, Clip, Constant, FullBatch, Plan
from dperm.gradient.recipes import dp_sgd
from dperm.mechanisms import Budget, GradientPerturbation, OutputPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.objectives.linear import LinearPass
from dperm.torch import PrivateTrainer
from helpers.oracle import cross_entropy


def gradient(objective: LinearObjective, **changes: Any) -> GradientPerturbation:
    parts: dict[str, Any] = {
        "sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(2.0), "update": SGD(0.1), "steps": 6,
        "public_size": objective.public_size or 40,
    }  # fmt: skip
    return GradientPerturbation(budget=Budget(1e-5), plan=Plan(**(parts | changes)))


def test_replay_finds_queries_that_are_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LinearPass.weighted_sum

    def spoilt(self: LinearPass, factors: Any, bound: float | None = None) -> Any:
        found = original(self, factors, bound)
        return found * np.nan if (self.norms > 0.4).any() else found

    monkeypatch.setattr(LinearPass, "weighted_sum", spoilt)
    objective = LinearObjective(Logistic(), 2, public_size=40)
    pair = Pair.adding("long", (0.1 * np.ones((5, 2)), np.ones(5)), np.array([1.0, 1.0]), -1.0)
    training = replace(Training.of_mechanism(gradient(objective, bounding=Clip(5.0)), objective), replay_pairs=[pair])
    assert replay(training).refuted


@pytest.mark.fast_cases("1e-06")
@pytest.mark.parametrize("multiplier", [1e-5, 1e-6, 1e-9])
def test_noise_finer_than_the_grid_is_no_finding(multiplier: float) -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    training = Training.of_mechanism(gradient(objective, noise=Constant(multiplier)), objective)
    found = replay(training)
    assert found.verdict == "consistent", str(found)


def test_pure_noise_finer_than_the_grid_is_no_finding() -> None:
    objective = LinearObjective(Logistic(), 3, public_size=40)
    mechanism = OutputPerturbation(budget=Budget(0.0), strong_convexity=1.0, pure_epsilon=1e10)
    found = replay(Training.of_mechanism(mechanism, objective))
    assert found.verdict == "consistent", str(found)


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 3)), np.arange(300) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


DATA = torch.from_numpy(X).float(), torch.from_numpy(Y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta = ")
def test_noise_that_falls_with_a_private_size_is_not_refuted() -> None:
    rows, labels = DATA[0][:40], DATA[1][:40]
    decaying = partial(dp_sgd, epochs=2, expected_batch_size=20, clipping_norm=1.0, decay=0.5)

    def make(source: Any) -> PrivateTrainer:
        model = network()
        settings = {"epsilon": 3.0, "delta": 1e-3, "plan": decaying, "random_state": source}
        return PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), **settings)

    pairs = [Pair.adding("one more", (rows, labels), torch.ones(3), 1)]
    assert replay(Training.of_trainer(make, (rows, labels), pairs)).verdict == "consistent"
