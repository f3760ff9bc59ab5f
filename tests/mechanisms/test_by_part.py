"""Item 22: models by part, what each record does, and planted defects that replay must find."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import Pair, Training, replay
from dperm.estimators import DPByPart, DPLogisticRegression
from dperm.gradient import FullBatch, Poisson
from dperm.mechanisms import Budget, ByPart, Gradient, GradientPerturbation, Mechanism, Objective, Output
from dperm.objectives import GroupedRecords, LinearObjective, Logistic, PrivacyUnit, Records, Task
from dperm.privacy import Composed, Disjoint, Gaussian, Relation, epsilon
from dperm.privacy.accountants.privacy_filters import Filter
from dperm.release import Channel, SpendLog, UnpaidReleaseError
from dperm.release.ledger import thrown_away
from helpers.catalogue.common import BUDGET, SIZE, plan

TASK = Task(loss=Logistic(), features=3, classes=2, public_size=SIZE, intercept_scale=0.5)
PARTS = [Output().build(TASK, BUDGET)] * 2
OBJECTIVE = PARTS[0][1]
rng = np.random.default_rng(5)


def rows_in(part: int, count: int) -> np.ndarray:
    rows = rng.uniform(-0.5, 0.5, (count, 3))
    rows[:, :2] = -np.abs(rows[:, :2])
    if part >= 0:
        rows[:, part] = 0.4
    return rows


DATA = (np.concatenate([rows_in(0, 6), rows_in(1, 5), rows_in(-1, 4)]), rng.choice([-1.0, 1.0], 15))


def pair(row: Any) -> Pair:
    return Pair.adding("one more", DATA, np.array(row), 1.0)


PAIRS = [pair([0.9, -0.1, 0.2]), pair([-0.1, 0.9, 0.2]), pair([0.5, 0.6, 0.3]), pair([-0.5, -0.6, 0.3])]


def attacked(mechanism: ByPart) -> Any:
    return replay(Training.of_mechanism(mechanism, OBJECTIVE), PAIRS)


def test_a_record_moves_one_model_by_no_more_than_is_charged() -> None:
    result = attacked(ByPart.of(PARTS, (0, 1)))
    assert result.verdict == "consistent", result
    assert result.details["largest_movement"] > 0.02


def test_parts_have_no_event_for_facts_of_another_objective() -> None:
    mechanism = ByPart.of(PARTS, (0, 1))
    mechanism.event(OBJECTIVE.facts)
    for changes in ({"relation": Relation.REPLACE_ONE}, {"data_norm": 2.0}, {"dimension": 5}):
        with pytest.raises(ValueError, match="facts of the objectives"):
            mechanism.event(replace(OBJECTIVE.facts, **changes))


@dataclass(frozen=True, kw_only=True)
class InAllThatItNames(ByPart):
    """Planted: a record with two positive entries is in two parts."""

    def split(self, records: Records) -> list[np.ndarray]:
        return [np.flatnonzero(records.places([column]) == 0) for column in self.columns]


@dataclass(frozen=True, kw_only=True)
class ByRank(ByPart):
    """Planted: which part a record is in depends on the others: on whether there are many."""

    def split(self, records: Records) -> list[np.ndarray]:
        place = records.places(self.columns)
        if len(records) > len(DATA[1]):
            place = np.where(place >= 0, 1 - place, place)
        return [np.flatnonzero(place == number) for number in range(len(self.columns))]


@dataclass(frozen=True, kw_only=True)
class TheWholeForEach(ByPart):
    """Planted: each part's model is trained on all records."""

    def split(self, records: Records) -> list[np.ndarray]:
        return [np.arange(len(records))] * len(self.columns)


@dataclass(frozen=True, kw_only=True)
class EmptyOnesLeftOut(ByPart):
    """Planted: no model for a part without records, which tells that there are none."""

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[np.ndarray, dict[str, Any]]:
        members = self.split(records)
        doors = channel.split(self.event(objective.facts), members)
        parts = zip(self._parts, members, doors, strict=True)
        return np.stack([part.train(own, records.subset(mine), door)[0] for (part, own), mine, door in parts if len(mine)]), {}


@dataclass(frozen=True, kw_only=True)
class OnePartTwice(ByPart):
    """Planted: the first part's records are released twice, by both doors."""

    def split(self, records: Records) -> list[np.ndarray]:
        return [super().split(records)[0]] * len(self.columns)


@pytest.mark.parametrize(
    ("defect", "kind"),
    [(InAllThatItNames, "parts"), (ByRank, "parts"), (TheWholeForEach, "parts"), (OnePartTwice, "parts")],
)
def test_planted_defects_are_found(defect: type[ByPart], kind: str) -> None:
    result = attacked(defect.of(PARTS, (0, 1)))
    assert result.verdict == "refuted" and kind in result.details["kinds"], (defect.__doc__, result.details["kinds"])


