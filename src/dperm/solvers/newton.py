"""Newton's method on ℝ^d or on an L2 ball, with a certified residual.

Each step minimises a quadratic model over the ball. Small dimensions factor a Hessian, which BFGS updates replace for as long as
the gradient shrinks quickly; large ones use conjugate gradients on Hessian products. The line search also looks at the gradient,
because near the optimum function values are rounding noise. What is found is certified by a gradient whose rounding is bounded.

Where a function has narrow bends, Newton's method may take thousands of short steps across them. It then starts again on the same
function with wide bends, which are narrowed step by step down to those that are there.

The number of evaluations is bounded, and nothing here raises whatever the records are: `approach` returns how near it came.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse.linalg import LinearOperator, cg

from dperm._progress import watching
from dperm._types import Array

Solve = Callable[[Array], Array]

_DENSE_LIMIT = 2000  # parameters; above, a Hessian would cost more than its products
_KEEP = 0.6  # a Hessian is kept, with BFGS updates, while a step shrinks the residual at least this much
_AIM = 0.25  # of the tolerance: what Newton's method tries to reach by gradients whose rounding it does not know
_EVALUATIONS = 600  # at most, of gradients whose rounding is not known, on the direct way
_CONTINUED = 6000  # the same, by way of wider bends
_STAGE = 150  # evaluations for one width, at first
_ROUGH = 1e-3  # of its first residual: what is asked for at a width on the way
_WIDEST = 20 * math.log(3.0)  # logarithm of the largest width, in units of the one that is there
_FIRST_CHANGE = math.log(3.0)  # of the logarithm of the width
_LEAST_CHANGE = 1e-3  # of the same
_POLISH = 8  # steps by gradients whose rounding is known
_SHORTEST_STEP = 2.0**-50  # of a Newton step
_MULTIPLIERS = 40  # tried for one model
_CLOSE = 2.0**-50  # relative distance from the radius at which a length counts as the radius
_NOISY = 1e-9  # the same, below which a search for a multiplier that does not come nearer ends
_PRODUCTS = 500  # of a Hessian and a vector, for one solution by conjugate gradients
_UNCERTAIN = 2.0**-51  # relative error of `length_of`, and more

#: Evaluations of values, gradients or Hessians that `approach` may make. A step has a model, and a model at most 80 systems of
#: equations: by Cholesky's method or, above 2,000 parameters, by 500 Hessian products each.
MOST_EVALUATIONS = _EVALUATIONS + _CONTINUED + 2 * (2 * _POLISH + 2) + 1


class SolverError(RuntimeError):
    """The tolerance was not reached."""


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

    def smoother(self, factor: float) -> StronglyConvex | None:
        """About the same function, whose gradient changes over distances `factor` ≥ 1 times as wide; None where there is none."""
        ...


@dataclass(frozen=True)
class Solution:
    """θ (p,) is within residual ÷ strong_convexity of the minimiser, rounding included.

    `iterations` counts steps, `evaluations` the values, gradients and Hessians that were computed.
    """

    theta: Array
    residual: float
    iterations: int
    evaluations: int


def minimise(problem: StronglyConvex, tolerance: float, radius: float | None = None, start: Array | None = None) -> Solution:
    """The minimiser, over ‖θ‖ ≤ radius if given, to a certified residual ≤ `tolerance`. Raises SolverError where it is not
    reached: a mechanism, which must not fail, uses `approach` and `descend`."""
    solution = approach(problem, tolerance, radius, start)
    if solution.residual <= tolerance:
        return solution
    raise SolverError(
        f"The tolerance {tolerance:.3g} was not reached, only {solution.residual:.3g}: it may be below rounding here."
    )


def approach(problem: StronglyConvex, tolerance: float, radius: float | None = None, start: Array | None = None) -> Solution:
    """As near to the minimiser, over ‖θ‖ ≤ radius if given, as Newton's method comes in at most `MOST_EVALUATIONS`, with its
    certified residual: it may be above `tolerance`, and infinite."""
    limit = math.inf if radius is None else radius
    theta = np.zeros(problem.dimension) if start is None else held(start, limit)
    # a number that overflows is turned down below: a warning, or an error for callers who ask for errors, would tell of records
    with np.errstate(all="ignore"):
        found = _polished(problem, _newton(problem, theta, _AIM * tolerance, limit, _EVALUATIONS), tolerance, limit)
        if found.residual <= tolerance:
            return found
        other = _narrowed(problem, theta, tolerance, limit)
    best = other if other.residual < found.residual else found
    return replace(best, iterations=found.iterations + other.iterations, evaluations=found.evaluations + other.evaluations)


def length_of(vector: Array) -> float:
    """‖vector‖, right to a unit in the last place: a sum of squares would be off by as many units as there are entries."""
    return math.hypot(*vector.tolist())


def residual_of(gradient: Array, error: float, theta: Array, radius: float, curvature_bound: float) -> float:
    """Bound on strong_convexity·‖θ − θ*‖, θ* the minimiser over ‖θ‖ ≤ radius, from a gradient at θ that is right to `error`.

    Let θ̂ be θ, or the point of the sphere below or above θ. Strong convexity gives Λ‖θ̂ − θ*‖ ≤ ‖∇J(θ̂) + ν‖ for each ν of the
    normal cone at θ̂: 0 inside, and all μθ with μ ≥ 0 on the sphere. The gradient at θ̂ differs by M·‖θ − θ̂‖ at most, and Λ ≤ M.
    """
    length = length_of(theta)
    outside = max(0.0, length * (1 + _UNCERTAIN) - radius)
    free = float(np.linalg.norm(gradient)) + 2 * curvature_bound * outside
    if not length > 0 or radius == math.inf:
        return _larger(free, len(theta)) + error
    pull = _multiplier(gradient, theta, length)
    aside = abs(length - radius) + _UNCERTAIN * length
    rest = float(np.linalg.norm(gradient + pull * theta)) + 2 * curvature_bound * aside + 2.0**-51 * pull * length
    return _larger(min(free, rest), len(theta)) + error


def _larger(length: float, size: int) -> float:
    """A bound on the length of a vector of `size` entries that a sum of squares found this long."""
    return length * (1 + size * 2.0**-52)


def _multiplier(gradient: Array, theta: Array, length: float) -> float:
    """μ ≥ 0 for which ‖gradient + μθ‖ is least."""
    direction = theta / length
    return max(0.0, -math.fsum((gradient * direction).tolist()) / length)


def _believed(gradient: Array, theta: Array, radius: float) -> float:
    """The residual, but for rounding."""
    length = float(np.linalg.norm(theta))
    if length < radius * (1 - _CLOSE):
        return float(np.linalg.norm(gradient))
    return float(np.linalg.norm(gradient + _multiplier(gradient, theta, length) * theta))


def held(theta: Array, radius: float) -> Array:
    """The nearest point of the ball."""
    length = length_of(theta)
    return theta * (radius / length) if length > radius else theta.copy()


def _polished(problem: StronglyConvex, found: Solution, tolerance: float, radius: float) -> Solution:
    """The same point, certified; or one some Newton steps further on, by gradients whose rounding is known."""
    theta, kept, best, evaluations = found.theta, found.theta, math.inf, found.evaluations
    curvature_bound = problem.curvature_bound
    for _ in range(_POLISH):
        gradient, error = problem.certified_gradient(theta)
        residual = residual_of(gradient, error, theta, radius, curvature_bound)
        evaluations += 1
        if not residual < best:
            break
        kept, best = theta, residual
        if best <= tolerance:
            break
        _, _, matrix = problem.evaluate(theta, problem.dimension <= _DENSE_LIMIT)
        evaluations += 1
        solves = _solves(problem, theta, matrix, _believed(gradient, theta, radius))
        target = _model_minimiser(solves, theta, gradient, radius)
        if target is None:
            break
        theta = target
    return Solution(kept, best, found.iterations, evaluations)


def _narrowed(problem: StronglyConvex, theta: Array, tolerance: float, radius: float) -> Solution:
    """The best certified point that Newton's method finds by way of wider bends, with an infinite residual where there is none.

    It goes from the widest to the problem itself, each time from where it converged before. Where it does not converge in
    `_STAGE` evaluations, the width changes by less; where it does, the next change is larger. Once hardly any change is small
    enough, more evaluations are allowed.
    """
    best = Solution(theta, math.inf, 0, 0)
    passed, change, patience = _WIDEST + _FIRST_CHANGE, _FIRST_CHANGE, _STAGE
    iterations = evaluations = 0
    while best.residual > tolerance and evaluations < _CONTINUED:
        width = max(0.0, passed - change)
        stage = problem.smoother(math.exp(width)) if width > 0 else problem
        if stage is None:
            break
        goal = _AIM * tolerance
        if width > 0:
            goal = max(goal, _ROUGH * _Point.at(stage, theta, radius)[0].residual)
            evaluations += 1
        found = _newton(stage, theta, goal, radius, min(patience, _CONTINUED - evaluations))
        if width == 0:
            found = _polished(problem, found, tolerance, radius)
            best = found if found.residual < best.residual else best
        iterations, evaluations = iterations + found.iterations, evaluations + found.evaluations
        if width > 0 and found.residual <= goal:
            passed, theta, change = width, found.theta, 1.5 * change
        else:
            change = min(change, passed) / 3
        if change < _LEAST_CHANGE:
            change, patience = _FIRST_CHANGE, 4 * patience
    return replace(best, iterations=iterations, evaluations=evaluations)


@dataclass(frozen=True)
class _Point:
    """What is known of a point: rounding of the gradient apart, `residual` is what `residual_of` bounds."""

    theta: Array
    value: float
    gradient: Array
    residual: float

    @staticmethod
    def at(problem: StronglyConvex, theta: Array, radius: float, hessian: bool = False) -> tuple[_Point, Array | None]:
        value, gradient, matrix = problem.evaluate(theta, hessian)
        return _Point(theta, value, gradient, _believed(gradient, theta, radius)), matrix


def _newton(problem: StronglyConvex, theta: Array, tolerance: float, radius: float, most: int) -> Solution:
    """As near to `tolerance` as Newton's method comes in `most` evaluations and two more; `residual` is what it believes."""
    with watching("Training") as going_on:  # how many steps it takes follows from the records: they are not counted
        return _by_steps(problem, theta, tolerance, radius, most, going_on)


