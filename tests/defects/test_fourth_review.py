"""What a review of the methods, recipes and rooms refuted: each defect once, named by the number it had there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dperm.audit import Pair, Training, replay
from dperm.data import DataError, TargetRange, load_images
from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPRidge, model_from_json, model_to_json
from dperm.gradient import SGD, Clip, Constant, Plan, Poisson
from dperm.gradient.recipes import budgeted_recipe, dp_sgd, recipe
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
from dperm.torch import Callback, PrivateTrainer
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
def test_review_4_1_strangers_are_named_wherever_they_are(classes: int, size: int | None) -> None:
    labels = Y % classes
    for method, key in ((Cheats(), "stranger: mechanism"), (Narrowed(epochs=2), "stranger: bounding")):
        kind: type = DPLogisticRegression if key.endswith("mechanism") else DPLinearSVC
        model = kind(mechanism=method, classes=list(range(classes)), public_size=size)
        assert key in keys(model.fit(X, labels).certificate_), (method, size)


def test_review_4_1_another_kind_for_another_size_is_refused() -> None:
    facts = LinearObjective(Logistic(), 3).facts

    def make(facts: Any, count: Any) -> Any:
        made = OutputPerturbation.calibrate(facts, 1.0, 1e-5, beside=count)
        return made if facts.public_size == 1000 else Cheat(**vars(made))

    mechanism = NoisySize.known(make, facts, BUDGET)
    objective = LinearObjective(Logistic(), 3)
    with pytest.raises(ValueError, match="parts that the certificate does not name"):
        mechanism.release(objective, objective.records(X, np.where(Y > 0, 1.0, -1.0)), Channel.open())


def test_review_4_2_a_stranger_s_rows_are_named() -> None:
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
SIMPLE: dict[str, Any] = {**SETTINGS, "epochs": 2, "expected_batch_size": 30, "clipping_norm": 1.0}
DATA = torch.from_numpy(X).float(), torch.from_numpy(Y)


def test_review_4_3_a_fit_after_refused_steps_takes_the_optimizer() -> None:
    model = network()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.0), **SIMPLE)
    with pytest.raises(ValueError, match="not finite"):
        next(trainer.steps((DATA[0] * torch.nan, DATA[1])))
    trainer.fit(DATA)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert trainer.certificate is not None and "loop" not in str(trainer.certificate.public_facts["update"])
    with pytest.raises(ValueError, match="runs once"):
        trainer.fit(DATA, ema_decay=0.9)
    assert trainer._fitting.ema_decay is None


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:delta = ")
def test_review_4_4_noise_that_falls_with_a_private_size_is_not_refuted() -> None:
    rows, labels = DATA[0][:40], DATA[1][:40]
    decaying = partial(dp_sgd, epochs=2, expected_batch_size=20, clipping_norm=1.0, decay=0.5)

    def make(source: Any) -> PrivateTrainer:
        model = network()
        settings = {"epsilon": 3.0, "delta": 1e-3, "plan": decaying, "random_state": source}
        return PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), **settings)

    pairs = [Pair.adding("one more", (rows, labels), torch.ones(3), 1)]
    assert replay(Training.of_trainer(make, (rows, labels), pairs)).verdict == "consistent"


class Short(Objective):
    """Trains on rows cut at another norm than the estimator's."""

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        return replace(task, data_norm=0.05, intercept_scale=0.0).objective()


def test_review_4_5_saved_models_keep_the_numbers_of_a_stranger_s_objective() -> None:
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


def test_review_4_6_nothing_costs_more_than_its_budget() -> None:
    for method, text in ((Greedy(), "within epsilon = 1 at"), (Elsewhere(), "Expected a mechanism for Budget")):
        with pytest.raises(ValueError, match=text):
            DPLogisticRegression(mechanism=method).fit(X, Y > 0)
    model = network()
    with pytest.raises(ValueError, match="a policy with a budget of its own, got Plan"):
        PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), spendthrift, **SETTINGS).fit(DATA)
    assert SpendLog.current().charges() == []


def test_review_4_7_schedulers_do_not_fail_after_the_charge() -> None:
    model, other = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedules = torch.optim.lr_scheduler
    trainer = PrivateTrainer(model, cross_entropy, optimizer, **SIMPLE)
    wrong: list[Any] = [schedules.StepLR, schedules.StepLR(torch.optim.SGD(other.parameters(), lr=0.1), 1)]
    for schedule in wrong:
        with pytest.raises((TypeError, ValueError), match="scheduler"):
            trainer.fit(DATA, scheduler=schedule)
    assert SpendLog.current().charges() == []
    short = schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
    trainer.fit(DATA, scheduler=short, scheduler_interval="step")
    assert trainer.plan is not None and trainer.plan.steps == 20 and short.last_epoch == 10


