"""Output and objective perturbation, DP-SGD and full batches, DPIS, noisy sizes, one against the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dperm.gradient import AdaptiveClip, AdaptiveNorm, ExponentialDecay, FullBatch, Normalise, PerLayer
from dperm.gradient.recipes import dp_sgd, dpis, full_batch_descent
from dperm.mechanisms import (
    Budget,
    Gradient,
    GradientPerturbation,
    Mechanism,
    ObjectivePerturbation,
    OneVsRest,
    Output,
    OutputPerturbation,
)
from dperm.objectives import Huber, LinearObjective, Logistic, Roughness, SmoothedHinge, Softmax, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, DELTA, EPSILON, REPLACE, SIZE, Entry, gradient, objective


def noisy_sizes(unsized: LinearObjective) -> Iterator[tuple[str, Mechanism, LinearObjective]]:
    """The number of records is released first, and the rest chosen by it, in the ways that there are to hold it."""

    importance = Gradient(sampling="importance", epochs=2)
    yield "noisy size, output", Output().size_released(unsized.facts, BUDGET, 1), unsized
    yield "noisy size, pure output", Output().size_released(unsized.facts, Budget(0.0, EPSILON), 1), unsized
    yield "noisy size, poisson", Gradient(epochs=4).size_released(unsized.facts, BUDGET, 1), unsized
    yield "noisy size, importance", importance.size_released(unsized.facts, BUDGET, 1), unsized


def methods() -> Iterator[Entry]:
    """As estimators build them: one model for each of three classes, which share a budget, and the number of records private."""
    gradient = Gradient(epochs=2)
    for method, size in ((Output(), None), (gradient, SIZE), (gradient, None), (Gradient(sampling="full", epochs=4), None)):
        task = Task(loss=Huber(0.5), features=2, classes=3, public_size=size, intercept_scale=0.5)
        name = f"method {method}, three classes"
        yield name if size else f"noisy size, {name}", *method.build(task, BUDGET)


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        logistic = objective(relation=relation)
        for loss in (Logistic(), Logistic(2.0), Huber(0.5), SmoothedHinge(0.5)):
            o = objective(loss, relation)
            yield f"output, {loss.name}, {relation}", OutputPerturbation.calibrate(o.facts, EPSILON, DELTA), o
            yield f"objective, {loss.name}, {relation}", ObjectivePerturbation.calibrate(o.facts, EPSILON, DELTA), o
        rough = replace(logistic, roughness=Roughness(((0, 1), (1, 2)), 3.0))
        yield f"output, penalty on roughness, {relation}", OutputPerturbation.calibrate(rough.facts, EPSILON, DELTA), rough
        yield f"objective, penalty on roughness, {relation}", ObjectivePerturbation.calibrate(rough.facts, EPSILON, DELTA), rough
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
    yield from methods()
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
