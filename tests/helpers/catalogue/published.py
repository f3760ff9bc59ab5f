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
    OneVsRest,
    Output,
)
from dperm.objectives import Huber, LinearObjective, Logistic, Roughness, SmoothedHinge, Softmax, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, DELTA, EPSILON, REPLACE, SIZE, Entry, gradient, objective, output, perturbed


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
        task = Task(loss=Huber(0.5), features=2, classes=3, public_size=size, intercept_scale=0.2)
        name = f"method {method}, three classes"
        yield name if size else f"noisy size, {name}", *method.build(task, BUDGET)


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        logistic = objective(relation=relation)
        for loss in (Logistic(), Logistic(2.0), Huber(0.5), SmoothedHinge(0.5)):
            o = objective(loss, relation)
            yield f"output, {loss.name}, {relation}", output(o), o
            yield f"objective, {loss.name}, {relation}", perturbed(o), o
        rough = replace(logistic, roughness=Roughness(((0, 1),), 3.0))
        yield f"output, penalty on roughness, {relation}", output(rough), rough
        yield f"objective, penalty on roughness, {relation}", perturbed(rough), rough
        yield f"pure output, {relation}", output(logistic, delta=0.0), logistic
        yield f"generic objective, {relation}", perturbed(logistic, calibration="generic"), logistic
        # a target that is long beside what the ball adds to it, and a ball that neighbours do not cross
        ridge = objective(Squared(20.0, 1.0), relation, radius=1.0)
        yield f"output, squared, {relation}", output(ridge, strong_convexity=200.0), ridge
        yield f"gradient, squared, {relation}", gradient(ridge.facts), ridge
        softmax = objective(Softmax(3), relation)
        yield f"gradient, softmax, {relation}", gradient(softmax.facts), softmax
        for name, parts in {
            "DP-SGD": {},
            "full batch": {"sampler": FullBatch(), "steps": 8},
            "normalised": {"bounding": Normalise(0.01)},
            "per layer": {"bounding": PerLayer(0.5)},
            "adaptive": {"bounding": AdaptiveClip(0.5)},
            "decay": {"noise": lambda noise: ExponentialDecay(noise, 0.1, 5)},
        }.items():
            yield f"{name}, {relation}", gradient(logistic.facts, **parts), logistic
        part = output(logistic, copies=3)
        yield f"one against the rest, output, {relation}", OneVsRest.of(part, 3), logistic
        wide = objective(Logistic(4.0), relation)
        part = perturbed(wide, copies=3)
        yield f"one against the rest, objective, {relation}", OneVsRest.of(part, 3), wide
    o = objective()
    yield "kifer", perturbed(o, calibration="kifer"), o
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
        "recipe dpis, adaptive": {"adaptive": AdaptiveNorm(ceiling=1.0), "norm_noise": 10.0},
        "recipe dpis, size released": {"public_size": None, "average_from": None},
    }.items():
        made = {"public_size": SIZE, "expected_batch_size": 15, "epochs": 2, "clipping_norm": 0.5, **settings}
        yield name, GradientPerturbation(budget=BUDGET, plan=dpis(epsilon=EPSILON, delta=DELTA, **made)), o
