"""Language models through Transformers' and TRL's trainers and collators: their losses, one charge, what is refused. `make zoo`
runs these."""

from __future__ import annotations

import copy
import json
import re
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from dperm.release import spend_log
from dperm.torch import PrivateTrainer
from dperm.torch.data.collation import Collation
from dperm.torch.language import DirectPreference, PreferenceTokens, Tokens, causal_language_loss, with_reference

transformers = pytest.importorskip("transformers", reason="needs transformers: make zoo")
peft = pytest.importorskip("peft", reason="needs peft: make zoo")

WORDS = [*"abcdefghijklmnopqrstuvwxyz"]
N, PAD, EOS = 60, 0, 1


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other libraries, of fixed seeds and small sizes
        yield


@pytest.fixture
def trl() -> Any:
    return pytest.importorskip("trl", reason="needs trl: make zoo")


def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers", reason="needs tokenizers: make zoo")
    words = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS) + 3, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def gpt2() -> Any:
    torch.manual_seed(0)
    size = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(WORDS) + 3, pad_token_id=PAD, **size))


def adapters() -> Any:
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def texts(count: int = N, seed: int = 0) -> list[str]:
    generator = torch.Generator().manual_seed(seed)
    draw = partial(torch.randint, generator=generator)
    return [" ".join(WORDS[place] for place in draw(0, len(WORDS), (int(draw(1, 15, ())),)).tolist()) for _ in range(count)]


def tokenized(count: int = N) -> list[dict[str, Any]]:
    read = tokenizer()
    return [{name: entry for name, entry in read(text).items() if name != "token_type_ids"} for text in texts(count)]


def table(**columns: Any) -> Any:
    datasets = pytest.importorskip("datasets", reason="needs datasets: make zoo")
    datasets.disable_progress_bars()
    return datasets.Dataset.from_dict(columns)


USUAL: dict[str, Any] = {
    "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True, "logging_steps": 2, "learning_rate": 1e-2,
    "per_device_train_batch_size": 5, "gradient_accumulation_steps": 2, "num_train_epochs": 1,
}  # fmt: skip


def tuning(trl: Any, folder: Path, model: Any = None, data: Any = None, **given: Any) -> Any:
    settings = {**USUAL, "bf16": False, "activation_checkpointing": False, "max_length": 12, **given}
    return trl.SFTTrainer(
        model or llama(),
        args=trl.SFTConfig(str(folder), **settings),
        train_dataset=data or table(text=texts()),
        processing_class=tokenizer(),
        peft_config=adapters(),
    )


def preferences(trl: Any, folder: Path, **given: Any) -> Any:
    settings = {**USUAL, "bf16": False, "activation_checkpointing": False, "max_length": 24, "beta": 0.3, **given}
    data = table(
        prompt=texts(seed=1),
        chosen=[f" {text}" for text in texts(seed=2)],
        rejected=[f" {text}" for text in texts(seed=3)],
    )
    return trl.DPOTrainer(
        llama(), args=trl.DPOConfig(str(folder), **settings), train_dataset=data, eval_dataset=data.select(range(4)),
        processing_class=tokenizer(), peft_config=adapters(),
    )  # fmt: skip


def private(trainer: Any, **given: Any) -> Any:
    from dperm.torch.integrations.hugging_face_trainer import PrivateHuggingFaceTrainer

    return PrivateHuggingFaceTrainer.from_trainer(trainer, **{"epsilon": 3.0, "delta": 1e-5, "public_size": N, **given})


def refused(trainer: Any, message: str, folder: Path, error: type[Exception] = ValueError, **given: Any) -> None:
    """Whether a run is refused by this message, and nothing is charged."""
    with spend_log(folder / "log.db") as log:
        with pytest.raises(error, match=message):
            private(trainer, **given).train()
        assert not log.charges()


# Losses


@pytest.mark.parametrize("make", [llama, gpt2])
def test_the_loss_of_one_record_is_transformers_own(make: Any) -> None:
    model = make().eval()
    for record in [*tokenized(8), {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}]:
        batch = Tokens(pad_id=PAD)([record, {"input_ids": [1] * 16}])
        batch = {name: tensor[:1] for name, tensor in batch.items()}  # padded to 16
        labels = batch.pop("labels")
        if not bool((labels[:, 1:] != -100).any()):
            continue
        mine = causal_language_loss(model(**batch), labels)
        torch.testing.assert_close(mine[0], model(**batch, labels=labels).loss)


def test_supervised_losses_are_those_of_trl(trl: Any, tmp_path: Path) -> None:
    trainer = tuning(trl, tmp_path)
    for number in range(5):
        batch = trainer.data_collator([trainer.train_dataset[number]])
        theirs = trainer.compute_loss(trainer.model, dict(batch))
        labels = batch.pop("labels")
        torch.testing.assert_close(causal_language_loss(trainer.model(**batch), labels)[0], theirs)


