"""Batches as nested dicts, lists and tuples of tensors: apply, select records, count."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

#: What a model, or a loss, may raise on input that it was not written for
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with `function` applied to its tensors; everything else unchanged."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=function(value.data))
    if isinstance(value, Mapping):
        return with_items(value, {key: map_tensors(function, item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, item) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(function, item) for item in value)
    return value


def on_device(value: Any, device: torch.device) -> Any:
    """`value` with its tensors on this device."""
    return map_tensors(lambda tensor: tensor.to(device), value)


def with_items(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the same type, where it can be written to: outputs of models have attributes too."""
    if type(value) is dict:
        return items
    copied: Any = copy.copy(value)
    try:
        for key, item in items.items():
            copied[key] = item
    except TypeError:
        return items
    return copied


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor that may be distributed."""
    held: Any = tensor
    return held.to_local() if hasattr(held, "to_local") else tensor


def shapes(value: Any) -> list[torch.Size | None]:
    """Shapes of all tensors in `value`, in order; None for a packed sequence's data, whose records alternate."""
    sizes: list[torch.Size | None] = []

    def visit(item: Any) -> None:
        if isinstance(item, PackedSequence):
            sizes.append(None)
        elif isinstance(item, Tensor):
            sizes.append(item.shape)
        elif isinstance(item, Mapping):
            for part in item.values():
                visit(part)
        elif isinstance(item, (list, tuple)):
            for part in item:
                visit(part)

    visit(value)
    return sizes


def refuse_other_shapes(own: Any, sample: Any) -> None:
    """ValueError where a batch has other shapes or types than a sample, short of the number of records."""
    for mine, theirs in zip(tensors(own), tensors(sample), strict=True):
        if (mine.shape[1:], mine.dtype) != (theirs.shape[1:], theirs.dtype):
            raise ValueError(
                "Expected records of one shape and type on all ranks where parameters are sharded, got "
                f"{tuple(mine.shape[1:])} of {mine.dtype} and {tuple(theirs.shape[1:])} of {theirs.dtype}: pad them."
            )


def tensors(value: Any) -> list[Tensor]:
    """All tensors in `value`, in order; a packed sequence counts as its data."""
    collected: list[Tensor] = []
    map_tensors(collected.append, value)
    return collected


def with_tensors(value: Any, others: Iterable[Tensor]) -> Any:
    """`value` with these in place of its tensors, in order."""
    waiting = iter(others)
    return map_tensors(lambda _: next(waiting), value)


class Padded(NamedTuple):
    """A packed sequence with its records along the first axis: values (b, T, ...), lengths (b,)."""

    values: Tensor
    lengths: Tensor


def padded(value: Any) -> Any:
    """`value` with `Padded` in place of packed sequences."""
    return _replaced(PackedSequence, lambda item: Padded(*pad_packed_sequence(item, batch_first=True)), value)


def packed(value: Any) -> Any:
    """`value` with packed sequences in place of `Padded`."""

    def pack(item: Padded) -> PackedSequence:
        return pack_padded_sequence(item.values, item.lengths, batch_first=True, enforce_sorted=False)

    return _replaced(Padded, pack, value)


def has_padded(value: Any) -> bool:
    """Whether a packed sequence is in it, as `padded` leaves it."""
    found: list[Padded] = []
    _replaced(Padded, found.append, value)
    return bool(found)


def _replaced(kind: type[Any], function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, Mapping):
        return with_items(value, {key: _replaced(kind, function, item) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_replaced(kind, function, item) for item in value)
    return value


def batch_size(value: Any) -> int | None:
    """Records in a batch: the first axis of its first tensor; None where there is none."""
    if isinstance(value, PackedSequence):
        return int(value.batch_sizes[0])
    if isinstance(value, Tensor):
        return value.shape[0] if value.dim() else None
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return next((size for item in items if (size := batch_size(item)) is not None), None)


def size_of(inputs: Any, targets: Any) -> int:
    """How many records a batch has. ValueError where it has none, or another number of targets."""
    size = batch_size(inputs)
    if not size:
        raise ValueError(f"Expected a batch of at least one record, got {size}.")
    other = batch_size(targets)
    if other is not None and other != size:
        raise ValueError(f"Expected as many targets as inputs, got {other} and {size}.")
    return size


def take(value: Any, records: Tensor, size: int) -> Any:
    """The records of these indices. Tensors whose first axis is not `size` belong to all records and stay whole."""
    if isinstance(value, PackedSequence):
        padded, lengths = pad_packed_sequence(value, batch_first=True)
        chosen = padded[records], lengths[records.cpu()]
        return pack_padded_sequence(*chosen, batch_first=True, enforce_sorted=False)
    if isinstance(value, Tensor):
        return value[records.to(value.device)] if value.dim() and value.shape[0] == size else value
    if isinstance(value, Mapping):
        return with_items(value, {key: take(item, records, size) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(take(item, records, size) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(take(item, records, size) for item in value)
    return value


def call_model(model: torch.nn.Module, inputs: Any) -> Any:
    """model(x), model(*several) for a tuple or list, model(**named) for a dict."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)) and not isinstance(inputs, PackedSequence):
        return model(*inputs)
    return model(inputs)
