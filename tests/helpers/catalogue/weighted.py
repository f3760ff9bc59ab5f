"""Records that count for less: a loss around another's."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import ObjectivePerturbation, OutputPerturbation
from dperm.objectives import Huber, Logistic, Weighted
from helpers.catalogue.common import ADD, DELTA, EPSILON, REPLACE, Entry, gradient, objective


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(Weighted(Logistic(2.0)), relation)
        yield f"objective, weighted loss, {relation}", ObjectivePerturbation.calibrate(problem.facts, EPSILON, DELTA), problem
        yield f"gradient, weighted loss, {relation}", gradient(problem.facts), problem
    problem = objective(Weighted(Huber(0.5)))
    yield "output, weighted loss", OutputPerturbation.calibrate(problem.facts, EPSILON, DELTA), problem
