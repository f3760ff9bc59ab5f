"""Records in parts: the run on them is the run on all rows in memory, and nothing else is let through."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier

import dperm.distributed.table
from dperm.estimators import DPLogisticRegression, DPRidge, DPSearch
from dperm.gradient import SGD, AdaptiveClip, Clip, Constant, FullBatch, Normalise, Plan, Poisson
from dperm.gradient.policy import descend
from dperm.gradient.sampling import BallsAndBins
from dperm.mechanisms import AccuracyFirst, Budget, Gradient, GradientPerturbation, Objective, Output, OutputPerturbation
from dperm.objectives import LinearObjective, Logistic, PartedRecords, PartsChangedError, RegularisedSum, Softmax
from dperm.objectives.sums import RunningSum
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel, SpendLog, spend_log
from helpers.engines import ChangingEngine, LocalEngine, cut
from helpers.estimators import linear_estimators, made, parameters

N, D = 301, 7
SIZES = [[301], [100, 0, 200, 1], [7] * 43]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of small sizes and fixed seeds
        yield


def rows(seed: int = 0) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(size=(N, D)) / 2


def labels(X: NDArray[np.float64], classes: int = 2) -> NDArray[np.intp]:
    return np.argmax(X[:, :classes] + 0.1, axis=1)


def same(estimator: Any, X: Any, y: Any, sizes: list[int], exact: bool, **given: Any) -> None:
    """A fit on parts has the parameters, certificate and trace of one in memory."""
    whole = clone(estimator).fit(X, y, **given)
    weights = given.get("sample_weight")
    table = cut(X, y, sizes, LocalEngine(), weights, X.columns if hasattr(X, "columns") else None)
    parted = estimator.fit(table, None)
    for name in ("coef_", "intercept_"):
        if exact:
            np.testing.assert_array_equal(getattr(parted, name), getattr(whole, name))
        else:
            np.testing.assert_allclose(getattr(parted, name), getattr(whole, name), rtol=1e-6, atol=1e-9)
    assert parted.certificate_.event == whole.certificate_.event
    said = {assumption for assumption in parted.certificate_.assumptions if assumption.key != "engine"}
    assert said == {*whole.certificate_.assumptions, statements.PARTS}
    assert parted.n_features_in_ == D


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("sampling", ["poisson", "full", "balls_and_bins"])
def test_gradient_perturbation_is_that_of_all_rows_number_by_number(sizes: list[int], sampling: str) -> None:
    X = rows()
    method = Gradient(sampling=sampling, epochs=3, **({} if sampling == "full" else {"expected_batch_size": 40}))
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, public_size=N, classes=[0, 1], random_state=1)
    same(model, X, labels(X), sizes, exact=True)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("method", [Objective(), Output()])
def test_minimisers_are_those_of_all_rows(sizes: list[int], method: Any) -> None:
    X = rows()
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, public_size=N, classes=[0, 1], random_state=1)
    same(model, X, labels(X), sizes, exact=False)


@pytest.mark.parametrize("method", ["objective", "output", "gradient"])
def test_classes_weights_and_an_unknown_number_of_records(method: str) -> None:
    X = rows()
    y = np.array(["a", "b", "c"])[labels(X, 3)]
    given = {"mechanism": method, "classes": ["a", "b", "c"], "random_state": 1, "class_weight": {"a": 1.0, "b": 0.5, "c": 0.2}}
    model = DPLogisticRegression(epsilon=2.0, delta=1e-5, max_sample_weight=2.0, **given)
    same(model, X, y, [100, 0, 201], exact=method == "gradient", sample_weight=np.linspace(0, 3, N))


@pytest.mark.parametrize("kind", linear_estimators())
def test_every_estimator(kind: type) -> None:
    X = rows()
    y = labels(X) if is_classifier(made(kind)) else np.abs(X[:, 0])
    model = made(kind, public_size=N, random_state=1, classes=[0, 1])
    if "mechanism" in parameters(kind):
        same(model, X, y, [150, 151], exact=False)
    else:  # they descend by coordinates or vertices
        with pytest.raises(ValueError, match="Expected records in memory"):
            model.fit(cut(X, y, [150, 151], LocalEngine(), None, None), None)
        assert not SpendLog.current().charges()


def test_sparse_rows_single_precision_and_frames() -> None:
    X = rows()
    given: dict[str, Any] = {"mechanism": "gradient", "public_size": N, "classes": [0, 1], "random_state": 1}
    for table in (sp.csr_array(np.where(X > 0, X, 0)), X.astype(np.float32), pd.DataFrame(X, columns=list("abcdefg"))):
        same(DPLogisticRegression(epsilon=1.0, delta=1e-5, **given), table, labels(X), [100, 201], exact=True)


def test_replace_one_counts_the_parts() -> None:
    X = rows()
    same(
        DPLogisticRegression(epsilon=1.0, delta=1e-5, relation="replace_one", classes=[0, 1], random_state=1),
        X,
        labels(X),
        [1, 300],
        False,
    )


def released(plan: Plan, objective: LinearObjective, records: Any) -> NDArray[np.float64]:
    channel = Channel.open(3, label="test")
    channel.charge(plan.event(objective.relation), "test")
    return descend(plan, objective, records, channel, np.zeros(objective.dimension))


@pytest.mark.parametrize("bounding", [Clip(0.3), Normalise(), AdaptiveClip(0.1)])
@pytest.mark.parametrize("sampler", [Poisson(0.2), FullBatch(), BallsAndBins(5)])
@pytest.mark.parametrize("outputs", [1, 3])
def test_plans_step_by_step(bounding: Any, sampler: Any, outputs: int) -> None:
    X, loss = rows(), Logistic() if outputs == 1 else Softmax(3)
    X[5] = np.nan  # absent
    objective = LinearObjective(loss, D, intercept_scale=0.5, public_size=N, strong_convexity=2.0)
    y = labels(np.nan_to_num(X), outputs) if outputs > 1 else 2.0 * labels(np.nan_to_num(X)) - 1
    plan = Plan(sampler=sampler, bounding=bounding, noise=Constant(1.0), update=SGD(0.5), steps=5, public_size=N)
    engine = LocalEngine()
    blocks = [(X[part], y[part].astype(float)) for part in (slice(0, 3), slice(3, 3), slice(3, N))]
    found = released(plan, objective, PartedRecords(objective, engine, blocks))
    np.testing.assert_array_equal(found, released(plan, objective, objective.records(X, y)))
    assert 6 <= engine.sums <= 7  # one for each step, and what was asked of the parts first


def test_a_draw_of_nobody_is_ordinary() -> None:
    X = rows()
    objective = LinearObjective(Logistic(), D, public_size=N)
    plan = Plan(sampler=Poisson(1e-9), bounding=Clip(1.0), noise=Constant(1.0), update=SGD(0.5), steps=2, public_size=N)
    parted = PartedRecords(objective, LocalEngine(), [(X[:9], np.ones(9)), (X[9:], np.ones(N - 9))])
    found = released(plan, objective, parted)
    np.testing.assert_array_equal(found, released(plan, objective, objective.records(X, np.ones(N))))


def test_sums_are_those_of_all_rows() -> None:
    X, theta = rows(), np.linspace(-1, 1, D)
    y = np.sign(X[:, 0])
    objective = LinearObjective(Logistic(), D, strong_convexity=1.0)
    whole = RegularisedSum(objective, objective.records(X, y))
    blocks = [(X[start : start + 50], y[start : start + 50]) for start in range(0, N, 50)]
    parted = RegularisedSum(objective, PartedRecords(objective, LocalEngine(), blocks))  # pyright: ignore[reportArgumentType]
    for one, other, rounding in zip(whole.evaluate(theta, True), parted.evaluate(theta, True), (1e-12, 1e-12, 1e-5), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=rounding)  # Hessians are in single precision
    np.testing.assert_array_equal(whole.certified_gradient(theta)[0], parted.certified_gradient(theta)[0])
    np.testing.assert_allclose(whole.certified_gradient(theta)[1], parted.certified_gradient(theta)[1], rtol=1e-4)
    np.testing.assert_allclose(whole.hessian_product(theta, theta), parted.hessian_product(theta, theta), rtol=1e-12)
    np.testing.assert_allclose(whole.curvature_bound, parted.curvature_bound)


@pytest.mark.parametrize(
    ("what", "after"),  # of a part that is read for the first time nothing is known that it could differ from
    [(what, after) for what in ("lost", "twice", "changed") for after in (0, 1, 2, 4) if (what, after) != ("changed", 0)],
)
@pytest.mark.parametrize("method", ["objective", "output", "gradient"])
def test_a_part_that_is_lost_doubled_or_changed_is_refused(what: str, method: str, after: int, tmp_path: Any) -> None:
    X = rows()
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism=method, public_size=N, classes=[0, 1], random_state=1)
    engine = ChangingEngine(what, after + 1)  # the first sum is the number of rows
    table = cut(X, labels(X), [100, 100, 101], engine)
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(PartsChangedError, match=r"Part 1|missing"):
            model.fit(table, None)
        assert not hasattr(model, "coef_")
        assert len(log.charges()) == (after > 1)  # before the targets were admitted nothing was charged


@pytest.mark.parametrize(
    ("estimator", "method", "given"),
    [
        (DPLogisticRegression, "individual", {}),
        (DPLogisticRegression, "last-iterate", {"relation": "replace_one"}),
        (DPLogisticRegression, AccuracyFirst(accuracy=0.8), {}),
        (DPLogisticRegression, "bolt-on", {"relation": "replace_one"}),
        (DPLogisticRegression, Gradient(sampling="importance"), {}),
        (DPRidge, "coordinate", {}),
    ],
)
def test_what_looks_at_single_records_is_refused_before_any_charge(
    estimator: Any, method: Any, given: Any, tmp_path: Any
) -> None:
    X = rows()
    if estimator is DPLogisticRegression:
        given = {**given, "classes": [0, 1]}
    model = estimator(epsilon=1.0, delta=1e-5, mechanism=method, public_size=N, random_state=1, **given)
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="Expected records in memory"):
            model.fit(cut(X, labels(X), [100, 201], LocalEngine()), None)
        assert not log.charges()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (np.where(X[1, 0] == X, np.nan, X), y), "NaN"),
        (lambda X, y: (X, np.where(np.arange(len(y)) == 2, 9, y)), "Expected labels among"),
        (lambda X, y: (X[:, 1:], y), "features"),
        (lambda X, y: (X, y[1:]), "inconsistent numbers of samples"),
    ],
)
def test_bad_rows_are_refused_where_they_are_before_any_charge(change: Any, message: str, tmp_path: Any) -> None:
    X = rows()
    blocks = [(X[:100], labels(X)[:100], None), (*change(X[100:], labels(X)[100:]), None)]
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, public_size=N, classes=[0, 1], random_state=1)
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match=message):
            model.fit(dperm.distributed.PartedTable(LocalEngine(), blocks, range(D)), None)
        assert not log.charges()


def test_what_parts_cannot_tell_is_asked_for() -> None:
    X = rows()
    table = cut(X, labels(X), [100, 201], LocalEngine())
    for given, fit, message in (
        ({}, {}, "classes="),
        ({"classes": [0, 1], "max_rows_per_unit": 3}, {"groups": np.zeros(N)}, "no groups"),
        ({"classes": [0, 1]}, {"absent": 2}, "absent=0"),
    ):
        with pytest.raises(ValueError, match=message):
            DPLogisticRegression(epsilon=1.0, delta=1e-5, public_size=N, **given).fit(table, None, **fit)
    with pytest.raises(ValueError, match="y=None"):
        DPLogisticRegression(epsilon=1.0, delta=1e-5, public_size=N, classes=[0, 1]).fit(table, labels(X))


def test_frames_with_other_columns_in_a_part_are_refused() -> None:
    frame = pd.DataFrame(rows(), columns=list("abcdefg"))
    y = labels(frame.to_numpy())
    blocks = [(frame[:100], y[:100], None), (frame[100:][list("abcdegf")], y[100:], None)]
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, public_size=N, classes=[0, 1])
    with pytest.raises(ValueError, match="same columns in all parts"):
        model.fit(dperm.distributed.PartedTable(LocalEngine(), blocks, list("abcdefg")), None)


def test_workers_of_another_version_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    X = rows()
    objective = LinearObjective(Logistic(), D)
    from dperm.objectives import parts

    seen = iter(["here", "there"])
    monkeypatch.setattr(parts, "_versions", lambda: next(seen, "there"))
    with pytest.raises(RuntimeError, match="Expected here on all workers"):
        PartedRecords(objective, LocalEngine(), [(X, np.ones(N))])


def test_a_strangers_engine_is_an_assumption() -> None:
    X = rows()
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, public_size=N, classes=[0, 1], random_state=1)
    model.fit(cut(X, labels(X), [100, 201], LocalEngine()), None)
    said = " ".join(assumption.text for assumption in model.certificate_.assumptions)
    assert "LocalEngine" in said


def test_a_part_is_a_copy_whatever_happens_to_its_source(tmp_path: Any) -> None:
    """A mapped file that is written over while a run lasts, and rows that are changed in place."""
    X = rows().astype(np.float32)
    np.save(tmp_path / "rows.npy", np.tile(X, (400, 20)))  # more than is kept in memory of a mapped file
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r+")
    y = np.ones(len(mapped))
    objective = LinearObjective(Logistic(), mapped.shape[1])
    parted = PartedRecords(objective, LocalEngine(), [(mapped, y)])
    theta = np.full(mapped.shape[1], 0.01)
    before = objective.exact_gradient(theta, parted)[0]  # pyright: ignore[reportArgumentType]
    mapped *= -1
    y *= -1
    np.testing.assert_array_equal(objective.exact_gradient(theta, parted)[0], before)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("make", [rows, lambda: sp.csr_array(rows())])
def test_a_part_does_not_keep_its_table_beside_its_rows(make: Any) -> None:
    from dperm.objectives.parts import _part_of

    objective = LinearObjective(Logistic(), D)
    part = _part_of(objective, (make(), np.ones(N)), 0).records
    whole = objective.records(make(), np.ones(N))
    assert part.rows is None
    assert part.nbytes == whole.nbytes
    theta = np.arange(D) / D
    np.testing.assert_array_equal(objective.exact_gradient(theta, part)[0], objective.exact_gradient(theta, whole)[0])


def test_targets_are_digested_as_numbers() -> None:
    from dperm.objectives.parts import _part_of

    objective = LinearObjective(Logistic(), D)
    digests = {_part_of(objective, (rows(), np.array([sign] * N, dtype=object)), 0).digest for sign in (1, -1, 1.0)}
    assert len(digests) == 2


def test_other_numbers_of_rows_than_stated_are_refused(tmp_path: Any) -> None:
    X = rows()
    blocks = [(X[:100], labels(X)[:100], None), (X[100:], labels(X)[100:], None)]
    table = dperm.distributed.PartedTable(LocalEngine(), blocks, range(D), size=200)
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, relation="replace_one", classes=[0, 1], random_state=1)
    with spend_log(tmp_path / "log.db") as log:
        with pytest.raises(ValueError, match="Expected 200 rows, as the collection says of itself, got 301"):
            model.fit(table, None)
        empty = dperm.distributed.PartedTable(LocalEngine(), [(X[:0], labels(X)[:0], None)], range(D))
        with pytest.raises(ValueError, match="at least one row"):
            model.fit(empty, None)
        assert not log.charges()


class OfAStranger(OutputPerturbation):
    """Looks at targets, which are in no sum."""

    def train(self, objective: Any, records: Any, channel: Any) -> Any:
        return np.zeros(objective.dimension) + records.targets.sum(), {}


class PlanOfAStranger(Plan):
    pass


def test_what_derives_from_ours_must_say_itself_that_it_runs_by_parts() -> None:
    objective = LinearObjective(Logistic(), D, public_size=N)
    parted = PartedRecords(objective, LocalEngine(), [(rows(), np.ones(N))])
    plan = PlanOfAStranger(sampler=Poisson(0.1), bounding=Clip(1.0), noise=Constant(1.0), update=SGD(0.5), steps=2, public_size=N)
    budget = Budget(1e-5, 1.0)
    for mechanism in (
        OfAStranger(budget=budget, strong_convexity=1.0, noise_multiplier=1.0),
        GradientPerturbation(budget=budget, plan=plan),
    ):
        with pytest.raises(ValueError, match="Expected records in memory"):
            mechanism.admit(objective, parted)


def test_searches_are_refused() -> None:
    X = rows()
    search = DPSearch(DPLogisticRegression(classes=[0, 1], public_size=N), [{"mechanism": "output"}], 1.0, 1e-5)
    with pytest.raises(ValueError, match="rows in memory for a search"):
        search.fit(cut(X, labels(X), [100, 201], LocalEngine()), None, held_out=(X, labels(X)))


def test_records_of_other_features_and_losses_of_several_outputs_are_refused_before_any_charge() -> None:
    objective, softmax = LinearObjective(Logistic(), D), LinearObjective(Softmax(3), D)
    mechanism = OutputPerturbation(budget=Budget(1e-5, 1.0), strong_convexity=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="7 features, got 6"):
        mechanism.admit(objective, LinearObjective(Logistic(), D - 1).records(rows()[:, 1:], np.ones(N)))
    with pytest.raises(ValueError, match="one output"):
        mechanism.admit(softmax, softmax.records(rows(), np.zeros(N)))


def test_sums_that_are_added_up_once_more_are_the_same() -> None:
    """A task whose result was lost runs again, on inputs that are still there."""
    one, other = RunningSum(), RunningSum()
    for value in (1.0, 2.0**60, 3.0):
        one.add(np.array([value]))
        other.add(np.array([-value / 2]))
    first = one.joined(other).value()
    assert one.joined(other).value() == first == 2.0**59 + 2
    assert RunningSum().joined(one).value() == one.joined(RunningSum()).value() == one.value()
