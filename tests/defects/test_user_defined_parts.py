"""User-defined channels, losses, networks and estimators: refused where they contradict themselves, named elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dperm._random import Randomness
from dperm.audit.white_box import one_run_gradients, white_box
from dperm.data import DataError
from dperm.data.sets import named_sets as registry
from dperm.estimators import DPLogisticRegression, DPSearch, model_from_json, model_to_json
from dperm.gradient import SGD, Averaged, Clip, Constant, FullBatch, GradientDifference, Plan, PoissonRows
from dperm.gradient.recipes import dp_sgd
from dperm.mechanisms import Budget, GradientPerturbation, Objective, ObjectivePerturbation, OutputPerturbation
from dperm.objectives import LinearObjective, Logistic, Loss
from dperm.objectives.targets import Interval, Signs
from dperm.privacy import Certificate, Gaussian
from dperm.release import Channel, SpendLog, SystemSource
from dperm.torch import Callback, PrivateTrainer
from dperm.torch.engine.gradient_forms import Outer
from dperm.torch.engine.rules import rule_for
from dperm.torch.engine.tracing import Run, detached

X = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 2))
Y = (X[:, 0] > 0).astype(int)
OBJECTIVE = LinearObjective(Logistic(), features=2, strong_convexity=1.0, public_size=60)


def said(certificate: Certificate | None) -> str:
    assert certificate is not None and certificate.status == "certified"
    return " ".join(assumption.text for assumption in certificate.assumptions if assumption.responsible == "caller")


def test_a_channel_is_dperm_s_and_stays_what_it_was_opened_as() -> None:
    with pytest.raises(TypeError, match="cannot be derived from"):

        class Quiet(Channel):  # pyright: ignore[reportUnusedClass]
            pass

    class Deaf(SpendLog):
        pass

    with pytest.raises(TypeError, match=r"Expected a SpendLog of dperm's own, got .*Deaf"):
        Channel.open(log=Deaf("deaf.db"))
    channel: Any = Channel.open()
    for change in (
        lambda: setattr(channel, "source", Channel.open(1).source),
        lambda: setattr(channel, "log", None),
        lambda: setattr(channel.source, "randomness", Channel.open(1).source),
        lambda: setattr(channel.source.randomness, "noise", None),
    ):
        with pytest.raises(AttributeError):
            change()

    class Door:
        provenance = channel.provenance

    door: Any = Door()
    mechanism = OutputPerturbation.calibrate(OBJECTIVE.facts, 1.0, 1e-5, strong_convexity=1.0)
    with pytest.raises(TypeError, match=r"Expected a Channel, got .*Door"):
        mechanism.release(OBJECTIVE, OBJECTIVE.records(X, 2.0 * Y - 1), door)


class OfBatches(Logistic):
    """Classes weigh equally in a batch."""

    def weight(self, y: Any) -> Any:
        share = np.mean(y > 0)
        return np.where(y > 0, 1 - share, share) / max(share, 1 - share) if 0 < share < 1 else np.ones_like(y)

    def value(self, t: Any, y: Any) -> Any:
        return self.weight(y) * super().value(t, y)

    def slope(self, t: Any, y: Any) -> Any:
        return self.weight(y) * super().slope(t, y)

    def curvature(self, t: Any, y: Any) -> Any:
        return self.weight(y) * super().curvature(t, y)


@dataclass(frozen=True)
class Distance(Loss):
    """Of targets in [−1, 1]; sound as it is."""

    @property
    def name(self) -> str:
        return "distance"

    targets = Interval(-1.0, 1.0)

    def at_zero(self) -> float:
        return 2**0.5 - 1

    def value(self, t: Any, y: Any) -> Any:
        return np.sqrt(1 + (t - y) ** 2) - 1

    def slope(self, t: Any, y: Any) -> Any:
        return (t - y) / np.sqrt(1 + (t - y) ** 2)

    def curvature(self, t: Any, y: Any) -> Any:
        return (1 + (t - y) ** 2) ** -1.5

    def lipschitz(self, data_norm: float) -> float:
        return data_norm

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2


class ScaledByTheLargest(Distance):
    def admit(self, targets: Any) -> Any:
        return targets / max(1.0, np.abs(targets).max())


class SteeperBetween(Distance):
    def value(self, t: Any, y: Any) -> Any:
        return np.where(np.abs(np.abs(y) - 0.5) < 0.4, 50.0, 1.0) * super().value(t, y)

    def slope(self, t: Any, y: Any) -> Any:
        return np.where(np.abs(np.abs(y) - 0.5) < 0.4, 50.0, 1.0) * super().slope(t, y)

    def curvature(self, t: Any, y: Any) -> Any:
        return np.where(np.abs(np.abs(y) - 0.5) < 0.4, 50.0, 1.0) * super().curvature(t, y)


class AdmitsAnything(Distance):
    """Its constants hold for targets in ±1; `targets` says that there are no others."""

    targets = Signs()

    def admit(self, targets: Any) -> Any:
        return targets

    def slope(self, t: Any, y: Any) -> Any:
        return np.maximum(1, np.abs(y)) * super().slope(t, y)

    def value(self, t: Any, y: Any) -> Any:
        return np.maximum(1, np.abs(y)) * super().value(t, y)

    def curvature(self, t: Any, y: Any) -> Any:
        return np.maximum(1, np.abs(y)) * super().curvature(t, y)


class Lowered(Distance):
    def at_zero(self) -> float:
        return 1e-9


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (OfBatches(), "another (value|slope|curvature) for a record beside others"),
        (ScaledByTheLargest(), "admits a target beside others as another"),
        (SteeperBetween(), "states a slope of at most 1, but has"),
        (AdmitsAnything(), "states a slope of at most 1, but has"),
        (Lowered(), "lies at most 1e-09 above its least value"),
    ],
)
def test_a_loss_that_contradicts_itself_is_refused(loss: Loss, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LinearObjective(loss, features=2, strong_convexity=1.0, public_size=60)


def test_a_sound_loss_of_a_stranger_s_passes_and_is_named() -> None:
    objective = LinearObjective(Distance(), features=2, strong_convexity=1.0, public_size=60)
    mechanism = OutputPerturbation.calibrate(objective.facts, 1.0, 1e-5, strong_convexity=1.0)
    released = mechanism.release(objective, objective.records(X, X[:, 0]), Channel.open())
    assert "Distance is of each record by itself and convex" in said(released.certificate)


@dataclass(frozen=True)
class Feedback(Plan):
    """What it keeps of records is not charged, and it says so."""

    claim = "Its feedback is made of records and is not charged."


def feedback() -> Feedback:
    made = dp_sgd(noise_multiplier=1.0, public_size=60, epochs=2, expected_batch_size=10, clipping_norm=1.0)
    return Feedback(**{field.name: getattr(made, field.name) for field in dataclasses.fields(made)})


def test_what_says_that_it_is_only_claimed_is_not_certified() -> None:
    facts = OBJECTIVE.facts
    mechanism = GradientPerturbation.calibrate(lambda noise: replace(feedback(), noise=Constant(noise)), facts, 1.0, 1e-5)
    with pytest.raises(TypeError, match=r"says that it is not private .* add Unsupported"):
        mechanism.release(OBJECTIVE, OBJECTIVE.records(X, 2.0 * Y - 1), Channel.open())
    trainer = PrivateTrainer(nn.Linear(2, 2), loss_of, plan=feedback(), delta=1e-5, public_size=60)
    for way in (trainer.planned, lambda: trainer.fit(TENSORS, progress=False)):
        with pytest.raises(TypeError, match="says that it is not private"):
            way()

    @dataclass(frozen=True, kw_only=True, repr=False)
    class Published(Objective):
        key = ""
        claimed = True

    with pytest.raises(TypeError, match="only claimed, but not in its event"):
        DPLogisticRegression(epsilon=1.0, delta=1e-5, classes=[0, 1], public_size=60, mechanism=Published()).fit(X, Y)
    assert SpendLog.current().charges() == []


def test_differences_rest_on_their_anchor() -> None:
    plan = replace(
        dp_sgd(noise_multiplier=1.0, public_size=60, epochs=2, expected_batch_size=10, clipping_norm=1.0),
        query=GradientDifference(np.zeros(3)),
    )
    mechanism = GradientPerturbation.calibrate(lambda noise: replace(plan, noise=Constant(noise)), OBJECTIVE.facts, 1.0, 1e-5)
    certificate = mechanism.certificate(OBJECTIVE.facts, Channel.open().provenance)
    assert "the anchor) were made from releases or public data alone" in said(certificate)
    plain = ObjectivePerturbation.calibrate(OBJECTIVE.facts, 1.0, 1e-5)
    assert "anchor" not in said(plain.certificate(OBJECTIVE.facts, Channel.open().provenance))


TENSORS = (torch.from_numpy(X).float(), torch.from_numpy(Y))


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


class Backtrack(torch.optim.SGD):
    """May look at anything between two steps."""


class OwnLinear(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return torch.inner(input, self.weight)


@rule_for(torch.inner)
def own_rule(run: Run, input: Tensor, weight: Any) -> Tensor:
    def read(gradient: Tensor, kept: Tensor) -> Iterator[tuple[nn.Parameter, Any]]:
        yield weight, Outer(gradient, kept)

    return run.together(lambda x: run.tape.tap(torch.inner(x, detached(weight)), [weight], read, (x,)), input)


def fitted(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **given: Any) -> PrivateTrainer:
    trainer = PrivateTrainer(model, loss_of, optimizer, epsilon=1.0, delta=1e-5, epochs=1, expected_batch_size=10, public_size=60)
    trainer.fit(TENSORS, progress=False, **given)
    return trainer


def test_strangers_in_a_network_s_run_are_named() -> None:
    model = nn.Linear(2, 2)
    assert "Backtrack reads released numbers alone" in said(fitted(model, Backtrack(model.parameters(), lr=0.1)).certificate)
    assert "own_rule computes each record's output" in said(fitted(OwnLinear(2, 2, bias=False)).certificate)
    plain = fitted(nn.Linear(2, 2), callbacks=[Callback()])
    assert "optimizer" not in said(plain.certificate) and "rule" not in said(plain.certificate)
    assert plain.certificate is not None and not any("show_private" in text for text in plain.certificate.not_charged)
    shown = fitted(nn.Linear(2, 2), show_private=True).certificate
    assert shown is not None and any("show_private" in text for text in shown.not_charged)
    with pytest.raises(ValueError, match="a search that this run was a try of"):
        plain.certify_as(Certificate.issue(mechanism="x", event=Gaussian(1000.0), delta=1e-5))


def test_the_white_box_takes_no_plan_that_draws_rows() -> None:
    plan = Plan(PoissonRows(0.2, 3), Clip(1.0), Constant(1.0), SGD(0.1), 2, 60)
    records = OBJECTIVE.records(X, 2.0 * Y - 1)
    for audit in (white_box, one_run_gradients):
        with pytest.raises(TypeError, match="Expected a plan that draws records"):
            audit(plan, OBJECTIVE, records, delta=1e-5)


def test_a_schema_among_the_named_ones_says_where_its_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    adult = dict(registry._description("adult"))  # pyright: ignore[reportPrivateUsage]
    del adult["files"]
    monkeypatch.setattr(registry, "_description", lambda name: adult)
    with pytest.raises(DataError, match="The schema of adult names no rows: give it files"):
        registry.load("adult")


class Standardised(DPLogisticRegression):
    """By the means of its own records."""


def test_an_estimator_derived_from_ours_is_named_and_not_saved() -> None:
    model = Standardised(epsilon=1.0, delta=1e-5, classes=[0, 1], public_size=60).fit(X, Y)
    assert "Standardised prepares each record by itself" in said(model.certificate_)
    with pytest.raises(TypeError, match="of a class of dperm's own, got Standardised"):
        model_to_json(model)
    search = DPSearch(model, {"alpha": [0.1, 1.0]}, epsilon=1.0, delta=1e-5)
    assert "Standardised prepares each record by itself" in said(search.fit(X, Y, held_out=(X, Y)).certificate_)


@dataclass(frozen=True, kw_only=True, repr=False)
class Strange(Objective):
    key = ""


def test_a_stranger_s_method_is_asked_for_where_a_file_cannot_hold_it() -> None:
    model = DPLogisticRegression(epsilon=1.0, delta=1e-5, classes=[0, 1], public_size=60, mechanism=Strange()).fit(X, Y)
    again: Any = model_from_json(model_to_json(model))[0]
    assert np.array_equal(again.predict(X), model.predict(X))
    with pytest.raises(ValueError, match=r"got one that is not dperm's: .*set_params\(mechanism="):
        again.mechanism_for(2)
    assert isinstance(again.set_params(mechanism=Strange()).mechanism_for(2)[0], ObjectivePerturbation)


def gradient(objective: LinearObjective, **changes: Any) -> GradientPerturbation:
    parts: dict[str, Any] = {
        "sampler": FullBatch(), "bounding": Clip(0.5), "noise": Constant(2.0), "update": SGD(0.1), "steps": 6,
        "public_size": objective.public_size or 40,
    }  # fmt: skip
    return GradientPerturbation(budget=Budget(1e-5), plan=Plan(**(parts | changes)))


@dataclass(frozen=True)
class Mine(SGD):
    pass


class MyObjective(LinearObjective):
    pass


class MyMechanism(GradientPerturbation):
    pass


def test_strangers_are_named_wherever_they_sit() -> None:
    objective = LinearObjective(Logistic(), 2, public_size=40)
    mine = MyObjective(Logistic(), 2, public_size=40)
    plan = gradient(objective).plan

    def assumed(mechanism: Any, problem: Any = objective) -> str:
        records = problem.records(np.ones((40, 2)), np.ones(40))
        release = mechanism.release(problem, records, Channel.open())
        return " ".join(assumption.text for assumption in release.certificate.assumptions)

    for update in (Mine(0.1), Averaged(Mine(0.1), 2), Averaged(Averaged(Mine(0.1), 1), 2)):
        assert "Mine reads released numbers alone" in assumed(gradient(objective, update=update))
    assert "MyObjective" in assumed(gradient(objective), mine)
    assert "MyMechanism" in assumed(MyMechanism(budget=Budget(1e-5), plan=plan))
    assert "Mine" not in assumed(gradient(objective)) and "My" not in assumed(gradient(objective))


class Seeded(Randomness):
    pass


def test_only_our_own_randomness_is_believed() -> None:
    honest = Randomness.from_system()
    assert Channel(SystemSource(honest)).private
    assert not Channel(SystemSource(Seeded(honest.noise, honest.sampling, "mine", private=True))).private
