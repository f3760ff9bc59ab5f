"""Item 22: parallel composition, against closed forms and brute force over small mechanisms."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from dperm.privacy import (
    ApproximateDP,
    Certificate,
    Composed,
    Disjoint,
    ExponentialMechanism,
    Gaussian,
    HiddenIterates,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomAllocation,
    RandomStop,
    Relation,
    SampledWithoutReplacement,
    SelfComposed,
    Unsupported,
    UnsupportedEventError,
    delta,
    epsilon,
)
from dperm.privacy.accountants.accounting import largest_profile
from dperm.privacy.accountants.budget_costs import divergence as divergence_of
from dperm.privacy.accountants.budget_costs import gdp_bounds
from dperm.privacy.accountants.pld import PrivacyLossDistribution
from dperm.privacy.accountants.rdp import ORDERS, rdp
from dperm.privacy.events import Event, alternatives, claims_of, event_from_dict, leaves, released_leaves
from dperm.release import Channel, GaussianNoise, UnpaidReleaseError

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE
EPSILONS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)


def gaussian(mu: float, eps: float) -> float:
    """δ(ε) of N(0, 1) against N(μ, 1) (Balle & Wang 2018, Theorem 8)."""
    return float(ndtr(mu / 2 - eps / mu) - math.exp(eps) * ndtr(-mu / 2 - eps / mu))


def response(eps: float) -> tuple[np.ndarray, np.ndarray]:
    """The two distributions of randomised response."""
    p = np.array([math.exp(eps), 1.0]) / (1 + math.exp(eps))
    return p, p[::-1]


def divergence(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return float(np.maximum(p - math.exp(eps) * q, 0).sum())


def product(*parts: np.ndarray) -> np.ndarray:
    return np.array([math.prod(each) for each in itertools.product(*parts)])


@pytest.mark.parametrize("eps", EPSILONS)
def test_the_largest_at_each_epsilon_by_itself(eps: float) -> None:
    """A part of pure noise is worst at some ε, one of Gaussian noise at others: no one part is."""
    parts = (PureDP(1.0), Gaussian(1.5))
    p, q = response(1.0)
    expected = max(divergence(p, q, eps), gaussian(1 / 1.5, eps))
    assert delta(Disjoint(parts), eps) == pytest.approx(expected, rel=1e-3, abs=1e-12)
    assert delta(Disjoint(parts), eps) >= expected * (1 - 1e-9)


def test_each_part_is_the_worst_somewhere() -> None:
    parts = (PureDP(1.0), Gaussian(1.5))
    worst = {max(parts, key=lambda part: delta(part, eps)) for eps in EPSILONS}
    assert worst == set(parts)
    assert epsilon(Disjoint(parts), 1e-6) == epsilon(Gaussian(1.5), 1e-6)
    assert epsilon(Disjoint((PureDP(1.0), PureDP(2.0), PureDP(0.5))), 0.0) == 2.0


@pytest.mark.parametrize("eps", EPSILONS)
def test_with_other_releases_composed_per_part_and_then_the_largest(eps: float) -> None:
    """The largest profile of the parts, composed, is more: the parts' worst ε are not the same."""
    parts, other = (PureDP(1.0), Gaussian(1.5)), PureDP(0.7)
    event = Composed((Disjoint(parts), other))
    pure = divergence(product(response(1.0)[0], response(0.7)[0]), product(response(1.0)[1], response(0.7)[1]), eps)
    p, q = response(0.7)
    losses = np.log(p / q)
    mixed = sum(weight * _gaussian_at(1 / 1.5, eps - loss) for weight, loss in zip(p, losses, strict=True))
    expected = max(pure, float(mixed))
    assert expected * (1 - 1e-9) <= delta(event, eps) <= expected * (1 + 1e-3) + 1e-12
    looser = PrivacyLossDistribution(Composed((largest_profile(Disjoint(parts)), other))).delta(eps)
    assert looser >= expected * (1 - 1e-9)


def _gaussian_at(mu: float, eps: float) -> float:
    """The same, also below ε = 0: δ(−ε) = 1 − e^{−ε}(1 − δ(ε)) of a pair that is its own mirror image."""
    return gaussian(mu, eps) if eps >= 0 else 1 - math.exp(eps) * (1 - gaussian(mu, -eps))


