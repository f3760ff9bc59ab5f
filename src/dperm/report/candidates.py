"""The methods that a study compares, each tuned by its public rule."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from dperm.mechanisms import Gradient, Method, Objective, Output, known_methods
from dperm.mechanisms.tuning import USUAL_MARGIN


@dataclass(frozen=True)
class Candidate:
    """A method as a study names it."""

    key: str
    title: str
    short: str
    rule: str
    method: Method

    @property
    def claimed(self) -> bool:
        """Whether it is run as it was published, and is not private at the ε it states."""
        return self.method.claimed


_LAMBDA = "Λ minimises σ(Λ)²d/Λ + Λ(40/B)², with σ(Λ) the noise that the budget needs at Λ"
_STEPS = (
    "momentum 0.9, C = 0.3·B, the second half of the iterates averaged, "
    "step size for a travel of 30·S^1.4 clipped gradients, S = nμ/√d "
    "(squared loss: C = B·bound, step size 2/β, full batches S/2 steps)"
)

import_module("dperm.published")  # whose methods are then known by their keys

CANDIDATES = {
    candidate.key: candidate
    for candidate in (
        Candidate("output", "Output perturbation", "Output", "Λ = B²·(σ²n/400)^⅓, σ the noise multiplier", Output()),
        Candidate(
            "objective-kifer",
            "Objective perturbation, Kifer",
            "Objective, Kifer",
            _LAMBDA,
            Objective(calibration="kifer"),
        ),
        Candidate(
            "objective-sharp",
            "Objective perturbation, sharp",
            "Objective, sharp",
            f"{_LAMBDA}; a margin of {USUAL_MARGIN:g} for the logistic loss",
            Objective(),
        ),
        Candidate(
            "gradient-full",
            "Gradient descent, full batch",
            "Full-batch descent",
            f"S steps, between 30 and 1,000; {_STEPS}",
            Gradient(sampling="full"),
        ),
        Candidate(
            "gradient-poisson",
            "DP-SGD, Poisson",
            "DP-SGD",
            f"60 epochs of batches of min(512, n/4); {_STEPS}",
            Gradient(),
        ),
    )
}

#: what is compared unless others are named
USUAL = tuple(CANDIDATES)


def _title(kind: type[Method]) -> str:
    return (kind.title or kind.key) + (" (claimed)" if kind.claimed else "")


_NAMED = {candidate.method.key for candidate in CANDIDATES.values()} | {"auto"}
CANDIDATES |= {
    key: Candidate(key, _title(kind), _title(kind), (kind.__doc__ or "").split("\n")[0], kind())
    for key, kind in known_methods().items()
    if key not in _NAMED
}
