"""What a search plans for each try stays within its budget; and what a number of tries may be."""

from __future__ import annotations

import math

import pytest

from dperm.privacy import (
    ApproximateDP,
    BestOfTries,
    Gaussian,
    PureDP,
    Relation,
    budget_of_a_try,
    delta,
    epsilon,
    selection_epsilon,
)
from dperm.privacy.accountants.gaussian import gaussian_delta
from dperm.privacy.adaptive.private_selection import share_within
from dperm.privacy.events import Event


@pytest.mark.parametrize("budget", [0.3, 4.0])
@pytest.mark.parametrize("dearer", [0.02, 0.5, 1.0, 1.01, 7.0, 300.0])
def test_a_share_of_a_budget_keeps_the_whole_within_it(budget: float, dearer: float) -> None:
    """Searches that cost more, or less, than was planned at first: at most the budget, and at most a fiftieth less."""
    planned: list[float] = []

    def plan(each: float) -> float:
        planned.append(each)
        return each

    found = share_within(budget, 1e-6, budget, plan, lambda each: PureDP(dearer * each))
    assert 0.98 * budget <= epsilon(PureDP(dearer * found), 1e-6) <= budget
    assert planned[0] == budget
    assert len(planned) <= 6


def test_what_costs_more_than_the_budget_whatever_is_planned_is_refused() -> None:
    def always(_: float) -> Event:
        return PureDP(2.0)

    for budget in (1.0, 1.999, 2.05):  # too dear; and so cheap that it would waste more than a fiftieth
        with pytest.raises(ValueError, match="Found no budget"):
            share_within(budget, 1e-6, budget, lambda each: each, always)
    assert share_within(2.01, 1e-6, 2.01, lambda each: each, always) == 2.01


def test_a_try_s_budget_is_one_gaussian_s_and_the_best_of_all_costs_the_whole() -> None:
    mean, target, at = 3.0, 0.4, 1e-5
    each, share = budget_of_a_try(target, at, mean, "geometric", Relation.REPLACE_ONE)
    assert share == at / mean
    low, high = 1e-2, 1e4  # the noise whose δ at `each` is `share`
    while high > low * (1 + 1e-9):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gaussian_delta(middle, each) > share else (low, middle)
    found = selection_epsilon(BestOfTries((Gaussian(high, Relation.REPLACE_ONE),), mean), at)
    assert 0.999 * target <= found <= target


def test_numbers_of_tries_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="Expected more than epsilon"):
        budget_of_a_try(1e-9, 1e-9, 1000.0)
    assert BestOfTries((Gaussian(1.0),), 600.0, "poisson").mean == 600.0
    with pytest.raises(ValueError, match="at most 600"):
        BestOfTries((Gaussian(1.0),), 600.1, "poisson")
    event = BestOfTries((PureDP(0.5),), 20.0)
    assert delta(event, 2000.0) < 1e-11  # e^2000 is no double
    assert selection_epsilon(BestOfTries((ApproximateDP(0.1, 1e-3),), 20.0), 1e-6) == math.inf  # its δ stays, at any ε
    assert selection_epsilon(event, 1e-10) <= 1.5 * (1 + 1e-3)
    assert 0.9999 < delta(BestOfTries((PureDP(30.0),), 20.0), 0.0) <= 1.0
