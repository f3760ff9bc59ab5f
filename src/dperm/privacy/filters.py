"""Privacy filters: budgets for releases whose noise is chosen on the way.

When noise scales follow from earlier releases, the least ε over the orders of what happened to be released is no bound: another
run would have been better at another order. A filter fixes its order and its budget before anything is released, and
refuses what does not fit; the run then costs its budget, whatever was chosen (Feldman & Zrnic 2021).
"""

from __future__ import annotations

import math

import numpy as np

from dperm import _validate as check
from dperm.privacy.events import Event, FilteredRdp, Relation, relation_of
from dperm.privacy.rdp import conversion, rdp

__all__ = ["BudgetExceeded", "RdpFilter", "rdp_budget"]

_LARGEST_ORDER = 1 << 14


class BudgetExceeded(RuntimeError):
    """A release would cost more than is left of a filter's budget. Nothing was released or charged."""


class RdpFilter:
    """Adds up Rényi divergences at the order of `budget`, an event, and refuses what would exceed it.

    `spent` counts what was charged, each part before its release. Theorem 4.3 of Feldman & Zrnic 2021 (also Lécuyer 2021,
    Theorem 1): whatever rule picks the parts, the whole is bounded by the budget at that order.
    """

    def __init__(self, budget: FilteredRdp, spent: float = 0.0) -> None:
        self.budget = budget
        self.spent = check.non_negative("spent", spent)

    @property
    def left(self) -> float:
        return max(0.0, self.budget.rdp_budget - self.spent)

    def cost(self, event: Event) -> float:
        """Rényi divergence of `event` at the filter's order. ValueError for one about other neighbours."""
        if relation_of(event) not in (self.budget.relation, None):
            raise ValueError(f"Expected an event under {self.budget.relation}, got one under {relation_of(event)}.")
        return float(rdp(event, np.array([self.budget.order]))[0])

    def charge(self, event: Event) -> float:
        """Pay for `event`, before it is released; returns its cost. BudgetExceeded where too little is left."""
        cost = self.cost(event)
        if not self.spent + cost <= self.budget.rdp_budget:  # also where the cost is not a number
            raise BudgetExceeded(
                f"A part costs {cost:.6g} at order {self.budget.order:g}, but of {self.budget.rdp_budget:.6g} only "
                f"{self.left:.6g} is left."
            )
        self.spent += cost
        return cost


def rdp_budget(
    epsilon: float, delta: float, *, order: float | None = None, relation: Relation = Relation.ADD_OR_REMOVE_ONE
) -> FilteredRdp:
    """The filter that keeps a run within (ε, δ): its budget at `order` is what the conversion leaves of ε.

    Without an order: the integer that suits a Gaussian of the whole (ε, δ). Many steps on samples tend to that, so that it is
    within a few per cent of the best order whatever their rates, and needs no public size. ValueError where an order
    leaves nothing.
    """
    check.positive("epsilon", epsilon)
    check.fraction("delta", delta)
    if order is None:
        orders = np.arange(2.0, _LARGEST_ORDER)
        left = epsilon - conversion(orders, delta)
        with np.errstate(divide="ignore"):
            order = float(orders[np.argmin(np.where(left > 0, orders / np.maximum(left, 1e-300), math.inf))])
    budget = epsilon - float(conversion(np.array([order]), delta)[0])
    if budget <= 0:
        raise ValueError(
            f"Expected a larger epsilon or delta: at order {order:g} the conversion alone costs {epsilon - budget:.4g} of "
            f"epsilon = {epsilon:g}."
        )
    # a hair less: the conversion back must not round above the target
    return FilteredRdp(order, budget * (1 - 1e-12) - 1e-15, relation)
