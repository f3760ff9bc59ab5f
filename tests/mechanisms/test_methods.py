"""Methods: how to train, as values."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPMLPClassifier, model_to_json
from dperm.mechanisms import (
    Auto,
    BoltOn,
    Budget,
    Coordinate,
    FrankWolfe,
    Gradient,
    GreedyCoordinate,
    LastIterate,
    Method,
    Objective,
    Output,
    OutputPerturbation,
    Preconditioned,
    known_methods,
    method_from_dict,
    method_of,
)
from dperm.objectives import Huber, Logistic, Softmax, Squared, Task
from dperm.privacy import Provenance, Relation

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK = Task(loss=Logistic(), features=3, classes=2, public_size=1000)
BUDGET = Budget(1e-5, 1.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Objective(calibration="none"), "none"),
        (lambda: Objective(strong_convexity=-1.0), "strong_convexity"),
        (lambda: Output(strong_convexity=0), "strong_convexity"),
        (lambda: Gradient(sampling="sorted"), "sorted"),
        (lambda: Gradient(epochs=0), "epochs > 0, got 0"),
        (lambda: Gradient(sampling="importance", epochs=2.5), "epochs to be an integer, got 2.5"),
        (lambda: Gradient(sampling="full", expected_batch_size=10), "no expected_batch_size"),
        (lambda: Gradient(learning_rate=float("nan")), "nan"),
    ],
)
def test_bad_methods_are_refused_when_they_are_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("method", "relation"),
    [
        (BoltOn(epochs=3, batch_size=7, learning_rate=0.125, strong_convexity=2.0), Relation.REPLACE_ONE),
        (Coordinate(l1=0.25, l2=0.5, box=3.0, epochs=4, clipping_norm=0.75), Relation.ADD_OR_REMOVE_ONE),
        (FrankWolfe(radius=2.0, steps=6, entry_bound=0.5), Relation.ADD_OR_REMOVE_ONE),
        (GreedyCoordinate(steps=6, entry_bound=0.5, l1=0.25, l2=0.5, box=3.0), Relation.ADD_OR_REMOVE_ONE),
        (
            LastIterate(epochs=3, batch_size=7, learning_rate=0.125, radius=2.0, strong_convexity=0.5),
            Relation.REPLACE_ONE,
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_method_states_is_what_its_mechanism_runs_with(method: Method, relation: Relation) -> None:
    """Each setting reaches the field of the mechanism that has its name, whatever the rule would say."""
    mechanism, _ = method.build(replace(TASK, relation=relation), BUDGET)
    names = [field.name for field in dataclasses.fields(method)]
    assert all(getattr(method, name) != getattr(type(method)(), name) for name in names if name != "random_stop")
    assert {name: getattr(mechanism, name) for name in names} == {name: getattr(method, name) for name in names}


def test_methods_are_values() -> None:
    """Of numbers of any type, as estimators and files hold them."""
    method = Gradient(epochs=np.int64(5), clipping_norm=np.float32(0.5))
    assert method == Gradient(epochs=5, clipping_norm=0.5) and type(method.epochs) is int
    for each in (method, Objective(), Output(strong_convexity=2.0)):
        assert method_from_dict(json.loads(json.dumps(each.to_dict()))) == each and hash(each) == hash(clone(each, safe=False))


def test_what_auto_means() -> None:
    def chosen(budget: Budget = BUDGET, **changes: Any) -> Method:
        return Auto().chosen(Task(**{**vars(TASK), **changes}), budget)

    assert chosen() == Objective()
    assert chosen(classes=3) == Gradient()
    assert chosen(classes=3, loss=Huber(0.5)) == Gradient()  # a model for each class
    assert chosen(classes=0, loss=Squared(1.0, 5.0)) == chosen(classes=0, loss=Squared(1.0)) == Preconditioned()
    assert chosen(classes=0, loss=Squared(1.0), features=5000) == Gradient(sampling="full")
    assert chosen(Budget(0.0, 1.0), classes=3) == Output()
    for relation in Relation:
        task = dataclasses.replace(TASK, relation=relation)
        refusing: set[str] = set()
        for key, method in known_methods().items():
            try:
                mechanism, objective = method().build(task, BUDGET)
            except ValueError:
                refusing.add(key)
                continue
            assert mechanism.budget == BUDGET and objective.outputs == 1
            certificate = mechanism.certificate(objective.facts, Provenance.audit())
            assert certificate.epsilon is None if certificate.claim else 0.99 < certificate.epsilon <= 1.0
        added = {"bolt-on", "last-iterate"}
        always = {"accuracy_first", "preconditioned"}  # one has no aim, the other is for numbers
        assert refusing == always | (added if relation is Relation.ADD_OR_REMOVE_ONE else set())


def test_one_model_or_one_for_each() -> None:
    three = Task(**{**vars(TASK), "classes": 3})
    joint = Gradient().build(three, BUDGET)
    assert joint[1].loss == Softmax(3) and "one against" not in joint[0].name
    apart = Objective().build(three, BUDGET)
    assert apart[1].loss == Logistic(2.0) and "one against the rest of 3" in apart[0].name


def test_the_margin_is_the_method_s() -> None:
    """2 unless it is said, or the loss has one; 0 where published calibrations are asked for. Other losses have none."""
    for method, margin in (
        (Objective(), 2.0),
        (Objective(margin=0), 0.0),
        (Objective(margin=3.5), 3.5),
        (Objective(calibration="kifer"), 0.0),
        (Objective(calibration="generic", margin=1.0), 1.0),
        (Gradient(), 0.0),
        (Output(), 0.0),
    ):
        mechanism, objective = method.build(TASK, BUDGET)
        assert objective.loss == Logistic(margin)
        plain = replace(objective, loss=Logistic())
        assert objective.facts == replace(plain.facts, loss_at_zero=objective.facts.loss_at_zero)
        assert mechanism.event(objective.facts) == mechanism.event(plain.facts)  # it costs nothing
    own = Task(**{**vars(TASK), "loss": Logistic(1.0)})
    assert Objective().objective(own).loss == Logistic(1.0) and Objective(margin=0.0).objective(own).loss == Logistic()
    svm = Task(**{**vars(TASK), "loss": Huber(0.5)})
    assert Objective().objective(svm).loss == Huber(0.5)
    with pytest.raises(ValueError, match="no margin with the huber loss"):
        Objective(margin=1.0).objective(svm)
    bad: list[Any] = [-1.0, 1e3, float("nan"), "2"]
    for wrong in bad:
        with pytest.raises((ValueError, TypeError), match="margin"):
            Objective(margin=wrong)


def test_what_a_method_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match=r"delta in .* a pure form have 'accuracy_first', 'bolt-on', 'frank-wolfe', 'output'"):
        Gradient().build(TASK, Budget(0.0, 1.0))
    with pytest.raises(TypeError, match="Expected epsilon to be a number, got None"):
        Gradient().build(TASK, Budget(1e-5))
    with pytest.raises(ValueError, match="loss of bounded slope"):
        Objective().build(Task(**{**vars(TASK), "loss": Squared(1.0, 5.0), "classes": 0}), BUDGET)
    for wrong in ("magic", None, 3, Gradient, ["gradient"]):
        with pytest.raises(ValueError, match="Expected mechanism to be one of"):
            method_of(wrong)
    with pytest.raises(ValueError, match="Expected method to be one of"):
        method_from_dict({"method": "magic"})


def test_what_a_method_cannot_is_said_by_what_it_needs() -> None:
    adding = Task(**{**vars(TASK), "public_size": None})
    with pytest.raises(ValueError, match="relation='replace_one'"):
        BoltOn().build(adding, BUDGET)
    with pytest.raises(ValueError, match="a pure form have 'accuracy_first', 'bolt-on', 'frank-wolfe', 'output'"):
        Gradient().build(TASK, Budget(0.0, 1.0))
    network = DPMLPClassifier(mechanism="m-ngp-published", public_size=20, classes=[0, 1])
    with pytest.raises(ValueError, match="only claimed"):
        network.fit(np.eye(20), np.arange(20) % 2)


def test_what_diverged_is_said_and_not_saved() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 2))
    wild = DPLogisticRegression(mechanism=Gradient(sampling="full", learning_rate=1e308), public_size=50, classes=[0, 1])
    with pytest.warns(UserWarning, match="diverged"):
        wild.fit(rows, rows[:, 0] > 0)
    with pytest.raises(ValueError, match="diverged"):
        model_to_json(wild)
    with pytest.raises(NotFittedError):
        model_to_json(DPMLPClassifier())
    with pytest.raises(ValueError, match="half_width >= 0"):
        DPLinearSVC(half_width=-1.0, classes=[0, 1]).fit(rows, rows[:, 0] > 0)


# Fields that are checked by their types


def test_numbers_are_python_s_own_and_stay_what_they_were_checked_as() -> None:
    """A tensor can be changed in place, and a long double is in no JSON."""
    torch = pytest.importorskip("torch")
    given = torch.tensor(0.5)
    method = Gradient(clipping_norm=given, learning_rate=np.longdouble(0.25))
    given.fill_(9.0)
    assert method == Gradient(clipping_norm=0.5, learning_rate=0.25)
    assert type(method.clipping_norm) is float and type(method.learning_rate) is float
    json.dumps(method.to_dict())


@pytest.mark.parametrize("given", [[1], 1, "no", None])
def test_a_switch_is_true_or_false(given: Any) -> None:
    """Lists change, and are true while they hold something."""
    with pytest.raises(TypeError, match="random_stop"):
        LastIterate(random_stop=given)
    assert LastIterate(random_stop=np.True_).random_stop is True  # pyright: ignore[reportArgumentType]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restated(OutputPerturbation):
    """A stranger's, with fields in its own words."""

    strong_convexity: Annotated[float, "in units of its own"] = 1.0
    note: Annotated[str, "what it is for", 3] = ""
    shape: Sequence[int] | None = None  # a name that type checkers alone know


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestatedPlainly(OutputPerturbation):
    strong_convexity: float = 1.0
    note: Annotated[str, "what it is for", 3] = ""


@pytest.mark.parametrize("kind", [Restated, RestatedPlainly])
def test_a_field_that_a_stranger_states_again_is_checked_as_before(kind: type[OutputPerturbation]) -> None:
    kind(budget=BUDGET, noise_multiplier=1.0, strong_convexity=2.0)
    for bad in (-1.0, float("nan"), "x", 1e300):
        with pytest.raises((ValueError, TypeError), match="strong_convexity"):
            kind(budget=BUDGET, noise_multiplier=1.0, strong_convexity=bad)  # pyright: ignore[reportArgumentType]


def test_what_shapes_the_plan_of_the_rules_says_its_own_rule() -> None:
    built_on = [kind for kind in known_methods().values() if issubclass(kind, Gradient) and kind is not Gradient]
    assert len(built_on) > 4
    for kind in built_on:
        assert kind().rule == (kind.__doc__ or "").split("\n")[0] != Gradient(sampling="full").rule
    assert "epochs of batches" in Gradient().rule
