"""Losses and collation of language models: exact numbers, one record at a time, packed rows refused."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.release import spend_log
from dperm.torch import ModuleObjective, PrivateTrainer
from dperm.torch.data.collation import Collation
from dperm.torch.data.packed_rows import refuse_packed
from dperm.torch.language import DirectPreference, PreferenceTokens, Tokens, causal_language_loss, with_reference

WORDS, WIDTH = 11, 8


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of small sizes and of deltas for them
        yield


class Causal(nn.Module):
    """A small causal language model of the usual interface."""

    def __init__(self, seed: int = 0, mixes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.qkv, self.out, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.mixes = mixes

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> dict[str, Tensor]:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        if self.mixes:
            x = x - x.mean(0, keepdim=True)
        q, k, v = self.qkv(x)[:, None].chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0])
        return {"logits": self.head(torch.tanh(x))}


def documents(count: int = 40, seed: int = 3) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 14, (count,), generator=generator).tolist()
    return [{"input_ids": torch.randint(1, WORDS, (length,), generator=generator).tolist()} for length in lengths]


def pairs(count: int = 30) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(5)

    def some(most: int) -> list[int]:
        length = int(torch.randint(1, most, (), generator=generator))
        return torch.randint(1, WORDS, (length,), generator=generator).tolist()

    return [{"prompt_ids": some(5), "chosen_ids": some(7), "rejected_ids": some(7)} for _ in range(count)]


def trainer(model: nn.Module, loss: Any, **given: Any) -> PrivateTrainer:
    settings: dict[str, Any] = {
        "epsilon": 3.0, "delta": 1e-5, "epochs": 1, "expected_batch_size": 10, "public_size": 40, "random_state": 1,
    }  # fmt: skip
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    return PrivateTrainer(model, loss, optimizer, **{**settings, **given})


# The loss


def by_hand(logits: Tensor, labels: Tensor) -> list[float]:
    """Token by token, in double precision, by the definition of a softmax."""
    found: list[float] = []
    for row, goals in zip(logits.double().tolist(), labels.tolist(), strict=True):
        losses: list[float] = []
        for place in range(1, len(goals)):
            if goals[place] != -100:
                scores = row[place - 1]
                most = max(scores)
                losses.append(most + math.log(sum(math.exp(score - most) for score in scores)) - scores[goals[place]])
        found.append(sum(losses) / len(losses) if losses else 0.0)
    return found


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_loss_is_the_mean_over_a_records_own_tokens(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits, labels = (torch.randn(5, 7, WORDS) * 3).to(dtype), torch.randint(0, WORDS, (5, 7))
    labels[1], labels[2, :4], labels[3, -3:] = -100, -100, -100
    labels[4, 1:] = -100  # the first token is predicted by nobody
    found = causal_language_loss(logits, labels)
    assert found.tolist() == pytest.approx(by_hand(logits, labels), rel=1e-5)
    assert found[1] == 0
    assert found[4] == 0
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_records_without_targets_or_of_one_token_have_no_gradient() -> None:
    for labels in (torch.tensor([[3]]), torch.full((1, 1), -100), torch.full((1, 4), -100)):
        logits = torch.randn(1, labels.shape[1], WORDS, requires_grad=True)
        loss = causal_language_loss(logits, labels)
        (slope,) = torch.autograd.grad(loss.sum(), logits)
        assert loss.tolist() == [0.0]
        assert not slope.any()


def test_large_scores_stay_finite() -> None:
    logits = torch.zeros(1, 2, WORDS)
    logits[0, 0, 1] = 3e38
    assert causal_language_loss(logits, torch.tensor([[0, 1]])).tolist() == [0.0]
    assert math.isfinite(causal_language_loss(logits.bfloat16(), torch.tensor([[0, 2]])).item())


def test_labels_that_were_shifted_are_refused() -> None:
    with pytest.raises(ValueError, match="not to be shifted"):
        causal_language_loss(torch.randn(2, 5, WORDS), torch.ones(2, 4, dtype=torch.long))
    with pytest.raises(ValueError, match="not to be shifted"):
        causal_language_loss(torch.randn(2, WORDS), torch.ones(2, dtype=torch.long))


def test_each_records_gradient_is_autograds_of_that_record_alone() -> None:
    records, model = documents(12), Causal()
    objective = ModuleObjective(model, causal_language_loss)
    batch = Collation(Tokens(pad_id=0))(records)
    objective.evaluate(*alone(records[0]))
    found = objective.engine.evaluate(batch, len(records))
    for number, record in enumerate(records):
        (inputs, labels) = alone(record)
        loss = causal_language_loss(model(**inputs), labels).sum()
        slopes = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        norm = math.sqrt(sum(float(slope.square().sum()) for slope in slopes if slope is not None))
        assert found.losses[number].item() == pytest.approx(loss.item(), rel=1e-5, abs=1e-7)
        assert found.norms[number].item() == pytest.approx(norm, rel=1e-3, abs=1e-6)


def alone(record: dict[str, list[int]]) -> Any:
    batch = Tokens(pad_id=0)([record])
    labels = batch.pop("labels")
    return batch, labels


@pytest.mark.parametrize("kind", ["texts", "preferences"])
def test_one_record_more_adds_its_own_clipped_gradient_and_changes_no_other(kind: str) -> None:
    """Also of a model that would mix the records of a batch, and whatever lengths are there."""
    model: Any = Causal(mixes=True)
    loss, collate, records = causal_language_loss, Tokens(pad_id=0), [*documents(9), {"input_ids": []}]
    if kind == "preferences":
        model = DirectPreference(model, beta=2.0, reference=Causal(1, mixes=True).requires_grad_(False))
        loss, collate, records = model.loss, PreferenceTokens(pad_id=0), pairs(8)
    objective = ModuleObjective(model, loss)

    def query(some: list[Any]) -> Tensor:
        found = objective.engine.evaluate(Collation(collate)(some), len(some))
        return found.weighted_sum(0.2 / found.norms.clamp(min=0.2))

    whole = query(records)
    for place in range(len(records)):
        moved = whole - query(records[:place] + records[place + 1 :])
        assert float(moved.norm()) <= 0.2 * (1 + 1e-4)
        torch.testing.assert_close(moved, query([records[place]]), rtol=1e-3, atol=1e-5)


# Collation


def test_tokens_are_padded_masked_and_cut() -> None:
    records: list[Any] = [
        {"input_ids": [5, 6, 7], "completion_mask": [0, 1, 1], "text": "left out"},
        {"input_ids": [1, 2, 3, 4, 5, 6], "labels": [-100, 2, 3, 4, 5, 6]},
        torch.tensor([8, 9]),
        {"input_ids": []},
        {"input_ids": [3, 4], "attention_mask": [1, 0]},
        {"input_ids": [3, 4, 5], "assistant_masks": [1, 0, 1], "completion_mask": [0, 1, 1]},
    ]
    found = Tokens(pad_id=2, max_length=4)(records)
    assert found["input_ids"].tolist() == [[5, 6, 7, 2], [1, 2, 3, 4], [8, 9, 2, 2], [2, 2, 2, 2], [3, 4, 2, 2], [3, 4, 5, 2]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0], [1] * 4, [1, 1, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]
    none = -100
    assert found["labels"].tolist() == [
        [none, 6, 7, none], [none, 2, 3, 4], [8, 9, none, none], [none] * 4, [3, none, none, none], [none, none, 5, none],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"text": "words"}, "tokenize each record first"),
        ({"input_ids": [1, 2], "labels": [1]}, "of one length"),
        ({"input_ids": [1, 2], "completion_mask": [1]}, "as long as input_ids"),
        ({"input_ids": [[1, 2]]}, "sequence of integers"),
        ({"input_ids": [1.5]}, "sequence of integers"),
        ({"input_ids": [1, 2], "seq_lengths": [1, 1]}, "packed ones, with 'seq_lengths'"),
        ({"input_ids": [1, 2, 3], "position_ids": [0, 1, 0]}, "start again"),
    ],
)
def test_what_is_no_record_of_tokens_is_refused(record: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Tokens(pad_id=0)([record])


def test_a_record_is_padded_by_its_own_length_whoever_is_there() -> None:
    records = [{"input_ids": [1] * length} for length in (1, 2, 3, 5, 8, 13)]
    collation = Collation(Tokens(pad_id=0, max_length=11))
    widths: dict[int, int] = {}
    for places, inputs, _ in collation(records):
        for place in places.tolist():
            widths[place] = inputs["input_ids"].shape[1]
    assert [widths[place] for place in range(len(records))] == [1, 2, 4, 8, 8, 11]
    by_itself, _ = collation([records[3]])
    assert by_itself["input_ids"].tolist() == [[1, 1, 1, 1, 1, 0, 0, 0]]


# Packed rows

PACKED: list[Any] = [
    {"input_ids": [1, 2, 3, 4], "attention_mask": [1] * 4, "position_ids": [0, 1, 0, 1], "labels": [1, 2, 3, 4]},
    {"input_ids": [1, 2, 3, 4], "attention_mask": [1] * 4, "seq_lengths": [2, 2], "labels": [1, 2, 3, 4]},
]


def stacked(items: list[Any]) -> dict[str, Tensor]:
    """A collation that knows nothing of packing."""
    return {name: torch.tensor([item[name] for item in items]) for name in ("input_ids", "attention_mask", "labels")}


class DataCollatorWithFlattening:
    """By the name of Transformers' own."""

    def __call__(self, items: list[Any]) -> dict[str, Tensor]:
        raise AssertionError("called")


