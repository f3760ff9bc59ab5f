"""Checkpointed parts of a model: computed again on the way back, in step, with the same draws, and exact."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as torchs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from dperm.torch import ModuleObjective, PrivateTrainer
from dperm.torch.engine.randomness import Draws
from helpers.language_models import FAMILIES, LanguageModel, Style, adapted, made, next_words, words
from helpers.oracle import assert_exact, by_autograd, half_squares

SIZE = 4
WAYS: dict[str, dict[str, Any]] = {
    "not reentrant": {"use_reentrant": False},
    "reentrant": {"use_reentrant": True},
    "loose": {"use_reentrant": False, "determinism_check": "none", "preserve_rng_state": False, "early_stop": False},
}


class Repeated(Draws):
    """The same secret seeds each time."""

    def seed(self) -> int:
        return 11


def targets() -> Tensor:
    return torch.linspace(-1, 1, SIZE, dtype=torch.float64)


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def taken(objective: ModuleObjective, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, norms and a weighted sum, by the same seeds whenever they are asked for."""
    objective.engine.draws = Repeated(objective.flat.device)
    found = objective.evaluate(x, y)
    return found.losses, found.norms, found.weighted_sum(torch.linspace(0.1, 1, len(found.norms), dtype=found.norms.dtype))


def assert_same(model: nn.Module, other: nn.Module, x: Tensor, y: Tensor, loss: Any = half_squares) -> ModuleObjective:
    """Both models have the same passes, to 1e-10; the first runs in step."""
    objective = ModuleObjective(model, loss)
    for one, two in zip(taken(objective, x, y), taken(ModuleObjective(other, loss), x, y), strict=True):
        assert torch.allclose(one, two, rtol=1e-10, atol=1e-14)
    assert objective.one_by_one is None
    return objective


