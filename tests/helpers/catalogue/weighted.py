"""Records that count for less: a loss around another's."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import OneVsRest, Preconditioned
from dperm.objectives import Huber, Logistic, PoissonLoss, QuantileLoss, Softmax, Squared, Task, Weighted
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry, gradient, objective, output, perturbed


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(Weighted(Logistic(2.0)), relation)
        yield f"objective, weighted loss, {relation}", perturbed(problem), problem
        yield f"gradient, weighted loss, {relation}", gradient(problem.facts), problem
        for loss in (Softmax(3), QuantileLoss(0.8, 2.0, 0.5), PoissonLoss(5.0, 0.5)):
            problem = objective(Weighted(loss), relation, radius=loss.ball)
            yield f"gradient, weighted {loss.name} loss, {relation}", gradient(problem.facts), problem
    problem = objective(Weighted(Huber(0.5)))
    yield "output, weighted loss", output(problem), problem
    part = output(problem, copies=3)
    yield "one against the rest, weighted loss", OneVsRest.of(part, 3), problem
    task = Task(loss=Weighted(Squared(1.0, 2.0)), features=3, public_size=SIZE, intercept_scale=0.2)
    yield "preconditioned, weighted loss", *Preconditioned().build(task, BUDGET)
