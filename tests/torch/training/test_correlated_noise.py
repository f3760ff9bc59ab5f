"""Correlated noise of networks: what is kept of it, and taken back, is in double precision, whatever the model's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dperm._random import Randomness
from dperm.audit.recording import Forced, Recorder
from dperm.gradient import SGD, Clip, Constant, FixedOrder, Plan
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.privacy import Relation
from dperm.release import Channel
from dperm.torch import ModuleObjective, TorchRecords
from dperm.torch.ranks.tensor_noise import TorchSource

RECORDS, BATCHES, STEPS = 30, 8, 40


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def in_order(self: Any, generator: np.random.Generator, records: int, steps: int) -> Iterator[Any]:
    everyone = np.arange(records)
    return (everyone[everyone % BATCHES == (step + RECORDS - 1) % BATCHES] for step in range(steps))  # the last one is first


def test_noise_of_many_sensitivities_leaves_no_rounding_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision what is kept of noise 30,000 times the sensitivity is rounded by half of that in all."""
    monkeypatch.setattr(FixedOrder, "indices", in_order)
    torch.manual_seed(0)
    objective = ModuleObjective(nn.Linear(500, 4), cross_entropy)
    inputs, targets = 5 * torch.randn(RECORDS, 500), torch.randint(0, 4, (RECORDS,))
    strategy = BandedToeplitz(BATCHES)
    plan = Plan(FixedOrder(BATCHES), Clip(1.0), Constant(3e4), SGD(1e-9), STEPS, RECORDS, correlation=strategy)
    runs: list[Any] = []
    for records in (RECORDS, RECORDS - 1):
        there = np.where(np.arange(RECORDS) < records, np.arange(RECORDS), -1)
        own = TorchSource(Randomness.from_system(), torch.device("cpu"))
        source: Any = Forced(runs[0], there, np.array([], dtype=np.intp)) if runs else Recorder(own)
        channel = Channel.open(source)
        channel.charge(plan.event(Relation.ADD_OR_REMOVE_ONE), "test")
        gradients = plan.gradients(objective, TorchRecords((inputs[:records], targets[:records])), channel)
        for _ in range(STEPS):
            assert gradients(objective.theta).dtype == torch.float32
        runs.append(source.recording)
    pairs = zip(*(run.releases for run in runs), strict=True)
    squares = [float(np.sum(np.square(a.query - b.query))) / a.sensitivity**2 for a, b in pairs]
    assert 0.99 < math.sqrt(sum(squares)) <= 1 + 1e-6
