"""Batches of which no record is made beside another's.

A `collate_fn` that is given several people's records can mix them: it pads all to the longest, and nothing keeps it from
adding them up. So it is given one record at a time, twice, with a companion between that is made of the record itself: repeated
to the next power of two of its length where the function takes that, else the record again. Whatever the function does, what it
returns follows from one record. The row that is there twice is the record's, wherever the function has put it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from types import MethodType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import Dataset

from dperm.torch.data.labelled_items import Paired
from dperm.torch.data.packed_rows import refuse_collator, refuse_packed
from dperm.torch.tensors.global_randomness import fresh_seed, seed_all
from dperm.torch.tensors.nested import batch_size, has_padded, map_tensors, padded, take, tensors, with_items, with_tensors


class Ragged(list[tuple[Tensor, Any, Any]]):
    """A batch of `size` records whose tensors have several shapes: for each shape (places (m,) in the batch, inputs, targets).
    Who is at no place could not be read, and has neither a loss nor a gradient."""

    def __init__(self, groups: Iterable[tuple[Tensor, Any, Any]], size: int) -> None:
        super().__init__(groups)
        self.size = size

    def mapped(self, function: Callable[[Any, Any], Any]) -> Ragged:
        """With `function(inputs, targets)` in place of both."""
        return Ragged(((places, *function(inputs, targets)) for places, inputs, targets in self), self.size)


_LONG = 100_000  # entries of a collection that are not copied
_TRIES = 4  # draws of a collation that are compared: a share of a mixture may happen to be near 1
_ACROSS = (
    "Your collate_fn gives a record other values beside other records: it computes across records (mixing, standardising?), pads "
    "on the left (padding_side='right'), or leaves their order. Compute per record, or with public statistics."
)
_KEEPS = (
    "Your collate_fn gives a record other values when other records came before it: it keeps something of those (a vocabulary "
    "that grows?). Make what it needs beforehand, of public data."
)


class Collation:
    """Makes a batch (inputs, targets) of a list of records, each by itself. `collate_fn` is a function for a DataLoader, or None
    for torch's own. Rows that hold several documents are refused unless they are of persons, which `packed` says."""

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None = None, *, packed: bool = False) -> None:
        refuse_collator(collate_fn)
        self._unused = _unused(collate_fn)
        self._own = collate_fn is None
        self._whole = Paired(collate_fn)
        self._packed = packed

    def __call__(self, items: Iterable[Any]) -> Any:
        """A pair (inputs, targets) with the records along the first axes, or `Ragged` where their shapes differ."""
        if not self._own:
            return joined([self._one(item) for item in items])
        items = list(items)
        for item in () if self._packed else items:
            refuse_packed(item)
        kinds = {_kind(item) for item in items}
        if len(kinds) == 1 and None not in kinds:  # torch's own stacks them, and computes nothing
            return self._whole(items)
        return joined([self._whole([item]) for item in items])

    def of_several(self, records: Iterable[Iterable[Any]], views: int = 1) -> Any:
        """The same for records that are several rows each, and each row as many items as it has views: these are collated
        together, and nobody else's with them. A record is (1, k, …), for k the next power of two of its rows: the first fills up;
        with several views (1, k, views, …). Targets are (targets, shares (1, k)), shares of the record that each row has, adding
        up to 1."""
        return joined([self._several(list(items), views) for items in records])

    def of_views(self, records: Iterable[Iterable[Any]]) -> Any:
        """The same for records that are as many items as they have views, which are collated together: (b, views, …)."""
        found = [list(items) for items in records]
        flat = [item for items in found for item in items]
        kinds = {_kind(item) for item in flat} if self._own else set[Any]()
        if len(kinds) == 1 and None not in kinds:  # torch's own stacks them, and computes nothing
            return map_tensors(lambda tensor: tensor.unflatten(0, (len(found), -1)), self._whole(flat))
        return joined([map_tensors(lambda tensor: tensor[None], self._together(items)) for items in found])

    def look(self, items: list[Any]) -> None:
        """ValueError where a record has other values beside its companions than beside these others: the function was meant to
        compute across records. So too where it has others after others were collated, by a copy of the function from before.
        Nothing rests on it, and nothing follows from it but the error."""
        if self._own or not items:
            return
        seed = fresh_seed()
        whole, again = (_in_rows(self._seeded(seed + number, items), len(items)) for number in range(2))
        if _same(whole, again):
            across = not all(_among(self._one(item), whole, len(items)) for item in items)
            if not across:
                self._look_at_memory(items, whole)
        else:  # values that are drawn cannot be compared, but for the same draws
            across = self._mixes_by_draws(items)
        if across:
            raise ValueError(_ACROSS)

    def _look_at_memory(self, items: list[Any], whole: Any) -> None:
        """ValueError where the function's copy, which has collated nothing yet, gives these items other values in another
        order."""
        turned = _in_rows(Paired(self._unused)([copy.copy(item) for item in reversed(items)]), len(items))
        for place in range(len(items)):
            if not _among(take(turned, torch.tensor([place]), len(items)), whole, len(items)):
                raise ValueError(_KEEPS)

    def _seeded(self, seed: int, items: list[Any]) -> Any:
        seed_all(seed)
        return self._whole([copy.copy(item) for item in items])

    def _mixes_by_draws(self, items: list[Any]) -> bool:
        """Whether a function that draws gives the first record other values when the others change places, and nothing else."""
        if len({repr(_kind(item)) for item in items}) > 1 or _kind(items[0]) is None:
            return False  # records of several shapes change what is drawn
        changed = [items[0], *items[2:], items[1]] if len(items) > 1 else items
        first = torch.tensor([0])
        for _ in range(_TRIES):
            seed = fresh_seed()
            one, other = (take(_in_rows(self._seeded(seed, some), len(items)), first, len(items)) for some in (items, changed))
            if not _same(one, other):
                return True
        return False

    def _several(self, items: list[Any], views: int) -> Any:
        inputs, targets = self._together(items)
        if views > 1:
            inputs, targets = (map_tensors(lambda tensor: tensor.unflatten(0, (-1, views)), part) for part in (inputs, targets))
        rows = len(items) // views
        places = torch.arange(1 << (rows - 1).bit_length())
        shares = (places < rows).float() / rows
        places[rows:] = 0
        inputs, targets = (map_tensors(lambda tensor: tensor[places][None], part) for part in (inputs, targets))
        return inputs, (targets, shares[None])

    def _together(self, items: list[Any]) -> Any:
        """A batch (inputs, targets) of items that belong to one record. ValueError for what cannot be stacked, or is packed."""
        if self._own and len(set(map(_kind, items)) - {None}) > 1:
            raise ValueError(
                "Expected the rows, or views, of one record to have one shape and type: crop or pad them to one size, or give a "
                "collate_fn that pads."
            )
        inputs, targets = _in_rows(self._whole(items), len(items))
        if has_padded((inputs, targets)):
            raise ValueError("Expected padded tensors and lengths of a record of several rows or views, got a packed sequence.")
        if any(not tensor.dim() or tensor.shape[0] != len(items) for tensor in tensors((inputs, targets))):
            raise ValueError(f"Expected collate_fn to give tensors with {len(items)} rows for as many of one record's.")
        return inputs, targets

    def _one(self, item: Any) -> Any:
        """The batch (inputs, targets) of one record."""
        if not self._packed:
            refuse_packed(item)
        try:
            record = _of_three(self._whole([copy.copy(item), _repeated(item), copy.copy(item)]))
        except Exception:  # a length that the function does not take, say
            record = None
        if record is None:  # or values that are drawn: the record is as long as it is
            record = take(_in_rows(self._whole([copy.copy(item) for _ in range(3)]), 3), torch.tensor([0]), 3)
        _made_of(record)
        if not self._packed:
            refuse_packed(record[0], batched=True)
        return record


