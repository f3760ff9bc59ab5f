"""Wrappers around a private estimator that draw records by others are refused, searches and pipelines that look at the records
are pointed at, and those that do neither are left alone."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    AdaBoostRegressor,
    BaggingClassifier,
    BaggingRegressor,
    GradientBoostingClassifier,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401 - it makes the class known
from sklearn.feature_selection import RFECV, SelectKBest
from sklearn.frozen import FrozenEstimator
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, RANSACRegressor
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain
from sklearn.pipeline import Pipeline, make_pipeline, make_union
from sklearn.preprocessing import (
    FunctionTransformer,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from sklearn.semi_supervised import SelfTrainingClassifier

from dperm.estimators import DPByPart, DPLogisticRegression, DPMLPClassifier, DPRidge, DPSearch, PublicRangeScaler
from dperm.release import SpendLog

ROWS = np.random.default_rng(0).uniform(size=(120, 4))
LABELS = np.arange(120) % 2
MODEL = DPLogisticRegression(classes=[0, 1], public_size=120, delta=1e-6)
NUMBERS = DPRidge(target_bound=1.0, public_size=120, delta=1e-6)


HALF = np.where(np.arange(120) < 80, LABELS, -1)  # labels of two thirds
NET = DPMLPClassifier(classes=[0, 1], public_size=120, delta=1e-6)


class Resampled(BaggingClassifier):
    """A bag of somebody else's, as other libraries derive theirs."""


class Centring:
    """A transformer that derives from nothing, and learns means."""

    def fit(self, X: Any, y: Any = None) -> Any:
        self.mean_ = X.mean(axis=0)
        return self

    def transform(self, X: Any) -> Any:
        return X - self.mean_


class Rebalancing(BaseEstimator):
    """Draws records by the labels of all, as steps of other libraries' pipelines do."""

    def fit(self, X: Any, y: Any = None) -> Any:
        return self

    def transform(self, X: Any) -> Any:
        return X

    def fit_resample(self, X: Any, y: Any) -> Any:
        return X, y


