"""Records for networks: tensors or any map-style dataset, drawn by index, in batches that fit memory."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from dperm._column import refuse_masked
from dperm.release import alignment
from dperm.torch.coins import drawing_for
from dperm.torch.guard import kept_states, seed_all
from dperm.torch.named import Paired, label_apart, readable
from dperm.torch.ranks.group import Ranks
from dperm.torch.ranks.share import Share
from dperm.torch.structure import batch_size, map_tensors, take, tensors

__all__ = ["NOBODY", "TorchRecords"]

Indices = NDArray[np.intp]

#: in place of a batch, where other ranks have one: see `TorchRecords.in_step`
NOBODY = object()

_AT_ONCE = 8192  # targets looked at together
_SHORTEST = 3  # records of least length that are collated alone, too
_CANDIDATES = 4  # records looked at for each that a model is checked on


class TorchRecords:
    """n records as (inputs, targets): a pair of tensors or arrays (or nested structures of tensors with the records along
    the first axis), or a dataset with a length whose items are (input, target) pairs. Records may also have named entries, of
    which one is called "labels" or "label": the others are keyword arguments of the model.

    A draw is cut into physical batches of at most `physical_batch_size` records on `device`. `collate_fn` makes a batch
    (inputs, targets) from a list of items; `num_workers` processes read items ahead. TypeError where records cannot be
    drawn by index.
    """

    _share: Share | None = None
    #: whether every rank gets as many batches as the one that has most, the last ones of `NOBODY`
    in_step = False
    #: whether its items are the run's records, by their numbers: not rows of persons
    named = True

    def __init__(
        self,
        data: Any,
        *,
        physical_batch_size: int = 1024,
        device: torch.device | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
    ) -> None:
        self.physical_batch_size = physical_batch_size
        self.device = device or torch.device("cpu")
        self._collate = Paired(collate_fn)
        self._workers = num_workers
        self._tensors: Any = None
        self._dataset: Any = None
        if isinstance(data, TensorDataset):
            *inputs, targets = data.tensors
            data = (inputs[0] if len(inputs) == 1 else tuple(inputs), targets)
        if isinstance(data, Mapping):
            data = label_apart(cast(Mapping[str, Any], data))
        # a list of two items that are pairs themselves is a data set of two records
        if len(data) == 2 if isinstance(data, tuple) else isinstance(data, list) and all(map(_is_table, data)) and len(data) == 2:
            self._tensors = _as_tensors(data)
            size = batch_size(self._tensors[0])
            other = batch_size(self._tensors[1])
            if size is None or other != size:
                raise ValueError(f"Expected as many targets as inputs, got {other} and {size}.")
            lengths = {len(tensor) if tensor.dim() else 0 for tensor in tensors(self._tensors)}
            if lengths != {size}:
                raise ValueError(f"Expected one row per record in every tensor, got first axes of {sorted(lengths)}.")
            self._size = size
        elif isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError(
                f"Expected tensors (inputs, targets) or a dataset with a length and items by index, got {type(data).__name__}: "
                "Poisson sampling draws each record independently and cannot read a stream. For a DataLoader pass loader.dataset."
            )
        else:
            if _twice(data):
                raise ValueError(
                    "Expected each record once, got a Subset or ConcatDataset that holds some of them repeatedly: a record that "
                    "counts twice would cost more privacy than is charged."
                )
            self._dataset = data
            self._size = len(data)
        if not self._size:
            raise ValueError("Expected at least one record, got none.")

    @property
    def share(self) -> Share:
        """Which of a run's records these are: all, unless it was set. Draws are of the run's."""
        return self._share or Share.of_whole(self._size)

    @share.setter
    def share(self, share: Share) -> None:
        self._share = share

    @property
    def arrangement(self) -> str:
        """What must be the same where others count records as this one does, beside how many there are."""
        return ""

    @property
    def held(self) -> int:
        """How many records are here."""
        return self._size

    def __len__(self) -> int:
        """How many records the run has: more than are here, where others have the rest."""
        return self.share.total

    def sample(self, count: int) -> Any:
        """Up to `count` records from all over the set as one batch: for checks and measurements before a run."""
        chosen = np.unique(np.linspace(0, self._size - 1, min(count, self._size)).round().astype(np.intp))
        return self._moved(self._fetch(chosen), len(chosen))

    def probe(self, count: int) -> tuple[Any, list[tuple[int, Any, Any]]]:
        """Up to `count` records that differ in length, as one batch; and, where records are collated, some of them in batches of
        their own: (place in the batch, inputs, targets)."""
        several = np.unique(np.linspace(0, self._size - 1, min(_CANDIDATES * count, self._size)).round().astype(np.intp))
        if self._tensors is not None:
            lengths = sum(_lengths(tensor[torch.from_numpy(several)]) for tensor in tensors(self._tensors))
            chosen = _spread(several, lengths, count)
            return self._moved(self._fetch(chosen), len(chosen)), []
        items = [self._dataset[int(index)] for index in several]
        sizes = np.array([sum(float(_lengths(tensor[None])[0]) for tensor in tensors(_as_far(item))) for item in items])
        chosen = _spread(np.arange(len(items)), sizes, count)
        picked = [items[place] for place in chosen]
        by_length = np.argsort(sizes[chosen], kind="stable").tolist()  # the shortest are padded most, the longest may be cut
        places = sorted({*by_length[:_SHORTEST], by_length[len(picked) // 2], by_length[-1]})
        if len(set(sizes)) == 1 and (longer := _longer(picked[-1])) is not None:
            with contextlib.suppress(RuntimeError, ValueError, IndexError, TypeError):  # a length of its own may not be
                self._moved(self._collate([*picked[:-1], longer]), len(picked))
                picked, places = [*picked[:-1], longer], places[:-1]
        alone = [(place, *self._moved(self._collate([picked[place]]), 1)) for place in places]
        return self._moved(self._collate(picked), len(picked)), alone

    def all_targets(self) -> Iterator[Any]:
        """All targets, by thousands; nothing where they cannot be had without reading every record."""
        targets = self._tensors[1] if self._tensors is not None else _stated_targets(self._dataset)
        if targets is None:
            return
        for start in range(0, self._size, _AT_ONCE):
            chunk = torch.arange(start, min(start + _AT_ONCE, self._size))
            yield map_tensors(lambda tensor: tensor.to(self.device), take(targets, chunk, self._size))

    def batches(self) -> Iterator[Any]:
        """All records in order."""
        return iter(next(self.stream([None])))

    def fingerprints(self, places: Indices | None = None) -> NDArray[np.uint64]:
        """(n,): a digest of each record by itself, in order, or of those at these places; what is drawn on the way, such as an
        augmentation, is drawn from one seed. Private."""
        digests: list[int] = []
        with kept_states(self.device):
            for index in range(self._size) if places is None else places.tolist():
                seed_all(0)
                digests.append(self._fingerprint(index))
        return np.array(digests, dtype=np.uint64)

    def _fingerprint(self, index: int) -> int:
        digest = hashlib.blake2b(digest_size=8)
        inputs, targets = self._fetch(np.array([index]))
        for part in (*tensors(inputs), *tensors(targets)):
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return int.from_bytes(digest.digest(), "little")

    def stream(self, draws: Iterable[Indices | None]) -> Iterator[Iterable[Any]]:
        """For each draw its physical batches (inputs, targets); an empty draw has none. RankError where ranks drew
        other records than each other, and must not: draws are dealt out, or batches are `in_step`."""
        counts: deque[tuple[Indices | None, int, int]] = deque()
        chosen: deque[list[int]] = deque()
        ready: deque[Any] = deque()
        exhausted = False

        def chunks() -> Iterator[list[int]]:
            for drawn in draws:
                indices = self.share.places(drawn)
                starts = range(0, len(indices), self.physical_batch_size)
                others = -(-self.share.most(drawn) // self.physical_batch_size) if self.in_step else 0
                counts.append((drawn, len(starts), max(0, others - len(starts))))
                for start in starts:
                    chunk = indices[start : start + self.physical_batch_size].tolist()
                    chosen.append(chunk)
                    yield chunk

        source = self._read(chunks())
        while True:
            # reading one batch ahead is what makes the next draw happen
            while not counts and not exhausted:
                try:
                    ready.append(next(source))
                except StopIteration:
                    exhausted = True
            if not counts:
                return
            drawn, expected, rest = counts.popleft()
            if (self.share.dealt or self.in_step) and drawn is not None:  # places in it, or its length, must be the same
                Ranks.here().keep_draw(drawn, self.device)
            batches = (self._handed_out(ready.popleft() if ready else next(source), chosen.popleft()) for _ in range(expected))
            yield itertools.chain(batches, itertools.repeat(NOBODY, rest))

    def _handed_out(self, batch: Any, numbers: list[int], rows: list[int] | None = None) -> Any:
        moved = self._moved(batch, len(numbers))
        if (replayed := alignment.current()) is not None:
            replayed.hands_out(moved[0], numbers, rows)
        return moved

    def _read(self, chunks: Iterator[list[int]]) -> Iterator[Any]:
        # in a replay what a record draws is its own, which processes that read ahead would not know
        if self._dataset is None or not self._workers or alignment.current() is not None:
            return (self._fetch(np.asarray(chunk)) for chunk in chunks)
        return iter(
            DataLoader(
                self._dataset,
                batch_sampler=_Chunks(chunks),
                num_workers=self._workers,
                collate_fn=self._collate,
                pin_memory=self.device.type == "cuda",
            )
        )

    def _fetch(self, indices: Indices) -> Any:
        if self._tensors is not None:
            return take(self._tensors, torch.from_numpy(indices), self._size)
        return self._collate([self._item(index) for index in indices.tolist()])

    def _item(self, index: int) -> Any:
        with drawing_for(index, self.device) if self.named else contextlib.nullcontext():
            return self._dataset[index]

    def _moved(self, batch: Any, size: int) -> Any:
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise TypeError(
                f"Expected a batch of (inputs, targets), got {type(batch).__name__}: give a collate_fn that makes that pair."
            )
        sizes = [batch_size(part) for part in batch]
        if sizes != [size, size]:
            raise ValueError(
                f"Expected a batch of {size} inputs and targets for {size} records, got {sizes[0]} and {sizes[1]}: a record that "
                "counts more than once would cost more privacy than is charged. Average its views within its loss instead."
            )
        if self.device.type == "cpu":
            return tuple(batch)
        return tuple(map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), part) for part in batch)


def _lengths(rows: Tensor) -> Any:
    """(b,) how long records are, as far as it can be told: the numbers of integers, or truths, that are not zero, and of all
    others."""
    if rows.is_floating_point() or rows.dim() < 2:
        return np.full(len(rows), float(rows[0].numel()) if len(rows) else 0.0)
    return (rows != 0).flatten(1).sum(1).double().cpu().numpy()


def _spread(candidates: Indices, lengths: Any, count: int) -> Indices:
    """`count` of the candidates: the shortest, the longest, and evenly between them."""
    order = np.argsort(np.broadcast_to(lengths, len(candidates)), kind="stable")
    places = np.unique(np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(np.intp))
    return np.sort(candidates[order[places]])


def _as_far(item: Any) -> Any:
    """A record's tensors, and its arrays and lists of numbers as tensors."""
    if isinstance(item, Mapping):
        return {name: _as_far(part) for name, part in item.items()}
    if isinstance(item, tuple):
        return tuple(_as_far(part) for part in item)
    if isinstance(found := readable(item), list):
        return tuple(_as_far(part) for part in found)
    return found


