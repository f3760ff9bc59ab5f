"""Queries: which vector of each record a step bounds, sums and releases with noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dperm.objectives.per_example import Objective, Pass
from dperm.privacy.certificates.assumptions import RELEASED_ANCHOR, Assumption


@dataclass(frozen=True)
class Query(ABC):
    """A vector for each record, which depends on that record, on θ and on released numbers alone."""

    #: whether it is the gradient itself
    coordinatewise = False
    #: what audits call its noisy sum
    what = "sum of vectors"
    #: Whether it compares gradients at two θ.
    anchored: ClassVar[bool] = False

    def assumptions(self) -> Sequence[Assumption]:
        """What it rests on that nobody checks."""
        return ()

    @abstractmethod
    def at(self, objective: Objective, theta: Any, batch: Any) -> Pass:
        """The vectors of a batch's records at θ, as a pass whose norms and sums are theirs."""


@dataclass(frozen=True)
class PerExampleGradient(Query):
    """∇ℓ_i(θ)."""

    coordinatewise = True
    what = "sum of gradients"

    def at(self, objective: Objective, theta: Any, batch: Any) -> Pass:
        return objective.per_example(theta, batch)


@dataclass(frozen=True, eq=False)
class GradientDifference(Query):
    """∇ℓ_i(θ) − ∇ℓ_i(anchor), no longer than β·‖θ − anchor‖: what variance reduction sums (Johnson & Zhang 2013).

    `anchor` (p,) must be made from releases, which the certificate states. Of linear models.
    """

    anchor: Any

    what = "sum of gradient differences"
    anchored = True

    def assumptions(self) -> Sequence[Assumption]:
        return (RELEASED_ANCHOR,)

    def at(self, objective: Objective, theta: Any, batch: Any) -> Pass:
        return objective.per_example(theta, batch, anchor=self.anchor)
