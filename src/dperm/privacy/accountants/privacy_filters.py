"""Privacy filters: budgets for releases whose noise is chosen on the way.

When noise scales follow from earlier releases, what happened to be released is no bound: another run would have been better
by another measure. A filter fixes measure and budget before anything is released, and refuses what does not fit; the run then
costs its budget, whatever was chosen. `RdpFilter` adds up Rényi divergences at one order: parts of any size, in any number.
`ProfileFilter` has a fixed number of places, each with a privacy profile that its part stays below: those compose exactly.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.pld import PrivacyLossDistribution
from dperm.privacy.accountants.rdp import ORDERS, conversion, rdp
from dperm.privacy.events import LARGEST_LOSS, Event, FilteredRdp, PrivacyProfile, Relation, leaves, relation_of

_LARGEST_ORDER = 1 << 14
_POINTS = 48  # of a profile: with more, twenty of them compose to an ε that is at most 0.3 % smaller
_GRID = 1e-3  # grid tolerance of profiles: what is charged and what is held to it are computed alike


def _best_order(planned: Sequence[Callable[[float], Event]], orders: NDArray[np.float64], epsilon: float, delta: float) -> float:
    """The order at which the product of the runs' least noise levels is smallest."""
    products = np.full(len(orders), math.inf)
    for number, order in enumerate(orders):
        left = epsilon - float(conversion(orders[number : number + 1], delta)[0])
        if left > 0:
            products[number] = sum(_log_noise(run, order, left) for run in planned)
    return float(orders[np.argmin(products)])


def _log_noise(run: Callable[[float], Event], order: float, budget: float) -> float:
    def beyond(log_noise: float) -> float:
        return math.log(max(float(rdp(run(math.exp(log_noise)), np.array([order]))[0]), 1e-300) / budget)

    return root_finding.root(beyond, math.log(1e-2), math.log(1e9), xtol=1e-4)


class BudgetExceeded(RuntimeError):
    """A release would cost more than is left of a filter's budget. Nothing was released or charged."""


@dataclass(frozen=True)
class Price:
    """What a part costs, on which of a filter's accounts, and what that account may hold."""

    account: str
    cost: float
    limit: float


class Filter(ABC):
    """Holds parts that are chosen on the way to an event that was `charged` beforehand.

    `accounts` says what was charged to each, every part before its release.
    """

    def __init__(self, charged: Event) -> None:
        self.charged = charged
        self.accounts: dict[str, float] = {}

    @abstractmethod
    def price(self, event: Event) -> Price:
        """Raises BudgetExceeded where no account takes the event, ValueError for one about other neighbours."""

    def charge(self, event: Event) -> float:
        """Pay for `event`, before it is released; returns its cost. BudgetExceeded where too little is left."""
        price = self.price(event)
        spent = self.accounts.get(price.account, 0.0)
        if not spent + price.cost <= price.limit:  # also where the cost is not a number
            raise self.refusal(price)
        self.accounts[price.account] = spent + price.cost
        return price.cost

    def refusal(self, price: Price) -> BudgetExceeded:
        left = max(0.0, price.limit - self.accounts.get(price.account, 0.0))
        return BudgetExceeded(
            f"A part costs {price.cost:.6g}, but of {price.limit:.6g} ({price.account}) only {left:.6g} is left."
        )

    def know(self, accounts: Mapping[str, float]) -> None:
        """Count as spent at least this."""
        for account, amount in accounts.items():
            self.accounts[account] = max(self.accounts.get(account, 0.0), check.non_negative("spent", amount))

    def _same(self, event: Event) -> None:
        mine, other = relation_of(self.charged), relation_of(event)
        if other not in (mine, None):
            raise ValueError(f"Expected an event under {mine}, got one under {other}.")


class RdpFilter(Filter):
    """Adds up Rényi divergences at the order of `budget`, and refuses what would exceed it.

    Theorem 4.3 of Feldman & Zrnic 2021 (also Lécuyer 2021, Theorem 1): whatever rule picks the parts, the whole is bounded by
    the budget at that order.
    """

    def __init__(self, budget: FilteredRdp) -> None:
        super().__init__(budget)
        self.budget = budget
        self._account = f"order {budget.order:g}"

    @property
    def spent(self) -> float:
        return self.accounts.get(self._account, 0.0)

    @property
    def left(self) -> float:
        return max(0.0, self.budget.rdp_budget - self.spent)

    def cost(self, event: Event) -> float:
        """Rényi divergence of `event` at the filter's order."""
        self._same(event)
        return float(rdp(event, np.array([self.budget.order]))[0])

    def price(self, event: Event) -> Price:
        return Price(self._account, self.cost(event), self.budget.rdp_budget)