def test_a_part_that_is_skipped_where_it_is_empty_is_found() -> None:
    nobody = (rows_in(0, 6), rng.choice([-1.0, 1.0], 6))
    first = Pair.adding("the first of its part", nobody, np.array([-0.2, 0.8, 0.1]), 1.0)
    honest = replay(Training.of_mechanism(ByPart.of(PARTS, (0, 1)), OBJECTIVE), [first])
    assert honest.verdict == "consistent", honest
    assert honest.details["largest_movement"] > 0.02  # the record moves an empty part's model
    found = replay(Training.of_mechanism(EmptyOnesLeftOut.of(PARTS, (0, 1)), OBJECTIVE), [first])
    assert found.verdict == "refuted" and "releases" in found.details["kinds"], found


def test_the_whole_is_charged_once_before_the_first_part(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SpendLog(tmp_path / "log.db")
    mechanism = ByPart.of(PARTS, (0, 1))
    seen: list[list[Any]] = []

    def train(self: Mechanism, objective: LinearObjective, records: Records, channel: Channel) -> Any:
        seen.append([charge.event for charge in log.charges()])
        return original(self, objective, records, channel)

    kind = type(PARTS[0][0])
    original = kind.train
    monkeypatch.setattr(kind, "train", train)
    release = mechanism.release(OBJECTIVE, OBJECTIVE.records(*DATA), Channel.open(log=log))
    event = mechanism.event(OBJECTIVE.facts)
    assert seen == [[event], [event]]
    assert isinstance(event, Disjoint)
    assert release.theta.shape == (2, OBJECTIVE.dimension)
    assert release.certificate.epsilon == epsilon(event.parts[0], BUDGET.delta)
    keys = {assumption.key: assumption.responsible for assumption in release.certificate.assumptions}
    assert keys["parts are public"] == "caller"
    assert keys["disjoint"] == "library"
    release.certificate.verify()


def test_importance_sampling_by_part_stays_within_each_parts_filter() -> None:
    estimator = DPLogisticRegression(
        epsilon=2.0, classes=[-1, 1], mechanism=Gradient(sampling="importance", epochs=2, expected_batch_size=3)
    )
    mechanism, objective = DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=9).mechanism_for(3)
    result = replay(Training.of_mechanism(mechanism, objective), PAIRS, both_ways=False)
    assert result.verdict == "consistent", result
    assert result.details["largest_movement"] > 0.9
    taken: dict[Filter, list[Any]] = {}

    def charge(self: Filter, event: Any) -> float:
        taken.setdefault(self, []).append(event)
        return original(self, event)

    original = Filter.charge
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Filter, "charge", charge)
        mechanism.release(objective, objective.records(*DATA), Channel.open(0))
    charged = mechanism.event(objective.facts)
    assert [held.charged for held in taken] == list(charged.parts)  # a filter for each part, of what this part was charged
    for events in taken.values():
        spent = Composed(tuple(events))  # what was chosen on the way costs no more than what was charged
        assert epsilon(spent, 1e-5) <= epsilon(charged, 1e-5) * (1 + 1e-9)


def test_the_channel_of_a_part_keeps_nothing_of_its_own_in_the_log() -> None:
    event = Disjoint((Gaussian(3.0), Gaussian(5.0)))
    with thrown_away() as log:
        whole = Channel.open(0, log=log)
        whole.charge(event, "test")
        first, second = whole.split(event, [np.arange(3), np.arange(3, 5)])
        assert first.parts() == second.parts() == []
        for part in (first, second):
            with pytest.raises(UnpaidReleaseError, match="no charge of its own"):
                part.reserve(1, 1)
        assert len(log.charges()) == 1
        continued = Channel.open(0, log=log)
        with pytest.raises(ValueError, match="cannot be continued"):
            continued.charge(event, "test", continuable=True)
        assert len(log.charges()) == 1


def test_each_part_is_trained_as_it_would_be_alone() -> None:
    """Without noise to speak of, each model is that of its records."""
    budget = Budget(1e-5, 1e9)
    parts = [Output().build(TASK, budget)] * 2
    mechanism = ByPart.of(parts, (0, 1))
    theta = mechanism.release(parts[0][1], parts[0][1].records(*DATA), Channel.open(0)).theta
    place = parts[0][1].records(*DATA).places((0, 1))
    assert np.bincount(place + 1).tolist() == [4, 6, 5]
    for number, (mechanism_alone, objective) in enumerate(parts):
        mine = (DATA[0][place == number], DATA[1][place == number])
        alone = mechanism_alone.release(objective, objective.records(*mine), Channel.open(0)).theta
        assert np.allclose(theta[number], alone, atol=0.5)
    assert not np.allclose(theta[0], theta[1], atol=5.0)


