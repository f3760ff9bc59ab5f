"""Item 22: models by part, through the front door."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score

from dperm.audit import Pair, Training, replay
from dperm.data import Column, Dataset, Schema
from dperm.estimators import (
    DPByPart,
    DPLogisticRegression,
    DPQuantileRegressor,
    DPRidge,
    model_from_json,
    model_to_json,
)
from dperm.mechanisms import AccuracyFirst, Gradient, Output, known_methods
from dperm.mechanisms.gradient import SAMPLINGS
from dperm.privacy import Certificate, Disjoint, Gaussian, epsilon
from dperm.release import SpendLog
from dperm.release.ledger import thrown_away
from helpers.estimators import linear_estimators, made

WARDS = ("north", "south", "east")
SCHEMA = Schema(
    "people",
    "ill",
    (
        Column("ward", "category", categories=WARDS),
        Column("age", "number", range=(0, 100)),
        Column("ill", "label"),
    ),
    classes=("no", "yes"),
)


def table(rows: int = 900, seed: int = 3) -> pd.DataFrame:
    """Who is old is ill in the north, and well in the south; nobody lives in the east."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(WARDS[:2], rows)
    age = rng.uniform(0, 100, rows)
    old = age > 50
    return pd.DataFrame({"ward": ward, "age": age, "ill": np.where(old == (ward == "north"), "yes", "no")})


@pytest.fixture
def log(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> SpendLog:
    monkeypatch.setenv("DPERM_SPEND_LOG", str(tmp_path / "log.db"))
    return SpendLog.current()


def test_a_model_for_each_ward_for_the_price_of_one(log: SpendLog) -> None:
    dataset = Dataset.of(table(), SCHEMA)
    fit_by = SCHEMA.columns_of("ward")
    assert fit_by == {"north": 0, "south": 1, "east": 2}
    estimator = DPLogisticRegression(epsilon=2.0, classes=["no", "yes"], label="people")
    models = dataset.fit(DPByPart(estimator, fit_by, public_sizes=300))
    assert list(models.models_) == list(WARDS)  # the east has a model, though nobody is there
    right = models.predict(dataset.features) == dataset.targets
    assert right.mean() > 0.8
    alone = dataset.fit(DPLogisticRegression(epsilon=2.0, classes=["no", "yes"]))
    assert (alone.predict(dataset.features) == dataset.targets).mean() < 0.77
    first, _ = log.charges()
    certificate = models.certificate_
    assert first.event == certificate.event
    assert isinstance(certificate.event, Disjoint)
    assert certificate.epsilon <= 2.0
    assert certificate.epsilon == pytest.approx(epsilon(certificate.event.parts[0], 1e-5))
    certificate.verify()
    for model in models.models_.values():
        assert model.certificate_ == certificate
        again, _ = model_from_json(model_to_json(model))
        assert np.array_equal(again.predict(dataset.features), model.predict(dataset.features))
    proba = models.predict_proba(dataset.features)
    assert np.array_equal(models.classes_[proba.argmax(axis=1)], models.predict(dataset.features))


def test_preprocessing_over_all_parts_is_charged_beside(log: SpendLog) -> None:
    dataset = Dataset.of(table(), SCHEMA)
    models = dataset.fit(DPByPart(DPLogisticRegression(classes=["no", "yes"]), SCHEMA.columns_of("ward"), public_sizes=300))
    found = Certificate.issue(mechanism="ranges", event=Gaussian(9.0), delta=1e-5)
    whole = Certificate.of_all([found, models.certificate_])
    assert models.certificate_.epsilon < whole.epsilon < models.certificate_.epsilon + found.epsilon


def estimators() -> list[tuple[Any, bool]]:
    """Each with whether it can do without public sizes."""
    two = {"classes": ["no", "yes"]}
    return [
        *((made(kind, **two), True) for kind in linear_estimators()),
        (DPRidge(mechanism="output"), True),
        (DPLogisticRegression(mechanism="gradient", **two), True),
        (DPLogisticRegression(mechanism=Output(), classes=["no", "yes", "maybe"]), True),
        (DPLogisticRegression(mechanism="output", delta=0.0, **two), True),
        (DPLogisticRegression(mechanism=AccuracyFirst(accuracy=0.6), **two), False),
    ]


@pytest.mark.parametrize(
    ("estimator", "sizes"),
    [
        (each, sizes)
        for each, private in estimators()
        for sizes in ([None] if private else []) + [{"a": 40, "b": 60, "empty": 30}]
    ],
)
def test_every_estimator_has_a_model_for_each_part(estimator: Any, sizes: Any, log: SpendLog) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 0.5, (100, 4))
    X[:, :3] = np.eye(3)[rng.choice(2, 100)]
    y = X[:, 3] if not hasattr(estimator, "classes") else rng.choice(["no", "yes"], 100)
    before = len(log.charges())
    models = DPByPart(estimator, {"a": 0, "b": 1, "empty": 2}, public_sizes=sizes).fit(X, y)
    assert len(log.charges()) == before + 1
    assert models.predict(X).shape == (100,)
    models.certificate_.verify()
    assert np.isfinite(models.models_["empty"].coef_).all()
    if sizes is not None:
        assert models.models_["b"].public_size == 60


