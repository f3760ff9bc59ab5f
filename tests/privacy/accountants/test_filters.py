"""Filters: no strategy gets more than the budget, and what they state is true of what they admit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dperm.privacy import (
    ApproximateDP,
    BudgetExceeded,
    Certificate,
    Composed,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    RdpFilter,
    Relation,
    SelfComposed,
    delta,
    epsilon,
    rdp_budget,
)
from dperm.privacy.accountants.rdp import rdp, rdp_delta, rdp_epsilon
from dperm.privacy.events import event_from_dict
from dperm.release import Channel, GaussianNoise, SpendLog, UnpaidReleaseError

parts = st.one_of(
    st.builds(Gaussian, st.floats(0.3, 1e4)),
    st.builds(PoissonSampled, st.floats(1e-4, 0.9), st.builds(Gaussian, st.floats(0.3, 1e3))),
    st.builds(
        SelfComposed,
        st.builds(PoissonSampled, st.floats(1e-4, 0.9), st.builds(Gaussian, st.floats(0.5, 1e3))),
        st.integers(1, 500),
    ),
)


@settings(deadline=None, max_examples=30)
@given(st.lists(parts, max_size=30), st.sampled_from([0.05, 1.0, 4.0]), st.integers(0, 10))
def test_whatever_is_asked_for_the_budget_is_never_exceeded(asked: list, target: float, greed: int) -> None:
    """A strategy that shrinks what it asks for by what is left, as adaptive runs do."""
    budget = rdp_budget(target, 1e-5)
    held = RdpFilter(budget)
    admitted = []
    for part in asked:
        tried = part
        for _ in range(greed + 1):
            before = held.spent
            try:
                held.charge(tried)
            except BudgetExceeded:
                assert held.spent == before  # refused: nothing is charged
                tried = Gaussian(10 * getattr(tried, "noise_multiplier", 10.0))
                continue
            admitted.append(tried)
            break
    total = rdp(Composed(tuple(admitted)), np.array([budget.order]))[0] if admitted else 0.0
    assert held.spent == pytest.approx(total, rel=1e-9, abs=1e-15)
    assert held.spent <= budget.rdp_budget
    if admitted:
        assert rdp_epsilon(Composed(tuple(admitted)), 1e-5, np.array([budget.order])) <= target


@pytest.mark.parametrize("target", [0.01, 0.1, 1.0, 3.0, 20.0])
def test_a_budget_is_worth_its_epsilon(target: float) -> None:
    event = rdp_budget(target, 1e-6)
    assert target * (1 - 1e-6) < epsilon(event, 1e-6) <= target
    assert delta(event, target) == pytest.approx(1e-6, rel=1e-6)
    assert epsilon(event, 1e-7) > target > epsilon(event, 1e-5)
    assert Certificate.issue(mechanism="m", event=event, delta=1e-6).epsilon <= target


def test_the_order_is_the_best_for_what_is_planned() -> None:
    def needed(order: float, rate: float, steps: int) -> float:
        budget = rdp_budget(3.0, 1e-5, order=order)
        low, high = 0.3, 50.0
        while high > low * 1.0001:
            middle = math.sqrt(low * high)
            fits = RdpFilter(budget).cost(SelfComposed(PoissonSampled(rate, Gaussian(middle)), steps)) <= budget.rdp_budget
            low, high = (low, middle) if fits else (middle, high)
        return high

    rate, steps = 512 / 60_000, 2340
    chosen = rdp_budget(3.0, 1e-5, planned=[lambda noise: SelfComposed(PoissonSampled(rate, Gaussian(noise)), steps)]).order
    best = min(needed(order, rate, steps) for order in np.arange(5.0, 12.0, 0.5))
    assert needed(chosen, rate, steps) <= 1.005 * best
    assert rdp_budget(3.0, 1e-5).order == 8.0  # of a Gaussian: α/(ε − conversion(α)) is least there
    with pytest.raises(ValueError, match="conversion alone costs"):
        rdp_budget(0.1, 1e-5, order=8.0)


def test_a_filter_composes_at_its_own_order_and_below() -> None:
    event = FilteredRdp(10.0, 0.3)
    assert np.all(rdp(event, np.array([1.5, 10.0])) == 0.3)
    assert rdp(event, np.array([10.5]))[0] == math.inf
    both = Composed((event, Gaussian(20.0)))
    at_order = 0.3 + 10.0 / (2 * 400)
    assert rdp_epsilon(both, 1e-5) <= rdp_epsilon(FilteredRdp(10.0, at_order), 1e-5) * (1 + 1e-12)
    assert epsilon(both, 1e-5) > epsilon(event, 1e-5)
    two = Composed((event, FilteredRdp(5.0, 0.2)))
    assert rdp_epsilon(two, 1e-5) == pytest.approx(rdp_epsilon(FilteredRdp(5.0, 0.5), 1e-5))
    assert rdp_delta(two, 5.0) < 1e-5
    assert event_from_dict(both.to_dict()) == both


def test_a_filter_beside_a_part_that_only_other_accountants_know() -> None:
    """A log may hold both: their (ε, δ) are added."""
    filtered, promise = rdp_budget(1.0, 1e-6), ApproximateDP(0.5, 1e-6)
    value = epsilon(Composed((filtered, promise)), 1e-5)
    assert value == pytest.approx(epsilon(filtered, 5e-6) + epsilon(promise, 5e-6))
    assert 1.0 < value < 1.5
    assert epsilon(Composed((filtered, promise)), 1e-6) == math.inf  # the promise's δ alone is more than half
    assert delta(Composed((filtered, promise)), 2.0) < 1e-4


@pytest.mark.parametrize("wrong", [{"order": 1.0}, {"order": math.inf}, {"rdp_budget": 0.0}, {"rdp_budget": -1.0}])
def test_impossible_filters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        FilteredRdp(**{"order": 5.0, "rdp_budget": 1.0, **wrong})


def test_a_part_about_other_neighbours_is_refused() -> None:
    held = RdpFilter(FilteredRdp(5.0, 1.0))
    with pytest.raises(ValueError, match="replace_one"):
        held.charge(Gaussian(5.0, Relation.REPLACE_ONE))
    assert held.spent == 0


def test_what_was_spent_is_not_forgotten_when_a_log_knows_of_less() -> None:
    """A copy's log may be older than what this copy has spent since, or newer; of each account the larger counts."""
    held = RdpFilter(FilteredRdp(5.0, 0.1))
    for _ in range(3):
        held.charge(Gaussian(10.0))  # 5/(2·10²) = 0.025 each
    (account,) = held.accounts
    held.know({account: 0.025})
    assert held.spent == pytest.approx(0.075)
    held.charge(Gaussian(10.0))
    held.know({})
    with pytest.raises(BudgetExceeded):
        held.charge(Gaussian(50.0))
    other = RdpFilter(FilteredRdp(5.0, 0.1))
    other.charge(Gaussian(10.0))
    other.know({account: 0.09})
    assert other.spent == 0.09
    with pytest.raises(BudgetExceeded):
        other.charge(Gaussian(10.0))
    for wrong in (-0.01, math.nan):
        with pytest.raises(ValueError, match="spent"):
            other.know({account: wrong})


