"""The one descent loop: any policy on any objective, in the backend of θ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dperm.gradient.policy import BatchSource, Gradients, Policy
from dperm.objectives.constraints import project_l2_ball
from dperm.objectives.per_example import Objective
from dperm.release.channel import Channel


def descend(
    plan: Policy,
    objective: Objective,
    records: BatchSource,
    channel: Channel,
    theta: Any,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Run `plan` from `theta` (p,); returns the final parameters. The channel must have been charged for the plan's event."""
    plan = plan.sized(channel, len(records))
    return descend_by(plan, plan.gradients(objective, records, channel), objective, theta, progress)


def descend_by(
    plan: Policy, gradients: Gradients[Policy], objective: Objective, theta: Any, progress: Callable[[int], None] | None = None
) -> Any:
    """`descend` with gradients that the caller started, and may look at afterwards."""
    update, radius = plan.update, objective.radius
    state = update.init(theta)
    for step in range(1, plan.steps + 1):
        gradient = gradients(theta)
        with np.errstate(over="ignore", invalid="ignore"):  # a step may be as large as it likes: it is of released numbers
            theta = project_l2_ball(update.step(theta, gradient, state), radius)
        if progress is not None:
            progress(step)
    with np.errstate(over="ignore", invalid="ignore"):
        return project_l2_ball(update.result(theta, state), radius)
