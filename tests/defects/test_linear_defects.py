"""Ways to a wrong ε in linear models, accounting and the spend log, each with one test or more; one number for each kind.

Each test failed before the defect was mended.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dperm._random import Randomness
from dperm.audit import Pair, Training, replay
from dperm.audit.recording import Recorder
from dperm.data import Dataset, Schema
from dperm.estimators import DPLogisticRegression, DPMLPClassifier, model_from_json, model_to_json
from dperm.gradient import SGD, Clip, Constant, FullBatch, Plan, Poisson
from dperm.mechanisms import (
    Budget,
    Gradient,
    GradientPerturbation,
    Objective,
    ObjectivePerturbation,
    OutputPerturbation,
    minimiser,
)
from dperm.objectives import Huber, LinearObjective, Logistic, RegularisedSum
from dperm.release import Channel, GaussianNoise, SpendLog, SystemSource, UnpaidReleaseError
from dperm.solvers import newton

BUDGET = Budget(1e-5)  # noise is set by hand


def descent(**changes: Any) -> GradientPerturbation:
    parts: dict[str, Any] = {
        "sampler": FullBatch(),
        "bounding": Clip(0.5),
        "noise": Constant(4.0),
        "update": SGD(0.5),
        "steps": 2,
        "public_size": 100,
    }
    return GradientPerturbation(budget=BUDGET, plan=Plan(**(parts | changes)))


def queries(mechanism: GradientPerturbation, objective: LinearObjective, rows: Any, targets: Any, **settings: Any) -> list[Any]:
    """Queries before their noise; the same draws for the same number of records."""
    recorder = Recorder(SystemSource(Randomness.fixed(1)))
    mechanism.release(objective, objective.records(rows, targets, **settings), Channel(recorder))
    return recorder.recording.releases


# 1


def repeated_entries(records: int) -> tuple[Any, np.ndarray]:
    """Records of one feature, and a last one that holds 10⁶ − 10⁶ in it, as two entries of the same column: a row of zeros."""
    data = np.append(np.ones(records), [1e6, -1e6])
    indices = np.zeros(records + 2, dtype=np.int32)
    rows = sp.csr_matrix((data, indices, np.append(np.arange(records + 1), records + 2)), shape=(records + 1, 1))
    return rows, np.append(np.ones(records), -1.0)


@pytest.mark.parametrize("flagged", [True, False], ids=["said to be canonical", "not said"])
@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.csr_array])
def test_a_record_with_repeated_entries_is_what_they_add_up_to(kind: Any, flagged: bool) -> None:
    objective = LinearObjective(Logistic(), 1, public_size=400)
    rows, targets = repeated_entries(400)
    rows = kind(rows)
    if flagged:
        rows.has_canonical_format = True
    with_it = queries(descent(), objective, rows, targets)[0].query
    without = queries(descent(), objective, rows[:400], targets[:400])[0].query
    assert with_it == pytest.approx(without)  # the record is a row of zeros
    batch = objective.records(rows, targets).take(np.arange(401))
    assert batch.rows.nnz <= 401 and np.abs(batch.rows.toarray()[400]).max() == 0


@pytest.mark.filterwarnings("ignore:epsilon = 1e")
def test_also_through_the_front_door() -> None:
    rows, targets = repeated_entries(400)
    for table in (rows, rows.tocsc(), rows.tocoo()):  # what is converted keeps its repetitions
        model = DPLogisticRegression(epsilon=1e4, delta=1e-5, classes=[-1, 1], mechanism=Objective(strong_convexity=1.0))
        model.fit(table, targets)
        assert model.coef_[0, 0] + model.intercept_[0] > 1  # 400 records pull one way; the repeated entries used to turn it about


def test_malformed_rows_are_refused_before_any_charge() -> None:
    rows = sp.csr_matrix((np.ones(3), np.array([0, 1, 2]), np.array([0, 1, 3])), shape=(2, 3))
    rows.indices[2] = 7
    with pytest.raises(ValueError, match="indices"):
        LinearObjective(Logistic(), 3).records(rows, np.ones(2))
    assert SpendLog.current().charges() == []


# 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sampler", [FullBatch(), Poisson(0.999999)], ids=["full", "sampled"])
def test_sums_over_many_records_are_exact(dtype: Any, sampler: Any) -> None:
    """In single precision a query moved 23 sensitivities at 10⁶ records. Now one record more moves it by that record, exactly."""
    count = 1_000_000
    rows = np.full((count, 2), 0.6, dtype=dtype)
    rows[:, 1] = np.linspace(0.1, 0.3, count)
    objective = LinearObjective(Logistic(), 2, public_size=count)
    mechanism = descent(sampler=sampler, steps=1, public_size=count)
    with_it = queries(mechanism, objective, rows, np.ones(count))
    without = queries(mechanism, objective, rows, np.ones(count), present=np.arange(count) != 7)
    moved = with_it[0].query - without[0].query
    assert 0 < np.linalg.norm(moved) <= with_it[0].sensitivity
    alone = queries(mechanism, objective, rows[7:8], np.ones(1))[0].query
    assert np.linalg.norm(moved - alone) <= 2 * np.sqrt(2) * with_it[0].step  # both are rounded to the release's grid


def test_the_order_of_records_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(30_000, 5)) * 10.0 ** rng.uniform(-3, 3, (30_000, 1)), rng.choice([-1.0, 1.0], 30_000)
    objective = LinearObjective(Logistic(), 5, data_norm=2.0, intercept_scale=0.3, public_size=30_000)
    order = rng.permutation(30_000)
    for storage in (np.asarray, sp.csr_array, np.asfortranarray):
        first = queries(descent(), objective, storage(rows), targets)
        second = queries(descent(), objective, storage(rows[order]), targets[order])
        for a, b in zip(first, second, strict=True):
            assert np.array_equal(a.query, b.query)


def test_replay_sees_no_more_than_one_sensitivity() -> None:
    rng = np.random.default_rng(0)
    rows = (0.7 + 0.01 * rng.normal(size=(200_000, 2))).astype(np.float32)
    objective = LinearObjective(Logistic(), 2, public_size=200_000)
    pair = Pair.adding("one more", (rows, np.ones(len(rows))), [0.7, 0.7], -1.0)
    result = replay(replace(Training.of_mechanism(descent(), objective), replay_pairs=[pair]))
    assert result.verdict == "consistent" and 0.5 < result.details["largest_movement"] <= 1.0


# 3


def one_hot(records: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are the same again and again, sorted by label: their sums in double precision go astray the most."""
    rows = np.zeros((records, 4), dtype=np.float32)
    rows[np.arange(records), np.arange(records) * 4 // records] = 1.0
    return rows, np.where(np.arange(records) < records * 0.37, 1.0, -1.0)


@pytest.mark.parametrize("records", [1000, 200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_the_certified_residual_is_the_true_one(records: int) -> None:
    rows, targets = one_hot(records)
    objective = LinearObjective(Logistic(), 4, intercept_scale=0.5, strong_convexity=1.0, public_size=records)
    problem = RegularisedSum(objective, objective.records(rows, targets), np.array([3.0, -1.0, 0.5, 2.0, 1.0]))
    theta = newton.minimise(problem, 1e-6).theta
    gradient, error = problem.certified_gradient(theta)
    # rows of a kind have one gradient: few numbers, with 60 digits each
    from mpmath import mp, mpf

    mp.dps = 60
    exact = [mpf(float(v)) for v in theta + 0 * theta]
    total = [mpf(float(t)) + v for t, v in zip(problem.linear, exact, strict=True)]
    batch = objective.records(rows, targets).take(np.array([np.argmax(rows[:, j] > 0) for j in range(4)]))
    for j in range(4):
        value = mpf(float(batch.rows[j, j] * batch.units[j]))
        for label in (1.0, -1.0):
            count = int(((rows[:, j] > 0) & (targets == label)).sum())
            t = value * exact[j] + mpf(0.5) * exact[4]
            slope = -mpf(label) / (1 + mp.exp(mpf(label) * t))
            total[j] += count * slope * value
            total[4] += count * slope * mpf(0.5)
    distance = float(mp.sqrt(sum((mpf(float(g)) - t) ** 2 for g, t in zip(gradient, total, strict=True))))
    assert distance <= error  # the bound holds …
    assert error <= 1e-14 * records + 1e-12  # … and is worth something: 1e-8 at a million records


@pytest.mark.parametrize("records", [1000, pytest.param(1_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [ObjectivePerturbation, OutputPerturbation])
def test_tied_rows_in_order_do_not_stop_the_solver(records: int, make: Any) -> None:
    rows, targets = one_hot(records)
    objective = LinearObjective(Logistic(), 4, intercept_scale=0.5, public_size=records)
    mechanism = make.calibrate(objective.facts, 1.0, 1e-5)
    release = mechanism.release(objective, objective.records(rows, targets), Channel.open())
    assert np.isfinite(release.theta).all()


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.1)], ids=repr)
@pytest.mark.parametrize("radius", [None, 0.7])
def test_descent_arrives_where_newton_does_not(loss: Any, radius: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The minimiser is reached on every data set: by descent, whatever Newton's method makes of it."""
    rng = np.random.default_rng(0)
    rows, targets = rng.normal(size=(60, 3)), rng.choice([-1.0, 1.0], 60)
    objective = LinearObjective(loss, 3, public_size=60, radius=radius)
    mechanism = OutputPerturbation(budget=BUDGET, noise_multiplier=1e-9, strong_convexity=2.0)
    right = newton.minimise(
        RegularisedSum(objective.with_strong_convexity(2.0), objective.records(rows, targets)), 1e-8, radius
    ).theta
    lost = newton.Solution(np.full(3, 100.0), np.inf, 0, 0)
    monkeypatch.setattr(minimiser, "approach", lambda *_: lost)
    found = mechanism.release(objective, objective.records(rows, targets), Channel.open()).theta
    assert np.linalg.norm(found - right) <= mechanism.residual(objective.facts) + 1e-6  # and the release's grid


def test_more_records_than_were_reckoned_with_are_refused_before_any_charge() -> None:
    objective = LinearObjective(Logistic(), 1, size_limit=1000)
    mechanism = ObjectivePerturbation.calibrate(objective.facts, 1.0, 1e-5)
    records = objective.records(np.ones((1001, 1)), np.ones(1001))
    with pytest.raises(ValueError, match="at most 1,000 records"):
        mechanism.release(objective, records, Channel.open())
    with pytest.raises(ValueError, match="Expected tolerance >="):
        replace(mechanism, tolerance=1e-15).event(objective.facts)
    assert SpendLog.current().charges() == []


# 7


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 1.0, 1e38])
def test_single_precision_rows_near_the_ends_of_their_range(scale: float) -> None:
    rng = np.random.default_rng(0)
    rows = (rng.uniform(-3, 3, size=(50, 3)) * scale).astype(np.float32)
    rows[3] = np.finfo(np.float32).max
    objective = LinearObjective(Logistic(), 3, data_norm=1.0, intercept_scale=0.5, public_size=50)
    batch = objective.records(rows, np.ones(50)).take(np.arange(50))
    lengths = np.linalg.norm(batch.rows * batch.units[:, None], axis=1)
    there = batch.norms > 0
    assert not there[3] and there.sum() == (0 if scale == 1e38 else 49)  # 10³⁰ bounds and more count as infinite
    assert np.all(lengths <= 1) and np.all(np.hypot(lengths, 0.5)[there] <= batch.norms[there])
    result = replay(
        replace(
            Training.of_mechanism(descent(), objective),
            replay_pairs=[Pair.adding("the largest number", (rows, np.ones(50)), rows[3], -1.0)],
        )
    )
    assert result.verdict == "consistent", str(result)


@pytest.mark.parametrize("bound", [1e-165, 5e-324, 1e-31, 1e31, 1e300])
def test_bounds_that_doubles_cannot_work_with_are_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="data_norm between 1e-30 and 1e"):
        LinearObjective(Logistic(), 3, data_norm=bound)
    with pytest.raises(ValueError, match="intercept_scale between"):
        LinearObjective(Logistic(), 3, intercept_scale=bound)