def test_exact_gaussians() -> None:
    event = Composed((Disjoint((Gaussian(1.0), Gaussian(2.0))), Gaussian(3.0)))
    assert epsilon(event, 1e-5) == epsilon(Composed((Gaussian(1.0), Gaussian(3.0))), 1e-5)
    assert epsilon(SelfComposed(Disjoint((Gaussian(1.0), Gaussian(2.0))), 5), 1e-5) == epsilon(
        SelfComposed(Gaussian(1.0), 5), 1e-5
    )


def test_two_splits_may_differ() -> None:
    """A record in part 0 of one split may be in part 1 of another: neither part is the worst of both alone."""
    first, second = Disjoint((PureDP(1.0), PureDP(0.2))), Disjoint((PureDP(0.3), PureDP(1.2)))
    assert epsilon(Composed((first, second)), 0.0) == pytest.approx(2.2)
    p = product(response(1.0)[0], response(1.2)[0])
    q = product(response(1.0)[1], response(1.2)[1])
    for eps in EPSILONS:
        expected = divergence(p, q, eps)
        assert expected * (1 - 1e-9) <= delta(Composed((first, second)), eps) <= expected * (1 + 1e-3) + 1e-12


@pytest.mark.parametrize("eps", EPSILONS)
def test_replace_one_is_the_larger_of_a_replacement_and_a_move(eps: float) -> None:
    """Gaussian sums: within part i a record moves 2/σ, between parts 1/σ in each; a move can be the worse one, and so can a
    replacement."""
    for sums, moves in (((2.0, 3.0), (2.2, 2.0)), ((1.0, 4.0), (3.0, 8.0))):
        event = Disjoint(tuple(Gaussian(noise, REPLACE) for noise in sums), tuple(map(Gaussian, moves)))
        mu = max(1 / min(sums), math.hypot(*(1 / noise for noise in moves)))
        assert delta(event, eps) == pytest.approx(gaussian(mu, eps), rel=1e-9, abs=1e-15)
        assert event.relation is REPLACE


@pytest.mark.parametrize("eps", [0.0, 0.05, 0.2, 0.5, 1.0])
def test_a_move_removes_here_and_adds_there(eps: float) -> None:
    """Poisson-sampled Gaussians cost other things when a record is added than when it is removed. Against numerical integration
    over both outputs, in both directions."""
    rates, noises = (0.05, 0.4), (0.6, 1.0)
    moved = tuple(PoissonSampled(rate, Gaussian(noise)) for rate, noise in zip(rates, noises, strict=True))
    silent = tuple(Gaussian(1e6, REPLACE) for _ in moved)
    x = [np.linspace(-12 * noise, 12 * noise + 1, 3001) for noise in noises]
    densities = []
    for grid, rate, noise in zip(x, rates, noises, strict=True):
        without = np.exp(-(grid**2) / (2 * noise**2))
        with_record = (1 - rate) * without + rate * np.exp(-((grid - 1) ** 2) / (2 * noise**2))
        densities.append([(each / without.sum()) for each in (without, with_record)])
    (without_0, with_0), (without_1, with_1) = densities
    before, after = np.outer(with_0, without_1), np.outer(without_0, with_1)
    expected = max(divergence(before, after, eps), divergence(after, before, eps))
    assert expected * (1 - 1e-6) <= delta(Disjoint(silent, moved), eps) <= expected * (1 + 2e-3) + 1e-9
    same_way = Composed(moved)  # both removed, or both added, which no move does
    assert abs(delta(same_way, eps) - expected) > 1e-4 or eps == 0.0


def test_a_unit_may_leave_the_only_part() -> None:
    event = Disjoint((Gaussian(5.0, REPLACE),), (Gaussian(2.0),))
    assert epsilon(event, 1e-5) == epsilon(Gaussian(2.0), 1e-5)


@pytest.mark.parametrize(
    "part",
    [
        SampledWithoutReplacement(0.1, Gaussian(2.0, REPLACE)),
        HiddenIterates(2.0, 20, 10, 1.0, 50.0, 1e-9),
        SelfComposed(RandomStop(2.0, 400, 0.999, 1e-9), 2),
    ],
)
def test_replace_one_refuses_parts_that_need_a_public_number(part: Event) -> None:
    with pytest.raises(ValueError, match="needs it to be public"):
        Disjoint((part, Gaussian(2.0, REPLACE)), (Gaussian(1.0), Gaussian(1.0)))


