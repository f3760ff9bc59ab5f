"""Issue 42, item 4: what hides behind layers of zeros, and the rows of embeddings that stand for padding."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dperm.gradient import SGD, AdaptiveClip, Constant, FullBatch, Plan
from dperm.gradient.recipes import dp_sgd, dpis, full_batch_descent
from dperm.release import Channel, SpendLog
from dperm.torch import ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.parameters.flat_parameters import FlatParameters

LOSS = nn.CrossEntropyLoss(reduction="none")
WORDS, N = 20, 40


class Texts(torch.utils.data.Dataset[Any]):
    """Texts of 2 to 7 words from 1 to 19, or of as many vectors, and one of 30."""

    def __init__(self, vectors: bool = False) -> None:
        generator = torch.Generator().manual_seed(0)
        lengths = [*torch.randint(2, 8, (N - 1,), generator=generator).tolist(), 30]
        self.items = [
            (
                torch.randn(length, 5, generator=generator)
                if vectors
                else torch.randint(1, WORDS, (length,), generator=generator),
                number % 2,
            )
            for number, length in enumerate(lengths)
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
    rows = nn.utils.rnn.pad_sequence([item[0] for item in items], batch_first=True)
    return rows, torch.tensor([item[1] for item in items])


def standardised(items: list[Any]) -> tuple[Tensor, Tensor]:
    """By the batch's own mean and deviation."""
    rows = torch.stack([item[0].float()[:2].flatten() for item in items])
    return (rows - rows.mean(0)) / (rows.std(0, unbiased=False) + 1e-3), torch.tensor([item[1] for item in items])


def mixed(items: list[Any]) -> tuple[Tensor, Tensor]:
    """Each record half itself and half the next."""
    rows = torch.stack([item[0].float()[:2].flatten() for item in items])
    return (rows + rows.roll(1, 0)) / 2, torch.tensor([item[1] for item in items])


class Bag(nn.Module):
    """The sum of a text's embeddings: the row of padding is zero, and adds nothing as long as it stays zero."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(WORDS, width, padding_idx=0), nn.Linear(width, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).sum(1))


class BagOfTorch(nn.Module):
    """The same as PyTorch has it."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(WORDS, 8, mode="mean", padding_idx=0), nn.Linear(8, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words))


class OfLength(Bag):
    """The mean over as many words as the longest text of the batch has, behind a head of zeros."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.table(words).mean(1))


class ZeroBias(nn.Module):
    """Padded vectors give zero features as long as the bias is zero."""

    def __init__(self, pooled: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.head, self.pooled = nn.Linear(5, 16), nn.Linear(16, 2), pooled
        nn.init.zeros_(self.first.bias)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.pooled(torch.relu(self.first(rows))))


class ZeroHead(nn.Module):
    """A linear model that starts at zero."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(rows)


