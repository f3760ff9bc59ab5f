"""Persons with several rows, for networks: a person is one record, with an axis of its rows, whose loss is the mean of theirs.

The engine that tells records apart sees the axis as it sees the positions of a sequence.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dperm._remind import remind_of_persons
from dperm.objectives.grouped import numbered, spread_rows
from dperm.torch.records import TorchRecords
from dperm.torch.structure import map_tensors, tensors

__all__ = ["MeanLoss", "OfPersons", "PersonRecords"]

Indices = NDArray[np.intp]

_FEWEST = 3  # persons with least rows who are collated alone, too
_HAIR = 1 - 2.0**-20  # a person's weights add up to a hair less than 1: they are single precision


class OfPersons(nn.Module):
    """`model` on inputs (b, k, …) of b persons with k rows each: outputs (b, k, …). The parameters are the model's own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # set for this one alone: the modes of the model's layers are their owner's choice

    def forward(self, *inputs: Any, **named: Any) -> Any:
        shape = next(iter(tensors((inputs, named)))).shape[:2]

        def apart(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1)

        outputs = self.model(*map_tensors(apart, inputs), **map_tensors(apart, named))
        return map_tensors(lambda tensor: tensor.unflatten(0, shape), outputs)


class MeanLoss:
    """Σ of weights times `loss_fn` over each person's rows; targets are (targets (b, k, …), weights (b, k))."""

    def __init__(self, loss_fn: Callable[[Any, Any], Tensor]) -> None:
        self.loss_fn = loss_fn

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        values, weights = targets
        losses = self.loss_fn(*(map_tensors(lambda tensor: tensor.flatten(0, 1), part) for part in (outputs, values)))
        if losses.shape != (weights.numel(),):
            raise ValueError(
                f"Expected loss_fn to give one loss per row, shape ({weights.numel()},), got {tuple(losses.shape)}: use "
                "reduction='none' and average over everything but the first axis."
            )
        losses = losses.reshape(weights.shape)
        return torch.where(weights > 0, losses * weights, torch.zeros_like(losses)).sum(1)


