"""Units of several rows, for networks: persons with several rows each, and records of which the model sees several views. A unit
is one record, with an axis of its rows, whose loss is their mean.

The engine that tells records apart sees the axis as it sees the positions of a sequence. Where persons have several rows and each
row several views, the rows' axis comes first.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dperm._remind import remind_of_persons
from dperm.objectives.grouped import numbered, spread_rows
from dperm.torch.data.collation import Ragged, grouped
from dperm.torch.data.records import TorchRecords
from dperm.torch.tensors.nested import map_tensors, tensors

Indices = NDArray[np.intp]

_HAIR = 1 - 2.0**-20


class OfPersons(nn.Module):
    """`model` on inputs (b, k, …) of b units with k rows each, or k views: outputs (b, k, …). The parameters are the model's
    own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training  # set for this one alone: the modes of the model's layers are their owner's choice

    def forward(self, *inputs: Any, **named: Any) -> Any:
        shape = next(iter(tensors((inputs, named)))).shape[:2]

        def apart(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1)

        outputs = self.model(*map_tensors(apart, inputs), **map_tensors(apart, named))
        rows = shape.numel()
        if odd := next((tensor for tensor in tensors(outputs) if not tensor.dim() or tensor.shape[0] != rows), None):
            raise ValueError(
                f"Expected the model's outputs with the {rows} rows that it was given along the first axis, got a tensor of "
                f"shape {tuple(odd.shape)}: what all rows share, such as a mean over them, cannot be given back to each."
            )
        return map_tensors(lambda tensor: tensor.unflatten(0, shape), outputs)


class MeanLoss:
    """Σ of weights times `loss_fn` over each person's rows; targets are (targets (b, k, …), weights (b, k))."""

    def __init__(self, loss_fn: Callable[[Any, Any], Tensor]) -> None:
        self.loss_fn = loss_fn

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        values, weights = targets
        losses = _losses_of_rows(self.loss_fn, outputs, values, weights.shape)
        return torch.where(weights > 0, losses * weights, torch.zeros_like(losses)).sum(1)


class MeanOfViews:
    """The mean of `loss_fn` over each record's views; targets are (b, views, …)."""

    def __init__(self, loss_fn: Callable[[Any, Any], Tensor]) -> None:
        self.loss_fn = loss_fn

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        shape = next(iter(tensors(targets))).shape[:2]
        return _losses_of_rows(self.loss_fn, outputs, targets, shape).mean(1)


def _losses_of_rows(loss_fn: Callable[[Any, Any], Tensor], outputs: Any, targets: Any, shape: Sequence[int]) -> Tensor:
    """(b, k) the losses of b units with k rows each, by a loss that is given b·k rows."""
    losses = loss_fn(*(map_tensors(lambda tensor: tensor.flatten(0, 1), part) for part in (outputs, targets)))
    rows = math.prod(shape)
    if losses.shape != (rows,):
        raise ValueError(
            f"Expected loss_fn to give one loss per row, shape ({rows},), got {tuple(losses.shape)}: use reduction='none' and "
            "average over everything but the first axis."
        )
    return losses.reshape(*shape)


