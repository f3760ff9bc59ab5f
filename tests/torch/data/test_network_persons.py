"""Networks on persons with several rows: one gradient each, whichever way rows come; neighbours that differ in persons."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from dperm.audit import Pair, Training, replay
from dperm.estimators import DPMLPClassifier
from dperm.gradient.recipes import dp_sgd, dpis, full_batch_descent
from dperm.mechanisms import Gradient
from dperm.objectives import PrivacyUnit
from dperm.privacy import Certificate
from dperm.release import SpendLog
from dperm.torch import ModuleObjective, PrivateTrainer, TorchRecords
from dperm.torch.data.collation import Ragged
from dperm.torch.data.units import MeanLoss, OfPersons, PersonRecords
from helpers.said import flat

RNG = np.random.default_rng(0)
PERSONS, MOST = 200, 4
GROUPS = RNG.permutation(np.repeat(np.arange(PERSONS), RNG.integers(1, 8, PERSONS)))
ORDER = GROUPS[np.sort(np.unique(GROUPS, return_index=True)[1])]  # of first rows
INPUTS = torch.from_numpy(RNG.normal(size=(len(GROUPS), 5)).astype(np.float32))
TARGETS = (INPUTS[:, 0] > 0).long()
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


class Visits(Dataset[Any]):
    """Items one by one."""

    def __len__(self) -> int:
        return len(GROUPS)

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index], TARGETS[index]


def network(kind: str = "mlp") -> nn.Module:
    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    return nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)
    )


def recipe(sampling: str = "poisson", **more: Any) -> Any:
    def plan(noise_multiplier: float, public_size: int) -> Any:
        settings: dict[str, Any] = {"expected_batch_size": 60.0, "epochs": 3, "clipping_norm": 1.0} | more
        settings.setdefault("max_rows_per_unit", MOST if sampling == "rows" else None)
        return dp_sgd(noise_multiplier=noise_multiplier, public_size=public_size, sampling=sampling, **settings)

    return plan


def trainer(model: nn.Module, plan: Any = None, **more: Any) -> PrivateTrainer:
    settings = {"epsilon": 3.0, "delta": 1e-5, "public_size": PERSONS, "max_rows_per_unit": MOST} | more
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return PrivateTrainer(model, CROSS_ENTROPY, optimizer, plan or recipe(), **settings)


def chosen(person: int) -> np.ndarray:
    mine = np.flatnonzero(person == GROUPS)
    count = len(mine)
    return mine if count <= MOST else mine[[j for j in range(count) if (j + 1) * MOST // count > j * MOST // count]]


@pytest.mark.parametrize("data", [(INPUTS, TARGETS), Visits()], ids=["tensors", "dataset"])
@pytest.mark.parametrize("kind", ["mlp", "convolutions"])
def test_a_person_s_gradient_is_the_mean_of_the_rows(kind: str, data: Any) -> None:
    model = network(kind)
    objective = ModuleObjective(OfPersons(model), MeanLoss(CROSS_ENTROPY), unit=PrivacyUnit(MOST))
    records = PersonRecords(data, GROUPS, most=MOST, physical_batch_size=64)
    assert len(records) == PERSONS
    norms, total = [], torch.zeros(objective.flat.size)
    for batch in records.batches():
        found = objective.per_example(objective.theta, batch)
        norms.append(found.norms.clone())
        total += found.weighted_sum(torch.ones(len(found.norms)))
    norms = torch.cat(norms)
    expected = torch.zeros_like(total)
    for place, person in enumerate(ORDER):
        rows = chosen(person)
        loss = CROSS_ENTROPY(model(INPUTS[rows]), TARGETS[rows]).mean()
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
        assert float(norms[place]) == pytest.approx(float(gradient.norm()), rel=1e-4, abs=1e-6)
        expected += gradient
    assert torch.allclose(total, expected, atol=1e-3)
    (few,) = next(records.stream([np.array([3, 77])]))
    assert objective.per_example(objective.theta, few).norms.tolist() == pytest.approx(norms[[3, 77]].tolist(), rel=1e-5)


def test_rows_by_themselves_are_plain_records() -> None:
    records = PersonRecords((INPUTS, TARGETS), GROUPS, most=MOST, physical_batch_size=16)
    drawn = np.arange(0, PERSONS * MOST, 3)
    parts = list(next(records.stream_rows([drawn])))
    inputs = torch.cat([part[0][:, 0] for part in parts])
    expected = [row for number in drawn.tolist() for row in chosen(ORDER[number // MOST])[number % MOST :][:1]]
    assert torch.equal(inputs, INPUTS[expected]) and all(len(part[0]) <= 16 for part in parts)
    single = PersonRecords((INPUTS, TARGETS), GROUPS, most=1)
    (batch,) = single.batches()
    assert torch.equal(batch[0], INPUTS[[int(np.flatnonzero(person == GROUPS)[-1]) for person in ORDER]])
    box = PersonRecords((INPUTS[:12].reshape(4, 3, 5), TARGETS[:12].reshape(4, 3)), None, most=3)
    assert len(box) == 4 and next(iter(box.batches()))[0].shape == (4, 4, 5)


@pytest.mark.parametrize(
    ("plan", "more"),
    [
        (recipe(), {}),
        (recipe(), {"relation": "replace_one"}),
        (recipe("rows", expected_batch_size=120.0), {}),
        (recipe(), {"public_size": None}),
        (recipe(), {"max_rows_per_unit": 1}),
        (lambda noise_multiplier, public_size: full_batch_descent(
            noise_multiplier=noise_multiplier, public_size=public_size, steps=10, clipping_norm=1.0), {}),
    ],
    ids=["persons", "replaced", "rows", "private size", "one row", "full batch"],
)  # fmt: skip
def test_trainers_certify_persons(plan: Any, more: dict[str, Any]) -> None:
    model = network()
    run = trainer(model, plan, **more).fit((INPUTS, TARGETS), groups=GROUPS, progress=False)
    assert run.certificate is not None
    run.certificate.verify()
    said = flat(run.certificate)
    assert "with all their rows" in said and "contributes at most one record" not in said
    assert run.certificate.epsilon == pytest.approx(3.0, rel=1e-3)
    assert float((model(INPUTS).argmax(1) == TARGETS).float().mean()) > 0.6


def test_a_run_killed_goes_on_with_persons(tmp_path: Any) -> None:
    first = trainer(network(), checkpoint=tmp_path / "run")
    for step in first.steps((INPUTS, TARGETS), groups=GROUPS):
        first.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
        if step.number == 4:
            first.save()
            break
    again = trainer(network(), checkpoint=tmp_path / "run")
    with pytest.warns(UserWarning, match="reserved before an interruption"):
        done: list[int] = []
        for step in again.steps((INPUTS, TARGETS), groups=GROUPS, resume=True):
            again.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
            done.append(step.number)
    assert done and done[-1] == again.plan.steps  # pyright: ignore[reportOptionalMemberAccess]
    assert len(SpendLog.current().charges()) == 1


@pytest.mark.parametrize("sampling", ["poisson", pytest.param("rows", marks=pytest.mark.slow)])
def test_replay_on_neighbours(sampling: str) -> None:
    """A person added, of rows far too large, mislabelled and not finite; and the same certified as if a person were one row."""
    inputs, targets = INPUTS[:60].reshape(20, 3, 5), TARGETS[:60].reshape(20, 3)
    data = inputs, targets
    rows: list[tuple[str, Any, Any]] = [
        ("a person like another", inputs[0], 1 - targets[0]),
        ("a person of huge rows", 1e4 * inputs[1], 1 - targets[1]),
        ("a person of rows alike", inputs[2][:1].expand(3, 5).clone(), 1 - targets[2][:1].expand(3).clone()),
        ("a row that is not a number", torch.full((3, 5), torch.nan), targets[3]),
    ]
    pairs = [Pair.adding(name, data, row, target) for name, row, target in rows]

    def make(source: Any) -> PrivateTrainer:
        rows = 3 if sampling == "rows" else None
        settings: dict[str, Any] = {"expected_batch_size": 30.0 if rows else 8.0, "epochs": 1, "clipping_norm": 0.5}
        plan = recipe(sampling, max_rows_per_unit=rows, **settings)
        model = network()
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        return PrivateTrainer(
            model,
            CROSS_ENTROPY,
            sgd,
            plan,
            noise_multiplier=1.0,
            delta=1e-5,
            public_size=20,
            max_rows_per_unit=3,
            random_state=source,
        )

    result = replay(Training.of_trainer(make, data, pairs), both_ways=False)
    assert result.verdict == "consistent" and 0.3 < result.details["largest_movement"] <= 1 + 1e-6


def test_what_protects_records_is_not_added_to_what_protects_persons(tmp_path: Any) -> None:
    rows = trainer(network(), max_rows_per_unit=None, public_size=len(GROUPS)).fit((INPUTS, TARGETS), progress=False)
    assert rows.certificate is not None and not rows.certificate.of_persons
    with pytest.raises(ValueError, match="protect the same"):
        trainer(network(), spent=[rows.certificate])
    persons = trainer(network()).fit((INPUTS, TARGETS), groups=GROUPS, progress=False)
    assert persons.certificate is not None and persons.certificate.of_persons
    with pytest.raises(ValueError, match="protect the same"):
        Certificate.of_all([rows.certificate, persons.certificate])
    both = trainer(network(), epsilon=4.0, spent=[persons.certificate])
    assert both.fit((INPUTS, TARGETS), groups=GROUPS, progress=False).total_certificate.of_persons
    # nor is a run of records continued as one of persons
    first = trainer(network(), max_rows_per_unit=None, public_size=len(GROUPS), checkpoint=tmp_path / "run")
    for step in first.steps((INPUTS, TARGETS)):
        first.optimizer.step()  # pyright: ignore[reportOptionalMemberAccess]
        if step.number == 3:
            first.save()
            break
    with pytest.raises(ValueError, match="max_rows_per_unit = None, not 4"):
        trainer(network(), checkpoint=tmp_path / "run").fit((INPUTS, TARGETS), groups=GROUPS, resume=True, progress=False)


def test_what_has_no_proof_or_no_meaning_is_refused() -> None:
    model = network()
    importance = functools.partial(dpis, expected_batch_size=20.0, epochs=2, clipping_norm=1.0)
    balls = recipe("balls_and_bins", expected_batch_size=50.0)
    for plan, name in ((balls, "balls and bins"), (importance, "importance sampling")):
        with pytest.raises(ValueError, match=f"one row a person for gradient perturbation .{name}"):
            trainer(model, plan).fit((INPUTS, TARGETS), groups=GROUPS, progress=False)
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"max_rows_per_unit": None}, {"groups": GROUPS}, "Expected max_rows_per_unit with groups"),
        ({}, {}, "Expected groups"),
        ({}, {"groups": GROUPS[1:]}, "one a row"),
        ({}, {"groups": np.where(GROUPS == 3, np.nan, GROUPS)}, "groups are missing"),
        ({"max_rows_per_unit": 3}, {"groups": GROUPS}, "max_rows_per_unit=4"),
    ]
    for settings, given, said in cases:
        plan = recipe("rows", expected_batch_size=100.0) if "max_rows_per_unit=4" in said else recipe()
        with pytest.raises(ValueError, match=said):
            trainer(model, plan, **settings).fit((INPUTS, TARGETS), progress=False, **given)
    assert not SpendLog.current().charges()
    averaging = PrivateTrainer(
        model, nn.CrossEntropyLoss(), None, recipe(), epsilon=3.0, delta=1e-5, public_size=9, max_rows_per_unit=3
    )
    with pytest.raises(ValueError, match="one loss per row"):
        averaging.fit((INPUTS, TARGETS), groups=GROUPS, progress=False)


@pytest.mark.fast_cases("mechanism2", "mechanism1")
@pytest.mark.parametrize("mechanism", ["gradient", Gradient(sampling="rows"), Gradient(sampling="full", epochs=20)])
def test_estimators(mechanism: Any) -> None:
    model = DPMLPClassifier((8,), epsilon=4.0, max_rows_per_unit=MOST, classes=[0, 1], public_size=PERSONS, mechanism=mechanism)
    model.fit(INPUTS.numpy(), TARGETS.numpy(), groups=GROUPS)
    assert "with all their rows" in flat(model.certificate_) and model.score(INPUTS.numpy(), TARGETS.numpy()) > 0.6
    with pytest.raises(ValueError, match="Expected max_rows_per_unit with groups"):
        DPMLPClassifier((8,), classes=[0, 1]).fit(INPUTS.numpy(), TARGETS.numpy(), groups=GROUPS)


def test_a_record_and_a_person_of_one_row_are_the_same() -> None:
    """Shapes, norms and sums of persons with one row are those of `TorchRecords`."""
    plain, persons = TorchRecords((INPUTS, TARGETS)), PersonRecords((INPUTS, TARGETS), np.arange(len(INPUTS)), most=1)
    for (a, b), (c, d) in zip(plain.batches(), persons.batches(), strict=True):
        assert torch.equal(a, c) and torch.equal(b, d)


def test_weights_of_a_person_s_rows_add_up_to_a_millionth_less_than_one() -> None:
    """In exact arithmetic, for every number of rows: of weights in single precision, which are rounded, none makes it more."""
    for count in range(2, 600):
        rows = torch.zeros(2 * count, 1)
        ((_, (_, weights)),) = PersonRecords((rows, rows[:, 0]), np.arange(2 * count) // count, most=600).batches()
        weights = weights[0]
        assert weights.dtype == torch.float32 and int((weights > 0).sum()) == count
        assert 1 - 1.2e-6 < math.fsum(weights.ravel().tolist()) <= 1


class Texts(Dataset[Any]):
    """Each person's rows are of several lengths; one's are longer than all others'."""

    def __init__(self, people: int) -> None:
        self.rows = [
            torch.full((2 + (person + row) % 3 + 9 * (person == 5),), person + 1) for person in range(people) for row in range(3)
        ]
        self.groups = np.repeat(np.arange(people), 3)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], torch.tensor(1.0)


def _longest_first(items: list[Any]) -> Any:
    items = sorted(items, key=lambda item: -len(item[0]))
    return nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True), torch.stack([y for _, y in items])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collation_that_sorts_is_given_one_person_s_rows(workers: int) -> None:
    """Rows stay their person's, and are padded as far as that person's longest."""

    def found(people: int) -> dict[int, list[int]]:
        data = Texts(people)
        records = PersonRecords(data, data.groups, most=4, collate_fn=_longest_first, num_workers=workers)
        batch = next(iter(records.batches()))
        groups = batch if isinstance(batch, Ragged) else [(torch.arange(people), *batch)]
        rows = {int(words.max()): words for _, inputs, _ in groups for words in inputs}
        assert all(set(words.unique().tolist()) <= {0, person} for person, words in rows.items())
        return {person: words.tolist() for person, words in rows.items()}

    few, many = found(5), found(6)
    assert len(many) == 6 and len(many[6][0]) > 9
    assert {person: many[person] for person in few} == few
