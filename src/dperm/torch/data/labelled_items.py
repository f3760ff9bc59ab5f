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


def label_apart(entries: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """(the other entries, the label). TypeError where not exactly one entry is called "labels" or "label"."""
    found = [name for name in _LABELS if name in entries]
    if len(found) != 1:
        raise TypeError(
            f"Expected one entry called 'labels' or 'label' among those of a record, got {list(entries)}: rename it, "
            "or give a collate_fn that makes (inputs, targets)."
        )
    return {name: value for name, value in entries.items() if name != found[0]}, entries[found[0]]


class Paired:
    """Makes a batch (inputs, targets) of a list of records: `collate_fn`'s, and if that has named entries, its label apart from
    the others. None: torch's own, with lists of numbers taken as rows rather than as so many columns.
    """

    def __init__(self, collate_fn: Callable[[list[Any]], Any] | None = None) -> None:
        self._collate = collate_fn

    def __call__(self, items: Iterable[Any]) -> Any:
        items = list(items)
        if self._collate is not None:
            batch = self._collate(items)
        elif items and isinstance(items[0], Mapping):
            batch = _stacked(cast(list[Mapping[str, Any]], items))
        else:
            batch = default_collate(items)
        return label_apart(cast(Mapping[str, Any], batch)) if isinstance(batch, Mapping) else batch


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
