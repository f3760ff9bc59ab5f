"""m-NGP as published ("Sharper utility bounds for differentially private models", anonymous, 2022, Algorithm 1): not private at
the ε that it states. Its sound counterpart normalises after the noise: `UnitAtLeast`."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, fields
from typing import Any

from dperm.gradient import Clip, Gradients, PerExampleGradient, Plan, Policy, UnitAtLeast, Update
from dperm.mechanisms import Budget, Mechanism, TraditionalGradient
from dperm.objectives import PublicFacts
from dperm.privacy import Composed, Event, Gaussian, Relation, SelfComposed, Unsupported
from dperm.release import GaussianNoise

_CLAIM = (
    "m-NGP normalises the mean gradient before the noise: neighbours whose mean gradients are +a and −a, however small a is, "
    "become +1 and −1, while the noise is made for a sensitivity that falls as 1/n."
)

_KIND = "normalised mean of gradients"


class _Gradients(Gradients["PublishedNormalisedPlan"]):
    def __call__(self, theta: Any) -> Any:
        plan, clip = self.policy, Clip(self.policy.clipping_norm)
        total: Any = clip.empty(theta)
        for batch in next(self.records.stream([None])):
            total = total + clip.query(PerExampleGradient().at(self.objective, theta, batch), {})
        mean = UnitAtLeast().apply(self.regularised(total / plan.public_size, theta))
        self.step += 1
        noise = GaussianNoise(plan.moves_by(self.relation), plan.true_noise(self.relation), what=_KIND)
        return self.channel.release(mean, noise)

    def summary(self) -> dict[str, Any]:
        return {"noise_levels": [(self.policy.noise_multiplier, self.policy.steps)]}


@dataclass(frozen=True)
class PublishedNormalisedPlan(Policy):
    """`steps` full batches: the mean of clipped gradients, divided by its length where that is below 1, plus Gaussian noise of
    `noise_multiplier` times what clipping makes of a mean's sensitivity, C/n.

    With `clipping_norm` the loss's Lipschitz constant nothing is clipped, as published.
    """

    clipping_norm: float
    noise_multiplier: float
    steps: int
    update: Update
    public_size: int

    run = _Gradients
    kind = "m-NGP as published"
    paper = "m-NGP (2022), Algorithm 1"
    rate = 1.0
    claim = _CLAIM
    vectorises = True

    def __post_init__(self) -> None:
        Clip(self.clipping_norm)  # which refuses lengths whose squares no double holds
        for name in ("noise_multiplier", "steps", "public_size"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Expected {name} to be a positive number, got {getattr(self, name)!r}.")
        for name in ("steps", "public_size"):
            object.__setattr__(self, name, operator.index(getattr(self, name)))

    @property
    def expected_batch_size(self) -> float:
        return float(self.public_size)

    @property
    def released_kinds(self) -> frozenset[str]:
        return frozenset({_KIND})

    def moves_by(self, relation: Relation) -> float:
        """How far a record really moves what is released: from one unit vector to the opposite, or to a mean that is longer than
        1 by no more than its own move."""
        return 2 + self._claimed(relation)

    def true_noise(self, relation: Relation) -> float:
        """The noise in units of that."""
        return self.noise_multiplier * self._claimed(relation) / self.moves_by(relation)

    def _claimed(self, relation: Relation) -> float:
        return Clip(self.clipping_norm).sensitivity(relation) / self.public_size

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        steps = (self.steps if stop is None else stop) - start
        if steps <= 0:
            return Composed(())
        return Composed((SelfComposed(Gaussian(self.true_noise(relation), relation), steps), Unsupported(_CLAIM, relation)))


@dataclass(frozen=True, kw_only=True, repr=False)
class PublishedNormalisedGradient(TraditionalGradient):
    """m-NGP as published: normalised before the noise. That is not private at the ε it states, and only claimed."""

    key = "m-ngp-published"
    title = "m-NGP as published"
    claimed = True

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        noise = plan.noise.levels(plan.steps)[0][0]
        return PublishedNormalisedPlan(plan.bounding.bound, noise, plan.steps, plan.update, plan.public_size)

    def stated(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Event:
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return TraditionalGradient(**settings).at(facts, budget, models, noise_multiplier).event(facts)

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        raise ValueError("Expected public_size for m-NGP as published, whose noise is made for a known number of records.")
