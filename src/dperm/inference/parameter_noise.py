"""The law of the noise in released parameters, as far as it is Gaussian and public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True)
class ParameterNoise:
    """A model minimises Σℓ + (Λ/2)·θᵀPθ + bᵀθ, b of independent normal entries, and adds normal entries to the minimiser.

    Attributes
    ----------
    on_gradient : float
        Standard deviation of an entry of b: of objective perturbation.
    on_parameters : float
        Standard deviation of what is added to an entry of the minimiser: of output perturbation, and far smaller of objective
        perturbation, which hides the solver's error by it.
    strong_convexity : float
        Λ.
    """

    on_gradient: float
    on_parameters: float
    strong_convexity: float

    @classmethod
    def of(cls, model: Any) -> Self:
        """That of a fitted linear model. ValueError for mechanisms other than objective perturbation and output perturbation by
        Gaussian noise, where it is not known."""
        trace, facts = model.trace_, model.certificate_.public_facts
        if {"noise_std", "output_noise_std", "strong_convexity"} <= set(trace):
            return cls(trace["noise_std"], trace["output_noise_std"], trace["strong_convexity"])
        if {"noise_std", "sensitivity"} <= set(trace) and "strong_convexity" in facts:
            return cls(0.0, trace["noise_std"], float(facts["strong_convexity"]))
        raise ValueError(
            "Expected a model by objective perturbation, or by output perturbation with delta > 0, got "
            f"{model.certificate_.mechanism}: how its noise and its clipping move parameters has no known law."
        )