class LowRank(nn.Module):
    """A frozen layer of zeros, and a low-rank update B·A beside it whose B starts at zero."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(inputs, 3, bias=False), nn.Linear(3, 2, bias=False)
        nn.init.zeros_(self.up.weight)
        self.bias = nn.Linear(1, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.up(self.down(rows)) + self.bias(torch.ones_like(rows[:, :1]))


def trainer(model: nn.Module, collate: Any, optimizer: Any = None, plan: Any = None, **given: Any) -> PrivateTrainer:
    plan = plan or partial(full_batch_descent, steps=6, clipping_norm=1.0)
    settings: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "public_size": N, "collate_fn": collate, **given}
    return PrivateTrainer(model, LOSS, optimizer, plan, **settings)


#: collations that compute across records, behind layers of zeros
ACROSS: dict[str, tuple[Callable[[], nn.Module], bool, Any]] = {
    "zero head, standardising": (lambda: ZeroHead(10), True, standardised),
    "zero head, mixing": (lambda: ZeroHead(10), True, mixed),
    "low rank, standardising": (lambda: LowRank(10), True, standardised),
    "low rank, mixing": (lambda: LowRank(10), True, mixed),
}

#: models that see how far a collation pads
OF_PADDING: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "zero bias, sum": (lambda: ZeroBias(lambda rows: rows.sum(1)), True),
    "zero bias, max": (lambda: ZeroBias(lambda rows: rows.amax(1)), True),
    "zero head, mean over the padded length": (OfLength, False),
}


@pytest.mark.parametrize("name", list(ACROSS))
def test_collation_across_records_is_refused_before_the_charge(name: str) -> None:
    torch.manual_seed(0)
    make, vectors, collate = ACROSS[name]
    with pytest.raises(ValueError, match="computes across records"):
        trainer(make(), collate).fit(Texts(vectors), progress=False)
    assert not SpendLog.current().charges()


@pytest.mark.parametrize("name", list(OF_PADDING))
def test_a_long_record_moves_no_other_by_its_padding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the weights are: the queries of a run with and without the longest text, at each step's weights."""
    make, vectors = OF_PADDING[name]

    class Without(Texts):
        def __len__(self) -> int:
            return N - 1

    def queries(data: Texts) -> list[Tensor]:
        torch.manual_seed(0)
        asked: list[Tensor] = []

        def release(self: Channel, query: Any, *given: Any, **named: Any) -> Any:
            asked.append(query.clone())
            return torch.randn(query.shape, generator=torch.Generator().manual_seed(len(asked)), dtype=query.dtype)

        monkeypatch.setattr(Channel, "release", release)
        trainer(make(), padded).fit(data, progress=False)
        return asked

    apart = [float((one - other).norm()) for one, other in zip(queries(Texts(vectors)), queries(Without(vectors)), strict=True)]
    assert len(apart) == 6
    assert 0.5 < max(apart) <= 1 + 1e-4


def sgd(model: nn.Module) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.1)


