"""Several views of a record: one gradient, the mean of theirs, whichever way they are made; nobody's draws hang on another's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from dperm.audit import Pair, Training, replay
from dperm.release import SpendLog, alignment
from dperm.torch import PrivateTrainer, TorchRecords
from dperm.torch.data.units import PersonRecords
from dperm.torch.engine.randomness import Draws
from dperm.torch.tensors.global_randomness import seed_all
from dperm.torch.training.preflight import bytes_per_record

N, VIEWS = 24, 3


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets[:, None]).square().mean(1)


RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(N, 1, 4, 4, generator=RNG), torch.randn(N, generator=RNG)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(27, 2))


def shifted(image: Tensor) -> Tensor:
    """By torch's and by NumPy's generator, as transforms of pictures draw."""
    return torch.roll(image, int(torch.randint(4, ())), -1) * float(np.random.uniform(0.5, 1.5))  # noqa: NPY002


class Pictures(Dataset[Any]):
    """Augmented where they are read."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return shifted(X[index]), Y[index]


def stacked(items: list[Any]) -> Any:
    return torch.stack([x for x, _ in items]), torch.stack([y for _, y in items])


def trainer(model: nn.Module, loss: Any = squares, views: int = VIEWS, **settings: Any) -> PrivateTrainer:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-5, "public_size": N, "epochs": 2, "expected_batch_size": 6}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return PrivateTrainer(model, loss, optimizer, views=views, clipping_norm=1.0, **(given | settings))


def gradients_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """(p,) by autograd, of the mean loss of these rows."""
    slopes = torch.autograd.grad(squares(model(inputs), targets).mean(), list(model.parameters()))
    return torch.cat([slope.flatten() for slope in slopes])


