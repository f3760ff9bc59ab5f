"""Several labels of the same records: one charge before the first model, one certificate, no model that says less."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.audit import Pair, Training, replay
from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPMultiLabel, DPRidge, model_from_json, model_to_json
from dperm.privacy import Relation, Risk, epsilon
from dperm.privacy.accountants.privacy_filters import BudgetExceeded
from dperm.release import SpendLog
from dperm.release.ledger.budgets import Budget

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (900, 3)) / 2
Y = (X + RNG.normal(0, 0.1, X.shape) > 0).astype(int)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def made(**settings: Any) -> DPMultiLabel:
    return DPMultiLabel(DPLogisticRegression(**({"epsilon": 3.0, "classes": [0, 1], "label": "stays"} | settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"relation": "replace_one"}, marks=pytest.mark.slow),
        pytest.param({"mechanism": "gradient", "public_size": 900}, marks=pytest.mark.slow),
        {"mechanism": "output"},
        {"max_rows_per_unit": 3},
    ],
    ids=str,
)
def test_all_labels_together_cost_the_budget(settings: dict[str, Any]) -> None:
    groups = np.arange(900) // 3 if "max_rows_per_unit" in settings else None
    model = made(**settings).fit(X, Y, groups)
    (charge,) = SpendLog.current().charges()
    assert charge.event == model.certificate_.event and charge.persons == (groups is not None)
    spent = model.certificate_.epsilon
    assert spent is not None and 2.9 < spent <= 3.0
    assert spent == pytest.approx(epsilon(charge.event, 1e-5), rel=1e-6)
    alone = epsilon(model.models_[0].objective_ and charge.event.events[0], 1e-5)  # pyright: ignore[reportAttributeAccessIssue]
    assert alone < 0.75 * spent
    for each in model.models_:
        assert each.certificate_ == model.certificate_
    assert model.score(X, Y) > 0.7
    assert model.predict(X).shape == model.predict_proba(X).shape == Y.shape


def test_a_model_of_one_label_that_is_saved_says_what_all_cost() -> None:
    model = made().fit(X, pd.DataFrame(Y, columns=["a", "b", "c"]))
    again, _ = model_from_json(model_to_json(model.models_[1]))
    assert again.certificate_.epsilon == model.certificate_.epsilon
    assert np.array_equal(again.predict(X), model.predict(X)[:, 1])


def test_each_label_has_noise_of_its_own() -> None:
    alike = np.column_stack([Y[:, 0]] * 2)
    for settings in ({}, {"random_state": 5}):
        one, other = (each.coef_ for each in made(**settings).fit(X, alike).models_)
        assert np.abs(one - other).max() > 1e-6
    first, second = (made(random_state=5).fit(X, Y).models_[2].coef_ for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize(
    ("estimator", "labels", "why"),
    [
        (DPLogisticRegression(classes=[0, 1]), Y[:, 0], "shape \\(n, L\\)"),
        (DPLogisticRegression(classes=[0, 1]), Y[:, :0], "shape \\(n, L\\)"),
        (DPLogisticRegression(classes=[0, 1]), Y[:50], "inconsistent numbers"),
        (DPLogisticRegression(classes=[0, 1]), Y + np.array([0, 0, 1]), "Of label 2: Expected labels among"),
        (DPLogisticRegression(), Y, "classes="),
        (DPLogisticRegression(classes=[0, 1, 2]), Y, "classes="),
        (DPLogisticRegression(classes=[0, 1], epsilon=Risk(advantage=0.1)), Y, "no Risk"),
        (DPLogisticRegression(classes=[0, 1], epsilon=-1.0), Y, "epsilon > 0"),
        (DPLogisticRegression(classes=[0, 1], random_state=np.random.default_rng(0)), Y, "whole number"),
        (DPRidge(), Y, "linear classifier"),
    ],
)
def test_what_cannot_be_is_refused_before_the_charge(estimator: Any, labels: Any, why: str) -> None:
    with pytest.raises((ValueError, TypeError), match=why):
        DPMultiLabel(estimator).fit(X, labels)
    assert not SpendLog.current().charges()


def test_a_budget_that_does_not_allow_all_allows_none() -> None:
    SpendLog.current().create_budget(Budget.of("stays", 1.0, 1e-5))
    with pytest.raises(BudgetExceeded):
        made().fit(X, Y)
    assert not SpendLog.current().charges()


def test_what_fails_after_the_charge_stays_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = made(), []
    right = DPLogisticRegression._hold

    def failing(self: Any, *given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("stopped")
        right(self, *given)

    monkeypatch.setattr(DPLogisticRegression, "_hold", failing)
    with pytest.raises(RuntimeError, match="stopped"):
        model.fit(X, Y)
    assert len(SpendLog.current().charges()) == 1 and not hasattr(model, "models_")


@pytest.mark.fast_cases("add_or_remove_one")
@pytest.mark.parametrize("relation", list(Relation))
def test_a_record_moves_each_model_by_what_its_label_was_charged(relation: Relation) -> None:
    """Through the estimator that each label is trained by, at its share of the budget."""
    given = DPLinearSVC(epsilon=4.0, classes=[0, 1], relation=relation.value, public_size=30)
    multi = DPMultiLabel(given)
    share = multi._share(X[:30], 3)
    data = (X[:30], Y[:30, 0])
    far = np.array([100.0, 0.0, 0.0])
    pairs = [Pair.neighbour(relation, f"label {label}", data, far, label) for label in (0, 1)]
    one = DPLinearSVC(**{**given.get_params(deep=False), **share, "random_state": None})
    assert not replay(Training.of_estimator(one, data, pairs)).refuted