def test_what_is_refused_before_a_charge(log: SpendLog) -> None:
    X, y = np.eye(3), np.array(["no", "yes", "no"])
    good = DPLogisticRegression(classes=["no", "yes"])
    fit_by = {"a": 0, "b": 1}
    for estimator, settings, match in (
        (DPLogisticRegression(relation="replace_one"), {}, "moves to another part"),
        (DPLogisticRegression(public_size=5), {}, "public_sizes"),
        (good, {"public_sizes": {"a": 1}}, "public_sizes of"),
        (good, {"fit_by": {"a": 0, "b": 0}}, "different features"),
        (good, {"fit_by": {"a": 0, "b": 7}}, "some of 3 features"),
    ):
        with pytest.raises(ValueError, match=match):
            DPByPart(estimator, **({"fit_by": fit_by} | settings)).fit(X, y)
    with pytest.raises(TypeError, match="linear estimator"):
        DPByPart("logistic", fit_by).fit(X, y)
    with pytest.raises(TypeError, match="a feature for each part"):
        DPByPart(good, {}).fit(X, y)
    assert log.charges() == []
    models = DPByPart(good, fit_by).fit(X, y)
    with pytest.raises(ValueError, match="1 in none"):
        models.predict(X)
    assert models.places(X).tolist() == ["a", "b", None]


def test_persons_are_in_one_part(log: SpendLog) -> None:
    rng = np.random.default_rng(1)
    X = np.concatenate([np.eye(2)[rng.choice(2, 60)], rng.uniform(0, 0.3, (60, 1))], axis=1)
    y = rng.choice([-1, 1], 60)
    estimator = DPLogisticRegression(classes=[-1, 1], max_rows_per_unit=3)
    models = DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=20).fit(X, y, groups=np.arange(60) // 3)
    assert models.certificate_.of_persons
    keys = {item.key: item for item in models.certificate_.assumptions}
    assert "that all of them name" in keys["disjoint"].text
    models.certificate_.verify()


def test_columns_of_a_schema() -> None:
    schema = Schema("t", "y", (Column("a", "number", range=(0, 1)), Column("b", "category", categories=("x", "z"), other=True),
                               Column("y", "label")), classes=("0", "1"))  # fmt: skip
    found = schema.columns_of("b")
    assert [schema.features[at] for at in found.values()] == [f"b={name}" for name in found]
    assert len(found) == 3
    for name in ("a", "y", "nothing"):
        with pytest.raises(ValueError, match="category"):
            schema.columns_of(name)


def methods() -> list[Any]:
    """Every method that has a key, with what it cannot do without; and every way of drawing."""
    stated = {"accuracy_first": {"accuracy": 0.8, "stops": 5}}
    named = [pytest.param(kind(**stated.get(key, {})), id=key) for key, kind in known_methods().items()]
    drawn = [
        pytest.param(Gradient(sampling=how, epochs=2), id=f"gradient-{how}", marks=[pytest.mark.slow] * (how == "balls_and_bins"))
        for how in SAMPLINGS
        if how != "poisson"
    ]
    return named + drawn


#: what never has models by part, for it needs a number of records that is the same on neighbours, or persons of several rows
NOT_BY_PART = {"bolt-on", "last-iterate", "gradient-fixed_size", "gradient-rows"}


@pytest.mark.parametrize("method", methods())
@pytest.mark.filterwarnings("ignore")  # a warning that is an error would refuse what trains
def test_every_method_trains_models_by_part_or_charges_nothing(method: Any, request: pytest.FixtureRequest) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 0.5, (60, 3))
    X[:, :2] = np.eye(2)[np.arange(60) % 2]
    regression = method.key == "preconditioned"
    unset = DPRidge() if regression else DPLogisticRegression(classes=[-1, 1])
    y = X[:, 2] if regression else np.where(X[:, 2] > 0.25, 1, -1)
    trained = set()
    for size, delta in ((30, 1e-5), (30, 0.0), (None, 1e-5)):
        estimator = clone(unset).set_params(mechanism=method, epsilon=2.0, delta=delta)
        models = DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=size)
        with thrown_away() as log:
            try:
                models.fit(X, y)
            except ValueError:
                assert log.charges() == [], (size, delta)
                continue
            (charge,) = log.charges()
        assert charge.event == models.certificate_.event
        assert np.isfinite([model.coef_ for model in models.models_.values()]).all()
        trained.add((size, delta))
    possible = request.node.callspec.id not in NOT_BY_PART
    assert ((30, 1e-5) in trained) == possible
    assert ((30, 0.0) in trained) == (possible and (method.pure or method.key == "auto"))


