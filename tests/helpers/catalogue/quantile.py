"""Quantile regression: a loss of bounded slope whose sign says nothing of curvature."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.objectives import QuantileLoss
from helpers.catalogue.common import ADD, REPLACE, Entry, gradient, objective, output, perturbed


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(QuantileLoss(0.8, 2.0, 0.5), relation)
        yield f"output, quantile loss, {relation}", output(problem), problem
        yield f"objective, quantile loss, {relation}", perturbed(problem), problem
        yield f"gradient, quantile loss, {relation}", gradient(problem.facts), problem
