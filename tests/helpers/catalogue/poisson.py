"""Poisson regression: a loss whose constants hold in a ball."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import OutputPerturbation
from dperm.objectives import PoissonLoss
from helpers.catalogue.common import ADD, DELTA, EPSILON, REPLACE, Entry, gradient, objective


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(PoissonLoss(2.0, 0.5), relation, radius=0.5)
        yield f"output, poisson loss, {relation}", OutputPerturbation.calibrate(problem.facts, EPSILON, DELTA), problem
        yield f"gradient, poisson loss, {relation}", gradient(problem.facts), problem