def _unused(collate_fn: Any) -> Any:
    """A copy of the function that remembers nothing of what the function collates; the function itself where it cannot be copied,
    and where it is a method, for its object may hold all records. Models, data sets, arrays and long collections are shared."""
    if isinstance(collate_fn, MethodType):
        return collate_fn

    def large(part: Any) -> bool:
        return isinstance(part, nn.Module | Tensor | np.ndarray | Dataset) or (isinstance(part, Sized) and len(part) > _LONG)

    try:
        held = getattr(collate_fn, "__dict__", {}).values()
        return copy.deepcopy(collate_fn, {id(part): part for part in held if large(part)})
    except Exception:  # what copying an object of others may raise
        return collate_fn


def _of_three(batch: Any) -> Any:
    """A record's row of a batch of it, a companion and it again: a row that is there twice, wherever the function has put it.
    None where there is none, as values are drawn."""
    batch = _in_rows(batch, 3)
    rows = [take(batch, torch.tensor([row]), 3) for row in range(3)]
    pairs = ((1, 2), (0, 2), (0, 1))
    return next((rows[one] for one, other in pairs if _same(rows[one], rows[other])), None)


def _kind(item: Any) -> Any:
    """What a record of numbers is made of: among others of another kind, its numbers would be rounded to theirs. None for a
    record that has more than numbers."""
    if isinstance(item, Tensor):
        return item.shape, item.dtype
    if isinstance(item, np.ndarray):
        return item.shape, item.dtype.str
    if isinstance(item, bool | int | float | np.number | np.bool_):
        return type(item)
    if isinstance(item, Mapping):
        named = cast(Mapping[Any, Any], item)
        parts = [_kind(part) for part in named.values()]
        return None if None in parts else (tuple(named), *parts)
    if isinstance(item, list | tuple):
        parts = list(map(_kind, cast(Sequence[Any], item)))
        return None if None in parts else (type(item), *parts)
    return None


