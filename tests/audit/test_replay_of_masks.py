"""Masks and augmentations under replay: each record draws in both runs what it drew in one, and a step its coins."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm.audit import AuditResult, Pair, Training, replay
from dperm.estimators import DPTorchClassifier
from dperm.gradient import SGD, Clip, Constant, FullBatch, Plan, Poisson
from dperm.mechanisms import Gradient
from dperm.release import SpendLog
from dperm.release.alignment import aligned, current
from dperm.torch import ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.engine.randomness import Draws

SIZE = 8
LOSS = nn.CrossEntropyLoss(reduction="none")
X = torch.randn(SIZE, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(SIZE) % 3


def at_the_front() -> Pair:
    """One record more shifts everybody's place."""
    more = torch.cat([torch.ones(1, 4), X]), torch.cat([torch.zeros(1, dtype=torch.int64), Y])
    return Pair("one more at the front", (X, Y), more, np.arange(1, SIZE + 1), np.array([0]))


class Noisy(nn.Module):
    """Multiplies what is in the middle by what `mask(middle)` draws."""

    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.first, self.last, self.mask = nn.Linear(4, 8), nn.Linear(8, 3), mask

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x)
        return self.last(z * self.mask(z) if self.training else z)


def replayed(model: nn.Module, records: Callable[[Any], Any] | None = None, batch: int = 3) -> AuditResult:
    """A step of a full batch, cut into physical ones of 3 records."""
    plan = Plan(FullBatch(), Clip(0.1), Constant(1.0), SGD(0.5), steps=1, public_size=SIZE)
    made = records or (lambda data: TorchRecords(data, physical_batch_size=batch))
    return replay(Training.of_plan(plan, ModuleObjective(model, LOSS), made, delta=1e-5, pairs=[at_the_front()]), both_ways=False)


class Foreign(nn.Module):
    """A layer that dperm has no rule for: it runs under vmap, or record by record where it looks at numbers."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.weight, self.looks = nn.Parameter(torch.ones(8)), looks

    def forward(self, z: Tensor) -> Tensor:
        kept = torch.bernoulli(torch.full_like(z, 0.5)) if self.training else 0.5
        return z * self.weight * kept * (1.0 if not self.looks or float(z.detach().sum()) < 1e9 else 2.0)


def foreign(looks: bool) -> nn.Module:
    model = Noisy(torch.ones_like)
    model.mask = Foreign(looks)  # type: ignore[assignment]
    return model


OWN: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Noisy(nn.Dropout(0.5)),
    "a factory": lambda: Noisy(lambda z: 2 * torch.rand(len(z), 8)),
    "records along the second axis": lambda: Noisy(lambda z: torch.rand(8, len(z)).T),
    "several numbers a record in one row": lambda: Noisy(lambda z: torch.rand(len(z) * 8).view(-1, 8)),
    "normal numbers by their means": lambda: Noisy(lambda z: torch.normal(z.detach(), 1.0)),
    "under vmap": lambda: foreign(looks=False),
}


@pytest.mark.filterwarnings("ignore:.*record at a time")
@pytest.mark.parametrize("name", OWN)
def test_masks_of_records_are_aligned(name: str) -> None:
    found = replayed(OWN[name]())
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


@pytest.mark.filterwarnings("ignore:.*record at a time")
def test_masks_of_a_layer_that_runs_record_by_record_are_aligned() -> None:
    found = replayed(foreign(looks=True))
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


def test_masks_are_aligned_after_a_draw_that_is_empty_in_one_run() -> None:
    """Of two records one is new: where it is drawn alone, the model runs on one side only, and later steps draw as they did."""
    pair = Pair.adding("one more", (X[:1], Y[:1]), torch.ones(4), torch.tensor(2))
    plan = Plan(Poisson(0.5), Clip(0.1), Constant(1.0), SGD(0.5), steps=8, public_size=1)
    trained = Training.of_plan(plan, ModuleObjective(Noisy(nn.Dropout(0.5)), LOSS), TorchRecords, delta=1e-5, pairs=[pair])
    found = replay(trained, both_ways=False)
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


def test_a_step_s_name_does_not_hang_on_evaluations_before_the_charge() -> None:
    """The checks before a charge see other records in each run, and may evaluate the model more often in one of them."""

    def names(before: int) -> list[object]:
        released = 0
        with aligned(lambda numbers: numbers, lambda: released):
            replayed = current()
            assert replayed is not None
            for _ in range(before):
                replayed.next_step()
            replayed.charged()
            found: list[object] = [replayed.next_step(), replayed.next_step()]
            released = 1
            return [*found, replayed.next_step()]

    assert names(1) == names(4)
    assert len(set(names(1))) == 3


def _seeded(z: Tensor) -> Tensor:
    torch.manual_seed(7)
    return 2 * torch.rand_like(z)


def _order(z: Tensor) -> Tensor:
    return torch.randperm(len(z))[:, None] + 1.0


def _two_by_two(z: Tensor) -> Tensor:
    return torch.rand(-(-len(z) // 2), 8).repeat_interleave(2, 0)[: len(z)]


#: written to be shared by a batch: each record, or each step, has its own instead
SHARED: dict[str, Callable[[Tensor], Tensor]] = {
    "one mask for a batch": lambda z: 2 * torch.rand(1, 8),
    "one mask for a batch of more than three": lambda z: 2 * torch.rand(1, 8) if len(z) > 3 else 2 * torch.rand_like(z),
    "torch seeded in each pass": _seeded,
    "numbers of NumPy": lambda z: torch.as_tensor(np.random.random(z.shape), dtype=torch.float32),  # noqa: NPY002
    "by place": _order,
    "two by two": _two_by_two,
}


@pytest.mark.filterwarnings("ignore:.*record at a time")
@pytest.mark.parametrize("name", SHARED)
def test_no_two_records_share_a_mask(name: str) -> None:
    found = replayed(Noisy(SHARED[name]), batch=4)
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


def test_a_stream_of_ones_own_is_refused() -> None:
    def mask(z: Tensor) -> Tensor:
        return 2 * torch.rand(z.shape, generator=torch.Generator().manual_seed(7))

    with pytest.raises(ValueError, match="generator of its own"):
        replayed(Noisy(mask), batch=4)


@pytest.mark.parametrize("defect", ["by place", "from one stream"])
def test_draws_that_hang_on_others_are_found(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the engine: the seed of a record is that of its place, or the next of a known stream."""
    calls = itertools.count()

    def seed(self: Draws, name: Any) -> int:
        return next(calls) % SIZE if defect == "by place" else next(calls)

    monkeypatch.setattr(Draws, "seed_of_record", seed)
    with contextlib.ExitStack() as stack:
        if defect == "from one stream":
            stack.enter_context(pytest.raises(ValueError, match="random beyond its source"))
        found = replayed(Noisy(nn.Dropout(0.5)))
        assert found.refuted and found.details["kinds"] == ["movement"], str(found)
        assert found.details["largest_movement"] > 1.1


