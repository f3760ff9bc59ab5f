"""A script's training arguments, by the documented names of Transformers' and TRL's fields: taken over, refused, or named as not
used. The libraries themselves are asked in `test_language_trainers.py`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from dperm.gradient.recipes import dp_sgd
from dperm.torch.integrations.training_arguments import refuse_loss, taken_over


@dataclass
class Arguments:
    """Fields of `TrainingArguments` that matter here, with their defaults."""

    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 1
    num_train_epochs: float = 3.0
    max_steps: int = -1
    max_grad_norm: float = 1.0
    bf16: bool = False
    fp16: bool = False
    seed: int = 42
    data_seed: int | None = None
    dataloader_num_workers: int = 0
    dataloader_drop_last: bool = False
    label_smoothing_factor: float = 0.0
    lr_scheduler_type: str = "linear"
    neftune_noise_alpha: float | None = None
    torch_compile: bool = False
    deepspeed: Any = None
    fsdp: list[str] = field(default_factory=list)
    resume_from_checkpoint: str | None = None
    full_determinism: bool = False
    train_sampling_strategy: str = "random"


@dataclass
class Tuning(Arguments):
    """Those of `SFTConfig`."""

    packing: bool = False
    padding_free: bool = False
    loss_type: str = "nll"
    activation_offloading: bool = False
    max_length: int = 1024
    truncation_mode: str = "keep_start"


@dataclass
class Preferences(Arguments):
    """Those of `DPOConfig`."""

    loss_type: list[str] = field(default_factory=lambda: ["sigmoid"])
    loss_weights: list[float] | None = None
    beta: float = 0.1
    ld_alpha: float | None = None
    f_divergence_type: str = "reverse_kl"
    use_weighting: bool = False
    sync_ref_model: bool = False
    label_smoothing: float = 0.0
    precompute_ref_log_probs: bool = False


@pytest.mark.parametrize("kind", [Arguments, Tuning, Preferences])
def test_usual_arguments_are_taken_over_in_silence(kind: Any) -> None:
    arguments = kind(per_device_train_batch_size=4, gradient_accumulation_steps=16, max_grad_norm=0.5, bf16=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = taken_over(arguments, public_size=None)
    assert found.settings == {
        "expected_batch_size": 64.0, "physical_batch_size": 4, "clipping_norm": 0.5, "epochs": 3.0, "autocast": torch.bfloat16,
        "num_workers": 0,
    }  # fmt: skip
    assert found.changed["gradient_accumulation_steps"] == 1
    assert found.changed["max_grad_norm"] == 0
    assert arguments.max_grad_norm == 0.5, "the script's own arguments stay as they are"


@pytest.mark.parametrize("steps", [1, 7, 100, 333])
@pytest.mark.parametrize("size", [97, 1000, 12_345])
def test_so_many_steps_are_planned_as_are_asked_for(steps: int, size: int) -> None:
    found = taken_over(Arguments(max_steps=steps), public_size=size)
    plan = dp_sgd(
        noise_multiplier=1.0, public_size=size, clipping_norm=found.settings["clipping_norm"], epochs=found.settings["epochs"],
        expected_batch_size=found.settings["expected_batch_size"],
    )  # fmt: skip
    assert plan.steps == steps


def test_steps_of_an_unknown_number_of_records_are_refused() -> None:
    with pytest.raises(ValueError, match="Expected public_size with max_steps"):
        taken_over(Arguments(max_steps=10), public_size=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (Tuning(packing=True), "Expected packing=False, got True: Packing lays the documents of several records into one row"),
        (Tuning(padding_free=True), "that user is the unit"),
        (Tuning(activation_offloading=True), "gradient_checkpointing"),
        (Tuning(truncation_mode="keep_end"), "cut the records' beginnings"),
        (Arguments(fp16=True), "bf16=True"),
        (Arguments(label_smoothing_factor=0.1), "loss per record"),
        (Arguments(neftune_noise_alpha=5.0), "hook"),
        (Arguments(torch_compile=True), "compiled"),
        (Arguments(deepspeed="zero.json"), "torchrun"),
        (Arguments(fsdp=["full_shard"]), "torchrun"),
        (Arguments(full_determinism=True), "random_state"),
        (Arguments(resume_from_checkpoint="out"), "which know what was charged"),
        (Arguments(lr_scheduler_type="reduce_lr_on_plateau"), "follows a score"),
        (Arguments(max_grad_norm=0.0), "clipping_norm"),
        (Arguments(per_device_train_batch_size=0), "per_device_train_batch_size"),
        (Preferences(sync_ref_model=True), "as it was when the run began"),
        (Preferences(use_weighting=True), "use_weighting=False"),
        (Preferences(f_divergence_type="forward_kl"), "f_divergence_type='reverse_kl'"),
        (Preferences(ld_alpha=0.5), "ld_alpha=None"),
        (Preferences(label_smoothing=0.1), "do not use it"),
        (Preferences(loss_weights=[1.0]), "choose one loss_type"),
    ],
)
def test_what_would_change_gradients_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        taken_over(arguments, public_size=100)


def test_clipping_that_is_stated_goes_before_that_of_the_arguments() -> None:
    assert taken_over(Arguments(max_grad_norm=0.0), public_size=100, clipping_norm=0.1).settings["clipping_norm"] == 0.1


def test_what_has_no_counterpart_is_named_where_it_was_set() -> None:
    arguments = replace(Preferences(seed=7, precompute_ref_log_probs=True), train_sampling_strategy="group_by_length")
    with pytest.warns(UserWarning) as warned:
        taken_over(arguments, public_size=100)
    (text,) = [str(one.message) for one in warned]
    assert "seed (draws" in text and "train_sampling_strategy" in text
    assert "precompute_ref_log_probs" in text and "data_seed" not in text


@pytest.mark.parametrize(
    ("trainer", "stated", "found"),
    [("SFTTrainer", "nll", "nll"), ("DPOTrainer", ["ipo"], "ipo"), ("DPOTrainer", "hinge", "hinge"), ("Trainer", "any", None)],
)
def test_losses_of_one_record_are_known(trainer: str, stated: Any, found: str | None) -> None:
    assert refuse_loss(Tuning(loss_type=stated), trainer) == found


@pytest.mark.parametrize(
    ("trainer", "stated", "message"),
    [
        ("SFTTrainer", "dft", "one of nll"),
        ("DPOTrainer", ["sigmoid", "sft"], "one of sigmoid, hinge, ipo"),
        ("DPOTrainer", ["aot"], "sorts the records of a batch"),
        ("DPOTrainer", ["robust"], "one of sigmoid"),
    ],
)
def test_other_losses_are_refused(trainer: str, stated: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refuse_loss(Preferences(loss_type=stated), trainer)
