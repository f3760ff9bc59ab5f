"""Objective perturbation: minimise the objective plus a random linear term; release what the solver found."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism, Stage
from dperm.mechanisms.extremes import Extreme, curved, steep
from dperm.mechanisms.method import Method, one_for_each
from dperm.mechanisms.minimiser import chosen_tolerance, solve
from dperm.mechanisms.tuning import OBJECTIVE_RULE, USUAL_MARGIN, objective_strong_convexity, with_margin, with_roughness
from dperm.mechanisms.without_records import ENTRY, WithoutRecords
from dperm.objectives import LinearObjective, Logistic, PublicFacts, Records, RegularisedSum, Task
from dperm.privacy import Assumption, Composed, Event, Gaussian, ObjectivePerturbationEvent, Relation, SelfComposed, calibrate
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel, GaussianNoise, ObjectiveNoise

Calibration = Literal["sharp", "generic", "kifer"]

#: The second noise's multiplier ÷ what the whole budget would need: it takes about 1/30² of the budget.
_OUTPUT_SHARE = 30.0

_PAPERS = {
    "sharp": "dperm, docs/objective-perturbation.md",
    "generic": "Redberg, Koskela, Wang 2023",
    "kifer": "Kifer, Smith, Thakurta 2012",
}


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Mechanism):
    """argmin Σℓ + (Λ/2)‖θ‖² + bᵀθ, b ~ N(0, noise_std²·I), to a certified gradient norm ≤ tolerance, plus noise for the rest.

    `tolerance` is None for the least that a solver reaches on every data set. The second noise (approximate minima perturbation,
    Iyengar et al. 2019) has standard deviation output_multiplier·2·tolerance/Λ: it pays for the solver's error, is charged, and
    is far too small to matter.
    """

    noise_std: check.Positive
    strong_convexity: check.Positive
    calibration: Calibration = "sharp"
    tolerance: check.Positive | None = None
    output_multiplier: check.Positive = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("calibration", self.calibration, _PAPERS)

    @classmethod
    def calibrate(
        cls,
        facts: PublicFacts,
        epsilon: float,
        delta: float,
        *,
        calibration: Calibration = "sharp",
        strong_convexity: float | None = None,
        copies: int = 1,
    ) -> ObjectivePerturbation:
        """The least noise for `copies` releases on the same records, at the public rule's Λ unless one is given.

        "sharp" uses what is known of the loss, "generic" any GLM loss's bound, "kifer" the published constants at ε and
        δ ÷ copies each. ValueError where Kifer's Λ ≥ 2β/ε fails.
        """
        check.fraction("delta", delta)
        check.choice("calibration", calibration, _PAPERS)
        _refuse_other_losses(facts)
        modulus = strong_convexity or _rule(facts, epsilon, delta, calibration, copies)
        floor = _gaussian_std(facts, epsilon, delta, copies)

        def mechanism(noise_std: float) -> ObjectivePerturbation:
            return cls(
                budget=Budget(delta, epsilon),
                noise_std=noise_std,
                strong_convexity=modulus,
                calibration=calibration,
                output_multiplier=_OUTPUT_SHARE * floor / facts.lipschitz,
            )

        if calibration == "kifer":
            return mechanism(_kifer_std(facts, epsilon / copies, delta / copies, modulus))
        steep = facts.lipschitz  # the search is for noise in units of it, whatever rows are measured in
        noise = calibrate(lambda x: SelfComposed(mechanism(x * steep).event(facts), copies), epsilon, delta, start=floor / steep)
        return mechanism(noise * steep)

    @property
    def name(self) -> str:
        return f"objective perturbation ({self.calibration})"

    @property
    def paper(self) -> str:
        return _PAPERS[self.calibration]

    def event(self, facts: PublicFacts) -> Event:
        _refuse_other_losses(facts)
        self.residual(facts)  # refused here, before any charge
        return Composed((self._minimiser(facts), Gaussian(self.output_multiplier, facts.relation)))

    def _minimiser(self, facts: PublicFacts) -> ObjectivePerturbationEvent:
        """What the exact minimiser costs."""
        return ObjectivePerturbationEvent(
            self.noise_std,
            facts.lipschitz,
            facts.smoothness,
            self.strong_convexity,
            facts.relation,
            loss=None if self.calibration == "generic" else facts.loss,
            many=facts.unit.several_rows,
        )

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        objective = objective.with_strong_convexity(self.strong_convexity)
        linear = channel.release(np.zeros(objective.dimension), ObjectiveNoise.of(self._minimiser(objective.facts)))
        tolerance = self.residual(objective.facts)
        solution = solve(objective, records, linear, tolerance, self.noise_std)
        sensitivity = 2 * tolerance / self.strong_convexity
        theta = channel.release(solution.theta, GaussianNoise(sensitivity, self.output_multiplier, what="error of the solver"))
        second = self.output_multiplier * sensitivity
        return theta, {
            "noise_std": self.noise_std,
            "output_noise_std": second,
            "strong_convexity": self.strong_convexity,
            ENTRY: WithoutRecords(math.hypot(self.noise_std / self.strong_convexity, second)).to_dict(),
        }

    grouped = True
    by_parts = True
    released_kinds = frozenset({"gradient of the objective", "log-determinant", "error of the solver"})
    minimiser = 1  # after the linear term

    def vectorises(self, objective: LinearObjective) -> bool:
        return objective.radius is None

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        return [Stage(self, objective.with_strong_convexity(self.strong_convexity), records, first)]

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return [*steep(objective, self.strong_convexity, self.noise_std), *curved(objective, self.strong_convexity)]

    def log_density(self, objective: LinearObjective, records: Records, outputs: Array) -> Array | None:
        """θ solves b = −∇J(θ) where no ball holds it: its density is that of b times |det ∇²J(θ)|, but for the second noise,
        which is tiny."""
        if objective.radius is not None:
            return None
        problem = RegularisedSum(objective.with_strong_convexity(self.strong_convexity), records)
        _, gradient, hessian = problem.evaluate(outputs, hessian=True)
        assert hessian is not None
        return np.linalg.slogdet(hessian)[1] - np.square(gradient).sum(axis=1) / (2 * self.noise_std**2)

    def most_records(self, facts: PublicFacts) -> int | None:
        return facts.size_limit

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return (statements.solver(self.residual(facts), facts.size_limit),)

    def residual(self, facts: PublicFacts) -> float:
        """γ: how near to a gradient of zero the solver comes, on every data set. ValueError for a tolerance below that."""
        return chosen_tolerance(self.tolerance, facts, self.strong_convexity, self.noise_std)

    def settings(self) -> Mapping[str, Any]:
        return {"strong_convexity": self.strong_convexity, "calibration": self.calibration}


@dataclass(frozen=True, kw_only=True, repr=False)
class Objective(Method):
    """Objective perturbation by `calibration` "sharp", "generic" or "kifer"; `strong_convexity` is Λ of (Λ/2)‖θ‖².

    `margin` is that of the logistic loss: 2 unless it is said, or 0 where calibrations before the sharp one are asked for as they
    were published. 0 makes scores log-odds. `roughness` is the weight of the penalty on roughness, of neighbouring features: 0.3
    where the signal is weak or the number of records private, otherwise 0, unless it is said (docs/curves.md).
    """

    calibration: Calibration = "sharp"
    strong_convexity: check.Positive | None = None
    margin: float | None = None
    roughness: check.NonNegative | None = None

    key = "objective"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choice("calibration", self.calibration, _PAPERS)
        if self.margin is not None:
            Logistic(self.margin)  # refuses what is no margin

    @property
    def rule(self) -> str:
        return OBJECTIVE_RULE + (f"; a margin of {USUAL_MARGIN:g} for the logistic loss" if self.calibration == "sharp" else "")

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        usual = USUAL_MARGIN if self.calibration == "sharp" else 0.0
        made = with_margin(super().objective(task), self.margin, usual)
        return with_roughness(made, task, budget if self.calibration == "sharp" else None, self.roughness)

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        part = ObjectivePerturbation.calibrate(
            facts,
            check.positive("epsilon", budget.epsilon),
            budget.delta,
            calibration=self.calibration,
            strong_convexity=self.strong_convexity,
            copies=models,
        )
        return one_for_each(part, models)


def _refuse_other_losses(facts: PublicFacts) -> None:
    if not facts.rank_one:
        raise ValueError(
            "Expected a loss of bounded slope and rank-one curvature on all of space for objective perturbation "
            "(logistic, Huber, smoothed hinge); use mechanism='gradient' for this loss."
        )


def _gaussian_std(facts: PublicFacts, epsilon: float, delta: float, copies: int) -> float:
    """What the plain Gaussian mechanism would need: the floor of objective perturbation's noise."""
    return facts.lipschitz * math.sqrt(copies) / gaussian_mu(epsilon, delta)


