"""Gradient perturbation: a plan, run by the one loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.gradient import Policy, descend_by
from dperm.gradient.foreign import foreign_parts
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.rules import gradient_plan, importance_plan
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.privacy import Assumption, Channel, Event, PrivacyProfile, calibrate, epsilon, statements
from dperm.privacy.calibration import calibrate_below

__all__ = ["GradientPerturbation"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GradientPerturbation(Mechanism):
    """Noisy descent from θ = 0 by `plan`; the last iterate or an average is released, all iterates are charged."""

    plan: Policy

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Policy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a plan, got {self.plan!r}: call the recipe with its settings.")
        if self.plan.budgeted is not None and self.budget.epsilon is not None:
            spent = epsilon(self.plan.budgeted, self.budget.delta)
            if spent > self.budget.epsilon * (1 + 1e-9):
                raise ValueError(f"The plan may spend epsilon = {spent:.6g}, its budget is {self.budget.epsilon:g}.")

    @classmethod
    def calibrate(
        cls,
        make_plan: Callable[[float], Policy],
        facts: PublicFacts,
        epsilon: float,
        delta: float,
        *,
        below: PrivacyProfile | None = None,
    ) -> GradientPerturbation:
        """The least noise for a recipe: `make_plan` maps a noise multiplier to a plan. With `below`, the least that stays below
        that privacy profile, whatever ε is."""
        if make_plan(1.0).budgeted is not None:
            raise TypeError(
                "Expected make_plan to return a plan of this noise; one with a budget of its own goes to GradientPerturbation "
                "itself."
            )

        def event(noise: float) -> Event:
            return make_plan(noise).event(facts.relation)

        noise = calibrate(event, epsilon, delta) if below is None else calibrate_below(event, below)
        return cls(budget=Budget(delta, epsilon), plan=make_plan(noise))

    @classmethod
    def by_rule(
        cls,
        facts: PublicFacts,
        epsilon: float,
        delta: float,
        *,
        sampling: str = "poisson",
        **settings: Any,
    ) -> GradientPerturbation:
        """By `sampling` "poisson" (DP-SGD), "importance" (DPIS) or "full" batches; settings left open by `GradientSettings`."""
        if sampling == "importance":
            return cls(budget=Budget(delta, epsilon), plan=importance_plan(facts, epsilon, delta, **settings))
        return cls.calibrate(gradient_plan(facts, epsilon, delta, sampling=sampling, **settings), facts, epsilon, delta)

    @property
    def name(self) -> str:
        return f"gradient perturbation ({self.plan.kind})"

    @property
    def paper(self) -> str:
        return self.plan.paper

    def event(self, facts: PublicFacts) -> Event:
        return self.plan.event(facts.relation)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        start = np.zeros(objective.dimension if channel.trials is None else (channel.trials, objective.dimension))
        plan = self.plan.sized(channel, len(records))
        gradients = plan.gradients(objective, records, channel)
        theta = descend_by(plan, gradients, objective, start)
        return theta, {"steps": plan.steps, **gradients.summary()}

    curved = False

    def vectorises(self, objective: LinearObjective) -> bool:
        return self.plan.vectorises

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        found = foreign_parts(self.plan)
        if self.plan.public_size not in (facts.public_size, None):
            found.append(statements.known_size(self.plan.public_size, "The plan's"))
        return found

    def settings(self) -> Mapping[str, Any]:
        return self.plan.describe()
