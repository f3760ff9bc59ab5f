"""m-NGP as published ("Sharper utility bounds for differentially private models", anonymous, 2022, Algorithm 1): not private at
the ε that it states. Its sound counterpart normalises after the noise: `UnitAtLeast`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dperm import _validate as check
from dperm.gradient.bounding import Clip
from dperm.gradient.policy import Gradients, Policy
from dperm.gradient.post_processing import UnitAtLeast
from dperm.gradient.query import PerExampleGradient
from dperm.gradient.update import Update
from dperm.privacy.events import Composed, Event, Gaussian, Relation, SelfComposed, Unsupported

_CLAIM = (
    "m-NGP normalises the mean gradient before the noise: neighbours whose mean gradients are +a and −a, however small a is, "
    "become +1 and −1, while the noise is made for a sensitivity that falls as 1/n."
)


class _Gradients(Gradients["PublishedNormalisedPlan"]):
    def __call__(self, theta: Any) -> Any:
        plan, clip = self.policy, Clip(self.policy.clipping_norm)
        total: Any = clip.empty(theta)
        for batch in next(self.records.stream([None])):
            total = total + clip.query(PerExampleGradient().at(self.objective, theta, batch), {})
        mean = UnitAtLeast().apply(self.regularised(total / plan.public_size, theta))
        self.step += 1
        return self.channel.release(mean, plan.moves_by(self.relation), plan.true_noise(self.relation))

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

    def __post_init__(self) -> None:
        check.scale("clipping_norm", self.clipping_norm)
        check.positive("noise_multiplier", self.noise_multiplier)
        for name in ("steps", "public_size"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))

    @property
    def expected_batch_size(self) -> float:
        return float(self.public_size)

    @property
    def vectorises(self) -> bool:
        return True

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

    def describe(self) -> dict[str, Any]:
        return {name: value if name != "update" else repr(value) for name, value in vars(self).items()}
