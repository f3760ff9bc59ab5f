"""What a script's training arguments mean for a private run: what is taken over, what is refused, what has no counterpart.

The arguments are those of Transformers' `TrainingArguments` and of TRL's `SFTConfig` and `DPOConfig`, read by their names:
neither library is imported.
"""

from __future__ import annotations

import warnings
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import torch

from dperm.torch.data.packed_rows import UNPACKED

#: Settings that would change gradients, records or their independence: what they must be, and what to do instead.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "fp16": ((False, None), "use bf16=True, which becomes PrivateTrainer's autocast: scaling of losses is of a batch"),
    "label_smoothing_factor": ((0, None), "give PrivateTrainer a loss per record that smooths labels"),
    "neftune_noise_alpha": ((None, 0), "leave it out: it is a hook that Transformers sets after the model was looked at"),
    "torch_compile": ((False, None), "leave it out: a compiled model cannot be looked into"),
    "use_liger_kernel": (
        (False, None),
        "leave it out: its kernels have no gradients per record",
    ),
    "activation_offloading": ((False, None), "use gradient_checkpointing: hooks on saved tensors would see all records"),
    "full_determinism": ((False, None), "leave it out: PrivateTrainer(random_state=…) repeats a run, for tests"),
    "deepspeed": ((None, ""), "run PrivateTrainer under torchrun (docs/ranks.md)"),
    "fsdp": ((None, "", False, []), "run PrivateTrainer under torchrun (docs/ranks.md)"),
    "parallelism_config": ((None,), "run PrivateTrainer under torchrun (docs/ranks.md)"),
    "world_size": ((1, None), "run PrivateTrainer under torchrun (docs/ranks.md)"),
    "n_gpu": ((0, 1, None), "make one GPU visible (CUDA_VISIBLE_DEVICES), or run PrivateTrainer under torchrun (docs/ranks.md)"),
    "resume_from_checkpoint": ((None, False), "continue by checkpoint=… and given={'resume': True}, which know what was charged"),
    "router_aux_loss_coef": ((None, 0), "set it to 0: how evenly experts are used is a statistic of a batch"),
    "packing": ((False, None), UNPACKED),
    "padding_free": ((False, None), UNPACKED),
    "truncation_mode": (("keep_start", None), "cut the records' beginnings before the run"),
    "ld_alpha": ((None,), "leave it out"),
    "f_divergence_type": (("reverse_kl", None), "leave it out"),
    "use_weighting": ((False, None), "leave it out"),
    "sync_ref_model": ((False, None), "leave it out: the reference is as it was when the run began"),
    "loss_weights": ((None,), "choose one loss_type"),
    "label_smoothing": ((0, None), "leave it out: 'sigmoid', 'hinge' and 'ipo' do not use it"),
}

#: Losses by the name of TRL's trainer; why others are refused.
LOSS_TYPES = {"SFTTrainer": ("nll",), "DPOTrainer": ("sigmoid", "hinge", "ipo")}

#: Settings without a counterpart, with why: a warning names those that a script has set.
_IGNORED = {
    "seed": "draws and noise are seeded by the operating system",
    "data_seed": "records are drawn by the plan",
    "train_sampling_strategy": "records are drawn by the plan, and those of one length run together",
    "dataloader_drop_last": "records are drawn by the plan",
    "auto_find_batch_size": "leave physical_batch_size=None to PrivateTrainer for that",
    "pad_to_multiple_of": "each record is padded by its own length",
    "precompute_ref_log_probs": "the reference is run on each record alone, before the run",
}

#: schedules that follow a score, and so need one
_BY_SCORE = ("reduce_lr_on_plateau", "greedy")


@dataclass(frozen=True)
class TakenOver:
    """`settings` are keywords of `PrivateTrainer`; `changed` are the arguments of one private run under Transformers' trainer, as
    far as they are others than the script's."""

    settings: dict[str, Any]
    changed: dict[str, Any]


