"""Newton's method with a certified gradient norm, on ℝ^d or on an L2 ball.

Small dimensions factor a Hessian (kept while it still contracts: a stale factor is a good preconditioner), large ones
use conjugate gradients on Hessian products. Line search with the gradient as referee near the optimum,
where function values are rounding noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import brentq
from scipy.sparse.linalg import LinearOperator, cg

__all__ = ["Solution", "SolverError", "StronglyConvex", "minimise"]

Array = NDArray[np.float64]

_DENSE_LIMIT = 2000  # parameters; above, a Hessian would cost more than its products
_KEEP = 0.6  # a factor is kept while a step shrinks the gradient at least this much
_STEPS = 200


class SolverError(RuntimeError):
    """The tolerance was not reached. What was charged stays charged; there is no retry with fresh noise."""


class StronglyConvex(Protocol):
    """A smooth strongly convex function of θ (p,)."""

    @property
    def dimension(self) -> int: ...

    @property
    def strong_convexity(self) -> float: ...

    def evaluate(self, theta: Array, hessian: bool) -> tuple[float, Array, Array | None]:
        """Value, gradient (p,), and if asked the Hessian (p, p)."""
        ...

    def hessian_product(self, theta: Array, vector: Array) -> Array: ...


@dataclass(frozen=True)
class Solution:
    """`residual` is min over the normal cone at θ of ‖∇J(θ) + ν‖: θ is within residual ÷ strong_convexity of the minimiser.

    Without a ball the residual is ‖∇J(θ)‖. (θ minimises J minus a linear term of norm `residual` over the set.)
    """

    theta: Array
    residual: float
    iterations: int
    evaluations: int


def minimise(problem: StronglyConvex, tolerance: float, radius: float | None = None, start: Array | None = None) -> Solution:
    """The minimiser, over ‖θ‖ ≤ radius if given, to a residual ≤ `tolerance`. Raises SolverError where it is not reached."""
    theta = np.zeros(problem.dimension) if start is None else start.copy()
    free = _newton(problem, theta, tolerance)
    if radius is None or float(np.linalg.norm(free.theta)) <= radius:
        return free
    return _on_sphere(problem, free, tolerance, radius)


def _newton(problem: StronglyConvex, theta: Array, tolerance: float) -> Solution:
    dense = problem.dimension <= _DENSE_LIMIT
    value, gradient, matrix = problem.evaluate(theta, dense)
    evaluations = 1
    size = float(np.linalg.norm(gradient))
    solve = _factor(matrix, problem.strong_convexity) if matrix is not None else None
    pairs: list[tuple[Array, Array]] = []
    for iteration in range(_STEPS):
        if size <= tolerance:
            return Solution(theta, size, iteration, evaluations)
        step = -(_corrected(solve, pairs, gradient) if solve else _conjugate_gradients(problem, theta, gradient, size))
        decrease = float(gradient @ step)
        scale = 1.0
        while True:
            candidate = theta + scale * step
            new_value, new_gradient, _ = problem.evaluate(candidate, False)
            evaluations += 1
            new_size = float(np.linalg.norm(new_gradient))
            rounding = 1e-13 * (abs(value) + 1)
            if new_value <= value + 1e-4 * scale * decrease or (new_value <= value + rounding and new_size < size):
                break
            scale /= 2
            if scale < 1e-10:
                raise SolverError(f"No descent any more: the tolerance {tolerance:.3g} is below rounding here.")
        contraction = new_size / size
        moved, turned = candidate - theta, new_gradient - gradient
        theta, value, gradient, size = candidate, new_value, new_gradient, new_size
        if not dense or size <= tolerance:
            continue
        if contraction > _KEEP:
            _, _, matrix = problem.evaluate(theta, True)
            evaluations += 1
            assert matrix is not None
            solve = _factor(matrix, problem.strong_convexity)
            pairs.clear()
        elif float(moved @ turned) > 0:
            pairs.append((moved, turned))
    raise SolverError(f"The tolerance {tolerance:.3g} was not reached in {_STEPS} steps.")


def _corrected(solve: Callable[[Array], Array], pairs: list[tuple[Array, Array]], gradient: Array) -> Array:
    """The stale factor's inverse, corrected by what the gradient did since (BFGS, Nocedal's two loops)."""
    result = gradient.copy()
    shares: list[float] = []
    for moved, turned in reversed(pairs):
        share = float(moved @ result) / float(moved @ turned)
        shares.append(share)
        result -= share * turned
    result = solve(result)
    for (moved, turned), share in zip(pairs, reversed(shares), strict=True):
        result += (share - float(turned @ result) / float(moved @ turned)) * moved
    return result


def _factor(matrix: Array, strong_convexity: float) -> Callable[[Array], Array]:
    """A solver for `matrix`, whose single-precision sums may need a touch more on the diagonal."""
    lift = 0.0
    while True:
        try:
            factor = cho_factor(matrix + lift * np.eye(len(matrix)) if lift else matrix, lower=True, check_finite=False)
            return lambda vector: cho_solve(factor, vector, check_finite=False)
        except np.linalg.LinAlgError:
            lift = max(10 * lift, strong_convexity, 1e-6 * float(np.trace(matrix)) / len(matrix))


def _conjugate_gradients(problem: StronglyConvex, theta: Array, gradient: Array, size: float) -> Array:
    operator = LinearOperator((len(theta), len(theta)), matvec=lambda v: problem.hessian_product(theta, v.ravel()), dtype=float)
    forcing = min(0.1, math.sqrt(size / (1 + size)))
    return cg(operator, gradient, rtol=forcing, maxiter=500)[0]


@dataclass(frozen=True)
class _Lifted:
    """problem + (multiplier/2)·‖θ‖²."""

    problem: StronglyConvex
    multiplier: float

    @property
    def dimension(self) -> int:
        return self.problem.dimension

    @property
    def strong_convexity(self) -> float:
        return self.problem.strong_convexity + self.multiplier

    def evaluate(self, theta: Array, hessian: bool) -> tuple[float, Array, Array | None]:
        value, gradient, matrix = self.problem.evaluate(theta, hessian)
        if matrix is not None:
            matrix = matrix + self.multiplier * np.eye(self.dimension)
        return value + self.multiplier / 2 * float(theta @ theta), gradient + self.multiplier * theta, matrix

    def hessian_product(self, theta: Array, vector: Array) -> Array:
        return self.problem.hessian_product(theta, vector) + self.multiplier * vector


def _on_sphere(problem: StronglyConvex, free: Solution, tolerance: float, radius: float) -> Solution:
    """The constraint is active: find the multiplier whose minimiser has norm `radius` (the norm falls with it).

    1/‖θ(multiplier)‖ is nearly linear in the multiplier (Moré & Sorensen 1983), which suits a secant method.
    """
    theta = free.theta
    evaluations, iterations = free.evaluations, free.iterations

    def shortfall(multiplier: float) -> float:
        nonlocal theta, evaluations, iterations
        inner = _newton(_Lifted(problem, multiplier), theta, tolerance / 20)
        theta, evaluations, iterations = inner.theta, evaluations + inner.evaluations, iterations + inner.iterations
        return 1 / radius - 1 / float(np.linalg.norm(theta))

    high = problem.strong_convexity
    while shortfall(high) > 0:
        high *= 4
    shortfall(brentq(shortfall, 0.0, high, xtol=1e-300, rtol=1e-14))
    # On the sphere the normal cone is {μθ/‖θ‖, μ ≥ 0}: only the rest of the gradient counts.
    theta = theta * (radius / float(np.linalg.norm(theta)))
    _, gradient, _ = problem.evaluate(theta, False)
    direction = theta / radius
    residual = float(np.linalg.norm(gradient - min(0.0, float(gradient @ direction)) * direction))
    if residual > tolerance:
        raise SolverError(f"The tolerance {tolerance:.3g} was not reached on the sphere of radius {radius:g}.")
    return Solution(theta, residual, iterations, evaluations + 1)
