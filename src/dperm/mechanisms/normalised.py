"""Full-batch descent as m-NGP's authors run it (2022): traditional gradient perturbation, and with short gradients normalised."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dperm.gradient import SGD, Plan, Policy, UnitAtLeast
from dperm.gradient.recipes import full_batch_descent
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.gradient import Gradient, GradientPerturbation
from dperm.mechanisms.method import one_for_each
from dperm.objectives import PublicFacts


@dataclass(frozen=True, kw_only=True, repr=False)
class TraditionalGradient(Gradient):
    """Traditional gradient perturbation (TGP): ⌈ln n⌉ full batches, clipped at the loss's Lipschitz constant, the last iterate.

    `epochs` are steps; the step size is 1, and there is no regulariser, unless they are set.
    """

    sampling: str = "full"

    key = "tgp"
    unbounded = False  # it clips at the bound
    title = "Traditional gradient perturbation"
    as_the_rules = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling != "full":
            raise ValueError(f"Expected sampling='full' with mechanism={self.key!r}, got {self.sampling!r}.")

    def at(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Mechanism:
        assert facts.public_size is not None
        plan = full_batch_descent(
            noise_multiplier=noise_multiplier,
            public_size=facts.public_size,
            steps=int(self.epochs or max(1, math.ceil(math.log(facts.public_size)))),
            clipping_norm=self.clipping_norm or facts.lipschitz,
            update=SGD(self.learning_rate or 1.0),
        )
        return one_for_each(GradientPerturbation(budget=budget, plan=self.shaped(plan)), models)


@dataclass(frozen=True, kw_only=True, repr=False)
class NormalisedGradient(TraditionalGradient):
    """m-NGP made private: as TGP, but noisy mean gradients shorter than 1 are made as long as 1. It costs what TGP does."""

    key = "m-ngp"
    title = "m-NGP, certified"

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        return replace(plan, post=UnitAtLeast())
