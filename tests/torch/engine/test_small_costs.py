"""What makes a step of small layers cheap, and must change nothing: layers without a tap, one call for all records, copies."""

from __future__ import annotations

import math
from collections import OrderedDict
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import ModuleObjective
from dperm.torch.engine.batching import together
from dperm.torch.engine.lengths import row_lengths, squared_lengths
from dperm.torch.engine.model_state import Snapshot
from dperm.torch.engine.rules.embedding import embedding
from dperm.torch.engine.rules.linear import linear
from dperm.torch.engine.rules.norm import layer_norm
from helpers.oracle import assert_exact, by_autograd, half_squares

SIZE, WIDTH = 4, 6


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def targets() -> Tensor:
    return torch.linspace(-1, 1, SIZE, dtype=torch.float64)


# Layers of which nothing is trained


class PartlyFrozen(nn.Module):
    """Trained layers behind and before frozen ones of the same kinds."""

    def __init__(self, trained: str) -> None:
        super().__init__()
        self.words, self.first, self.norm, self.last = (
            nn.Embedding(7, WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2),
        )  # fmt: skip
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith(trained))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(self.words(x)))))


@pytest.mark.parametrize(("trained", "rule"), [("words", embedding), ("first", linear), ("norm", layer_norm), ("last", linear)])
def test_only_layers_that_are_trained_are_tapped(trained: str, rule: Any) -> None:
    tokens = torch.randint(0, 7, (SIZE, 5), generator=torch.Generator().manual_seed(1))
    objective = assert_exact(PartlyFrozen(trained).double(), tokens, targets(), vmapped=False)
    assert set(objective.engine.rules) == {rule}
    assert objective.one_by_one is None


@pytest.mark.parametrize("trained", ["words", "first", "norm", "last"])
def test_frozen_layers_in_one_ordinary_run(trained: str) -> None:
    tokens = torch.randint(0, 7, (SIZE, 5), generator=torch.Generator().manual_seed(1))
    model = PartlyFrozen(trained).double()
    expected = by_autograd(model, half_squares, tokens, targets(), SIZE)
    found = ModuleObjective(model, half_squares, independence="tested").evaluate(tokens, targets())
    assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-10)
    assert torch.allclose(found.weighted_sum(targets()), targets() @ expected, rtol=1e-10)


def test_a_frozen_layer_on_a_constant_may_be_written_into() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start, self.enter = nn.Parameter(torch.randn(5, WIDTH), requires_grad=False), nn.Linear(WIDTH, WIDTH)
            self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            states = self.frozen(self.start.expand(len(x), -1, -1))
            states += self.enter(x)
            return torch.tanh(states)

    objective = assert_exact(Positions().double(), inputs(SIZE, 5, WIDTH), targets(), vmapped=False)
    assert objective.one_by_one is None


# The numbers of all records


def test_a_call_says_which_of_its_tensors_belong_to_records() -> None:
    common, found = torch.arange(3.0), []

    def whole(*given: Any) -> Tensor:
        found.append([axis for _, axis in given])
        return torch.zeros(SIZE)

    def one(x: Tensor) -> Tensor:
        assert together(lambda *given: NotImplemented, x, common) is NotImplemented
        for tensors in ((x,), (common,), (common, x), (None, common), ()):
            together(whole, x[0], *tensors)
        return together(lambda given: given[0], x, x)

    x = torch.randn(SIZE, 2)
    assert torch.equal(torch.vmap(one)(x), x)
    assert found == [[0], [None], [None, 0], [None, None], []]


def test_a_body_runs_once_also_where_it_fails() -> None:
    ran: list[int] = []

    def whole(given: Any) -> Tensor:
        ran.append(1)
        return together(lambda _: given[0], given[0], given[0])  # there are no records to be seen within

    for tensor in (torch.ones(SIZE, 2), torch.ones(2)):
        ran.clear()
        with pytest.raises(RuntimeError, match="a tensor of records"):
            torch.vmap(lambda x, tensor=tensor: together(whole, x, x if len(tensor) == SIZE else tensor))(torch.ones(SIZE, 2))
        assert len(ran) == 1


