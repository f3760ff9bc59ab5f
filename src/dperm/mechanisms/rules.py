"""Public rules for what privacy leaves open: the regulariser, from public facts and the budget alone.

Privacy fixes the noise once the regulariser is chosen; the regulariser itself trades the noise's effect
against bias. Each rule below minimises (an estimate of) the excess risk, with one constant: the typical length
of a good parameter vector, TYPICAL_NORM ÷ data_norm. Derivation and measured regret: docs/tuning.md.
"""

from __future__ import annotations

import math

from dperm.objectives import PublicFacts
from dperm.privacy.gaussian import gaussian_mu

__all__ = ["objective_strong_convexity", "output_strong_convexity"]

TYPICAL_NORM = 40.0


def objective_strong_convexity(facts: PublicFacts, epsilon: float, delta: float) -> float:
    """max(B²/(2ε), σ√d·B/40), σ = B ÷ (the plain Gaussian mechanism's 1/σ): bᵀθ against Λ‖θ‖²/2."""
    sigma = facts.lipschitz / gaussian_mu(epsilon, delta)
    return max(2 * facts.smoothness / epsilon, sigma * math.sqrt(facts.dimension) * facts.data_norm / TYPICAL_NORM)


def output_strong_convexity(facts: PublicFacts, noise_multiplier: float) -> float:
    """(σ²n/400)^⅓·B²: the risk added by noise of length σL/Λ in curvature ∝ n against Λ‖θ‖²/2."""
    if facts.public_size is None:
        raise ValueError("Output perturbation's rule for the regulariser needs public_size; state it or pass strong_convexity.")
    return facts.data_norm**2 * (noise_multiplier**2 * facts.public_size / 400) ** (1 / 3)
