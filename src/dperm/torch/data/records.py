"""Records for networks: tensors or any map-style dataset, drawn by index, in batches that fit memory."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, StackDataset, Subset, TensorDataset

from dperm._column import refuse_masked
from dperm.release import alignment
from dperm.torch.data.collation import Collation, Ragged, grouped, refuse_other_than_pairs
from dperm.torch.data.dataset_generators import refuse_generators
from dperm.torch.data.items import Chunks, Items, Reads, Rows, Transformed, as_it_is
from dperm.torch.data.labelled_items import Paired, pair_of
from dperm.torch.data.packed_rows import refuse_packed
from dperm.torch.ranks.group import Ranks
from dperm.torch.ranks.rank_share import Share
from dperm.torch.tensors.global_randomness import fresh_seed, kept_states
from dperm.torch.tensors.nested import batch_size, map_tensors, on_device, take, tensors
from dperm.torch.tensors.user_code_errors import in_short

Indices = NDArray[np.intp]

#: in place of a batch, where other ranks have one: see `TorchRecords.in_step`
NOBODY = object()

_AT_ONCE = 8192  # targets looked at together


class TorchRecords:
    """n records as (inputs, targets): tensors or arrays (or nested structures of tensors) with the records along the first axis,
    or a dataset with a length and items by index. What is for the model and what for the loss, `labelled_items.pair_of` says:
    the last of several parts, or the entry called "labels" or "label", is for the loss, which without one gets the inputs again.

    A draw is cut into physical batches of at most `physical_batch_size` records on `device`. `collate_fn` makes a batch
    (inputs, targets) from a list of items; `num_workers` processes read items ahead. Where records are `protected`, each is
    collated by itself (`dperm.torch.data.collation`). The data set and `collate_fn` draw for each record from a seed that is
    made of `key` (None: by the operating system) and of the record's number. Rows that hold several documents are refused unless
    they are rows of persons (`packed`). TypeError where records cannot be drawn by index.

    With `views` above 1 a batch has inputs and targets (b, views, …): each record is read that many times. `transform` changes
    the inputs of a record, as the data set has them, whenever they are read.
    """

    _share: Share | None = None
    #: whether every rank gets as many batches as the one that has most, the last ones of `NOBODY`
    in_step = False
    #: whether a run that reads them is paid for: a record that cannot be read contributes zero then
    charged = False
    #: names of these records, by their numbers, that are the same in a run that this one is compared with
    names: Callable[[Sequence[int]], Sequence[object]] = staticmethod(alignment.names_of)

    #: What must be the same where others count records as this one does, beside how many there are.
    arrangement = ""

    def __init__(
        self,
        data: Any,
        *,
        physical_batch_size: int = 1024,
        device: torch.device | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_workers: int = 0,
        protected: bool = True,
        key: int | None = None,
        views: int = 1,
        transform: Callable[[Any], Any] | None = None,
        packed: bool = False,
    ) -> None:
        self.physical_batch_size = physical_batch_size
        self.device = device or torch.device("cpu")
        self._collate: Any = Collation(collate_fn, packed=packed) if protected else Paired(collate_fn)
        self._workers, self.views = num_workers, views
        self._loaders: list[Any] = []  # whose processes wait for the next stream
        self._reads: Any = None  # (n,) how often each record was read
        replayed = alignment.current() is not None
        self._key = (0 if replayed else fresh_seed()) if key is None else key
        self._tensors: Any = None
        self._dataset: Any = None
        if type(data) is TensorDataset:  # what a subclass makes of its tensors is its own affair
            data = data.tensors
        if _in_tables(data):
            if protected and not packed:
                refuse_packed(data, batched=True)
            given = pair_of(data)
            self._tensors = _as_tensors(given)
            size = batch_size(self._tensors[0])
            other = batch_size(self._tensors[1])
            if size is None or other != size:
                raise ValueError(f"Expected as many targets as inputs, got {other} and {size}.")
            lengths = {len(tensor) if tensor.dim() else 0 for tensor in tensors(self._tensors)}
            if lengths != {size}:
                raise ValueError(f"Expected one row per record in every tensor, got first axes of {sorted(lengths)}.")
            self._size = size
            if collate_fn is not None or transform is not None:  # which are given records one by one
                alone = transform is not None and given[0] is given[1]  # the loss then gets what was transformed
                self._dataset, self._tensors = Rows(self._tensors[0] if alone else self._tensors, size), None
        elif isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError(
                f"Expected tensors (inputs, targets) or a dataset with a length and items by index, got {type(data).__name__}: "
                "Poisson sampling draws each record independently and cannot read a stream. Of a DataLoader take "
                "dperm.torch.from_loader(loader)."
            )
        else:
            if _repeats(data):
                raise ValueError(
                    "Expected each record once, got a Subset or ConcatDataset that holds some of them repeatedly: a record that "
                    "counts twice would cost more privacy than is charged."
                )
            self._dataset = data
            self._size = len(data)
        if not self._size:
            raise ValueError("Expected at least one record, got none.")
        self._stated = self._tensors[1] if self._tensors is not None else _stated_targets(self._dataset)
        if transform is not None:
            self._dataset = Transformed(self._dataset, transform)

    @property
    def share(self) -> Share:
        """Which of a run's records these are: all, unless it was set. Draws are of the run's."""
        return self._share or Share.of_whole(self._size)

    @share.setter
    def share(self, share: Share) -> None:
        self._share = share

    @property
    def held(self) -> int:
        """How many records are here."""
        return self._size

    def __len__(self) -> int:
        """How many records the run has: more than are here, where others have the rest."""
        return self.share.total

    def sample(self, count: int) -> Any:
        """Up to `count` records from all over the set as one batch (inputs, targets), for checks and measurements before a run:
        where shapes differ, those of the largest. ValueError where records are not collated each by itself."""
        chosen = np.unique(np.linspace(0, self._size - 1, min(count, self._size)).round().astype(np.intp))
        if self._tensors is None and isinstance(self._collate, Collation):
            with kept_states(self.device):
                refuse_generators(self._dataset, self._collate)
                try:
                    self._collate.look([self._dataset[int(index)] for index in chosen])
                except (AttributeError, ArithmeticError, LookupError, RuntimeError) as error:
                    raise ValueError(f"The data set or collate_fn fails on the first records: {in_short(error)}") from error
        groups = grouped(self._moved(self._fetch(chosen, seed=0), len(chosen)), len(chosen))
        _, inputs, targets = max(groups, key=lambda group: sum(tensor[0].numel() for tensor in tensors(group[1:])))
        return inputs, targets

    def all_targets(self) -> Iterator[Any]:
        """All targets, by thousands; nothing where they cannot be had without reading every record."""
        if self._stated is None:
            return
        for start in range(0, self._size, _AT_ONCE):
            chunk = torch.arange(start, min(start + _AT_ONCE, self._size))
            yield self._in_views(on_device(take(self._stated, chunk, self._size), self.device))

    def batches(self) -> Iterator[Any]:
        """All records in order."""
        return iter(next(self.stream([None])))

    def fingerprints(self, places: Indices | None = None) -> NDArray[np.uint64]:
        """(n,): a digest of each record by itself, in order, or of those at these places; what is drawn on the way, such as an
        augmentation, is drawn from one seed. Private."""
        numbers = range(self._size) if places is None else places.tolist()
        return np.array([self._fingerprint(number) for number in numbers], dtype=np.uint64)

    def _fingerprint(self, index: int) -> int:
        digest = hashlib.blake2b(digest_size=8)
        inputs, targets = self._fetch(np.array([index]), seed=0)
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
            read = (ready.popleft() if ready else next(source) for _ in range(expected))
            batches = (self._handed_out(batch, self.names(chosen.popleft())) for batch in read)
            yield itertools.chain(batches, itertools.repeat(NOBODY, rest))

    def _handed_out(self, batch: Any, names: Sequence[object]) -> Any:
        moved = self._moved(batch, len(names))
        if (replayed := alignment.current()) is not None:
            for places, inputs, _ in grouped(moved, len(names)):
                replayed.hands_out(inputs, [names[place] for place in places.tolist()])
        return moved

    def _read(self, chunks: Iterator[list[Any]]) -> Iterator[Any]:
        if self._dataset is None:
            yield from (self._fetch(np.asarray(chunk)) for chunk in chunks)
            return
        if not self._workers:
            yield from (self._collated(chunk, None) for chunk in chunks)
            return
        loader = self._loaders.pop() if self._loaders else self._loader()
        loader.batch_sampler.chunks = (self._seeded(chunk) for chunk in chunks)
        yield from loader
        self._loaders.append(loader)

    def _loader(self) -> Any:
        return DataLoader(
            Items(self._dataset, self._collate, self.charged, self.views),
            batch_sampler=Chunks(),
            num_workers=self._workers,
            collate_fn=as_it_is,
            pin_memory=self.device.type == "cuda",
            persistent_workers=True,
        )

    def _fetch(self, indices: Indices, seed: int | None = None) -> Any:
        """A batch of these records, that each draw from this seed, or from the next of their own."""
        if self._tensors is not None:
            return self._in_views(take(self._tensors, torch.from_numpy(indices), self._size))
        return self._collated(indices.tolist(), seed)

    def _in_views(self, batch: Any) -> Any:
        """The batch with each record as often as it has views, along a second axis."""
        if self.views == 1:
            return batch
        return map_tensors(lambda tensor: tensor[:, None].expand(-1, self.views, *tensor.shape[1:]), batch)

    def _collated(self, numbers: list[Any], seed: int | None) -> Any:
        """A batch of these items of the data set; of lists of items where a list makes one record."""
        items = Items(self._dataset, self._collate, self.charged, self.views)
        with kept_states(self.device):
            return items.__getitems__(self._seeded(numbers, seed))

    def _seeded(self, numbers: list[Any], seed: int | None = None) -> list[Any]:
        """The reads of these items, one for each view, with seeds that are made of an item's name and of how often it was read,
        or with this one: whatever else is read, in whatever order or process, it draws the same."""
        flat = [item for number in numbers for item in (number if isinstance(number, list) else [number])]
        if self._reads is None:
            self._reads = np.zeros(self._size, dtype=np.int64)
        if seed is None:
            before, names = self._reads[flat].tolist(), self.names(flat)
            self._reads[flat] += self.views
            made = iter(
                [
                    tuple((item, alignment.seed_of(self._key, name, reads + view)) for view in range(1, self.views + 1))
                    for item, name, reads in zip(flat, names, before, strict=True)
                ]
            )
        else:
            made: Iterator[Reads] = iter([tuple((item, seed + view) for view in range(self.views)) for item in flat])
        return [[next(made) for _ in number] if isinstance(number, list) else next(made) for number in numbers]

    def _moved(self, batch: Any, size: int) -> Any:
        if isinstance(batch, Ragged):
            return batch.mapped(lambda inputs, targets: self._moved((inputs, targets), batch_size(targets) or 0))
        refuse_other_than_pairs(batch, size)
        if self.device.type == "cpu":
            return tuple(batch)
        return tuple(map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), part) for part in batch)


def _stated_targets(data: Any) -> Tensor | None:
    """The `targets` that a collection of labelled records keeps beside them, as far as they are class numbers."""
    if type(data) is Subset:
        inner = _stated_targets(data.dataset)
        return None if inner is None else inner[torch.as_tensor(list(data.indices))]
    stated: Any = getattr(data, "targets", None)
    targets = (
        torch.tensor(stated) if isinstance(stated, list) and all(type(item) is int for item in cast(Any, stated)) else stated
    )
    if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point() or len(targets) != len(data):
        return None
    return targets if getattr(data, "target_transform", None) is None else None


def _repeats(data: Any) -> bool:
    """Whether a record is there more than once, by what torch's own collections say."""
    if not isinstance(data, (Subset, ConcatDataset, StackDataset)):
        return False
    seen = set[Any]()
    for index in range(len(data)):
        record = _origin(data, index)
        if record in seen:
            return True
        seen.add(record)
    return False