@pytest.mark.parametrize("build", [Output(), Objective()])
def test_all_parts_may_be_empty(build: Any) -> None:
    parts = [build.build(TASK, BUDGET)] * 2
    nobody = (rows_in(-1, 3), np.array([1.0, -1.0, 1.0]))
    release = ByPart.of(parts, (0, 1)).release(parts[0][1], parts[0][1].records(*nobody), Channel.open(0))
    assert np.isfinite(release.theta).all()


@pytest.mark.fast_cases("sampler0")
@pytest.mark.parametrize("sampler", [FullBatch(), Poisson(0.3)])
def test_each_part_has_draws_of_its_own(sampler: Any) -> None:
    objective = LinearObjective(Logistic(), 3, data_norm=1.0, intercept_scale=0.5, public_size=SIZE)
    part = GradientPerturbation.calibrate(lambda noise: plan(noise, sampler=sampler), objective.facts, 4.0, 1e-5)
    mechanism = ByPart.of([(part, objective)] * 2, (0, 1))
    honest = replay(Training.of_mechanism(mechanism, objective), PAIRS)
    assert honest.verdict == "consistent", honest
    assert honest.details["largest_movement"] > 0.9
    twice = InAllThatItNames.of([(part, objective)] * 2, (0, 1))
    assert replay(Training.of_mechanism(twice, objective), PAIRS).verdict == "refuted"


def test_a_persons_rows_are_in_one_part_together() -> None:
    rows = np.array([[1, 0, 0], [1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1.0]])
    objective = LinearObjective(Logistic(), 3, unit=PrivacyUnit(2))
    records = objective.records(rows, np.ones(6), groups=np.array([7, 7, 8, 8, 9, 10]))
    assert isinstance(records, GroupedRecords)
    assert records.places((0, 1)).tolist() == [0, -1, 1, -1]  # who names two parts is in none
    changed = objective.records(rows[[3, 4, 5, 0, 1, 2]], np.ones(6), groups=np.array([8, 9, 10, 7, 7, 8]))
    assert sorted(changed.places((0, 1)).tolist()) == [-1, -1, 0, 1]


def test_places_follow_from_each_row_alone() -> None:
    rows = rng.normal(size=(400, 5))
    rows[3] = np.nan
    rows[4, 1] = np.inf
    objective = LinearObjective(Logistic(), 5)
    together = objective.records(rows, np.ones(400)).places((1, 3, 4))
    alone = [int(objective.records(rows[[at]], np.ones(1)).places((1, 3, 4))[0]) for at in range(400)]
    assert together.tolist() == alone
    assert together[3] == together[4] == -1
    named = rows[:, [1, 3, 4]]
    positive = np.where(named.max(axis=1) > 1e-3, named.argmax(axis=1), -1)
    kept = np.isfinite(rows).all(axis=1) & (np.abs(named.max(axis=1)) > 1e-3)
    assert together[kept].tolist() == positive[kept].tolist()
    import scipy.sparse as sp

    sparse = objective.records(sp.csr_array(np.nan_to_num(rows, posinf=0.0)), np.ones(400)).places((1, 3, 4))
    assert sparse[kept].tolist() == together[kept].tolist()
    assert objective.records(rows[:0], np.ones(0)).places((1, 3)).tolist() == []


def test_what_is_refused_by_part() -> None:
    replaced = [Output().build(replace(TASK, relation=Relation.REPLACE_ONE), BUDGET)] * 2
    with pytest.raises(ValueError, match="take its number of records for public"):
        ByPart.of(replaced, (0, 1))
    for columns in ((0, 0), (0, 3), (0,), (-1, 1)):
        with pytest.raises(ValueError, match=r"Expected (different columns|a mechanism|columns >= 0)"):
            ByPart.of(PARTS, columns)
    with pytest.raises(ValueError, match="one shape"):
        ByPart.of([PARTS[0], Output().build(replace(TASK, data_norm=2.0), BUDGET)], (0, 1))
    mechanism = ByPart.of(PARTS, (0, 1))
    other = replace(OBJECTIVE, data_norm=2.0)
    with pytest.raises(ValueError, match="that the parts are trained by"):
        mechanism.release(other, other.records(*DATA), Channel.open(0))


def test_beside_other_releases_the_certificate_composes_with_one_part() -> None:
    from dperm.privacy import Certificate

    release = ByPart.of(PARTS, (0, 1)).release(OBJECTIVE, OBJECTIVE.records(*DATA), Channel.open(0))
    ranges = Certificate.issue(mechanism="ranges", event=Gaussian(9.0), delta=1e-5)
    part = PARTS[0][0].event(PARTS[0][1].facts)
    whole = Certificate.of_all([ranges, release.certificate])
    assert whole.epsilon == pytest.approx(epsilon(Composed((Gaussian(9.0), part)), 1e-5), rel=1e-9)