def taken_over(arguments: Any, *, public_size: int | None, clipping_norm: float | None = None) -> TakenOver:
    """A script's arguments as a private run's. A warning names those that were set and have no counterpart.

    `per_device_train_batch_size` is the most records at once in memory, and times `gradient_accumulation_steps` the expected
    batch size; `max_grad_norm` is the norm that each record's gradient is clipped at, unless `clipping_norm` is given;
    `bf16` is autocast; `num_train_epochs` or `max_steps` is the length of the run. The optimizer, its settings and the schedule
    stay Transformers' own.

    Raises ValueError for what would change gradients or mix records, with what to do instead.
    """
    _refuse(arguments)
    batch, cut = _whole(arguments, "per_device_train_batch_size"), _whole(arguments, "gradient_accumulation_steps")
    norm = getattr(arguments, "max_grad_norm", None) if clipping_norm is None else clipping_norm
    if not norm or norm <= 0:
        raise ValueError(
            f"Expected max_grad_norm > 0, the norm that each record's gradient is clipped at, got {norm!r}; or clipping_norm=…."
        )
    settings: dict[str, Any] = {
        "expected_batch_size": float(batch * cut),
        "physical_batch_size": batch,
        "clipping_norm": float(norm),
        "epochs": _epochs(arguments, batch * cut, public_size),
        "autocast": torch.bfloat16 if getattr(arguments, "bf16", False) else None,
        "num_workers": getattr(arguments, "dataloader_num_workers", 0) or 0,
    }
    changed = {
        "num_train_epochs": 1,  # of Transformers', which is the whole run
        "max_steps": -1,
        "gradient_accumulation_steps": 1,
        "max_grad_norm": 0.0,
        "bf16": False,
        "remove_unused_columns": False,  # what is no input of the model is left out before
        "dataloader_num_workers": 0,  # of the numbers of steps
    }
    _warn_of_ignored(arguments)
    return TakenOver(settings, changed)


def refuse_loss(arguments: Any, trainer: str) -> str | None:
    """The loss of a trainer of TRL's by this name, one of `LOSS_TYPES`. ValueError for another, and for several."""
    known = LOSS_TYPES.get(trainer)
    if known is None:
        return None
    stated: Any = getattr(arguments, "loss_type", known[0])
    kinds: list[str] = [stated] if isinstance(stated, str) else list(stated)
    if len(kinds) != 1 or kinds[0] not in known:
        across = (
            " 'aot' sorts the records of a batch, so that each one's loss depends on the others." if "aot" in str(kinds) else ""
        )
        raise ValueError(f"Expected loss_type to be one of {', '.join(known)}, got {stated!r}.{across} Nothing was charged.")
    return kinds[0]


def _refuse(arguments: Any) -> None:
    for name, (allowed, instead) in _REFUSED.items():
        found = getattr(arguments, name, allowed[0])
        if found not in allowed:
            raise ValueError(f"Expected {name}={allowed[0]!r}, got {found!r}: {instead}. Nothing was charged.")
    schedule = str(getattr(getattr(arguments, "lr_scheduler_type", ""), "value", getattr(arguments, "lr_scheduler_type", "")))
    if schedule in _BY_SCORE:
        raise ValueError(f"Expected a schedule of steps, got {schedule!r}, which follows a score. Nothing was charged.")


def _whole(arguments: Any, name: str) -> int:
    found = getattr(arguments, name)
    if not isinstance(found, int) or found < 1:
        raise ValueError(f"Expected {name} as an integer of at least 1, got {found!r}.")
    return found


def _epochs(arguments: Any, batch: int, public_size: int | None) -> float:
    steps = getattr(arguments, "max_steps", -1)
    if steps is None or steps <= 0:
        return float(arguments.num_train_epochs)
    if public_size is None:
        raise ValueError(
            "Expected public_size with max_steps: the number of epochs follows from it, and without it the number of records is "
            "released with noise. Nothing was charged."
        )
    return (steps - 0.5) * batch / public_size  # a plan rounds up to whole steps


def _warn_of_ignored(arguments: Any) -> None:
    usual = {field.name: field.default for field in fields(arguments)} if is_dataclass(arguments) else {}
    found = [
        f"{name} ({why})"
        for name, why in _IGNORED.items()
        if usual.get(name, MISSING) is not MISSING and getattr(arguments, name, None) not in (usual[name], None, False)
    ]
    if found:
        warnings.warn(f"Not used by a private run: {'; '.join(found)}.", UserWarning, stacklevel=4)
