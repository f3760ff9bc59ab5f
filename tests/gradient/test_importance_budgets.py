"""What a budget of DPIS leaves to each of its releases: shares, places and rates, against what they are to add up to."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dperm.gradient import SGD, AdaptiveNorm, ImportancePlan
from dperm.gradient.importance import sum_noise_by_rule
from dperm.gradient.importance.spending import ByProfile
from dperm.gradient.policy import pays_for
from dperm.gradient.recipes import dpis
from dperm.privacy import (
    BudgetExceeded,
    Composed,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    PrivacyProfile,
    ProfileFilter,
    RdpFilter,
    Relation,
    SelfComposed,
    epsilon,
)
from dperm.privacy.accountants.privacy_filters import excess
from dperm.privacy.events import Event, leaves

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
ORDER, BUDGET = 8.0, 0.2
PROFILE = PrivacyProfile((0.0, 0.5, 1.0), (0.05, 1e-3, 1e-6))


def renyi(**changes: Any) -> ImportancePlan:
    settings = {"expected_batch_size": 40, "epochs": 3, "clipping_norm": 0.3, "update": SGD(0.5), "public_size": 400} | changes
    return ImportancePlan(FilteredRdp(ORDER, BUDGET), **settings)


def profiled(**changes: Any) -> ImportancePlan:
    """Three epochs of four steps."""
    settings = {"expected_batch_size": 10, "epochs": 3, "clipping_norm": 0.3, "public_size": 40, "norm_noise": 5.0} | changes
    return ImportancePlan(PROFILE, update=SGD(0.5), **settings)


def share(noise: float, times: int = 1) -> float:
    """Of the budget, what so many Gaussians take: α/(2σ²) each at the order α (Mironov 2017, Proposition 7)."""
    return times * ORDER / (2 * noise**2) / BUDGET


# A Rényi filter


@pytest.mark.parametrize("size", [None, 400])
@pytest.mark.parametrize(("adaptive", "releases"), [(None, 3), (AdaptiveNorm(), 5)])
def test_sums_and_sizes_whose_noise_nobody_stated_take_their_shares(
    adaptive: AdaptiveNorm | None, releases: int, size: int | None
) -> None:
    made = renyi(adaptive=adaptive, public_size=size)
    assert share(made.sum_noise, releases) == pytest.approx(0.05)
    assert share(made.spending.size_noise) == pytest.approx(0.01)


def test_stated_noise_is_kept() -> None:
    made = renyi(public_size=None, norm_noise=123.0, size_noise=77.0)
    assert (made.sum_noise, made.spending.size_noise) == (123.0, 77.0)
    assert made.spending.norm_noise(RdpFilter(FilteredRdp(ORDER, BUDGET))) == 123.0


@pytest.mark.parametrize(("releases", "mu"), [(1, 0.5), (7, 0.02), (20, 3.0), (1, 1e4)])
def test_sums_take_a_twentieth_of_a_gaussian_and_less_where_that_still_says_enough(releases: int, mu: float) -> None:
    """Gaussians compose by their μ², and σ_K = 0.5 % of N is enough."""
    for size in (None, 10, 10**4, 10**7):
        noise = sum_noise_by_rule(releases, mu, size)
        taken, enough = releases / noise**2 / mu**2, noise / (0.005 * size) if size else 0.0
        assert taken <= 0.05 * (1 + 1e-12) and enough >= (1 - 1e-12 if size else 0.0)
        assert taken == pytest.approx(0.05) or enough == pytest.approx(1.0)


def test_a_filter_leaves_a_tenth_of_its_budget_to_gradients() -> None:
    """Three K, and N where it is released, may take just below 90 %."""
    most = (3 * ORDER / 2 / (0.9 * BUDGET)) ** 0.5  # the noise at which three sums take 90 %
    renyi(norm_noise=most * 1.001)
    renyi(norm_noise=most * 1.001, size_noise=None)
    for changes in ({"norm_noise": most * 0.999}, {"norm_noise": most * 1.001, "public_size": None}):
        with pytest.raises(ValueError, match="cannot pay for N and K"):
            renyi(**changes)
    renyi(norm_noise=most * 1.02, public_size=None)  # 86.5 % and 1 %


def test_only_a_filter_of_this_order_and_budget_pays_for_the_run() -> None:
    made = renyi()
    for event, pays in (
        (FilteredRdp(ORDER, BUDGET), True),
        (FilteredRdp(ORDER, BUDGET * (1 + 1e-12)), True),  # computed on another machine
        (FilteredRdp(ORDER, BUDGET / 2), False),
        (FilteredRdp(ORDER, BUDGET * (1 + 1e-6)), False),
        (FilteredRdp(ORDER + 1, BUDGET), False),
        (FilteredRdp(ORDER, BUDGET, REPLACE), False),
        (Gaussian(10.0), False),
    ):
        assert pays_for(made, event, ADD, 0) == pays, event
    half = made.steps // 2
    assert pays_for(made, FilteredRdp(ORDER, BUDGET / 2), ADD, half)  # its share, for the rest of a run
    with pytest.raises(ValueError, match="DPIS has no other"):
        pays_for(made, FilteredRdp(ORDER, BUDGET), REPLACE, 0)


def test_steps_are_charged_their_share_of_a_filter() -> None:
    made = renyi()
    assert made.event(ADD) == made.event(ADD, 0, made.steps) == FilteredRdp(ORDER, BUDGET)
    thirds: list[Any] = [made.event(ADD, *ends) for ends in itertools.pairwise([0, 10, 20, 30])]
    assert [part.rdp_budget for part in thirds] == pytest.approx([BUDGET / 3] * 3) and made.steps == 30
    assert leaves(made.event(ADD, 8, 8)) == leaves(made.event(ADD, 8, 5)) == {}


def test_an_epoch_and_those_to_come_take_what_is_left_of_a_filter() -> None:
    """Divergences added up by the closed form of a sampled Gaussian's at a whole order (Mironov, Talwar, Zhang 2019): this epoch
    at its rate, those to come at the same σ_G = σ·b/(N·rate), and all K to come."""
    made = renyi(adaptive=AdaptiveNorm(), norm_noise=60.0, worst_case_share=0.4)  # epochs 0 and 1 look at the worst case

    def cost(rate: float, noise: float) -> float:
        terms = np.arange(int(ORDER) + 1)
        weights = np.array([float(np.prod(ORDER - np.arange(k)) / np.prod(np.arange(1, k + 1))) for k in terms])
        moments = weights * (1 - rate) ** (ORDER - terms) * rate**terms * np.exp(terms * (terms - 1) / (2 * noise**2))
        return float(np.log(moments.sum()) / (ORDER - 1))

    for epoch, steps, rate, left in ((0, 10, 0.2, BUDGET), (1, 10, 0.4, BUDGET), (1, 3, 0.1, 0.1), (2, 10, 0.5, 0.07)):
        held = RdpFilter(FilteredRdp(ORDER, BUDGET))
        held.know({f"order {ORDER:g}": BUDGET - left})
        noise = made.noise_multiplier(held, epoch, steps, rate)
        later, sums = 2 - epoch, 2 * (2 - epoch)
        taken = steps * cost(rate, noise) + share(60.0, sums) * BUDGET
        taken += later * 10 * cost(0.1, noise * 0.1 / rate)
        assert left * (1 - 1e-6) < taken < left
    hopeful = replace(made, worst_case_share=0.0)
    noise = hopeful.noise_multiplier(RdpFilter(FilteredRdp(ORDER, BUDGET)), 1, 4, 0.3)
    assert 14 * cost(0.3, noise) + share(60.0, 2) * BUDGET == pytest.approx(BUDGET, rel=1e-6)


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_filter_that_is_spent_pays_for_no_step(epoch: int) -> None:
    made = renyi()
    held = RdpFilter(FilteredRdp(ORDER, BUDGET))
    held.know({f"order {ORDER:g}": BUDGET})
    with pytest.raises(BudgetExceeded, match="Nothing is left"):
        made.noise_multiplier(held, epoch, 10, 0.2)


def test_four_fifths_of_the_epochs_look_at_the_worst_case_unless_told_otherwise() -> None:
    held = RdpFilter(FilteredRdp(ORDER, BUDGET))
    noise = [renyi(epochs=10).noise_multiplier(held, epoch, 10, 0.4) for epoch in (7, 8)]
    for share_of_epochs, alike in ((0.8, [True, True]), (0.7, [False, True]), (0.9, [True, False])):
        other = renyi(epochs=10, worst_case_share=share_of_epochs)
        assert [other.noise_multiplier(held, epoch, 10, 0.4) == at for epoch, at in zip((7, 8), noise, strict=True)] == alike


# Privacy profiles


@pytest.mark.parametrize(("adaptive", "earlier"), [(None, None), (AdaptiveNorm(), Gaussian(4.0))])
def test_plans_of_dpis_spend_their_budget_and_no_more(adaptive: AdaptiveNorm | None, earlier: Event | None) -> None:
    """Together with all K and K*, and with what was released before."""
    made = dpis(
        epsilon=2.0, delta=1e-5, public_size=400, expected_batch_size=40, epochs=3, clipping_norm=0.3, norm_noise=12.0,
        adaptive=adaptive, earlier=earlier,
    )  # fmt: skip
    whole = Composed((made.event(ADD), *([earlier] if earlier else [])))
    assert 1.995 < epsilon(whole, 1e-5) <= 2.0
    assert {leaf: count for leaf, count in leaves(made.event(ADD)).items() if isinstance(leaf, Gaussian)} == {
        Gaussian(12.0): 5 if adaptive else 3
    }


@pytest.mark.parametrize("adaptive", [None, AdaptiveNorm()])
def test_parts_of_a_run_by_profiles_cost_what_the_whole_does(adaptive: AdaptiveNorm | None) -> None:
    made = profiled(adaptive=adaptive)
    whole = leaves(made.event(ADD))
    assert whole == {Gaussian(5.0): 3 + (2 if adaptive else 0), PROFILE: 3}
    for cuts in ([4], [4, 8], [0, 8], [8, 12]):
        parts = [leaves(made.event(ADD, *ends)) for ends in itertools.pairwise([0, *cuts, 12])]
        assert sum(parts, Counter[Event]()) == whole
    assert made.event(ADD) == made.budgeted and leaves(made.event(ADD, 8)) == leaves(made.event(ADD, 8, 12))
    assert leaves(made.event(ADD, 5, 5)) == leaves(made.event(ADD, 8, 8)) == leaves(made.event(ADD, 8, 5)) == {}


def test_an_epoch_that_is_begun_is_paid_for_as_a_whole_by_profiles() -> None:
    """Each with its K, and all but the first with a K*, where the norm adapts."""
    made = profiled(adaptive=AdaptiveNorm())
    for start, stop, epochs, sums in ((0, 1, 1, 1), (0, 5, 2, 3), (3, 4, 1, 1), (3, 5, 2, 3), (4, 8, 1, 2), (6, 7, 1, 2)):
        assert leaves(made.event(ADD, start, stop)) == {PROFILE: epochs, Gaussian(5.0): sums}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"public_size": None}, "public_size and norm_noise"),
        ({"norm_noise": None}, "public_size and norm_noise"),
        ({"size_noise": 5.0}, "no size_noise and no worst_case_share"),
        ({"worst_case_share": 0.5}, "no size_noise and no worst_case_share"),
    ],
)
def test_a_profile_needs_a_size_and_a_noise_and_refuses_a_filters_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        profiled(**changes)


def test_a_charge_of_other_places_pays_for_no_run_by_profiles() -> None:
    made = profiled()
    event = made.event(ADD)
    assert pays_for(made, event, ADD, 0) and pays_for(made, profiled(norm_noise=5.0 * (1 + 1e-9)).event(ADD), ADD, 0)
    more = Composed((event, SelfComposed(PoissonSampled(0.1, Gaussian(3.0)), 1)))
    for other in (more, profiled(epochs=4).event(ADD), made.event(ADD, 4), profiled(norm_noise=5.1).event(ADD), PROFILE):
        assert not pays_for(made, other, ADD, 0), other
    with pytest.raises(ValueError, match="DPIS has no other"):
        pays_for(made, event, REPLACE, 0)


def test_rates_by_profiles_are_the_next_smaller_of_a_grid() -> None:
    """A rate that is on it stays, though it was computed; none is more than 2 % smaller than what was asked for."""
    spending: Any = profiled().spending
    assert isinstance(spending, ByProfile)
    least = 0.25
    assert spending.rate(least) == least
    for wanted in least * np.geomspace(1.0, 3.2, 200):
        rate = spending.rate(float(wanted))
        assert wanted / 1.02 * (1 - 1e-12) < rate <= wanted * (1 + 1e-9)
        assert spending.rate(rate) == rate == spending.rate(rate * (1 + 1e-13)) == spending.rate(rate * (1 - 1e-13))


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.25), (4, 0.25), (4, 0.7), (200, 0.01)])
def test_an_epoch_has_the_least_noise_that_stays_below_its_profile(steps: int, rate: float) -> None:
    made = profiled()
    noise = made.noise_multiplier(ProfileFilter(made.event(ADD)), 0, steps, rate)
    assert -1e-3 < excess(SelfComposed(PoissonSampled(rate, Gaussian(noise)), steps), PROFILE) <= 0


def test_a_run_by_profiles_has_spent_nothing_before_its_first_release() -> None:
    made = profiled()
    held = ProfileFilter(made.event(ADD))
    assert made.spending.spent(held) is None
    held.charge(Gaussian(5.0))
    assert leaves(made.spending.spent(held) or Composed(())) == {Gaussian(5.0): 1}


def test_rates_follow_k_within_what_it_can_be() -> None:
    """bC/K̃ for K̃ up to N·C, and never above 0.8."""
    made = renyi()
    for released, rate in ((1e9, 0.1), (400 * 0.3, 0.1), (200 * 0.3, 0.2), (100 * 0.3, 0.4), (15.0, 0.8), (-1e9, 0.8)):
        assert made.draw_rate(released, 0.3) == pytest.approx(rate, rel=1e-12)
    assert made.draw_rate(100 * 0.6, 0.6) == pytest.approx(0.4)  # the norm of another epoch
    assert made.draw_rate(1e9, 0.6) == pytest.approx(0.1)


def test_a_released_number_of_records_takes_no_stated_ones_place() -> None:
    made = renyi(public_size=None)
    sized = made.with_released_size(200)
    assert (sized.public_size, sized.steps, sized.spending.size_noise) == (200, 15, made.spending.size_noise)
    assert sized.with_released_size(300) == sized


def test_an_unknown_number_of_records_makes_no_rate() -> None:
    assert renyi(public_size=None).rate == 0.0
    assert renyi().rate == 1 / 10