def two_parts(rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 0.5, (rows, 3))
    X[:, :2] = np.eye(2)[np.arange(rows) % 2]
    return X, X[:, 2]


def test_rows_of_every_form_are_answered_alike(log: SpendLog) -> None:
    X, numbers = two_parts()
    y = np.where(numbers > 0.25, "yes", "no")
    models = DPByPart(DPLogisticRegression(epsilon=100.0, classes=["no", "yes"]), {"a": 0, "b": 1}, public_sizes=30).fit(X, y)
    forms = [X.tolist(), sp.coo_array(X), sp.csc_matrix(X), sp.lil_array(X), np.asfortranarray(X)]
    for rows in forms:
        assert np.array_equal(models.predict(rows), models.predict(X)), type(rows)
        for method in ("predict_proba", "decision_function"):  # sums over sparse rows round otherwise
            assert getattr(models, method)(rows) == pytest.approx(getattr(models, method)(X), rel=1e-12), (method, type(rows))
    alone = [models.models_[name].decision_function(X[[row]])[0] for row, name in enumerate(models.places(X))]
    assert models.decision_function(X) == pytest.approx(np.array(alone), rel=1e-12)
    assert models.score(X, y) == np.mean(models.predict(X) == y)
    weights = np.arange(60.0)
    assert models.score(X, y, weights) == pytest.approx(weights @ (models.predict(X) == y) / weights.sum())
    assert is_classifier(models)
    assert not hasattr(DPByPart(DPRidge(), {"a": 0}), "predict_proba")
    assert not hasattr(DPByPart(DPRidge(), {"a": 0}), "decision_function")


@pytest.mark.parametrize("estimator", [DPRidge(epsilon=9.0), DPLogisticRegression(epsilon=50.0, classes=[False, True])])
def test_models_by_part_are_cross_validated(estimator: Any, log: SpendLog) -> None:
    X, numbers = two_parts(300)
    y = numbers if isinstance(estimator, DPRidge) else numbers > 0.25
    scores = cross_val_score(DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=100), X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.max() <= 1.0
    assert scores.min() > (-1.0 if isinstance(estimator, DPRidge) else 0.4)
    assert len(log.charges()) == 3


def test_scores_are_those_of_the_estimator(log: SpendLog) -> None:
    """Where all rows are in one part, its model scores alike."""
    X, y = two_parts()
    X[:, :2] = [1.0, 0.0]
    for estimator in (*filter(is_regressor, map(made, linear_estimators())), DPQuantileRegressor(quantile=0.3)):
        models = DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=60).fit(X, y)
        assert models.score(X, y, np.arange(60.0)) == models.models_["a"].score(X, y, np.arange(60.0))
        assert is_regressor(models)


def test_what_is_wrong_with_fit_by_is_said_of_fit_by(log: SpendLog) -> None:
    X, y = two_parts()
    estimator = DPLogisticRegression(classes=[False, True])
    for fit_by, error, match in (
        ({"a": 0, "b": 3}, ValueError, r"fit_by to number some of 3 features, counted from 0, got \{'b': 3\}"),
        ({"a": 1, "b": 1}, ValueError, "fit_by with different features"),
        ({"a": "ward=a", "b": 1}, TypeError, "fit_by to number features from 0, .* got 'ward=a' for 'a'"),
        ({"a": -1, "b": 1}, ValueError, r"fit_by\['a'\] >= 0"),
        ({"a": 0.5, "b": 1}, ValueError, r"fit_by\['a'\] to be an integer"),
        ({"a": None, "b": 1}, TypeError, r"fit_by\['a'\] to be a number"),
    ):
        with pytest.raises(error, match=match):
            DPByPart(estimator, fit_by).fit(X, y > 0.25)
        with pytest.raises(error, match=match):
            DPByPart(estimator, fit_by).mechanism_for(3)
    assert log.charges() == []


def test_models_by_part_are_audited_through_the_front_door(log: SpendLog) -> None:
    X, numbers = two_parts(12)
    data = X, np.where(numbers > 0.25, 1.0, -1.0)
    estimator = DPLogisticRegression(epsilon=2.0, classes=[-1.0, 1.0], mechanism=Output())
    training = Training.of_estimator(DPByPart(estimator, {"a": 0, "b": 1}, public_sizes=6), data)
    result = replay(training, [Pair.adding("one more", data, np.array([-0.1, 0.9, 0.2]), 1.0)])
    assert result.verdict == "consistent", result
    assert result.details["largest_movement"] > 0.02
    with pytest.raises(TypeError, match=r"dperm\.estimators, got GridSearchCV"):
        Training.of_estimator(GridSearchCV(estimator, {}), data)
