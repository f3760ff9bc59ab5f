"""One training or more of every mechanism, sampler, bounding, schedule and recipe that the library certifies.

`test_contract.py` fails where something is certified that is not here: nothing goes unaudited because somebody forgot.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import dperm.gradient
import dperm.gradient.recipes
import dperm.mechanisms
from dperm.gradient import (
    SGD,
    AdaptiveClip,
    AdaptiveNorm,
    Bounding,
    Clip,
    Constant,
    ExponentialDecay,
    FullBatch,
    ImportancePlan,
    NoiseSchedule,
    Normalise,
    PerLayer,
    Plan,
    Poisson,
    Sampler,
    Unit,
)
from dperm.gradient.recipes import dp_sgd, dpis, full_batch_descent
from dperm.mechanisms import (
    Budget,
    GradientPerturbation,
    Mechanism,
    NoisySize,
    ObjectivePerturbation,
    OneVsRest,
    OutputPerturbation,
)
from dperm.mechanisms.rules import gradient_plan
from dperm.objectives import Huber, LinearObjective, Logistic, SmoothedHinge, Softmax, Squared
from dperm.privacy import Relation, rdp_budget

EPSILON, DELTA, SIZE = 4.0, 1e-5, 60
BUDGET = Budget(DELTA, EPSILON)
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def objective(loss: Any = None, relation: Relation = ADD, **changes: Any) -> LinearObjective:
    settings = {"data_norm": 1.0, "intercept_scale": 0.5, "public_size": SIZE, "relation": relation}
    return LinearObjective(loss or Logistic(), 3, **(settings | changes))


def plan(multiplier: float, **changes: Any) -> Plan:
    parts: dict[str, Any] = {
        "sampler": Poisson(0.3),
        "bounding": Clip(0.5),
        "noise": Constant(multiplier),
        "update": SGD(0.3, 0.9),
        "steps": 20,
        "public_size": SIZE,
    }
    return Plan(**(parts | changes))


def noisy_sizes(unsized: LinearObjective) -> Iterator[tuple[str, NoisySize, LinearObjective]]:
    """The number of records is released first, and the rest chosen by it, in the ways that there are to hold it."""

    def output(facts: Any, count: Any) -> Mechanism:
        return OutputPerturbation.calibrate(facts, EPSILON, DELTA, beside=count)

    def pure(facts: Any, count: Any) -> Mechanism:
        return OutputPerturbation.calibrate(facts, EPSILON, 0.0, beside=count)

    def poisson(facts: Any) -> Any:
        return gradient_plan(facts, EPSILON, DELTA, epochs=4)

    budget = rdp_budget(EPSILON, DELTA)

    def importance(facts: Any) -> Mechanism:
        return GradientPerturbation.by_rule(facts, EPSILON, DELTA, sampling="importance", epochs=2, filter=budget)

    facts = unsized.facts
    yield "noisy size, output", NoisySize.known(output, facts, BUDGET), unsized
    yield "noisy size, pure output", NoisySize.known(pure, facts, Budget(0.0, EPSILON)), unsized
    yield "noisy size, poisson", NoisySize.below(poisson, facts, BUDGET), unsized
    yield "noisy size, importance", NoisySize.filtered(importance, budget, BUDGET), unsized


def gradient(facts: Any, **changes: Any) -> GradientPerturbation:
    def make(noise: float) -> Plan:
        made = {name: value(noise) if callable(value) else value for name, value in changes.items()}
        return plan(noise, **made)

    return GradientPerturbation.calibrate(make, facts, EPSILON, DELTA)


def catalogue() -> Iterator[tuple[str, Mechanism, LinearObjective]]:
    """(name, mechanism, objective)"""
    for relation in (ADD, REPLACE):
        logistic = objective(relation=relation)
        for loss in (Logistic(), Huber(0.5), SmoothedHinge(0.5)):
            o = objective(loss, relation)
            yield f"output, {loss.name}, {relation}", OutputPerturbation.calibrate(o.facts, EPSILON, DELTA), o
            yield f"objective, {loss.name}, {relation}", ObjectivePerturbation.calibrate(o.facts, EPSILON, DELTA), o
        yield f"pure output, {relation}", OutputPerturbation.calibrate(logistic.facts, EPSILON, 0.0), logistic
        generic = ObjectivePerturbation.calibrate(logistic.facts, EPSILON, DELTA, calibration="generic")
        yield f"generic objective, {relation}", generic, logistic
        ridge = objective(Squared(1.0, 2.0), relation, radius=2.0)
        yield f"output, squared, {relation}", OutputPerturbation.calibrate(ridge.facts, EPSILON, DELTA), ridge
        yield f"gradient, squared, {relation}", gradient(ridge.facts), ridge
        softmax = objective(Softmax(3), relation)
        yield f"gradient, softmax, {relation}", gradient(softmax.facts), softmax
        for name, parts in {
            "DP-SGD": {},
            "full batch": {"sampler": FullBatch(), "steps": 8},
            "normalised": {"bounding": Normalise(0.1)},
            "per layer": {"bounding": PerLayer(0.5)},
            "adaptive": {"bounding": AdaptiveClip(0.5)},
            "decay": {"noise": lambda noise: ExponentialDecay(noise, 0.1, 5)},
        }.items():
            yield f"{name}, {relation}", gradient(logistic.facts, **parts), logistic
        part = OutputPerturbation.calibrate(logistic.facts, EPSILON, DELTA, copies=3)
        yield f"one against the rest, output, {relation}", OneVsRest.of(part, 3), logistic
        part = ObjectivePerturbation.calibrate(logistic.facts, EPSILON, DELTA, copies=3)
        yield f"one against the rest, objective, {relation}", OneVsRest.of(part, 3), logistic
    o = objective()
    yield "kifer", ObjectivePerturbation.calibrate(o.facts, EPSILON, DELTA, calibration="kifer"), o
    unsized = objective(public_size=None)
    yield from noisy_sizes(unsized)
    recipe = GradientPerturbation.calibrate(
        lambda noise: dp_sgd(noise_multiplier=noise, public_size=SIZE, expected_batch_size=20, epochs=5, clipping_norm=0.5),
        o.facts, EPSILON, DELTA,
    )  # fmt: skip
    yield "recipe dp_sgd", recipe, o
    recipe = GradientPerturbation.calibrate(
        lambda noise: full_batch_descent(noise_multiplier=noise, public_size=SIZE, steps=8, clipping_norm=0.5),
        o.facts, EPSILON, DELTA,
    )  # fmt: skip
    yield "recipe full_batch_descent", recipe, o
    # few records, so that a record is drawn at half the rate there may be; norms far below and far above the clipping norm
    for name, settings in {
        "recipe dpis": {},
        "recipe dpis, Rényi filter": {"filter": "renyi"},
        "recipe dpis, adaptive": {"adaptive": AdaptiveNorm(), "norm_noise": 10.0},
        "recipe dpis, size released": {"public_size": None, "average_from": None},
    }.items():
        made = {"public_size": SIZE, "expected_batch_size": 15, "epochs": 4, "clipping_norm": 0.5, **settings}
        yield name, GradientPerturbation(budget=BUDGET, plan=dpis(epsilon=EPSILON, delta=DELTA, **made)), o


def concrete(base: type, package: Any) -> set[type]:
    """All classes below `base` that can be made, of every module of a package."""
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        import_module(module.name)
    found: set[type] = set()
    waiting = [base]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not inspect.isabstract(kind) and kind.__module__.startswith("dperm."):
            found.add(kind)
    return found


def certified_parts() -> set[type]:
    parts = concrete(Mechanism, dperm.mechanisms)
    for base in (Sampler, Bounding, NoiseSchedule):
        parts |= concrete(base, dperm.gradient)
    return parts


def recipes() -> set[str]:
    return {name for name, value in vars(dperm.gradient.recipes).items() if inspect.isfunction(value)}


def parts_of(mechanism: Mechanism) -> set[type]:
    found: set[type] = {type(mechanism)}
    if isinstance(mechanism, OneVsRest):
        found |= parts_of(mechanism.mechanism)
    if isinstance(mechanism, GradientPerturbation):
        if isinstance(mechanism.plan, ImportancePlan):
            return found | {Unit}
        found |= {type(mechanism.plan.sampler), type(mechanism.plan.bounding), type(mechanism.plan.noise)}
    return found
