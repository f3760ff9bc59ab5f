"""Newton's method on many small problems at once, for audits: the same iteration for each, one array operation for all."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dperm._types import Array
from dperm.solvers.newton import Solution, SolverError

_STEPS = 200


class _ManyConvex(Protocol):
    def evaluate(self, theta: Array, hessian: bool) -> tuple[Any, Array, Array | None]:
        """Values (m,), gradients (m, p), Hessians (m, p, p)."""
        ...


def minimise_many(problem: _ManyConvex, start: Array, tolerance: float, radius: float | None = None) -> Solution:
    """The minimisers (m, p) of m strongly convex problems, each to a gradient norm ≤ `tolerance`.

    Damped Newton steps, a step length each. The solution's residual is the largest. Raises SolverError where one is not
    reached, ValueError where a minimiser is outside of the ball of `radius`: `minimise` handles those one by one.
    """
    theta = start.copy()
    value, gradient, matrix = problem.evaluate(theta, True)
    sizes = np.linalg.norm(gradient, axis=1)
    evaluations = 1
    for iteration in range(_STEPS):
        if sizes.max(initial=0.0) <= tolerance:
            if radius is not None and np.linalg.norm(theta, axis=1).max(initial=0.0) > radius:
                raise ValueError("Expected minimisers within the ball: solve these problems one at a time.")
            return Solution(theta, float(sizes.max(initial=0.0)), iteration, evaluations)
        assert matrix is not None
        step = -np.linalg.solve(matrix, gradient[..., None])[..., 0]
        decrease = (gradient * step).sum(axis=1)
        moving = sizes > tolerance
        scale = np.where(moving, 1.0, 0.0)
        while True:
            candidate = theta + scale[:, None] * step
            new_value, new_gradient, _ = problem.evaluate(candidate, False)
            evaluations += 1
            new_sizes = np.linalg.norm(new_gradient, axis=1)
            rounding = 1e-13 * (np.abs(value) + 1)
            fine = (new_value <= value + 1e-4 * scale * decrease) | ((new_value <= value + rounding) & (new_sizes < sizes))
            if (fine | ~moving).all():
                break
            scale = np.where(fine, scale, scale / 2)
            if scale[moving].min() < 1e-10:
                raise SolverError(f"No descent any more: the tolerance {tolerance:.3g} is below rounding here.")
        theta = candidate
        value, gradient, matrix = problem.evaluate(theta, True)
        sizes = np.linalg.norm(gradient, axis=1)
        evaluations += 1
    raise SolverError(f"The tolerance {tolerance:.3g} was not reached in {_STEPS} steps.")
