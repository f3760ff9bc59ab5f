"""Persons with several rows: one vector each, exact sums, and nothing that depends on others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from dperm.mechanisms import Budget, Objective, Output
from dperm.objectives import GroupedRecords, Huber, LinearObjective, Logistic, Records, RegularisedSum, Softmax, Task
from dperm.objectives.grouped import grouped_records
from dperm.objectives.records import PrivacyUnit
from dperm.release import Channel
from helpers.losses import every_loss, labelled, smooth, unweighted

RNG = np.random.default_rng(0)
COUNTS = RNG.integers(1, 10, 40)
GROUPS = RNG.permutation(np.repeat(np.arange(40), COUNTS))
ROWS = RNG.normal(size=(len(GROUPS), 4)) / 2
SIGNS = np.where(RNG.random(len(GROUPS)) < 0.5, 1.0, -1.0)
MOST = 5
ORDER = GROUPS[np.sort(np.unique(GROUPS, return_index=True)[1])]  # of first rows


def chosen(person: int) -> np.ndarray:
    """The rows that are used of a person, as the documentation says."""
    mine = np.flatnonzero(person == GROUPS)
    count = len(mine)
    return mine if count <= MOST else mine[[j for j in range(count) if (j + 1) * MOST // count > j * MOST // count]]


def one_by_one(objective: LinearObjective, targets: np.ndarray, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradients (persons, p) and losses, each person's the mean over plain records."""
    alone = LinearObjective(objective.loss, 4, intercept_scale=0.5, radius=objective.radius)
    gradients, losses = [], []
    for person in ORDER:
        batch = next(iter(alone.records(ROWS[chosen(person)], targets[chosen(person)]).batches()))
        at_theta = alone.per_example(theta, batch)
        gradients.append(at_theta.weighted_sum(np.ones(len(batch.targets))) / len(batch.targets))
        losses.append(at_theta.losses.mean())
    return np.array(gradients), np.array(losses)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", every_loss(Huber(0.5), of=unweighted), ids=lambda loss: loss.name)
def test_a_person_is_the_mean_of_the_rows(loss: Any, sparse: bool) -> None:
    targets = labelled(loss, SIGNS)
    objective = LinearObjective(loss, 4, intercept_scale=0.5, radius=loss.ball, unit=PrivacyUnit(MOST))
    records = objective.records(sp.csr_array(ROWS) if sparse else ROWS, targets, groups=GROUPS)
    assert isinstance(records, GroupedRecords) and len(records) == 40
    theta = RNG.normal(size=objective.dimension)
    gradients, losses = one_by_one(objective, targets, theta)
    (batch,) = records.batches()
    found = objective.per_example(theta, batch)
    assert found.norms == pytest.approx(np.linalg.norm(gradients, axis=1), rel=1e-9)
    assert found.losses == pytest.approx(losses, rel=1e-9)
    factors = RNG.random(40)
    assert found.weighted_sum(factors) == pytest.approx(factors @ gradients, abs=1e-6)
    cut = np.minimum(1.0, 0.1 / np.maximum(found.norms, 1e-300))
    assert found.weighted_sum(cut, bound=0.1) == pytest.approx(cut @ gradients, abs=1e-6)
    places = np.array([3, 17, 38])
    (some,) = next(records.stream([places]))
    assert objective.per_example(theta, some).norms == pytest.approx(found.norms[places], rel=1e-12)
    assert len(records.subset(places)) == 3
    if smooth(loss):
        value, gradient, hessian = objective.evaluate(theta, records, hessian=True)
        assert (value, list(gradient)) == (pytest.approx(losses.sum()), pytest.approx(list(gradients.sum(axis=0)), abs=1e-6))
        exact, error = objective.exact_gradient(theta, records)
        assert np.linalg.norm(exact - gradient) < 1e-9 and error < 1e-8
        steps = 1e-5 * np.eye(objective.dimension)
        slopes = [(objective.evaluate(theta + s, records)[1] - objective.evaluate(theta - s, records)[1]) / 2e-5 for s in steps]
        if np.isfinite(loss.bend(1.0)):
            assert np.asarray(hessian) == pytest.approx(np.array(slopes), abs=1e-4)
        bound = RegularisedSum(objective, records).curvature_bound
        assert np.linalg.eigvalsh(np.asarray(hessian)).max() <= bound <= 40 * objective.facts.smoothness * (1 + 1e-6)