def _by_steps(
    problem: StronglyConvex, theta: Array, tolerance: float, radius: float, most: int, going_on: Callable[..., None]
) -> Solution:
    """The same, which tells `going_on` at each step.

    A step goes to where a quadratic model is least on the ball, or part of the way: the ball is convex, and every such step goes
    down at first.
    """
    here, matrix = _Point.at(problem, theta, radius, problem.dimension <= _DENSE_LIMIT)
    evaluations, iterations = 1, 0
    while here.residual > tolerance and evaluations < most:
        target = _model_minimiser(_solves(problem, here.theta, matrix, here.residual), here.theta, here.gradient, radius)
        if target is None:
            break
        there, tried = _searched(problem, here, target, radius, most - evaluations)
        evaluations += tried
        going_on()
        if there is None:
            break
        iterations += 1
        if matrix is not None and there.residual > tolerance:
            if there.residual > _KEEP * here.residual:
                matrix = problem.evaluate(there.theta, True)[2]
                evaluations += 1
            else:
                matrix = _updated(matrix, there.theta - here.theta, there.gradient - here.gradient)
        here = there
    return Solution(here.theta, here.residual, iterations, evaluations)


def _updated(matrix: Array, moved: Array, turned: Array) -> Array:
    """The Hessian `matrix` once a step has `moved` and the gradient `turned`: it maps the one to the other (BFGS)."""
    if not float(moved @ turned) > 0:
        return matrix
    bent = matrix @ moved
    return matrix + np.outer(turned, turned) / float(moved @ turned) - np.outer(bent, bent) / float(moved @ bent)