class Counting(Callback):
    def __init__(self) -> None:
        self.steps = 0

    def on_step(self, step: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize("given", [lambda counting: (each for each in [counting]), lambda counting: counting])
def test_review_4_8_callbacks_of_any_kind_are_called(given: Any) -> None:
    model, counting = network(), Counting()
    trainer = PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), **SIMPLE)
    trainer.fit(DATA, callbacks=given(counting))
    assert counting.steps == 20


def test_review_4_9_the_number_of_records_is_public_under_replace_one() -> None:
    model = DPLogisticRegression(relation="replace_one", public_size=100, mechanism="gradient")
    with pytest.raises(ValueError, match="Expected public_size=300"):
        model.fit(X, Y > 0)
    with pytest.raises(ValueError, match="Expected public_size under replace_one"):
        model.set_params(public_size=None).mechanism_for(3)
    assert SpendLog.current().charges() == []


@dataclass(frozen=True)
class Mine(Softmax):
    pass


@pytest.mark.parametrize(("joint", "text"), [(Mine(3), "3 outputs: of a stranger's"), (Softmax(2), "a loss of 3 outputs")])
def test_review_4_10_joint_losses_fit_the_task(joint: Softmax, text: str) -> None:
    class Joining(Logistic):
        def joint(self, classes: int) -> Any:
            return joint

    with pytest.raises(ValueError, match=text):
        Gradient().build(Task(loss=Joining(), features=3, classes=3, public_size=300), BUDGET)


def test_review_4_11_a_method_that_chooses_an_equal_one() -> None:
    class Again(Objective):
        def chosen(self, task: Task, budget: Budget) -> Method:
            return Objective()

    assert Again().build(Task(loss=Huber(0.5), features=3, classes=2), BUDGET)[0].budget == BUDGET


def test_review_4_12_plain_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Any = ["poisson"]
    with pytest.raises(ValueError, match="Expected sampling to be one of"):
        Gradient(sampling=wrong)
    for given in ({"epochs": 3}, {"method": ["a"]}):
        with pytest.raises(ValueError, match="Expected mechanism to be one of"):
            DPRidge(mechanism=given).fit(X, Y)
    (tmp_path / "cifar10").mkdir()
    monkeypatch.setenv("DPERM_DATA", str(tmp_path))
    for content in (b"no archive", b"\x1f\x8b\x08\x00 cut short"):
        (tmp_path / "cifar10" / "cifar-10-binary.tar.gz").write_bytes(content)
        with pytest.raises(DataError, match="no archive, or a damaged one"):
            load_images("cifar10")
    assert TargetRange(-1e308, 1e308).scaled([0.0, 1e308]).tolist() == [0.0, 1.0]


def test_review_4_12_settings_of_a_method_are_parameters() -> None:
    model = DPLogisticRegression(mechanism="gradient").set_params(mechanism__epochs=4)
    assert model.mechanism == Gradient(epochs=4) and model.get_params()["mechanism__epochs"] == 4
    with pytest.raises(ValueError, match=r"Expected settings of Gradient\(epochs=4\) among .*, got speed"):
        model.set_params(mechanism__speed=2)
    assert repr(model.mechanism) == "Gradient(epochs=4)"


def test_review_4_13_what_was_fitted_does_not_change_afterwards() -> None:
    classes = [0, 1, 2]
    model = DPLogisticRegression(classes=classes, epsilon=5.0).fit(X, Y)
    classes.append(9)
    assert model.fitted_params_["classes"] == [0, 1, 2]


class Uncopied(Objective):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not to be copied")


def test_review_4_13_what_cannot_be_kept_fails_before_the_charge() -> None:
    with pytest.raises(TypeError, match="not to be copied"):
        DPLogisticRegression(mechanism=Uncopied()).fit(X, Y > 0)
    assert SpendLog.current().charges() == []


@recipe
def numbered(*, noise_multiplier: float, public_size: int) -> Any:
    return 7


def test_recipes_that_return_no_plan_are_named() -> None:
    model = network()
    wrong: list[tuple[Any, str]] = [
        (numbered, "got int: pass a recipe"),
        (lambda *, noise: None, "marked by dperm.gradient.recipes.recipe"),
        (Plan, "Expected a plan or a recipe"),
    ]
    for plan, text in wrong:
        with pytest.raises((ValueError, TypeError), match=text):
            PrivateTrainer(model, cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1), plan, **SETTINGS).fit(DATA)
    assert SpendLog.current().charges() == []


@pytest.mark.parametrize("sampling", ["balls_and_bins", "poisson"])
def test_a_noisy_size_refuses_no_batch_that_was_paid_for(sampling: str) -> None:
    """Two records, and batches of a hundred: the noisy number is released before anybody knows."""
    rows = np.random.default_rng(0).normal(size=(2, 6))
    for _ in range(10):
        method = Gradient(sampling=sampling, expected_batch_size=100, epochs=2)
        model = DPLogisticRegression(epsilon=1.0, classes=[0, 1], mechanism=method).fit(rows, [0, 1])
        assert model.certificate_.epsilon is not None and model.certificate_.epsilon <= 1.0
