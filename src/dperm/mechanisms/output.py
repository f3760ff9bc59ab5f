"""Output perturbation: the exact minimiser's distance to its neighbour is at most L/Λ; add noise to match."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism, Stage
from dperm.mechanisms.extremes import Extreme, steep
from dperm.mechanisms.method import Method, one_for_each
from dperm.mechanisms.minimiser import chosen_tolerance, solve
from dperm.mechanisms.noisy_size import NoisySize
from dperm.mechanisms.tuning import OUTPUT_RULE, output_strong_convexity, with_roughness
from dperm.mechanisms.without_records import ENTRY, WithoutRecords
from dperm.objectives import LinearObjective, PublicFacts, Records, Task
from dperm.privacy import Assumption, Composed, Event, Gaussian, PureDP, Relation, SelfComposed, calibrate
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel, GaussianNoise, PureNoise


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(Mechanism):
    """θ̃ + noise, θ̃ within tolerance/Λ of argmin Σℓ + (Λ/2)‖θ‖² (Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1).

    `tolerance` is None for the least that a solver reaches on every data set.
    Exactly one of `noise_multiplier` (Gaussian, calibrated exactly) and `pure_epsilon` (density ∝ exp(−ε‖b‖/Δ)).
    """

    strong_convexity: check.Scale
    noise_multiplier: float | None = None
    pure_epsilon: float | None = None
    tolerance: check.Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.noise_multiplier is None) == (self.pure_epsilon is None):
            raise ValueError("Expected exactly one of noise_multiplier and pure_epsilon.")

    @classmethod
    def calibrate(
        cls,
        facts: PublicFacts,
        epsilon: float,
        delta: float,
        *,
        strong_convexity: float | None = None,
        copies: int = 1,
        beside: PureDP | None = None,
    ) -> OutputPerturbation:
        """The least noise for `copies` releases on the same records; `delta` = 0 gives the pure mechanism.

        `beside`: what else is paid from the same budget.
        """
        budget = Budget(delta, epsilon)
        if delta == 0:
            pure = (epsilon - (beside.epsilon if beside else 0.0)) / copies * (1 - 1e-15 if copies > 1 or beside else 1.0)
            modulus = strong_convexity or output_strong_convexity(facts, facts.dimension / pure)
            return cls(budget=budget, strong_convexity=modulus, pure_epsilon=pure)
        multiplier = _least_noise(epsilon, delta, facts.relation, copies, beside)
        modulus = strong_convexity or output_strong_convexity(facts, multiplier)
        return cls(budget=budget, strong_convexity=modulus, noise_multiplier=multiplier)

    @property
    def name(self) -> str:
        return "output perturbation" + (" (pure)" if self.pure_epsilon else "")

    @property
    def paper(self) -> str:
        return "Chaudhuri, Monteleoni, Sarwate 2011; noise after Balle & Wang 2018"

    def sensitivity(self, facts: PublicFacts) -> float:
        """Distance between what two neighbours would release without noise: strong convexity, plus both solvers' errors."""
        moved = facts.lipschitz * (1 if facts.relation is Relation.ADD_OR_REMOVE_ONE else 2)
        return (moved + 2 * self.residual(facts)) / self.strong_convexity

    def residual(self, facts: PublicFacts) -> float:
        """γ: how near to a gradient of zero the solver comes, on every data set. ValueError for a tolerance below that."""
        return chosen_tolerance(self.tolerance, facts, self.strong_convexity)

    def event(self, facts: PublicFacts) -> Event:
        if not facts.lipschitz < math.inf:
            raise ValueError("Expected a radius for output perturbation: this loss's slope is bounded within a ball alone.")
        check.positive("lipschitz", facts.lipschitz)
        if not facts.smoothness < math.inf:
            raise ValueError("Expected a smooth loss for output perturbation, which finds a minimiser; use mechanism='gradient'.")
        self.residual(facts)  # refused here, before any charge
        if self.pure_epsilon is not None:
            return PureDP(self.pure_epsilon, facts.relation)
        assert self.noise_multiplier is not None
        return Gaussian(self.noise_multiplier, facts.relation)

    def refuse(self, objective: LinearObjective, records: int) -> None:
        if objective.outputs != 1:
            raise ValueError(
                f"Expected a loss with one output for {self.name}, got {objective.outputs}: one model for each class."
            )

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        objective = objective.with_strong_convexity(self.strong_convexity)
        solution = solve(objective, records, 0.0, self.residual(objective.facts))
        sensitivity = self.sensitivity(objective.facts)
        if self.pure_epsilon is not None:
            theta = channel.release(solution.theta, PureNoise(sensitivity, self.pure_epsilon, what="minimiser"))
            alone = WithoutRecords(sensitivity / self.pure_epsilon, objective.dimension)
            return theta, {"sensitivity": sensitivity, ENTRY: alone.to_dict()}
        assert self.noise_multiplier is not None
        theta = channel.release(solution.theta, GaussianNoise(sensitivity, self.noise_multiplier, what="minimiser"))
        noise_std = self.noise_multiplier * sensitivity
        return theta, {"sensitivity": sensitivity, "noise_std": noise_std, ENTRY: WithoutRecords(noise_std).to_dict()}

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return (statements.solver(self.residual(facts), facts.size_limit),)

    grouped = True
    by_parts = True
    released_kinds = frozenset({"minimiser"})
    minimiser = 0

    def vectorises(self, objective: LinearObjective) -> bool:
        return True

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        return [Stage(self, objective.with_strong_convexity(self.strong_convexity), records, first)]

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return steep(objective, self.strong_convexity)

    def most_records(self, facts: PublicFacts) -> int | None:
        return facts.size_limit

    def settings(self) -> Mapping[str, Any]:
        return {"strong_convexity": self.strong_convexity}


@functools.lru_cache(maxsize=256)
def _least_noise(epsilon: float, delta: float, relation: Relation, copies: int, beside: PureDP | None) -> float:
    """The same for data sets of any size."""
    others = () if beside is None else (beside,)
    return calibrate(lambda x: Composed((*others, SelfComposed(Gaussian(x, relation), copies))), epsilon, delta)


@dataclass(frozen=True, kw_only=True, repr=False)
class Output(Method):
    """Output perturbation. `strong_convexity` is Λ of (Λ/2)‖θ‖²; its rule needs the number of records. `roughness` is the
    weight of the penalty on roughness, of features that are neighbours."""

    strong_convexity: check.Positive | None = None
    roughness: check.NonNegative = 0.0

    key = "output"
    pure = True

    @property
    def rule(self) -> str:
        return OUTPUT_RULE

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        return with_roughness(super().objective(task), task, budget, self.roughness)

    @property
    def needs_size(self) -> bool:
        return self.strong_convexity is None

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int, beside: PureDP | None = None) -> Mechanism:
        epsilon = check.positive("epsilon", budget.epsilon)
        part = OutputPerturbation.calibrate(
            facts, epsilon, budget.delta, strong_convexity=self.strong_convexity, copies=models, beside=beside
        )
        return one_for_each(part, models)

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        return NoisySize.known(
            lambda facts, count: self.calibrated(facts, budget, models, beside=count),
            facts,
            budget,
            label="output perturbation",
            rests_on=(statements.solver(None, facts.size_limit),),
        )
