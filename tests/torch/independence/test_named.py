"""Records with named entries: the label apart, the rest keyword arguments of the model."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dperm.release import SpendLog
from dperm.torch import PrivateTrainer
from dperm.torch.data.records import TorchRecords

N = 40


class Words(nn.Module):
    """Mean of embeddings that a mask tells, as a transformer's inputs are named."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        mask = attention_mask.float()[..., None]
        pooled = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        return {"logits": self.head(pooled)}


def loss_fn(outputs: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="none")


class Items:
    """A data set as Hugging Face's: an item is a dict."""

    def __init__(self, label: str = "labels", kind: str = "list", length: int = 5, more: Any = None) -> None:
        draw = np.random.default_rng(0)
        self.words = draw.integers(1, 20, (N, length))
        self.label, self.kind, self.more = label, kind, more or {}

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = self.words[index]
        mask = np.ones_like(words)
        given = {
            "list": (words.tolist(), mask.tolist()),
            "array": (words, mask),
            "tensor": tuple(map(torch.tensor, (words, mask))),
        }
        ids, ones = given[self.kind]
        return {"input_ids": ids, "attention_mask": ones, self.label: int(words.sum()) % 2, **self.more}


def trainer(**settings: Any) -> PrivateTrainer:
    torch.manual_seed(0)
    settings = {"random_state": 0, **settings}
    return PrivateTrainer(
        Words(), loss_fn, delta=1e-5, epsilon=1.0, epochs=1, expected_batch_size=10, public_size=N, **settings
    )  # fmt: skip


def trained(data: Any, **settings: Any) -> Tensor:
    run = trainer(**settings)
    run.fit(data)
    assert isinstance(run.model, Words)
    return run.model.head.weight.detach()


@pytest.mark.parametrize("kind", ["list", "array", "tensor"])
@pytest.mark.parametrize("label", ["labels", "label"])
def test_items_train_as_pairs_of_tensors_do(kind: str, label: str) -> None:
    items = Items(label, kind)
    words = torch.from_numpy(items.words)
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    pairs = trained((inputs, words.sum(1) % 2))
    assert torch.equal(trained(items), pairs)
    assert torch.equal(trained({**inputs, label: words.sum(1) % 2}), pairs)


def test_a_collator_may_leave_the_label_among_the_others() -> None:
    """As transformers' collators do, whose batches are mappings and no dicts."""

    class Uneven(Items):
        def __getitem__(self, index: int) -> dict[str, Any]:
            item = super().__getitem__(index)
            return {**item, "input_ids": item["input_ids"][: 2 + index % 4], "attention_mask": [1] * (2 + index % 4)}

    def padded(items: list[dict[str, Any]]) -> UserDict[str, Tensor]:
        longest = max(len(item["input_ids"]) for item in items)
        rows = {
            name: torch.tensor([item[name] + [0] * (longest - len(item[name])) for item in items])
            for name in ("input_ids", "attention_mask")
        }
        return UserDict({**rows, "labels": torch.tensor([item["labels"] for item in items])})

    assert torch.isfinite(trained(Uneven(), collate_fn=padded)).all()
    assert torch.isfinite(trained(Items(), num_workers=1)).all()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Items("answer"), "called 'labels' or 'label'.*unexpected keyword argument 'answer'"),
        (Items(more={"label": 1}), "one entry called 'labels' or 'label'"),
        (Items(more={"text": "how it was written"}), r"numbers, got str as 'text': leave that column out \(remove_columns\)"),
        (Items(more={"note": None}), "numbers, got NoneType as 'note'"),
        ({"input_ids": torch.ones(N, 3)}, "called 'labels' or 'label'.*missing 1 required positional argument"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_before_any_charge(data: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        trainer(random_state=None).fit(data)
    assert SpendLog.current().charges() == []


def test_records_of_several_lengths_train_each_by_its_own() -> None:
    class Uneven(Items):
        def __getitem__(self, index: int) -> dict[str, Any]:
            item = super().__getitem__(index)
            length = 1 + index % 4
            return {**item, "input_ids": item["input_ids"][:length], "attention_mask": [1] * length}

    assert torch.isfinite(trained(Uneven())).all()


def groups_of(data: Any) -> list[tuple[list[int], dict[str, Tensor]]]:
    """Places and inputs of the records that run together."""
    (batch,) = TorchRecords(data).batches()
    return [(places.tolist(), inputs) for places, inputs, _ in batch]


def test_one_record_does_not_take_an_entry_from_the_others() -> None:
    """A batch without a mask, because one of its records has none, would change what the others' losses are."""

    class Gaps(Items):
        def __getitem__(self, index: int) -> dict[str, Any]:
            item = super().__getitem__(index)
            return item if index != 7 else {name: item[name] for name in ("input_ids", "labels")}

    others, one = groups_of(Gaps())
    assert (one[0], list(one[1])) == ([7], ["input_ids"])
    assert (len(others[0]), list(others[1])) == (N - 1, ["input_ids", "attention_mask"])


def test_one_record_does_not_round_the_others() -> None:
    """Whole numbers beside one record's fractions would become single precision, large ones others."""

    class Mixed(Items):
        def __getitem__(self, index: int) -> dict[str, Any]:
            item = super().__getitem__(index)
            return {**item, "input_ids": [0.5] * 5} if index == 7 else item

    others, one = groups_of(Mixed())
    assert (one[0], one[1]["input_ids"].dtype) == ([7], torch.float32)
    assert (len(others[0]), others[1]["input_ids"].dtype) == (N - 1, torch.int64)
