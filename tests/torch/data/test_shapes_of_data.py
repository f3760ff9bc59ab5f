"""Data without targets, with several inputs or targets, and what a DataLoader holds: what the model gets, and what the loss."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from dperm.torch import PrivateTrainer, TorchRecords, from_loader
from dperm.torch.tensors.nested import tensors

SIZE = 60


def numbers(width: int = 3, start: float = 0.0) -> Tensor:
    return start + torch.arange(SIZE * width, dtype=torch.float32).reshape(SIZE, width) / (SIZE * width)


class Items(Dataset[Any]):
    """Records that `make` makes of their numbers."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


X, Z, Y = numbers(), numbers(2, 5.0), torch.arange(SIZE) % 2
GIVEN: dict[str, tuple[Any, Any, Any]] = {
    "a tensor": (X, X, X),
    "an array": (X.numpy(), X, X),
    "a tuple of one": ((X,), X, X),
    "a data set of one tensor": (TensorDataset(X), X, X),
    "items that are tensors": (Items(lambda i: X[i]), X, X),
    "items of one part": (Items(lambda i: (X[i],)), X, X),
    "entries without a label": ({"x": X, "z": Z}, {"x": X, "z": Z}, {"x": X, "z": Z}),
    "items of such entries": (Items(lambda i: {"x": X[i], "z": Z[i]}), {"x": X, "z": Z}, {"x": X, "z": Z}),
    "three tensors": ((X, Z, Y), (X, Z), Y),
    "a data set of three": (TensorDataset(X, Z, Y), (X, Z), Y),
    "items of three parts": (Items(lambda i: (X[i], Z[i], Y[i])), (X, Z), Y),
    "several targets": ((X, (Z, Y)), X, (Z, Y)),
    "items with several targets": (Items(lambda i: (X[i], {"z": Z[i], "y": Y[i]})), X, {"z": Z, "y": Y}),
    "entries with a label": ({"x": X, "label": Y}, {"x": X}, Y),
    "items with a label": (Items(lambda i: {"x": X[i], "labels": int(Y[i])}), {"x": X}, Y),
}


@pytest.mark.parametrize(("data", "inputs", "targets"), GIVEN.values(), ids=GIVEN)
def test_what_the_model_gets_and_what_the_loss(data: Any, inputs: Any, targets: Any) -> None:
    (batch,) = TorchRecords(data).batches()
    for found, meant in zip(batch, (inputs, targets), strict=True):
        assert isinstance(found, dict) == isinstance(meant, dict)
        pairs = list(zip(tensors(found), tensors(meant), strict=True))
        assert all(torch.equal(one.double(), other.double()) for one, other in pairs)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x)))


class OfTwo(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.layer(torch.cat([x, z], dim=-1))


def rebuilt(outputs: Tensor, inputs: Tensor) -> Tensor:
    return ((outputs - inputs) ** 2).mean(1)


def classified(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("model", "loss", "data"),
    [(Autoencoder, rebuilt, X), (Autoencoder, rebuilt, TensorDataset(X)), (OfTwo, classified, (X, Z, Y))],
)
@pytest.mark.parametrize("persons", [False, True])
def test_they_are_trained_on(model: Any, loss: Any, data: Any, persons: bool) -> None:
    made = model()
    trainer = PrivateTrainer(
        made, loss, torch.optim.SGD(made.parameters(), 0.1), epsilon=4.0, delta=1e-5, epochs=2, clipping_norm=1.0,
        expected_batch_size=5, public_size=20 if persons else SIZE, max_rows_per_unit=3 if persons else None,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(data, progress=False, groups=np.arange(SIZE) // 3 if persons else None)
    assert trainer.certificate is not None and (trainer.certificate.epsilon or np.inf) <= 4
    assert trainer.objective.one_by_one is None


class Graph:
    edge_index = torch.zeros(2, 4, dtype=torch.long)


@pytest.mark.parametrize("data", [Items(lambda i: Graph()), Items(lambda i: {"x": X[i], "labels": 0, "label": 1})])
def test_what_cannot_be_told_apart_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match=r"an \(n, n\) adjacency matrix|one entry called 'labels' or 'label'"):
        list(TorchRecords(data).batches())


def doubled(items: list[Any]) -> Any:
    return torch.stack([2 * x for x, _ in items]), torch.tensor([int(y) for _, y in items])


def test_a_loader_is_taken_over() -> None:
    data = TensorDataset(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = from_loader(DataLoader(data, batch_size=16, shuffle=True))
    assert plain.dataset is data and plain.settings == {"num_workers": 0, "expected_batch_size": 16}
    with pytest.warns(UserWarning, match="sampler=WeightedRandomSampler, drop_last"):
        sampler = WeightedRandomSampler([1.0] * SIZE, SIZE)
        parts = from_loader(DataLoader(data, batch_size=8, sampler=sampler, drop_last=True, collate_fn=doubled))
    assert parts.settings == {"num_workers": 0, "expected_batch_size": 8, "collate_fn": doubled}
    model = nn.Linear(3, 2)
    trainer = PrivateTrainer(
        model, classified, torch.optim.SGD(model.parameters(), 0.1), epsilon=4.0, delta=1e-5, epochs=2, clipping_norm=1.0,
        public_size=SIZE, **parts.settings,
    )  # fmt: skip
    trainer.fit(parts.dataset, progress=False)
    assert trainer.plan is not None and trainer.plan.expected_batch_size == pytest.approx(8)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(X)


def test_loaders_that_cannot_be_taken_over_are_refused() -> None:
    with pytest.raises(TypeError, match="a torch DataLoader, got list"):
        from_loader([X])  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="records of a stream"):
        from_loader(DataLoader(Stream()))
    with pytest.raises(ValueError, match="whose data set makes batches"):
        from_loader(DataLoader(TensorDataset(X), batch_size=None))
    with pytest.raises(TypeError, match=r"from_loader\(loader\)"):
        TorchRecords(DataLoader(TensorDataset(X, Y)))