@pytest.mark.parametrize("bound", [1e-30, 1e-12, 1e12, 1e30])
def test_the_smallest_and_largest_bounds_hold(bound: float) -> None:
    objective = LinearObjective(Logistic(), 3, data_norm=bound, public_size=40)
    mechanism = descent(bounding=Clip(0.5 * bound))
    result = replay(Training.of_mechanism(mechanism, objective))
    assert result.verdict == "consistent" and result.details["largest_movement"] > 0.9, str(result)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "read again"])
@pytest.mark.parametrize("storage", ["array", "mapped", "csr"])
def test_rows_that_change_after_they_were_measured(kept: bool, storage: str, tmp_path: Path) -> None:
    """They used to enter at 1,000 times the length that was charged for."""
    if storage == "mapped":
        np.save(tmp_path / "rows.npy", np.full((20, 2), 0.5))
        rows: Any = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    else:
        rows = np.full((20, 2), 0.5)
        rows = sp.csr_array(rows) if storage == "csr" else rows
    targets = np.ones(20)
    objective = LinearObjective(Logistic(), 2, public_size=20)
    records = objective.records(rows, targets, keep=kept)
    entries = rows.data if storage == "csr" else rows
    entries[...] = 1000.0
    targets[...] = 1e9
    recorder = Recorder()
    descent().release(objective, records, Channel.open(recorder))
    assert np.linalg.norm(recorder.recording.releases[0].query) <= 20 * 0.5
    batch = records.take(np.arange(20))
    table = batch.rows.toarray() if storage == "csr" else batch.rows
    assert np.all(np.linalg.norm(table, axis=1) * batch.units <= 1)
    assert np.all(np.abs(batch.targets) == 1)


