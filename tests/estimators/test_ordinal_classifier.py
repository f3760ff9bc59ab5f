"""Ordinal regression through its front door: orders, shares, files, weights, persons, and defects that replay finds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from dperm.audit import Training, replay
from dperm.estimators import DPByPart, DPOrdinalClassifier, DPSearch, model_from_json, model_to_json
from dperm.objectives import OrdinalLogistic
from dperm.release import SpendLog
from helpers.catalogue.common import ADD, REPLACE, gradient, objective, output, perturbed
from helpers.engines import LocalEngine, cut

ORDER = ["low", "mid", "high", "top"]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (800, 3)) / 2
SCORE = 8 * X[:, 0] + RNG.logistic(size=800)
Y = np.array(ORDER)[np.digitize(SCORE, [-2.0, 0.0, 2.0])]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def fitted(**settings: Any) -> DPOrdinalClassifier:
    return DPOrdinalClassifier(**({"epsilon": 20.0, "classes": ORDER, "public_size": 800} | settings)).fit(X, Y)


def off(model: Any) -> float:
    """Mean error in ranks."""
    place = {label: number for number, label in enumerate(ORDER)}
    return float(np.mean([abs(place[one] - place[other]) for one, other in zip(model.predict(X), Y, strict=True)]))


def test_it_learns_the_order_and_not_the_alphabet() -> None:
    model = fitted()
    assert list(model.classes_) == ORDER
    assert (model.coef_.shape, model.thresholds_.shape) == ((1, 3), (3,))
    assert off(model) < 0.6
    assert off(fitted(classes=ORDER[::-1])) == pytest.approx(off(model), abs=0.05)  # the same scale, read from its other end
    assert off(fitted(classes=sorted(ORDER))) > off(model) + 0.2
    chances = model.predict_proba(X)
    assert np.allclose(chances.sum(axis=1), 1) and chances.min() >= 0
    assert np.array_equal(model.classes_[(chances.cumsum(axis=1) < 0.5).sum(axis=1)], model.predict(X))
    scores = model.decision_function(X)
    assert np.all(np.diff([ORDER.index(label) for label in model.predict(X)[np.argsort(scores)]]) >= 0)
    assert 0.5 < model.score(X, Y) <= 1


def test_a_model_of_more_classes_costs_no_more() -> None:
    many = np.digitize(SCORE, np.linspace(-4, 4, 19))
    wide = DPOrdinalClassifier(epsilon=1.0, classes=list(range(20))).fit(X, many)
    two = DPOrdinalClassifier(epsilon=1.0, classes=[0, 1]).fit(X, (SCORE > 0).astype(int))
    assert wide.certificate_.public_facts["lipschitz"] == two.certificate_.public_facts["lipschitz"]
    assert wide.certificate_.epsilon is not None and wide.certificate_.epsilon <= 1.0
    assert len(SpendLog.current().charges()) == 2


def test_shares_set_the_thresholds() -> None:
    model = fitted(shares=[0.1, 0.2, 0.3, 0.4])
    model.coef_, model.intercept_ = np.zeros((1, 3)), np.zeros(1)
    assert model.predict_proba(X[:1])[0] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    for wrong in ([0.5, 0.5], [0.1, 0.2, 0.3, 0.5], [0.0, 0.2, 0.4, 0.4]):
        with pytest.raises(ValueError, match="shares"):
            fitted(shares=wrong)


@pytest.mark.parametrize(
    "settings",
    [{}, {"mechanism": "gradient"}, {"mechanism": "output"}, {"relation": "replace_one"}, {"delta": 0.0, "mechanism": "output"},
     {"class_weight": {"low": 1, "mid": 1, "high": 2, "top": 4}}, {"fit_intercept": False}],
    ids=str,
)  # fmt: skip
def test_every_way_to_train_it_is_certified_and_saved(settings: dict[str, Any]) -> None:
    model = fitted(**settings)
    assert model.certificate_.epsilon is not None and model.certificate_.epsilon <= 20.0
    again, _ = model_from_json(model_to_json(model))
    assert list(again.classes_) == ORDER and np.array_equal(again.predict(X), model.predict(X))
    assert np.array_equal(again.predict_proba(X), model.predict_proba(X))


def test_classes_that_are_present_are_taken_sorted_and_the_certificate_says_so() -> None:
    model = DPOrdinalClassifier(epsilon=20.0).fit(X, np.digitize(SCORE, [-1, 1]) + 1)
    assert list(model.classes_) == [1, 2, 3]
    assert any("taken from the data" in item.checked for item in model.certificate_.assumptions)
    again, _ = model_from_json(model_to_json(model))
    assert np.array_equal(again.predict(X), model.predict(X))
    model.fit(X, np.digitize(SCORE, [-1, 0, 1, 2]))  # of another number of classes
    assert len(model.thresholds_) == 4


@pytest.mark.parametrize("labels", [Y, Y.astype(object)], ids=["texts", "objects"])
def test_texts_without_a_stated_order_are_refused_before_the_charge(labels: Any) -> None:
    with pytest.raises(ValueError, match=r"such as classes=\['high', 'low', 'mid', 'top'\]: .* the alphabet"):
        DPOrdinalClassifier(epsilon=1.0).fit(X, labels)
    assert not SpendLog.current().charges()
    ranks = np.array([ORDER.index(label) for label in Y]) * 5 - 5
    for numbers in (ranks, ranks.astype(object), ranks.astype(float)):  # the alphabet has "-5", "0", "10", "5"
        assert list(DPOrdinalClassifier(epsilon=1.0).fit(X, numbers).classes_) == [-5, 0, 5, 10]


@pytest.mark.parametrize(
    ("classes", "why"),
    [(["low", "mid", "high"], "Expected labels among classes"), (["low", "mid", "high", "high", "top"], "distinct classes"),
     (["low"], "2 to 100 ordered classes"), (list(map(str, range(101))), "2 to 100 ordered classes")],
)  # fmt: skip
def test_wrong_classes_are_refused_before_the_charge(classes: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fitted(classes=classes)
    assert not SpendLog.current().charges()


def test_persons_parts_searches_and_weights_are_as_of_others() -> None:
    assert off(DPOrdinalClassifier(epsilon=20.0, classes=ORDER, max_rows_per_unit=4).fit(X, Y, groups=np.arange(800) // 2)) < 0.7
    table = cut(X, Y, (300, 0, 500), LocalEngine())
    alike = {"epsilon": 20.0, "classes": ORDER, "random_state": 3}
    assert np.allclose(DPOrdinalClassifier(**alike).fit(table, None).coef_, DPOrdinalClassifier(**alike).fit(X, Y).coef_)
    weighed = DPOrdinalClassifier(epsilon=20.0, classes=ORDER, max_sample_weight=1.0)
    assert off(weighed.fit(X, Y, sample_weight=np.linspace(0, 1, 800))) < 0.7
    search = DPSearch(DPOrdinalClassifier(classes=ORDER), {"data_norm": [0.5, 1.0]}, epsilon=20.0)
    assert off(search.fit(X, Y, held_out=(X, Y)).best_estimator_) < 0.8
    parts = DPByPart(DPOrdinalClassifier(epsilon=20.0, classes=ORDER), {"a": 1, "b": 2}).fit(X, Y)
    assert {type(model) for model in parts.models_.values()} == {DPOrdinalClassifier}


@dataclass(frozen=True)
class Averaged(OrdinalLogistic):
    """What a sum over thresholds would be averaged to, without the sum being: a slope bound K − 1 times too small."""

    def lipschitz(self, data_norm: float) -> float:
        return super().lipschitz(data_norm) / len(self.thresholds)


@dataclass(frozen=True)
class Rooted(OrdinalLogistic):
    """A root of K − 1 too much."""

    def lipschitz(self, data_norm: float) -> float:
        return super().lipschitz(data_norm) / len(self.thresholds) ** 0.5


@dataclass(frozen=True)
class OfOneThreshold(OrdinalLogistic):
    """The curvature of a class at an end, taken for that of all."""

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 / 4


@pytest.mark.parametrize("relation", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("planted", "of", "found"),
    [(Averaged, output, True), (Rooted, output, True), (Averaged, perturbed, True), (Rooted, perturbed, True),
     (OfOneThreshold, perturbed, True), (OrdinalLogistic, output, False), (OrdinalLogistic, perturbed, False)],
)  # fmt: skip
def test_replay_finds_constants_that_are_wrong(
    planted: type[OrdinalLogistic], of: Any, found: bool, relation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mechanism is charged by the wrong constants, and runs on the true loss."""
    monkeypatch.setattr("dperm.objectives.linear.foreign", lambda loss: False)
    loss = planted((-0.1, 0.1))
    problem = objective(loss, relation)
    mechanism = of(problem)
    assert replay(Training.of_mechanism(mechanism, problem)).refuted == found


def test_clipped_gradients_are_as_of_others() -> None:
    problem = objective(OrdinalLogistic((-0.1, 0.1)))
    training = Training.of_mechanism(gradient(problem.facts), problem)
    assert not replay(replace(training, replay_pairs=training.replay_pairs[:8])).refuted
