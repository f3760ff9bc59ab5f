"""The methods that a study compares, each tuned by its public rule."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from dperm.mechanisms import Gradient, Method, Objective, Output, known_methods

import_module("dperm.published")  # whose methods are then known by their keys


@dataclass(frozen=True)
class Candidate:
    """A method as a study names it."""

    title: str
    short: str
    method: Method

    @property
    def claimed(self) -> bool:
        """Whether it is run as it was published, and is not private at the ε it states."""
        return self.method.claimed


CANDIDATES = {
    "output": Candidate("Output perturbation", "Output", Output()),
    "objective-kifer": Candidate("Objective perturbation, Kifer", "Objective, Kifer", Objective(calibration="kifer")),
    "objective-sharp": Candidate("Objective perturbation, sharp", "Objective, sharp", Objective()),
    "gradient-full": Candidate("Gradient descent, full batch", "Full-batch descent", Gradient(sampling="full")),
    "gradient-poisson": Candidate("DP-SGD, Poisson", "DP-SGD", Gradient()),
}

#: what is compared unless others are named
USUAL = tuple(CANDIDATES)


def _title(kind: type[Method]) -> str:
    return (kind.title or kind.key) + (" (claimed)" if kind.claimed else "")


_NAMED = {candidate.method.key for candidate in CANDIDATES.values()} | {"auto"}
CANDIDATES |= {key: Candidate(_title(kind), _title(kind), kind()) for key, kind in known_methods().items() if key not in _NAMED}