def test_choices_have_two_sides_by_their_curves() -> None:
    event = Disjoint((Gaussian(1e3, REPLACE),) * 2, (ExponentialMechanism(0.2), ExponentialMechanism(0.3)))
    together = epsilon(Composed((ExponentialMechanism(0.2), ExponentialMechanism(0.3))), 1e-5)
    assert epsilon(event, 1e-5) == pytest.approx(together, rel=1e-3)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="A part whose number of records is public has none"):
        Disjoint((Gaussian(2.0, REPLACE), Gaussian(2.0, REPLACE)))
    with pytest.raises(ValueError, match="no `moved` under add/remove"):
        Disjoint((Gaussian(2.0),), (Gaussian(2.0),))
    with pytest.raises(ValueError, match="under add/remove"):
        Disjoint((Gaussian(2.0, REPLACE),), (Gaussian(2.0, REPLACE),))
    with pytest.raises(ValueError, match="one relation"):
        Disjoint((Gaussian(2.0, REPLACE), Gaussian(2.0)))
    with pytest.raises(ValueError, match="at least one part"):
        Disjoint(())
    with pytest.raises(ValueError, match="not split any further"):
        Disjoint((Disjoint((Gaussian(1.0),)),))
    with pytest.raises(ValueError, match="joins or leaves"):
        Disjoint((Gaussian(2.0, REPLACE),), (Composed(()),))
    with pytest.raises(TypeError, match="Event"):
        Disjoint((1.0,))  # type: ignore[arg-type]


def test_an_empty_part_is_a_part() -> None:
    assert epsilon(Disjoint((Composed(()), Gaussian(2.0))), 1e-5) == epsilon(Gaussian(2.0), 1e-5)


@pytest.mark.parametrize(
    "event",
    [
        Disjoint((Gaussian(1.0), Composed((PureDP(1.0), SelfComposed(PoissonSampled(0.1, Gaussian(2.0)), 10))))),
        Disjoint((Gaussian(1.0, REPLACE), Laplace(2.0, REPLACE)), (Gaussian(2.0), Laplace(4.0))),
        Composed((Gaussian(1.0), SelfComposed(Disjoint((Gaussian(1.0), PureDP(1.0))), 3))),
    ],
)
def test_events_go_to_json_and_back(event: Event) -> None:
    assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event
    issued = Certificate.issue(mechanism="m", event=event, delta=1e-5)
    issued.verify()
    assert Certificate.from_json(issued.to_json()) == issued


def test_no_file_holds_one_side_of_a_move() -> None:
    event = Disjoint((Gaussian(1.0, REPLACE),) * 2, (PoissonSampled(0.1, Gaussian(1.0)),) * 2)
    sides = [leaf for met in alternatives(event) for leaf in met if type(leaf).__name__ == "Side"]
    assert sides
    with pytest.raises(ValueError, match="Expected an event named"):
        event_from_dict(sides[0].to_dict())


def test_renyi_curves_are_the_largest_at_each_order() -> None:
    parts = (PureDP(1.0), Gaussian(1.2))
    curve = rdp(Composed((Disjoint(parts), Gaussian(4.0))), ORDERS)
    each = [rdp(Composed((part, Gaussian(4.0))), ORDERS) for part in parts]
    assert np.allclose(curve, np.maximum(*each), rtol=1e-12)
    assert (each[0] > each[1]).any()
    assert (each[0] < each[1]).any()


@pytest.mark.parametrize("count", [1, 3, 400])
def test_many_splits_stay_bounded(count: int) -> None:
    """Beyond what can be gone through the largest profile stands for the parts: never below any choice of them."""
    event = SelfComposed(Disjoint((PureDP(0.1), Gaussian(10.0), Gaussian(12.0))), count)
    bound = epsilon(event, 1e-5)
    for alone in (SelfComposed(PureDP(0.1), count), SelfComposed(Gaussian(10.0), count)):
        assert bound >= epsilon(alone, 1e-5) * (1 - 1e-6)
    if count == 3:
        mixed = Composed((SelfComposed(PureDP(0.1), 2), Gaussian(10.0)))
        assert bound >= epsilon(mixed, 1e-5) * (1 - 1e-6)


def test_largest_profile_is_above_each_part_and_near_the_largest() -> None:
    event = Disjoint((PureDP(1.0), Gaussian(1.5), ApproximateDP(0.5, 1e-3)))
    alone = PrivacyLossDistribution(event)
    for eps in EPSILONS:
        exact = max(delta(part, eps) for part in event.parts)
        assert exact * (1 - 1e-6) <= alone.delta(eps) <= exact * 1.05 + 1e-12


