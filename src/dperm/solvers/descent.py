"""Accelerated projected gradient descent on an L2 ball: it arrives whatever the records are, in a bounded number of steps."""

from __future__ import annotations

import math

import numpy as np

from dperm.solvers.newton import Solution, StronglyConvex, held, residual_of

_LEFT = 10.0  # of the tolerance, one part in so many is what the start leaves after the last step


def most_steps(condition: float, reach: float) -> int:
    """Steps after which the start no longer matters; `condition` is M/Λ, `reach` Λ·radius ÷ tolerance."""
    if reach <= 1:
        return 0
    return math.ceil(2 * math.sqrt(condition) * math.log(_LEFT * math.sqrt(1 + condition) * reach))


def descend(problem: StronglyConvex, tolerance: float, radius: float, start: Solution | None = None) -> Solution:
    """A point within tolerance ÷ strong_convexity of the minimiser over ‖θ‖ ≤ radius.

    That is a theorem for each tolerance that is at least `dperm.mechanisms.minimiser.certain_tolerance`, rounding included
    (docs/objective-perturbation.md): nothing is raised, and the last point is returned without asking what its residual is. It
    stops earlier where a residual is certified. A `start` whose certified residual proves it nearer than 0 may be takes
    the place of 0, and fewer steps then suffice: no more than `most_steps` of the public numbers. With τ = √(Λ/M), a step is

        y = (x + τz)/(1 + τ),   z ← nearest point of the ball to z + τ(y − z) − (τ/Λ)∇J(y),   x ← x + τ(z − x).

    (Nesterov's method for strongly convex functions, with one projection.)
    """
    modulus, lipschitz = problem.strong_convexity, problem.curvature_bound
    share = math.sqrt(modulus / lipschitz)
    reach = modulus * radius  # bounds the modulus times the distance to the minimiser, as a residual does
    x = z = np.zeros(problem.dimension)
    if start is not None and tolerance < start.residual < reach:
        reach = start.residual
        x = z = held(start.theta, radius)
    steps = most_steps(lipschitz / modulus, reach / tolerance)
    with np.errstate(all="ignore"):  # a warning would tell of records
        for step in range(steps):
            y = x + share / (1 + share) * (z - x)
            gradient, error = problem.certified_gradient(y)
            residual = residual_of(gradient, error, y, radius, lipschitz)
            if residual <= tolerance:
                return Solution(y, residual, step, step + 1)
            z = z + share * (y - z) - share / modulus * gradient
            z = held(z, radius)
            x = x + share * (z - x)
    return Solution(x, tolerance, steps, steps)
