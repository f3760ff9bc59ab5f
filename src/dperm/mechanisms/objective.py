"""Objective perturbation: minimise the objective plus a random linear term; release what the solver found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.mechanisms._minimiser import default_tolerance, solve, solver_assumption
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.rules import objective_strong_convexity
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.privacy import (
    Assumption,
    Channel,
    Composed,
    Event,
    Gaussian,
    ObjectivePerturbationEvent,
    Relation,
    SelfComposed,
    calibrate,
)
from dperm.privacy.gaussian import gaussian_mu

__all__ = ["Calibration", "ObjectivePerturbation"]

Array = NDArray[np.float64]
Calibration = Literal["sharp", "generic", "kifer"]

_PAPERS = {
    "sharp": "dperm, docs/objective-perturbation.md",
    "generic": "Redberg, Koskela, Wang 2023",
    "kifer": "Kifer, Smith, Thakurta 2012",
}


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(Mechanism):
    """argmin Σℓ + (Λ/2)‖θ‖² + bᵀθ, b ~ N(0, noise_std²·I), to a certified gradient norm ≤ tolerance, plus noise for the rest.

    The second noise (approximate minima perturbation, Iyengar et al. 2019) has standard deviation
    output_multiplier·2·tolerance/Λ: it pays for the solver's error, is charged, and is far too small to matter.
    """

    noise_std: float
    strong_convexity: float
    calibration: Calibration = "sharp"
    tolerance: float = 1e-8
    output_multiplier: float = 200.0

    def __post_init__(self) -> None:
        for name in ("noise_std", "strong_convexity", "tolerance", "output_multiplier"):
            check.positive(name, getattr(self, name))
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

        "sharp" uses what is known of the loss (add/remove; elsewhere it is the generic bound), "generic" any GLM loss's
        bound, "kifer" the published constants at ε and δ ÷ copies each. ValueError where Kifer's Λ ≥ 2β/ε fails.
        """
        check.fraction("delta", delta)
        budget = Budget(delta, epsilon)
        tolerance = default_tolerance(facts)
        each = (epsilon / copies, delta / copies) if calibration == "kifer" else _share(epsilon, delta, copies)
        modulus = strong_convexity or objective_strong_convexity(facts, *each)

        def mechanism(noise_std: float) -> ObjectivePerturbation:
            return cls(
                budget=budget,
                noise_std=noise_std,
                strong_convexity=modulus,
                calibration=calibration,
                tolerance=tolerance,
            )

        if calibration == "kifer":
            return mechanism(_kifer_std(facts, *each, modulus))
        start = facts.lipschitz / gaussian_mu(*each)
        return mechanism(calibrate(lambda x: SelfComposed(mechanism(x).event(facts), copies), epsilon, delta, start=start))

    @property
    def name(self) -> str:
        return f"objective perturbation ({self.calibration})"

    @property
    def paper(self) -> str:
        return _PAPERS[self.calibration]

    def event(self, facts: PublicFacts) -> Event:
        if not facts.rank_one:
            raise ValueError(
                "Expected a loss of bounded slope and rank-one curvature on all of space for objective perturbation "
                "(logistic, Huber, smoothed hinge); use mechanism='gradient' or 'output' for this loss."
            )
        minimiser = ObjectivePerturbationEvent(
            self.noise_std,
            facts.lipschitz,
            facts.smoothness,
            self.strong_convexity,
            facts.relation,
            loss=None if self.calibration == "generic" else facts.loss,
        )
        return Composed((minimiser, Gaussian(self.output_multiplier, facts.relation)))

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        objective = objective.with_strong_convexity(self.strong_convexity)
        linear = channel.objective_noise(objective.dimension, objective.facts.lipschitz, self.noise_std)
        solution = solve(objective, records, linear, self.tolerance)
        sensitivity = 2 * self.tolerance / self.strong_convexity
        theta = channel.release(solution.theta, sensitivity, self.output_multiplier * sensitivity)
        return theta, {"noise_std": self.noise_std, "output_noise_std": self.output_multiplier * sensitivity}

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return (solver_assumption(self.tolerance),)

    def settings(self) -> Mapping[str, Any]:
        return {"strong_convexity": self.strong_convexity, "calibration": self.calibration}


def _share(epsilon: float, delta: float, copies: int) -> tuple[float, float]:
    """One copy's (ε, δ) if Gaussians of μ²/copies each made the whole: where the rule for Λ looks, not what is charged."""
    if copies == 1:
        return epsilon, delta
    from dperm.privacy.gaussian import gaussian_epsilon

    return gaussian_epsilon(math.sqrt(copies) / gaussian_mu(epsilon, delta), delta), delta


def _kifer_std(facts: PublicFacts, epsilon: float, delta: float, modulus: float) -> float:
    """σ of Theorem 2, valid for add/remove only (docs/errata.md)."""
    if facts.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise ValueError("Expected relation='add_or_remove_one' for calibration='kifer': its proof bounds L, not 2L.")
    least = 2 * facts.smoothness / epsilon
    if modulus < least * (1 - 1e-12):
        raise ValueError(f"Expected strong_convexity >= 2·smoothness/epsilon = {least:.6g} for kifer, got {modulus!r}.")
    return facts.lipschitz * math.sqrt(8 * math.log(2 / delta) + 4 * epsilon) / epsilon