# Behind the channel


def test_the_door_opens_for_what_the_filter_admitted_and_no_more() -> None:
    channel = Channel.open()
    channel.charge(FilteredRdp(5.0, 0.1), "test")
    query = np.zeros(3)
    with pytest.raises(UnpaidReleaseError):
        channel.release(query, GaussianNoise(1.0, 10.0))
    channel.allow(Gaussian(10.0))  # costs 0.025
    channel.release(query, GaussianNoise(2.0, 10.0))
    with pytest.raises(UnpaidReleaseError):
        channel.release(query, GaussianNoise(1.0, 10.0))
    channel.allow(SelfComposed(Gaussian(10.0), 2))
    channel.release(query, GaussianNoise(1.0, 10.0))
    channel.allow(Gaussian(10.0))  # admitted while an equal part is in use
    channel.release(query, GaussianNoise(1.0, 10.0))
    channel.release(query, GaussianNoise(1.0, 10.0))
    with pytest.raises(BudgetExceeded):
        channel.allow(Gaussian(10.0))
    with pytest.raises(UnpaidReleaseError):
        channel.release(query, GaussianNoise(1.0, 10.0))
    with pytest.raises(UnpaidReleaseError, match="neighbours"):
        channel.allow(Gaussian(1e6, Relation.REPLACE_ONE))


def test_parts_are_on_disk_before_they_are_released(tmp_path) -> None:
    log = SpendLog(tmp_path / "log.db")
    channel = Channel.open(log=log)
    budget = FilteredRdp(5.0, 0.1)
    channel.charge(budget, "test", continuable=True)
    channel.allow(Gaussian(10.0), {"epoch": 1})
    assert channel.parts() == [(Gaussian(10.0), {"epoch": 1}, None)]
    other = Channel.open(log=log)  # a copy that continues the run
    other.resume(channel.charge_id, budget)
    assert other.filter.spent == pytest.approx(0.025)
    other.allow(SelfComposed(Gaussian(10.0), 2), first=0)
    # the first copy knows what the second spent
    with pytest.raises(BudgetExceeded):
        channel.allow(SelfComposed(Gaussian(10.0), 2))
    channel.allow(Gaussian(10.0))
    for copy in (channel, other):
        with pytest.raises(BudgetExceeded):
            copy.allow(Gaussian(30.0))
    with pytest.raises(UnpaidReleaseError, match="open already"):
        other.reopen(SelfComposed(Gaussian(10.0), 2), 0)  # which it was allowed itself
    third = Channel.open(log=log)
    third.resume(channel.charge_id, budget)
    third.reopen(SelfComposed(Gaussian(10.0), 2), 0)
    with pytest.raises(UnpaidReleaseError, match="reserve"):
        third.release(np.zeros(2), GaussianNoise(1.0, 10.0))
    third.reserve(1, 2)
    third.release(np.zeros(2), GaussianNoise(1.0, 10.0))
    with pytest.raises(UnpaidReleaseError, match="no part"):
        third.reopen(SelfComposed(Gaussian(11.0), 2), 0)
    assert [charge.event for charge in log.charges()] == [budget]
    assert log.total(1e-5)[Relation.ADD_OR_REMOVE_ONE] == epsilon(budget, 1e-5)