class PersonRecords(TorchRecords):
    """Records as in `TorchRecords`, one a row, with `groups` (n,) telling whose each is: `len` counts persons, and draws are of
    persons. Of each at most `most` rows are used, spread evenly over that person's rows.

    A batch has inputs (b, k, …) and targets ((b, k, …), weights (b, k)): k is a power of two, or `most`; who has fewer rows has
    the first of them again, with weight 0. Where `most` is 1 there is no such axis. Without groups data are rows (persons, k, …)
    and targets (persons, k, …).
    """

    def __init__(self, data: Any, groups: Any, *, most: int, **settings: Any) -> None:
        if groups is None:
            data, groups = _flattened(data)
        self._rows = TorchRecords(data, **settings)
        self._rows.named = False
        number, self._size = numbered(groups, len(self._rows))
        self.most = most
        if most > 1:
            remind_of_persons(self._size, len(number), stacklevel=5)
        self._chosen, self._starts = spread_rows(number, np.ones(len(number), dtype=np.bool_), self._size, most)
        self._width = 1

    @property
    def physical_batch_size(self) -> int:
        """Persons in a batch."""
        return self._rows.physical_batch_size

    @physical_batch_size.setter
    def physical_batch_size(self, size: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._rows.physical_batch_size = size

    @property
    def arrangement(self) -> str:
        """Whose each row is."""
        rows = self._chosen.astype(np.int64).tobytes() + self._starts.astype(np.int64).tobytes()
        return hashlib.sha256(rows).hexdigest()

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._rows.device

    def probe(self, count: int) -> tuple[Any, list[tuple[int, Any, Any]]]:
        counts = np.diff(self._starts)
        several = np.argsort(counts, kind="stable")
        chosen = np.sort(several[np.unique(np.linspace(0, self._size - 1, min(count, self._size)).round().astype(np.intp))])
        batch = self._moved(self._fetch(chosen), len(chosen))
        if self.most > 1:
            self._width = batch[1][1].shape[1]
        fewest = np.argsort(counts[chosen], kind="stable")[:_FEWEST].tolist()
        return batch, [(place, *self._moved(self._fetch(chosen[[place]]), 1)) for place in fewest]

    def all_targets(self) -> Iterator[Any]:
        for chunk in self._rows.all_targets():
            if self.most == 1:
                yield chunk
                continue
            count = len(next(iter(tensors(chunk))))
            several = map_tensors(lambda tensor: tensor[:, None].expand(-1, self._width, *tensor.shape[1:]), chunk)
            yield several, torch.full((count, self._width), 1.0 / self._width, device=self.device)

    def stream_rows(self, draws: Iterable[Indices]) -> Iterator[Iterable[Any]]:
        """Rows by themselves, each as a person of one row, where a draw names row j of person i as i·most + j; rows that a
        person lacks are nobody's."""
        counts = np.diff(self._starts)
        for drawn in draws:
            persons, row = np.divmod(drawn, self.most)
            mine = self.share.mine(persons)
            persons, row = persons[mine] - self.share.held, row[mine]
            known = row < counts[persons]
            yield self._alone(persons[known], row[known])

    def _alone(self, persons: Indices, row: Indices) -> Iterator[Any]:
        rows = self._chosen[self._starts[persons] + row]
        for start in range(0, len(rows), self.physical_batch_size):
            part = slice(start, start + self.physical_batch_size)
            batch = self._persons(self._rows._fetch(rows[part]), _weights(np.ones((len(rows[part]), 1))))
            yield self._handed_out(batch, persons[part].tolist(), row[part].tolist())

    def _fetch(self, indices: Indices) -> Any:
        rows, weights = self._table(indices)
        return self._persons(self._rows._fetch(rows.ravel()), weights)

    def _read(self, chunks: Iterator[list[int]]) -> Iterator[Any]:
        waiting: deque[Tensor] = deque()

        def rows() -> Iterator[list[int]]:
            for chunk in chunks:
                table, weights = self._table(np.asarray(chunk))
                waiting.append(weights)
                yield table.ravel().tolist()

        for batch in self._rows._read(rows()):
            yield self._persons(batch, waiting.popleft())

    def _table(self, persons: Indices) -> tuple[Indices, Tensor]:
        """Rows (b, k) of persons, and their weights (b, k)."""
        counts = np.diff(self._starts)[persons]
        widest = int(counts.max(initial=1))
        width = min(1 << (widest - 1).bit_length(), self.most)
        place = np.arange(width)[None]
        there = place < counts[:, None]
        rows = self._chosen[self._starts[persons][:, None] + np.where(there, place, 0)]
        return rows, _weights(there / counts[:, None])

    def _persons(self, batch: Any, weights: Tensor) -> Any:
        if self.most == 1:  # a record like any other
            return batch
        inputs, targets = self._rows._moved(batch, weights.numel())

        def several(tensor: Tensor) -> Tensor:
            return tensor.unflatten(0, tuple(weights.shape))

        return map_tensors(several, inputs), (map_tensors(several, targets), weights.to(self.device))


def _weights(shares: Any) -> Tensor:
    return torch.as_tensor(np.asarray(shares) * _HAIR, dtype=torch.float32)


def _flattened(data: Any) -> tuple[Any, NDArray[np.intp]]:
    """Data of persons along the first axis and rows along the second, and whose each row is."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError("Expected groups with a data set: whose each row is, in order.")
    data = tuple(torch.from_numpy(part) if isinstance(part, np.ndarray) else part for part in data)
    shapes = {tuple(tensor.shape[:2]) for tensor in tensors(data)}
    if len(shapes) != 1 or len(shape := shapes.pop()) != 2:
        raise ValueError("Expected groups, or rows of persons along a second axis: (persons, k, …) of inputs and of targets.")
    apart = tuple(map_tensors(lambda tensor: tensor.flatten(0, 1), part) for part in data)
    return apart, np.repeat(np.arange(shape[0]), shape[1])