class DataCollatorForPreference(DataCollatorWithFlattening):
    """By the name of TRL's own."""


class PaddingFree(DataCollatorWithFlattening):
    padding_free = True


@pytest.mark.parametrize("item", PACKED, ids=["positions", "lengths"])
@pytest.mark.parametrize("collate_fn", [None, stacked], ids=["without", "with a collation"])
def test_packed_rows_are_refused_before_the_charge(item: Any, collate_fn: Any, tmp_path: Path) -> None:
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="that user is the unit"):
            trainer(Causal(), causal_language_loss, collate_fn=collate_fn).fit([item] * 40)
        assert not log.charges()


@pytest.mark.parametrize(
    ("collator", "message"),
    [
        (DataCollatorWithFlattening(), "DataCollatorWithFlattening, which lays all of a batch into one row"),
        (PaddingFree(), "max_rows_per_unit"),
        (DataCollatorForPreference(), r"PreferenceTokens\(pad_id"),
    ],
)
def test_collators_without_a_row_for_each_record_are_refused_by_name(collator: Any, message: str, tmp_path: Path) -> None:
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match=message):
            trainer(Causal(), causal_language_loss, collate_fn=collator).fit(documents())
        assert not log.charges()


def test_tables_of_packed_rows_are_refused(tmp_path: Path) -> None:
    table = {"input_ids": torch.ones(40, 4, dtype=torch.long), "position_ids": torch.tensor([[0, 1, 0, 1]] * 40)}
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="start again within a row"):
            trainer(Causal(), causal_language_loss).fit((table, torch.ones(40, 4, dtype=torch.long)))
        assert not log.charges()