@pytest.mark.parametrize("loss", [Logistic(), Softmax(3)], ids=["logistic", "softmax"])
def test_many_models_at_once(loss: Any) -> None:
    targets = labelled(loss, SIGNS)
    objective = LinearObjective(loss, 4, intercept_scale=0.5, unit=PrivacyUnit(MOST))
    records = objective.records(ROWS, targets, groups=GROUPS)
    theta = RNG.normal(size=(3, objective.dimension))
    included = RNG.random((3, 40)) < 0.5
    (batch,) = next(records.stream([included]))
    found = objective.per_example(theta, batch)
    sums = found.weighted_sum(np.ones((3, 40)), bound=10.0)
    for model in range(3):
        gradients, _ = one_by_one(objective, targets, theta[model])
        assert found.norms[model] == pytest.approx(np.linalg.norm(gradients, axis=1) * included[model], abs=1e-9)
        assert sums[model] == pytest.approx(included[model] @ gradients, abs=1e-6)


def test_norms_do_not_depend_on_others() -> None:
    """Also of sparse rows whose products are not in order, or are, by who else is there: an adaptive clip counts norms."""
    objective, rng = LinearObjective(Logistic(), 6, data_norm=3.0, unit=PrivacyUnit(4)), np.random.default_rng(0)
    for _ in range(200):
        rows = sp.random_array((12, 6), density=0.4, rng=rng, format="csr")
        groups, theta = np.repeat(np.arange(4), 3), rng.normal(size=6)
        several, alone = [
            np.concatenate([objective.per_example(theta, batch).norms for batch in records.batches()])
            for records in (
                objective.records(rows, np.ones(12), groups=groups),
                objective.records(rows[:9], np.ones(9), groups=groups[:9]),
            )
        ]
        assert np.array_equal(several[:3], alone)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_a_person_adds_does_not_depend_on_others(sparse: bool) -> None:
    """Bounded sums are exact: to the last bit the same in any order, and a person's part the same whoever else is there."""
    objective = LinearObjective(Logistic(), 4, intercept_scale=0.5, unit=PrivacyUnit(MOST))
    theta, wrap = RNG.normal(size=5) * 3, (sp.csr_array if sparse else np.asarray)

    def bounded(persons: np.ndarray) -> np.ndarray:
        rows = np.isin(GROUPS, persons)
        (batch,) = objective.records(wrap(ROWS[rows]), SIGNS[rows], groups=GROUPS[rows]).batches()
        found = objective.per_example(theta, batch)
        assert len(found.norms) == len(persons)
        return found.weighted_sum(np.minimum(1.0, 0.2 / np.maximum(found.norms, 1e-300)), bound=0.2)

    everyone = np.arange(40)
    for person in (0, 7, 39):
        alone, without = bounded(np.array([person])), bounded(np.delete(everyone, person))
        assert np.array_equal(bounded(everyone) - without, alone)
        assert np.linalg.norm(alone) <= 0.2


def test_what_is_used_of_a_person_depends_on_that_person_alone() -> None:
    objective = LinearObjective(Logistic(), 1, unit=PrivacyUnit(4))
    mine = np.arange(10.0)[:, None] / 100
    for before, after in ((0, 0), (3, 0), (0, 7), (40, 25)):
        others = RNG.random((before + after, 1)) + 1
        groups = np.array(["b"] * before + ["me"] * 10 + ["z"] * after)
        rows = np.vstack([others[:before], mine, others[before:]])
        records = objective.records(rows, np.ones(len(rows)), groups=groups)
        assert sorted(records.rows[records.rows < 0.5] * 100) == pytest.approx([2, 4, 7, 9])  # spread evenly


def test_rows_that_say_nothing_and_persons_who_have_no_other() -> None:
    objective = LinearObjective(Logistic(), 1, unit=PrivacyUnit(3))
    rows, targets = np.array([[0.1], [0.2], [0.3], [np.inf]]), np.array([1.0, np.nan, 1.0, 1.0])
    records = objective.records(rows, targets, groups=[1, 1, 2, 3], present=np.array([True, True, False, True]))
    assert len(records) == 3  # the second and third hold nothing, and are persons
    (batch,) = records.batches()
    assert list(objective.per_example(np.zeros(1), batch).norms > 0) == [True, False, False]
    assert objective.per_example(np.zeros(1), batch).norms[0] == pytest.approx(0.05)  # of the one row that says something
    single = grouped_records(rows, targets, np.array([1, 1, 2, 3]), 1.0, 0.0, most=1, present=np.array([True, True, False, True]))
    assert type(single) is Records and len(single) == 3
    (batch,) = single.batches()
    assert list(batch.norms > 0) == [True, False, False]
    nobody = objective.records(rows[:0], targets[:0], groups=[])
    assert len(nobody) == 0 and list(nobody.batches()) == []


def test_a_million_rows_of_one_person() -> None:
    objective = LinearObjective(Logistic(), 2, unit=PrivacyUnit(8192))
    rows = np.full((1_000_000, 2), 0.5)
    records = objective.records(rows, np.ones(len(rows)), groups=np.zeros(len(rows), dtype=int))
    (batch,) = records.batches()
    assert records.size == 8192
    assert objective.per_example(np.zeros(2), batch).norms == pytest.approx([0.5 * np.sqrt(0.5)], rel=1e-5)


