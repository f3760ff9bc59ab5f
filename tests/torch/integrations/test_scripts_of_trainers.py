"""What is read of a script's trainer, by stand-ins with the public attributes of Transformers' and TRL's trainers; the libraries
themselves are asked in `test_language_trainers.py`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from dperm.torch import PrivateTrainer
from dperm.torch.integrations.scripts import Script
from dperm.torch.language import DirectPreference, Tokens, causal_language_loss

EOS = 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of small sizes
        yield


class Causal(nn.Module):
    """With the interface of a model of Transformers, and an adapter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.head, self.adapter = nn.Embedding(12, 6), nn.Linear(6, 12), nn.Linear(6, 12, bias=False)
        self.requires_grad_(False).adapter.requires_grad_(True)
        self.config = SimpleNamespace(is_encoder_decoder=False)
        self.peft_config: dict[str, Any] = {"default": None}
        self.on = True

    def can_generate(self) -> bool:
        return True

    @contextlib.contextmanager
    def disable_adapter(self) -> Iterator[None]:
        self.on = False
        yield
        self.on = True

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.words(input_ids)
        return {"logits": self.head(x) + self.adapter(x) if self.on else self.head(x)}


def stand_in(kind: str, module: str = "trl.trainer", **given: Any) -> Any:
    """A trainer of this name; arguments and attributes by name."""
    args: dict[str, Any] = {
        "remove_unused_columns": True, "loss_type": {"DPOTrainer": ["sigmoid"]}.get(kind, "nll"), "beta": 0.2, "max_length": 8,
        "bf16": False, "shuffle_dataset": False,
    }  # fmt: skip
    made = type(kind, (), {"__module__": module})()
    usual: dict[str, Any] = {
        "model": Causal(), "train_dataset": documents(), "eval_dataset": None, "data_collator": Tokens(pad_id=0),
        "optimizer": None, "processing_class": SimpleNamespace(eos_token_id=EOS, bos_token_id=None), "lr_scheduler": None,
        "compute_metrics": None, "preprocess_logits_for_metrics": None, "ref_model": None,
    }  # fmt: skip
    for name, value in {**usual, **{name: value for name, value in given.items() if name not in args}}.items():
        setattr(made, name, value)
    made.args = SimpleNamespace(**{**args, **{name: value for name, value in given.items() if name in args}})
    made.create_optimizer = lambda: torch.optim.SGD(made.model.adapter.parameters(), lr=0.1)
    return made


def documents(count: int = 30) -> list[dict[str, list[int]]]:
    return [{"input_ids": [2 + (number + place) % 9 for place in range(2 + number % 5)]} for number in range(count)]


def pairs(count: int = 20) -> list[dict[str, Any]]:
    return [
        {"prompt_ids": [2], "chosen_ids": [3 + number % 4, 5], "rejected_ids": [6], "ref_chosen_logps": 99.0}
        for number in range(count)
    ]


def run(script: Script, size: int) -> PrivateTrainer:
    trainer = PrivateTrainer(
        script.model, script.loss_fn, script.optimizer, epsilon=3.0, delta=1e-5, epochs=1, expected_batch_size=5,
        public_size=size, collate_fn=script.collate_fn,
    )  # fmt: skip
    return trainer.fit(script.records)


def test_supervised_tuning_is_taken_over() -> None:
    script = Script.of(stand_in("SFTTrainer"), {}, grouped=False)
    assert script.loss_fn is causal_language_loss
    assert script.handed["processing_class"].eos_token_id == EOS
    assert run(script, 30).certificate is not None


@pytest.mark.parametrize("kind", ["base", "first adapter", "model"])
def test_preferences_are_taken_over_with_their_reference(kind: str) -> None:
    trainer = stand_in("DPOTrainer", train_dataset=pairs(), data_collator=SimpleNamespace(pad_token_id=0))
    if kind == "first adapter":
        trainer.model.peft_config["ref"] = None
    if kind == "model":
        trainer.ref_model = Causal()
        with torch.no_grad():
            trainer.ref_model.head.bias += torch.arange(12) / 10
    script = Script.of(trainer, {}, grouped=False)
    assert isinstance(script.model, DirectPreference)
    assert script.model.beta == 0.2
    reference = trainer.ref_model or trainer.model
    reference.on = kind != "base"
    scores = torch.log_softmax(reference(torch.tensor([[2, 3, 5]]))["logits"][0], -1)
    assert script.records[0]["ref_chosen_logps"] == pytest.approx(float(scores[0, 3] + scores[1, 5]), rel=1e-5)
    reference.on = True
    assert run(script, 20).certificate is not None


