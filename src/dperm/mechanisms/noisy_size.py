"""For mechanisms that need the number of records while it is private: release it with noise, then choose the rest by it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.mechanisms.base import Mechanism
from dperm.mechanisms.minimiser import admit_size
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.losses import admit_classes
from dperm.privacy import ApproximateDP, Assumption, Channel, Composed, Event, PureDP, Relation

__all__ = ["NoisySize"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoisySize(Mechanism):
    """A count with Laplace noise at `share`·ε, then `make(facts, ε, δ)` for the size it gave, at the rest of the budget.

    The second part depends on the first, so its event is what every choice is held to: (ε, δ) as a whole, not the
    finer profile of the part that happened to run.
    """

    make: Callable[[PublicFacts, float, float], Mechanism]
    share: float = 0.05
    label: str = "mechanism"
    rests_on: tuple[Assumption, ...] = ()
    classes: int = 0  # of the one-vs-rest mechanism that `make` gives; 0 where it gives another

    def __post_init__(self) -> None:
        check.fraction("share", self.share)
        check.positive("epsilon", self.budget.epsilon)

    @property
    def name(self) -> str:
        return f"{self.label}, number of records released with noise"

    @property
    def paper(self) -> str:
        return "Dwork, McSherry, Nissim, Smith 2006 (Laplace noise), then the mechanism named"

    def _parts(self, relation: Relation) -> tuple[PureDP, ApproximateDP | PureDP]:
        """The count's event and the promise for the rest."""
        assert self.budget.epsilon is not None
        first = self.share * self.budget.epsilon
        rest = self.budget.epsilon - first
        if self.budget.delta == 0:
            return PureDP(first, relation), PureDP(rest, relation)
        # An (ε, δ) promise spends its δ entirely: a hair less keeps the whole at δ after rounding.
        return PureDP(first, relation), ApproximateDP(rest, self.budget.delta * (1 - 1e-6), relation)

    def event(self, facts: PublicFacts) -> Event:
        return Composed(self._parts(facts.relation))

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        first, _ = self._parts(objective.relation)
        noisy = channel.release_pure(np.array([float(len(records))]), 1.0, first.epsilon)
        size = max(1, round(float(noisy[0])))
        sized = replace(objective, public_size=size)  # and the limit on sizes that was admitted
        mechanism = self.made_for(sized.facts)
        channel.allow(mechanism.event(sized.facts))
        theta, trace = mechanism.train(sized, records, channel)
        return theta, {"noisy_size": size, "mechanism": mechanism.name, **mechanism.settings(), **trace}

    def made_for(self, facts: PublicFacts) -> Mechanism:
        """What runs after the release of the size that `facts` state."""
        _, rest = self._parts(facts.relation)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that depends on data after the charge would be one more output
            return self.make(facts, rest.epsilon, getattr(rest, "delta", 0.0))

    def admit(self, objective: LinearObjective, records: Records) -> Records:
        admit_size(objective.facts, len(records))
        return super().admit(objective, records)

    def admit_targets(self, objective: LinearObjective, targets: Array) -> Array:
        return admit_classes(targets, self.classes) if self.classes else super().admit_targets(objective, targets)

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return self.rests_on

    def settings(self) -> Mapping[str, Any]:
        return {"size_epsilon": self.share * (self.budget.epsilon or 0.0)}
