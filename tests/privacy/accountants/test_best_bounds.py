"""The best bound of an event: which accountant is asked, and what basic composition adds up, against enumeration."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from dperm.privacy import (
    ApproximateDP,
    BoundedSquaresGaussian,
    Composed,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    HiddenIterates,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    RandomAllocation,
    Relation,
    SelfComposed,
    UnsupportedEventError,
    delta,
    epsilon,
)
from dperm.privacy.accountants import accounting, pld
from dperm.privacy.accountants.accounting import _basic, _one_gaussian, best_epsilon
from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from dperm.privacy.accountants.pld import PrivacyLossDistribution, pld_delta, pld_epsilon
from dperm.privacy.accountants.rdp import rdp_delta, rdp_epsilon
from dperm.privacy.accountants.stated_points import profile_delta

# Sums of promises


def sums(parts: list[Event]) -> list[tuple[float, float]]:
    """(Σε, Σδ) of every way to hold each part to one of its points, none of which another beats."""
    points: list[list[tuple[float, float]]] = []
    for part in parts:
        match part:
            case PrivacyProfile():
                points.append(list(zip(part.epsilons, part.deltas, strict=True)))
            case ApproximateDP():
                points.append([(part.epsilon, part.delta)])
            case Laplace():
                points.append([(math.sqrt(2) / part.noise_multiplier, 0.0)])
            case PureDP() | ExponentialMechanism():
                points.append([(part.epsilon, 0.0)])
            case _:
                raise AssertionError(part)
    found = [(math.fsum(e for e, _ in way), math.fsum(d for _, d in way)) for way in itertools.product(*points)]
    return [pair for pair in found if not any(e <= pair[0] and d <= pair[1] and (e, d) != pair for e, d in found)]


def random_profile(rng: np.random.Generator) -> PrivacyProfile:
    number = int(rng.integers(1, 5))
    return PrivacyProfile(tuple(np.sort(rng.random(number)) * 4), tuple(np.sort(10.0 ** rng.uniform(-9, -1, number))[::-1]))


@pytest.mark.parametrize("seed", range(8))
def test_basic_composition_is_a_sum_of_points_and_on_the_hull_of_all_sums(seed: int) -> None:
    """Each pair is one way to hold the parts to their points; none of the ways lies below the chords of those that were found."""
    rng = np.random.default_rng(seed)
    first, second = random_profile(rng), random_profile(rng)
    others: list[Event] = [PureDP(0.3), ApproximateDP(0.2, 1e-4), Laplace(7.0), ExponentialMechanism(0.1)]
    parts: list[Event] = [first, first, second, *others[: seed % 5]]
    found = _basic(Composed(tuple(parts)))
    all_sums = sums(parts)
    everything = [(round(e, 9), round(d, 15)) for e, d in all_sums]
    assert [d for _, d in found] == sorted(d for _, d in found)
    for e, d in found:
        assert (round(e, 9), round(d, 15)) in everything
    assert found[0] == pytest.approx(max(all_sums), rel=1e-12)
    assert found[-1] == pytest.approx(min(all_sums), rel=1e-12)
    for e, d in all_sums:
        for (e_left, d_left), (e_right, d_right) in itertools.pairwise(found):
            if d_left <= d <= d_right:
                assert e >= e_left + (e_right - e_left) * (d - d_left) / (d_right - d_left) - 1e-9


def test_basic_composition_is_of_parts_that_all_keep_a_promise() -> None:
    assert _basic(Composed((PureDP(0.1), Gaussian(1.0)))) == []
    thrice = _basic(Composed((SelfComposed(ApproximateDP(0.1, 1e-6), 3), PureDP(0.5), SelfComposed(Laplace(2.0), 2))))
    assert thrice == [(pytest.approx(0.8 + math.sqrt(2), rel=1e-15), pytest.approx(3e-6, rel=1e-15))]
    assert _basic(SelfComposed(ExponentialMechanism(0.25), 3)) == [(0.75, 0.0)]


def test_points_of_one_delta_count_with_the_least_epsilon() -> None:
    """Two points may have the same δ: the largest ε is not that of the smallest δ then."""
    assert _basic(PrivacyProfile((0.5, 2.0), (1e-5, 1e-5))) == [(0.5, 1e-5)]
    assert _basic(PrivacyProfile((0.5, 0.6, 3.0), (1e-3, 1e-5, 1e-5))) == [(0.6, 1e-5), (0.5, 1e-3)]


def test_where_all_of_delta_is_spent_basic_composition_is_the_truth() -> None:
    """Randomised response beside a mechanism that tells everything with a chance of 1e-5."""
    both = Composed((PureDP(0.7), ApproximateDP(0.9, 1e-5)))
    assert best_epsilon(both, 1e-5) == (0.7 + 0.9, "basic composition")
    assert best_epsilon(both, 0.99e-5)[0] == math.inf
    assert epsilon(Composed((PureDP(0.7), ApproximateDP(0.9, 1e-5), PureDP(0.1))), 0.0) == math.inf
    assert delta(ApproximateDP(0.9, 1e-5), 0.9) == 1e-5
    assert 1e-5 < delta(ApproximateDP(0.9, 1e-5), 0.8) < 1.0
    assert delta(both, 1.6) == pytest.approx(1e-5, rel=1e-6)


# Gaussians


@pytest.mark.parametrize(
    "parts",
    [
        [(Gaussian(3.0), 1)],
        [(Gaussian(3.0), 2)],
        [(Gaussian(3.0), 1), (Gaussian(400.0), 1)],
        [(Gaussian(3.0), 1000)],
        [(Gaussian(0.1 * (number + 3)), number + 1) for number in range(12)],
        [(Gaussian(1e-59), 3), (Gaussian(1e59), 5)],
        [(Gaussian(1e59), 10**12), (Gaussian(2e59), 7)],
    ],
    ids=range(7),
)
def test_gaussians_are_one_whose_noise_is_never_rounded_up(parts: list[tuple[Gaussian, int]]) -> None:
    """1/σ² = Σ n/σ_i², in 50 digits."""
    found = _one_gaussian(Composed(tuple(SelfComposed(part, count) for part, count in parts)))
    assert found is not None
    with mpmath.workdps(50):
        exact = 1 / mpmath.sqrt(mpmath.fsum(count / mpmath.mpf(part.noise_multiplier) ** 2 for part, count in parts))
        assert exact * (1 - mpmath.mpf(1e-13)) <= found <= exact


def test_what_is_a_gaussian_as_far_as_privacy_goes_is_one_gaussian() -> None:
    hidden = HiddenIterates(2.0, 20, 10, 1.0, 50.0, 1e-9)
    individual = BoundedSquaresGaussian(5.0, 40, 10.0, Relation.REPLACE_ONE)
    event = Composed((hidden, Gaussian(3.0, Relation.REPLACE_ONE), SelfComposed(individual, 2)))
    exact = 1 / math.sqrt(1 / hidden.whole.noise_multiplier**2 + 1 / 9 + 2 * 10 / 25)
    assert _one_gaussian(event) == pytest.approx(exact, rel=1e-13)
    assert best_epsilon(event, 1e-6) == (gaussian_epsilon(_one_gaussian(event) or 0.0, 1e-6), "exact Gaussian")
    assert delta(event, 0.5) == gaussian_delta(_one_gaussian(event) or 0.0, 0.5)
    assert _one_gaussian(Composed((Gaussian(3.0), PureDP(0.1)))) is None


# Which accountant is asked


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (SelfComposed(Gaussian(2.0), 3), "exact Gaussian"),
        (ExponentialMechanism(0.5), "exact profile"),
        (ObjectivePerturbationEvent(4.0, 1.0, 0.25, 2.0), "exact profile"),
        (PrivacyProfile((0.1, 1.0), (1e-3, 1e-7)), "exact profile"),
        (SelfComposed(PoissonSampled(0.1, Gaussian(1.0)), 10), "PLD"),
        (FilteredRdp(8.0, 0.05), "Rényi filter"),
        (Composed((FilteredRdp(8.0, 0.05), RandomAllocation(8, Gaussian(1.0)))), "RDP, then basic composition"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_each_event_has_the_accountant_that_knows_it_best(event: Event, name: str) -> None:
    value, found = best_epsilon(event, 1e-5)
    assert found == name
    room = 1e-6 if "exact" in name else 3e-3  # what a grid or a bisection may be above
    assert 1 - room <= delta(event, value) / 1e-5 <= 1 + room


def test_many_choices_are_bounded_by_what_is_least() -> None:
    """Blocks of choices lose something that Rényi divergences keep, and the other way round: the least of all is taken."""
    for size, count in ((0.2, 3), (1.0, 40)):
        event = SelfComposed(ExponentialMechanism(size), count)
        least = min(count * size, pld_epsilon(event, 1e-6), rdp_epsilon(event, 1e-6))
        assert epsilon(event, 1e-6) == pytest.approx(least, rel=1e-12)
        value = 0.7 * least
        assert delta(event, value) <= min(rdp_delta(event, value), pld_delta(event, value))


def test_a_profile_by_two_accountants_is_found_by_bisection() -> None:
    """What no accountant knows with the rest: the least δ of which two halves give ε."""
    both = Composed((FilteredRdp(8.0, 0.05), RandomAllocation(8, Gaussian(1.0))))
    for target in (1e-3, 1e-12):
        value = epsilon(both, target)
        assert target * (1 - 1e-6) <= delta(both, value) <= target * (1 + 2e-3)
    twice = Composed((SelfComposed(FilteredRdp(8.0, 0.05), 2), SelfComposed(RandomAllocation(8, Gaussian(1.0)), 3)))
    apart = rdp_epsilon(SelfComposed(FilteredRdp(8.0, 0.05), 2), 5e-6) + pld_epsilon(
        SelfComposed(RandomAllocation(8, Gaussian(1.0)), 3), 5e-6
    )
    assert epsilon(twice, 1e-5) == pytest.approx(apart, rel=1e-9)


def test_nothing_costs_nothing() -> None:
    assert best_epsilon(Composed(()), 1e-5) == (0.0, "exact")
    assert delta(Composed(()), 0.0) == 0.0


def test_what_no_accountant_knows_is_refused_by_name() -> None:
    unknown = PoissonSampled(0.1, Laplace(1.0))
    for event in (unknown, Composed((unknown, PureDP(0.1))), Composed((unknown, FilteredRdp(8.0, 0.05)))):
        with pytest.raises(UnsupportedEventError, match="Laplace"):
            epsilon(event, 1e-5)
        with pytest.raises(UnsupportedEventError, match="Laplace"):
            delta(event, 1.0)


def test_without_delta_only_pure_parts_are_bounded() -> None:
    assert best_epsilon(Composed((PureDP(0.3), Laplace(math.sqrt(2)))), 0.0) == (pytest.approx(1.3), "basic composition")
    assert best_epsilon(Gaussian(1.0), 0.0)[0] == math.inf
    assert best_epsilon(ObjectivePerturbationEvent(4.0, 1.0, 0.25, 2.0), 0.0)[0] == math.inf
    assert best_epsilon(ExponentialMechanism(0.5), 0.0)[0] == 0.5


def test_a_stated_profile_is_read_off_its_hull() -> None:
    """Not off a grid, which is a little above it."""
    profile = PrivacyProfile((0.0, 0.1, 0.4, 1.0), (0.02, 0.004, 1e-4, 1e-5))
    for value in (0.0, 0.03, 0.25, 0.7, 1.5):
        assert delta(profile, value) == profile_delta(profile, value)


def test_bounds_are_found_once_and_only_for_what_they_are_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the same parts are put together; those of many different parts, which take memory, are found each time."""
    composed: list[Event] = []

    class Counted(PrivacyLossDistribution):
        def __init__(self, event: Event, tolerance: float) -> None:
            composed.append(event)
            super().__init__(event, tolerance)

    monkeypatch.setattr(pld, "PrivacyLossDistribution", Counted)
    accounting._known.cache_clear()
    step = PoissonSampled(0.1, Gaussian(2.0))
    for ask in (epsilon, delta):
        found = ask(SelfComposed(step, 4), 0.01)
        assert ask(Composed((SelfComposed(step, 3), step)), 0.01) == found and len(composed) == 1
        others = SelfComposed(step, 5), SelfComposed(PoissonSampled(0.1, Gaussian(2.1)), 4)
        assert ask(others[0], 0.01) > found > ask(others[1], 0.01) and ask(SelfComposed(step, 4), 0.02) < found
        assert len(composed) == 4
        many = Composed(tuple(PoissonSampled(0.01, Gaussian(2.0 + number)) for number in range(17)))
        assert ask(many, 0.01) == ask(many, 0.01) and len(composed) == 6
        composed.clear()
