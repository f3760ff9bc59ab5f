"""Rows that hold several documents, as packing makes them, and collators whose rows are no records: refused by name.

A packed row is no record. Which documents lie together depends on all of them, so that one document less changes many rows, and
a bound on each row's gradient bounds nobody's document.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

#: entries that say where documents begin within a row
_BOUNDARIES = ("seq_lengths", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens_q", "cu_seqlens_k", "cu_seqlens")

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
    """ValueError for a collator of Transformers or TRL whose rows are not one for each record, with the one to use instead."""
    name = type(collate_fn).__name__
    if name == "DataCollatorWithFlattening" or getattr(collate_fn, "padding_free", False) is True:
        raise ValueError(f"Expected one row for each record, got {name}, which lays all of a batch into one row. {UNPACKED}")
    if name == "DataCollatorForPreference":
        raise ValueError(_PAIRS)


def refuse_packed(entries: Any) -> None:
    """ValueError for a record, or a batch, whose named entries say that rows hold several documents: their lengths, or positions
    that start again within a row."""
    if isinstance(entries, tuple):
        for part in cast(tuple[Any, ...], entries):
            refuse_packed(part)
    if not isinstance(entries, Mapping):
        return
    named = cast(Mapping[str, Any], entries)
    if found := [name for name in _BOUNDARIES if name in named]:
        raise ValueError(f"Expected rows of one record each, got packed ones, with {found[0]!r}. {UNPACKED}")
    if "position_ids" in named and _restarts(named["position_ids"], named.get("attention_mask")):
        raise ValueError(f"Expected rows of one record each, got position_ids that start again within a row. {UNPACKED}")


def _restarts(positions: Any, mask: Any) -> bool:
    """Whether the positions of a row, (T,) or (b, T), fall where the mask lets both be seen."""
    try:
        table = torch.as_tensor(positions)
    except (TypeError, ValueError, RuntimeError):  # a record of some other kind
        return False
    if table.dim() not in (1, 2) or table.shape[-1] < 2:
        return False
    falls = table.diff(dim=-1) < 0
    if mask is not None and (seen := torch.as_tensor(mask)).shape == table.shape:
        falls &= _both(seen.bool())
    return bool(falls.any())


def _both(seen: Tensor) -> Tensor:
    return seen[..., 1:] & seen[..., :-1]
