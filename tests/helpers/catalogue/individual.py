"""Individual accounting: records that spend what their own gradients cost."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.gradient import SGD
from dperm.gradient.recipes import individual_descent
from dperm.mechanisms import GradientPerturbation, IndividualGradient
from dperm.objectives import Logistic, Softmax, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, DELTA, EPSILON, REPLACE, SIZE, Entry, objective


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        for loss, radius in ((None, None), (Softmax(3), None), (Squared(1.0, 2.0), 2.0)):
            problem = objective(loss, relation, radius=radius)
            made = GradientPerturbation.calibrate(
                lambda noise: individual_descent(
                    noise_multiplier=noise, public_size=SIZE, steps=12, full_steps=3.5, clipping_norm=0.5, update=SGD(0.5)
                ),
                problem.facts, EPSILON, DELTA,
            )  # fmt: skip
            yield f"recipe individual_descent, {problem.loss.name}, {relation}", made, problem
    for size in (SIZE, None):
        task = Task(loss=Logistic(), features=3, classes=2, public_size=size, intercept_scale=0.2)
        mechanism, problem = IndividualGradient(epochs=8).build(task, BUDGET)
        yield "method individual" if size else "noisy size, method individual", mechanism, problem
