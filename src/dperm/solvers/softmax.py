"""The minimiser of a loss of several outputs, by L-BFGS: for comparisons and influence. It certifies nothing."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from dperm._types import Array
from dperm.objectives import LinearObjective, Records


def minimise_softmax(objective: LinearObjective, records: Records, iterations: int = 500) -> Array:
    """θ (p,), as near as so many iterations come."""

    def value(theta: Array) -> tuple[float, Array]:
        total, gradient = 0.0, np.zeros_like(theta)
        for batch in records.in_turn():
            at_theta = objective.per_example(theta, batch)
            total += float(at_theta.losses.sum())
            gradient += at_theta.weighted_sum(np.ones(len(at_theta.norms)))
        penalty = objective.strong_convexity * objective.penalty_gradient(theta)
        return total + float(penalty @ theta) / 2, gradient + penalty

    options = {"maxiter": iterations, "ftol": 1e-15, "gtol": 1e-9}
    return minimize(value, np.zeros(objective.dimension), jac=True, method="L-BFGS-B", options=options).x
