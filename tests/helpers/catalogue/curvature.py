"""The Hessian at public parameters, alone and beside outer products of gradients or residuals: both relations, persons, weights.

At θ = 0 logistic curvature is at its bound for every row; along a long θ slopes are, or those of a quantile near its targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dperm.mechanisms import HessianAndGradients, HessianAndResiduals, HessianRelease
from dperm.objectives import LinearObjective, Logistic, PrivacyUnit, QuantileLoss, Squared, Weighted
from helpers.catalogue.common import ADD, DELTA, EPSILON, REPLACE, Entry, objective

NOWHERE = np.zeros(4)
FAR = np.array([6.0, 0.0, 0.0, 0.0])


def made(kind: type[HessianRelease], problem: LinearObjective, theta: Any = NOWHERE) -> HessianRelease:
    return kind.calibrate(problem.facts, theta, EPSILON, DELTA)


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        problem = objective(relation=relation)
        yield f"Hessian, {relation}", made(HessianRelease, problem), problem
        yield f"Hessian and gradients, {relation}", made(HessianAndGradients, problem, FAR), problem
        problem = objective(Squared(1.0, 5.0), relation, radius=5.0)
        yield f"Hessian and residuals, {relation}", made(HessianAndResiduals, problem, FAR / 6), problem
    problem = objective(unit=PrivacyUnit(3))
    yield "Hessian, persons", made(HessianRelease, problem), problem
    problem = objective(Weighted(Logistic(2.0)))
    yield "Hessian and gradients, weighted loss", made(HessianAndGradients, problem, FAR), problem
    problem = objective(QuantileLoss(0.8, 2.0, 0.5))
    yield "Hessian, quantile loss", made(HessianRelease, problem, FAR / 3), problem