def joined(records: Sequence[Any]) -> Any:
    """One batch of batches of one, or `Ragged`: those run together whose tensors have the same shapes, and all else is equal.
    None stands for a record that could not be read.

    Raises TypeError for what is neither numbers nor text, ValueError for a tensor that has not one row for its one record.
    """
    kinds: dict[Any, list[int]] = {}
    for place, record in enumerate(records):
        if record is not None:
            kinds.setdefault(_made_of(record), []).append(place)
    groups = [(torch.tensor(places), *_stacked([records[place] for place in places])) for places in kinds.values()]
    return groups[0][1:] if len(groups) == 1 and len(groups[0][0]) == len(records) else Ragged(groups, len(records))


def _parts(batch: Any) -> str:
    """A batch by its type, and by its length where it has parts, for messages."""
    named = type(batch).__name__
    return f"a {named} of {len(batch)}" if isinstance(batch, list | tuple) else named


def _in_rows(batch: Any, size: int) -> Any:
    """A batch (inputs, targets) of `size` records, whose packed sequences are padded, and whose lists of as many numbers are
    tensors. Raises TypeError or ValueError for what has no row for each record."""
    refuse_other_than_pairs(batch, size)
    return _numbers_as_tensors(padded(batch), size)


def _numbers_as_tensors(value: Any, size: int) -> Any:
    """The same with tensors (size,) in place of lists of `size` numbers."""
    if isinstance(value, list | tuple) and len(value) == size and all(type(part) in (bool, int, float) for part in value):
        return torch.tensor(value)
    if isinstance(value, Mapping):
        named = cast(Mapping[Any, Any], value)
        return with_items(named, {name: _numbers_as_tensors(part, size) for name, part in named.items()})
    if type(value) in (list, tuple):
        return type(value)(_numbers_as_tensors(part, size) for part in value)
    return value


def refuse_other_than_pairs(batch: Any, size: int) -> None:
    """TypeError for a batch that is not a pair (inputs, targets), ValueError where either has not `size` records."""
    if not isinstance(batch, (tuple, list)) or len(cast(Sequence[Any], batch)) != 2:
        raise TypeError(
            f"Expected a batch of (inputs, targets), got {_parts(batch)}: give a collate_fn that makes that pair. Several "
            "inputs, as lengths beside sequences, are a tuple or a dict in the first."
        )
    sizes = [batch_size(part) for part in cast(Sequence[Any], batch)]
    if sizes != [size, size]:
        raise ValueError(
            f"Expected tensors with the records along their first axes, {size} rows of inputs and of targets for {size} "
            f"records, got {sizes[0]} and {sizes[1]}: a record that counts more than once would cost more privacy than is "
            "charged. For several views of each record pass views= to the trainer, which averages their losses."
        )


