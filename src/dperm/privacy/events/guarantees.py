"""Mechanisms known by what they guarantee alone."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events.event import Event, Paid, Relation, own_relation, plain_number

#: The largest ε of a `PrivacyProfile`: e^ε must be a double.
LARGEST_LOSS = 600.0


@dataclass(frozen=True)
class PureDP(Event):
    """Any ε-differentially private mechanism; randomised response is its worst case (Kairouz, Oh, Viswanath 2015)."""

    epsilon: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        plain_number(self, "epsilon", check.positive)
        own_relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("pure", self.epsilon)


@dataclass(frozen=True)
class AboveThreshold(PureDP):
    """Up to `queries` questions whether a query, chosen by the earlier answers, is above a threshold, until one is: ε-private in
    all (Dwork & Roth 2014, Algorithm 1). Threshold and queries have Laplace noise of one scale, 3·sensitivity/ε: a third of ε
    shifts the threshold by one sensitivity, the rest shifts the query that is above it by two."""

    queries: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "queries", check.integer("queries", self.queries))

    @property
    def rate(self) -> float:
        """Of each noise: density ∝ exp(−rate·|b|/sensitivity)."""
        return self.epsilon / 3

    @property
    def pays_for(self) -> Paid:
        return Paid("threshold", self.rate)

    @property
    def releases(self) -> int:
        return self.queries + 1


@dataclass(frozen=True)
class ApproximateDP(Event):
    """Any (ε, δ)-differentially private mechanism. The event of a part chosen after an earlier release, when every
    possible choice was held to this one (ε, δ): its worst case composes whatever the choice depended on."""

    epsilon: float
    delta: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        plain_number(self, "epsilon", check.positive)
        plain_number(self, "delta", check.fraction)
        own_relation(self)


@dataclass(frozen=True)
class ExponentialMechanism(Event):
    """A mechanism whose log-probability ratios span a range of at most ε (Dong, Durfee, Rogers 2020). Copies may be chosen
    adaptively: see `dperm.privacy.accountants.bounded_range`."""

    epsilon: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        plain_number(self, "epsilon", check.positive)
        own_relation(self)

    @property
    def pays_for(self) -> Paid:
        return Paid("choice", self.epsilon)


@dataclass(frozen=True)
class FilteredRdp(Event):
    """Releases chosen one after another, each by what the earlier ones gave, for as long as their Rényi divergences at `order`
    sum to no more than `rdp_budget`: a privacy filter (Feldman & Zrnic 2021, Theorem 4.3). See
    `dperm.privacy.accountants.privacy_filters`."""

    on_the_way = True
    alike_within = 1e-9

    order: float
    rdp_budget: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        if not 1 < self.order < math.inf:
            raise ValueError(f"Expected order > 1, got {self.order!r}.")
        plain_number(self, "order", check.positive)
        plain_number(self, "rdp_budget", check.positive)
        own_relation(self)


@dataclass(frozen=True, repr=False)
class PrivacyProfile(Event):
    """Any mechanism that is (epsilons[j], deltas[j])-differentially private for every j.

    The event of a part chosen after earlier releases, when every possible choice was held to all of these: `ApproximateDP` with
    many points, which lose next to nothing where one point loses much. ε rises from point to point, δ does not.
    """

    on_the_way = True
    alike_within = 1e-2

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        for name in ("epsilons", "deltas"):
            object.__setattr__(self, name, tuple(float(check.finite(name, value)) for value in getattr(self, name)))
        if not self.epsilons or len(self.epsilons) != len(self.deltas):
            raise ValueError(f"Expected as many deltas as epsilons, got {len(self.deltas)} and {len(self.epsilons)}.")
        check.non_negative("epsilons", self.epsilons[0])
        for value in self.deltas:
            check.fraction("deltas", value, one=True)
        rising = all(low < high for low, high in itertools.pairwise(self.epsilons)) and self.epsilons[-1] <= LARGEST_LOSS
        falling = all(high >= low for high, low in itertools.pairwise(self.deltas))
        if not (rising and falling):
            raise ValueError(f"Expected epsilons of at most {LARGEST_LOSS:g} that rise, and deltas that do not.")
        own_relation(self)

    def __repr__(self) -> str:
        points = f"({self.epsilons[0]:.4g}, {self.deltas[0]:.4g}) to ({self.epsilons[-1]:.4g}, {self.deltas[-1]:.4g})"
        pairs = itertools.pairwise(zip(self.epsilons, self.deltas, strict=True))
        area = sum((right - left) * (high + low) / 2 for (left, high), (right, low) in pairs)  # which every point changes
        return f"PrivacyProfile({len(self.epsilons)} points (ε, δ) from {points}, area {area:.4g}, {self.relation})"


@dataclass(frozen=True)
class Unsupported(Event):
    """A mechanism that no accountant here bounds; `claim` repeats what its authors publish, on one line."""

    claim: str
    relation: Relation = Relation.ADD_OR_REMOVE_ONE

    def __post_init__(self) -> None:
        if not isinstance(self.claim, str) or not self.claim.strip() or not self.claim.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"Expected claim to be one line of text, got {self.claim!r}.")
        own_relation(self)
