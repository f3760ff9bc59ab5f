"""Queries: which vector of each record a step bounds, sums and releases with noise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from dperm.objectives.local_training import LocallyTrained, LocalSteps
from dperm.objectives.per_example import Objective, Pass
from dperm.privacy.certificates.assumptions import RELEASED_ANCHOR, SECRET_COHORT, TRUSTED_SERVER, Assumption


@dataclass(frozen=True)
class Query(ABC):
    """A vector for each record, which depends on that record, on θ and on released numbers alone."""

    #: whether it is the gradient itself
    coordinatewise = False
    #: what audits call its noisy sum
    what = "sum of vectors"
    #: Whether it compares gradients at two θ.
    anchored: ClassVar[bool] = False
    #: what plans with it are called, beside how records are drawn
    words: ClassVar[str] = ""
    #: where descent by such vectors is published
    paper: ClassVar[str] = "Abadi et al. 2016"
    #: whether the rows of a record are trained on one after the other, and not averaged
    trains_on_rows: ClassVar[bool] = False
    #: whether a pass holds a vector (p,) for each record
    holds_vectors: ClassVar[bool] = False

    def refuse(self, objective: Any) -> None:
        """TypeError or ValueError, before any charge, for an objective whose records have no such vectors."""
        return

    def assumptions(self, *, amplified: bool = True) -> Sequence[Assumption]:
        """What it rests on that nobody checks, where less is charged because records are drawn at random (`amplified`) or not."""
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

    def assumptions(self, *, amplified: bool = True) -> Sequence[Assumption]:
        return (RELEASED_ANCHOR,)

    def at(self, objective: Objective, theta: Any, batch: Any) -> Pass:
        return objective.per_example(theta, batch, anchor=self.anchor)


@dataclass(frozen=True)
class LocalUpdate(LocalSteps, Query):
    """θ − θ', where θ' is what a few steps of local training on the record's own rows leave, from the released θ on: DP-FedAvg
    (McMahan, Ramage, Talwar, Zhang 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1).

    A record is then mostly a client: a `PrivacyUnit` of several rows. The mean of these vectors stands where a gradient does, as
    in Reddi et al. 2021 ("Adaptive Federated Optimization"): any update is a server optimiser, and SGD(1.0) averages models.
    """

    what = "sum of local updates"
    words: ClassVar[str] = "local updates"
    paper: ClassVar[str] = "McMahan, Ramage, Talwar, Zhang 2018 (DP-FedAvg)"
    trains_on_rows: ClassVar[bool] = True
    holds_vectors: ClassVar[bool] = True

    def refuse(self, objective: Any) -> None:
        refuse_local = getattr(objective, "refuse_local", None)
        if refuse_local is None:
            raise TypeError(
                f"Expected a linear model or a network for local updates, got {type(objective).__name__}, which has no "
                "local_updates(theta, batch, local)."
            )
        refuse_local(self)

    def assumptions(self, *, amplified: bool = True) -> Sequence[Assumption]:
        return (TRUSTED_SERVER, SECRET_COHORT) if amplified else (TRUSTED_SERVER,)

    def at(self, objective: Objective, theta: Any, batch: Any) -> Pass:
        return cast(LocallyTrained, objective).local_updates(theta, batch, self)
