"""Privacy filters: budgets for releases whose noise is chosen on the way.

When noise scales follow from earlier releases, the least ε over the orders of what happened to be released is no bound: another
run would have been better at another order. A filter fixes its order and its budget before anything is released, and
refuses what does not fit; the run then costs its budget, whatever was chosen (Feldman & Zrnic 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dperm import _validate as check
from dperm.privacy.events import Event, FilteredRdp, Relation, relation_of
from dperm.privacy.rdp import ORDERS, conversion, rdp

__all__ = ["BudgetExceeded", "RdpFilter", "rdp_budget"]

_LARGEST_ORDER = 1 << 14


def _best_order(planned: Sequence[Callable[[float], Event]], orders: NDArray[np.float64], epsilon: float, delta: float) -> float:
    """The order at which the product of the runs' least noise levels is smallest."""
    products = np.full(len(orders), math.inf)
    for number, order in enumerate(orders):
        left = epsilon - float(conversion(orders[number : number + 1], delta)[0])
        if left > 0:
            products[number] = sum(_log_noise(run, order, left) for run in planned)
    return float(orders[np.argmin(products)])


def _log_noise(run: Callable[[float], Event], order: float, budget: float) -> float:
    def excess(log_noise: float) -> float:
        return math.log(max(float(rdp(run(math.exp(log_noise)), np.array([order]))[0]), 1e-300) / budget)

    return float(brentq(excess, math.log(1e-2), math.log(1e9), xtol=1e-4))


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
    epsilon: float,
    delta: float,
    *,
    order: float | None = None,
    planned: Sequence[Callable[[float], Event]] = (),
    earlier: Event | None = None,
    relation: Relation = Relation.ADD_OR_REMOVE_ONE,
) -> FilteredRdp:
    """The filter that keeps a run within (ε, δ): its budget at `order` is what the conversion leaves of ε.

    Without an order: the one at which the `planned` runs, each an event for each noise level, need least noise (the least
    product, where there are several). Without those either: the one that suits a Gaussian of the whole (ε, δ), which many steps
    on samples tend to; it needs no public size. `earlier` was released from the same records and is paid from the same (ε, δ).
    ValueError where nothing is left.
    """
    check.positive("epsilon", epsilon)
    check.fraction("delta", delta)
    if order is None:
        orders = np.arange(2.0, _LARGEST_ORDER)
        left = epsilon - conversion(orders, delta)
        with np.errstate(divide="ignore"):
            order = float(orders[np.argmin(np.where(left > 0, orders / np.maximum(left, 1e-300), math.inf))])
        if planned:
            near = ORDERS[(order / 2 <= ORDERS) & (order + 1 >= ORDERS) & (ORDERS >= 2)]
            order = _best_order(planned, near[:: max(1, len(near) // 12)], epsilon, delta)
    budget = epsilon - float(conversion(np.array([order]), delta)[0])
    if earlier is not None and budget > 0:
        cost = RdpFilter(FilteredRdp(order, budget, relation)).cost(earlier)
        if cost >= budget:
            raise ValueError(f"Earlier releases cost {cost:.4g} at order {order:g}, all of the budget of {budget:.4g}.")
        budget -= cost
    if budget <= 0:
        raise ValueError(
            f"Expected a larger epsilon or delta: at order {order:g} the conversion alone costs {epsilon - budget:.4g} of "
            f"epsilon = {epsilon:g}."
        )
    # a hair less: the conversion back must not round above the target
    return FilteredRdp(order, budget * (1 - 1e-12) - 1e-15, relation)
