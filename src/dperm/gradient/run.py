"""The private half of a run: each call releases one step's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from dperm.objectives.per_example import Objective, Pass
from dperm.objectives.sums import RunningSum
from dperm.privacy.channel import Channel
from dperm.privacy.events import Event, Relation

if TYPE_CHECKING:
    from dperm.gradient.plan import Plan

__all__ = ["BatchSource", "Gradients", "NoisyGradients"]


class BatchSource(Protocol):
    """Records as the loop sees them."""

    def __len__(self) -> int: ...

    def stream(self, draws: Iterable[Any]) -> Iterator[Iterable[Any]]:
        """For each draw (sorted indices, or None for every record) its records, in batches that fit memory."""
        ...


class Gradients(ABC):
    """One run of a policy: each call draws records, sums their bounded gradients and releases the sum.

    The channel must have been charged for the policy's event. Everything returned is a release or made from releases; the
    regulariser's step is added after the noise. The realised number of records is used to draw, never to scale.
    `step` counts steps done or passed over.
    """

    step: int

    @abstractmethod
    def __call__(self, theta: Any) -> Any:
        """The next step's gradient (p,) at θ, after post-processing, per record of the expected batch."""

    @abstractmethod
    def skip(self, steps: int) -> None:
        """Pass over steps that are paid for but will not run; more than asked for, where the rest cannot run without them."""

    @abstractmethod
    def spent(self, relation: Relation, start: int) -> Event | None:
        """What the steps from `start` up to now cost; None for nothing."""

    @property
    @abstractmethod
    def clipping_norm(self) -> float:
        """The norm that gradients are cut at now; 0 where they are not cut."""

    def together(self) -> int | None:
        """How many steps from here may be reserved at once; None: any number."""
        return None

    def public(self) -> dict[str, Any]:
        """JSON-ready state made from releases: for a checkpoint, or for anyone."""
        return {}

    def trace(self) -> list[dict[str, Any]]:
        """What was chosen on the way, by epoch: made from releases, so that anyone may see it."""
        return []

    def private(self) -> dict[str, Any]:
        """State made from records, for a checkpoint and for nobody else: flat arrays by name."""
        return {}

    @abstractmethod
    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""


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
        for _ in range(steps):
            next(self._noise)
        self.step += steps

    def __call__(self, theta: Any) -> Any:
        plan, state, objective = self.plan, self.bounding_state, self.objective
        noise_multiplier = next(self._noise)
        total = RunningSum()
        for batch in next(self._batches):
            at_theta = objective.per_example(theta, batch)
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

    def spent(self, relation: Relation, start: int) -> Event | None:
        return self.plan.event(relation, start, self.step) if self.step > start else None

    @property
    def clipping_norm(self) -> float:
        return self.bounding_state.get("clipping_norm", getattr(self.plan.bounding, "clipping_norm", 0.0))

    def public(self) -> dict[str, Any]:
        return dict(self.bounding_state)

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        self.bounding_state.update(public)
