"""Frank–Wolfe. On the L1 ball each step moves towards one vertex, chosen by the exponential mechanism, which gives sparse models;
on the L2 ball the direction of a noisy gradient is used.

Talwar, Thakurta, Zhang 2015. The noise is theirs with the constant of the exponential mechanism, 2rL/ε₀ a step (twice that where
a record is replaced): with the paper's Laplace constant the composition falls short by up to a factor of four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm._progress import watched
from dperm._types import Array
from dperm.gradient import FrankWolfeStep, Plan, Policy
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.entrywise import entry_limit, entrywise_gradient, entrywise_moved
from dperm.mechanisms.gradient import Gradient
from dperm.mechanisms.method import Method, one_for_each
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.privacy import Event, ExponentialMechanism, Relation, SelfComposed, calibrate
from dperm.release import Channel, ExponentialChoice

_MOST_STEPS = 2000
_UNKNOWN = 50  # steps where nothing is known of the number of records


@dataclass(frozen=True, kw_only=True)
class FrankWolfeDescent(Mechanism):
    """θ ← (1 − γ)θ ± γ·radius·e_j with γ = 2/(t + 2), from 0, `steps` times; j and the sign by the exponential mechanism.

    The score of a vertex v is −⟨v, Σ∇ℓ_i⟩, which a record moves by at most radius·L: L bounds the entries of its gradient, by its
    length, or for features of at most `entry_bound`. `step_epsilon` is ε₀ of a step. Under replace-one scores move twice as far.
    """

    radius: check.Scale
    steps: check.Count
    step_epsilon: check.Positive
    entry_bound: check.Scale | None = None

    @property
    def name(self) -> str:
        return f"Frank–Wolfe on the L1 ball ({self.steps} steps)"

    @property
    def paper(self) -> str:
        return "Talwar, Thakurta, Zhang 2015; McSherry & Talwar 2007; Dong, Durfee, Rogers 2020"

    def event(self, facts: PublicFacts) -> Event:
        check.positive("lipschitz", facts.lipschitz)
        return SelfComposed(ExponentialMechanism(self.step_epsilon, facts.relation), self.steps)

    def refuse(self, objective: LinearObjective, records: int) -> None:
        if objective.outputs > 1:
            raise ValueError(f"Expected a loss of one output for Frank–Wolfe, got {objective.loss.name}.")
        if objective.strong_convexity:
            raise ValueError("Expected no quadratic penalty with Frank–Wolfe: the L1 ball is what regularises.")
        if objective.radius is not None and not self.radius <= objective.radius:
            raise ValueError(
                f"Expected an L1 radius of at most {objective.radius:g}, within which the loss is bounded, got {self.radius:g}."
            )
        entry_limit(objective, self.entry_bound)
        super().refuse(objective, records)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        limit = entry_limit(objective, self.entry_bound)
        theta = np.zeros(objective.dimension)
        for step in watched(range(self.steps), "Training", self.steps):
            gradient = entrywise_gradient(objective, records, theta, limit, 1 / self.step_epsilon)
            # both signs of each direction; the radius is a factor of scores and sensitivity alike
            scores = np.concatenate([-gradient, gradient])
            sensitivity = entrywise_moved(objective, limit)
            chosen = channel.release(scores, ExponentialChoice(sensitivity, self.step_epsilon, what="choice of a vertex"))
            share = 2 / (step + 2)
            theta *= 1 - share
            theta[chosen % len(theta)] += share * self.radius * (1 if chosen < len(theta) else -1)
        return theta, {"steps": self.steps, "non_zero": int(np.count_nonzero(theta))}

    released_kinds = frozenset({"choice of a vertex"})
    curved = False

    def settings(self) -> Mapping[str, Any]:
        return {
            "l1_radius": self.radius,
            "steps": self.steps,
            "step_epsilon": self.step_epsilon,
            "entry_bound": self.entry_bound,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class FrankWolfe(Method):
    """Frank–Wolfe on the L1 ball of `radius`, which the model, its intercept among it, stays in: for many features of which few
    matter. At most `steps` parameters are not 0; where they are left open they follow from a public number of records, or are 50.

    `entry_bound`: a public bound on every feature's size. Noise then follows it, not `data_norm`, which should be large enough
    not to scale rows down: √k·entry_bound for rows of k entries. A record with a larger one counts for less.
    """

    radius: check.Scale = 10.0
    steps: check.Count | None = None
    entry_bound: check.Scale | None = None

    key = "frank-wolfe"
    title = "Frank–Wolfe"
    pure = True  # choices by the exponential mechanism are all that it releases

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        epsilon = check.positive("epsilon", budget.epsilon)
        check.positive("lipschitz", facts.lipschitz)
        steps = self.steps or self._rule(facts, epsilon, budget.delta)
        noise = calibrate(
            lambda noise: SelfComposed(ExponentialMechanism(1 / noise, facts.relation), steps * models), epsilon, budget.delta
        )
        return one_for_each(self.made(FrankWolfeDescent, budget, steps=steps, step_epsilon=1 / noise), models)

    def _rule(self, facts: PublicFacts, epsilon: float, delta: float) -> int:
        """The T at which 4βr²n/T, what is left to gain, is as large as the noise of a choice, 2rL ln(2p)/ε₀: ε₀ ∝ 1/√T, and
        ε/T at δ = 0."""
        if facts.public_size is None:
            return _UNKNOWN
        if not facts.smoothness < math.inf:
            raise ValueError("Expected steps for a loss without a bound on its curvature: their number has no rule.")
        entry = min(self.entry_bound or math.inf, facts.data_norm)
        slope = facts.lipschitz / facts.data_norm
        if facts.target_bound is not None:  # of squared loss, whose slope is the residual
            slope = min(slope, entry * self.radius + facts.target_bound)
        moved = slope * entry * (1 if facts.relation is Relation.ADD_OR_REMOVE_ONE else 2)
        gain = 4 * facts.smoothness * (entry / facts.data_norm) ** 2 * self.radius * facts.public_size
        noise = 2 * moved * math.log(2 * facts.dimension)  # for ε₀ = 1
        if delta == 0:
            steps = math.sqrt(gain / noise * epsilon)  # ε₀T = ε
        else:
            log = math.log(1 / delta)
            spread = math.sqrt(8) * (math.sqrt(epsilon + log) - math.sqrt(log))  # ε₀√T, by concentrated privacy
            steps = (gain / noise * spread) ** (2 / 3)
        return max(1, min(_MOST_STEPS, round(steps)))


@dataclass(frozen=True, kw_only=True, repr=False)
class FrankWolfeBall(Gradient):
    """Frank–Wolfe on the L2 ball of `radius`, which the model, its intercept among it, stays in: no learning rate to choose.

    `epochs` are steps, of 2/(t + 2); they and `clipping_norm` are chosen as for full batches where they are left open.
    """

    sampling: str = "full"
    radius: check.Scale = 10.0

    key = "frank-wolfe-l2"
    title = "Frank–Wolfe, L2 ball"
    as_the_rules = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling != "full":
            raise ValueError(f"Expected sampling='full' with mechanism={self.key!r}, got {self.sampling!r}.")
        for name in ("learning_rate", "strong_convexity"):
            if getattr(self, name) is not None:
                raise ValueError(f"Expected no {name} with mechanism={self.key!r}: the ball and its steps stand for it.")

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        return replace(plan, update=FrankWolfeStep(self.radius))