class PersonRecords(TorchRecords):
    """Records as in `TorchRecords`, one a row, with `groups` (n,) telling whose each is: `len` counts persons, and draws are of
    persons. Of each at most `most` rows are used, spread evenly over that person's rows.

    A batch has inputs (b, k, …) and targets ((b, k, …), weights (b, k)), for each k by itself: the next power of two of a
    person's rows; who has fewer rows has the first of them again, with weight 0. Where `most` is 1 there is no such axis.
    Without groups data are rows (persons, k, …) and targets (persons, k, …). A `collate_fn` is given one person's rows. Where
    `settings` ask for several views, each row has an axis of them: (b, k, views, …). Messages call a person `unit_is`.
    """

    def __init__(self, data: Any, groups: Any, *, most: int, unit_is: str = "person", **settings: Any) -> None:
        if groups is None:
            data, groups = _flattened(data)
        self._rows = TorchRecords(data, packed=True, **settings)
        self._rows.names = self._names_of_rows
        number, self._size = numbered(groups, len(self._rows))
        self._person = number
        self.most = most
        if most > 1:
            remind_of_persons(self._size, len(number), stacklevel=9, unit=unit_is)
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
    def charged(self) -> bool:
        """Whether a run that reads them is paid for."""
        return self._rows.charged

    @charged.setter
    def charged(self, charged: bool) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._rows.charged = charged

    @property
    def arrangement(self) -> str:
        """Whose each row is."""
        rows = self._chosen.astype(np.int64).tobytes() + self._starts.astype(np.int64).tobytes()
        return hashlib.sha256(rows).hexdigest()

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._rows.device

    def sample(self, count: int) -> Any:
        counts = np.diff(self._starts)
        several = np.argsort(counts, kind="stable")
        chosen = np.sort(several[np.unique(np.linspace(0, self._size - 1, min(count, self._size)).round().astype(np.intp))])
        self._rows.sample(count)
        groups = grouped(self._moved(self._fetch(chosen, seed=0), len(chosen)), len(chosen))
        _, inputs, targets = max(groups, key=lambda group: sum(tensor[0].numel() for tensor in tensors(group[1:])))
        if self.most > 1:
            self._width = targets[1].shape[1]
        return inputs, targets

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
            names = list(zip(self.names(persons[part].tolist()), row[part].tolist(), strict=True))
            yield self._handed_out(self._made([[one] for one in rows[part].tolist()]), names)

    def _fetch(self, indices: Indices, seed: int | None = None) -> Any:
        return self._made(self._rows_of(indices.tolist()), seed)

    def _rows_of(self, persons: Sequence[int]) -> list[list[int]]:
        """The rows of each of these persons."""
        return [self._chosen[self._starts[person] : self._starts[person + 1]].tolist() for person in persons]

    def _made(self, rows: list[list[int]], seed: int | None = None) -> Any:
        """A batch of persons of these rows."""
        if self.most == 1:  # a record like any other
            return self._rows._fetch(np.array([mine[0] for mine in rows], dtype=np.intp), seed)
        return self._weighed(self._tables(rows) if self._rows._tensors is not None else self._rows._collated(rows, seed))

    def _names_of_rows(self, rows: Sequence[int]) -> Sequence[object]:
        """Whose each row is, and which of that person's."""
        persons = self._person[rows]
        places = np.argsort(self._chosen, kind="stable")[np.searchsorted(np.sort(self._chosen), rows)] - self._starts[persons]
        return list(zip(self.names(persons.tolist()), places.tolist(), strict=True))

    def _read(self, chunks: Iterator[list[int]]) -> Iterator[Any]:
        if self.most == 1:
            yield from self._rows._read([mine[0] for mine in self._rows_of(chunk)] for chunk in chunks)
        elif self._rows._tensors is not None:
            yield from (self._made(self._rows_of(chunk)) for chunk in chunks)
        else:
            yield from map(self._weighed, self._rows._read(self._rows_of(chunk) for chunk in chunks))

    def _tables(self, rows: list[list[int]]) -> Any:
        """Persons' rows of tensors, those of as many rows, to a power of two, together: nobody is wider because another is."""
        counts = np.array([len(mine) for mine in rows])
        widths = 1 << np.ceil(np.log2(counts)).astype(np.intp)
        groups: list[tuple[Tensor, Any, Any]] = []
        for width in np.unique(widths).tolist():
            places = np.flatnonzero(widths == width)
            table = np.array([rows[place] + rows[place][:1] * (width - len(rows[place])) for place in places])
            shares = torch.from_numpy((np.arange(width) < counts[places][:, None]) / counts[places][:, None])
            inputs, targets = map_tensors(functools.partial(_unflattened, table.shape), self._rows._fetch(table.ravel()))
            groups.append((torch.from_numpy(places), inputs, (targets, shares.float())))
        return groups[0][1:] if len(groups) == 1 else Ragged(groups, len(rows))

    def _weighed(self, batch: Any) -> Any:
        """With weights for shares: they add up to a hair less than 1, as they are single precision."""
        if isinstance(batch, Ragged):
            return batch.mapped(lambda inputs, targets: self._weighed((inputs, targets)))
        inputs, (targets, shares) = batch
        return inputs, (targets, shares * _HAIR)


def _unflattened(shape: tuple[int, ...], tensor: Tensor) -> Tensor:
    return tensor.unflatten(0, shape)


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
