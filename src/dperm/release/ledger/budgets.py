"""Budgets of data sets: what everybody's releases together may cost, whatever they choose and in whatever order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from dperm import _validate as check
from dperm.privacy.accountants.privacy_filters import BudgetExceeded
from dperm.privacy.events import Event, Relation, UnsupportedEventError, relation_of
from dperm.release.ledger.rules import Amounts, RenyiFilter, Rule, added, rule_from_dict


@dataclass(frozen=True)
class Budget:
    """(ε, δ) for all releases of the data set `label`, chosen one after another by anybody who sees the earlier ones.

    `rule` says how they are added up: `RenyiFilter`, `GdpFilter`, or a `Plan` of releases. It also says which neighbours are
    protected, `persons` whether these differ in all rows of a person: releases that protect something else are refused.
    `expires`: the last day, 2027-12-31. `alert`: the charge by which this share of the budget is reached warns. ValueError for
    what cannot be.
    """

    label: str
    rule: Rule
    persons: bool = False
    owner: str = ""
    expires: str = ""
    alert: float = 0.8

    def __post_init__(self) -> None:
        if not self.label.strip():
            raise ValueError("Expected the name of a data set: charges without one belong to no budget.")
        check.fraction("alert", self.alert, one=True)
        if self.expires:
            try:
                day = date.fromisoformat(self.expires).isoformat()
            except ValueError:
                raise ValueError(f"Expected expires as a day such as 2027-12-31, got {self.expires!r}.") from None
            object.__setattr__(self, "expires", day)  # days are compared as texts: 20271231 or 2027-W52-5 come after all of 2027

    @classmethod
    def of(cls, label: str, epsilon: float, delta: float = 1e-6, *, mass: float | None = None, **settings: Any) -> Budget:
        """By a Rényi filter that suits Gaussian noise, `mass` of δ being for the δ of releases."""
        return cls(label, RenyiFilter.of(epsilon, delta, mass=mass), **settings)

    @property
    def epsilon(self) -> float:
        return self.rule.epsilon

    @property
    def delta(self) -> float:
        return self.rule.delta

    @property
    def relation(self) -> Relation:
        return self.rule.relation

    def expired(self, day: str) -> bool:
        """Whether a day, 2027-12-31, is after the last."""
        return bool(self.expires) and day > self.expires

    def cost(self, event: Event) -> Amounts:
        """ValueError for an event that this budget cannot add up."""
        if relation_of(event) is not self.relation:
            raise ValueError(f"The budget of {self.label!r} protects by {self.relation}, this release by {relation_of(event)}.")
        try:
            cost = self.rule.cost(event)
            if not all(0 <= amount < math.inf for amount in cost.values()):
                raise ValueError(f"by a {self.rule.name} it costs {', '.join(f'{amount:g}' for amount in cost.values())}.")
            return cost
        except (UnsupportedEventError, ValueError) as error:
            raise ValueError(f"The budget of {self.label!r} cannot add this release up: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "rule": self.rule.to_dict(),
            "persons": self.persons,
            "owner": self.owner,
            "expires": self.expires,
            "alert": self.alert,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Budget:
        body: dict[str, Any] = dict(data)
        if "rule" not in body:  # of the first version, which knew Rényi filters alone
            kept = {name: body.pop(name) for name in ("epsilon", "delta", "relation", "order", "mass")}
            body["rule"] = {"type": "RenyiFilter", **kept, "divergence": body.pop("rdp")}
        rule = rule_from_dict(body.pop("rule"))
        return cls(rule=rule, **body)


@dataclass(frozen=True)
class Account:
    """A budget, and what was spent of it."""

    budget: Budget
    spent: Amounts = field(default_factory=dict)

    @property
    def epsilon(self) -> float:
        """The ε of the least budget by this rule that would have taken what was spent: at most the budget's. What is promised
        is the budget's ε: who stops early may have had reasons in what was released."""
        return self.budget.rule.epsilon_of(self.spent)

    @property
    def left(self) -> float:
        """The share of the budget that is left."""
        return max(0.0, 1 - self.budget.rule.share(self.spent))

    def to_dict(self) -> dict[str, Any]:
        """For dashboards."""
        budget, rule = self.budget, self.budget.rule
        stated = {"epsilon": rule.epsilon, "delta": rule.delta, "relation": rule.relation}
        return {**budget.to_dict(), **stated, "adds_up_by": rule.name, "spent": self.epsilon, "left": self.left}

    def charged(self, cost: Amounts, day: str, times: int = 1) -> Account:
        """After a further release, or so many like it. BudgetExceeded where it does not fit, or the budget has expired: then
        nothing is charged."""
        budget, rule, spent = self.budget, self.budget.rule, added(self.spent, cost, times)
        if budget.expired(day):
            raise BudgetExceeded(f"The budget of {budget.label!r} expired on {budget.expires}: nothing was charged.")
        limits = rule.limits
        for kind, amount in spent.items():
            if kind not in limits:
                raise ValueError(f"What was spent of the budget of {budget.label!r} was changed: it has no {kind!r}.")
            if not amount <= limits[kind]:  # also where it is not a number
                left = max(0.0, limits[kind] - self.spent.get(kind, 0.0))
                raise BudgetExceeded(
                    f"The budget of {budget.label!r}, ε = {budget.epsilon:g} at δ = {budget.delta:g}, has too little left: this "
                    f"one costs {rule.told(kind, times * cost[kind])}, left is {rule.told(kind, left)}. Nothing was charged; ask "
                    f"{budget.owner or 'its owner'}."
                )
        return Account(budget, spent)