@pytest.mark.parametrize("kind", ["sigmoid", "hinge", "ipo"])
def test_preference_losses_are_those_of_trl(kind: str, trl: Any, tmp_path: Path) -> None:
    trainer = preferences(trl, tmp_path, loss_type=[kind])
    with torch.no_grad():
        for parameter in trainer.model.parameters():
            parameter += torch.randn_like(parameter) / 10 * parameter.requires_grad
    collate = PreferenceTokens(pad_id=PAD, max_length=24)
    with trainer.model.disable_adapter():
        records = with_reference(trainer.train_dataset, trainer.model, collate)
    preference = DirectPreference(trainer.model, beta=0.3, loss_type=kind)
    batch = collate([records[number] for number in range(5)])
    labels = batch.pop("labels")
    mine = preference.loss(preference(**batch), labels)
    theirs = [
        trainer.compute_loss(trainer.model, dict(trainer.data_collator([trainer.train_dataset[number]]))) for number in range(5)
    ]
    torch.testing.assert_close(mine, torch.stack(theirs), rtol=1e-4, atol=1e-5)


# Collators


def test_collators_of_transformers_and_trl_run_as_they_are(trl: Any) -> None:
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Theirs

    records = [{**record, "labels": record["input_ids"]} for record in tokenized(10)]
    mine = Collation(Tokens(pad_id=PAD))(records)
    expected = {place: (inputs, labels) for places, inputs, labels in mine for place in places.tolist()}
    read = tokenizer()
    for collate in (
        transformers.DataCollatorForSeq2Seq(read),
        transformers.DataCollatorForLanguageModeling(read, mlm=False),
        Theirs(pad_token_id=PAD),
    ):
        plain = [{"input_ids": record["input_ids"]} for record in records]
        given = plain if isinstance(collate, transformers.DataCollatorForLanguageModeling) else records
        for places, inputs, labels in Collation(collate)(given):
            for row, place in enumerate(places.tolist()):
                wanted = expected[place]
                assert inputs["input_ids"][row].tolist() == wanted[0]["input_ids"][_row(mine, place)].tolist()
                assert labels[row].tolist() == wanted[1][_row(mine, place)].tolist()


def _row(batch: Any, place: int) -> int:
    return next(places.tolist().index(place) for places, _, _ in batch if place in places.tolist())


def test_collators_without_one_row_for_each_record_are_refused_by_name(trl: Any) -> None:
    from trl.trainer.dpo_trainer import DataCollatorForPreference
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Theirs

    for collate, message in (
        (transformers.DataCollatorWithFlattening(), "DataCollatorWithFlattening"),
        (Theirs(pad_token_id=PAD, padding_free=True), "that user is the unit"),
        (DataCollatorForPreference(pad_token_id=PAD), "PreferenceTokens"),
    ):
        with pytest.raises(ValueError, match=message):
            Collation(collate)


# Runs