def test_claims_and_refusals_of_parts_show() -> None:
    assert claims_of(Disjoint((Gaussian(1.0), Unsupported("so they say")))) == ["so they say"]
    claimed = Certificate.issue(mechanism="m", event=Disjoint((Gaussian(1.0), Unsupported("so they say"))), delta=1e-5)
    assert claimed.status == "claimed"
    with pytest.raises(UnsupportedEventError):
        epsilon(Disjoint((Gaussian(1.0), PoissonSampled(0.1, PureDP(1.0)))), 1e-5)


def test_the_channel_opens_a_door_for_each_part() -> None:
    event = Disjoint((Gaussian(1.0), Gaussian(2.0)))
    channel = Channel.open(0)
    channel.charge(Composed((Gaussian(3.0), event)), "test")
    query, members = np.zeros(2), [np.array([0, 2]), np.array([1])]
    channel.release(query, GaussianNoise(1.0, 3.0))
    for noise in (1.0, 2.0):  # what parts pay for leaves by their own doors
        with pytest.raises(UnpaidReleaseError):
            channel.release(query, GaussianNoise(1.0, noise))
    first, second = channel.split(event, members)
    with pytest.raises(UnpaidReleaseError):
        first.release(query, GaussianNoise(1.0, 2.0))
    first.release(query, GaussianNoise(1.0, 1.0))
    second.release(query, GaussianNoise(1.0, 2.0))
    for door, noise in ((first, 1.0), (second, 2.0)):
        with pytest.raises(UnpaidReleaseError):
            door.release(query, GaussianNoise(1.0, noise))
    with pytest.raises(UnpaidReleaseError, match="not paid for"):
        channel.split(event, members)
    with pytest.raises(UnpaidReleaseError, match="charged once"):
        first.charge(Gaussian(1.0), "again")


def test_leaves_of_all_that_runs() -> None:
    event = SelfComposed(Composed((Disjoint((Gaussian(1.0), SelfComposed(Gaussian(2.0), 3))), Gaussian(4.0))), 2)
    assert released_leaves(event) == {Gaussian(1.0): 2, Gaussian(2.0): 6, Gaussian(4.0): 2}
    assert len(leaves(event)) == 2


def test_separate_certificates_are_put_together_by_an_assumption() -> None:
    issued = [Certificate.issue(mechanism=f"ward {n}", event=Gaussian(noise), delta=1e-5) for n, noise in enumerate((1.0, 2.0))]
    whole = Certificate.of_disjoint(issued)
    whole.verify()
    assert whole.epsilon == epsilon(Gaussian(1.0), 1e-5) == issued[0].epsilon
    (assumed,) = [item for item in whole.assumptions if item.key == "disjoint"]
    assert assumed.responsible == "caller"
    assert "dperm did not split" in assumed.checked
    assert Certificate.from_json(whole.to_json()) == whole
    beside = Certificate.of_all([Certificate.issue(mechanism="ranges", event=Gaussian(5.0), delta=1e-5), whole])
    assert beside.epsilon == epsilon(Composed((Gaussian(5.0), Gaussian(1.0))), 1e-5)
    with pytest.raises(ValueError, match="records, others of persons"):
        Certificate.of_disjoint([issued[0], replace(issued[1], public_facts={"max_rows_per_unit": 2})])
    with pytest.raises(ValueError, match="moved"):
        Certificate.of_disjoint([Certificate.issue(mechanism="m", event=Gaussian(1.0, REPLACE), delta=1e-5)])


def test_allocation_has_its_directions_in_a_move() -> None:
    """Any add/remove event will do, in either direction."""
    moved = (RandomAllocation(8, Gaussian(1.0)), PoissonSampled(0.2, Gaussian(1.0)))
    event = Disjoint((Gaussian(1e3, REPLACE),) * 2, moved)
    assert max(epsilon(each, 1e-4) for each in moved) <= epsilon(event, 1e-4)
    assert epsilon(event, 1e-4) <= sum(epsilon(each, 5e-5) for each in moved)


def test_budgets_take_what_the_dearest_part_costs() -> None:
    """Rényi divergence at one order, and Gaussian privacy: those of the worst part, and no more."""
    parts = (Gaussian(2.0), SelfComposed(PoissonSampled(0.1, Gaussian(1.0)), 20), PureDP(0.3))
    event = Disjoint(parts)
    assert divergence_of(event, 8.0).rdp == pytest.approx(max(divergence_of(part, 8.0).rdp for part in parts), rel=1e-9)
    largest = max(gdp_bounds(part, 1e-6)[0].mu_squared for part in parts)
    assert largest * (1 - 1e-6) <= gdp_bounds(event, 1e-6)[0].mu_squared <= largest * 1.05
