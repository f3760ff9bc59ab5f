"""Ordinal regression: a loss whose curvature is largest at a rank between the ends, where no end's slope is."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.objectives import OrdinalLogistic, Weighted
from helpers.catalogue.common import ADD, REPLACE, Entry, gradient, objective, output, perturbed


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(OrdinalLogistic((-0.5, 0.5)), relation)
        yield f"output, ordinal loss, {relation}", output(problem), problem
        yield f"objective, ordinal loss, {relation}", perturbed(problem), problem
        yield f"gradient, ordinal loss, {relation}", gradient(problem.facts), problem
    problem = objective(Weighted(OrdinalLogistic((-3.0, 0.2, 0.5, 4.0))))
    yield "objective, weighted ordinal loss", perturbed(problem), problem