def test_a_script_of_trl_runs_privately_by_one_more_line(trl: Any, tmp_path: Path) -> None:
    trainer = tuning(trl, tmp_path)
    run = private(trainer, random_state=1)
    with spend_log(tmp_path / "log.db") as log:
        run.train()
        (charge,) = log.charges()
        assert charge is not None
    certificate = run.private.certificate
    assert certificate is not None
    assert certificate.epsilon == pytest.approx(3.0, rel=1e-3)
    assert run.private.objective.one_by_one is None
    assert not any("loss" in name for entry in run.state.log_history for name in entry)
    rates = [entry["learning_rate"] for entry in run.state.log_history if "learning_rate" in entry]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.5e-2
    run.save_model(str(tmp_path / "saved"))
    assert (tmp_path / "saved" / "adapter_model.safetensors").exists()
    # the same steps as of a PrivateTrainer with what the script says
    again = tuning(trl, tmp_path)
    own = PrivateTrainer(
        again.model, causal_language_loss, again.create_optimizer(), epsilon=3.0, delta=1e-5, public_size=N, epochs=1,
        expected_batch_size=10, physical_batch_size=5, clipping_norm=1.0, collate_fn=Tokens(pad_id=PAD), random_state=1,
    )  # fmt: skip
    schedule = transformers.get_scheduler("linear", own.optimizer, num_warmup_steps=0, num_training_steps=6)
    for _ in own.steps(again.train_dataset.remove_columns("text")):
        own.optimizer.step()
        schedule.step()
    for mine, theirs in zip(run.private.objective.flat.parameters, own.objective.flat.parameters, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_trls_defaults_of_narrow_types_and_checkpointing_train(trl: Any, tmp_path: Path) -> None:
    run = private(tuning(trl, tmp_path, bf16=True, activation_checkpointing=True), random_state=1)
    run.train()
    assert run.private.objective.losses.autocast is torch.bfloat16
    assert run.private.certificate is not None


def test_preferences_of_trl_run_privately(trl: Any, tmp_path: Path) -> None:
    trainer = preferences(trl, tmp_path)
    run = private(trainer)
    before = copy.deepcopy([run.train_dataset[number] for number in range(3)])
    with spend_log(tmp_path / "log.db") as log:
        run.train()
        assert len(log.charges()) == 1
    assert run.private.certificate is not None
    assert before == [run.train_dataset[number] for number in range(3)]
    with trainer.model.disable_adapter():
        off = with_reference(trainer.train_dataset, trainer.model, PreferenceTokens(pad_id=PAD, max_length=24))
    assert before[0]["ref_chosen_logps"] == pytest.approx(off[0]["ref_chosen_logps"], rel=1e-5)
    assert 0 < run.evaluate()["eval_loss"] < 5
    run.save_model(str(tmp_path / "saved"))
    saved = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
    assert sorted(saved["target_modules"]) == ["q_proj", "v_proj"]


def moved(model: Any) -> Any:
    """With adapters that are no longer zero."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.1 * ("lora_B" in name)
    return model


@pytest.mark.parametrize("kind", ["base", "adapter", "model", "precomputed"])
def test_the_reference_is_that_of_trl(kind: str, trl: Any, tmp_path: Path) -> None:
    """The base without adapters; the first adapter of a model that has one; a model beside; the policy at its start."""
    given: dict[str, Any] = {"base": {"peft_config": adapters()}, "model": {"ref_model": llama()}}.get(kind, {})
    policy = moved(peft.get_peft_model(llama(), adapters())) if kind == "adapter" else llama()
    settings = {**USUAL, "bf16": False, "activation_checkpointing": False, "max_length": 24}
    arguments = trl.DPOConfig(str(tmp_path), precompute_ref_log_probs=kind == "precomputed", **settings)
    data = table(prompt=texts(20, 1), chosen=texts(20, 2), rejected=texts(20, 3))
    trainer = trl.DPOTrainer(policy, args=arguments, train_dataset=data, processing_class=tokenizer(), **given)
    if kind == "model":
        with torch.no_grad():
            trainer.ref_model.lm_head.weight += 0.1
    if kind == "base":
        moved(trainer.model)
    run = private(trainer, public_size=20)
    for number in (0, 19):
        batch = trainer.data_collator([trainer.train_dataset[number]])
        found = run.train_dataset[number]
        theirs = [float(part) for part in trainer.compute_ref_log_probs(trainer.ref_model or trainer.model, batch)]
        assert [found["ref_chosen_logps"], found["ref_rejected_logps"]] == pytest.approx(theirs, rel=1e-4)


def test_a_trainer_of_transformers_alone_trains_all_weights(tmp_path: Path) -> None:
    columns = {"input_ids": [record["input_ids"] for record in tokenized()], "note": texts()}
    collate = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    arguments = transformers.TrainingArguments(str(tmp_path), max_steps=4, **{**USUAL, "num_train_epochs": 3})
    trainer = transformers.Trainer(gpt2(), arguments, train_dataset=table(**columns), data_collator=collate)
    run = private(trainer)
    run.train()
    assert run.private.certificate is not None
    assert run.state.global_step == 4
    assert run.private.objective.one_by_one is None


# Refused


def test_packing_is_refused_before_anything_is_charged(trl: Any, tmp_path: Path) -> None:
    trainer = tuning(trl, tmp_path)
    trainer.args.packing = True
    refused(trainer, "that user is the unit", tmp_path)
    trainer = tuning(trl, tmp_path)
    trainer.data_collator = transformers.DataCollatorWithFlattening()
    refused(trainer, "DataCollatorWithFlattening", tmp_path)
    packed = table(input_ids=[[5, 6, 7, 8]] * N, labels=[[5, 6, 7, 8]] * N, seq_lengths=[[2, 2]] * N)
    refused(tuning(trl, tmp_path, data=packed), "that user is the unit", tmp_path)


def blocks() -> Any:
    """What group_texts of Transformers' examples makes: documents in a row, cut into blocks of one length."""
    long = [token for record in tokenized() for token in [*record["input_ids"], EOS]]
    cut = [long[start : start + 8] for start in range(0, len(long) - 7, 8)]
    return table(input_ids=cut, labels=cut)


def test_blocks_of_documents_are_refused_but_of_a_unit(trl: Any, tmp_path: Path) -> None:
    refused(tuning(trl, tmp_path, data=blocks()), "group_texts", tmp_path)
    rows = blocks()
    users = [number // 3 for number in range(len(rows))]
    run = private(tuning(trl, tmp_path, data=rows), max_rows_per_unit=3, given={"groups": users}, public_size=max(users) + 1)
    run.train()
    assert run.private.certificate is not None
    assert run.private.certificate.of_persons


def test_rows_of_users_are_units_by_a_column_of_the_prepared_data(trl: Any, tmp_path: Path) -> None:
    data = table(text=texts(), user=[f"user {number // 3}" for number in range(N)])
    trainer = tuning(trl, tmp_path, data=data)
    users = trainer.train_dataset["user"]
    run = private(trainer, max_rows_per_unit=3, given={"groups": users}, public_size=20)
    run.train()
    assert run.private.certificate is not None
    assert run.private.certificate.of_persons


def test_documents_of_one_length_are_no_blocks(trl: Any, tmp_path: Path) -> None:
    cut = [[*[5 + place % 9] * 7, EOS] for place in range(N)]
    padded = [[*row, EOS, EOS] for row in cut]
    for data in (table(input_ids=cut, labels=cut), table(input_ids=padded, labels=padded)):
        assert private(tuning(trl, tmp_path, data=data)).private.certificate is None  # made, and not refused


def test_trainers_with_other_losses_are_refused(trl: Any, tmp_path: Path) -> None:
    class Own(transformers.Trainer):
        pass

    arguments = transformers.TrainingArguments(str(tmp_path), **USUAL)
    data = table(input_ids=[record["input_ids"] for record in tokenized()])
    refused(Own(gpt2(), arguments, train_dataset=data), "would be lost", tmp_path, TypeError)
    refused(transformers.Trainer(gpt2(), arguments, train_dataset=data, compute_loss_func=lambda *_: 0.0), "of a batch", tmp_path)
    config = transformers.GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, pad_token_id=PAD)
    classes = transformers.GPT2ForSequenceClassification(config)
    refused(transformers.Trainer(classes, arguments, train_dataset=data), "Expected a causal language model", tmp_path)
    refused(tuning(trl, tmp_path, loss_type="dft"), "one of nll", tmp_path)
    refused(preferences(trl, tmp_path, loss_type=["aot"]), "sorts the records", tmp_path)
    refused(tuning(trl, tmp_path), "leaves out records", tmp_path, relation="replace_one")


def test_labels_beyond_the_vocabulary_count_nothing_once_a_run_is_charged(trl: Any, tmp_path: Path) -> None:
    ids = [record["input_ids"] for record in tokenized()]
    ids[7] = [5, 400, 6]  # a record that is not looked at before
    run = private(tuning(trl, tmp_path, data=table(input_ids=ids, labels=ids)), public_size=None)
    run.train()
    assert run.private.certificate is not None
    assert run.private.certificate.epsilon == pytest.approx(3.0, rel=1e-2)


def test_a_schedule_that_cannot_be_made_is_refused_before_the_charge(trl: Any, tmp_path: Path) -> None:
    refused(tuning(trl, tmp_path, lr_scheduler_kwargs={"height": 3}), "cannot be made", tmp_path)


def test_groups_are_refused_for_rows_in_another_order(trl: Any, tmp_path: Path) -> None:
    trainer = tuning(trl, tmp_path, shuffle_dataset=True)
    refused(trainer, "shuffle_dataset=False", tmp_path, given={"groups": list(range(N))}, max_rows_per_unit=1)


def test_evaluation_on_the_way_leaves_the_run_as_it_is(trl: Any, tmp_path: Path) -> None:
    trainer = tuning(trl, tmp_path)
    trainer.eval_dataset = trainer.train_dataset.select(range(4))
    trainer.args.eval_strategy, trainer.args.eval_steps = "steps", 2
    run = private(trainer, random_state=1)
    run.train()
    assert [round(entry["eval_loss"]) for entry in run.state.log_history if "eval_loss" in entry] == [3, 3, 3]


def test_the_scripts_in_the_documentation_run(trl: Any, tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "language-models.md"
    scripts = re.findall(r"```py\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(scripts) == 2
    names: dict[str, Any] = {
        "model": llama(), "dataset": table(text=texts()), "tokenizer": tokenizer(), "output": str(tmp_path),
        "adapters": adapters(),
        "preferences": table(prompt=texts(20, 1), chosen=texts(20, 2), rejected=texts(20, 3)),
    }  # fmt: skip
    names["cpu"] = {"use_cpu": True, "report_to": [], "bf16": False, "activation_checkpointing": False, "disable_tqdm": True}
    for script in scripts:
        exec(compile(re.sub(r"Config\(\s*output,", "Config(output, **cpu,", script), page.name, "exec"), names)
        assert names["trainer"].private.certificate is not None
        names["model"] = llama()