def test_rows_of_one_document_are_not_taken_for_packed_ones() -> None:
    for item in (
        {"position_ids": [0, 1, 2, 0], "attention_mask": [1, 1, 1, 0]},  # padding on the right
        {"position_ids": [1, 1, 0, 1], "attention_mask": [0, 0, 1, 1]},  # and on the left
        {"position_ids": "first", "seq_lengths": 4},
        {"seq_lengths": [4], "cu_seqlens": [0, 4], "seq_idx": [1, 1, 1, 1]},
    ):
        refuse_packed(item)
        refuse_packed({name: [entry] for name, entry in item.items() if name != "x"}, batched=True)
    refuse_packed({"seq_lengths": torch.tensor([4, 2, 7]), "position_ids": torch.tensor([5, 1, 0])}, batched=True)


@pytest.mark.parametrize(
    "item",
    [{"position_ids": [0, 1, 2, 0]}, {"seq_lengths": [2, 2]}, {"cu_seq_lens_q": [0, 2, 4]}, {"seq_idx": np.array([0, 0, 1])}],
    ids=lambda item: next(iter(item)),
)
def test_rows_of_several_documents_are_refused(item: Any) -> None:
    with pytest.raises(ValueError, match="that user is the unit"):
        refuse_packed(item)
    with pytest.raises(ValueError, match="that user is the unit"):
        refuse_packed(({name: torch.as_tensor(entry)[None] for name, entry in item.items()}, torch.ones(1)), batched=True)