def test_a_foreign_bounding_cannot_let_more_through_than_its_bound() -> None:
    class Careless(Clip):
        def factors(self, norms: Any) -> Any:
            return 1e3 + 0 * norms

    objective = LinearObjective(Logistic(), 2, public_size=20)
    result = replay(Training.of_mechanism(descent(bounding=Careless(0.5)), objective))
    assert result.details["largest_movement"] <= 1.0, str(result)


# A channel


def test_a_continued_run_releases_what_it_reserved(tmp_path: Path) -> None:
    """`resume` without `reserve` released 1,001 times what was charged once."""
    from dperm.privacy import Gaussian, SelfComposed

    log, event = SpendLog(tmp_path / "log.db"), SelfComposed(Gaussian(2.0), 10)
    first = Channel.open(log=log)
    charge = first.charge(event, "test", continuable=True)
    first.reserve(6, 10)
    released = 0
    for _ in range(4):
        copy = Channel.open(log=log)
        copy.resume(charge, event)
        with pytest.raises(UnpaidReleaseError, match="reserve"):
            copy.release(np.zeros(2), GaussianNoise(1.0, 2.0))
        start, stop = copy.reserve(3, 10)
        for _ in range(stop - start):
            copy.release(np.zeros(2), GaussianNoise(1.0, 2.0))
            released += 1
        with pytest.raises(UnpaidReleaseError, match="reserve"):
            copy.release(np.zeros(2), GaussianNoise(1.0, 2.0))
    assert released == 4


