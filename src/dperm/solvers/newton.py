"""Minimisers with a certified residual, on ℝ^d or on an L2 ball: Newton's method, and projected descent where it fails.

Small dimensions factor a Hessian (kept while it still contracts: a stale factor is a good preconditioner), large ones
use conjugate gradients on Hessian products. Line search with the gradient as referee near the optimum,
where function values are rounding noise. What Newton's method finds is certified by a gradient whose rounding is bounded.
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
_AIM = 0.25  # of the tolerance: what Newton's method tries to reach by gradients whose rounding it does not know
_ON_SPHERE = 1 - 1e-12  # of a ball's radius: nearer to it a point counts as on its sphere
_POLISH = 8  # steps by gradients whose rounding is known


class SolverError(RuntimeError):
    """The tolerance was not reached. What was charged stays charged; there is no retry with fresh noise."""


class StronglyConvex(Protocol):
    """A strongly convex function of θ (p,) with a Lipschitz gradient."""

    @property
    def dimension(self) -> int: ...

    @property
    def strong_convexity(self) -> float: ...

    def evaluate(self, theta: Array, hessian: bool) -> tuple[float, Array, Array | None]:
        """Value, gradient (p,), and if asked the Hessian (p, p)."""
        ...

    def hessian_product(self, theta: Array, vector: Array) -> Array: ...

    def certified_gradient(self, theta: Array) -> tuple[Array, float]:
        """The gradient (p,) and a bound on its distance from the true one."""
        ...

    @property
    def curvature_bound(self) -> float:
        """Lipschitz constant of the gradient."""
        ...


@dataclass(frozen=True)
class Solution:
    """`residual` bounds min over the normal cone at θ of ‖∇J(θ) + ν‖ from above: θ is within residual ÷ strong_convexity of the
    minimiser.

    Without a ball the residual is that of ∇J(θ), its rounding included. (θ minimises J minus a linear term of norm `residual`
    over the set.)
    """

    theta: Array
    residual: float
    iterations: int
    evaluations: int


def minimise(
    problem: StronglyConvex,
    tolerance: float,
    radius: float | None = None,
    start: Array | None = None,
    *,
    descent_steps: int = 0,
) -> Solution:
    """The minimiser, over ‖θ‖ ≤ radius if given, to a residual ≤ `tolerance`. Raises SolverError where it is not reached.

    Where Newton's method does not reach it and `descent_steps` are given, so many steps of projected gradient descent follow,
    after which the minimiser is proved to be within tolerance ÷ strong_convexity: see `_descended`.
    """
    theta = np.zeros(problem.dimension) if start is None else start.copy()
    solution = _newton(problem, theta, _AIM * tolerance)
    if radius is not None and float(np.linalg.norm(solution.theta)) > radius:
        solution = _on_sphere(problem, solution, tolerance, radius)
    solution = _polished(problem, solution, tolerance, radius)
    if solution.residual <= tolerance:
        return solution
    if descent_steps:
        return _descended(problem, tolerance, radius, descent_steps)
    raise SolverError(
        f"The tolerance {tolerance:.3g} was not reached, only {solution.residual:.3g}: it may be below rounding here."
    )


def residual_of(problem: StronglyConvex, theta: Array, radius: float | None) -> tuple[float, Array]:
    """Bound on the distance from −∇J(θ) to the normal cone at θ, and the gradient. On the sphere the cone is {μθ, μ ≥ 0}."""
    gradient, error = problem.certified_gradient(theta)
    length = float(np.linalg.norm(theta))
    rest = gradient
    if radius is not None and length >= radius * _ON_SPHERE:
        direction = theta / length
        rest = gradient - min(0.0, float(gradient @ direction)) * direction
        error += 2 * problem.curvature_bound * (abs(length - radius) + 2.0**-50 * length)  # to the nearest point that is on it
    return float(np.linalg.norm(rest)) * (1 + len(theta) * 2.0**-52) + error, gradient


def _polished(problem: StronglyConvex, solution: Solution, tolerance: float, radius: float | None) -> Solution:
    """The same point, certified; or one some Newton steps further on, by gradients whose rounding is known."""
    theta, best, evaluations = solution.theta, math.inf, solution.evaluations
    kept = theta
    for _ in range(_POLISH):
        residual, gradient = residual_of(problem, theta, radius)
        evaluations += 1
        if residual < best:
            kept, best = theta, residual
        if best <= tolerance or residual > best:
            break
        if radius is not None and float(np.linalg.norm(theta)) >= radius * _ON_SPHERE:
            break  # a step along the sphere is not Newton's
        theta = theta - _newton_direction(problem, theta, gradient)
    return Solution(kept, best, solution.iterations, evaluations)


def _newton_direction(problem: StronglyConvex, theta: Array, gradient: Array) -> Array:
    if problem.dimension > _DENSE_LIMIT:
        return _conjugate_gradients(problem, theta, gradient, float(np.linalg.norm(gradient)))
    _, _, matrix = problem.evaluate(theta, True)
    assert matrix is not None
    return _factor(matrix, problem.strong_convexity)(gradient)


def _descended(problem: StronglyConvex, tolerance: float, radius: float | None, steps: int) -> Solution:
    """Projected gradient descent from 0 with steps of 1/M, M the gradient's Lipschitz constant.

    In exact arithmetic each step brings θ nearer to the minimiser by the factor 1 − Λ/M; errors of the gradient and of the
    step add up to no more than M/Λ of one step's. So it arrives on every data set, whatever Newton's method made of it; how
    long that takes is another matter (docs/objective-perturbation.md has both numbers).
    """
    theta, lipschitz = np.zeros(problem.dimension), problem.curvature_bound
    for step in range(steps):
        residual, gradient = residual_of(problem, theta, radius)
        if residual <= tolerance:
            return Solution(theta, residual, step, step + 1)
        theta = theta - gradient / lipschitz
        length = float(np.linalg.norm(theta))
        if radius is not None and length > radius:
            theta = theta * (radius / length)
    raise SolverError(f"Descent did not come within {tolerance:.3g} in {steps} steps: report it, it is proved to.")


def _newton(problem: StronglyConvex, theta: Array, tolerance: float) -> Solution:
    """As near to `tolerance` as Newton's method comes; `residual` is what it believes."""
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
            if scale < 1e-10:  # no descent any more: what is left is rounding, or the model of the function is wrong
                return Solution(theta, size, iteration, evaluations)
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
    return Solution(theta, size, _STEPS, evaluations)


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

    def certified_gradient(self, theta: Array) -> tuple[Array, float]:
        gradient, error = self.problem.certified_gradient(theta)
        return gradient + self.multiplier * theta, error

    @property
    def curvature_bound(self) -> float:
        return self.problem.curvature_bound + self.multiplier


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
    theta = theta * (radius / float(np.linalg.norm(theta)))
    return Solution(theta, math.inf, iterations, evaluations)
