"""Intervals by training again: they are as wide as models of other records and other noise differ, and for the holder alone."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import logit
from sklearn.base import is_classifier

from dperm.data import Dataset, TargetRange
from dperm.estimators import (
    DPLinearSVC,
    DPLogisticRegression,
    DPMLPClassifier,
    DPPoissonRegressor,
    DPRidge,
    model_from_json,
    model_to_json,
)
from dperm.objectives import PrivacyUnit
from dperm.release import SpendLog
from dperm.report.refits import Refits
from helpers.estimators import learnable, linear_estimators, made

LABELS = ("no", "yes")


def table(seed: int, kind: str = "labels", n: int = 600) -> Dataset:
    """Records of two features, of two or three labels, numbers or counts."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 2)) / 2
    score = 4 * X[:, 0] - 2 * X[:, 1] + rng.logistic(size=n) / 2
    y: Any = {
        "labels": np.array(LABELS)[(score > 0.5).astype(int)],
        "three": np.array(["a", "b", "c"])[np.digitize(score, [-0.5, 0.5])],
        "numbers": 40 + 5 * score,
        "counts": rng.poisson(np.exp(1 + X[:, 0])).astype(float),
    }[kind]
    classes = tuple(np.unique(y)) if y.dtype.kind == "U" else ()
    return Dataset("t", X, y, ("u", "v"), classes, TargetRange(10.0, 70.0) if kind == "numbers" else None)


def fitted(model: Any, records: Dataset) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        targets = records.targets if records.target_range is None else records.target_range.scaled(records.targets)
        return model.fit(records.features, targets, records.groups)


CASES: list[tuple[Any, str]] = [
    (lambda: DPLogisticRegression(epsilon=4.0, delta=1e-4, classes=LABELS), "labels"),
    (lambda: DPLogisticRegression(epsilon=4.0, delta=1e-4, classes=LABELS, class_weight={"no": 1, "yes": 3}), "labels"),
    (lambda: DPLogisticRegression(epsilon=4.0, delta=1e-4, classes=["a", "b", "c"], mechanism="objective"), "three"),
    (lambda: DPLogisticRegression(epsilon=8.0, delta=1e-4, classes=LABELS, mechanism="gradient"), "labels"),
    (lambda: DPRidge(epsilon=100.0, delta=1e-4), "numbers"),
    (lambda: DPPoissonRegressor(epsilon=20.0, delta=1e-4), "counts"),
]


@pytest.mark.parametrize(
    ("make", "kind"), [pytest.param(*case, marks=[] if at == 4 else pytest.mark.slow) for at, case in enumerate(CASES)]
)
def test_refits_differ_as_models_of_other_records_and_other_noise_do(make: Any, kind: str) -> None:
    others = [fitted(make().set_params(random_state=seed), table(seed, kind)) for seed in range(50)]
    found = Refits.of(others[0], table(0, kind), 50, random_state=50)
    true = np.std([each.coef_ for each in others], axis=0, ddof=1)
    low, high = found.coefficients(0.95)
    assert (high - low) / 2 / 1.96 == pytest.approx(true, rel=0.5)
    assert (low + high) / 2 == pytest.approx(others[0].coef_)
    assert np.linalg.norm(found.root(), axis=1) == pytest.approx(np.atleast_2d(high - low)[0] / 2 / 1.959964, rel=1e-5)
    X = np.array([[0.3, -0.2], [-0.4, 0.1], [0.0, 0.0]])
    told = np.stack([getattr(each, "predict_proba", each.predict)(X) for each in others])
    low, high = found.predictions(X, 0.95)
    assert (low < told[0]).all()
    assert (told[0] < high).all()
    assert low.shape == told[0].shape
    turn: Any = np.asarray if kind == "numbers" else np.log if kind == "counts" else logit
    assert (turn(high) - turn(low)) / 2 / 1.96 == pytest.approx(np.std(turn(told), axis=0, ddof=1), rel=0.6)


@pytest.mark.slow
def test_intervals_cover_what_training_gives_on_average() -> None:
    models = [fitted(DPRidge(epsilon=10.0, delta=1e-4, random_state=seed), table(seed, "numbers")) for seed in range(100)]
    average = np.mean([each.coef_ for each in models], axis=0)
    covered = []
    for seed in range(100):
        low, high = Refits.of(models[seed], table(seed, "numbers"), 30, random_state=1000 * seed).coefficients(0.9)
        covered.append((low < average) & (average < high))
    assert 0.82 < np.mean(covered) < 0.97


