"""Collation of token sequences: padded to the longest of the records given, which are one record and its companion in a run
(`dperm.torch.data.collation`), so that padding is as long as a record's own length asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from dperm import _validate as check
from dperm.torch.data.packed_rows import refuse_packed
from dperm.torch.language.losses import IGNORED

#: entries of a record that say by 1 which tokens are to be learnt
_MASKS = ("completion_mask", "assistant_masks")


@dataclass(frozen=True)
class Tokens:
    """A `collate_fn` for token sequences: {"input_ids", "attention_mask", "labels"}, each (b, T), padded on the right.

    A record is a sequence of token numbers, or a dict with them as "input_ids". Its "labels" are taken as they are where it has
    some; else they are its tokens, but −100 where its "attention_mask", "completion_mask" (completion-only loss) or
    "assistant_masks" is 0. Other entries are left out. What is longer than `max_length` is cut at its end. A record without
    tokens is one token of padding, with loss zero. In a private run padding reaches to the next power of two of a record's
    length.

    Parameters
    ----------
    pad_id : the token to pad with, as `tokenizer.pad_token_id`; padding is masked and has no label, so any token will do.
    max_length : most tokens of a record, for example what the model has positions for. None: as long as they are.

    Raises ValueError for entries of different lengths, and for packed rows.
    """

    pad_id: int
    max_length: int | None = None

    def __post_init__(self) -> None:
        check.integer("pad_id", self.pad_id, minimum=0)
        if self.max_length is not None:
            check.integer("max_length", self.max_length)

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        rows = [self._row(item) for item in items]
        return _padded(rows, self.pad_id)

    def _row(self, item: Any) -> tuple[list[int], list[int], list[int]]:
        refuse_packed(item)
        named: Mapping[str, Any] = cast(Any, item) if isinstance(item, Mapping) else {"input_ids": item}
        if "input_ids" not in named:
            raise ValueError(f"Expected records with input_ids, got entries {list(named)}: tokenize each record first.")
        ids = _numbers("input_ids", named["input_ids"])
        mask = _numbers("attention_mask", named["attention_mask"]) if "attention_mask" in named else [1] * len(ids)
        if "labels" in named:
            labels = _numbers("labels", named["labels"])
        else:
            masks = [mask, *(_numbers(name, named[name]) for name in _MASKS if name in named)]
            if any(len(each) != len(ids) for each in masks):
                raise ValueError(f"Expected masks as long as input_ids, got lengths {[len(each) for each in masks]}.")
            labels = [token if all(bits) else IGNORED for token, *bits in zip(ids, *masks, strict=True)]
        if len(mask) != len(ids) or len(labels) != len(ids):
            raise ValueError(
                f"Expected input_ids, attention_mask and labels of one length, got {len(ids)}, {len(mask)} and {len(labels)}."
            )
        kept = slice(None, self.max_length)
        return (ids[kept], mask[kept], labels[kept]) if ids else ([self.pad_id], [1], [IGNORED])


@dataclass(frozen=True)
class PreferenceTokens:
    """A `collate_fn` for preferences: {"input_ids", "attention_mask", "labels"}, each (b, 2, T), the chosen continuation before
    the rejected one, so that both are one record's. What `DirectPreference` takes.

    A record has "prompt_ids", "chosen_ids" and "rejected_ids", as TRL's DPOTrainer makes them; labels are −100 in the prompt.
    "ref_chosen_logps" and "ref_rejected_logps", log-probabilities of a reference (`with_reference`), are kept, (b,) each. Other
    entries are left out. Parameters as of `Tokens`: prompt and continuation together are cut at `max_length`.
    """

    pad_id: int
    max_length: int | None = None

    def __post_init__(self) -> None:
        Tokens(self.pad_id, self.max_length)

    def __call__(self, items: Sequence[Any]) -> dict[str, Tensor]:
        rows = [self._row(item, name) for item in items for name in ("chosen_ids", "rejected_ids")]
        batch = {name: table.unflatten(0, (-1, 2)) for name, table in _padded(rows, self.pad_id).items()}
        for name in ("ref_chosen_logps", "ref_rejected_logps"):
            if all(name in item for item in items):
                batch[name] = torch.tensor([float(item[name]) for item in items])
        return batch

    def _row(self, item: Any, continuation: str) -> tuple[list[int], list[int], list[int]]:
        if not isinstance(item, Mapping) or any(name not in item for name in ("prompt_ids", continuation)):
            found = list(cast(Any, item)) if isinstance(item, Mapping) else type(item).__name__
            raise ValueError(f"Expected records with prompt_ids, chosen_ids and rejected_ids, got {found}.")
        named = cast(Mapping[str, Any], item)
        prompt, rest = (_numbers(name, named[name]) for name in ("prompt_ids", continuation))
        ids, labels = prompt + rest, [IGNORED] * len(prompt) + rest
        if not ids:
            return [self.pad_id], [1], [IGNORED]
        return ids[: self.max_length], [1] * len(ids[: self.max_length]), labels[: self.max_length]


def _numbers(name: str, entry: Any) -> list[int]:
    """A record's entry (T,) as integers. TypeError for anything else."""
    table = torch.as_tensor(entry)
    if table.dim() != 1 or (table.numel() and table.is_floating_point()):
        raise TypeError(
            f"Expected {name} of one record as a sequence of integers, got {table.dtype} of shape {tuple(table.shape)}."
        )
    return table.tolist()


def _padded(rows: Sequence[tuple[list[int], list[int], list[int]]], pad_id: int) -> dict[str, Tensor]:
    """Tables (b, T) of rows (input_ids, attention_mask, labels); T is the length of the longest, and at least 1."""
    length = max([1, *(len(ids) for ids, _, _ in rows)])
    tables: dict[str, Tensor] = {}
    for place, (name, filler) in enumerate({"input_ids": pad_id, "attention_mask": 0, "labels": IGNORED}.items()):
        tables[name] = torch.tensor([[*row[place], *[filler] * (length - len(row[place]))] for row in rows], dtype=torch.long)
    return tables
