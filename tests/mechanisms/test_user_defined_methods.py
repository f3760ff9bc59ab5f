"""User-defined methods and mechanisms are named on the certificate, keep to their budget and do not change afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dperm.estimators import DPLinearSVC, DPLogisticRegression, model_from_json, model_to_json
from dperm.gradient import SGD, Clip, Constant, Plan, Poisson
from dperm.gradient.recipes import budgeted_recipe
from dperm.mechanisms import (
    Budget,
    Gradient,
    Method,
    NoisySize,
    Objective,
    ObjectivePerturbation,
    Output,
    OutputPerturbation,
    one_for_each,
)
from dperm.objectives import Huber, LinearObjective, Logistic, Records, Softmax, Task
from dperm.release import Channel, SpendLog
from dperm.torch import PrivateTrainer
from helpers.oracle import cross_entropy

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(300, 3)), np.arange(300) % 3
BUDGET = Budget(1e-5, 1.0)


def keys(certificate: Any) -> set[str]:
    return {item.key for item in certificate.assumptions if item.key.startswith("stranger")}


class Cheat(OutputPerturbation):
    def sensitivity(self, facts: Any) -> float:
        return 1e-9


class Cheats(Output):
    def calibrated(self, facts: Any, budget: Budget, models: int, beside: Any = None) -> Any:
        part = OutputPerturbation.calibrate(facts, budget.epsilon or 0, budget.delta, copies=models, beside=beside)
        cheat = Cheat(budget=budget, strong_convexity=part.strong_convexity, noise_multiplier=part.noise_multiplier)
        return one_for_each(cheat, models)


@dataclass(frozen=True)
class Narrow(Clip):
    @property
    def bound(self) -> float:
        return 1e-6


class Narrowed(Gradient):
    def at(self, facts: Any, budget: Budget, models: int, noise_multiplier: float) -> Any:
        made: Any = super().at(facts, budget, 1, noise_multiplier)
        return one_for_each(replace(made, plan=replace(made.plan, bounding=Narrow(0.1))), models)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("size", [300, None])
def test_strangers_are_named_wherever_they_are(classes: int, size: int | None) -> None:
    labels = Y % classes
    for method, key in ((Cheats(), "stranger: mechanism"), (Narrowed(epochs=2), "stranger: bounding")):
        kind: type = DPLogisticRegression if key.endswith("mechanism") else DPLinearSVC
        model = kind(mechanism=method, classes=list(range(classes)), public_size=size)
        assert key in keys(model.fit(X, labels).certificate_), (method, size)


def test_another_kind_for_another_size_is_refused() -> None:
    facts = LinearObjective(Logistic(), 3).facts

    def make(facts: Any, count: Any) -> Any:
        made = OutputPerturbation.calibrate(facts, 1.0, 1e-5, beside=count)
        return made if facts.public_size == 1000 else Cheat(**vars(made))

    mechanism = NoisySize.known(make, facts, BUDGET)
    objective = LinearObjective(Logistic(), 3)
    with pytest.raises(ValueError, match="parts that the certificate does not name"):
        mechanism.release(objective, objective.records(X, np.where(Y > 0, 1.0, -1.0)), Channel.open())


def test_a_stranger_s_rows_are_named() -> None:
    class Longer(Records):
        pass

    objective = LinearObjective(Logistic(), 3, public_size=300)
    records = objective.records(X, np.where(Y > 0, 1.0, -1.0))
    records.__class__ = Longer
    mechanism = ObjectivePerturbation.calibrate(objective.facts, 1.0, 1e-5)
    assert "stranger: rows' type" in keys(mechanism.release(objective, records, Channel.open()).certificate)
    assert type(records.relabelled(records.targets)) is Longer


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 3)


SETTINGS: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-5, "public_size": 300}
DATA = torch.from_numpy(X).float(), torch.from_numpy(Y)


class Short(Objective):
    """Trains on rows cut at another norm than the estimator's."""

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        return replace(task, data_norm=0.05, intercept_scale=0.0).objective()


def test_saved_models_keep_the_numbers_of_a_stranger_s_objective() -> None:
    model = DPLogisticRegression(mechanism=Short(), epsilon=5.0).fit(X, Y > 0)
    model.coef_ = np.array([[9.0, -7.0, 3.0]])
    again: Any = model_from_json(model_to_json(model))[0]
    assert again.objective_ == model.objective_ and np.array_equal(again.predict_proba(X), model.predict_proba(X))


class Greedy(Objective):
    def calibrated(self, facts: Any, budget: Budget, models: int) -> Any:
        return replace(ObjectivePerturbation.calibrate(facts, 20.0, budget.delta), budget=budget)


class Elsewhere(Objective):
    def build(self, task: Task, budget: Budget) -> Any:
        return super().build(task, Budget(1e-2, 20.0))


@budgeted_recipe
def spendthrift(*, epsilon: float, delta: float, public_size: int | None, earlier: Any = None) -> Plan:
    return Plan(Poisson(0.1), Clip(1.0), Constant(0.3), SGD(0.1), 10, public_size or 300)


def test_nothing_costs_more_than_its_budget() -> None:
    for method, text in ((Greedy(), "within epsilon = 1 at"), (Elsewhere(), "Expected a mechanism for Budget")):
        with pytest.raises(ValueError, match=text):
            DPLogisticRegression(mechanism=method).fit(X, Y > 0)
    model = network()
    with pytest.raises(ValueError, match="a policy with a budget of its own, got Plan"):
        PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), spendthrift, **SETTINGS).fit(DATA)
    assert SpendLog.current().charges() == []


@dataclass(frozen=True)
class Mine(Softmax):
    pass


@pytest.mark.parametrize(("joint", "text"), [(Mine(3), "3 outputs: of a stranger's"), (Softmax(2), "a loss of 3 outputs")])
def test_joint_losses_fit_the_task(joint: Softmax, text: str) -> None:
    class Joining(Logistic):
        def joint(self, classes: int) -> Any:
            return joint

    with pytest.raises(ValueError, match=text):
        Gradient().build(Task(loss=Joining(), features=3, classes=3, public_size=300), BUDGET)


def test_a_method_that_chooses_an_equal_one() -> None:
    class Again(Objective):
        def chosen(self, task: Task, budget: Budget) -> Method:
            return Objective()

    assert Again().build(Task(loss=Huber(0.5), features=3, classes=2), BUDGET)[0].budget == BUDGET


def test_settings_of_a_method_are_parameters() -> None:
    model = DPLogisticRegression(mechanism="gradient").set_params(mechanism__epochs=4)
    assert model.mechanism == Gradient(epochs=4) and model.get_params()["mechanism__epochs"] == 4
    with pytest.raises(ValueError, match=r"Expected settings of Gradient\(epochs=4\) among .*, got speed"):
        model.set_params(mechanism__speed=2)
    assert repr(model.mechanism) == "Gradient(epochs=4)"


def test_what_was_fitted_does_not_change_afterwards() -> None:
    classes = [0, 1, 2]
    model = DPLogisticRegression(classes=classes, epsilon=5.0).fit(X, Y)
    classes.append(9)
    assert model.fitted_params_["classes"] == [0, 1, 2]


class Uncopied(Objective):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not to be copied")


def test_what_cannot_be_kept_fails_before_the_charge() -> None:
    with pytest.raises(TypeError, match="not to be copied"):
        DPLogisticRegression(mechanism=Uncopied()).fit(X, Y > 0)
    assert SpendLog.current().charges() == []