class Net(nn.Module):
    """Three layers around `function(net, call, h)`, where `call` is `checkpoint`, or a plain call."""

    def __init__(self, function: Callable[[Net, Any, Tensor], Tensor], checkpointed: bool, way: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.scale, self.gru = nn.Parameter(torch.rand(3)), nn.GRU(3, 3, batch_first=True)
        self.attend = nn.TransformerEncoderLayer(3, 1, 5, batch_first=True)
        self.drop, self.function, self.kept, self.count = nn.Dropout(0.4), function, None, 0
        self.call = (
            functools.partial(checkpoint, **way) if checkpointed else lambda function, *args, **kwargs: function(*args, **kwargs)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.last(self.function(self, self.call, torch.tanh(self.first(x)))))


def _by_closure(net: Net, call: Any, h: Tensor) -> Tensor:
    mask = h.detach()[..., :1] > 0
    shift = net.second(h)
    return call(lambda x: torch.where(mask, x * shift, net.second(x)), h)


def _objects(net: Net, call: Any, h: Tensor) -> Tensor:
    def part(given: dict[str, Any], *, scale: Tensor) -> tuple[Any, ...]:
        x = given["x"][0]
        return x, None, {"y": [net.second(x) * scale, "text"]}, x.argmax(-1), x.detach()

    if isinstance(net.call, functools.partial) and net.call.keywords["use_reentrant"]:
        part = functools.partial(part, scale=h * 2)  # which takes no arguments by name
        x, none, named, places, apart = call(part, {"x": [h]})
    else:
        x, none, named, places, apart = call(part, {"x": [h]}, scale=h * 2)
    assert none is None and not places.requires_grad
    return x + named["y"][0] * apart + places[..., None]


def _nested(net: Net, call: Any, h: Tensor) -> Tensor:
    def inner(x: Tensor) -> Tensor:
        return net.drop(torch.tanh(net.second(x))) * net.scale

    def outer(x: Tensor) -> Tensor:
        return call(inner, net.drop(x)) + call(inner, x * 2) + net.second(x)

    return call(outer, h) + net.second(h)


def _tied(net: Net, call: Any, h: Tensor) -> Tensor:
    """A weight, and a function of it, within parts, outside, and in two parts."""
    weight = net.second.weight * 2
    h = h @ weight + call(lambda x: torch.tanh(x @ weight) + F.linear(x, net.second.weight.tanh()), h)
    return call(net.second, h) * net.scale + call(lambda x: x * (1 + net.scale), h) + F.linear(h, net.second.weight)


def _reads(net: Net, call: Any, h: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        x = net.second(x) if x.sum() > 0 else net.drop(x) * net.scale
        return x * float(torch.rand(())) + random.random() + (net.drop(x) if x.mean().item() > 0 else 0)

    return call(part, net.drop(h)) + call(part, h)


def _layers(net: Net, call: Any, h: Tensor) -> Tensor:
    h = call(net.attend, h, None, None)
    return call(lambda x: net.gru(x)[0] + net.gru(x)[1].transpose(0, 1), h)


def _in_place(net: Net, call: Any, h: Tensor) -> Tensor:
    def part(x: Tensor) -> Tensor:
        y = net.second(x)
        y += net.scale
        return torch.relu_(y) * 1

    h = call(part, h)
    h = h.mul_(2)
    return call(part, h)


def _frozen_input(net: Net, call: Any, h: Tensor) -> Tensor:
    """As an adapter of a frozen model: what goes in needs no gradient."""
    return call(net.second, torch.ones_like(h) * h.detach()) + h


FUNCTIONS: dict[str, Callable[[Net, Any, Tensor], Tensor]] = {
    "plain": lambda net, call, h: call(lambda x: torch.tanh(net.second(x)) * net.scale, h),
    "closure": _by_closure,
    "objects": _objects,
    "nested": _nested,
    "tied": _tied,
    "reads and draws": _reads,
    "layers": _layers,
    "in place": _in_place,
    "frozen input": _frozen_input,
    "no parameters": lambda net, call, h: call(lambda x: F.dropout(x.sin(), 0.3) * x, h),
    "unused": lambda net, call, h: h + 0 * call(lambda x: (net.second(x), net.gru(x)[0]), h)[0] + call(net.second, h).detach(),
    "as it is": lambda net, call, h: call(lambda x: x, h) + call(lambda x: (x, x), h)[1] + call(net.drop, h),
}  # fmt: skip


@pytest.mark.parametrize(("name", "way"), list(zip(FUNCTIONS, itertools.cycle(WAYS))))
def test_parts_of_all_kinds(name: str, way: str) -> None:
    model, plain = (Net(FUNCTIONS[name], checkpointed, WAYS[way]).double() for checkpointed in (True, False))
    assert_same(model, plain, inputs(SIZE, 5, 3), targets())


def test_against_autograd() -> None:
    for name in ("closure", "tied"):
        model = Net(FUNCTIONS[name], True, WAYS["not reentrant"]).double()
        assert_exact(model, inputs(SIZE, 5, 3), targets(), vmapped=False)


@pytest.mark.fast_cases("Llama, tied")
@pytest.mark.parametrize("family", ["Llama, tied", "Gemma"])
def test_language_models(family: str) -> None:
    style = {**vars(FAMILIES[family]), "dropout": 0.2}
    numbers = words(SIZE)
    assert_same(
        made(Style(**style | {"checkpointed": WAYS["reentrant"]})).double(), made(Style(**style)).double(), numbers, numbers,
        next_words,
    )  # fmt: skip


def test_adapters_of_a_frozen_model_whose_input_asks_for_gradients() -> None:
    """What transformers' enable_input_require_grads does."""
    numbers = words(SIZE)
    kinds: list[nn.Module] = []
    for way in (WAYS["reentrant"], None):
        model = made(Style(checkpointed=way, dropout=0.2)).double()
        kinds.append(adapted(model, lambda name: "proj" in name))
        if way is not None:
            model.words.register_forward_hook(lambda module, given, output: output.requires_grad_(True))
    assert_same(kinds[0], kinds[1], numbers, numbers, next_words)


def noted(file: Path, what: object) -> None:
    """Where nothing puts it back, as lists are."""
    with file.open("a") as lines:
        lines.write(f"{what}\n")


def test_sequences_of_layers_and_contexts(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()

    class InParts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint_sequential(self.layers, 3, x, use_reentrant=False)

    assert_same(InParts(), layers, inputs(SIZE, 3), targets())

    @contextlib.contextmanager
    def noting(name: str) -> Iterator[None]:
        noted(tmp_path / "entered", name)
        yield

    class WithContexts(InParts):
        def forward(self, x: Tensor) -> Tensor:
            def contexts() -> Any:
                return noting("first"), noting("again")

            return checkpoint(self.layers, x, use_reentrant=False, context_fn=contexts)

    assert_same(WithContexts(), layers, inputs(SIZE, 3), targets())
    assert (tmp_path / "entered").read_text().split()[-2:] == ["first", "again"]


def test_half_precision_is_the_same_when_computed_again() -> None:
    x, y = inputs(SIZE, 5, 3).float(), targets().float()
    kept, other = (Net(FUNCTIONS["nested"], checkpointed, WAYS["not reentrant"]) for checkpointed in (True, False))
    kept.drop.p = other.drop.p = 0.0
    first, second = (taken(ModuleObjective(net, half_squares, autocast=torch.bfloat16), x, y) for net in (kept, other))
    assert torch.equal(first[0], second[0]) and torch.allclose(first[1], second[1], rtol=1e-3)


def test_insides_are_thrown_away(tmp_path: Path) -> None:
    """While later parts run nothing is left of a part's insides; they are computed once more on the way back."""
    refs: list[weakref.ref[Tensor]] = []

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            def part(layer: nn.Module, x: Tensor) -> Tensor:
                noted(tmp_path / "alive", sum(ref() is not None for ref in refs))
                inside = torch.tanh(layer(x))
                refs.append(weakref.ref(inside))
                return x + inside.sin()

            for layer in self.layers:
                x = checkpoint(part, layer, x, use_reentrant=False)
            return x

    objective = ModuleObjective(Deep(), half_squares)
    x = inputs(SIZE, 3).float()
    objective.evaluate(x, targets().float())
    (tmp_path / "alive").unlink()
    objective.evaluate(x, targets().float())
    alive = [int(line) for line in (tmp_path / "alive").read_text().split()]
    assert len(alive) == 12 and max(alive) <= 1


# What does not run in step, or not at all


@pytest.mark.parametrize("what", ["counts", "keeps", "hides"])
@pytest.mark.filterwarnings("ignore:The model runs one record at a time")
def test_parts_that_are_others_when_they_run_again_run_one_record_at_a_time(what: str) -> None:
    def part(net: Net, x: Tensor) -> Tensor:
        if what == "counts":
            net.count += 1
            return net.second(x) * net.count
        if what == "keeps":
            x = x if net.kept is None else x + net.kept
            net.kept = x.detach()
            return net.second(x)
        net.kept = net.second(x)
        return x

    def whole(net: Net, call: Any, h: Tensor) -> Tensor:
        net.kept, net.count = None, 0
        h = call(lambda x: part(net, x), h)
        return h * net.kept if what == "hides" else h

    model, plain = (Net(whole, checkpointed, WAYS["not reentrant"]).double() for checkpointed in (True, False))
    objective = ModuleObjective(model, half_squares)
    found, expected = (
        objective.evaluate(inputs(SIZE, 3), targets()),
        by_autograd(plain, half_squares, inputs(SIZE, 3), targets(), SIZE),
    )
    assert objective.one_by_one is not None
    assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-10)


def test_a_record_that_fails_on_the_way_back_changes_nothing_for_others() -> None:
    class Failing(Net):
        """Fails for some records, only where a part is computed again."""

        def __init__(self) -> None:
            def part(x: Tensor) -> Tensor:
                self.count += 1
                if self.count > 1 and x.sum().item() > 100:
                    raise ValueError("again")
                return self.second(x)

            def whole(net: Net, call: Any, h: Tensor) -> Tensor:
                net.count = 0
                return call(part, h * 1e3 * (h.sum() > 2))

            super().__init__(whole, True, WAYS["not reentrant"])

    x = inputs(SIZE, 5, 3)
    x[1] = 50.0
    objective = ModuleObjective(Failing().double(), half_squares)
    rows: list[Tensor] = []
    for given in (x, torch.cat([x[:1], x[:1], x[2:]])):
        objective.engine.charged = True
        objective.engine.draws = Repeated(objective.flat.device)
        found = objective.engine.evaluate((given, targets()), SIZE)
        rows.append(torch.stack([found.weighted_sum(one) for one in torch.eye(SIZE)]))
    assert torch.equal(rows[0][[0, 2, 3]], rows[1][[0, 2, 3]])


def test_ordinary_training_is_left_alone_in_other_threads_and_afterwards(tmp_path: Path) -> None:
    target: Any = inspect.unwrap(checkpoint)
    code = target.__code__

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            def elsewhere() -> None:
                leaf = torch.ones(3, requires_grad=True)
                checkpoint(lambda y: (y * y).sum(), leaf, use_reentrant=True).backward()
                noted(tmp_path / "slopes", leaf.grad.sum().item())

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            return checkpoint(self.inner, x, use_reentrant=False)

    ModuleObjective(Slow(), half_squares).evaluate(inputs(SIZE, 3).float(), targets().float())
    assert set((tmp_path / "slopes").read_text().split()) == {"6.0"} and target.__code__ is code
    assert torchs.checkpoint is checkpoint


def test_a_run_with_dropout_in_checkpointed_layers() -> None:
    model = LanguageModel(Style(dropout=0.1, checkpointed=WAYS["not reentrant"]))
    trainer = PrivateTrainer(
        model, next_words, torch.optim.SGD(model.parameters(), lr=0.1), epsilon=8.0, delta=1e-3, epochs=1, public_size=40,
        expected_batch_size=10, physical_batch_size=8,
    )  # fmt: skip
    numbers = words(40)
    trainer.fit((numbers, numbers), progress=False)
    assert trainer.epsilon_spent <= 8.0