def _longer(item: Any) -> Any:
    """A record whose sequences are three times as long; None where it has none, or is not a pair of tensors."""
    if not isinstance(item, tuple) or len(item) != 2:
        return None
    inputs = map_tensors(lambda tensor: torch.cat([tensor] * 3) if tensor.dim() == 1 else tensor, item[0])
    changed = [tensor.shape for tensor in tensors(inputs)] != [tensor.shape for tensor in tensors(item[0])]
    return (inputs, item[1]) if changed and isinstance(item[0], Tensor) else None


def _stated_targets(data: Any) -> Tensor | None:
    """The `targets` that a collection of labelled records keeps beside them, as far as they are class numbers."""
    if isinstance(data, Subset):
        inner = _stated_targets(data.dataset)
        return None if inner is None else inner[torch.as_tensor(list(data.indices))]
    stated: Any = getattr(data, "targets", None)
    targets = (
        torch.tensor(stated) if isinstance(stated, list) and all(type(item) is int for item in cast(Any, stated)) else stated
    )
    if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point() or len(targets) != len(data):
        return None
    return targets if getattr(data, "target_transform", None) is None else None


def _twice(data: Any) -> bool:
    """Whether a record is there more than once, by what torch's own collections say."""
    if isinstance(data, Subset):
        indices = list(data.indices)
        return len(set(indices)) < len(indices) or _twice(data.dataset)
    if isinstance(data, ConcatDataset):
        parts = list(data.datasets)
        return len({id(part) for part in parts}) < len(parts) or any(_twice(part) for part in parts)
    return False


class _Chunks:
    """A batch sampler that reads its batches from an iterator."""

    def __init__(self, chunks: Iterator[list[int]]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[list[int]]:
        return self._chunks


def _is_table(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, dict))


def _as_tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, dict):
        return {name: _as_tensors(item) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_as_tensors(item) for item in value)
    if isinstance(value, np.ndarray):
        refuse_masked("records", value)
        return torch.from_numpy(np.asarray(value))
    raise TypeError(f"Expected tensors or NumPy arrays, got {type(value).__name__}: convert it first (pandas: .to_numpy()).")
