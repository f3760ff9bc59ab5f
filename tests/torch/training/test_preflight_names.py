"""What is said before a charge of things that a pass changes and that are put back, and of layers that the loss runs."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch import Callback, PrivateTrainer

N = 40
X, Y = torch.randn(N, 6, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 2
CALLS = 0


def trainer(model: nn.Module, loss: Any = None) -> PrivateTrainer:
    return PrivateTrainer(
        model, loss or nn.CrossEntropyLoss(reduction="none"), torch.optim.SGD(model.parameters(), lr=0.1),
        noise_multiplier=1.0, delta=1e-5, public_size=N, epochs=1, expected_batch_size=10, clipping_norm=1.0,
    )  # fmt: skip


def said_of(made: PrivateTrainer, **options: Any) -> list[str]:
    """The warnings of a run."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made.fit((X, Y), **options)
    return [str(warning.message) for warning in caught]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(6, 2), torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.layer(x)


class Counting(nn.Module):
    """Counts in as many ways as a program can."""

    total = 0

    def __init__(self) -> None:
        super().__init__()
        self.block, self.calls, self.history, self.last = Block(), 0, [], None
        self.table, self.names, self.recent, self.array = {"n": 0}, {"a"}, deque([0]), np.zeros(2)
        self.deep: Any = {1: ({2: [0]},)}
        self.plain = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        global CALLS
        CALLS += 1
        Counting.total += 1
        self.calls += 1
        self.history.append(len(x))
        self.last = 0.5
        self.table["n"] = self.calls
        self.deep[1][0][2].append(1)
        self.names.add("b")
        self.recent.append(1)
        self.array += 1
        self.plain += 1
        return self.block(x)


def test_all_that_a_forward_counts_is_named_once_and_stays_as_it_was() -> None:
    model = Counting()
    said = said_of(trainer(model))
    assert len(said) == 1
    assert "on_step" in said[0]
    assert "public_step" in said[0]
    shown = said[0].partition("changes ")[2].partition(" when it runs")[0]
    assert shown.endswith(" and 7 more")
    assert len(shown.split(", ")) == 5
    assert (model.calls, model.history, model.last, Counting.total, CALLS) == (0, [], None, 0, 0)
    assert model.table == {"n": 0}
    assert model.names == {"a"}
    assert not model.array.any()
    assert not model.plain


def test_each_is_named_by_its_owner() -> None:
    made = trainer(Counting())
    said_of(made)
    assert sorted(made.objective.engine.changing) == sorted(
        [
            f"Counting.{name}"
            for name in ("calls", "history", "last", "table", "names", "recent", "array", "plain", "total", "deep")
        ]
        + ["block (Block).mean", "the global name CALLS"]
    )