def adam(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def adaptive(noise_multiplier: float, public_size: int) -> Plan:
    return Plan(FullBatch(), AdaptiveClip(1.0), Constant(noise_multiplier), SGD(0.5), steps=4, public_size=public_size)


PLANS: dict[str, Any] = {
    "full batches": partial(full_batch_descent, steps=4, clipping_norm=1.0),
    "Poisson": partial(dp_sgd, epochs=2, expected_batch_size=20, clipping_norm=1.0),
    "adaptive": adaptive,
    "importance": partial(dpis, epochs=2, expected_batch_size=5, clipping_norm=1.0),
}


@pytest.mark.parametrize(("plan", "optimizer"), [*((plan, None) for plan in PLANS), ("Poisson", sgd), ("Poisson", adam)])
@pytest.mark.parametrize("make", [Bag, BagOfTorch])
def test_padding_rows_get_no_noise_and_do_not_move(make: type[Any], plan: str, optimizer: Any) -> None:
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        model.table.weight[0] = 0.0 if make is Bag else 0.25  # which a mean over the words that there are leaves out
    before = model.table.weight.detach().clone()
    trainer(model, padded, None if optimizer is None else optimizer(model), PLANS[plan]).fit(Texts(), progress=False)
    decay = optimizer is sgd and make is not Bag  # moves rows by themselves, as it does without privacy
    assert decay or torch.equal(model.table.weight[0], before[0])
    assert (model.table.weight[1:] != before[1:]).any(1).all()


def test_a_loop_of_ones_own_sees_no_noise_at_padding() -> None:
    torch.manual_seed(0)
    model = Bag()
    optimizer = sgd(model)
    for step in trainer(model, padded, optimizer).steps(Texts()):
        gradient: Any = model.table.weight.grad
        assert not gradient[0].any()
        assert gradient[1:].all()
        assert step.gradient[: model.table.weight.numel()].view_as(gradient).equal(gradient)
        optimizer.step()
    assert not model.table.weight[0].any()


def test_a_record_moves_a_bag_of_embeddings_by_what_is_charged() -> None:
    torch.manual_seed(0)
    model, data = Bag(), Texts()
    trainer(model, padded, sgd(model), partial(full_batch_descent, steps=20, clipping_norm=1.0)).fit(data, progress=False)
    objective = ModuleObjective(model, LOSS)

    def query(items: list[Any]) -> Tensor:
        found = objective.evaluate(*padded(items))
        return found.weighted_sum(1 / found.norms.clamp(min=1.0))

    longest, _ = data.items[-1]
    moved = [(query([*data.items[:20], (longest, label)]) - query(data.items[:20])).norm() for label in (0, 1)]
    assert 0.5 < max(moved) <= 1 + 1e-5


def test_a_tied_table_is_trained_in_all_its_rows() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.back = nn.Embedding(WORDS, 4, padding_idx=0), nn.Linear(4, WORDS, bias=False)
            self.back.weight = self.table.weight

    class Twice(nn.Module):
        def __init__(self, *paddings: int | None) -> None:
            super().__init__()
            tables = [nn.Embedding(WORDS, 4, padding_idx=each) for each in paddings]
            self.tables = nn.ModuleList(tables)
            for each in tables:
                each.weight = tables[0].weight

    assert FlatParameters(Tied()).padding == {}
    assert FlatParameters(Twice(1, 0)).padding == {}
    assert FlatParameters(Twice(1, None)).padding == {}
    (rows,) = FlatParameters(Twice(1, 1)).padding.values()
    assert rows.nonzero().flatten().tolist() == [1]
    model = nn.Sequential(nn.Embedding(WORDS, 4, padding_idx=-1), nn.Linear(4, 2))
    assert FlatParameters(model).padding[0].nonzero().flatten().tolist() == [WORDS - 1]
    model[0].requires_grad_(False)
    assert FlatParameters(model).padding == {}


def _scaled(items: list[Any]) -> dict[str, Any]:
    """Beside tensors, a number of the batch that is its first record's."""
    return {
        "words": torch.stack([words for words, *_ in items]),
        "scale": items[0][2],
        "labels": torch.tensor([y for _, y, _ in items]),
    }


def _boxes(items: list[Any]) -> tuple[dict[str, Tensor], Tensor]:
    """Several rows a record, one after the other."""
    return {"rows": torch.cat([words[:, None] for words, *_ in items])}, torch.tensor([y for _, y, _ in items])


class Scales(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), 1 + index % 19), float(index), 2.0 if index == 7 else 1.0


def test_what_a_collation_gives_beside_tensors_is_each_record_s_own() -> None:
    records = TorchRecords(Scales(), collate_fn=_scaled)
    (batch,) = records.batches()
    found = {int(place): inputs["scale"] for places, inputs, _ in batch for place in places}
    assert found == {place: 2.0 if place == 7 else 1.0 for place in range(N)}


def test_tensors_without_a_row_for_each_record_are_refused() -> None:
    with pytest.raises(ValueError, match="16 rows of inputs and of targets for 16 records, got 48 and 16"):
        TorchRecords(Scales(), collate_fn=_boxes).sample(16)


