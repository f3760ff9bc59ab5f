"""The one descent loop: any plan on any objective, in the backend of θ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dperm.gradient.plan import Plan
from dperm.objectives.constraints import project_l2_ball
from dperm.objectives.per_example import Objective
from dperm.privacy.channel import Channel

__all__ = ["BatchSource", "descend"]


class BatchSource(Protocol):
    """Records as the loop sees them."""

    def __len__(self) -> int: ...

    def take(self, indices: Any) -> Any: ...

    def batches(self) -> Iterable[Any]: ...


def descend(
    plan: Plan,
    objective: Objective,
    records: BatchSource,
    channel: Channel,
    theta: Any,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Run `plan` from `theta` (p,); returns the final parameters. The channel must have been charged for the plan's event.

    Everything that leaves is a channel release; the regulariser and the projection touch released values only. The
    realised number of records is used to draw, never to scale.
    """
    sensitivity = plan.bounding.sensitivity(objective.facts.relation)
    bounding, post, update = plan.bounding, plan.post, plan.update
    rate, scale = plan.sampler.rate, 1.0 / plan.expected_batch_size
    shrink = objective.strong_convexity / plan.public_size
    state = update.init(theta)
    draws = plan.sampler.draws(channel, len(records), plan.steps)
    step = 0

    def bounded(batch: Any, theta: Any) -> Any:
        at_theta = objective.per_example(theta, batch)
        return at_theta.weighted_sum(bounding.factors(at_theta.norms))

    for multiplier, count in plan.noise.levels(plan.steps):
        noise_std = multiplier * sensitivity
        for _ in range(count):
            indices = next(draws)
            if indices is None:
                total: Any = sum((bounded(batch, theta) for batch in records.batches()), start=theta * 0.0)
            else:
                total = bounded(records.take(indices), theta)
            gradient = post.apply(channel.release(total, sensitivity, noise_std, rate) * scale)
            if shrink:
                gradient = gradient + shrink * theta
            theta = project_l2_ball(update.step(theta, gradient, state), objective.radius)
            step += 1
            if progress is not None:
                progress(step)
    return project_l2_ball(update.result(theta, state), objective.radius)
