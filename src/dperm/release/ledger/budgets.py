"""Budgets of data sets: what everybody's releases together may cost, whatever they choose and in whatever order."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm.privacy.divergence import divergence
from dperm.privacy.events import Event, Relation, UnsupportedEventError, relation_of
from dperm.privacy.filters import BudgetExceeded, rdp_budget
from dperm.privacy.rdp import conversion

__all__ = ["Account", "Budget", "Cost"]

_MASSES = 0.5  # of δ, for the δ of releases that have one


@dataclass(frozen=True)
class Cost:
    """Of releases, by a budget's rule: Rényi divergence at its order, and the mass set aside."""

    rdp: float = 0.0
    mass: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rdp + other.rdp, self.mass + other.mass)


@dataclass(frozen=True)
class Budget:
    """(ε, δ) for all releases of the data set `label`, chosen one after another by anybody who sees the earlier ones.

    A Rényi filter at the `order` fixed here (Feldman & Zrnic 2021, Theorem 4.3): divergences add up to at most `rdp`, the δ of
    releases that have one to at most `mass`, and both together keep within (ε, δ). `relation` and `persons` say what it protects:
    releases that protect something else are refused. `expires`: the last day, 2027-12-31. `alert`: the share of ε from which on
    a charge warns.
    """

    label: str
    epsilon: float
    delta: float
    order: float
    rdp: float
    mass: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    persons: bool = False
    owner: str = ""
    expires: str = ""
    alert: float = 0.8

    @classmethod
    def of(
        cls,
        label: str,
        epsilon: float,
        delta: float = 1e-6,
        *,
        order: float | None = None,
        mass: float | None = None,
        relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
        persons: bool = False,
        owner: str = "",
        expires: str = "",
        alert: float = 0.8,
    ) -> Budget:
        """`order`: fixed once; None: the one that suits Gaussian noise. `mass`: of δ, for the δ of releases; None: half of it.
        ValueError for what cannot be kept."""
        if not label.strip():
            raise ValueError("Expected the name of a data set: charges without one belong to no budget.")
        check.fraction("delta", delta)
        mass = _MASSES * delta if mass is None else check.fraction("mass", mass, zero=True)
        if mass >= delta:
            raise ValueError(f"Expected mass below delta = {delta:g}, got {mass:g}.")
        check.fraction("alert", alert, one=True)
        if expires:
            try:
                date.fromisoformat(expires)
            except ValueError:
                raise ValueError(f"Expected expires as a day such as 2027-12-31, got {expires!r}.") from None
        held = rdp_budget(epsilon, delta - mass, order=order, relation=Relation(relation))
        return cls(
            label, float(epsilon), float(delta), held.order, held.rdp_budget, mass, held.relation, persons, owner, expires, alert
        )

    def cost(self, event: Event) -> Cost:
        """ValueError for an event that this budget cannot add up."""
        if relation_of(event) is not self.relation:
            raise ValueError(f"The budget of {self.label!r} protects by {self.relation}, this release by {relation_of(event)}.")
        try:
            return _cost(event, self.order, self.epsilon)
        except UnsupportedEventError as error:
            raise ValueError(f"The budget of {self.label!r} cannot add this release up: {error}") from None

    def epsilon_of(self, spent: Cost) -> float:
        """ε at `delta` of what was spent, whoever chose it."""
        if spent == Cost():
            return 0.0
        return spent.rdp + float(conversion(np.array([self.order]), self.delta - self.mass)[0])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Budget:
        values: dict[str, Any] = {**data, "relation": Relation(data["relation"])}
        return cls(**values)


@dataclass(frozen=True)
class Account:
    """A budget, and what was spent of it."""

    budget: Budget
    spent: Cost

    @property
    def epsilon(self) -> float:
        """ε spent: at most the budget's."""
        return self.budget.epsilon_of(self.spent)

    @property
    def left(self) -> float:
        """The share that is left: of divergence, or of mass where less is left of that."""
        budget = self.budget
        return max(0.0, min(1 - self.spent.rdp / budget.rdp, 1 - self.spent.mass / budget.mass if budget.mass else 1.0))

    def charged(self, cost: Cost, day: str) -> Account:
        """After a further release. BudgetExceeded where it does not fit, or the budget has expired: nothing is charged then."""
        budget, spent = self.budget, self.spent + cost
        if budget.expires and day > budget.expires:
            raise BudgetExceeded(f"The budget of {budget.label!r} expired on {budget.expires}: nothing was charged.")
        if not (spent.rdp <= budget.rdp and spent.mass <= budget.mass):
            what = (
                f"a divergence of {cost.rdp:.4g} at order {budget.order:g}" if spent.rdp > budget.rdp else f"δ = {cost.mass:.2g}"
            )
            left = budget.rdp - self.spent.rdp if spent.rdp > budget.rdp else budget.mass - self.spent.mass
            raise BudgetExceeded(
                f"The budget of {budget.label!r}, ε = {budget.epsilon:g} at δ = {budget.delta:g}, has too little left: this one "
                f"costs {what}, left are {max(0.0, left):.4g}. Nothing was charged; ask {budget.owner or 'its owner'}."
            )
        return Account(budget, spent)


@functools.lru_cache(maxsize=1024)
def _cost(event: Event, order: float, epsilon: float) -> Cost:
    found = divergence(event, order)
    return Cost(found.rdp, found.mass + (1 + math.exp(min(epsilon, 700.0))) * found.astray)