@pytest.mark.parametrize(
    ("trainer", "message"),
    [
        (lambda: stand_in("KTOTrainer"), "compares each record with continuations of the others"),
        (lambda: stand_in("SFTTrainer", "scripts"), "would be lost"),
        (lambda: stand_in("Trainer", "trl.trainer", compute_loss_func=print), "loss per record"),
        (lambda: stand_in("Trainer", "transformers.trainer", model_init=Causal), "after the charge"),
        (lambda: stand_in("SFTTrainer", aux_loss_enabled=True), "router_aux_loss_coef=0"),
        (lambda: stand_in("SFTTrainer", loss_type="dft"), "one of nll"),
        (lambda: stand_in("DPOTrainer", loss_type=["aot"]), "sorts the records"),
        (lambda: stand_in("DPOTrainer", train_dataset=pairs(), data_collator=print), "TRL's own collator"),
        (lambda: stand_in("SFTTrainer", data_collator=SimpleNamespace(padding_free=True)), "that user is the unit"),
        (lambda: stand_in("SFTTrainer", train_dataset=[{"input_ids": [2, 3, 4], "position_ids": [0, 1, 0]}] * 9), "start again"),
    ],
)
def test_what_is_another_loss_or_no_row_of_one_record_is_refused(trainer: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Script.of(trainer(), {}, grouped=False)


def test_encoders_have_another_loss() -> None:
    trainer = stand_in("Trainer", "transformers.trainer")
    trainer.model.config.is_encoder_decoder = True
    with pytest.raises(ValueError, match="Expected a causal language model, got Causal"):
        Script.of(trainer, {}, grouped=False)


def test_trl_leaves_records_out_so_that_their_number_is_not_public() -> None:
    settings = {"relation": "replace_one"}
    with pytest.raises(ValueError, match="how many are left is not public"):
        Script.of(stand_in("SFTTrainer"), settings, grouped=False)
    Script.of(stand_in("Trainer", "transformers.trainer"), settings, grouped=False)


def test_columns_that_are_no_inputs_are_left_out_where_the_script_says_so() -> None:
    class Recorded(list[Any]):
        """A data set of columns, as Hugging Face's."""

        column_names: ClassVar = ["input_ids", "labels", "text", "user"]

        def remove_columns(self, names: list[str]) -> str:
            return f"without {names}"

    data = Recorded(documents())
    with pytest.raises(ValueError, match="group"):  # of users, in another order
        Script.of(stand_in("SFTTrainer", train_dataset=data, shuffle_dataset=True), {}, grouped=True)
    script = Script.of(stand_in("SFTTrainer", train_dataset=data), {}, grouped=True)
    assert script.records == "without ['text', 'user']"
    assert Script.of(stand_in("SFTTrainer", train_dataset=data, remove_unused_columns=False), {}, grouped=True).records is data


BLOCKS = [{"input_ids": [2, 3, EOS, 4, 5, 6]}, {"input_ids": [7, 8, 9, 2, EOS, 3]}]


@pytest.mark.parametrize(
    ("rows", "packed"),
    [
        (BLOCKS, True),
        ([*BLOCKS, {"input_ids": [2, 3, EOS]}], False),  # of other lengths
        ([{"input_ids": [2, 3, 4, EOS]}] * 2, False),  # of one length by chance
        ([{"input_ids": [2, 3, EOS, EOS]}] * 2, False),  # padded by ends
        ([{"input_ids": [2, EOS, 4, 0], "attention_mask": [1, 1, 0, 0]}] * 2, False),  # what is masked counts not
        ([{"input_ids": [2, 3, 4, 5]}] * 2, False),
        (BLOCKS[:1], False),  # nothing to compare with
    ],
)
def test_blocks_of_documents_are_told_from_documents(rows: Any, packed: bool) -> None:
    trainer = stand_in("SFTTrainer", train_dataset=rows)
    with pytest.raises(ValueError, match="group_texts") if packed else contextlib.nullcontext():
        Script.of(trainer, {}, grouped=False)
    assert Script.of(trainer, {}, grouped=True).records is rows
