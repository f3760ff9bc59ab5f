"""Functions of trained parameters alone, and of a parameter and a record entry by entry: exact, and without a copy of weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import ModuleObjective
from helpers.language_models import FAMILIES, ImageModel, Style, made, next_words, words
from helpers.oracle import assert_exact, by_autograd, half_squares

SIZE = 4


def targets(size: int = SIZE) -> Tensor:
    return torch.linspace(-1, 1, size, dtype=torch.float64)


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_language_models_have_neither_copies_nor_single_records(family: str) -> None:
    model, numbers = made(FAMILIES[family]).double(), words(SIZE)
    objective = assert_exact(model, numbers, numbers, next_words, vmapped=False)
    assert objective.one_by_one is None and not objective.copied


def test_a_vision_transformer_has_neither() -> None:
    torch.manual_seed(0)
    objective = assert_exact(ImageModel().double(), inputs(SIZE, 1, 4, 4), targets(), vmapped=False)
    assert objective.one_by_one is None and not objective.copied


class Holds(nn.Module):
    """Calls `function(holder, x)` between two layers; `p`, `q` and `w` are its parameters."""

    def __init__(self, function: Callable[[Holds, Tensor], Tensor], shape: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.enter = nn.Linear(4, 4)
        self.p, self.q = nn.Parameter(torch.rand(shape) + 0.5), nn.Parameter(torch.rand(shape) + 0.5)
        self.w, self.table = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(3, 4, 4))
        self.register_buffer("mask", torch.tensor([[1.0, 0.0, 1.0, 1.0]] * 4))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.function(self, torch.tanh(self.enter(x))))


def _in_place(holder: Holds, x: Tensor) -> Tensor:
    y = x * 1
    y *= holder.p
    y += holder.q
    return y.div_(holder.p)


def _scaled_weights(holder: Holds, x: Tensor) -> Tensor:
    return F.linear(x, holder.p[..., :1, None] * holder.w / holder.w.norm(dim=1, keepdim=True), holder.q.flatten()[:4])


def _sliced(holder: Holds, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1])
    return F.linear(x, holder.table[1]) + F.linear(x, holder.table[-1], holder.w[2]) + holder.w[: x.shape[1]] + holder.w[places]


def _cached(holder: Holds, x: Tensor) -> Tensor:
    """One function of parameters that goes to several rules."""
    weight = torch.tanh(holder.w) * holder.mask
    return F.linear(x @ weight, weight.T) + weight[0] * x + weight.mean()


def _written(holder: Holds, x: Tensor) -> Tensor:
    """A record's numbers in a tensor that was made of parameters, which are used again before and after."""
    tokens = holder.w.repeat(len(x), 1, 1)
    first = x * tokens.sum((1, 2), keepdim=True)
    tokens += x.mean((1, 2), keepdim=True)
    tokens.mul_(2.0)
    return first + x @ tokens


def _by_records(holder: Holds, x: Tensor) -> Tensor:
    return x * holder.w[(x[..., 0] * 100).long() % 7 - 4] + holder.w[x[..., 0].argmax(-1)][:, None]


FUNCTIONS: dict[str, Callable[[Holds, Tensor], Tensor]] = {
    "left": lambda holder, x: holder.p * x,
    "right": lambda holder, x: x * holder.p + holder.q,
    "function": lambda holder, x: torch.mul(torch.add(x, holder.p, alpha=2.0), holder.q),
    "differences": lambda holder, x: (holder.p - x) / holder.q - (x - holder.q) / holder.p + 1 / holder.p,
    "divided by x": lambda holder, x: holder.p / (x + 3),
    "subtracted": lambda holder, x: torch.sub(holder.p, x, alpha=0.5) + x.sub(holder.q).multiply(holder.p),
    "in place": _in_place,
    "one more": lambda holder, x: x * (1.0 + holder.p) + x * (holder.p + holder.q).exp(),
    "reached by another way": lambda holder, x: x * holder.p + (x * x) * torch.sigmoid(holder.p) + F.linear(x, holder.w * 2),
    "scaled weights": _scaled_weights,
    "turned": lambda holder, x: x @ holder.w.T + F.linear(x, holder.w.t()) + x @ holder.w,
    "sliced": _sliced,
    "cached": _cached,
    "written into": _written,
    "looked up": _by_records,
    "joined": lambda holder, x: F.linear(x, torch.cat([holder.w[:2], holder.mask[:1], holder.w[3:]])),
    "compared": lambda holder, x: torch.where(holder.w.sum() > 0, x, -x) * holder.w.detach().sum() + x * holder.p,
    "single precision": lambda holder, x: x * holder.p.float() + F.linear(x.float(), holder.w.float()).double(),
    "latent queries": lambda holder, x: F.scaled_dot_product_attention(
        F.linear(holder.w, holder.w)[None], x, x
    ).mean(1, keepdim=True) + x,
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_parameters(name: str) -> None:
    model = Holds(FUNCTIONS[name], (4,)).double()
    assert assert_exact(model, inputs(SIZE, 3, 4), targets(), vmapped=False).one_by_one is None


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3, 1), (3, 4), (1, 3, 4), (4, 1, 1, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("size", [3, 4])  # as many records as an axis has entries
def test_parameters_of_any_shape_are_broadcast(shape: tuple[int, ...], size: int) -> None:
    def use(holder: Holds, x: Tensor) -> Tensor:
        found = holder.p * x - holder.q
        return found.sum(0) if len(shape) > 3 else found  # the parameter has an axis more than all records together

    model = Holds(use, shape).double()
    assert not assert_exact(model, inputs(size, 3, 4), targets(size), vmapped=False).copied


# In one ordinary batch, as where parameters are sharded


def assert_exact_beside(model: nn.Module, x: Tensor, y: Tensor, loss: Any = half_squares) -> None:
    expected = by_autograd(model, loss, x, y, len(y))
    found = ModuleObjective(model, loss, independence="tested").evaluate(x, y)
    factors = torch.linspace(0.1, 1.0, len(y), dtype=torch.float64)
    assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-9)
    assert torch.allclose(found.weighted_sum(factors), factors @ expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("size", [3, 4])
def test_functions_of_parameters_in_one_batch(size: int) -> None:
    for name, function in FUNCTIONS.items():
        model = Holds(function, (4,)).double()
        if name == "written into":
            with pytest.raises(ValueError, match="no record can have a copy of a parameter that is sharded"):
                assert_exact_beside(model, inputs(size, 3, 4), targets(size))
        else:
            assert_exact_beside(model, inputs(size, 3, 4), targets(size))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (3, 1), (1, 3, 4), (1, 1, 4)])
