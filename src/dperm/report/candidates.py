"""The methods that a study compares, each tuned by its public rule."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from dperm.mechanisms import Auto, Gradient, Method, Objective, Output, known_methods

import_module("dperm.published")  # whose methods are then known by their keys


@dataclass(frozen=True)
class Candidate:
    """A method as a study names it."""

    title: str
    short: str
    method: Method

    @property
    def command(self) -> str:
        """How `dperm train` is asked for this method; "" where only Python can be."""
        method = self.method
        if method == Gradient(sampling="full"):
            return "--mechanism gradient --sampling full"
        return f"--mechanism {method.key}" if method == type(method)() and method.key != DEFAULT else ""

    @property
    def claimed(self) -> bool:
        """Whether it is run as it was published, and is not private at the ε it states."""
        return self.method.claimed


@dataclass(frozen=True)
class Reference:
    """What stands beside private models, as a study names it."""

    title: str
    short: str


#: the candidate that is what `dperm train` runs where nothing is chosen: its estimator makes the mechanism
DEFAULT = "auto"

#: what stands beside private models, in the order of a report
REFERENCES = {
    "non-private": Reference("Linear model, without privacy", "Linear, no privacy"),
    "boosting": Reference("Gradient boosting, without privacy", "Boosting, no privacy"),
    "constant": Reference("Always the same answer", "Same answer always"),
}

CANDIDATES = {
    DEFAULT: Candidate("Default of dperm train", "Default", Auto()),
    "output": Candidate("Output perturbation", "Output", Output()),
    "objective-kifer": Candidate("Objective perturbation, Kifer", "Objective, Kifer", Objective(calibration="kifer")),
    "objective-sharp": Candidate("Objective perturbation, sharp", "Objective, sharp", Objective()),
    "gradient-full": Candidate("Gradient descent, full batch", "Full-batch descent", Gradient(sampling="full")),
    "gradient-poisson": Candidate("DP-SGD, Poisson", "DP-SGD", Gradient()),
}

#: what is compared unless others are named
USUAL = tuple(key for key in CANDIDATES if key != DEFAULT)


def _title(kind: type[Method]) -> str:
    return (kind.title or kind.key) + (" (claimed)" if kind.claimed else "")


_NAMED = {candidate.method.key for candidate in CANDIDATES.values()}
CANDIDATES |= {key: Candidate(_title(kind), _title(kind), kind()) for key, kind in known_methods().items() if key not in _NAMED}
