"""What a script's trainer, of Transformers or TRL, was to train on what: for a private run of the same.

The libraries are read by the public attributes of their trainers, and not imported.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from dperm.torch.data.packed_rows import UNPACKED, refuse_collator, refuse_packed
from dperm.torch.integrations.training_arguments import LOSS_TYPES, refuse_loss
from dperm.torch.language import DirectPreference, PreferenceTokens, causal_language_loss, with_reference

_TRAINERS = ("Trainer", *LOSS_TYPES)
_LOOKED_AT = 64  # rows

#: what is said of other trainers of TRL's, by their names
_OTHERS = {
    "KTOTrainer": "its loss compares each record with continuations of the others",
    "GRPOTrainer": "it samples from the model while it trains, and compares a group's answers",
    "RLOOTrainer": "it samples from the model while it trains, and compares a group's answers",
    "RewardTrainer": "give PrivateTrainer a model with a score and a loss per pair",
}
#: columns of TRL's own preparation, beside the arguments of a model
_COLUMNS = ("labels", "label", "seq_lengths", "position_ids", "prompt_ids", "chosen_ids", "rejected_ids")


@dataclass(frozen=True)
class Script:
    """What a script's trainer was to do, for `PrivateTrainer`: the model, a loss of a record, the records and their collation;
    `handed` is for Transformers' trainer as it is."""

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    records: Any
    collate_fn: Callable[[list[Any]], Any]
    optimizer: torch.optim.Optimizer
    handed: dict[str, Any]

    @classmethod
    def of(cls, trainer: Any, settings: Mapping[str, Any], *, grouped: bool) -> Self:
        """`settings` are those that a caller gives to `PrivateTrainer`; rows of several documents are refused unless they are
        `grouped`: the caller has stated the unit of each row.

        TypeError for a trainer that is none of those known here. ValueError for losses and data that mix records.
        """
        kind = _refuse_trainer(trainer)
        loss_type = refuse_loss(trainer.args, kind)
        without_input_gradients(trainer.model)
        _refuse_relation(kind, settings)
        if grouped and getattr(trainer.args, "shuffle_dataset", False):
            raise ValueError("Expected shuffle_dataset=False with groups, which state the unit of each row in the rows' order.")
        collate_fn, records = trainer.data_collator, _selected(trainer, trainer.train_dataset)
        handed = {
            "eval_dataset": _each(lambda data: _selected(trainer, data), trainer.eval_dataset),
            "processing_class": trainer.processing_class,
            "compute_metrics": trainer.compute_metrics,
            "preprocess_logits_for_metrics": trainer.preprocess_logits_for_metrics,
            "scheduler": trainer.lr_scheduler,
        }
        model, loss_fn = trainer.model, causal_language_loss
        if kind == "DPOTrainer":
            assert loss_type is not None
            collate_fn = PreferenceTokens(pad_id=_padding(trainer), max_length=trainer.args.max_length)
            records = _referenced(trainer, records, collate_fn)
            handed["eval_dataset"] = _each(lambda data: _referenced(trainer, data, collate_fn), handed["eval_dataset"])
            model = DirectPreference(trainer.model, beta=trainer.args.beta, loss_type=loss_type)
            loss_fn = model.loss
        else:
            _refuse_other_losses(trainer)
            refuse_collator(collate_fn)
            if not grouped:
                _refuse_packed_rows(records, _ends(trainer.processing_class))
        optimizer = trainer.create_optimizer() if trainer.optimizer is None else trainer.optimizer
        return cls(model, loss_fn, records, collate_fn, optimizer, handed)


def _refuse_trainer(trainer: Any) -> str:
    """The trainer's name. TypeError for one that is not known here, ValueError for one with a loss of its own."""
    kind = type(trainer).__name__
    module = type(trainer).__module__.partition(".")[0]
    if kind not in _TRAINERS or module not in ("transformers", "trl"):
        why = next((_OTHERS[base.__name__] for base in type(trainer).__mro__ if base.__name__ in _OTHERS), None)
        raise TypeError(
            f"Expected transformers.Trainer, or TRL's SFTTrainer or DPOTrainer, got {type(trainer).__qualname__} of {module}: "
            + (why or "what a class of your own computes as a loss would be lost. Give PrivateTrainer your loss per record")
            + ". Nothing was charged."
        )
    if getattr(trainer, "compute_loss_func", None) is not None:
        raise ValueError("Expected no compute_loss_func, which is of a batch: give PrivateTrainer your loss per record.")
    if getattr(trainer, "model_init", None) is not None:
        raise ValueError("Expected a model in place of model_init, which would make another one after the charge.")
    if getattr(trainer, "aux_loss_enabled", False):
        raise ValueError("Expected router_aux_loss_coef=0: how evenly experts are used is a statistic of a batch.")
    return kind


