"""Records whose entries have names, one of them the label, as in Hugging Face's data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from dperm.torch.tensors.nested import tensors

_LABELS = ("labels", "label")
_COLLATORS = "or give a collate_fn that pads, such as transformers' DataCollatorWithPadding"


def pair_of(given: Any) -> Any:
    """(inputs of the model, targets of the loss) of a data set's tensors or of a batch.

    The last of several parts is for the loss, those before it are the model's arguments. Of named entries the one called "labels"
    or "label" is for the loss, the others are the model's keyword arguments. Where nothing is for the loss alone, as with one
    tensor, `(x,)` or entries without a label, it gets the inputs once more. All else is returned as it is.

    TypeError for two labels, and for graphs whose records share one tensor.
    """
    if _is_graph(given):
        raise TypeError(
            f"Expected records with the same axes, got graphs ({type(given).__name__}), whose nodes share one tensor: give dense "
            "ones, as (n, features) of the nodes, an (n, n) adjacency matrix and a mask of the nodes there are, padded to one n."
        )
    if isinstance(given, Mapping):
        entries = dict(cast(Mapping[str, Any], given))
        labels = [name for name in _LABELS if name in entries]
        if len(labels) > 1:
            raise TypeError(f"Expected one entry called 'labels' or 'label' among those of a record, got {list(entries)}.")
        return (entries, entries) if not labels else (entries, entries.pop(labels[0]))
    if isinstance(given, Tensor | np.ndarray):
        return given, given
    if type(given) in (tuple, list) and given:
        *inputs, targets = cast(list[Any], given)
        return (inputs[0] if len(inputs) == 1 else tuple(inputs) if inputs else targets), targets
    return given


def _is_graph(given: Any) -> bool:
    """A graph of a library for them, or a batch of several, whose edges are numbers of nodes in one list."""
    return hasattr(given, "edge_index") and not isinstance(given, Mapping)


class Paired:
    """Makes a batch (inputs, targets) of a list of records: `pair_of` what `collate_fn` makes. None: torch's own, with lists of
    numbers taken as rows rather than as so many columns.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self._collate = collate_fn

    def __call__(self, items: Iterable[Any]) -> Any:
        items = list(items)
        if self._collate is not None:
            return pair_of(self._collate(items))
        if items and isinstance(items[0], Mapping):
            return pair_of(_stacked(cast(list[Mapping[str, Any]], items)))
        return pair_of(items[0] if items and _is_graph(items[0]) else default_collate(items))


def _stacked(items: list[Mapping[str, Any]]) -> dict[str, Tensor]:
    """By name, one tensor (b, …). TypeError where records differ in their entries (what one lacks, none of a batch would have)
    and for entries that are no numbers; ValueError for those of several lengths."""
    columns: dict[str, Tensor] = {}
    if other := next((item for item in items if item.keys() != items[0].keys()), None):
        raise TypeError(f"Expected the same entries of every record, got {list(items[0])} and {list(other)}.")
    for name in items[0]:
        values = [readable(item[name]) for item in items]
        if any(not tensors(value) for value in values):
            raise TypeError(
                f"Expected entries that are numbers, got {type(items[0][name]).__name__} as {name!r}: leave that column out "
                f"(remove_columns), {_COLLATORS}."
            )
        if len({(value.shape, value.dtype) for value in values}) > 1:  # of two types, one record would round the others
            raise ValueError(f"Expected entries {name!r} of one length and type: pad them where they are made, {_COLLATORS}.")
        columns[name] = torch.stack(values)
    return columns


def readable(entry: Any) -> Any:
    """A number, an array or a (nested) list of numbers as a tensor; all else as it is."""
    if isinstance(entry, bool | int | float | np.number | np.bool_):
        return torch.tensor(entry)
    if isinstance(entry, np.ndarray) and entry.dtype.kind in "biuf":
        return torch.from_numpy(np.ascontiguousarray(entry))
    if isinstance(entry, list) and entry:
        parts = [readable(part) for part in cast(list[Any], entry)]
        if all(isinstance(part, Tensor) for part in parts) and len({part.shape for part in parts}) == 1:
            return torch.stack(parts)
    return entry
