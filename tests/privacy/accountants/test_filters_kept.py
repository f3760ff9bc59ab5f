"""Rényi budgets keep (ε, δ) at their order, whatever else was released; against the conversion's definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dperm.privacy import (
    BudgetExceeded,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    PureDP,
    RdpFilter,
    Relation,
    SelfComposed,
    rdp_budget,
)
from dperm.privacy.accountants.gaussian import gaussian_delta
from dperm.privacy.accountants.privacy_filters import excess, privacy_profile
from dperm.privacy.accountants.rdp import rdp


def beside(order: float, delta: float) -> float:
    """What (ε, δ) costs beside a divergence at this order (Canonne, Kamath, Steinke 2020, Proposition 12)."""
    return math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-5), (1.0, 1e-6), (8.0, 1e-9), (200.0, 1e-5), (0.001, 1e-3), (3.0, 0.4)])
def test_a_budget_is_what_the_conversion_leaves(epsilon: float, delta: float) -> None:
    budget = rdp_budget(epsilon, delta)
    left = epsilon - beside(budget.order, delta)
    assert left * (1 - 2e-12) - 2e-15 < budget.rdp_budget < left
    orders = [*range(2, 60), *range(60, 16_384, 50)]  # one Gaussian of the whole needs least noise at the best order
    noise = {order: order / (epsilon - beside(order, delta)) for order in orders if epsilon > beside(order, delta)}
    assert budget.order / left <= min(noise.values()) * (1 + 1e-12)
    assert rdp_budget(epsilon, delta, order=budget.order, relation=Relation.REPLACE_ONE) == FilteredRdp(
        budget.order, budget.rdp_budget, Relation.REPLACE_ONE
    )


def test_what_was_released_earlier_is_paid_from_the_same_budget() -> None:
    earlier = SelfComposed(Gaussian(200.0), 3)
    for order in (None, 15.0):
        whole, rest = rdp_budget(2.0, 1e-6, order=order), rdp_budget(2.0, 1e-6, order=order, earlier=earlier)
        assert rest.order == whole.order
        assert rest.rdp_budget == pytest.approx(whole.rdp_budget - 3 * whole.order / (2 * 200**2), rel=1e-9)
    small = rdp_budget(0.3, 1e-6, earlier=earlier)
    assert small.rdp_budget == pytest.approx(rdp_budget(0.3, 1e-6).rdp_budget - 3 * small.order / (2 * 200**2), rel=1e-9)
    dear = math.sqrt(whole.order / (2 * whole.rdp_budget))  # a Gaussian that takes all of it
    with pytest.raises(ValueError, match="all of the budget"):
        rdp_budget(2.0, 1e-6, order=15.0, earlier=Gaussian(dear * (1 - 1e-6)))
    assert 0 < rdp_budget(2.0, 1e-6, order=15.0, earlier=Gaussian(dear * (1 + 1e-6))).rdp_budget < 1e-4
    for beyond in (None, Gaussian(100.0)):
        with pytest.raises(ValueError, match="conversion alone costs"):
            rdp_budget(0.1, 1e-6, order=8.0, earlier=beyond)


def test_a_filter_is_full_when_its_parts_add_up_to_its_budget() -> None:
    held = RdpFilter(FilteredRdp(4.0, 0.5))  # a Gaussian of noise 4 costs 1/8: exact in binary
    for number in range(4):
        assert held.left == 0.5 - number / 8
        assert held.charge(Gaussian(4.0)) == 1 / 8
        assert held.spent == (number + 1) / 8
    for part in (Gaussian(1e3), PureDP(1e-3)):
        with pytest.raises(BudgetExceeded, match="only 0 is left"):
            held.charge(part)
    assert held.spent == 0.5
    one = RdpFilter(FilteredRdp(4.0, 0.5))
    with pytest.raises(BudgetExceeded):
        one.charge(SelfComposed(Gaussian(4.0), 5))
    assert one.accounts == {}


def test_the_order_for_what_is_planned_needs_hardly_more_noise_than_any() -> None:
    """Runs of which each needs another order: the product of their least noise levels is within a hundredth of the least."""
    runs = [
        lambda noise: SelfComposed(PoissonSampled(0.02, Gaussian(noise)), 500),
        lambda noise: SelfComposed(Gaussian(noise), 4),
    ]

    def least(run: int, order: float) -> float:
        left = 1.5 - beside(order, 1e-6)
        low, high = 0.2, 1e4
        while high > low * 1.0001:
            middle = math.sqrt(low * high)
            low, high = (low, middle) if rdp(runs[run](middle), np.array([order]))[0] <= left else (middle, high)
        return high

    for chosen in ([0], [1], [0, 1]):
        order = rdp_budget(1.5, 1e-6, planned=[runs[number] for number in chosen]).order
        needed = {each: math.prod(least(number, each) for number in chosen) for each in (order, *range(11, 40, 4))}
        assert needed[order] <= 1.01 * min(needed.values())


def test_how_far_a_profile_rises_above_another() -> None:
    place = privacy_profile(Gaussian(2.0), smallest_delta=1e-10)
    assert place.relation is Relation.ADD_OR_REMOVE_ONE
    assert excess(Gaussian(2.0), place) <= 0
    assert excess(Gaussian(2.1), place) < 0
    points = [(e, d) for e, d in zip(place.epsilons, place.deltas, strict=True) if d < 1]
    worst = max(math.log(gaussian_delta(1.9, e) / d) for e, d in points)
    assert worst > 0.1
    assert excess(Gaussian(1.9), place) == pytest.approx(worst, rel=0.05)
    assert privacy_profile(Gaussian(2.0, Relation.REPLACE_ONE), smallest_delta=1e-10).relation is Relation.REPLACE_ONE
    for events in ((Gaussian(2.0), Gaussian(2.0, Relation.REPLACE_ONE)), ()):
        with pytest.raises(ValueError, match="all about the same neighbours"):
            privacy_profile(*events, smallest_delta=1e-10)