@pytest.mark.slow
def test_persons_are_drawn_with_all_their_rows() -> None:
    """Five equal rows of a person say as much as one: intervals are those of so many persons, not of so many rows."""
    one = table(0, n=300)
    groups = np.repeat(np.arange(300), 5)[np.random.default_rng(1).permutation(1500)]
    five = replace(one, features=one.features[groups], targets=one.targets[groups], groups=groups, unit=PrivacyUnit(5))
    spread = []
    for records, rows in ((one, None), (five, 5)):
        model = fitted(DPLogisticRegression(epsilon=50.0, classes=LABELS, max_rows_per_unit=rows, public_size=300), records)
        spread.append(np.ptp(Refits.of(model, records, 30, random_state=0).coefficients(), axis=0))
    assert spread[0] == pytest.approx(spread[1], rel=0.4)


def test_refits_are_not_charged_and_can_be_repeated() -> None:
    records = table(3)
    model = fitted(CASES[0][0](), records)
    charges, seen = len(SpendLog.current().charges()), []
    first = Refits.of(model, records, 3, random_state=5, progress=lambda done, count: seen.append((done, count)))
    assert np.array_equal(first.root(), Refits.of(model, records, 3, random_state=5).root())
    assert not np.allclose(first.root(), Refits.of(model, records, 3).root())
    assert len(SpendLog.current().charges()) == charges and seen == [(1, 3), (2, 3), (3, 3)]
    again, _ = model_from_json(model_to_json(model))
    assert np.array_equal(Refits.of(again, records, 3, random_state=5).root(), first.root())


@pytest.mark.parametrize("kind", linear_estimators())
def test_every_linear_model_is_trained_again(kind: type) -> None:
    rows, targets = learnable(kind, 60, 2)
    labels = (0, 1) if is_classifier(made(kind)) else ()
    model = made(kind, delta=1e-3, classes=labels or None, public_size=60).fit(rows, targets)
    charges = len(SpendLog.current().charges())
    found = Refits.of(model, Dataset("t", rows, targets, ("u", "v"), labels, None), 2, random_state=0)
    assert np.isfinite(found.coefficients()).all()
    assert not np.array_equal(found.models[0].coef_, found.models[1].coef_)
    assert len(SpendLog.current().charges()) == charges


def test_records_of_their_own_weight_need_them() -> None:
    records = table(4)
    weights = np.random.default_rng(0).uniform(0, 2, len(records))
    model = DPLogisticRegression(classes=LABELS, max_sample_weight=2.0).fit(
        records.features, records.targets, sample_weight=weights
    )
    assert len(Refits.of(model, records, 2, sample_weight=weights).models) == 2
    with pytest.raises(ValueError, match="sample_weight in fit with max_sample_weight=2"):
        Refits.of(model, records, 2)


def test_a_draw_without_a_rare_label_is_a_draw() -> None:
    records = table(5, n=30)
    targets = np.where(np.arange(30) == 0, "yes", "no")
    records = replace(records, targets=targets)
    model = fitted(DPLogisticRegression(epsilon=4.0), records)
    assert np.isfinite(Refits.of(model, records, 20, random_state=0).coefficients()).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda records: replace(records, features=records.features[:, :1]), r"of 2 features, got \(600, 1\)"),
        (lambda records: replace(records, targets=np.full(600, "so")), r"labels \['no', 'yes'\], got \['so'\]"),
    ],
)
def test_other_records_are_refused(change: Any, message: str) -> None:
    model = fitted(CASES[0][0](), table(0))
    with pytest.raises(ValueError, match=message):
        Refits.of(model, change(table(0)), 2)


def test_what_cannot_be_told_is_refused() -> None:
    records = table(0)
    machine = fitted(DPLinearSVC(classes=LABELS), records)
    found = Refits.of(machine, records, 2)
    with pytest.raises(ValueError, match="DPLinearSVC gives labels alone"):
        found.predictions(records.features)
    with pytest.raises(ValueError, match="level"):
        found.coefficients(95)
    with pytest.raises(ValueError, match="count"):
        Refits.of(machine, records, 1)
    network = DPMLPClassifier(hidden_layer_sizes=(2,), classes=LABELS)
    with pytest.raises(ValueError, match="not fitted"):
        Refits.of(network, records)