@pytest.mark.parametrize(
    ("whole", "instead"),
    [
        (BaggingClassifier(MODEL, 2), "DPBagging"),
        pytest.param(BaggingClassifier(MODEL, 2, n_jobs=2), "DPBagging", marks=pytest.mark.slow),  # it starts processes
        (BaggingClassifier(make_pipeline(PublicRangeScaler(), MODEL), 2), "DPBagging"),
        (BaggingClassifier(NET, 2), "DPBagging"),
        (Resampled(MODEL, 2), "DPBagging"),
        (BaggingRegressor(NUMBERS, 2), "DPBagging"),
        (AdaBoostClassifier(MODEL, n_estimators=2), "sample_weight"),
        (AdaBoostRegressor(NUMBERS, n_estimators=2), "sample_weight"),
        (CalibratedClassifierCV(MODEL, cv=2), "FrozenEstimator"),
        (CalibratedClassifierCV(MODEL, cv=2, n_jobs=2), "FrozenEstimator"),
        (CalibratedClassifierCV(MODEL, cv=2, ensemble=False), "FrozenEstimator"),
        (StackingClassifier([("one", MODEL)], LogisticRegression(), cv=2), "DPBagging"),
        (StackingClassifier([("one", LogisticRegression())], MODEL, cv=2), "DPBagging"),
        (StackingClassifier([("one", MODEL)], LogisticRegression(), cv=2, n_jobs=2), "DPBagging"),
        (StackingRegressor([("one", NUMBERS)], LinearRegression(), cv=2), "DPBagging"),
        (VotingClassifier([("one", MODEL), ("two", LogisticRegression())]), "LogisticRegression among them"),
        (VotingRegressor([("one", LinearRegression()), ("two", NUMBERS)]), "LinearRegression among them"),
        (GradientBoostingClassifier(init=MODEL, n_estimators=2), "without it"),
        (TunedThresholdClassifierCV(MODEL, cv=2), "predict --threshold"),
        (RANSACRegressor(NUMBERS, min_samples=10), "DPQuantileRegressor"),
        (Pipeline([("draws", Rebalancing()), ("model", MODEL)]), "class_weight"),
        (make_pipeline(StandardScaler(), BaggingClassifier(MODEL, 2)), "DPBagging"),
        (DPByPart(DPLogisticRegression(classes=[0, 1]), {"a": 0, "b": 1}), ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseEstimator) else "",
)
def test_what_draws_records_by_others_is_refused_before_the_charge(whole: Any, instead: str) -> None:
    named = type(whole).__name__ if not isinstance(whole, Pipeline) else ""
    if isinstance(whole, DPByPart):
        whole, named, instead = BaggingClassifier(whole, 2), "BaggingClassifier", "DPBagging"
    numbers = is_regressor(whole)
    with warnings.catch_warnings(), pytest.raises(ValueError, match=f"(?s)Expected .*{named}.* private estimator.*{instead}"):
        warnings.simplefilter("ignore")
        whole.fit(ROWS, ROWS[:, 0] if numbers else LABELS)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("whole", [SelfTrainingClassifier(MODEL), IterativeImputer(NUMBERS, max_iter=1)], ids=["labels", "gaps"])
def test_what_fills_gaps_by_other_records_is_refused_before_the_charge(whole: Any) -> None:
    rows = np.where(np.arange(480).reshape(120, 4) % 7, ROWS, np.nan) if isinstance(whole, IterativeImputer) else ROWS
    with pytest.raises(ValueError, match=f"Expected no {type(whole).__name__} around a private estimator"):
        whole.fit(rows, HALF)
    assert SpendLog.current().charges() == []


def test_chains_of_held_out_predictions_are_refused_and_those_of_labels_are_not() -> None:
    labels = np.stack([LABELS, 1 - LABELS], axis=1)
    with pytest.raises(ValueError, match="Expected ClassifierChain with cv=None around a private estimator"):
        ClassifierChain(MODEL, cv=3).fit(ROWS, labels)
    assert SpendLog.current().charges() == []
    ClassifierChain(MODEL).fit(ROWS, labels)
    assert len(SpendLog.current().charges()) == 2


def test_a_search_inside_a_bag_is_refused_before_its_charge() -> None:
    search = DPSearch(DPLogisticRegression(classes=[0, 1]), {"data_norm": [1.0, 2.0]}, epsilon=8.0, delta=1e-3)
    bag = BaggingClassifier(search, 2)
    with pytest.raises(ValueError, match="Expected no BaggingClassifier"):
        bag.fit(ROWS, LABELS)
    assert SpendLog.current().charges() == []


def test_members_that_vote_are_charged_each_and_that_is_said() -> None:
    votes = VotingClassifier([("one", MODEL), ("two", make_pipeline(PublicRangeScaler(), MODEL)), ("none", "drop")])
    with pytest.warns(UserWarning, match="VotingClassifier is not charged as a whole: each member is"):
        votes.fit(ROWS, LABELS)
    assert len(SpendLog.current().charges()) == 2


def test_a_model_that_is_fitted_already_may_be_calibrated_on_public_records() -> None:
    fitted = DPLogisticRegression(classes=[0, 1], public_size=120, delta=1e-6).fit(ROWS, LABELS)
    calibrated = CalibratedClassifierCV(FrozenEstimator(fitted), cv=2).fit(ROWS, LABELS)
    assert calibrated.predict(ROWS).shape == (120,) and len(SpendLog.current().charges()) == 1


def test_steps_in_front_are_named_on_the_certificate() -> None:
    with pytest.warns(UserWarning, match="^StandardScaler in front"):
        whole = make_pipeline(StandardScaler(), PublicRangeScaler((-9.0, 9.0)), MODEL).fit(ROWS, LABELS)
    certificate = whole[-1].certificate_
    said = {item.key: item for item in certificate.assumptions}
    assert "(PublicRangeScaler) were known without the rows" in said["preparation"].text
    assert "(StandardScaler) learnt from no protected record" in said["preparation learnt"].text
    assert any("learnt from records (StandardScaler)" in text for text in certificate.not_charged)
    alone = clone(MODEL).fit(ROWS, LABELS).certificate_
    assert not {item.key for item in alone.assumptions} & {"preparation", "preparation learnt"}
    assert alone.event == certificate.event


def test_a_reminder_is_given_once_in_a_process() -> None:
    search = GridSearchCV(make_pipeline(StandardScaler(), MODEL), {"dplogisticregression__epsilon": [1.0, 2.0]}, cv=2)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        search.fit(ROWS, LABELS)
        for _ in range(3):
            search.fit(ROWS, LABELS)
    texts = [str(each.message) for each in seen if each.category is UserWarning]
    assert len(texts) == len(set(texts)) == 2, texts  # what searches, and what scales
    assert all(len(text) < 260 for text in texts)


def test_a_reminder_that_was_ignored_is_given_later() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_pipeline(StandardScaler(), MODEL).fit(ROWS, LABELS)
    with pytest.warns(UserWarning, match="^StandardScaler in front"):
        make_pipeline(StandardScaler(), MODEL).fit(ROWS, LABELS)


@pytest.mark.parametrize(
    "search",
    [
        GridSearchCV(MODEL, {"epsilon": [1.0, 2.0]}, cv=2, error_score="raise"),
        RandomizedSearchCV(MODEL, {"epsilon": [1.0, 2.0]}, n_iter=1, cv=2, error_score="raise"),
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
        (ColumnTransformer([("x", "passthrough", [0])], remainder=StandardScaler()), "StandardScaler"),
        (SimpleImputer(strategy="constant", fill_value=0.5, add_indicator=True), "SimpleImputer"),
        (
            OrdinalEncoder(categories=[[0.0, 1.0]] * 4, min_frequency=2, handle_unknown="use_encoded_value", unknown_value=-1),
            "OrdinalEncoder",
        ),
        (TargetEncoder(categories=[[0.0, 1.0]] * 4, target_type="continuous"), "TargetEncoder"),
        (Centring(), "Centring"),
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
        whole = make_pipeline(PCA(2), PublicRangeScaler((-9.0, 9.0)), NET).fit(ROWS, LABELS)
    assert any("(PublicRangeScaler)" in item.text for item in whole[-1].certificate_.assumptions)


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
