"""What papers compare with: Bolt-on, traditional and normalised gradient perturbation, smoothed gradients, hinges."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import BoltOn, Budget, Gradient, NormalisedGradient, SmoothedGradient, TraditionalGradient
from dperm.objectives import Hinge, Logistic, QNormHinge, Softmax, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, EPSILON, REPLACE, SIZE, Entry, gradient, objective


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Logistic(4.0), features=3, classes=2, public_size=SIZE, intercept_scale=0.2, relation=relation)
        for method in (TraditionalGradient(), NormalisedGradient(learning_rate=0.5), SmoothedGradient(epochs=3)):
            yield f"{method}, {relation}", *method.build(task, BUDGET)
        for loss in (Hinge(), QNormHinge(1.5, 2.0), QNormHinge(2.0, 2.0)):
            problem = objective(loss, relation, radius=loss.ball)
            yield f"gradient, {loss}, {relation}", gradient(problem.facts), problem
    yield (
        "recipe dpis, smoothed",
        *SmoothedGradient(sampling="importance", epochs=2).build(
            Task(loss=Logistic(), features=3, classes=2, public_size=SIZE), BUDGET
        ),
    )
    # steps that shrink enough from the start: what early steps did is not forgotten before the last
    for loss, radius, modulus, rate, batch in (
        (Logistic(4.0), None, 30.0, 0.1, 7),
        (Softmax(3), None, 10.0, 2.0, 20),
        (Squared(20.0, 1.0), 1.0, 1000.0, 0.005, 7),
    ):
        problem = objective(loss, REPLACE, radius=radius)
        for name, method in {
            "constant rate": BoltOn(epochs=4, batch_size=7, learning_rate=rate),
            "falling rate": BoltOn(epochs=4, batch_size=batch, strong_convexity=modulus),
        }.items():
            yield f"bolt-on, {name}, {loss.name}", method.calibrated(problem.facts, BUDGET, 1), problem
    problem = objective(Logistic(4.0), REPLACE)
    yield "pure bolt-on", BoltOn(epochs=2).calibrated(problem.facts, Budget(0.0, EPSILON), 1), problem
    yield "one against the rest, bolt-on", BoltOn(epochs=2).calibrated(problem.facts, BUDGET, 3), problem
    task = Task(loss=Hinge(), features=3, classes=2, public_size=None)
    yield "noisy size, hinge", *Gradient(epochs=3).build(task, BUDGET)