WAYS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tensors": ((X, Y), {}),
    "transform of tensors": ((X, Y), {"transform": shifted}),
    "data set": (Pictures(), {}),
    "collate_fn": (Pictures(), {"collate_fn": stacked}),
    "workers": (Pictures(), {"num_workers": 1}),
    "names": (
        [{"input": x, "labels": y} for x, y in zip(X, Y, strict=True)],
        {"transform": lambda d: {"input": shifted(d["input"])}},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_record_s_gradient_is_the_mean_over_its_views(way: str) -> None:
    data, settings = WAYS[way]
    model = network()
    objective = trainer(model).objective
    records = TorchRecords(data, views=VIEWS, physical_batch_size=10, **settings)
    drawn = np.array([3, 0, 17, 5])
    (batch,) = next(records.stream([drawn]))
    inputs = batch[0]["input"] if way == "names" else batch[0]
    assert inputs.shape == (4, VIEWS, 1, 4, 4) and batch[1].shape == (4, VIEWS)
    assert torch.equal(batch[1], Y[drawn][:, None].expand(-1, VIEWS))
    found = objective.evaluate(inputs, batch[1])
    for place, one in enumerate(torch.eye(4)):
        views = inputs[place]
        if way != "tensors":
            assert len({tuple(view.flatten().tolist()) for view in views}) == VIEWS, "views are drawn apart"
            rolled = [torch.roll(X[drawn[place]], shift, -1) for shift in range(4)]
            assert all(any(bool((view / roll).std() < 1e-5) for roll in rolled) for view in views), "of this record"
        expected = gradients_of(model, views, batch[1][place])
        assert torch.allclose(found.weighted_sum(one), expected, atol=1e-6, rtol=1e-5)
        assert float(found.norms[place]) == pytest.approx(float(expected.norm()), rel=1e-4)


def test_a_person_s_rows_have_views_each() -> None:
    """The mean over the rows of the means over their views, whatever the number of rows is."""
    model, groups = network(), np.repeat([0, 1, 2, 3], [1, 2, 3, 6])
    objective = trainer(model, max_rows_per_unit=4).objective
    for data, settings in (((X[:12], Y[:12]), {}), ((X[:12], Y[:12]), {"transform": shifted, "collate_fn": stacked})):
        records = PersonRecords(data, groups, most=4, views=VIEWS, **settings)
        ragged = next(iter(records.batches()))
        seen = 0
        for places, inputs, (targets, weights) in ragged:
            assert inputs.shape[2:] == (VIEWS, 1, 4, 4) and weights.shape == inputs.shape[:2]
            found = objective.evaluate(inputs, (targets, weights))
            for number in range(len(places)):
                rows = weights[number] > 0
                mine = zip(inputs[number][rows], targets[number][rows], strict=True)
                expected = torch.stack([gradients_of(model, *row) for row in mine]).mean(0)
                assert torch.allclose(found.weighted_sum(torch.eye(len(places))[number]), expected, atol=1e-5, rtol=1e-4)
                seen += 1
        assert seen == 4


class Noisy(nn.Module):
    """A parameter times a number that is drawn for each row: its gradient is what was drawn."""

    def __init__(self, shape: Callable[[Tensor], tuple[int, ...]] = lambda x: (len(x),)) -> None:
        super().__init__()
        self.scale, self.shape = nn.Parameter(torch.ones(1)), shape

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * (torch.randn(self.shape(x)) + 0 * x.flatten(1).sum(1))


class Repeated(Draws):
    """The same secret seeds each time."""

    def seed(self) -> int:
        return 11


def test_what_a_model_draws_is_drawn_for_each_view_and_not_for_the_sake_of_another_record() -> None:
    model = Noisy()
    made = trainer(model, lambda outputs, targets: outputs + 0 * targets, views=16)
    objective, many = made.objective, torch.randn(200, 1, 3)
    objective.engine.draws = Repeated(objective.flat.device)

    def drawn(x: Tensor) -> Tensor:
        found = objective.evaluate(x[:, None].expand(-1, 16, 1, 3), torch.zeros(len(x), 16))
        return torch.stack([found.weighted_sum(one) for one in torch.eye(len(x))])[:, 0]

    means = drawn(many)
    assert 0.2 < float(means.std()) < 0.3, "of sixteen draws: a quarter as far as of one"
    changed = many.clone()
    changed[5] = torch.nan
    again = drawn(changed)
    others = torch.arange(200) != 5
    assert torch.equal(means[others], again[others]) and float(again[5]) == 0.0


@pytest.mark.parametrize("workers", [0, 1])
def test_the_views_of_a_record_do_not_hang_on_others(workers: int) -> None:
    """Whoever is read beside it, before it, or by however many workers."""

    def views(draws: list[list[int]]) -> Tensor:
        records = TorchRecords(Pictures(), views=VIEWS, key=5, num_workers=workers)
        batches = [next(iter(batches)) for batches in records.stream(map(np.array, draws))]
        return torch.stack([batch[0][drawn.index(7)] for batch, drawn in zip(batches, draws, strict=True) if 7 in drawn])

    alone, beside = views([[7], [7]]), views([[1, 7, 9], [2, 3], [7, 2]])
    assert torch.equal(alone, beside) and not torch.equal(alone[0], alone[1]), "and are drawn anew"


class Told(Dataset[Any]):
    """Items are what is drawn for them."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        return torch.randn(2), torch.tensor(0.0)


def test_one_view_is_what_it_was() -> None:
    """The model itself, and the draws of a record's first and second read as they always were."""
    model = network()
    assert trainer(model, views=1).objective.model is model
    records = TorchRecords(Told(), key=5)
    first, second = (next(iter(batches))[0] for batches in records.stream([np.array([3, 8]), np.array([3])]))
    for found, name, reads in ((first[0], 3, 1), (first[1], 8, 1), (second[0], 3, 2)):
        seed_all(alignment.seed_of(5, name, reads))
        assert torch.equal(found, torch.randn(2))


def test_a_transform_keeps_how_a_record_is_arranged() -> None:
    """Targets are left alone, but where a record has none: the loss then gets what was transformed."""

    def twice(x: Any) -> Any:
        return tuple(2 * part for part in x) if isinstance(x, tuple) else 2 * x

    triples = [(torch.ones(2), torch.ones(3), torch.ones(1)) for _ in range(4)]
    for data in (triples, (torch.ones(4, 2), torch.ones(4, 3), torch.ones(4, 1))):
        (inputs, targets), *_ = TorchRecords(data, transform=twice).batches()
        assert [float(part.sum()) for part in (*inputs, targets)] == [16, 24, 4]
    for data in (torch.ones(4, 2), np.ones((4, 2), dtype=np.float32), [torch.ones(2) for _ in range(4)]):
        (inputs, targets), *_ = TorchRecords(data, transform=twice).batches()
        assert float(inputs.sum()) == float(targets.sum()) == 16


def _cut(items: list[Any]) -> Any:
    """Of lengths of their own, padded to the longest of those that are given."""
    cut = [x[: 1 + int(torch.randint(len(x), ()))] for x, _ in items]
    return nn.utils.rnn.pad_sequence(cut, batch_first=True), torch.stack([y for _, y in items])


def test_a_collation_is_given_one_record_s_views() -> None:
    data = [(torch.full((size,), float(size)), torch.tensor(1.0)) for size in (3, 9, 4)]
    batch = next(iter(TorchRecords(data, views=4, collate_fn=_cut).batches()))
    for _, inputs, _ in batch:
        for views in inputs:
            longest = float(views.max())
            assert len(views) == 4 and views.shape[1] <= longest
            assert set(views.unique().tolist()) <= {0.0, longest}


def test_a_run_costs_what_one_view_costs_and_says_how_many_there_were(tmp_path: Any) -> None:
    one = trainer(network(), views=1).fit(Pictures(), progress=False).certificate
    made = trainer(network(), transform=shifted, checkpoint=tmp_path / "run").fit((X, Y), (X, Y), progress=False)
    several = made.certificate
    assert one is not None and several is not None
    assert several.event == one.event and several.epsilon == one.epsilon
    assert several.public_facts["views"] == VIEWS and "views" not in one.public_facts
    assert made.history[-1]["validation_loss"] > 0, "validation sees each record once"
    with pytest.raises(ValueError, match="views = 3, not None"):
        trainer(network(), views=1, checkpoint=tmp_path / "run").fit((X, Y), resume=True, progress=False)


class Shared(nn.Module):
    """Gives something that all rows share."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Any:
        outputs = self.inner(x.flatten(1))
        return outputs, outputs.mean()


def test_what_is_wrong_with_views_is_said_before_the_charge() -> None:
    for settings in ({"views": 0}, {"views": 2.5}):
        with pytest.raises((ValueError, TypeError), match="views"):
            trainer(network(), **settings)
    with pytest.raises(TypeError, match="transform"):
        trainer(network(), transform=3)
    with pytest.raises(ValueError, match="rows that it was given along the first axis"):
        trainer(Shared(), lambda outputs, targets: outputs[0].sum(1) + targets).fit((X, Y), progress=False)
    with pytest.raises(ValueError, match="one loss per row"):
        trainer(network(), lambda outputs, targets: squares(outputs, targets).mean()).fit((X, Y), progress=False)
    with pytest.raises(ValueError, match="generator of random numbers"):
        trainer(network(), transform=functools.partial(_by_own, np.random.default_rng(0))).fit((X, Y), progress=False)
    assert not SpendLog.current().charges()


def _by_own(generator: Any, image: Tensor) -> Tensor:
    return image * float(generator.uniform())


def _replayed(neighbours: int = 2) -> Any:
    """Neighbours that differ in one record, of a model that draws for pictures that draw."""
    more = [("like another", X[0], Y[1]), ("no number", torch.full((1, 4, 4), torch.nan), Y[0])]
    pairs = [Pair.adding(name, (X[:8], Y[:8]), x, y) for name, x, y in more[:neighbours]]

    def make(source: Any) -> PrivateTrainer:
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Dropout(0.3))
        nn.init.ones_(model[1].weight)
        nn.init.zeros_(model[1].bias)
        return trainer(model, transform=shifted, random_state=source, epochs=1, expected_batch_size=4, public_size=8)

    return replay(Training.of_trainer(make, (X[:8], Y[:8]), pairs))


def test_replay_of_views_on_neighbours() -> None:
    result = _replayed()
    assert result.verdict == "consistent" and 0.9 < result.details["largest_movement"] <= 1 + 1e-6


def test_views_that_count_as_records_of_their_own_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a library that repeats the records of a batch: each view is clipped by itself, and all are added up."""
    before = TorchRecords.stream

    def repeated(self: TorchRecords, draws: Any) -> Any:
        return before(self, (None if drawn is None else np.repeat(drawn, 2) for drawn in draws))

    monkeypatch.setattr(TorchRecords, "stream", repeated)
    assert _replayed(1).verdict == "refuted"


def _cropped(picture: Tensor) -> Tensor:
    return picture[:, : 2 + int(torch.randint(3, ()))]


def _packed(items: list[Any]) -> Any:
    sequences = [x.flatten()[:, None] for x, _ in items]
    return nn.utils.rnn.pack_sequence(sequences), torch.stack([y for _, y in items])


def test_views_of_several_shapes_are_refused_before_the_charge() -> None:
    """Later they would be a record that cannot be collated, which contributes nothing."""
    for settings, said in (({"transform": _cropped}, "one shape and type"), ({"collate_fn": _packed}, "packed sequence")):
        with pytest.raises(ValueError, match=said):
            trainer(network(), **settings).fit((X, Y), progress=False)
    assert not SpendLog.current().charges()


def _fails(picture: Tensor) -> Tensor:
    if torch.equal(picture, X[3]) and float(torch.rand(())) < 0.9:
        raise ValueError("Cannot be read.")
    return picture


def test_a_record_of_which_a_view_cannot_be_read_contributes_nothing() -> None:
    records = TorchRecords((X, Y), views=8, transform=_fails)
    records.charged = True
    (batch,) = next(records.stream([np.array([2, 3, 5])]))
    ((places, inputs, _),) = batch
    assert places.tolist() == [0, 2] and batch.size == 3
    assert torch.equal(inputs[:, 0], X[[2, 5]])


def test_views_that_are_all_the_same_are_told_of() -> None:
    for settings, several in (({}, {}), ({"max_rows_per_unit": 2, "public_size": 12}, {"groups": np.arange(N) // 2})):
        with pytest.warns(UserWarning, match="3 views of a record are all the same"):
            trainer(network(), **settings).fit((X, Y), progress=False, **several)
    trainer(nn.Sequential(network(), nn.Dropout(0.3))).fit((X, Y), progress=False)  # warnings are errors


def test_memory_is_measured_with_all_views() -> None:
    """A physical batch counts records: with four views it has about a fourth as many."""
    found: list[int] = []
    for views in (1, 4):
        objective = trainer(nn.Sequential(network(), nn.Dropout(0.3)), views=views).objective
        batch = X, Y
        if views > 1:
            batch = X[:, None].expand(-1, views, 1, 4, 4), Y[:, None].expand(-1, views)
        found.append(bytes_per_record(objective, *batch)[0])
    assert 3 < found[1] / found[0] < 4.5


def test_a_transform_in_place_changes_neither_the_records_nor_other_views() -> None:
    """Windows of one series share memory: what is written into one would reach others."""
    series = torch.arange(1.0, 9.0)
    given = series.clone(), torch.zeros(6)
    for data in (TensorDataset(series.unfold(0, 3, 1), given[1]), [(window, 0.0) for window in series.unfold(0, 3, 1)]):
        records = TorchRecords(data, views=2, transform=lambda window: window.mul_(0.5))
        ((inputs, _),) = records.batches()
        assert torch.equal(inputs, given[0].unfold(0, 3, 1)[:, None].expand(-1, 2, -1) / 2)
        assert torch.equal(series, given[0])
