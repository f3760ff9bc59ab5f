"""Issue 43: what a model keeps within its reach is put back before each run: the number of passes tells nothing."""

from __future__ import annotations

import array
import contextvars
import dataclasses
import functools
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import helpers.counters
from dperm.torch import ModuleObjective
from dperm.torch.engine.model_state import Snapshot
from helpers import counters, logging_counts

WIDTH, N, BATCH = 4, 41, 10


def sign(count: int) -> float:
    return -1.0 if count % 2 else 1.0


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square()


class Base(nn.Module):
    """Multiplies its output by what `scale` says, which counts the passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, 1)
        nn.init.zeros_(self.head.bias)

    def scale(self) -> float:
        return 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x))) * self.scale()


class _Counter:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclasses.dataclass(slots=True)
class _State:
    count: int = 0


class _Named(dict[str, Any]):
    count = 0


class _Data(torch.utils.data.Dataset[Any]):
    """A data set that counts, in an attribute and in a long list."""

    def __init__(self) -> None:
        self.calls = [0] * 2000

    @property
    def count(self) -> int:
        return len(self.calls) - 2000

    @count.setter
    def count(self, count: int) -> None:
        self.calls.append(count)


class _Counted(torch.utils.data.Dataset[Any]):
    count = 0


def _counted_tensors() -> Any:
    data: Any = torch.utils.data.TensorDataset(torch.zeros(3))
    data.count = 0
    return data


class Holding(Base):
    """Counts in an object that it holds."""

    def __init__(self, holder: Any) -> None:
        super().__init__()
        self.holder = holder

    def scale(self) -> float:
        self.holder.count += 1
        return sign(self.holder.count)


class OnItsClass(Base):
    count = 0

    def scale(self) -> float:
        type(self).count += 1
        return sign(type(self).count)


class OnAParameter(Base):
    def scale(self) -> float:
        weight: Any = self.head.weight
        weight.count = getattr(weight, "count", 0) + 1
        return sign(weight.count)


class _Schedule:
    count = 0

    def scale(self) -> float:
        self.count += 1
        return sign(self.count)


class BoundMethod(Base):
    def __init__(self) -> None:
        super().__init__()
        self.schedule = _Schedule().scale

    def scale(self) -> float:
        return self.schedule()


def hooked() -> nn.Module:
    model, count = Base(), [0]

    def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        count[0] += 1
        return output * sign(count[0])

    model.head.register_forward_hook(hook)
    return model


def counted_in_a_closure() -> Callable[..., Tensor]:
    count = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return squared(outputs * sign(count), targets)

    return loss


def counted_on_itself(outputs: Tensor, targets: Tensor) -> Tensor:
    function: Any = counted_on_itself
    function.count = getattr(function, "count", 0) + 1
    return squared(outputs * sign(function.count), targets)


def counted_in_a_default(outputs: Tensor, targets: Tensor, count: list[int] = [0]) -> Tensor:  # noqa: B006
    count[0] += 1
    return squared(outputs * sign(count[0]), targets)


def _counting(count: list[int], outputs: Tensor, targets: Tensor) -> Tensor:
    count[0] += 1
    return squared(outputs * sign(count[0]), targets)


class Criterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.count += 1
        return squared(outputs * sign(self.count), targets)


def behind_a_lambda() -> Callable[..., Tensor]:
    criterion = Criterion()
    return lambda outputs, targets: criterion(outputs, targets)


class ByAStaticMethod(Base):
    @staticmethod
    def counted() -> float:
        COUNTS.append(1)
        return sign(len(COUNTS))

    def scale(self) -> float:
        return self.counted()


COUNTS: list[int] = []


class ByAProperty(Base):
    @property
    def counted(self) -> float:
        COUNTS.append(1)
        return sign(len(COUNTS))

    def scale(self) -> float:
        return self.counted


@functools.cache
def remembered(key: str) -> list[int]:
    return [0]


class ByACache(Base):
    def scale(self) -> float:
        count = remembered("count")
        count[0] += 1
        return sign(count[0])


class InAModule(Base):
    def scale(self) -> float:
        counters.count += 1
        return sign(counters.count)


class InADottedModule(Base):
    def scale(self) -> float:
        helpers.counters.count += 1
        return sign(helpers.counters.count)


class ByALocalImport(Base):
    def scale(self) -> float:
        from helpers.counters import places

        places.append(1)
        return sign(len(places))


class InAModuleNamedLikePythons(Base):
    def scale(self) -> float:
        return sign(logging_counts.counted())


class InAnArray(Base):
    def __init__(self) -> None:
        super().__init__()
        self.counts = array.array("l", [0])

    def scale(self) -> float:
        self.counts[0] += 1
        return sign(self.counts[0])


class ByAKey(Base):
    def __init__(self) -> None:
        super().__init__()
        self.named = {_Schedule(): 1.0}

    def scale(self) -> float:
        return next(iter(self.named)).scale()


class ByAMethodOfAList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.extended = COUNTS.append

    def scale(self) -> float:
        self.extended(1)
        return sign(len(COUNTS))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "slots": (lambda: Holding(_Counter()), lambda: squared),
    "slots of a dataclass": (lambda: Holding(_State()), lambda: squared),
    "attribute of a dict": (lambda: Holding(_Named()), lambda: squared),
    "attribute of the class": (OnItsClass, lambda: squared),
    "attribute of a parameter": (OnAParameter, lambda: squared),
    "object of a bound method": (BoundMethod, lambda: squared),
    "global of a static method": (ByAStaticMethod, lambda: squared),
    "global of a property": (ByAProperty, lambda: squared),
    "what a cached function remembers": (ByACache, lambda: squared),
    "attribute of a module": (InAModule, lambda: squared),
    "attribute of a dotted module": (InADottedModule, lambda: squared),
    "list of a module that is imported where it is used": (ByALocalImport, lambda: squared),
    "global of a module that is named like Python's": (InAModuleNamedLikePythons, lambda: squared),
    "array": (InAnArray, lambda: squared),
    "key of a dict": (ByAKey, lambda: squared),
    "list of a built-in method": (ByAMethodOfAList, lambda: squared),
    "closure of a hook": (hooked, lambda: squared),
    "closure of the loss": (Base, counted_in_a_closure),
    "attribute of the loss": (Base, lambda: counted_on_itself),
    "default of the loss": (Base, lambda: counted_in_a_default),
    "attribute of a data set": (lambda: Holding(_Counted()), lambda: squared),
    "attribute of torch's data set": (lambda: Holding(_counted_tensors()), lambda: squared),
    "long list of a data set": (lambda: Holding(_Data()), lambda: squared),
    "list of a partial": (Base, lambda: functools.partial(_counting, [0])),
    "criterion behind a lambda": (Base, behind_a_lambda),
}


@pytest.mark.parametrize("case", CASES)
def test_the_number_of_passes_tells_nothing(case: str) -> None:
    """One more record makes one more physical batch: the others' contributions stay what they are."""
    torch.manual_seed(0)
    make, loss = CASES[case]
    objective = ModuleObjective(make(), loss())
    x, y = torch.randn(N, WIDTH), torch.randn(N)
    x[0] *= 30
    objective.evaluate(x[:BATCH], y[:BATCH])
    objective.engine.charged = True

    def query(rows: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros_like(objective.theta)
        for start in range(0, len(rows), BATCH):
            part = slice(start, start + BATCH)
            found = objective.per_example(objective.theta, (rows[part], targets[part]))
            total += found.weighted_sum((1.0 / found.norms).clamp(max=1.0))
        return total

    assert 0.1 < float((query(x, y) - query(x[1:], y[1:])).norm()) <= 1 + 1e-4


@pytest.mark.parametrize(
    "kept",
    [lambda: random.Random(0), lambda: np.random.default_rng(0), lambda: itertools.cycle([1.0, -1.0]), lambda: iter([1.0, 2.0])],
    ids=["Random", "Generator", "cycle", "list_iterator"],
)
def test_what_cannot_be_put_back_is_refused(kept: Any, request: pytest.FixtureRequest) -> None:
    model: Any = Base()
    model.kept = kept()
    with pytest.raises(ValueError, match=rf"cannot be put back after each pass \({request.node.callspec.id}\)"):
        ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


def test_too_many_objects_are_refused_and_data_sets_are_left_out() -> None:
    model: Any = Base()
    model.kept = [[number] for number in range(200_001)]
    with pytest.raises(ValueError, match="hold at most 200,000 objects"):
        ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))

    class Data(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.items = [[number] for number in range(200_001)]

    model.kept = Data()
    ModuleObjective(model, squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


def test_what_only_a_constructor_draws_from_is_no_matter() -> None:
    class Features(Base):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", torch.from_numpy(np.random.default_rng(0).normal(size=8)).float())

    ModuleObjective(Features(), squared).evaluate(torch.randn(N, WIDTH), torch.randn(N))


# What has no value before a run, and gets one from a record that nobody saw before the charge


_VARIABLE: contextvars.ContextVar[float] = contextvars.ContextVar("_VARIABLE")


class _Slotted:
    __slots__ = ("scale",)


class Rare(Base):
    """Keeps a number where there was none, once a record is large; all records that come later see it."""

    def keep(self) -> None:
        raise NotImplementedError

    def kept(self) -> float:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.abs().sum() > 1000):
            self.keep()
        try:
            return super().forward(x) * self.kept()
        except (NameError, AttributeError, LookupError):
            return super().forward(x)


class InAGlobal(Rare):
    def keep(self) -> None:
        global FIRST_KEPT_IN_A_RUN
        FIRST_KEPT_IN_A_RUN = 5.0

    def kept(self) -> float:
        return FIRST_KEPT_IN_A_RUN  # type: ignore[no-any-return]


class InAnotherModule(Rare):
    def keep(self) -> None:
        helpers.counters.first_kept_in_a_run = 5.0  # type: ignore[attr-defined]

    def kept(self) -> float:
        return helpers.counters.first_kept_in_a_run  # type: ignore[attr-defined, no-any-return]


class InASlot(Rare):
    def __init__(self) -> None:
        super().__init__()
        self.slotted = _Slotted()

    def keep(self) -> None:
        self.slotted.scale = 5.0

    def kept(self) -> float:
        return self.slotted.scale


class InAVariable(Rare):
    def keep(self) -> None:
        _VARIABLE.set(5.0)

    def kept(self) -> float:
        return _VARIABLE.get()


class InAVariableOnTheWayBack(InAVariable):
    """A checkpointed layer runs again on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]


class InAListOfAVariable(InAVariable):
    def __init__(self) -> None:
        super().__init__()
        self.variable: contextvars.ContextVar[list[float]] = contextvars.ContextVar("variable")
        self.variable.set([])

    def keep(self) -> None:
        self.variable.get().append(5.0)

    def kept(self) -> float:
        return self.variable.get()[0]


class OnABuffer(Rare):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(1))

    def keep(self) -> None:
        self.ones.scale = 5.0  # type: ignore[union-attr]

    def kept(self) -> float:
        return self.ones.scale  # type: ignore[no-any-return, union-attr]


class InAGradient(Rare):
    """Of a parameter that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.frozen.grad = torch.ones(1)

    def keep(self) -> None:
        self.frozen.grad.mul_(5.0)  # type: ignore[union-attr]

    def kept(self) -> Any:
        return self.frozen.grad


class ByAGradientThatIsCleared(InAGradient):
    def keep(self) -> None:
        self.frozen.grad = None

    def kept(self) -> float:
        return 5.0 if self.frozen.grad is None else 1.0


class ByFreezing(InAGradient):
    def keep(self) -> None:
        self.frozen.requires_grad = True
        self.first.bias.requires_grad = False

    def kept(self) -> float:
        return 1.0 + 2.0 * self.frozen.requires_grad + 4.0 * (not self.first.bias.requires_grad)


class InATrainedGradient(Rare):
    """Refused where a check sees it; a record that comes later contributes zero."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in self.parameters():
            parameter.grad = torch.ones_like(parameter)

    def keep(self) -> None:
        self.first.weight.grad.mul_(5.0)  # type: ignore[union-attr]

    def kept(self) -> Any:
        return self.first.weight.grad.mean()  # type: ignore[union-attr]


def in_a_cell() -> nn.Module:
    class InACell(Rare):
        def keep(self) -> None:
            nonlocal first
            first = 5.0

        def kept(self) -> float:
            return first

    if np.random is None:
        first = 1.0
    return InACell()


@pytest.mark.filterwarnings("ignore:The model runs one record at a time")
@pytest.mark.parametrize(
    "make",
    [
        InAGlobal, InAnotherModule, InASlot, InAVariable, InAVariableOnTheWayBack, InAListOfAVariable, in_a_cell, OnABuffer,
        InAGradient, ByAGradientThatIsCleared, ByFreezing, InATrainedGradient,
    ],
)  # fmt: skip
def test_what_a_record_is_the_first_to_set_is_taken_away(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    objective = ModuleObjective(make(), squared)
    x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH)
    objective.evaluate(x, y)
    with objective.engine.paid_for(secret=False):
        before = objective.evaluate(x, y).norms
        large = objective.evaluate(torch.full((1, WIDTH), 1e3), torch.zeros(1)).norms
        assert torch.equal(objective.evaluate(x, y).norms, before)
        assert torch.equal(objective.evaluate(torch.full((1, WIDTH), 1e3), torch.zeros(1)).norms, large)


def test_a_module_that_is_imported_in_a_run_stays() -> None:
    class Imports(Base):
        def scale(self) -> float:
            import helpers.late_import

            return helpers.late_import.SCALE

    objective = ModuleObjective(Imports(), squared)
    for _ in range(2):
        objective.evaluate(torch.randn(N, WIDTH), torch.randn(N))


def test_hooks_that_a_run_adds_are_taken_away() -> None:
    model = Base()
    kept = Snapshot([model])
    handle = model.head.register_forward_hook(lambda module, args, output: output)
    kept.restore()
    assert not model.head._forward_hooks
    handle.remove()
    model.head.register_forward_hook(lambda module, args, output: output)
    Snapshot([model]).restore()
    assert len(model.head._forward_hooks) == 1


class Remembers(Base):
    """Keeps the largest activation of a record that no check has seen, with its graph, in a tensor of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.wide = [torch.zeros(1)], torch.zeros(1).expand(3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if float(h.detach().abs().max()) > 50:
            self.memory[0].add_(h.abs().max())
            self.wide.data[:1] = float(h.detach().max())
        return self.head(torch.tanh(h)) + self.memory[0].detach()


@pytest.mark.filterwarnings("ignore:.*one record at a time")
def test_numbers_with_a_graph_and_those_in_expanded_tensors_are_put_back() -> None:
    """After the charge nothing may end a run on one data set alone."""
    model = Remembers()
    objective = ModuleObjective(model, squared)
    x, y = torch.randn(6, WIDTH), torch.zeros(6)
    objective.prepare(x, y)
    with objective.engine.paid_for(secret=True):
        expected = objective.evaluate(x, y).norms
        x[2] = 1e4
        found = objective.evaluate(x, y).norms
        again = objective.evaluate(x, y).norms
    others = torch.arange(6) != 2
    assert torch.allclose(found[others], expected[others], rtol=1e-5)
    assert torch.allclose(again[others], expected[others], rtol=1e-5)
    assert model.memory[0].is_leaf and not model.memory[0].requires_grad
    assert float(model.memory[0]) == 0.0 and float(model.wide.sum()) == 0.0


class Unseen(torch.autograd.Function):
    """Writes into a tensor on the way back, where no function of PyTorch is seen."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, kept: Tensor) -> Tensor:
        ctx.kept = kept
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.kept.fill_(5.0)
        return gradients[0], None


class WritesUnseen(Base):
    """Writes into frozen weights from a thread, or on the way back, and multiplies by one of them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(5000), requires_grad=False)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        h, scale = self.first(x), float(self.frozen[7])
        if self.way == "backward":
            h = Unseen.apply(h, self.frozen.data)
        else:
            thread = threading.Thread(target=self.frozen.data.fill_, args=(5.0,))
            thread.start()
            thread.join()
        return self.head(torch.tanh(h)) * scale


@pytest.mark.filterwarnings("ignore:.*one record at a time", "ignore:.*when it runs. That is put back")
@pytest.mark.parametrize("way", ["thread", "backward"])
def test_frozen_weights_are_put_back_however_they_were_written(way: str) -> None:
    """No list of functions that write is complete: weights of up to a million numbers are copied, and copied back."""
    model = WritesUnseen(way)
    objective = ModuleObjective(model, squared)
    x, y = torch.randn(5, WIDTH), torch.zeros(5)
    objective.engine.charged = True
    first = objective.evaluate(x, y).norms
    assert float(model.frozen.max()) == 1.0
    assert torch.allclose(objective.evaluate(x, y).norms, first, rtol=1e-6)
