"""What docs/budgets.md says of runs that stop by what they released: exact counts of every path, and the filter beside them."""

from __future__ import annotations

import numpy as np
import pytest

from dperm.privacy import Gaussian, PoissonSampled, SelfComposed
from dperm.release.ledger import GdpFilter, RenyiFilter
from helpers.stopping import delta_of_adaptive_budget, delta_of_steps, delta_of_stopped_run, epsilon_of_steps

DELTA = 1e-5


def test_the_number_of_steps_taken_has_no_epsilon_of_its_own() -> None:
    """1,000 steps of ±0.1: whoever stops and states the ε of the steps taken is off by a factor of 15 in δ."""
    simple, best = delta_of_stopped_run(0.1, 1000, DELTA)
    assert simple / DELTA == pytest.approx(1.92, abs=0.005)
    assert best / DELTA == pytest.approx(15.2, abs=0.05)
    assert delta_of_stopped_run(0.1, 1, DELTA) == pytest.approx((DELTA, DELTA), rel=1e-4)  # nothing to choose
    assert delta_of_steps(0.1, 1000, epsilon_of_steps(0.1, 1000, DELTA)) <= DELTA  # of a fixed number it is right


def test_exact_composition_of_each_path_holds_no_budget() -> None:
    """Every path is within (2, 1e-5) by the exact accountant; their choice is not."""
    assert delta_of_adaptive_budget(0.1, 1e-6, 2.0, DELTA) / DELTA == pytest.approx(1.81, abs=0.005)
    assert delta_of_adaptive_budget(0.1, DELTA, 2.0, DELTA) / DELTA < 2.0  # one leak takes all: then δs add up at most


def test_a_filter_holds_the_same_choices() -> None:
    """By the sum of divergences at one order whatever stops or goes on keeps δ: the exact count over all paths."""
    size, order, epsilon = 0.1, 12.0, 2.0
    p = np.exp(size) / (1 + np.exp(size))
    each = np.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
    rule = RenyiFilter.of(epsilon, DELTA, order=order, mass=0.0)
    steps = int(rule.divergence / each)
    losses = size * np.arange(-steps - 1, steps + 2, dtype=float)
    value = -np.expm1(np.minimum(epsilon - losses, 0.0))
    for _ in range(steps):  # the best rule of all that stop or go on
        value = np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), p * np.roll(value, -1) + (1 - p) * np.roll(value, 1))
    assert steps > 20 and value[steps + 1] <= DELTA


def test_a_change_of_order_afterwards_is_no_bound() -> None:
    """The least ε over orders, of the steps taken, is below the ε of the order that was fixed: stating it is the same mistake."""
    taken = SelfComposed(PoissonSampled(0.02, Gaussian(3.0)), 200)
    fixed = RenyiFilter.of(4.0, 1e-6)
    least = min(
        rule.epsilon_of(rule.cost(taken)) for rule in (RenyiFilter.of(4.0, 1e-6, order=order) for order in (8.0, 16.0, 32.0))
    )
    assert least < 0.7 * fixed.epsilon_of(fixed.cost(taken))


@pytest.mark.parametrize("rule", [RenyiFilter.of(4.0, 1e-6), GdpFilter.of(4.0, 1e-6)], ids=["renyi", "gdp"])
def test_what_is_given_back_and_what_is_kept_are_the_whole(rule: RenyiFilter | GdpFilter) -> None:
    for event in (Gaussian(9.0), *([PoissonSampled(0.02, Gaussian(3.0))] if isinstance(rule, RenyiFilter) else [])):
        whole = rule.cost(SelfComposed(event, 100))
        for taken in (1, 37, 99):
            back, kept = rule.given_back(SelfComposed(event, 100 - taken)), rule.cost(SelfComposed(event, taken))
            for kind, amount in whole.items():
                left = amount - back.get(kind, 0.0)
                assert kept[kind] <= left <= kept[kind] + 1e-9 * amount


def test_the_cost_of_sampled_steps_together_is_no_sum() -> None:
    """Why a GDP filter gives back nothing for them: 1,000 steps together have less μ² than a hundred times that of ten."""
    rule, step = GdpFilter.of(4.0, 1e-6), PoissonSampled(0.02, Gaussian(3.0))
    one, many = rule.cost(SelfComposed(step, 10)), rule.cost(SelfComposed(step, 1000))
    assert 100 * one["mu_squared"] > 1.5 * many["mu_squared"]
