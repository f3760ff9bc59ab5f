"""The plan: sampler × query × bounding × noise × post × update. What runs is what is charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dperm import _validate as check
from dperm.gradient.bounding import Bounding
from dperm.gradient.noise import NoiseSchedule
from dperm.gradient.policy import BatchSource, Gradients, Policy
from dperm.gradient.post import Identity, Post
from dperm.gradient.query import Gradient, Query
from dperm.gradient.sampling import Sampler
from dperm.gradient.update import Update
from dperm.objectives.per_example import Objective, Pass
from dperm.objectives.sums import RunningSum
from dperm.privacy.channel import Channel
from dperm.privacy.events import Composed, Event, Gaussian, Relation, SelfComposed

__all__ = ["NoisyGradients", "Plan"]


@dataclass(frozen=True)
class Plan(Policy):
    """A policy for noisy descent: sampler × query × bounding × noise × post × update, for `steps` steps.

    `public_size` is the number of records as publicly known: the sum over a draw is divided by the constant
    rate·public_size, never by the realised size. The regulariser's step follows: Λθ/public_size.
    """

    sampler: Sampler
    bounding: Bounding
    noise: NoiseSchedule
    update: Update
    steps: int
    public_size: int  # pyright: ignore[reportIncompatibleVariableOverride]
    post: Post = field(default_factory=Identity)
    query: Query = field(default_factory=Gradient)

    def __post_init__(self) -> None:
        check.integer("steps", self.steps)
        check.integer("public_size", self.public_size)
        if sum(count for _, count in self.noise.levels(self.steps)) != self.steps:
            raise ValueError(f"Expected a noise schedule of {self.steps} steps.")

    paper = "Abadi et al. 2016; accounting by privacy loss distribution"

    @property
    def expected_batch_size(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rate * self.public_size

    @property
    def kind(self) -> str:
        return "full batch" if self.sampler.rate == 1 else "Poisson"

    @property
    def rate(self) -> float:
        return self.sampler.rate

    def gradients(
        self,
        objective: Objective,
        records: BatchSource,
        channel: Channel,
        *,
        first: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> NoisyGradients:
        return NoisyGradients(self, objective, records, channel, first=first, observe=observe)

    @property
    def vectorises(self) -> bool:
        return self.bounding.vectorises

    @property
    def longest(self) -> float | None:
        return None if self.bounding.init() else self.bounding.bound

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """What the whole run costs under `relation`, or its steps from `start` up to, not including, `stop`."""
        stop = self.steps if stop is None else stop
        parts: list[Event] = []
        done = 0
        for multiplier, count in self.noise.levels(self.steps):
            taken = min(done + count, stop) - max(done, start)
            done += count
            if taken > 0:
                parts.append(SelfComposed(self.sampler.amplify(Gaussian(multiplier, relation)), taken))
        return parts[0] if len(parts) == 1 else Composed(tuple(parts))

    def describe(self) -> dict[str, Any]:
        """The parts as JSON-ready text, for certificates and reports."""
        return {
            "sampler": repr(self.sampler),
            **({} if type(self.query) is Gradient else {"query": repr(self.query)}),
            "bounding": repr(self.bounding),
            "noise": repr(self.noise),
            "post": repr(self.post),
            "update": repr(self.update),
            "steps": self.steps,
            "expected_batch_size": self.expected_batch_size,
        }


class NoisyGradients(Gradients):
    """A `Plan` in progress. `observe`, if given, is handed every pass and is not private."""

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
        self.policy = self.plan = plan
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
        for _ in range(steps):
            next(self._noise)
        self.step += steps

    def __call__(self, theta: Any) -> Any:
        plan, state, objective = self.plan, self.bounding_state, self.objective
        noise_multiplier = next(self._noise)
        total = RunningSum()
        for batch in next(self._batches):
            at_theta = plan.query.at(objective, theta, batch)
            if self._observe is not None:
                self._observe(at_theta)
            total.add(plan.bounding.query(at_theta, state))
        query = total.query(self._sensitivity, noise_multiplier)
        if query is None:
            query = plan.bounding.empty(theta)
        released = self._channel.release(query, self._sensitivity, noise_multiplier, plan.sampler.rate)
        self.step += 1
        mean = plan.bounding.read(released, state, plan.expected_batch_size)
        mean *= self._scale  # in place: nobody else holds it
        gradient = plan.post.apply(mean)
        return gradient + self._shrink * theta if self._shrink else gradient

    @property
    def clipping_norm(self) -> float:
        return self.plan.bounding.cut(self.bounding_state)

    def summary(self) -> dict[str, Any]:
        return {"noise_levels": self.plan.noise.levels(self.plan.steps)}

    def public(self) -> dict[str, Any]:
        return dict(self.bounding_state)

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        self.bounding_state.update(public)