class Named(torch.utils.data.Dataset[Any]):
    """Records with a text, and one of other numbers."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return (torch.ones(2), f"name {index % 2}"), (1 if index != 3 else 0.5)


def test_texts_are_each_record_s_own_and_numbers_of_two_kinds_stay_apart() -> None:
    (batch,) = TorchRecords(Named()).batches()
    found = {int(place): (inputs[1], targets.dtype) for places, inputs, targets in batch for place in places}
    assert {place: text for place, (text, _) in found.items()} == {place: (f"name {place % 2}",) for place in range(6)}
    assert [kind.is_floating_point for _, (_, kind) in sorted(found.items())] == [place == 3 for place in range(6)]


class Readable(torch.utils.data.Dataset[Any]):
    """Records of which one cannot be read when `broken` says so: at the 16 places that are looked at before a charge none is."""

    def __init__(self, error: Exception | None, broken: int = 7) -> None:
        self.error, self.broken = error, broken

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        if index == self.broken and self.error is not None:
            raise self.error
        return torch.full((3,), 1.0 + index), float(index % 2)


def only_short(items: list[Any]) -> Any:
    if any(float(row[0]) == 8.0 for row, _ in items):
        raise KeyError("a record that this collation was not written for")
    return torch.stack([row for row, _ in items]), torch.tensor([target for _, target in items])


class OfItsOwnError(Exception):
    """An error that no list of errors has."""


BROKEN: dict[str, tuple[Any, Any]] = {
    "length": (Readable(struct.error("unpack requires a buffer")), None),
    "memory": (Readable(MemoryError()), None),
    "file": (Readable(FileNotFoundError(2, "No such file", "7.png")), None),
    "own": (Readable(OfItsOwnError("broken")), None),
    "value": (Readable(ValueError("not a picture")), None),
    "decoder": (Readable(OSError("cannot identify this file")), None),
    "collate": (Readable(None), only_short),
}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_record_that_cannot_be_read_contributes_zero_once_the_run_is_charged(kind: str, workers: int) -> None:
    data, collate = BROKEN[kind]
    records = TorchRecords(data, physical_batch_size=16, collate_fn=collate, num_workers=workers)
    records.sample(16)
    with pytest.raises((ValueError, OSError, KeyError, struct.error, MemoryError, OfItsOwnError)):
        list(records.batches())
    records.charged, records._loaders = True, []
    model = nn.Linear(3, 1)
    objective = ModuleObjective(model, lambda outputs, targets: (outputs[:, 0] - targets).square())
    objective.prepare(torch.ones(4, 3), torch.ones(4))
    objective.engine.charged = True
    norms = torch.cat([objective.per_example(objective.theta, batch).norms for batch in records.batches()])
    whole = torch.stack([Readable(None)[index][0] for index in range(40)])
    expected = objective.per_example(objective.theta, (whole, torch.arange(40) % 2.0)).norms
    expected[7] = 0.0
    assert torch.allclose(norms, expected, atol=1e-12)


def test_batches_of_nobody_have_sums_of_zero() -> None:
    data = Readable(ValueError("not a picture"))
    records = TorchRecords(data, physical_batch_size=16)
    records.charged = True
    (batches,) = records.stream([np.array([7])])
    objective = ModuleObjective(nn.Linear(3, 1), lambda outputs, targets: outputs[:, 0] - targets)
    (found,) = [objective.per_example(objective.theta, batch) for batch in batches]
    assert found.norms.tolist() == [0.0]
    assert not found.weighted_sum(torch.ones(1)).any()


def test_a_subclass_of_tensors_is_read_by_its_own_items() -> None:
    """One that leaves records out, or changes them, is a data set like any other."""

    class Chosen(torch.utils.data.TensorDataset):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            row, target = super().__getitem__(index)
            return row.clamp(max=1.0), target

    records = TorchRecords(Chosen(torch.full((9, 3), 5.0), torch.zeros(9)))
    assert len(records) == 6
    (batch,) = records.batches()
    assert float(batch[0].max()) == 1.0


@pytest.mark.parametrize("kind", [tuple, lambda pair: torch.utils.data.TensorDataset(*pair)])
def test_a_collation_is_used_for_tensors_too(kind: Any) -> None:
    def doubled(items: list[Any]) -> Any:
        return torch.stack([2 * row for row, _ in items]), torch.stack([target for _, target in items])

    (batch,) = TorchRecords(kind((torch.ones(5, 3), torch.zeros(5))), collate_fn=doubled).batches()
    assert bool((batch[0] == 2).all())


class Sentences(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.full((1 + index % 5,), 1.0 + index), float(index % 2)


def packed_by_collation(items: list[Any]) -> Any:
    rows = [row[:, None] for row, _ in items]
    return nn.utils.rnn.pack_sequence(rows, enforce_sorted=False), torch.tensor([target for _, target in items])


def with_a_list_of_lengths(items: list[Any]) -> Any:
    rows = nn.utils.rnn.pad_sequence([row[:, None] for row, _ in items], batch_first=True)
    return (rows, [len(row) for row, _ in items]), torch.tensor([target for _, target in items])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core, self.head = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Any, lengths: Any = None) -> Tensor:
        if lengths is not None:
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.core(x)[1][0])


@pytest.mark.parametrize("collate", [packed_by_collation, with_a_list_of_lengths])
def test_packed_sequences_and_lists_of_lengths_are_each_record_s_own(collate: Any) -> None:
    torch.manual_seed(0)
    model = Recurrent()
    objective = ModuleObjective(model, lambda outputs, targets: (outputs[:, 0] - targets).square())
    records = TorchRecords(Sentences(), collate_fn=collate)
    objective.prepare(*records.sample(16))
    (batch,) = records.batches()
    found = objective.per_example(objective.theta, batch).norms
    for number in range(24):
        row, target = Sentences()[number]
        losses = (model(row[None, :, None])[:, 0] - target).square()
        slopes = torch.autograd.grad(losses.sum(), list(model.parameters()))
        assert float(found[number]) == pytest.approx(float(torch.cat([s.flatten() for s in slopes]).norm()), rel=1e-4)


def mixed_by_draws(items: list[Any]) -> Any:
    rows = torch.stack([row for row, _ in items])
    share = torch.rand(len(rows), 1)
    return share * rows + (1 - share) * rows[torch.randperm(len(rows))], torch.tensor([target for _, target in items])


def noisy_by_draws(items: list[Any]) -> Any:
    rows = torch.stack([row for row, _ in items])
    return rows + torch.randn_like(rows), torch.tensor([target for _, target in items])


def test_a_collation_that_mixes_by_draws_is_refused_and_one_that_draws_for_each_is_not() -> None:
    with pytest.raises(ValueError, match="computes across records"):
        TorchRecords(Readable(None), collate_fn=mixed_by_draws).sample(16)
    TorchRecords(Readable(None), collate_fn=noisy_by_draws).sample(16)


class Drawing(Readable):
    def __init__(self, kept: Any) -> None:
        super().__init__(None)
        self.kept = kept


KEPT: dict[str, Callable[[], Any]] = {
    "an attribute": lambda: np.random.default_rng(0),
    "a transform in a list": lambda: [Drawing(np.random.RandomState(0))],
    "a closure": lambda: (lambda generator: lambda row: row + torch.randn(3, generator=generator))(torch.Generator()),
    "a partial": lambda: partial(torch.randn, generator=torch.Generator()),
}


@pytest.mark.parametrize("kept", KEPT)
def test_data_sets_that_keep_a_generator_are_refused(kept: str) -> None:
    with pytest.raises(ValueError, match="keeps a generator of random numbers"):
        TorchRecords(Drawing(KEPT[kept]())).sample(16)


def sorted_and_noisy(items: list[Any]) -> Any:
    items = sorted(items, key=lambda item: -len(item[0]))
    rows = nn.utils.rnn.pad_sequence([row + 0.01 * torch.randn_like(row) for row, _ in items], batch_first=True)
    return (rows, torch.tensor([len(row) for row, _ in items])), torch.tensor([target for _, target in items])


def test_a_collation_that_sorts_and_draws_gives_the_record_and_not_its_companion() -> None:
    (batch,) = TorchRecords(Sentences(), collate_fn=sorted_and_noisy).batches()
    for places, (_, lengths), _ in batch:
        assert lengths.tolist() == [1 + place % 5 for place in places.tolist()]
