"""Models that are odd, and that users write: what each does must be exact, or refused before anything is charged."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dperm._random import Randomness
from dperm.audit.recording import Forced, Recorder, Recording
from dperm.gradient import FixedOrder, LocalUpdate, Plan, Poisson
from dperm.gradient.recipes import dp_fedavg
from dperm.gradient.third_party_parts import third_party_assumptions
from dperm.torch import ModuleObjective, PrivateTrainer
from dperm.torch.ranks.tensor_noise import TorchSource
from helpers.oracle import assert_exact, half_squares

N = 12
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


# Clients that change their model, or the process, while they train


def _replaces_a_layer(model: Changing) -> None:
    model.last = nn.Linear(4, 2)


def _replaces_a_parameter(model: Changing) -> None:
    model.last.weight = nn.Parameter(torch.zeros(2, 4))


def _adds_a_layer(model: Changing) -> None:
    model.more = nn.Linear(3, 3)


def _freezes(model: Changing) -> None:
    model.last.weight.requires_grad = False


def _removes_a_bias(model: Changing) -> None:
    model.last.register_parameter("bias", None)


def _narrows(model: Changing) -> None:
    torch.set_autocast_enabled("cpu", True)


def _widens(model: Changing) -> None:
    torch.set_default_dtype(torch.float64)


def _rounds(model: Changing) -> None:
    decimal.getcontext().prec = 2


class Changing(nn.Module):
    """Changes where training made its outputs large, as one client's weight in the loss does. Its outputs depend on switches."""

    def __init__(self, change: Callable[[Changing], None]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.change = nn.Linear(3, 4), nn.Linear(4, 2), change

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.last(torch.tanh(self.first(x)))
        switches = float(decimal.Decimal(1) / decimal.Decimal(3)) + torch.zeros(()).element_size()
        if (outputs.abs() > 50).any():
            self.change(self)
        return outputs.float() + switches * x[:, :2]


@pytest.mark.parametrize(
    "change",
    [_replaces_a_layer, _replaces_a_parameter, _adds_a_layer, _freezes, _removes_a_bias, _narrows, _widens, _rounds],
)
def test_a_client_that_changes_the_model_or_the_process_moves_no_more_than_is_charged(
    change: Callable[[Changing], None],
) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y, weights = torch.randn(N + 1, 3, generator=generator), torch.arange(N + 1) % 2, torch.ones(N + 1)
    weights[N] = 1e4

    def weighted(outputs: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        return CROSS_ENTROPY(outputs, targets[0]) * targets[1]

    def run(source: Recorder | Forced, records: int) -> tuple[Recording, Tensor]:
        model = Changing(change)
        plan = partial(dp_fedavg, rounds=2, expected_cohort=N, local_steps=2, local_learning_rate=0.3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = PrivateTrainer(
            model, weighted, optimizer, plan, noise_multiplier=1.0, delta=1e-5, clipping_norm=0.01, public_size=N,
            random_state=source,
        )  # fmt: skip
        trainer.fit((x[:records], (y[:records], weights[:records])), progress=False)
        return source.recording, nn.utils.parameters_to_vector(model.parameters()).detach()

    reference, before = run(Recorder(TorchSource(Randomness.fixed(0), torch.device("cpu"))), N)
    forced, after = run(Forced(reference, np.arange(N), np.array([N])), N + 1)
    pairs = list(zip(reference.releases, forced.releases, strict=True))
    moved = [float(np.linalg.norm(one.query - other.query)) / one.sensitivity for one, other in pairs]
    assert max(moved) <= 1 + 1e-6
    assert float((before - after).norm()) < 1e-5  # releases are forced to be the same, and so is what follows from them
    assert torch.get_default_dtype() == torch.float32
    assert decimal.getcontext().prec == 28
    assert not torch.is_autocast_enabled("cpu")


def test_a_secret_cohort_is_assumed_only_where_clients_are_drawn() -> None:
    from dperm.gradient import SGD, Clip, Constant

    def keys(sampler: Any) -> set[str]:
        local = LocalUpdate(1, 0.1)
        plan = Plan(sampler, Clip(1.0), Constant(1.0), SGD(1.0), 5, 10, query=local)
        return {assumption.key for assumption in third_party_assumptions(plan)}

    assert keys(FixedOrder(5)) == {"trusted server"}
    assert keys(Poisson(0.2)) == {"trusted server", "secret cohort"}


# Checkpoints within checkpoints


class Nested(nn.Module):
    """The inner part is given the outer part's own argument, or finds it around itself."""

    def __init__(self, closure: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.inner, self.out, self.closure = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1), closure

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(())  # which changes nothing, and does not keep gradients from being compared

        def block(h: Tensor) -> Tensor:
            if self.closure:
                return h + checkpoint(lambda: torch.tanh(self.inner(h)), use_reentrant=False)
            return h + checkpoint(lambda g: torch.tanh(self.inner(g)), h, use_reentrant=False)

        return self.out(checkpoint(block, torch.tanh(self.enter(x)), use_reentrant=False))


@pytest.mark.parametrize("closure", [True, False])
def test_a_part_within_a_part_is_exact(closure: bool) -> None:
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    objective = assert_exact(Nested(closure).double(), x, torch.linspace(-1, 1, 5, dtype=torch.float64), vmapped=False)
    assert objective.one_by_one is None


# Functions of parameters


class Of(nn.Module):
    def __init__(self, function: Callable[[Of, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.real, self.imaginary, self.scale = (nn.Parameter(torch.rand(shape) + 0.5) for shape in ((4, 4), (4, 4), (4,)))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(())
        return self.function(self, x)


def _complex_product(m: Of, x: Tensor) -> Tensor:
    return (torch.complex(x, x.flip(1)) @ torch.complex(m.real, m.imaginary)).abs()


def _complex_linear(m: Of, x: Tensor) -> Tensor:
    return F.linear(torch.complex(x, x.flip(1)), torch.view_as_complex(torch.stack([m.real, m.imaginary], -1))).abs()


def _one_for_both(m: Of, x: Tensor) -> Tensor:
    return F.layer_norm(x @ m.real, [4], m.scale, m.scale) + F.group_norm(x @ m.imaginary, 2, m.scale, m.scale)


def _normalised(m: Of, x: Tensor) -> Tensor:
    return F.linear(x, F.normalize(m.real)) * m.scale[True]


@pytest.mark.parametrize("function", [_complex_product, _complex_linear, _one_for_both, _normalised])
def test_functions_of_parameters_that_rules_do_not_fit(function: Callable[[Of, Tensor], Tensor]) -> None:
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_exact(Of(function).double(), x, torch.linspace(-1, 1, 5, dtype=torch.float64), vmapped=False)


def test_a_normalised_weight_needs_no_copies() -> None:
    objective = ModuleObjective(Of(lambda m, x: F.linear(x, F.normalize(m.real))).double(), half_squares)
    objective.evaluate(torch.randn(5, 4).double(), torch.zeros(5).double())
    assert "real" not in objective.copied


# Whole batches


class SequenceFirst(nn.Module):
    """Turns the records to the second axis, and draws a number that changes nothing, or much."""

    def __init__(self, noise: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.noise = nn.Linear(3, 2), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.enter(x.transpose(0, 1)).mean(0) + self.noise * torch.rand(())


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_records_on_another_axis_are_refused_where_they_are_only_looked_at(noise: float) -> None:
    """The first axis of the layer's input has places, as many as a multiple of the records: norms would be of places."""
    objective = ModuleObjective(SequenceFirst(noise), CROSS_ENTROPY, independence="tested")
    with pytest.raises(ValueError, match=r"do not agree with autograd|another record|random numbers"):
        objective.prepare(torch.randn(8, 16, 3), torch.arange(8) % 2)