def _origin(data: Any, index: int) -> tuple[Any, ...]:
    """The innermost collections that a record comes from, and its numbers there."""
    if isinstance(data, StackDataset):
        parts: Any = data.datasets
        return tuple(_origin(part, index) for part in (parts.values() if isinstance(parts, dict) else parts))
    if isinstance(data, Subset):
        return _origin(data.dataset, int(data.indices[index]))
    if isinstance(data, ConcatDataset):
        index = index + len(data) if index < 0 else index
        part = bisect.bisect_right(data.cumulative_sizes, index)
        return _origin(data.datasets[part], index - (data.cumulative_sizes[part - 1] if part else 0))
    index = index + len(data) if index < 0 else index
    if type(data) is TensorDataset:  # two of the same tensors hold the same records
        first = data.tensors[0]
        return (first.data_ptr() + index * first.stride(0) * first.element_size() if first.dim() else id(first)), 0
    return id(data), index


def _in_tables(data: Any) -> bool:
    """Whether records are the rows of tensors or arrays. A list of more than two, or of two items that are pairs themselves, is a
    data set of as many records."""
    if isinstance(data, list):
        return len(cast(list[Any], data)) == 2 and all(
            isinstance(part, Tensor | np.ndarray | dict) for part in cast(list[Any], data)
        )
    return isinstance(data, Tensor | np.ndarray | Mapping) or (isinstance(data, tuple) and len(cast(tuple[Any, ...], data)) > 0)


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
