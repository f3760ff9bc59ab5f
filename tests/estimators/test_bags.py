"""Private bags: each member counts each record by a coin of its own, and each is charged."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.ensemble import BaggingClassifier

from dperm.audit import Pair, Training, replay
from dperm.estimators import DPBagging, DPByPart, DPLinearSVC, DPLogisticRegression, DPRidge
from dperm.mechanisms import Gradient, Output
from dperm.privacy import Relation, epsilon
from dperm.privacy.events import SelfComposed
from dperm.release import SpendLog

N = 600
X = np.random.default_rng(0).uniform(0, 1, (N, 3)) / 2
LABELS = np.where(X[:, 0] > 0.25, "yes", "no")
MODEL = DPLogisticRegression(classes=["no", "yes"], public_size=N)


@pytest.mark.parametrize(
    ("model", "y"),
    [
        (MODEL, LABELS),
        (DPLinearSVC(classes=[0, 1, 2], mechanism=Output()), np.arange(N) % 3),
        (DPRidge(target_range=(0, 1), public_size=N), X[:, 0]),
        (DPRidge(target_range=(0, 1), relation="replace_one"), X[:, 0]),
    ],
    ids=["labels", "three labels", "numbers", "numbers, replace-one"],
)
def test_a_bag_is_charged_once_and_costs_what_as_many_members_cost(model: Any, y: Any) -> None:
    bag = DPBagging(model, members=3, epsilon=6.0, delta=1e-4).fit(X, y)
    certificate = bag.certificate_
    certificate.verify()
    (charge,) = SpendLog.current().charges()
    assert charge.event == certificate.event
    assert isinstance(certificate.event, SelfComposed) and certificate.event.count == 3
    assert certificate.epsilon <= 6.0 and certificate.epsilon == pytest.approx(epsilon(certificate.event, 1e-4))
    assert certificate.epsilon > 4.0  # no more is left over than a rule's jump
    assert is_classifier(bag) == is_classifier(model) and is_regressor(bag) == is_regressor(model)
    assert all(member.certificate_ == certificate for member in bag.estimators_)
    coefficients = [np.ravel(member.coef_) for member in bag.estimators_]
    assert not np.array_equal(coefficients[0], coefficients[1])
    assert bag.predict(X).shape == (N,) and bag.score(X, y) <= 1.0
    answers = bag.predict(X)
    again = bag.predict(sp.csr_array(X))
    assert np.mean(again == answers) > 0.99 or again == pytest.approx(answers)
    said = {item.key: item.text for item in certificate.assumptions}
    assert "by a coin of that model and record alone" in said["coins of members"]


def test_coins_do_not_make_a_bag_cheaper() -> None:
    events = {DPBagging(MODEL, members=2, rate=rate, epsilon=4.0).fit(X, LABELS).certificate_.event for rate in (0.01, 0.5, 1.0)}
    assert len(events) == 1


def test_coins_are_of_single_records_and_depend_on_nothing() -> None:
    coins = DPBagging(MODEL, members=40, rate=0.3)._coins(5000)
    assert coins.shape == (40, 5000) and abs(coins.mean() - 0.3) < 0.01
    assert len(np.unique(coins.sum(axis=1))) > 5  # no draw of a fixed size
    assert np.abs(np.corrcoef(coins)[np.triu_indices(40, 1)]).max() < 0.08  # members' coins say nothing of each other


def test_a_bag_learns_and_takes_weights() -> None:
    options: dict[str, Any] = {"members": 3, "epsilon": 60.0, "rate": 0.5}
    assert DPBagging(MODEL, **options).fit(X, LABELS).score(X, LABELS) > 0.85
    lies = np.where(np.arange(N) % 2, LABELS, np.where(LABELS == "yes", "no", "yes"))
    weighed = DPBagging(MODEL, **options).fit(X, lies, sample_weight=(np.arange(N) % 2).astype(float))
    assert weighed.score(X, LABELS) > 0.85
    assert any(item.key == "weights apart" for item in weighed.certificate_.assumptions)
    assert weighed.predict_proba(X).shape == (N, 2) and weighed.decision_function(X).shape == (N,)
    again = DPBagging(MODEL, random_state=3, **options)
    assert np.array_equal(again.fit(X, LABELS).predict_proba(X), clone(again).fit(X, LABELS).predict_proba(X))
    assert again.certificate_.status == "not private"


@pytest.mark.parametrize(
    ("bag", "given", "message"),
    [
        (DPBagging(DPByPart(MODEL, {"a": 0})), {}, "a linear estimator"),
        (DPBagging(DPLogisticRegression()), {}, "state its classes"),
        (DPBagging(clone(MODEL).set_params(random_state=1)), {}, "give it to the bag"),
        (DPBagging(clone(MODEL).set_params(max_rows_per_unit=2)), {}, "coins of a bag are of single records"),
        (DPBagging(clone(MODEL).set_params(max_sample_weight=2.0)), {}, "sample_weight in fit with max_sample_weight=2"),
        (DPBagging(MODEL, members=0), {}, "members"),
        (DPBagging(MODEL, members=10**6), {}, "at most 1,000 members"),
        (DPBagging(MODEL, rate=0.0), {}, "rate"),
        (DPBagging(MODEL, rate=1.5), {}, "rate"),
        (DPBagging(MODEL, epsilon=-1.0), {}, "epsilon"),
        (DPBagging(MODEL), {"sample_weight": np.zeros(N)}, "weight of zero for every record"),
        (DPBagging(MODEL), {"sample_weight": np.full(N, np.nan)}, "finite and at least 0"),
        (DPBagging(clone(MODEL).set_params(relation="replace_one", public_size=5)), {}, "public_size=600"),
        (BaggingClassifier(DPBagging(MODEL)), {}, "Expected no BaggingClassifier"),
    ],
)
def test_what_a_bag_refuses_is_not_charged(bag: Any, given: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        bag.fit(X, LABELS, **given)
    assert SpendLog.current().charges() == []


def test_nothing_is_warned_of_after_the_charge() -> None:
    """What members would say of the records is said before, or not at all."""
    weights = np.where(np.arange(N) % 2, 9.0, 1.0)
    said: list[tuple[str, int]] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        bag = DPBagging(clone(MODEL).set_params(mechanism="output"), members=2).fit(X, LABELS, sample_weight=weights)
    said = [(str(each.message), len(SpendLog.current().charges())) for each in seen]
    assert len(said) == 1 and "weights are above 1" in said[0][0]
    assert len(bag.estimators_) == 2


COUNT = 30


class Bag(BaseEstimator):
    """A bag as audits of a front door take it: its members' coefficients are what it releases, and its coins are known."""

    kind: Any = DPBagging

    def __init__(self, epsilon: float = 4.0, relation: str = "add_or_remove_one", random_state: Any = None) -> None:
        self.epsilon = epsilon
        self.relation = relation
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Any:
        size = COUNT + (self.relation == Relation.ADD_OR_REMOVE_ONE)
        descent = Gradient(sampling="full", epochs=2)
        model = DPLogisticRegression(classes=[0, 1], public_size=size, mechanism=descent, relation=self.relation)
        bag = self.kind(model, members=2, epsilon=self.epsilon, random_state=self.random_state).fit(X, y)
        self.coef_ = np.stack([member.coef_ for member in bag.estimators_])
        self.intercept_ = np.stack([member.intercept_ for member in bag.estimators_])
        self.trace_: dict[str, Any] = {}
        self.certificate_ = bag.certificate_
        return self


