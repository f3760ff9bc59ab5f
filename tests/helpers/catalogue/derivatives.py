"""The Hessian at public parameters, alone and beside outer products of gradients or residuals: both relations, persons, weights.

At θ = 0 logistic curvature is at its bound for every row; along a long θ slopes are, or those of a quantile near its targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dperm.mechanisms import DerivativesRelease
from dperm.objectives import LinearObjective, Logistic, PrivacyUnit, QuantileLoss, Squared, Weighted
from helpers.catalogue.common import ADD, DELTA, EPSILON, REPLACE, Entry, objective

NOWHERE = np.zeros(4)
FAR = np.array([6.0, 0.0, 0.0, 0.0])


def made(problem: LinearObjective, theta: Any = NOWHERE, *beside: str) -> DerivativesRelease:
    return DerivativesRelease.calibrate(problem.facts, theta, EPSILON, DELTA, beside=beside)


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(relation=relation)
        yield f"Hessian, {relation}", made(problem), problem
        yield f"Hessian, gradient and products, {relation}", made(problem, FAR, "gradient", "products"), problem
        problem = objective(Squared(1.0, 5.0), relation, radius=5.0)
        yield f"Hessian, gradient and residuals, {relation}", made(problem, FAR, "gradient", "residuals"), problem
    problem = objective(unit=PrivacyUnit(3))
    yield "Hessian, persons", made(problem, FAR, "gradient"), problem
    problem = objective(Weighted(Logistic(2.0)))
    yield "Hessian and products, weighted loss", made(problem, FAR, "products"), problem
    problem = objective(QuantileLoss(0.8, 2.0, 0.5))
    yield "Hessian, quantile loss", made(problem, FAR / 3), problem