def test_batches_hold_whole_persons() -> None:
    counts = np.concatenate([[0, 300, 0], np.full(60, 300), [0]])
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = RNG.random((starts[-1], 3))
    records = GroupedRecords(rows, np.ones(len(rows)), 1.0, 0.5, starts=starts, most=300)
    parts = list(records.batches())
    assert len(parts) > 1 and sum(len(part.starts) - 1 for part in parts) == len(counts) == len(records)
    objective = LinearObjective(Logistic(), 3, intercept_scale=0.5, unit=PrivacyUnit(300))
    norms = np.concatenate([objective.per_example(np.ones(4), part).norms for part in parts])
    drawn = np.concatenate(
        [objective.per_example(np.ones(4), part).norms for part in next(records.stream([np.arange(len(counts))]))]
    )
    assert np.array_equal(norms, drawn) and list(np.flatnonzero(norms == 0)) == [0, 2, len(counts) - 1]


@pytest.mark.parametrize("method", [Objective(), Output()])
def test_one_row_a_person_is_a_record_to_the_last_digit(method: Any) -> None:
    one = Task(loss=Logistic(), features=4, public_size=40, unit=PrivacyUnit(1))
    plain = Task(loss=Logistic(), features=4, public_size=40)
    first = np.unique(GROUPS, return_index=True)[1]
    last = np.array([chosen_last(person) for person in ORDER])
    thetas = []
    for task, rows, groups in ((one, slice(None), GROUPS), (plain, last, None)):
        mechanism, objective = method.build(task, Budget(1e-5, 1.0))
        records = objective.records(ROWS[rows], SIGNS[rows], groups=groups)
        release = mechanism.release(objective, records, Channel.open("seed"))
        thetas.append(release.theta)
        assert release.certificate.event == method.build(plain, Budget(1e-5, 1.0))[0].event(plain.objective().facts)
    assert np.array_equal(*thetas) and len(first) == 40
    mechanism, objective = method.build(one, Budget(1e-5, 1.0))
    with pytest.raises(ValueError, match="other numbers of rows a person"):  # nobody saw to it that each has one row
        mechanism.release(objective, plain.objective().records(ROWS, SIGNS), Channel.open())


def plain_of(objective: LinearObjective, groups: list[Any]) -> Records:
    return objective.records(ROWS[: len(groups)], SIGNS[: len(groups)], groups=groups)


def chosen_last(person: int) -> int:
    """Of one row the rule takes the last."""
    return int(np.flatnonzero(person == GROUPS)[-1])


def test_what_does_not_fit_is_refused() -> None:
    objective, plain = LinearObjective(Logistic(), 4, unit=PrivacyUnit(3)), LinearObjective(Logistic(), 4)
    with pytest.raises(ValueError, match="Expected groups with max_rows_per_unit"):
        objective.records(ROWS, SIGNS)
    with pytest.raises(ValueError, match="Expected groups with max_rows_per_unit"):
        plain.records(ROWS, SIGNS, groups=GROUPS)
    for missing in (np.where(GROUPS == 3, np.nan, GROUPS), [None, *GROUPS[1:]]):
        with pytest.raises(ValueError, match="are missing"):
            objective.records(ROWS, SIGNS, groups=missing)
    assert len(plain_of(objective, [1, "1", 2**53, 2**53 + 1, 0.5])) == 5
    with pytest.raises(ValueError, match="one a row"):
        objective.records(ROWS, SIGNS, groups=GROUPS[1:])
    with pytest.raises(ValueError, match=r"at most 8,192, got 10,000"):
        LinearObjective(Logistic(), 4, unit=PrivacyUnit(10_000))
    with pytest.raises(ValueError, match="no groups with rows of 5 persons"):
        objective.records(np.zeros((5, 2, 4)), np.zeros((5, 3)))
    with pytest.raises(ValueError, match="Expected starts"):
        GroupedRecords(ROWS, SIGNS, 1.0, 0.0, starts=np.array([0, 3]), most=2)
    mechanism, mine = Objective().build(Task(loss=Logistic(), features=4, public_size=40, unit=PrivacyUnit(3)), Budget(1e-5, 1.0))
    more = LinearObjective(Logistic(), 4, unit=PrivacyUnit(5)).records(ROWS, SIGNS, groups=GROUPS)
    for records in (more, plain.records(ROWS, SIGNS)):
        with pytest.raises(ValueError, match="other numbers of rows a person"):
            mechanism.release(mine, records, Channel.open())


def test_a_privacy_unit_is_dperm_s_own() -> None:
    """One that called persons of several rows rows would be let in where nothing is proved of them."""
    with pytest.raises(TypeError, match="PrivacyUnit cannot be derived from"):

        class Quiet(PrivacyUnit):  # pyright: ignore[reportUnusedClass]
            several_rows = False  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