def test_packed_rows_of_one_user_are_rows_of_a_unit(tmp_path: Path) -> None:
    rows = [{name: entry for name, entry in PACKED[0].items() if name != "seq_lengths"}] * 60
    run = trainer(Causal(), causal_language_loss, collate_fn=stacked, max_rows_per_unit=3, public_size=20)
    run.fit(rows, groups=[number // 3 for number in range(60)])
    assert run.certificate is not None
    assert run.certificate.of_persons


# Training


def test_supervised_fine_tuning_runs_with_every_kind_of_record(tmp_path: Path) -> None:
    records: list[Any] = [*documents(36), {"input_ids": []}, {"input_ids": [3]}, {"input_ids": [1, 2], "labels": [-100, -100]}]
    records.append({"input_ids": [1 + place % 9 for place in range(50)]})
    model = Causal()
    before = copy.deepcopy(model.state_dict())
    with spend_log(tmp_path / "log.db") as log:
        run = trainer(model, causal_language_loss, collate_fn=Tokens(pad_id=0, max_length=16)).fit(records)
        assert len(log.charges()) == 1
    assert run.certificate is not None
    assert run.certificate.epsilon == pytest.approx(3.0, rel=1e-3)
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])


def test_a_collation_that_looks_at_others_is_refused(tmp_path: Path) -> None:
    def by_the_longest(items: list[Any]) -> dict[str, Tensor]:
        batch = Tokens(pad_id=0)(items)
        batch["input_ids"] = (batch["input_ids"] + max(len(item["input_ids"]) for item in items)) % WORDS
        return batch

    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="other values beside other records"):
            trainer(Causal(), causal_language_loss, collate_fn=by_the_longest).fit(documents())
        assert not log.charges()


class Growing:
    """A collation whose vocabulary is made as it goes."""

    def __init__(self) -> None:
        self.words: dict[int, int] = {}

    def __call__(self, items: list[Any]) -> dict[str, Tensor]:
        rows = [[1 + self.words.setdefault(word, len(self.words)) for word in item["input_ids"]] for item in items]
        return Tokens(pad_id=0)(rows)


def test_a_vocabulary_that_grows_is_refused(tmp_path: Path) -> None:
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="a vocabulary that grows"):
            trainer(Causal(), causal_language_loss, collate_fn=Growing()).fit(documents())
        assert not log.charges()


def test_a_collation_that_holds_a_model_is_looked_at_without_a_copy_of_it(tmp_path: Path) -> None:
    class Holding(Tokens):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(pad_id=0)
            object.__setattr__(self, "model", model)

        def __deepcopy__(self, known: dict[int, Any]) -> Holding:
            assert known[id(vars(self)["model"])] is vars(self)["model"]
            return Holding(vars(self)["model"])

    collation = Collation(Holding(Causal()))
    collation.look(documents(6))


def test_padding_on_the_left_is_refused_with_what_to_do() -> None:
    def on_the_left(items: list[Any]) -> dict[str, Tensor]:
        batch = Tokens(pad_id=0)(items)
        return {
            name: torch.stack(
                [row.roll(int((mask == 0).sum())) for row, mask in zip(table, batch["attention_mask"], strict=True)]
            )
            for name, table in batch.items()
        }

    with pytest.raises(ValueError, match="padding_side='right'"):
        Collation(on_the_left).look(documents(6))


# Preferences


def reward(model: nn.Module, prompt: list[int], continuation: list[int]) -> float:
    """log p(continuation | prompt), token by token."""
    ids = torch.tensor([prompt + continuation])
    logits = model(input_ids=ids)["logits"].double()
    table = torch.log_softmax(logits[0], -1)
    return sum(float(table[place - 1, ids[0, place]]) for place in range(max(1, len(prompt)), ids.shape[1]))


def expected(kind: str, policy: nn.Module, reference: nn.Module, record: dict[str, list[int]], beta: float) -> float:
    chosen, rejected = (
        reward(policy, record["prompt_ids"], record[name]) - reward(reference, record["prompt_ids"], record[name])
        for name in ("chosen_ids", "rejected_ids")
    )
    if kind == "sigmoid":
        return math.log1p(math.exp(-beta * (chosen - rejected)))
    if kind == "hinge":
        return max(0.0, 1 - beta * (chosen - rejected))
    margin = chosen / len(record["chosen_ids"]) - rejected / len(record["rejected_ids"])
    return (margin - 1 / (2 * beta)) ** 2


