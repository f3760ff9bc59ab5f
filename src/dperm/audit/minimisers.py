"""Checks of the assumptions about minimisers, at the minimisers that a run found."""

from __future__ import annotations

import numpy as np

from dperm._types import Array
from dperm.audit.movement import raise_to
from dperm.audit.noise import Finding
from dperm.audit.recording import Recording
from dperm.mechanisms import Stage
from dperm.objectives import RegularisedSum
from dperm.privacy import Relation

#: kinds of movement of objective perturbation
GRADIENT, LOG_DETERMINANT, SOLVER = "gradient of the objective", "log-determinant", "error of the solver"


def minimiser_findings(mine: Stage, theirs: Stage, first: Recording, second: Recording) -> tuple[dict[str, float], list[Finding]]:
    """Check the assumptions about minimisers at the minimisers of two neighbouring runs.

    Both must be within the tolerance. For objective perturbation there is no query before the noise: the objectives'
    gradients at the released θ may differ by what b charges for, and their log-determinants by ln(1 + β/Λ).
    """
    mechanism, objective = mine.mechanism, mine.objective
    perturbs = mechanism.minimiser == 1  # after the release of a linear term
    findings: list[Finding] = []
    ratios: dict[str, float] = {}
    place = mine.first_release + (mechanism.minimiser or 0)
    if not place < min(len(first.releases), len(second.releases)):
        return ratios, [Finding("releases", "a minimiser that is charged for was not released")]
    if not all(np.isfinite(recording.releases[place].query).all() for recording in (first, second)):
        return ratios, [Finding("solver", "its solver stopped at numbers that are not finite")]
    for item, recording in ((mine, first), (theirs, second)):
        linear = recording.releases[mine.first_release].released if perturbs else 0.0
        theta = recording.releases[place].query
        problem = RegularisedSum(item.objective, item.records, linear)
        # what was found was rounded to a grid since
        moved = recording.releases[place].step * np.sqrt(len(theta))
        gradient = problem.evaluate(theta, False)[1]
        residual = _outside_the_cone(gradient, theta, objective.radius, moved)
        rounded = (problem.curvature_bound + 2 * float(np.linalg.norm(gradient)) / (objective.radius or np.inf)) * moved
        limit = mechanism.residual(item.objective.facts)
        if perturbs:
            raise_to(ratios, {SOLVER: residual / limit})
        if not residual <= limit * (1 + 1e-6) + rounded:
            text = f"its solver stopped at a gradient norm of {residual:.3g}, {limit:.3g} is what noise was made for"
            findings.append(Finding("solver", text))
    theta = first.releases[place].query
    # with their regularisers: one that follows the records shows
    sides = [RegularisedSum(item.objective, item.records).evaluate(theta, hessian=True) for item in (mine, theirs)]
    if not all(np.isfinite(np.asarray(part)).all() for side in sides for part in side[1:]):
        findings.append(Finding("curvature", "what it minimises has a gradient or a curvature that is not finite"))
        return ratios, findings
    for side in sides:
        curvatures = np.linalg.eigvalsh(np.asarray(side[2]))
        if curvatures[0] < objective.strong_convexity * (1 - 1e-5) - 1e-6 * curvatures[-1]:  # it may be of single precision
            text = f"what it minimises is curved by {curvatures[0]:.3g}, and {objective.strong_convexity:.3g} is charged for"
            findings.append(Finding("curvature", text))
    if not perturbs:
        return ratios, findings
    moves = 1 if objective.relation is Relation.ADD_OR_REMOVE_ONE else 2
    charged = first.releases[mine.first_release].sensitivity * moves
    raise_to(ratios, {GRADIENT: float(np.linalg.norm(sides[0][1] - sides[1][1])) / charged})
    logdets = [float(np.linalg.slogdet(np.asarray(side[2]))[1]) for side in sides]
    rank = objective.unit.rows  # of a person's Hessian, whose trace is as bounded as a record's
    allowed = rank * float(np.log1p(objective.facts.smoothness / (rank * objective.strong_convexity)))
    # the Hessian may be of single precision
    raise_to(ratios, {LOG_DETERMINANT: abs(logdets[0] - logdets[1]) / (allowed * (1 + 1e-5) + 1e-6)})
    return ratios, findings


def _outside_the_cone(gradient: Array, theta: Array, radius: float | None, moved: float) -> float:
    """‖∇J + ν‖ for the best ν of the normal cone at θ: the gradient norm within a ball, its tangential part on the sphere. θ may
    have been `moved` so far since it was found."""
    norm = float(np.linalg.norm(theta))
    if radius is not None and norm >= radius * (1 - 1e-9) - moved:
        direction = theta / norm
        gradient = gradient - min(0.0, float(gradient @ direction)) * direction
    return float(np.linalg.norm(gradient))
