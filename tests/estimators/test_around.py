"""Searches and pipelines around a private estimator that look at the records are pointed at; those that do not are left alone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import StackingClassifier
from sklearn.feature_selection import RFECV, SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, Normalizer, OneHotEncoder, OrdinalEncoder, StandardScaler

from dperm.estimators import DPLogisticRegression, DPMLPClassifier, DPRidge, PublicRangeScaler
from dperm.release import SpendLog

ROWS = np.random.default_rng(0).uniform(size=(120, 4))
LABELS = np.arange(120) % 2
MODEL = DPLogisticRegression(classes=[0, 1], public_size=120, delta=1e-6)
NUMBERS = DPRidge(target_bound=1.0, public_size=120, delta=1e-6)


@pytest.mark.parametrize(
    "search",
    [
        GridSearchCV(MODEL, {"epsilon": [1.0, 2.0]}, cv=2, error_score="raise"),
        RandomizedSearchCV(MODEL, {"epsilon": [1.0, 2.0]}, n_iter=1, cv=2, error_score="raise"),
        CalibratedClassifierCV(MODEL, cv=2),
        RFECV(MODEL, step=3, cv=2, min_features_to_select=4),
        GridSearchCV(make_pipeline(PublicRangeScaler(), MODEL), {"dplogisticregression__epsilon": [1.0]}, cv=2),
    ],
    ids=lambda search: type(search).__name__,
)  # fmt: skip
def test_what_chooses_by_held_out_records_is_pointed_at(search: Any) -> None:
    with pytest.warns(UserWarning, match=f"{type(search).__name__} trains on parts of the records.*DPSearch"):
        search.fit(ROWS, LABELS)
    assert len(SpendLog.current().charges()) >= 2  # and each fit is charged


@pytest.mark.parametrize(
    ("front", "named"),
    [
        (StandardScaler(), "StandardScaler"),
        (PCA(2), "PCA"),
        (SelectKBest(k=2), "SelectKBest"),
        (SimpleImputer(), "SimpleImputer"),
        (OrdinalEncoder(), "OrdinalEncoder"),
        (make_union(PCA(1), Normalizer()), "PCA"),
        (make_pipeline(Normalizer(), StandardScaler()), "StandardScaler"),
        (ColumnTransformer([("x", StandardScaler(), [0, 1]), ("y", "passthrough", [2]), ("z", "drop", [3])]), "StandardScaler"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("model", [MODEL, NUMBERS], ids=["labels", "numbers"])
def test_a_step_that_learns_from_the_records_is_pointed_at(front: Any, named: str, model: Any) -> None:
    with pytest.warns(UserWarning, match=f"^{named} in front of a private estimator") as seen:
        make_pipeline(front, model).fit(ROWS, LABELS)
    assert not any("as by a StandardScaler" in str(warning.message) for warning in seen)  # once is enough


def test_networks_look_around_too() -> None:
    with pytest.warns(UserWarning, match="^PCA in front of a private estimator"):
        make_pipeline(PCA(2), DPMLPClassifier(classes=[0, 1], public_size=120, delta=1e-6)).fit(ROWS, LABELS)


@pytest.mark.parametrize(
    "whole",
    [
        make_pipeline(PublicRangeScaler(), MODEL),
        make_pipeline(Normalizer(), FunctionTransformer(np.sqrt), MODEL),
        make_pipeline(SimpleImputer(strategy="constant", fill_value=0.5), MODEL),
        make_pipeline(ColumnTransformer([("x", "passthrough", [0, 1]), ("y", PublicRangeScaler(), [2, 3])]), MODEL),
        make_pipeline(
            ColumnTransformer([("kind", OneHotEncoder(categories=[[0.0, 1.0]], handle_unknown="ignore"), [0])]), MODEL
        ),
        OneVsRestClassifier(MODEL),
        TransformedTargetRegressor(NUMBERS, func=np.negative, inverse_func=np.negative),
    ],
    ids=lambda whole: type(whole).__name__,
)  # fmt: skip
def test_what_looks_at_nothing_or_only_trains_is_left_alone(whole: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole.fit(ROWS, LABELS)


def test_a_fit_within_a_method_of_another_estimator_of_the_same_kind_is_its_own() -> None:
    """A caller's own subclass is no search, whatever it is called from."""

    class Mine(DPLogisticRegression):
        def fit(self, X: Any, y: Any, **given: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().fit(X, y, **given)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Mine(classes=[0, 1], public_size=120, delta=1e-6).fit(ROWS, LABELS)


def test_what_else_learns_around_an_estimator_is_warned_of() -> None:
    scaled = TransformedTargetRegressor(DPRidge(target_range=(-4, 4)), transformer=StandardScaler())
    with pytest.warns(UserWarning, match="StandardScaler"):
        scaled.fit(ROWS, ROWS[:, 0])
    stacked = StackingClassifier([("one", DPLogisticRegression(classes=[0, 1]))], LogisticRegression(), cv=2)
    with pytest.warns(UserWarning, match="StackingClassifier"):
        stacked.fit(ROWS, LABELS)
