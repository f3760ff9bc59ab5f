"""ε of a mechanism, stated by numbers or by a file, and of everything in the spend log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dperm.jobs.files import certificate_at, event_at
from dperm.jobs.options import Delta, JobOptions, Relation, stated_relation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dperm.gradient.correlation.choosing import Compared
    from dperm.privacy import Relation as Neighbours
    from dperm.privacy.accountants.closed_forms import Rung
    from dperm.release import SpendLog


@dataclass(frozen=True, kw_only=True)
class AccountingOptions(JobOptions):
    """A mechanism: Gaussian noise on Poisson samples, or what a file states."""

    noise: Annotated[float | None, "Noise multiplier: standard deviation ÷ sensitivity."] = None
    rate: Annotated[float, "Poisson sampling rate."] = 1.0
    steps: Annotated[int, "Number of steps."] = 1
    delta: Delta = 1e-5
    relation: Relation = "add_or_remove_one"
    momentum: Annotated[float, "With --correlated: of SGD, which noise meets."] = 0.9
    event: Annotated[Path | None, "A JSON event or certificate to account for instead."] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        from dperm import _validate as check

        if self.noise is not None:
            check.positive("--noise", self.noise)
            check.fraction("--rate", self.rate, one=True)
            check.integer("--steps", self.steps)

    @property
    def rungs(self) -> list[Rung]:
        """ε of the noise by other formulas, too."""
        from dperm.privacy.accountants.closed_forms import ladder

        return ladder(self.noise or 0.0, self.rate, self.steps, self.delta, stated_relation(self.relation))

    @property
    def strategies(self) -> list[Compared]:
        """Correlated noise at the same ε, for SGD with this momentum: see `dperm.gradient.correlation.choosing`."""
        return self._compared(account(self).epsilon or 0.0)

    def strategies_over(self, epsilons: Sequence[float]) -> dict[float, list[Compared]]:
        """The same at other ε."""
        return {epsilon: self._compared(epsilon) for epsilon in epsilons}

    def _compared(self, epsilon: float) -> list[Compared]:
        from dperm.gradient.correlation import Workload
        from dperm.gradient.correlation.choosing import compared

        if self.noise is None or not self.rate < 1 or stated_relation(self.relation) != "add_or_remove_one":
            raise ValueError("Expected --noise, a --rate below 1 and --relation add_or_remove_one with --correlated.")
        return compared(self.steps, self.rate, epsilon, self.delta, Workload(momentum=self.momentum))


@dataclass(frozen=True)
class Accounted:
    """ε of a mechanism at δ, and by which accountant; None where there is a `claim` alone."""

    epsilon: float | None
    accountant: str
    relation: Neighbours | None
    claim: str | None = None


def account(asked: AccountingOptions) -> Accounted:
    """ε of the mechanism by the accountant that proves least. ValueError for a file that holds none."""
    from dperm.privacy import Gaussian, PoissonSampled, SelfComposed
    from dperm.privacy.accountants.accounting import best_epsilon
    from dperm.privacy.events import relation_of

    if asked.event is None:
        noise = Gaussian(asked.noise or 0.0, stated_relation(asked.relation))
        mechanism = SelfComposed(PoissonSampled(asked.rate, noise), asked.steps)
    elif (certificate := certificate_at(asked.event)) is None:
        mechanism = event_at(asked.event)
    elif certificate.epsilon is None:
        return Accounted(None, "", certificate.relation, certificate.claim)
    else:
        mechanism = certificate.event
    return Accounted(*best_epsilon(mechanism, asked.delta), relation_of(mechanism))


@dataclass(frozen=True)
class Total:
    """What charges that protect the same cost together, as if on the same records. `epsilon` is infinite where some of them are
    only claimed; `certified` others are not, and cost `certified_epsilon`. `promised`: the δ that promises alone spend."""

    relation: Neighbours
    persons: bool
    charges: int
    epsilon: float
    certified: int
    certified_epsilon: float | None
    promised: float

    def __str__(self) -> str:
        return f"{self.relation}, of persons" if self.persons else str(self.relation)


def totals(log: SpendLog, delta: float, label: str | None = None) -> list[Total]:
    """What all charges of a spend log cost, or those with a label: never added up over different neighbours."""
    from dperm.privacy import ApproximateDP, Composed, epsilon
    from dperm.privacy.events import leaves, relation_of

    charges, found = log.charges(label), list[Total]()
    for persons in (False, True):
        for relation, value in log.total(delta, label, persons=persons).items():
            mine = [charge for charge in charges if relation_of(charge.event) is relation and charge.persons == persons]
            certified = [charge.event for charge in mine if charge.certified]
            counted = [item for event in certified for item in leaves(event).items()]
            spent = sum(leaf.delta * count for leaf, count in counted if isinstance(leaf, ApproximateDP))
            others = epsilon(Composed(tuple(certified)), delta) if certified and len(certified) < len(mine) else None
            found.append(Total(relation, persons, len(mine), value, len(certified), others, spent))
    return found