class ProfileFilter(Filter):
    """Lets each part take the place of one that was charged: of an equal event, or of a `PrivacyProfile` that it stays below.

    Mechanisms whose privacy profiles stay below those of fixed pairs of distributions, whatever came before, compose to no more
    than those pairs do (Zhu, Dong, Wang 2022, Theorem 10; in trade-off functions Dong, Roth, Su 2022, Theorem 3.2). A part stays
    below at every ε if it does at the profile's points: it is convex in e^ε, and what is composed is the chords between them.
    """

    def __init__(self, charged: Event) -> None:
        super().__init__(charged)
        counts = enumerate(leaves(charged).items())
        self._places = {leaf: (f"{number}: {type(leaf).__name__}", count) for number, (leaf, count) in counts}

    def left(self, leaf: Event) -> int:
        """How many places for one of the charged events are not taken yet. ValueError for another event."""
        if leaf not in self._places:
            raise ValueError(f"Expected one of the events that were charged, got {leaf}.")
        account, count = self._places[leaf]
        return count - round(self.accounts.get(account, 0.0))

    def price(self, event: Event) -> Price:
        self._same(event)
        if event in self._places:
            account, count = self._places[event]
            return Price(account, 1.0, float(count))
        for leaf, (account, count) in self._places.items():
            if isinstance(leaf, PrivacyProfile) and self.left(leaf) > 0 and excess(event, leaf) <= 0:
                return Price(account, 1.0, float(count))
        raise BudgetExceeded(f"None of the places that are left takes {event}.")


def filter_of(event: Event) -> Filter | None:
    """The filter that holds the parts of a charged event that are chosen on the way; None where all are known. ValueError where
    it would take several."""
    counts = leaves(event)
    budgets = [leaf for leaf in counts if isinstance(leaf, FilteredRdp)]
    profiles = any(isinstance(leaf, PrivacyProfile) for leaf in counts)
    if sum(counts[leaf] for leaf in budgets) + profiles > 1:
        raise ValueError("Expected an event with one filter, got one with several: nothing was charged.")
    if profiles:
        return ProfileFilter(event)
    return RdpFilter(budgets[0]) if budgets else None


@functools.lru_cache(maxsize=1 << 12)
def excess(event: Event, profile: PrivacyProfile) -> float:
    """ln of how far the profile of `event`, both directions, rises above `profile`, at the worst of its points."""
    deltas = PrivacyLossDistribution(event, _GRID).deltas(profile.epsilons)
    with np.errstate(divide="ignore"):
        return float(np.max(np.log(deltas) - np.log(profile.deltas)))


def privacy_profile(*events: Event, smallest_delta: float) -> PrivacyProfile:
    """Upper bounds on the largest of these events' profiles, both directions, down to `smallest_delta`: a place in a
    `ProfileFilter` for any one of them, and for all that is no less private. ValueError where there are none, or they are about
    different neighbours."""
    relations = {relation_of(event) for event in events}
    relation = relations.pop() if len(relations) == 1 else None
    if relation is None:
        raise ValueError("Expected events that release something, all about the same neighbours.")
    return _largest(events, relation, check.fraction("smallest_delta", smallest_delta))


@functools.lru_cache(maxsize=128)  # trainings with the same settings ask for the same ones again
def _largest(events: tuple[Event, ...], relation: Relation, smallest_delta: float) -> PrivacyProfile:
    distributions = [PrivacyLossDistribution(event, _GRID) for event in events]
    largest = max(distribution.epsilon(smallest_delta) for distribution in distributions)
    if largest == 0:
        return PrivacyProfile((0.0,), (smallest_delta,), relation)
    while largest <= LARGEST_LOSS:
        points = largest * (np.arange(_POINTS) / (_POINTS - 1)) ** 1.5  # denser where profiles bend
        deltas = np.max([distribution.deltas(list(points)) for distribution in distributions], axis=0)
        if deltas[-1] <= 2 * smallest_delta:
            return PrivacyProfile(tuple(points), tuple(np.minimum.accumulate(deltas)), relation)
        largest *= 1.02  # losses that end abruptly: grids of different widths end them elsewhere
    return PrivacyProfile((0.0,), (1.0,), relation)  # so little noise that all is given away


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
