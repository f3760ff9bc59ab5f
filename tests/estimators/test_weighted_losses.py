"""Weights of records and classes: user-defined losses inside them, and searches over them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from dperm.estimators import DPLogisticRegression, DPRidge, DPSearch
from dperm.mechanisms import Budget, Gradient, Objective, Output
from dperm.mechanisms.accuracy_first import AskRecords
from dperm.objectives import LinearObjective, Logistic, Loss, Squared, Task, Weighted
from dperm.privacy import Relation
from dperm.release import SpendLog

X = np.random.default_rng(0).normal(size=(60, 2)) / 3
Y = np.where(X[:, 0] > 0, "yes", "no")


class Tenfold(Logistic):
    """A stranger's: ten times the loss that it says is plain in it."""

    @property
    def plain(self) -> Loss:
        return Logistic()

    def value(self, t: Any, y: Any) -> Any:
        return 10 * super().value(t, y)

    def slope(self, t: Any, y: Any) -> Any:
        return 10 * super().slope(t, y)

    def curvature(self, t: Any, y: Any) -> Any:
        return 10 * super().curvature(t, y)


@pytest.mark.parametrize("method", [Output(), Objective(), Gradient()])
def test_a_stranger_s_loss_is_one_inside_weights_too(method: Any) -> None:
    for loss in (Tenfold(), Weighted(Tenfold())):
        task = Task(loss=loss, features=2, classes=2, public_size=60)
        with pytest.raises(ValueError, match="states a slope of at most 1, but has -10"):
            method.build(task, Budget(epsilon=1.0, delta=1e-5))


@dataclass(frozen=True)
class UpToTen(Weighted):
    """A stranger's whose weights reach ten; with constants that are `honest` or not."""

    honest: bool = True

    def admit(self, targets: Any) -> Any:
        if targets.ndim == 1:
            return self.base.admit(targets)
        return np.column_stack([self.base.admit(targets[:, 0]), np.clip(targets[:, 1], 0, 10)])

    def lipschitz(self, data_norm: float) -> float:
        return (10 if self.honest else 1) * self.base.lipschitz(data_norm)

    def smoothness(self, data_norm: float) -> float:
        return (10 if self.honest else 1) * self.base.smoothness(data_norm)

    def at_zero(self) -> float:
        return 10 * self.base.at_zero()


def test_weights_of_a_stranger_are_looked_at() -> None:
    with pytest.raises(ValueError, match=r"states a slope of at most 1, but has -10 at the prediction .* weight 10"):
        Output().build(Task(loss=UpToTen(Logistic(), False), features=2, public_size=60), Budget(epsilon=1.0, delta=1e-5))


def test_a_record_is_asked_no_more_than_whole() -> None:
    objective = LinearObjective(UpToTen(Logistic()), features=1)
    asked = AskRecords(goal="accuracy", target=0.9, epsilon=0.1)

    def excess(weights: list[float]) -> float:
        targets = np.column_stack([[1.0, 1.0, -1.0][: len(weights)], weights])
        records = objective.records(np.ones((len(weights), 1)), targets)
        return asked.excess(objective, records.relabelled(objective.loss.admit(records.targets)), np.ones(1))

    for weight in (10.0, 1.0, 0.3):
        moved = excess([1.0, 1.0, weight]) - excess([1.0, 1.0])
        assert abs(moved) <= asked.sensitivity(Relation.ADD_OR_REMOVE_ONE) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("estimator", "candidates", "message"),
    [
        (
            DPLogisticRegression(classes=["no", "yes"], max_sample_weight=1.0),
            {"mechanism": ["objective", "output"]},
            "no max_sample",
        ),
        (DPLogisticRegression(classes=["no", "yes"]), {"max_sample_weight": [None, 1.0]}, "no max_sample_weight"),
        (DPLogisticRegression(classes=["no", "yes"]), {"class_weight": [None, {"no": 1, "so": 2}]}, "one weight of each"),
        (DPRidge(max_sample_weight=1.0), {"radius": [1.0, 2.0]}, "no max_sample_weight"),
    ],
)
@pytest.mark.parametrize("how", ["each once", "geometric"])
def test_a_search_refuses_weights_before_it_is_paid_for(estimator: Any, candidates: Any, message: str, how: str) -> None:
    targets = X[:, 0] if isinstance(estimator, DPRidge) else Y
    with pytest.raises(ValueError, match=message):
        DPSearch(estimator, candidates, epsilon=2.0, how=how).fit(X, targets, held_out=(X, targets))
    assert not SpendLog.current().charges()


def test_a_search_over_public_weights_of_classes() -> None:
    estimator = DPLogisticRegression(classes=["no", "yes"], public_size=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = DPSearch(estimator, {"class_weight": [None, {"no": 1, "yes": 3}]}, epsilon=8.0, delta=1e-3, how="each once")
        assert len(found.fit(X, Y, held_out=(X, Y)).results_) == 2


def test_squares_of_a_stranger_keep_their_sentence() -> None:
    class Squares(Squared):
        pass

    for loss in (Squares(), Weighted(Squares())):
        task = Task(loss=loss, features=2, public_size=60)
        assert LinearObjective(loss, 2, public_size=60).facts.foreign_loss, task


def test_a_search_states_the_weights_of_classes() -> None:
    estimator = DPLogisticRegression(classes=["no", "yes"], class_weight={"no": 1.0, "yes": 2.0})
    found = DPSearch(estimator, {"data_norm": [1.0, 2.0]}, epsilon=1.0).fit(X, Y, held_out=(X, Y))
    assert any(item.key == "class weights" for item in found.certificate_.assumptions)