class KnownCoins(DPBagging):
    def _coins(self, records: int) -> Any:
        return np.random.default_rng(1).random((COUNT + 1, self.members)).T[:, :records] < self.rate


class DrawsWithReplacement(DPBagging):
    """A planted defect: n of n, as scikit-learn's bags draw, so that one record more changes which others are drawn."""

    def _coins(self, records: int) -> Any:
        rng = np.random.default_rng(1)
        return np.stack([np.isin(np.arange(records), rng.integers(records, size=records)) for _ in range(self.members)])


class DrawsHalfOfThem(DPBagging):
    """A planted defect: a draw of a fixed share, in which the place of one record is taken from another."""

    def _coins(self, records: int) -> Any:
        order = np.random.default_rng(1).random((self.members, COUNT + 1))[:, :records].argsort(axis=1).argsort(axis=1)
        return order < records // 2


def audited(kind: type, relation: Relation) -> Training:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(COUNT, 3))
    labels = (rows[:, 0] > 0).astype(int)
    pairs = [Pair.neighbour(relation, f"label {y}", (rows, labels), np.array([9.0, 0.0, 0.0]), y) for y in (0, 1)]
    made = type("Audited", (Bag,), {"kind": kind})
    return Training.of_estimator(made(relation=relation.value), (rows, labels), pairs)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("relation", list(Relation))
def test_a_record_moves_its_own_terms_alone_in_every_member(relation: Relation) -> None:
    training = audited(KnownCoins, relation)
    found = replay(training, training.replay_pairs)
    assert found.verdict == "consistent", found
    assert found.details["largest_movement"] > 0.5


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [DrawsWithReplacement, DrawsHalfOfThem])
def test_draws_that_depend_on_other_records_are_refuted(kind: type) -> None:
    training = audited(kind, Relation.ADD_OR_REMOVE_ONE)
    assert replay(training, training.replay_pairs).verdict == "refuted"