def blobs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 2
    return rng.normal(size=(120, 3)) + y[:, None], y


def test_a_refused_refit_changes_nothing() -> None:
    X, y = blobs()
    for model in (
        DPLogisticRegression(classes=[0, 1]),
        DPMLPClassifier(classes=[0, 1], mechanism=Gradient(epochs=1.0), public_size=len(X)),
    ):
        model.fit(X, y)
        before = {name: np.asarray(value) for name, value in vars(model).items() if name.endswith("_")}
        model.set_params(classes=[0, 1, 2, 3, 4], label=7)  # refused late
        with pytest.raises((ValueError, TypeError), match="label"):
            model.fit(X[:, :1], y)
        model.set_params(classes=[5, 6], label="")
        with pytest.raises(ValueError, match="labels among classes"):
            model.fit(X[:, :1], y)
        after = {name: np.asarray(value) for name, value in vars(model).items() if name.endswith("_")}
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name]) for name in ("classes_", "n_features_in_"))


def test_a_model_is_saved_with_what_it_was_fitted_with() -> None:
    X, y = blobs()
    model = DPLogisticRegression(epsilon=np.float32(1), data_norm=2.0, classes=[0, 1]).fit(X, y)
    model.set_params(epsilon=0.01, data_norm=50.0)
    again, _ = model_from_json(model_to_json(model))
    assert again.get_params()["epsilon"] == 1.0 and again.get_params()["data_norm"] == 2.0
    assert again.certificate_ == model.certificate_ and type(again.certificate_.target_epsilon) is float


# 4


@pytest.mark.parametrize("mechanism", ["objective", "output", "gradient"])
def test_a_record_with_a_gap_is_still_one_of_a_public_number(mechanism: str, tmp_path: Path) -> None:
    """Replacing a record by one without a value, or without a label, changed n, which replace-one calls public."""
    schema = Schema.from_dict(
        {
            "name": "people",
            "target": "y",
            "missing": "drop",
            "classes": ["a", "b"],
            "columns": [{"name": "x", "type": "number", "range": [0, 1]}, {"name": "y", "type": "label"}],
        }
    )
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.random(50).round(3), "y": rng.choice(["a", "b"], 50)})
    facts = []
    for column in (None, "x", "y"):
        table = frame.copy()
        if column:
            table.loc[7, column] = None
        people = Dataset.of(table.astype(object), schema)
        assert len(people) + people.absent == 50
        model = DPLogisticRegression(
            epsilon=5.0, mechanism=mechanism, relation="replace_one", classes=["a", "b"], random_state=Recorder()
        ).fit(people.features, people.targets, absent=people.absent)
        facts.append((model.certificate_.event, model.certificate_.public_facts["public_size"]))
    assert facts == [facts[0]] * 3 and facts[0][1] == 50
    with pytest.raises(ValueError, match="absent"):
        DPLogisticRegression().fit(np.ones((4, 1)), [0, 1, 0, 1], absent=-1)


