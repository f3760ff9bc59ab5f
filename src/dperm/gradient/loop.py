"""The one descent loop: any plan on any objective, in the backend of θ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from dperm.gradient.plan import Plan
from dperm.objectives.constraints import project_l2_ball
from dperm.objectives.per_example import Objective, Pass
from dperm.privacy.channel import Channel

__all__ = ["BatchSource", "NoisyGradients", "descend"]


class BatchSource(Protocol):
    """Records as the loop sees them."""

    def __len__(self) -> int: ...

    def stream(self, draws: Iterable[Any]) -> Iterator[Iterable[Any]]:
        """For each draw (sorted indices, or None for every record) its records, in batches that fit memory."""
        ...


class NoisyGradients:
    """The private half of a run: each call draws records, sums their bounded gradients and releases the sum.

    The channel must have been charged for the plan's event. Everything returned is a release or made from releases; the
    regulariser's step is added after the noise. The realised number of records is used to draw, never to scale.
    `observe`, if given, is handed every pass and is not private.
    """

    def __init__(
        self,
        plan: Plan,
        objective: Objective,
        records: BatchSource,
        channel: Channel,
        *,
        first: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> None:
        self.plan = plan
        self.objective = objective
        self.step = first
        self.bounding_state = plan.bounding.init()
        self._channel = channel
        self._observe = observe
        self._sensitivity = plan.bounding.sensitivity(objective.facts.relation)
        self._scale = 1.0 / plan.expected_batch_size
        self._shrink = objective.strong_convexity / plan.public_size
        self._batches = records.stream(plan.sampler.draws(channel, len(records), plan.steps - first))
        self._noise = plan.noise.multipliers(plan.steps, first)

    def skip(self, steps: int) -> None:
        """Pass over steps that are paid for but will not run: their noise levels are used up."""
        for _ in range(steps):
            next(self._noise)
        self.step += steps

    def __call__(self, theta: Any) -> Any:
        """The next step's gradient (p,) at θ, after post-processing, per record of the expected batch."""
        plan, state, objective = self.plan, self.bounding_state, self.objective
        noise_std = next(self._noise) * self._sensitivity
        total: Any = None
        for batch in next(self._batches):
            at_theta = objective.per_example(theta, batch)
            if self._observe is not None:
                self._observe(at_theta)
            part = plan.bounding.query(at_theta, state)
            total = part if total is None else total + part
        if total is None:
            total = plan.bounding.empty(theta)
        released = self._channel.release(total, self._sensitivity, noise_std, plan.sampler.rate)
        self.step += 1
        mean = plan.bounding.read(released, state, plan.expected_batch_size)
        mean *= self._scale  # in place: nobody else holds it
        gradient = plan.post.apply(mean)
        return gradient + self._shrink * theta if self._shrink else gradient


def descend(
    plan: Plan,
    objective: Objective,
    records: BatchSource,
    channel: Channel,
    theta: Any,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Run `plan` from `theta` (p,); returns the final parameters. The channel must have been charged for the plan's event."""
    gradients = NoisyGradients(plan, objective, records, channel)
    update, radius = plan.update, objective.radius
    state = update.init(theta)
    for step in range(1, plan.steps + 1):
        theta = project_l2_ball(update.step(theta, gradients(theta), state), radius)
        if progress is not None:
            progress(step)
    return project_l2_ball(update.result(theta, state), radius)