class Augmented(Dataset[Any]):
    """Items with noise that is drawn as they are read."""

    def __init__(self, data: Any, noise: Callable[[int], Any]) -> None:
        self.x, self.y = data
        self.noise = noise

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> Any:
        return self.x[index] + torch.as_tensor(self.noise(index), dtype=torch.float32), int(self.y[index])


def _collated(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])


def augmented(noise: Callable[[int], Any]) -> AuditResult:
    def records(data: Any) -> TorchRecords:
        return TorchRecords(Augmented(data, noise), physical_batch_size=3, collate_fn=_collated)

    return replayed(Noisy(torch.ones_like), records)


def test_augmentations_of_records_are_aligned_and_one_by_place_is_found() -> None:
    for own in (lambda _: torch.randn(4), lambda _: np.random.normal(size=4)):  # noqa: NPY002 - the global one
        found = augmented(own)
        assert found.verdict == "consistent", str(found)
    found = augmented(lambda index: 3 * np.random.default_rng(index).normal(size=4))
    assert found.refuted and found.details["kinds"] == ["movement"], str(found)


def test_dropout_within_an_estimator_is_replayed() -> None:
    data = X.numpy(), Y.numpy()
    method = Gradient(epochs=1, expected_batch_size=SIZE)
    estimator = DPTorchClassifier(Noisy(nn.Dropout(0.5)), mechanism=method, public_size=SIZE, random_state=0)
    more = Pair.adding("one more", data, np.ones(4, dtype=np.float32), 0)
    found = replay(Training.of_estimator(estimator, data), [more], both_ways=False)
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


@pytest.mark.slow  # the same as by its settings, and as an estimator's
def test_dropout_of_a_trainer_is_replayed() -> None:
    def trainer(source: Any) -> PrivateTrainer:
        network = Noisy(nn.Dropout(0.5))
        settings = {"delta": 1e-5, "epochs": 3, "expected_batch_size": 4, "clipping_norm": 0.1, "public_size": SIZE}
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        return PrivateTrainer(network, LOSS, optimizer, epsilon=1.0, **settings, random_state=source)

    found = replay(Training.of_trainer(trainer, (X, Y), pairs=[at_the_front()]))
    assert found.verdict == "consistent", str(found)
    assert found.details["largest_movement"] > 0.5


def test_masks_of_known_seeds_are_not_for_training() -> None:
    model = Noisy(nn.Dropout(0.5))
    settings = {"epsilon": 1.0, "delta": 1e-5, "epochs": 1, "expected_batch_size": 5, "clipping_norm": 1.0, "public_size": 20}
    trainer = PrivateTrainer(model, LOSS, torch.optim.SGD(model.parameters(), lr=0.1), **settings)
    with aligned(lambda numbers: numbers), pytest.raises(ValueError, match="are for replay"):
        trainer.fit((X, Y))
    assert SpendLog.current().charges() == []
