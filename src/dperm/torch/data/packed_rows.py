"""Rows that hold several documents, as packing makes them, and collators without one row for each record: refused by name.

A packed row is no record. Which documents lie together depends on all of them, so that one document less changes many rows, and
a bound on each row's gradient bounds nobody's document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

#: entries that say where documents begin within a row, and how many numbers a row of one document has there
_BOUNDARIES = {"seq_lengths": 1, **{f"{start}{end}": 2 for start in ("cu_seq_lens", "cu_seqlens") for end in ("", "_q", "_k")}}

#: what to do about packed rows
UNPACKED = (
    "Packing lays the documents of several records into one row, and which ones depends on all of them: a row is no record, and "
    "one record less changes many rows. Leave packing out (packing=False, padding_free=False, no DataCollatorWithFlattening, no "
    "group_texts) and let each row be one record's; records of one length run together as they are. Where the documents of a row "
    "are all one user's, that user is the unit: PrivateTrainer(max_rows_per_unit=…) and fit(…, groups=…)."
)

_PAIRS = (
    "Expected one row for each record, and DataCollatorForPreference makes two, which would cost more privacy than is charged: "
    "use dperm.torch.language.PreferenceTokens(pad_id=…), which takes the same records."
)


def refuse_collator(collate_fn: Callable[..., Any] | None) -> None:
    """ValueError for a collator of Transformers or TRL without one row for each record, with the one to use instead."""
    name = type(collate_fn).__name__
    if name == "DataCollatorWithFlattening" or getattr(collate_fn, "padding_free", False) is True:
        raise ValueError(f"Expected one row for each record, got {name}, which lays all of a batch into one row. {UNPACKED}")
    if name == "DataCollatorForPreference":
        raise ValueError(_PAIRS)


def refuse_packed(entries: Any, *, batched: bool = False) -> None:
    """ValueError for a record, or for records along the first axes (`batched`), where named entries say that rows hold several
    documents: their lengths, their beginnings, their numbers, or positions that start again within a row."""
    if isinstance(entries, tuple):
        for part in cast(tuple[Any, ...], entries):
            refuse_packed(part, batched=batched)
    if not isinstance(entries, Mapping):
        return
    named = cast(Mapping[str, Any], entries)
    axes = 2 if batched else 1
    for name, most in _BOUNDARIES.items():
        if (table := _table(named.get(name), axes)) is not None and table.shape[-1] > most:
            raise ValueError(f"Expected rows of one record each, got packed ones, with {name!r}. {UNPACKED}")
    for name in ("seq_idx", "position_ids"):
        table = _table(named.get(name), axes)
        if table is not None and _changes(name, table, _table(named.get("attention_mask"), axes)):
            what = "documents by number (seq_idx)" if name == "seq_idx" else "position_ids that start again within a row"
            raise ValueError(f"Expected rows of one record each, got {what}. {UNPACKED}")


def _table(entry: Any, axes: int) -> Tensor | None:
    """An entry of so many axes as a tensor; None for anything else."""
    if not isinstance(entry, Tensor | np.ndarray | list | tuple):
        return None
    try:
        table = torch.as_tensor(cast(Any, entry))
    except (TypeError, ValueError, RuntimeError):  # a record of some other kind
        return None
    return table if table.dim() == axes else None


def _changes(name: str, table: Tensor, mask: Tensor | None) -> bool:
    """Whether numbers of documents differ, or positions fall, where the mask lets both tokens be seen."""
    steps = table.diff(dim=-1)
    changed = steps != 0 if name == "seq_idx" else steps < 0
    if mask is not None and mask.shape == table.shape:
        seen = mask.bool()
        changed &= seen[..., 1:] & seen[..., :-1]
    return bool(changed.any())