def _searched(problem: StronglyConvex, here: _Point, target: Array, radius: float, most: int) -> tuple[_Point | None, int]:
    """A point on the way to `target`, or the target, from which on the function falls at most half as fast as at first and which
    is not higher; and how many were looked at. None where there is none: what is left is rounding, or the model is wrong.

    By bisection for the slope along the way, which rises: where the function is made of pieces, backtracking alone would take
    thousands of short steps. Values are compared up to their rounding, which is all of them near the optimum, and where
    parameters are large.
    """
    step = target - here.theta
    down, rounding = float(here.gradient @ step), 1e-13 * (abs(here.value) + 1)
    candidate, share, low, high = target, 1.0, 0.0, 1.0
    at_low, at_high = down, math.inf  # slopes along the way; the one at an end that stays is halved (Illinois method)
    for tried in range(1, most + 1):
        there, _ = _Point.at(problem, candidate, radius)
        slope = float(there.gradient @ step)
        lower = there.value <= here.value + 1e-4 * share * down + rounding
        level = slope <= -0.5 * down and (slope >= 0.5 * down or share == 1)
        if lower and (level or there.residual < _KEEP * here.residual):
            return there, tried
        if lower and slope < 0:
            at_high = at_high / 2 if low > 0 else at_high
            low, at_low = share, slope
        else:
            at_low = at_low / 2 if high < 1 else at_low
            high, at_high = share, slope
        if high - low < _SHORTEST_STEP:
            return (there if there.residual < here.residual else None), tried
        share = _crossing(low, high, at_low, at_high, tried)
        candidate = here.theta + share * step
    return None, most