def test_absent_records_contribute_nothing_and_are_not_drawn_for_others() -> None:
    X, y = blobs()
    settings = {"mechanism": Gradient(sampling="full", epochs=2), "relation": "replace_one", "classes": [0, 1]}
    queries = []
    for rows, absent in ((X, 5), (sp.csr_matrix(X), 5), (np.vstack([X, np.zeros((5, 3))]), 0)):
        recorder = Recorder(SystemSource(Randomness.fixed(1)))
        labels = np.append(y, [0] * (rows.shape[0] - len(y)))
        DPLogisticRegression(random_state=recorder, **settings).fit(rows, labels, absent=absent)
        queries.append(recorder.recording.releases[0].query)
    assert np.array_equal(queries[0], queries[1])
    assert not np.array_equal(queries[0], queries[2])  # a row of zeros with a label has an intercept's gradient


# 6


class Inherited(Logistic):
    """A stranger's: three times as steep, with the constants and the sharp theorem of its parent."""

    def value(self, t: Any, y: Any) -> Any:
        return 3 * super().value(t, y)

    def slope(self, t: Any, y: Any) -> Any:
        return 3 * super().slope(t, y)

    def curvature(self, t: Any, y: Any) -> Any:
        return 3 * super().curvature(t, y)


class Poisson1(Logistic):
    """e^t − yt: valid on a ball only, and accepted without one: stated L = 5, a gradient at the minimiser was 25."""

    def value(self, t: Any, y: Any) -> Any:
        return np.exp(t) - y * t

    def slope(self, t: Any, y: Any) -> Any:
        return np.exp(t) - y

    def curvature(self, t: Any, y: Any) -> Any:
        return np.exp(t)

    def lipschitz(self, data_norm: float) -> float:
        return data_norm * (np.exp(data_norm) + 1)

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 * np.exp(data_norm)

    def at_zero(self) -> float:
        return 2 - np.exp(-1.0)


class Honest(Logistic):
    """Half a logistic loss, with constants that are true and not the least."""

    def value(self, t: Any, y: Any) -> Any:
        return super().value(t, y) / 2

    def slope(self, t: Any, y: Any) -> Any:
        return super().slope(t, y) / 2

    def curvature(self, t: Any, y: Any) -> Any:
        return super().curvature(t, y) / 2


class Crooked(Logistic):
    """Another slope than its values have."""

    def slope(self, t: Any, y: Any) -> Any:
        return super().slope(t, y) * 0.5


def test_constants_that_a_foreign_loss_does_not_keep_are_refused() -> None:
    for loss, text in (
        (Inherited(), "slope of at most"),
        (Poisson1(), "slope of at most|not finite"),
        (Crooked(), "another slope"),
    ):
        with pytest.raises(ValueError, match=text):
            LinearObjective(loss, 3, data_norm=1.0)
    assert LinearObjective(Poisson1(), 3, data_norm=1.0, radius=1.0).radius == 1.0  # where its constants hold


def test_a_foreign_loss_has_no_sharp_bound_and_is_named() -> None:
    objective = LinearObjective(Honest(), 3, data_norm=1.0, public_size=50)
    ours = LinearObjective(Logistic(), 3, data_norm=1.0, public_size=50)
    assert objective.facts.loss is None and ours.facts.loss == "logistic"
    mechanism = ObjectivePerturbation.calibrate(objective.facts, 1.0, 1e-5)
    assert mechanism.noise_std > ObjectivePerturbation.calibrate(ours.facts, 1.0, 1e-5).noise_std
    X, y = np.random.default_rng(0).normal(size=(50, 3)), np.where(np.arange(50) % 2, 1.0, -1.0)
    certificate = mechanism.release(objective, objective.records(X, y), Channel.open()).certificate
    assert any("Honest" in item.text for item in certificate.assumptions)


def test_foreign_parts_of_a_plan_are_named() -> None:
    class Mine(Clip):
        pass

    for bounding, named in ((Clip(0.5), False), (Mine(0.5), True)):
        texts = [item.text for item in descent(bounding=bounding).strangers()]
        assert any("Mine" in text for text in texts) is named
