"""The plan: one object that holds what runs, and from which what is charged is computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from dperm import _validate as check
from dperm.gradient.bounding import Bounding
from dperm.gradient.noise import NoiseSchedule
from dperm.gradient.post import Identity, Post
from dperm.gradient.sampling import Sampler
from dperm.gradient.update import Update
from dperm.privacy.events import Composed, Event, Gaussian, Relation, SelfComposed

__all__ = ["Plan"]


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

    @property
    def expected_batch_size(self) -> float:
        return self.sampler.rate * self.public_size

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

    def describe(self) -> dict[str, object]:
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
