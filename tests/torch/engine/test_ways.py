"""Models that use parameters in other ways than through their layers, whose records take several ways, or that no vmap can
run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import ModuleObjective
from helpers.oracle import assert_exact, by_autograd, half_squares

SIZE = 4
GOALS = torch.linspace(-1, 1, SIZE, dtype=torch.float64)

one_at_a_time = pytest.mark.filterwarnings("ignore:.*one record at a time.*:UserWarning")


def inputs(*shape: int) -> Tensor:
    return torch.randn(SIZE, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Scaled(nn.Module):
    """A frozen layer whose outputs are scaled by parameters that a dict holds, as IA3 and LoRA for embeddings keep theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4).requires_grad_(False)
        self.scales = nn.ParameterDict({"default": torch.ones(4)})

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scales["default"]


def test_parameters_that_another_module_uses() -> None:
    model = nn.Sequential(Scaled(), nn.Tanh(), nn.Linear(4, 3), Scaled_of(3)).double()
    assert assert_exact(model, inputs(5, 3), GOALS).copied == ()


def Scaled_of(width: int) -> nn.Module:
    made = Scaled()
    made.layer, made.scales = nn.Linear(width, 4).requires_grad_(False), nn.ParameterDict({"default": torch.ones(4)})
    return made


class Rotated(nn.Module):
    """A layer called on records and on the unit matrix, as DoRA calls its own."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.length = nn.Linear(3, 4, bias=False), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.low(torch.eye(3, dtype=x.dtype)).T
        return self.low(x) * (self.length / weight.norm(dim=1).detach())


def test_a_layer_that_is_called_on_no_record() -> None:
    assert assert_exact(nn.Sequential(Rotated(), nn.Linear(4, 2)).double(), inputs(5, 3), GOALS).copied == ()


class Biased(nn.Module):
    """Attention with a learned table of relative positions, looked up without any record, as in T5 and BEiT."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mix = nn.Embedding(9, 2), nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[1])
        bias = self.table(steps[:, None] - steps[None, :] + 4).permute(2, 0, 1)
        q, k, v = self.mix(x).unflatten(-1, (3, 2, 2)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None]).transpose(1, 2).flatten(2)


def test_a_learned_bias_of_attention() -> None:
    model = nn.Sequential(nn.Linear(3, 4), Biased(), nn.Linear(4, 2)).double()
    assert assert_exact(model, inputs(5, 3), GOALS, vmapped=False).copied == ()


class Started(nn.Module):
    """An LSTM whose first state is learned."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.core = nn.LSTM(3, 4, depth, batch_first=True)
        self.start = nn.Parameter(torch.randn(2, depth, 1, 4))

    def forward(self, x: Tensor) -> Tensor:
        h, c = self.start.expand(-1, -1, len(x), -1)
        return self.core(x, (h.contiguous(), c.contiguous()))[0][:, -1]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_learned_first_state(depth: int) -> None:
    model = nn.Sequential(Started(depth), nn.Linear(4, 2)).double()
    assert assert_exact(model, inputs(5, 3), GOALS, vmapped=False).copied == ("0.start",)


@one_at_a_time
@pytest.mark.parametrize(
    "normalise", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm], ids=["hook", "parametrised"]
)
def test_spectral_normalisation_in_training_mode(normalise: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(normalise(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)).double().train()
    x, before = inputs(3), {name: buffer.clone() for name, buffer in model.named_buffers()}
    objective = ModuleObjective(model, half_squares)
    found = objective.evaluate(x, GOALS)
    whole = found.weighted_sum(torch.ones(SIZE))
    # power iterations of one record must not reach the next: a record has one gradient, wherever it is
    turned = objective.evaluate(x.flip(0), GOALS.flip(0))
    assert torch.equal(turned.norms.flip(0), found.norms)
    apart = sum(objective.evaluate(x[i : i + 1], GOALS[i : i + 1]).weighted_sum(torch.ones(1)) for i in range(SIZE))
    assert torch.allclose(whole, apart, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


class Counting(nn.Module):
    """Takes another way at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(3, 2), 0, [0]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen[0] += 1
        weight = self.layer.weight * (1 + 0.01 * self.calls + 0.01 * self.seen[0])
        return F.linear(x, weight, self.layer.bias) * (2.0 if float(x.detach().sum()) > 1e9 else 1.0)


def test_what_a_call_leaves_behind_does_not_reach_the_next_record() -> None:
    objective = ModuleObjective(nn.Sequential(Counting(), nn.Linear(2, 2)).double(), half_squares)
    x = inputs(3)
    found = objective.evaluate(x, GOALS)
    assert objective.one_by_one is None
    assert torch.allclose(objective.evaluate(x.flip(0), GOALS.flip(0)).norms.flip(0), found.norms, rtol=1e-12)
    alone = torch.cat([objective.evaluate(x[i : i + 1], GOALS[i : i + 1]).norms for i in range(SIZE)])
    assert torch.allclose(alone, found.norms, rtol=1e-12)


class Masked(nn.Module):
    """Drops inputs by a coin, and asks for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(40, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.drop(x), self.layer.weight) * (2.0 if float(x.detach().abs().sum()) > 1e9 else 1.0)


def test_each_record_draws_a_mask_of_its_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Masked(), nn.Linear(3, 2)).double().train()
    objective = ModuleObjective(model, half_squares)
    x, same = inputs(40), inputs(40)[:1].repeat(SIZE, 1)
    objective.prepare(x, GOALS)
    first = objective.evaluate(same, torch.zeros(SIZE, dtype=torch.float64))
    assert len(set(first.norms.tolist())) == SIZE


class Doubled(torch.autograd.Function):
    """Twice its input, and nothing that says how to batch it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(self.layer(x))


class Listed(nn.Module):
    """Reads each record's numbers through NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.as_tensor(np.asarray(x.detach()).sum(1, keepdims=True))


def test_a_model_that_no_vmap_runs_runs_one_record_at_a_time_and_says_so() -> None:
    model = nn.Linear(2, 4)
    with pytest.warns(UserWarning, match="one record at a time: exact, but slower"):
        objective = assert_exact(nn.Sequential(Doubling(), model).double(), inputs(3), GOALS, vmapped=False)
    assert objective.one_by_one is not None
    assert assert_exact(nn.Sequential(Listed(), model).double(), inputs(3), GOALS, vmapped=False).one_by_one is None


def test_a_record_that_takes_another_way() -> None:
    """An early exit: only some records pass the second layer, each by itself."""

    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.tanh(self.one(x))
            late = (hidden[:, 0] > 0).nonzero()[:, 0]
            return hidden.index_copy(0, late, self.two(hidden[late]))

    model, x = Early().double(), inputs(3)
    objective = ModuleObjective(model, half_squares)
    found = objective.evaluate(x, GOALS)
    assert torch.allclose(found.norms, by_autograd(model, half_squares, x, GOALS, SIZE).norm(dim=1), rtol=1e-9)
