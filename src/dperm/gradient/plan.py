"""The plan: one object that holds what runs, and from which what is charged is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from dperm import _validate as check
from dperm.gradient.bounding import Bounding
from dperm.gradient.noise import NoiseSchedule
from dperm.gradient.post import Identity, Post
from dperm.gradient.run import BatchSource, Gradients, NoisyGradients
from dperm.gradient.sampling import Sampler
from dperm.gradient.update import Update
from dperm.objectives.per_example import Objective, Pass
from dperm.privacy.channel import Channel
from dperm.privacy.events import Composed, Event, Gaussian, Relation, SelfComposed

__all__ = ["Plan", "Policy"]


class Policy(Protocol):
    """What a run follows: immutable, and the only source of what it costs. `Plan` fixes all its noise beforehand;
    `ImportancePlan` chooses it on the way, within a filter's budget."""

    @property
    def kind(self) -> str:
        """How records are drawn, in words."""
        ...

    @property
    def paper(self) -> str: ...

    @property
    def update(self) -> Update: ...

    @property
    def public_size(self) -> int | None:
        """The number of records as publicly known; None until `sized`."""
        ...

    @property
    def steps(self) -> int: ...

    @property
    def rate(self) -> float:
        """Expected share of the records whose gradients make a step: steps × rate are the expected passes."""
        ...

    @property
    def expected_batch_size(self) -> float: ...

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """What the whole run costs under `relation`, or its steps from `start` up to, not including, `stop`."""
        ...

    def describe(self) -> dict[str, Any]:
        """The parts as JSON-ready values, for certificates and reports."""
        ...

    def sized(self, channel: Channel, records: int) -> Self:
        """Itself, once the number of records is known: released through the channel where it is not."""
        ...

    def gradients(
        self,
        objective: Objective,
        records: BatchSource,
        channel: Channel,
        *,
        first: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> Gradients:
        """A run from step `first` on. `observe` is handed every pass and is not private."""
        ...

    def rest(self, relation: Relation, done: int) -> Event:
        """What the steps from `done` on are charged where a run is continued without what it paid."""
        ...

    def pays_for(self, event: Event, relation: Relation, first: int) -> bool:
        """Whether `event` is what this policy charges for its steps from `first` on."""
        ...


@dataclass(frozen=True)
class Plan:
    """An immutable policy for noisy descent: sampler × bounding × noise × post × update, for `steps` steps.

    `public_size` is the number of records as publicly known: the sum over a draw is divided by the constant
    rate·public_size, never by the realised size. The regulariser's step follows: Λθ/public_size.
    """

    sampler: Sampler
    bounding: Bounding
    noise: NoiseSchedule
    update: Update
    steps: int
    public_size: int
    post: Post = field(default_factory=Identity)

    def __post_init__(self) -> None:
        check.integer("steps", self.steps)
        check.integer("public_size", self.public_size)
        if sum(count for _, count in self.noise.levels(self.steps)) != self.steps:
            raise ValueError(f"Expected a noise schedule of {self.steps} steps.")

    paper = "Abadi et al. 2016; accounting by privacy loss distribution"

    @property
    def kind(self) -> str:
        return "full batch" if self.sampler.rate == 1 else "Poisson"

    @property
    def rate(self) -> float:
        return self.sampler.rate

    @property
    def expected_batch_size(self) -> float:
        return self.sampler.rate * self.public_size

    def sized(self, channel: Channel, records: int) -> Self:
        return self

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

    def rest(self, relation: Relation, done: int) -> Event:
        return self.event(relation, done)

    def pays_for(self, event: Event, relation: Relation, first: int) -> bool:
        return event == self.event(relation, first)

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
            "bounding": repr(self.bounding),
            "noise": repr(self.noise),
            "post": repr(self.post),
            "update": repr(self.update),
            "steps": self.steps,
            "expected_batch_size": self.expected_batch_size,
        }
