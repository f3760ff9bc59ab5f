"""A fitted model as a plain pipeline of scikit-learn, and as ONNX: its answers are the model's, also of rows beyond data_norm."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from scipy.special import expit
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import parametrize_with_checks

from dperm.data import Column, Dataset, Schema, TargetRange
from dperm.estimators import (
    DPLinearSVC,
    DPLogisticRegression,
    DPOrdinalClassifier,
    DPPoissonRegressor,
    DPRidge,
    MarginLogOdds,
    RowNormScaler,
)
from dperm.mechanisms import Gradient, Objective, Output
from helpers.estimators import learnable, linear_estimators, made

CUT = 2.0**-20  # of a row's length: dperm keeps 21 binary digits


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def fitted(kind: type, classes: int = 2, **settings: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """A model, and rows that are shorter and much longer than its norm, and zeros."""
    X, y = learnable(kind, 60, classes=classes)
    known = list(range(classes)) if is_classifier(made(kind)) else None
    given = {"epsilon": 50.0, "public_size": 60, "classes": known, "data_norm": 0.7, "radius": 2.0} | settings
    rows = np.vstack([X, 50 * X[:20], 1e-9 * X[:5], np.zeros((1, X.shape[1]))])
    return made(kind, **given).fit(X, y), rows


def assert_alike(model: Any, plain: Any, rows: Any) -> None:
    limit = CUT * np.sqrt(model.n_features_in_) * np.linalg.norm(np.atleast_2d(model.coef_), axis=1).max() * model.data_norm
    scores = [model._scores(rows), plain]
    if is_classifier(model):
        theirs = plain.decision_function(rows) if hasattr(plain, "decision_function") else None
        margin = "log-odds" in plain.named_steps
        if theirs is not None and not margin:
            np.testing.assert_allclose(theirs, scores[0], atol=2 * limit + 1e-12, rtol=1e-12)
        sure = np.abs(np.ravel(scores[0])[: len(model.predict(rows))]) > 4 * limit if scores[0].ndim == 1 else slice(None)
        assert np.array_equal(plain.predict(rows)[sure], model.predict(rows)[sure])
        if hasattr(model, "predict_proba"):
            np.testing.assert_allclose(plain.predict_proba(rows), model.predict_proba(rows), atol=8 * limit + 1e-12)
    else:
        np.testing.assert_allclose(plain.predict(rows), model.predict(rows), atol=8 * limit + 1e-12, rtol=8 * limit)


#: scikit-learn has no model of ordered classes
PLAIN = [kind for kind in linear_estimators() if kind is not DPOrdinalClassifier]


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_every_linear_estimator_has_a_plain_one_with_its_answers(kind: type) -> None:
    model, rows = fitted(kind)
    plain = model.to_sklearn()
    assert type(plain.steps[-1][1]).__module__.startswith("sklearn.")
    for given in (rows, rows.astype(np.float32), sp.csr_array(rows)):
        assert_alike(model, plain, given)
    assert_alike(model, pickle.loads(pickle.dumps(plain)), rows)
    assert "n_features_in_" in vars(plain.steps[-1][1])
    with pytest.raises(ValueError, match="features"):
        plain.predict(rows[:, :2])
    with pytest.raises(NotFittedError):
        made(kind).to_sklearn()


@pytest.mark.parametrize(
    ("mechanism", "classes", "last"),
    [
        (Objective(margin=0), 2, "LogisticRegression"),
        (Objective(margin=2.0), 2, "LogisticRegression"),
        (Objective(margin=2.0), 3, "OneVsRestClassifier"),
        (Output(), 2, "LogisticRegression"),
        (Output(), 4, "OneVsRestClassifier"),
        (Gradient(epochs=3), 3, "LogisticRegression"),
    ],
)
def test_probabilities_agree_whatever_the_mechanism_makes(mechanism: Any, classes: int, last: str) -> None:
    model, rows = fitted(DPLogisticRegression, classes, mechanism=mechanism)
    plain = model.to_sklearn()
    assert type(plain.steps[-1][1]).__name__ == last
    assert ("log-odds" in plain.named_steps) == (getattr(mechanism, "margin", 0) == 2.0)
    assert_alike(model, plain, rows)
    svc, rows = fitted(DPLinearSVC, classes)
    assert_alike(svc, svc.to_sklearn(), rows)


def test_what_scikit_learn_lacks_is_refused() -> None:
    model, _ = fitted(DPOrdinalClassifier)
    with pytest.raises(ValueError, match="knows none of ordered classes"):
        model.to_sklearn()


def test_without_a_margin_the_coefficients_are_the_model_s() -> None:
    model, _ = fitted(DPLogisticRegression, mechanism=Objective(margin=0))
    last = model.to_sklearn().steps[-1][1]
    assert isinstance(last, LogisticRegression)
    assert np.array_equal(last.coef_, model.coef_) and np.array_equal(last.classes_, [0, 1])


RNG = np.random.default_rng(1)
FRAME = pd.DataFrame({"age": RNG.uniform(0, 100, 200).round(), "ward": RNG.choice(["a", "b"], 200), "id": np.arange(200) // 2})
COLUMNS = (Column("age", "number", (0.0, 100.0)), Column("ward", "category", categories=("a", "b")), Column("id", "ignore"))


@pytest.mark.parametrize("unit", ["", "id"])
def test_a_schema_gives_frames_and_the_target_s_own_units(unit: str) -> None:
    frame = FRAME.assign(pay=1000 + 20 * FRAME.age)
    columns = (*COLUMNS, Column("pay", "label"))
    schema = Schema("t", "pay", columns, target_range=TargetRange(1000.0, 4000.0), unit=unit, curves=4)
    dataset = Dataset.of(frame, schema)
    settings: dict[str, Any] = {} if not unit else {"max_rows_per_unit": schema.max_rows_per_unit}
    for kind, given in ((DPRidge, {}), (DPRidge, {"target_range": (1000.0, 4000.0)})):
        model = dataset.fit(kind(epsilon=50.0, **given, **settings))
        answers = model.predict(dataset.features)
        expected = answers if given else schema.target_range.restored(answers)  # pyright: ignore[reportOptionalMemberAccess]
        plain = model.to_sklearn(schema)
        np.testing.assert_allclose(plain.predict(frame.drop(columns="pay")), expected, rtol=1e-5)
        assert [name for name, _ in plain.steps] == ["encoder", "norm", "model"]
    with pytest.raises(ValueError, match="of 6 features, got 3"):
        model.to_sklearn(schema.with_curves(0))


def test_a_range_without_a_schema_gives_the_target_s_own_units() -> None:
    rows, targets = RNG.random((200, 2)) / 2, RNG.uniform(-1, 1, 200)
    model = DPRidge(epsilon=50.0, public_size=200).fit(rows, targets)
    plain = model.to_sklearn(target_range=(0.0, 100.0))
    np.testing.assert_allclose(plain.predict(rows), 50 + 50 * model.predict(rows), rtol=1e-5)


def test_what_a_proposed_schema_says_of_its_rows_is_not_in_a_pipeline() -> None:
    column = Column("age", "number", (0.0, 100.0), note="numbers from -13.4 to 124.4")
    schema = Schema("t", "ward", (column, Column("ward", "label")), ("a", "b"))
    model = Dataset.of(FRAME, schema).fit(DPLogisticRegression(epsilon=50.0, classes=["a", "b"]))
    assert b"124.4" in pickle.dumps(schema)
    assert b"124.4" not in pickle.dumps(model.to_sklearn(schema))


def test_counts_come_as_they_are() -> None:
    frame = FRAME.assign(visits=RNG.poisson(2.0, 200))
    columns = (*COLUMNS, Column("visits", "label", (0.0, 9.0), measure="count"))
    schema = Schema("t", "visits", columns)
    dataset = Dataset.of(frame, schema)
    model = dataset.fit(DPPoissonRegressor(epsilon=50.0, target_range=(0, 9)))
    np.testing.assert_allclose(model.to_sklearn(schema).predict(frame), model.predict(dataset.features), rtol=1e-5)


def test_names_of_columns_go_along() -> None:
    X, y = learnable(DPRidge, 60)
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    plain = DPRidge(epsilon=50.0).fit(frame, y).to_sklearn()
    assert list(plain.feature_names_in_) == ["u", "v", "w"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain.predict(frame)
    with pytest.raises(ValueError, match="feature names"):
        plain.predict(frame[["w", "v", "u"]])


@pytest.mark.parametrize("norm", [0.3, 1e-40, 1e40])
def test_the_scaler_shortens_long_rows_alone(norm: float) -> None:
    X = norm * np.random.default_rng(0).normal(size=(50, 3)) * np.geomspace(1e-3, 1e3, 50)[:, None]
    out = RowNormScaler(norm).fit_transform(X)
    lengths, before = np.linalg.norm(out, axis=1), np.linalg.norm(X, axis=1)
    assert np.array_equal(out[before < norm], X[before < norm])
    np.testing.assert_allclose(lengths[before >= norm], norm)
    np.testing.assert_allclose(RowNormScaler(norm).fit_transform(sp.csr_array(X)).toarray(), out, rtol=1e-12)
    assert not RowNormScaler(norm).fit_transform(np.zeros((1, 3))).any()
    with pytest.raises(ValueError, match="data_norm > 0"):
        RowNormScaler(0.0).fit(X)


@parametrize_with_checks([RowNormScaler()])  # pyright: ignore[reportUntypedFunctionDecorator]
def test_the_scaler_is_a_transformer(estimator: Any, check: Any) -> None:
    check(estimator)


def test_log_odds_are_those_of_the_link() -> None:
    odds = clone(MarginLogOdds([[1.0, 0.0]], [0.5], 2.0)).fit(np.zeros((1, 2)))
    t = np.array([-30.0, -1.5, 0.0, 2.0, 700.0])
    found = odds.transform(np.column_stack([t - 0.5, t]))[:, 0]
    np.testing.assert_allclose(found[:4], np.log(expit(2 + t[:4]) / expit(2 - t[:4])), rtol=1e-9)
    assert found[4] == pytest.approx(698.0)
    assert list(odds.get_feature_names_out()) == ["log-odds 0"]
    with pytest.raises(ValueError, match="of 2 features"):
        MarginLogOdds([[1.0, 0.0]], [0.5], 2.0).fit(np.zeros((1, 3)))