@functools.lru_cache(maxsize=512)
def _rule(facts: PublicFacts, epsilon: float, delta: float, calibration: Calibration, copies: int) -> float:
    """The public rule's Λ; cached, because a cross-validation asks for the same one again and again."""
    least = 2 * facts.smoothness * copies / epsilon
    if calibration == "kifer":
        return max(
            least,
            objective_strong_convexity(facts, lambda _: _kifer_std(facts, epsilon / copies, delta / copies), least),
        )
    steep, curved = facts.lipschitz, facts.smoothness / facts.lipschitz**2  # the search is in units of the one
    start = _gaussian_std(facts, epsilon, delta, copies) / steep
    loss = facts.loss if calibration == "sharp" else None

    def noise_at(modulus: float) -> float:
        def event(noise: float) -> Event:
            part = ObjectivePerturbationEvent(
                noise, 1.0, curved, modulus / steep**2, facts.relation, loss, many=facts.unit.several_rows
            )
            return SelfComposed(part, copies)

        try:
            return calibrate(event, epsilon, delta, start=start, draft=True) * steep
        except ValueError:  # the determinant term alone exceeds the budget: no noise suffices at this Λ
            return math.inf

    return objective_strong_convexity(facts, noise_at, least)


def _kifer_std(facts: PublicFacts, epsilon: float, delta: float, modulus: float = math.inf) -> float:
    """σ of Theorem 2, valid for add/remove only (docs/errata.md)."""
    if facts.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise ValueError("Expected relation='add_or_remove_one' for calibration='kifer': its proof bounds L, not 2L.")
    if facts.unit.several_rows:
        raise ValueError("Expected one row a person for calibration='kifer': its proof is of Hessians of rank one.")
    least = 2 * facts.smoothness / epsilon
    if modulus < least * (1 - 1e-12):
        raise ValueError(f"Expected strong_convexity >= 2·smoothness/epsilon = {least:.6g} for kifer, got {modulus!r}.")
    return facts.lipschitz * math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