def test_parameters_of_any_shape_are_broadcast_in_one_batch(shape: tuple[int, ...]) -> None:
    assert_exact_beside(Holds(lambda holder, x: holder.p * x - holder.q, shape).double(), inputs(3, 3, 4), targets(3))


def test_a_row_for_each_place_in_the_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="depends on its place in the batch"):
        assert_exact_beside(Holds(lambda holder, x: holder.p * x, (3, 3, 4)).double(), inputs(3, 3, 4), targets(3))


@pytest.mark.parametrize("family", ["GPT-2", "Llama, tied", "Qwen 3", "Gemma 3", "Phi", "OLMo 2"])
def test_families_in_one_batch(family: str) -> None:
    numbers = words(SIZE)
    assert_exact_beside(made(FAMILIES[family]).double(), numbers, numbers, next_words)


def test_huge_and_tiny_numbers_and_half_precision_never_understate_norms() -> None:
    x, y = inputs(SIZE, 3, 4).float(), targets().float()
    for scale, size in ((1e-30, 1.0), (1e-3, 1e12), (1e-12, 1e-12)):

        def loss(outputs: Tensor, goals: Tensor, size: float = size) -> Tensor:
            return half_squares(outputs, goals) * size

        model = Holds(lambda holder, x: (x * holder.p) * (1.0 + holder.q) + holder.w[0], (4,))
        with torch.no_grad():
            model.p.mul_(scale)
        exact = by_autograd(model.double(), loss, x.double(), y.double(), SIZE).norm(dim=1)
        found = ModuleObjective(model.float(), loss).evaluate(x, y)
        assert (found.norms.double() >= exact * (1 - 1e-6)).all() and (found.norms.double() <= exact * (1 + 1e-3)).all()
    narrow = ModuleObjective(Holds(FUNCTIONS["one more"], (4,)), half_squares, autocast=torch.bfloat16).evaluate(x, y)
    wide = ModuleObjective(Holds(FUNCTIONS["one more"], (4,)), half_squares).evaluate(x, y)
    assert torch.allclose(narrow.norms, wide.norms, rtol=0.05)


def test_records_that_are_not_finite_come_to_nothing_alone() -> None:
    model = Holds(FUNCTIONS["cached"], (4,)).double()
    x = inputs(SIZE, 3, 4)
    expected = ModuleObjective(model, half_squares).evaluate(x, targets()).norms
    x[1] = float("inf")
    found = ModuleObjective(model, half_squares).evaluate(x, targets())
    assert found.norms[1] == 0 and torch.allclose(found.norms[[0, 2, 3]], expected[[0, 2, 3]], rtol=1e-10)
    assert found.weighted_sum(torch.ones(SIZE)).isfinite().all()


def test_experts_keep_factors_in_place_of_gradients() -> None:
    """Gradients of all experts of each record would take as much memory as the model, for each record."""
    style = Style(experts=4, width=32, hidden=64, layers=1, vocabulary=32)
    model = made(style)
    numbers = words(8, 3, 32)
    objective = ModuleObjective(model, next_words)
    found = objective.evaluate(numbers, numbers)
    weights = model.layers[0].feed.up.numel() * 4 * 8
    assert objective.one_by_one is None
    assert not objective.copied
    assert found.bytes_held < weights