@pytest.mark.parametrize("places", [(), (3,), (2, 3)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_of_all_records_is_that_of_each(places: tuple[int, ...], smoothing: float) -> None:
    def loss(outputs: Tensor, classes: Tensor) -> Tensor:
        each = F.cross_entropy(outputs, classes, ignore_index=1, reduction="none", label_smoothing=smoothing)
        return each.flatten(1).mean(1) if each.dim() > 1 else each

    classes = torch.randint(0, 4, (SIZE, *places), generator=torch.Generator().manual_seed(1))

    class Scores(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(WIDTH, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x).movedim(-1, 1)

    assert_exact(Scores().double(), inputs(SIZE, *places, WIDTH), classes, loss)


def test_one_class_out_of_range_costs_its_record_alone() -> None:
    model = nn.Linear(WIDTH, 3).double()
    objective = ModuleObjective(model, nn.CrossEntropyLoss(reduction="none"))
    x, classes = inputs(SIZE, WIDTH), torch.tensor([0, 1, 2, 1])
    objective.prepare(x, classes)
    expected = objective.evaluate(x, classes).norms
    with objective.engine.paid_for(secret=False):
        found = objective.evaluate(x, torch.tensor([0, 1, 9, 1])).norms
    expected[2] = found[2]
    assert float(found[2]) < 1e-100
    assert torch.allclose(found, expected, rtol=1e-12)


# What is put back


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain: dict[str, Any] = {}
        self.ordered: Any = OrderedDict()  # which may have attributes
        self.several: set[int] = set()
        self.each: list[Any] = []


def test_containers_that_were_empty_are_empty_again() -> None:
    model = Keeps()
    kept = Snapshot([model])
    model.plain["a"], model.ordered["b"] = 1, 2
    model.ordered.note = [3]
    model.several.add(4)
    model.each.append(model.plain)
    kept.restore()
    assert not (model.plain or model.ordered or model.several or model.each or vars(model.ordered))


def test_attributes_of_an_empty_container_are_put_back() -> None:
    model, note = Keeps(), [1]
    model.ordered.note = note
    kept = Snapshot([model])
    note.append(2)
    vars(model.ordered).update(note=None, more=3)
    kept.restore()
    assert vars(model.ordered) == {"note": [1]}
    assert vars(model.ordered)["note"] is note


def test_what_is_empty_now_is_filled_again() -> None:
    model = Keeps()
    model.plain["a"], model.ordered["b"] = 1, 2
    model.several.add(4)
    model.each.append(5)
    kept = Snapshot([model])
    for container in (model.plain, model.ordered, model.several, model.each):
        container.clear()
    kept.restore()
    assert (model.plain, model.ordered, model.several, model.each) == ({"a": 1}, {"b": 2}, {4}, [5])


def test_entries_in_another_order_are_put_back() -> None:
    model = Keeps()
    model.ordered.update(a=1, b=2)
    model.each += ["a", "b"]
    kept = Snapshot([model])
    model.ordered.move_to_end("a")
    model.each.reverse()
    kept.restore()
    assert list(model.ordered) == model.each == ["a", "b"]


@pytest.mark.parametrize("size", [1, 2, 7, 8])  # not all are whole words
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float64, torch.complex64])
def test_a_single_bit_is_put_back(size: int, kind: torch.dtype) -> None:
    model, whole = nn.Module(), torch.ones(size + 1, dtype=kind)
    model.register_buffer("part", whole[1:])  # which begins within a word
    model.register_buffer("other", torch.zeros(size, dtype=kind))
    before = [buffer.clone() for buffer in model.buffers()]
    kept = Snapshot([model])
    whole[-1] = 0
    list(model.buffers())[1][0] = 1
    kept.restore()
    assert all(map(torch.equal, model.buffers(), before))


@pytest.mark.parametrize(("held", "now"), [(0.0, -0.0), (math.nan, 1.0), (1.0, math.nan)])
def test_signs_of_zero_and_numbers_that_are_none_are_put_back(held: float, now: float) -> None:
    model = nn.Module()
    model.register_buffer("numbers", torch.full((4,), held))
    before = torch.full((4,), held).view(torch.int32)
    kept = Snapshot([model])
    numbers = next(model.buffers())
    numbers.fill_(now)
    kept.restore()
    assert torch.equal(numbers.view(torch.int32), before)


def test_a_tensor_that_is_the_same_is_not_written_into() -> None:
    """A graph that somebody holds over the step goes on."""
    model = nn.Module()
    model.register_buffer("numbers", torch.tensor([1.0, math.nan, 2.0, -0.0]))
    weight = torch.ones(4, requires_grad=True)
    held = (next(model.buffers()) * weight).sum()
    Snapshot([model]).restore()
    held.backward()


def test_parameters_without_numbers_lie_where_they_did() -> None:
    model = nn.Module()
    model.first, model.none, model.last = (nn.Parameter(torch.ones(size)) for size in (3, 0, 2))
    objective = ModuleObjective(model, half_squares)
    buffer = objective.theta
    assert objective.theta is buffer
    model.last.data = torch.zeros(2)
    assert objective.theta is not buffer
    assert torch.equal(objective.theta, torch.tensor([1.0, 1, 1, 0, 0]))


@pytest.mark.parametrize("size", [1, 3, 255, 256, 257, 5000])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_lengths_in_single_precision_are_never_understated(size: int, scale: float) -> None:
    """Beside sums of exact squares of these very numbers."""
    values = scale * torch.randn(20, size, generator=torch.Generator().manual_seed(size))
    exact = [math.sqrt(sum(Fraction(number) ** 2 for number in row)) for row in values.tolist()]
    found = row_lengths(values).tolist()
    for length, least in zip(found, exact, strict=True):
        assert least * (1 - 1e-15) <= length <= least * (1 + 1e-11)


@pytest.mark.parametrize("size", [1, 255, 256, 257, 600])
def test_squared_lengths_count_the_numbers_behind_the_last_whole_block(size: int) -> None:
    values = torch.randn(5, size, generator=torch.Generator().manual_seed(size))
    exact = values.double().square().sum(-1)
    found = squared_lengths(values)
    assert bool((found >= exact).all())
    assert torch.allclose(found, exact, rtol=1e-4)