def _refuse_relation(kind: str, settings: Mapping[str, Any]) -> None:
    if kind != "Trainer" and str(settings.get("relation", "add_or_remove_one")) != "add_or_remove_one":
        raise ValueError(
            "Expected relation='add_or_remove_one' with TRL: its preparation leaves out records that have nothing to learn, and "
            "how many are left is not public. Prepare the records yourself, or use transformers.Trainer."
        )


def _refuse_other_losses(trainer: Any) -> None:
    """ValueError for a model that is not trained on the next token."""
    model = _base(trainer.model)
    if getattr(model.config, "is_encoder_decoder", False) or not model.can_generate():
        raise ValueError(
            f"Expected a causal language model, got {type(model).__name__}, which has another loss: give PrivateTrainer this "
            "model with your loss per record and collate_fn=trainer.data_collator, and hand it to PrivateHuggingFaceTrainer."
        )


def without_input_gradients(model: Any) -> None:
    """Take back the hook by which Transformers lets the inputs of checkpointed layers have gradients: reentrant checkpointing
    alone needs it, and with it records cannot run in step."""
    if hasattr(model, "disable_input_require_grads"):
        model.disable_input_require_grads()


def _base(model: Any) -> Any:
    """The model within adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _selected(trainer: Any, data: Any) -> Any:
    """The data set without columns that are no inputs, where it has columns and the arguments ask for that."""
    names: Any = getattr(data, "column_names", None)
    if not trainer.args.remove_unused_columns or not isinstance(names, list):
        return data
    kept = {*inspect.signature(_base(trainer.model).forward).parameters, *_COLUMNS}
    unused = [name for name in cast(list[str], names) if name not in kept]
    return data.remove_columns(unused) if unused else data


def _each(function: Callable[[Any], Any], data: Any) -> Any:
    """`function` of a data set, of each of several by name, or None for none."""
    if data is None:
        return None
    if isinstance(data, dict):
        return {name: function(part) for name, part in cast(dict[str, Any], data).items()}
    return function(data)


def _referenced(trainer: Any, records: Any, collate_fn: PreferenceTokens) -> Any:
    """The records with log-probabilities of TRL's reference: the model it was given, the base without adapters, or the policy as
    it is now where TRL keeps a copy of its first adapter."""
    policy = trainer.model
    reference = trainer.ref_model or policy
    adapters: Any = getattr(policy, "peft_config", None)
    off: Any = contextlib.nullcontext()
    if trainer.ref_model is None and adapters is not None and "ref" not in adapters:
        off = policy.disable_adapter()
    autocast = torch.bfloat16 if trainer.args.bf16 else None
    with off:
        return with_reference(records, reference, collate_fn, autocast=autocast)


def _padding(trainer: Any) -> int:
    """The token that TRL pads preferences with."""
    found = getattr(trainer.data_collator, "pad_token_id", None)
    if not isinstance(found, int):
        raise ValueError(
            f"Expected TRL's own collator of preferences, of token numbers, got {type(trainer.data_collator).__name__}: give "
            "PrivateTrainer a DirectPreference and a collate_fn that makes (b, 2, T) of them."
        )
    return found


def _ends(processing_class: Any) -> set[int]:
    """The tokens that end or begin a document."""
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    found = (getattr(tokenizer, name, None) for name in ("eos_token_id", "bos_token_id"))
    return {token for token in found if isinstance(token, int)}


def _refuse_packed_rows(records: Any, ends: set[int]) -> None:
    """ValueError where rows from all over the data look like documents in a row, cut into blocks of one length: as long as each
    other, with ends of documents inside."""
    if not hasattr(records, "__len__") or not len(records):
        return
    places = np.unique(np.linspace(0, len(records) - 1, min(_LOOKED_AT, len(records))).round().astype(int)).tolist()
    rows = [records[place] for place in places]
    if not isinstance(rows[0], Mapping):
        return
    for row in rows:
        refuse_packed(row)
    tokens = [_seen(row) for row in rows if "input_ids" in row]
    if len(tokens) < 2 or len({len(row) for row in tokens}) > 1:
        return
    if any(row[place] in ends and row[place + 1] not in ends for row in tokens for place in range(1, len(row) - 1)):
        raise ValueError(
            f"All of {len(tokens)} rows have {len(tokens[0])} tokens, with ends of documents inside: they look like blocks of "
            f"documents laid in a row (group_texts). {UNPACKED} Where each row is one record's all the same, say so: "
            "max_rows_per_unit=1 and given={'groups': list(range(len(train_dataset)))}."
        )


def _seen(row: Mapping[str, Any]) -> list[int]:
    """A row's tokens without those that its mask leaves out."""
    tokens: list[int] = torch.as_tensor(row["input_ids"]).tolist()
    mask: list[int] = torch.as_tensor(row.get("attention_mask", [1] * len(tokens))).tolist()
    return [token for token, seen in zip(tokens, mask, strict=False) if seen]
