"""Poisson regression: a loss whose constants hold in a ball."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.objectives import PoissonLoss
from helpers.catalogue.common import ADD, REPLACE, Entry, gradient, objective, output


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(PoissonLoss(20.0, 0.5), relation, radius=0.5)
        yield f"output, poisson loss, {relation}", output(problem, strong_convexity=1000.0), problem
        yield f"gradient, poisson loss, {relation}", gradient(problem.facts), problem