def _crossing(low: float, high: float, at_low: float, at_high: float, tried: int) -> float:
    """Where the line from a slope `at_low` < 0 at `low` to `at_high` at `high` is 0; every other time, and where it is not, a
    middle of both, which is the geometric one where they are far apart."""
    if tried % 2 == 0 or not at_low < 0 < at_high < math.inf:
        return math.sqrt(low * high) if 0 < 4 * low < high else (low + high) / 2
    share = low + (high - low) * (at_low / (at_low - at_high))
    return share if low < share < high else (low + high) / 2


def _model_minimiser(solves: Callable[[float], Solve | None], theta: Array, gradient: Array, radius: float) -> Array | None:
    """Where the model gradientᵀs + sᵀHs/2 of steps s is least for ‖θ + s‖ ≤ radius; None where no number comes out.

    `solves(μ)` solves systems with H + μI. Where the ball is active, (H + μI)s = −(gradient + μθ) for the μ at which
    ‖θ + s‖ = radius: by Newton's method for 1/‖θ + s‖, which is nearly linear in μ (Moré & Sorensen 1983) and comes from below,
    within a bracket. Whatever μ is found, the point is brought onto the sphere.
    """
    multiplier, low, high, best = 0.0, 0.0, math.inf, math.inf
    target = None
    for _ in range(_MULTIPLIERS):
        solve = solves(multiplier)
        if solve is None:
            break
        candidate = theta - solve(gradient + multiplier * theta)
        length = length_of(candidate)
        if not length < math.inf:
            low = multiplier
            multiplier = _between(low, high, gradient, radius)
            continue
        if length <= radius and multiplier == 0:
            return candidate
        if length == 0:  # so large a multiplier that the step ends in 0
            high = multiplier
            multiplier = _between(low, high, gradient, radius)
            continue
        excess = length / radius - 1
        if abs(excess) >= best and best < _NOISY:
            break
        if abs(excess) < best:
            target, best = candidate * (radius / length), abs(excess)
        if best <= _CLOSE:
            break
        low, high = (multiplier, high) if excess > 0 else (low, multiplier)
        direction = candidate / length  # of a short candidate the square would be 0
        multiplier += float(excess / np.float64(direction @ solve(direction)))  # NumPy's own division raises nothing at 0
        if not low < multiplier < high:
            multiplier = _between(low, high, gradient, radius)
    return target


def _between(low: float, high: float, gradient: Array, radius: float) -> float:
    """A multiplier inside the bracket; the first ones are such that a step of gradient ÷ multiplier is about as long as the
    radius."""
    return (low + high) / 2 if high < math.inf else 4 * low + float(np.linalg.norm(gradient)) / radius * 2.0**-20


def _solves(problem: StronglyConvex, theta: Array, matrix: Array | None, size: float) -> Callable[[float], Solve | None]:
    """μ ↦ what solves systems with H + μI, H the matrix or, where there is none, the Hessian at θ; None where it has numbers
    that are not finite."""
    if matrix is not None:
        whole = matrix
        if not np.isfinite(whole).all():
            return lambda _: None
        return lambda multiplier: _factored(whole, multiplier, problem.strong_convexity)
    accuracy = min(0.1, math.sqrt(size / (1 + size)))

    def iterated(multiplier: float) -> Solve:
        operator = LinearOperator(
            (len(theta), len(theta)),
            matvec=lambda v: problem.hessian_product(theta, v.ravel()) + multiplier * v.ravel(),
            dtype=float,
        )
        return lambda vector: cg(operator, vector, rtol=accuracy * (1e-3 if multiplier else 1.0), maxiter=_PRODUCTS)[0]

    return iterated


def _factored(matrix: Array, multiplier: float, strong_convexity: float) -> Solve:
    """A solver for matrix + multiplier·I, whose single-precision sums may need a touch more on the diagonal."""
    lift, least = 0.0, max(strong_convexity, 1e-6 * float(np.abs(matrix).sum()) / len(matrix))
    while True:  # the matrix is finite: it is definite once `lift` is as large as its entries' sum
        try:
            factor = cho_factor(matrix + (multiplier + lift) * np.eye(len(matrix)), lower=True, check_finite=False)
            return lambda vector: cho_solve(factor, vector, check_finite=False)
        except np.linalg.LinAlgError:
            lift = max(10 * lift, least)
