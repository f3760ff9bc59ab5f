"""Public rules for what privacy leaves open: the regulariser, from public facts and the budget alone.

Privacy fixes the noise once the regulariser is chosen; the regulariser itself trades the noise's effect
against bias. Each rule below minimises (an estimate of) the excess risk, with one constant: the typical length
of a good parameter vector, TYPICAL_NORM ÷ data_norm. Derivation and measured regret: docs/tuning.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dperm.gradient import SGD, Plan
from dperm.gradient.recipes import dp_sgd, full_batch_descent
from dperm.objectives import PublicFacts
from dperm.privacy.gaussian import gaussian_mu

__all__ = ["gradient_plan", "objective_strong_convexity", "output_strong_convexity"]

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


def signal_to_noise(facts: PublicFacts, epsilon: float, delta: float) -> float:
    """n·μ/√d: the length of a sum of n aligned unit gradients, in units of the noise a single release would need."""
    if facts.public_size is None:
        raise ValueError("A gradient plan needs public_size: rates and denominators are public constants.")
    return facts.public_size * gaussian_mu(epsilon, delta) / math.sqrt(facts.dimension)


def gradient_plan(
    facts: PublicFacts,
    epsilon: float,
    delta: float,
    *,
    sampling: str = "poisson",
    expected_batch_size: float | None = None,
    epochs: float | None = None,
    clipping_norm: float | None = None,
    learning_rate: float | None = None,
) -> Callable[[float], Plan]:
    """Noise multiplier → DP-SGD or full-batch plan, every setting left open filled by a rule of the public facts.

    The more signal the budget leaves, the more steps are worth their noise: see docs/tuning.md.
    """
    signal = signal_to_noise(facts, epsilon, delta)
    assert facts.public_size is not None
    size = facts.public_size
    if facts.target_bound is not None:  # squared loss: the largest gradient at θ = 0, and steps near 1/β
        bound = clipping_norm or facts.data_norm * facts.target_bound
        steps, update = min(max(signal / 2, 5), 100), SGD(learning_rate or 2.0 / facts.smoothness, momentum=0.9)
    else:
        bound = clipping_norm or facts.data_norm / 2
        steps, update = 100, SGD(learning_rate or 1.0 / (facts.data_norm * bound), momentum=0.9)

    def make(noise_multiplier: float) -> Plan:
        if sampling == "full":
            return full_batch_descent(
                noise_multiplier=noise_multiplier,
                public_size=size,
                steps=round(epochs or steps),
                clipping_norm=bound,
                update=update,
            )
        return dp_sgd(
            noise_multiplier=noise_multiplier,
            public_size=size,
            expected_batch_size=expected_batch_size or min(512.0, size / 4),
            epochs=epochs or 20,
            clipping_norm=bound,
            update=update,
        )

    return make