@pytest.mark.parametrize("kind", ["sigmoid", "hinge", "ipo"])
def test_preference_losses_are_those_of_the_papers(kind: str) -> None:
    policy, reference, records = Causal(0), Causal(1).requires_grad_(False), pairs(6)
    preference = DirectPreference(policy, beta=0.3, loss_type=kind, reference=reference)
    batch = PreferenceTokens(pad_id=0)(records)
    labels = batch.pop("labels")
    found = preference.loss(preference(**batch), labels)
    assert found.tolist() == pytest.approx([expected(kind, policy, reference, record, 0.3) for record in records], rel=1e-4)
    columns = with_reference(records, reference, PreferenceTokens(pad_id=0))
    batch = PreferenceTokens(pad_id=0)([columns[number] for number in range(len(records))])
    labels = batch.pop("labels")
    again = DirectPreference(policy, beta=0.3, loss_type=kind)
    assert again.loss(again(**batch), labels).tolist() == pytest.approx(found.tolist(), rel=1e-5)


def test_equal_continuations_teach_nothing() -> None:
    policy = Causal()
    preference = DirectPreference(policy, reference=Causal(1).requires_grad_(False))
    batch = PreferenceTokens(pad_id=0)([{"prompt_ids": [1, 2], "chosen_ids": [3, 4], "rejected_ids": [3, 4]}])
    labels = batch.pop("labels")
    loss = preference.loss(preference(**batch), labels)
    assert loss.item() == pytest.approx(math.log(2))
    slopes = torch.autograd.grad(loss.sum(), list(policy.parameters()), allow_unused=True)
    assert max(float(slope.abs().max()) for slope in slopes if slope is not None) < 1e-7


def test_a_reference_that_moves_with_the_policy_is_refused() -> None:
    policy = Causal()
    for moving in (policy, copy.deepcopy(policy)):
        with pytest.raises(ValueError, match=r"copy.deepcopy\(model\)"):
            DirectPreference(policy, reference=moving)
    half = copy.deepcopy(policy).requires_grad_(False)
    half.head = policy.head
    with pytest.raises(ValueError, match="which would be trained as well"):
        DirectPreference(policy, reference=half)


def test_the_reference_stays_frozen_and_in_evaluation_mode() -> None:
    reference = Causal(1).requires_grad_(False)
    preference = DirectPreference(Causal(), reference=reference.train())
    assert not reference.training
    assert not preference.train().reference.training
    before = copy.deepcopy(reference.state_dict())
    run = trainer(preference, preference.loss, collate_fn=PreferenceTokens(pad_id=0), public_size=30).fit(pairs())
    assert run.certificate is not None
    assert all(torch.equal(value, before[name]) for name, value in reference.state_dict().items())
    assert run.objective.facts.dimension == sum(parameter.numel() for parameter in preference.model.parameters())


def test_columns_of_a_reference_depend_on_no_other_record() -> None:
    reference, collate_fn, records = Causal(1, mixes=True), PreferenceTokens(pad_id=0), pairs(5)
    whole = with_reference(records, reference, collate_fn)
    less = with_reference(records[2:], reference, collate_fn)
    assert [whole[number] for number in (2, 3, 4)] == [less[number] for number in range(3)]


def test_preferences_train_by_columns_and_say_what_is_missing(tmp_path: Path) -> None:
    policy, collate_fn = Causal(), PreferenceTokens(pad_id=0, max_length=8)
    with spend_log(tmp_path / "log.db") as log:
        preference = DirectPreference(policy)
        with pytest.raises(ValueError, match="with_reference"):
            trainer(preference, preference.loss, collate_fn=collate_fn, public_size=30).fit(pairs())
        assert not log.charges()
        referenced = with_reference(pairs(), policy, collate_fn)
        preference = DirectPreference(policy)
        run = trainer(preference, preference.loss, collate_fn=collate_fn, public_size=30).fit(referenced)
        assert len(log.charges()) == 1
    assert run.certificate is not None


def test_a_record_that_is_there_twice_is_found_below_its_columns() -> None:
    records = torch.utils.data.Subset(pairs(4), [0, 1, 1])
    with pytest.raises(ValueError, match="Expected each record once"):
        with_reference(records, Causal(), PreferenceTokens(pad_id=0))
