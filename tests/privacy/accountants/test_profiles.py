"""Privacy profiles as promises: what is held to one composes to no more than it does, whoever chooses what, and when."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dperm.gradient import Poisson
from dperm.privacy import (
    ApproximateDP,
    BudgetExceeded,
    Composed,
    Event,
    FilteredRdp,
    Gaussian,
    Laplace,
    PoissonSampled,
    PrivacyProfile,
    ProfileFilter,
    PureDP,
    Relation,
    SelfComposed,
    delta,
    epsilon,
    privacy_profile,
)
from dperm.privacy.accountants.privacy_filters import excess
from dperm.privacy.events import event_from_dict
from dperm.release import Channel, GaussianNoise, SpendLog, UnpaidReleaseError

EPOCH = SelfComposed(PoissonSampled(0.02, Gaussian(1.2)), 50)


def profile_of(*events: Event, smallest: float = 1e-9) -> PrivacyProfile:
    return privacy_profile(*events, smallest_delta=smallest)


# What a profile says


@pytest.mark.fast_cases("Gaussian", "Laplace", "PureDP")
@pytest.mark.parametrize(
    "event",
    [
        EPOCH,
        Gaussian(0.7),
        Laplace(3.0),
        PureDP(0.4),
        SelfComposed(PoissonSampled(0.3, Gaussian(8.0)), 3),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_profile_is_above_its_events_and_not_by_much(event: Event) -> None:
    profile = profile_of(event)
    assert event_from_dict(json.loads(json.dumps(profile.to_dict()))) == profile
    for point, value in zip(profile.epsilons, profile.deltas, strict=True):
        assert delta(event, point) <= value * (1 + 1e-3)
    for target in (1e-2, 1e-4, 1e-6, 1e-8):
        assert 0.999 * epsilon(event, target) <= epsilon(profile, target) <= 1.03 * epsilon(event, target) + 1e-4


def test_composed_profiles_cost_little_more_than_what_they_were_made_of() -> None:
    profile = profile_of(EPOCH)
    for count, most in ((5, 1.02), (20, 1.02)):
        exact = epsilon(SelfComposed(EPOCH, count), 1e-5)
        assert exact <= epsilon(SelfComposed(profile, count), 1e-5) <= most * exact


def test_the_envelope_of_several_events_is_above_each() -> None:
    other = SelfComposed(PoissonSampled(0.1, Gaussian(4.5)), 50)
    both = profile_of(EPOCH, other)
    assert excess(EPOCH, both) <= 0 and excess(other, both) <= 0
    assert max(excess(other, profile_of(EPOCH)), excess(EPOCH, profile_of(other))) > 0  # neither is above the other
    with pytest.raises(ValueError, match="same neighbours"):
        profile_of(Gaussian(1.0), Gaussian(1.0, Relation.REPLACE_ONE))
    with pytest.raises(ValueError, match="release something"):
        profile_of()


def test_one_point_is_an_approximate_promise() -> None:
    """Both say the same of a mechanism, so that they must compose alike."""
    for count, target in ((1, 1e-4), (7, 1e-5), (30, 1e-4)):
        one, other = PrivacyProfile((0.4,), (1e-7,)), ApproximateDP(0.4, 1e-7)
        assert epsilon(SelfComposed(one, count), target) == pytest.approx(epsilon(SelfComposed(other, count), target), rel=1e-6)


def test_points_above_the_hull_of_the_others_say_nothing() -> None:
    few = PrivacyProfile((0.1, 0.9), (0.05, 1e-4))
    more = PrivacyProfile((0.1, 0.5, 0.9), (0.05, 0.049, 1e-4))
    assert epsilon(SelfComposed(more, 5), 1e-2) == pytest.approx(epsilon(SelfComposed(few, 5), 1e-2), rel=1e-9)
    less = PrivacyProfile((0.1, 0.5, 0.9), (0.05, 0.001, 1e-4))
    assert epsilon(SelfComposed(less, 5), 1e-2) < 0.95 * epsilon(SelfComposed(few, 5), 1e-2)


FLAT = PrivacyProfile((1.0, 100.0), (1e-6, 1e-9))


def test_a_stated_point_costs_what_it_states() -> None:
    """On a grid, a loss of 1 lies between two points: ε was 79 at the δ where 1 is promised."""
    assert epsilon(FLAT, 1e-6) == 1.0 and delta(FLAT, 1.0) == 1e-6
    assert epsilon(FLAT, 1e-9) == 100.0 and delta(FLAT, 100.0) == delta(FLAT, 200.0) == 1e-9
    assert epsilon(FLAT, 0.99e-9) == math.inf
    profile = profile_of(EPOCH)
    for value, at in zip(profile.epsilons, profile.deltas, strict=True):
        assert epsilon(profile, at) <= value and delta(profile, value) <= at
    for count in (2, 3, 7):
        assert epsilon(SelfComposed(FLAT, count), count * 1e-6) == count
        assert delta(SelfComposed(FLAT, count), count) <= count * 1e-6
    both = Composed((FLAT, PrivacyProfile((0.5, 40.0), (1e-5, 1e-9)), ApproximateDP(0.2, 1e-8)))
    assert epsilon(both, 1.1011e-5) <= 1.7 * (1 + 1e-12)
    assert epsilon(both, 1.2e-6) <= 41.2 * (1 + 1e-12)


def supremum(profile: PrivacyProfile, value: float) -> float:
    """The largest δ(ε) of all pairs that keep to the points, by linear programming: over masses at losses that include the
    points', their mirror images' and ε."""
    from scipy.optimize import linprog

    losses = np.unique([0.0, value, -value, *profile.epsilons, *(-e for e in profile.epsilons)])
    ratios = np.exp(losses)
    # unknown: Q-masses at these likelihood ratios, the P-mass where Q has none, and the Q-mass where P has none
    objective = np.append(np.maximum(ratios - math.exp(value), 0), [1.0, 0.0])
    rows, bounds = [], []
    for e, d in zip(profile.epsilons, profile.deltas, strict=True):
        rows += [
            np.append(np.maximum(ratios - math.exp(e), 0), [1.0, 0.0]),
            np.append(np.maximum(1 - math.exp(e) * ratios, 0), [0.0, 1.0]),
        ]
        bounds += [d, d]
    sums = [np.append(ratios, [1.0, 0.0]), np.append(np.ones(len(ratios)), [0.0, 1.0])]
    found = linprog(-objective, A_ub=rows, b_ub=bounds, A_eq=sums, b_eq=[1.0, 1.0])
    assert found.success
    return float(-found.fun)


@pytest.mark.parametrize(
    "profile",
    [
        PrivacyProfile((0.0, 0.1, 0.4, 1.0), (0.02, 0.004, 1e-4, 1e-5)),
        PrivacyProfile((0.3, 0.5, 2.0), (0.1, 0.09, 1e-3)),
        PrivacyProfile((0.7,), (0.05,)),
    ],
    ids=repr,
)
def test_between_the_points_is_the_worst_that_they_allow(profile: PrivacyProfile) -> None:
    for value in (0.0, 0.05, 0.2, 0.35, 0.7, 1.5, 3.0):
        worst = supremum(profile, value)
        assert delta(profile, value) == pytest.approx(worst, rel=1e-7)
        assert delta(profile, value) >= worst * (1 - 1e-9)
        if worst > profile.deltas[-1] * (1 + 1e-6):
            assert epsilon(profile, worst) == pytest.approx(value, abs=1e-6)


def test_events_without_a_finite_profile() -> None:
    nothing = PoissonSampled(0.5, Gaussian(0.01))
    assert profile_of(nothing) == PrivacyProfile((0.0,), (1.0,))
    assert epsilon(profile_of(nothing), 1e-5) == math.inf
    everything = PoissonSampled(0.5, Gaussian(1e12))
    assert profile_of(everything) == PrivacyProfile((0.0,), (1e-9,))
    assert epsilon(SelfComposed(profile_of(everything), 10), 1e-5) < 1e-6


@pytest.mark.parametrize(
    ("epsilons", "deltas"),
    [((), ()), ((0.1,), ()), ((0.2, 0.1), (0.1, 0.01)), ((0.1, 0.2), (0.01, 0.1)), ((-0.1,), (0.1,)), ((0.1,), (0.0,)),
     ((0.1,), (1.1,)), ((0.1, math.inf), (0.1, 0.01)), ((0.1, 601.0), (0.1, 0.01)),
     ((0.1, 0.1), (0.1, 0.1)), ((math.nan,), (0.1,))],
)  # fmt: skip
def test_impossible_profiles_are_refused(epsilons: Any, deltas: Any) -> None:
    with pytest.raises(ValueError, match="Expected"):
        PrivacyProfile(epsilons, deltas)


# The theorem, against mechanisms that can be enumerated

Table = tuple[np.ndarray, np.ndarray]  # probabilities of a few outcomes under D and under D'


def hockey_stick(p: np.ndarray, q: np.ndarray, point: float) -> float:
    return float(np.maximum(p - math.exp(point) * q, 0).sum())


def points_of(tables: list[Table]) -> PrivacyProfile:
    """The largest profile of the tables, in both directions, at a few points."""
    points = np.linspace(0, 3, 13)
    values = [max(hockey_stick(*pair, point) for p, q in tables for pair in ((p, q), (q, p))) for point in points]
    return PrivacyProfile(tuple(points), tuple(max(value, 1e-12) for value in np.minimum.accumulate(values)))


weights = st.lists(st.floats(0.02, 1.0), min_size=4, max_size=4).map(lambda found: np.array(found) / sum(found))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(weights, weights), min_size=5, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_a_choice_that_depends_on_what_came_before_is_covered(tables: list[Table], flipped: list[bool]) -> None:
    """The second mechanism, and whether D and D' change places in it, is chosen by the first one's outcome."""
    tables = [(q, p) if flip else (p, q) for (p, q), flip in zip(tables, flipped, strict=True)]
    first, *seconds = tables
    one, two = points_of([first]), points_of(seconds)
    p = np.concatenate([first[0][outcome] * seconds[outcome][0] for outcome in range(4)])
    q = np.concatenate([first[1][outcome] * seconds[outcome][1] for outcome in range(4)])
    for point in (0.0, 0.3, 1.0, 2.5):
        bound = delta(Composed((one, two)), point)
        assert max(hockey_stick(p, q, point), hockey_stick(q, p, point)) <= bound + 1e-9


def test_both_directions_are_below() -> None:
    """A sampled Gaussian is not its own mirror image: against plain integration of both."""
    rate, noise = 0.02, 0.5
    x = np.linspace(-8 * noise, 1 + 8 * noise, 200_001)
    base, moved = (np.exp(-((x - mean) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi)) for mean in (0.0, 1.0))
    p, q = ((1 - rate) * base + rate * moved) * (x[1] - x[0]), base * (x[1] - x[0])
    profile = profile_of(PoissonSampled(rate, Gaussian(noise)))
    exact = np.array([[hockey_stick(p, q, point), hockey_stick(q, p, point)] for point in profile.epsilons])
    assert np.all(exact.max(axis=1) <= np.array(profile.deltas) * (1 + 1e-5) + 1e-14)
    assert np.all(exact[1:-1].max(axis=1) >= 0.98 * np.array(profile.deltas)[1:-1])
    assert np.any(exact[:, 0] > 2 * exact[:, 1])


# The filter

steps = st.builds(
    lambda rate, noise, count: SelfComposed(PoissonSampled(rate, Gaussian(noise)), count),
    st.floats(0.005, 0.5), st.floats(0.8, 20.0), st.integers(1, 80),
)  # fmt: skip
PLACES = Composed((SelfComposed(Gaussian(30.0), 3), SelfComposed(profile_of(EPOCH), 4)))


@settings(deadline=None, max_examples=10)
@given(st.lists(st.one_of(steps, st.just(Gaussian(30.0))), min_size=1, max_size=12))
def test_whatever_is_asked_for_no_more_is_admitted_than_was_charged(asked: list[Event]) -> None:
    """A strategy that asks with more and more noise until it is let in: what got in costs no more than what was charged."""
    held = ProfileFilter(PLACES)
    admitted: list[Event] = []
    for part in asked:
        for factor in (1.0, 1.5, 2.5, 6.0, 30.0):
            tried = part
            if isinstance(part, SelfComposed):
                assert isinstance(part.event, PoissonSampled) and isinstance(part.event.event, Gaussian)
                more = Gaussian(factor * part.event.event.noise_multiplier)
                tried = SelfComposed(PoissonSampled(part.event.rate, more), part.count)
            before = dict(held.accounts)
            try:
                held.charge(tried)
            except BudgetExceeded:
                assert held.accounts == before  # refused: nothing is charged
                continue
            admitted.append(tried)
            break
    assert len(admitted) <= 7 and sum(isinstance(part, Gaussian) for part in admitted) <= 3
    if admitted:
        for target in (1e-3, 1e-6):
            assert epsilon(Composed(tuple(admitted)), target) <= epsilon(PLACES, target) * (1 + 1e-3)


def test_every_place_is_taken_once() -> None:
    profile = profile_of(EPOCH)
    held = ProfileFilter(Composed((SelfComposed(Gaussian(30.0), 2), SelfComposed(profile, 2))))
    assert held.left(Gaussian(30.0)) == held.left(profile) == 2
    for _ in range(2):
        held.charge(Gaussian(30.0))
    with pytest.raises(BudgetExceeded):
        held.charge(Gaussian(30.0))  # not in the place of an epoch, though it would fit
    assert held.left(profile) == 2
    quieter = SelfComposed(PoissonSampled(0.02, Gaussian(1.1)), 50)
    with pytest.raises(BudgetExceeded, match="None of the places"):
        held.charge(quieter)
    held.charge(SelfComposed(PoissonSampled(0.02, Gaussian(1.3)), 50))
    held.charge(Gaussian(40.0))
    assert held.left(profile) == 0
    with pytest.raises(BudgetExceeded, match="None of the places"):
        held.charge(Gaussian(1e6))
    with pytest.raises(ValueError, match="replace_one"):
        held.charge(Gaussian(1e6, Relation.REPLACE_ONE))


# Behind the channel


def test_the_door_opens_for_what_took_a_place_and_no_more() -> None:
    channel = Channel.open()
    channel.charge(Composed((Gaussian(30.0), profile_of(Gaussian(2.0)))), "test")
    query = np.zeros(3)
    for noise in (30.0, 2.5):  # nothing leaves before it was allowed, not even what was charged by name
        with pytest.raises(UnpaidReleaseError):
            channel.release(query, GaussianNoise(1.0, noise))
        with pytest.raises(UnpaidReleaseError):
            channel.release(query, GaussianNoise(1.0, noise))
        channel.allow(Gaussian(noise))
        channel.release(query, GaussianNoise(1.0, noise))
        with pytest.raises(UnpaidReleaseError):
            channel.release(query, GaussianNoise(1.0, noise))
    with pytest.raises(BudgetExceeded):
        channel.allow(Gaussian(1e6))
    with pytest.raises(UnpaidReleaseError, match="neighbours"):
        channel.allow(Gaussian(1e6, Relation.REPLACE_ONE))


def test_copies_of_a_run_share_the_places(tmp_path) -> None:
    log = SpendLog(tmp_path / "log.db")
    event = Composed((SelfComposed(Gaussian(30.0), 2), SelfComposed(profile_of(Gaussian(2.0)), 2)))
    channel = Channel.open(log=log)
    channel.charge(event, "test", continuable=True)
    channel.allow(Gaussian(2.5), {"epoch": 1})
    other = Channel.open(log=log)
    other.resume(channel.charge_id, event)
    other.allow(Gaussian(2.1), {"epoch": 2})
    for copy in (channel, other):
        with pytest.raises(BudgetExceeded):
            copy.allow(Gaussian(3.0))
        copy.allow(Gaussian(30.0))
    with pytest.raises(BudgetExceeded):
        channel.allow(Gaussian(30.0))
    assert sorted(log.accounts(channel.charge_id).values()) == [2.0, 2.0]
    assert [part.note for part in log.parts(channel.charge_id)] == [{"epoch": 1}, {"epoch": 2}, {}, {}]
    with pytest.raises(UnpaidReleaseError, match="no part"):
        other.reopen(Gaussian(2.5), 0)  # it has no steps
    assert log.total(1e-5)[Relation.ADD_OR_REMOVE_ONE] == epsilon(event, 1e-5)


def test_a_part_is_reopened_once_for_what_is_left_of_it(tmp_path) -> None:
    log = SpendLog(tmp_path / "log.db")
    event = Composed((Gaussian(30.0), profile_of(EPOCH)))
    part = SelfComposed(PoissonSampled(0.02, Gaussian(1.3)), 50)
    channel = Channel.open(log=log)
    channel.charge(event, "test", continuable=True)
    channel.allow(part, first=0)
    other = Channel.open(log=log)
    other.resume(channel.charge_id, event)
    for wrong, first in ((part, 3), (SelfComposed(PoissonSampled(0.02, Gaussian(1.4)), 50), 0)):
        with pytest.raises(UnpaidReleaseError, match="no part"):
            other.reopen(wrong, first)
    other.reopen(part, 0)
    with pytest.raises(UnpaidReleaseError, match="open already"):
        other.reopen(part, 0)
    next(iter(other.draw(Poisson(0.02), 10, 1)))
    other.reserve(3, 50, done=47)
    for _ in range(3):
        other.release(np.zeros(2), GaussianNoise(1.0, 1.3, 0.02))
    with pytest.raises(UnpaidReleaseError):
        other.release(np.zeros(2), GaussianNoise(1.0, 1.3, 0.02))


def test_a_run_that_kept_no_parts_is_not_continued(tmp_path) -> None:
    log = SpendLog(tmp_path / "log.db")
    event = profile_of(Gaussian(2.0))
    charge = log.charge(event, mechanism="test", keeps_reservations=True)
    with pytest.raises(UnpaidReleaseError, match="kept no parts"):
        Channel.open(log=log).resume(charge, event)


def test_a_place_that_a_copy_took_meanwhile_is_another_place(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of places; between pricing and writing a copy takes the first: the part is logged in the second, or refused."""
    log = SpendLog(tmp_path / "log.db")
    event = Composed((profile_of(Gaussian(2.0)), profile_of(Gaussian(1.9))))
    channels = [Channel.open(log=log) for _ in range(2)]
    channels[0].charge(event, "test", continuable=True)
    channels[1].resume(channels[0].charge_id, event)
    original = SpendLog.add_part

    def overtaken(self: SpendLog, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(SpendLog, "add_part", original)
        channels[1].allow(Gaussian(2.2))
        return original(self, *args, **kwargs)

    monkeypatch.setattr(SpendLog, "add_part", overtaken)
    channels[0].allow(Gaussian(2.1))
    assert sorted(log.accounts(channels[0].charge_id).values()) == [1.0, 1.0]
    assert len(channels[0].parts()) == 2
    for channel in channels:
        with pytest.raises(BudgetExceeded):
            channel.allow(Gaussian(2.3))
        with pytest.raises(UnpaidReleaseError, match="budget itself"):
            channel.allow(profile_of(Gaussian(9.0)))


def test_points_that_round_together() -> None:
    """e^ε of two points may be one number."""
    assert epsilon(PrivacyProfile((0.0, 1e-17, 0.5), (0.2, 0.1, 1e-6)), 1e-5) == pytest.approx(
        epsilon(PrivacyProfile((0.0, 0.5), (0.1, 1e-6)), 1e-5)
    )
    assert profile_of(SelfComposed(PureDP(200.0), 4)) == PrivacyProfile((0.0,), (1.0,))


def test_a_profile_beside_a_renyi_filter_needs_two_channels() -> None:
    with pytest.raises(ValueError, match="one filter"):
        Channel.open().charge(Composed((FilteredRdp(5.0, 0.1), profile_of(Gaussian(2.0)))), "test")
    assert SpendLog.current().charges() == []


def test_a_profile_beside_other_events_composes() -> None:
    """Also with those that only other accountants know."""
    profile = profile_of(EPOCH)
    for other in (Gaussian(5.0), Laplace(5.0), PureDP(0.1), ApproximateDP(0.1, 1e-7), EPOCH):
        value = epsilon(Composed((profile, other)), 1e-5)
        assert epsilon(profile, 1e-5) < value < math.inf
    apart = epsilon(Composed((profile, FilteredRdp(8.0, 0.05))), 1e-5)
    assert apart == pytest.approx(epsilon(profile, 5e-6) + epsilon(FilteredRdp(8.0, 0.05), 5e-6), rel=1e-4)


def test_a_long_profile_prints_short() -> None:
    points = [0.01 * (number + 1) for number in range(60)]
    text = repr(PrivacyProfile(tuple(points), tuple(0.5 * math.exp(-5 * point) for point in points)))
    assert "60 points" in text and len(text) < 120