def test_a_loss_that_counts_is_named_too() -> None:
    class Loss:
        __slots__ = ("calls",)

        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
            self.calls += 1
            return F.cross_entropy(outputs, targets, reduction="none")

    seen = 0

    def closed(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        return F.cross_entropy(outputs, targets, reduction="none")

    assert "changes Loss.calls when" in said_of(trainer(nn.Linear(6, 2), Loss()))[0]
    assert "changes seen of " in said_of(trainer(nn.Linear(6, 2), closed))[0] and seen == 0


class Quiet(nn.Module):
    """What PyTorch keeps, buffers, activations, and what is changed and changed back."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.cells = nn.Linear(6, 8), nn.Linear(8, 2), nn.LSTM(8, 8, batch_first=True)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("worth", torch.full((), torch.nan))
        self.features: Any = None
        self.kept: list[Tensor] = []
        self.depth, self.nothing = 0, torch.full((2,), torch.nan)
        self.last = self.cells

    def forward(self, x: Tensor) -> Tensor:
        self.depth += 1
        self.count = self.count + 1
        self.features = self.first(x).tanh()
        self.kept = [self.features]
        self.depth -= 1
        return self.second(self.cells(self.features[:, None])[0][:, 0])


def test_nothing_is_said_of_buffers_activations_and_what_pytorch_keeps() -> None:
    assert said_of(trainer(Quiet())) == []


def test_what_a_callback_counts_stays() -> None:
    class Count(Callback):
        def on_step(self, step: Any) -> None:
            model.calls += 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(6, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * (1 + self.calls)

    model = Net()
    assert said_of(trainer(model), callbacks=[Count()]) == [] and model.calls == 4


# Layers that the loss runs on records


def generator() -> nn.Sequential:
    made = nn.Sequential(nn.Linear(3, 32), nn.Unflatten(1, (2, 4, 4)), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 6))
    return made.requires_grad_(False)


class Paired:
    def __init__(self, critic: nn.Module, made_by: nn.Module) -> None:
        self.critic, self.made_by = critic, made_by

    def __call__(self, real: Tensor, targets: Tensor) -> Tensor:
        made = self.made_by(torch.randn(len(real), 3))
        return F.softplus(-real[:, 0]) + F.softplus(self.critic(made)[:, 0])


@pytest.mark.parametrize("tracks", [True, False], ids=["one by one", "in step"])
def test_a_generator_that_normalises_in_the_loss_is_named(tracks: bool) -> None:
    critic, made_by = nn.Linear(6, 2), generator()
    if not tracks:
        made_by[2] = nn.BatchNorm2d(2, track_running_stats=False)
    made = trainer(critic, Paired(critic, made_by))
    said = said_of(made)
    assert len(said) == 1 and (made.objective.one_by_one is not None) == tracks
    assert ("one record at a time: exact, but slower" in said[0]) == tracks
    for part in ("Paired.made_by, layer 2 (BatchNorm2d)", "nn.GroupNorm", "public_step", "docs/generative.md"):
        assert part in said[0]
    assert not tracks or int(made_by[2].num_batches_tracked) == 0  # pyright: ignore[reportArgumentType, reportUnknownMemberType]


def test_one_that_cannot_run_on_a_single_record_is_named_in_the_refusal() -> None:
    critic = nn.Linear(6, 2)
    narrow = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6)).requires_grad_(False)

    def loss(real: Tensor, targets: Tensor) -> Tensor:
        return F.softplus(-real[:, 0]) + F.softplus(critic(narrow(torch.randn(len(real), 3)))[:, 0])

    with pytest.raises(ValueError, match=r"narrow of .*, layer 1 \(BatchNorm1d\).*public_step.*Expected more than 1 value"):
        trainer(critic, loss).fit((X, Y))


def test_one_in_a_loss_that_is_a_module_is_refused_with_the_way_out() -> None:
    class Module(nn.Module):
        def __init__(self, critic: nn.Module, made_by: nn.Module) -> None:
            super().__init__()
            self.critic, self.made_by = critic, made_by

        forward = Paired.__call__

    critic = nn.Linear(6, 2)
    with pytest.raises(ValueError, match=r"made_by\.2 \(BatchNorm2d\).*nn\.GroupNorm.*public_step"):
        trainer(critic, Module(critic, generator()))


@pytest.mark.parametrize("how", ["evaluation mode", "group normalisation", "held and not run"])
def test_nothing_is_said_of_a_generator_that_sees_one_record(how: str) -> None:
    critic, made_by = nn.Linear(6, 2), generator()
    loss: Any = Paired(critic, made_by)
    if how == "evaluation mode":
        made_by.eval()
    elif how == "group normalisation":
        made_by[2] = nn.GroupNorm(1, 2)
    else:
        loss.made_by, loss.trained = nn.Linear(3, 6).requires_grad_(False), made_by
    assert said_of(trainer(critic, loss)) == []


def test_a_loss_that_closes_over_tensors_and_a_counter_trains_and_names_the_counter() -> None:
    """Cells of closures are equal where their contents are, and tensors do not say whether they are."""

    def made() -> Any:
        first, weight, calls = torch.ones(3), torch.ones(3), 0

        def loss(outputs: Any, targets: Any) -> Any:
            nonlocal calls
            calls += 1
            return first[0] * weight[0] * F.cross_entropy(outputs, targets, reduction="none")

        return loss

    with pytest.warns(UserWarning, match="calls of .*loss"):
        trainer(nn.Linear(6, 3), made()).fit((X, Y), progress=False)


class Odd(str):
    """Says nothing of whether it is equal."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not to be compared")

    __hash__ = str.__hash__


class Rewrites(nn.Linear):
    """Sets a key that its own class will not have compared."""

    def __init__(self) -> None:
        super().__init__(6, 2)
        self.table: dict[Any, int] = {Odd("a"): 0}

    def forward(self, x: Tensor) -> Tensor:
        self.table = {Odd("a"): 1}
        return super().forward(x)


def test_what_cannot_be_compared_is_said_and_does_not_keep_a_model_from_training() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert trainer(Rewrites()).fit((X, Y), progress=False).certificate is not None
    assert any("Rewrites.table" in str(each.message) or "could not be compared" in str(each.message) for each in said)