def _made_of(value: Any) -> Any:
    """Everything of a batch of one but the numbers in its tensors: who has the same may be in one batch, and sees its own."""
    if isinstance(value, PackedSequence):
        return "packed", value.data.shape, value.data.dtype
    if isinstance(value, Tensor):
        if not value.dim() or value.shape[0] != 1:
            raise ValueError(
                f"Expected collate_fn to give tensors with one row for each record, got shape {tuple(value.shape)} for one: "
                "what a batch shares, or has several rows a record, cannot be told apart."
            )
        return value.shape, value.dtype, value.device, value.layout
    if isinstance(value, Mapping):
        return type(value), tuple((name, _made_of(part)) for name, part in cast(Mapping[Any, Any], value).items())
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_made_of, cast(Sequence[Any], value)))
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return type(value), repr(value)  # which tells -0.0 from 0.0
    raise TypeError(f"Expected tensors, numbers and texts of a record, got {type(value).__name__}: leave it out in collate_fn.")


def _stacked(records: Sequence[Any]) -> Any:
    return with_tensors(records[0], [torch.cat(parts) for parts in zip(*map(tensors, records), strict=True)])


def grouped(batch: Any, size: int) -> list[tuple[Tensor, Any, Any]]:
    """Records that can run together: (their places (m,) in the batch, inputs, targets)."""
    return list(batch) if isinstance(batch, Ragged) else [(torch.arange(size), *batch)]


def _repeated(item: Any) -> Any:
    """The record with its sequences as long as the next power of two, by their own entries over again."""
    if isinstance(item, Tensor):
        return item[_places(len(item))] if item.dim() and len(item) else item
    if isinstance(item, np.ndarray):
        return item[_places(len(item))] if item.ndim and len(item) else item
    if isinstance(item, Mapping):
        named = cast(Mapping[str, Any], item)
        return {name: _repeated(part) for name, part in named.items()}
    if isinstance(item, tuple):
        return tuple(_repeated(part) for part in cast(tuple[Any, ...], item))
    if isinstance(item, list):
        parts = cast(list[Any], item)
        if parts and all(isinstance(part, bool | int | float) for part in parts):
            return [parts[place] for place in _places(len(parts))]
        return [_repeated(part) for part in parts]
    return item


def _places(length: int) -> list[int]:
    return [place % length for place in range(1 << (length - 1).bit_length())]


def _same(first: Any, second: Any) -> bool:
    pairs = zip(tensors(first), tensors(second), strict=True)
    return all(a.shape == b.shape and torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in pairs)


def _among(one: Any, whole: Any, size: int) -> bool:
    """Whether a record has the same values in one of the rows of a batch."""
    return any(_agree(one, take(whole, torch.tensor([place]), size)) for place in range(size))


def _agree(one: Any, other: Any) -> bool:
    """Whether a record has the same values in both batches of one, as far as both reach; beyond is one value, the padding."""
    for mine, theirs in zip(tensors(one), tensors(other), strict=True):
        if mine.dim() != theirs.dim() or mine.dtype != theirs.dtype:
            return False
        common = tuple(slice(0, min(a, b)) for a, b in zip(mine.shape, theirs.shape, strict=True))
        if not torch.allclose(mine[common].double(), theirs[common].double(), rtol=1e-4, atol=1e-6, equal_nan=True):
            return False
        for axis, length in enumerate(theirs.shape):
            beyond = mine.narrow(axis, length, mine.shape[axis] - length) if mine.shape[axis] > length else mine[:0]
            if beyond.numel() and bool((beyond != beyond.flatten()[0]).any()):
                return False
    return True
