"""Pairs of distributions against mixtures of normals, Laplace distributions and atoms, in 40 digits, in both tails.

A pair is right where the masses of its losses are: each test asks for all that lies up to a loss and for all beyond it, so that
small masses count as much as large ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from dperm.privacy import (
    ApproximateDP,
    Event,
    ExponentialMechanism,
    Gaussian,
    HiddenIterates,
    Laplace,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    RandomAllocation,
    RandomStop,
    Relation,
    RowsSampled,
    SampledWithoutReplacement,
    SelfComposed,
    UnsupportedEventError,
)
from dperm.privacy.accountants.accounting import delta
from dperm.privacy.accountants.dominating_pairs import LossPair, _RowsSampled, cells, composed_pairs, loss_pairs
from dperm.privacy.accountants.gaussian import gaussian_delta
from dperm.privacy.accountants.pld import pld_delta, pld_epsilon
from dperm.privacy.accountants.random_allocation import allocation_ratio
from dperm.privacy.accountants.stated_points import profile_delta
from dperm.privacy.events import Side, TruncatedPoisson
from dperm.privacy.events.hidden import stopped_shifts

REPLACE = Relation.REPLACE_ONE
Masses = tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf, mpmath.mpf]


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(40):
        yield


@dataclass(frozen=True)
class Mixtures:
    """Two mixtures of normals of one spread: (weight, mean) of each part. Their likelihood ratio rises."""

    first: tuple[tuple[mpmath.mpf, mpmath.mpf], ...]
    second: tuple[tuple[mpmath.mpf, mpmath.mpf], ...]
    spread: float

    def loss(self, x: mpmath.mpf) -> mpmath.mpf:
        first, second = (
            mpmath.fsum(weight * mpmath.exp((mean * x - mean**2 / 2) / mpmath.mpf(self.spread) ** 2) for weight, mean in parts)
            for parts in (self.first, self.second)
        )
        return mpmath.log(first / second)

    def place(self, loss: float) -> mpmath.mpf:
        """Where the loss is that, by bisection."""
        low, high = mpmath.mpf(-60) * self.spread - 1, mpmath.mpf(60) * self.spread + 2
        for _ in range(110):
            middle = (low + high) / 2
            low, high = (middle, high) if self.loss(middle) < loss else (low, middle)
        return (low + high) / 2

    def masses(self, loss: float) -> Masses:
        """P-mass up to a loss and beyond, and Q-mass up to it and beyond."""
        x = self.place(loss)
        return tuple(  # type: ignore[return-value]
            mpmath.fsum(weight * mpmath.ncdf(side * (x - mean) / self.spread) for weight, mean in parts)
            for parts in (self.first, self.second)
            for side in (1, -1)
        )


def profile(oracle: Mixtures, epsilon: float) -> mpmath.mpf:
    _, p, _, q = oracle.masses(epsilon)
    return p - mpmath.exp(epsilon) * q


def sampled(rate: float, noise: float) -> Mixtures:
    q = mpmath.mpf(rate)
    return Mixtures(((1 - q, mpmath.mpf(0)), (q, mpmath.mpf(1))), ((mpmath.mpf(1), mpmath.mpf(0)),), noise)


def replaced(rate: float, noise: float) -> Mixtures:
    """The record moves a query by half of the sensitivity one way or the other."""
    q, half = mpmath.mpf(rate), mpmath.mpf(1) / 2
    stays = (1 - q, mpmath.mpf(0))
    return Mixtures((stays, (q, half)), (stays, (q, -half)), noise)


def rows(rate: float, noise: float, number: int) -> Mixtures:
    q = mpmath.mpf(rate)
    weights = [mpmath.binomial(number, j) * q**j * (1 - q) ** (number - j) for j in range(number + 1)]
    parts = tuple((weight, mpmath.mpf(j) / number) for j, weight in enumerate(weights))
    return Mixtures(parts, ((mpmath.mpf(1), mpmath.mpf(0)),), noise)


def shifted(noise: float) -> Mixtures:
    return Mixtures(((mpmath.mpf(1), mpmath.mpf(1)),), ((mpmath.mpf(1), mpmath.mpf(0)),), noise)


MIXTURES: list[tuple[Event, Mixtures]] = [
    (Gaussian(0.7), shifted(0.7)),
    (Gaussian(30.0), shifted(30.0)),
    (PoissonSampled(1.0, Gaussian(0.7)), shifted(0.7)),
    (PoissonSampled(0.01, Gaussian(1.0)), sampled(0.01, 1.0)),
    (PoissonSampled(0.6, Gaussian(5.0)), sampled(0.6, 5.0)),
    (PoissonSampled(1e-3, Gaussian(0.8)), sampled(1e-3, 0.8)),
    (PoissonSampled(0.2, Gaussian(0.8, REPLACE)), replaced(0.2, 0.8)),
    (PoissonSampled(0.001, Gaussian(3.0, REPLACE)), replaced(0.001, 3.0)),
    (PoissonSampled(0.9, Gaussian(0.3, REPLACE)), replaced(0.9, 0.3)),
    (RowsSampled(0.3, Gaussian(0.7), 4), rows(0.3, 0.7, 4)),
    (RowsSampled(0.05, Gaussian(2.0), 2), rows(0.05, 2.0, 2)),
]


def both_sides(pair: LossPair, loss: float) -> tuple[float, float, float, float]:
    """P-mass up to a loss and beyond it, and Q-mass up to it and beyond."""
    p, q = pair.masses(np.array([-math.inf, loss, math.inf]))
    return float(p[0]), float(p[1]), float(q[0]), float(q[1])


@pytest.mark.parametrize(("event", "oracle"), MIXTURES, ids=[repr(event) for event, _ in MIXTURES])
def test_masses_are_those_of_the_mixtures_in_both_tails(event: Event, oracle: Mixtures) -> None:
    directions = loss_pairs(event)
    assert directions.infinite == 0
    for place in (-5.0, -0.7, 0.4, 2.0, 8.0):
        loss = float(oracle.loss(place * oracle.spread + 0.3))
        exact = oracle.masses(loss)
        assert both_sides(directions.remove, loss) == pytest.approx([float(mass) for mass in exact], rel=1e-7, abs=0)
        p_below, p_above, q_below, q_above = exact
        # the other way round, and the interval's other end: of these no loss has a mass of its own
        mirrored = (q_above, q_below, p_above, p_below)
        assert both_sides(directions.add, -loss) == pytest.approx([float(mass) for mass in mirrored], rel=1e-7, abs=0)


@pytest.mark.parametrize(("event", "oracle"), MIXTURES, ids=[repr(event) for event, _ in MIXTURES])
def test_the_support_holds_all_but_next_to_nothing(event: Event, oracle: Mixtures) -> None:
    directions = loss_pairs(event)
    low, high = directions.remove.support
    beyond = oracle.masses(high)[1]
    assert 1e-46 < beyond <= 3e-40
    largest = max(mean for _, mean in oracle.first)
    assert high == pytest.approx(float(oracle.loss(largest + mpmath.mpf(13.5) * oracle.spread)), rel=1e-9)
    if directions.add is not directions.remove:
        assert directions.add.support == (-high, -low)
    below = oracle.masses(low)[0] if low > oracle.loss(-50 * oracle.spread) else mpmath.mpf(0)
    assert below <= 3e-40


# Distributions that are no mixtures of normals


def laplace(e: float, loss: float) -> Masses:
    """Densities e/2·exp(−e|x|) and e/2·exp(−e|x − 1|): the loss falls from e, left of 0, to −e, right of 1."""
    e, loss = mpmath.mpf(e), mpmath.mpf(loss)
    if loss >= e:
        return mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf(1), mpmath.mpf(0)
    if loss < -e:
        return mpmath.mpf(0), mpmath.mpf(1), mpmath.mpf(0), mpmath.mpf(1)
    x = (1 - loss / e) / 2  # larger losses lie left of it
    p, q = mpmath.exp(-e * x) / 2, mpmath.exp(-e * (1 - x)) / 2
    return p, 1 - p, 1 - q, q


@pytest.mark.parametrize("noise", [0.02, 0.7])
def test_a_sample_of_everybody_has_the_losses_of_the_whole(noise: float) -> None:
    """They are those of the Gaussian itself, also where e^loss − 1 is −1 to all digits of a double."""
    pair: Any = loss_pairs(PoissonSampled(1.0, Gaussian(noise))).remove
    some: Any = loss_pairs(PoissonSampled(0.25, Gaussian(noise))).remove
    low, high = pair.support
    assert low == pytest.approx(-(1 / (2 * noise) + 13.5) / noise, rel=1e-12)
    assert high == pytest.approx((1 / (2 * noise) + 13.5) / noise, rel=1e-12)
    assert pair.least == -math.inf
    assert some.least == pytest.approx(math.log(0.75), rel=1e-15)


@pytest.mark.parametrize("noise", [0.1, 1.3, 40.0])
def test_laplace_noise_has_atoms_at_both_ends(noise: float) -> None:
    """Its noise multiplier is of its standard deviation, which is √2 times its scale."""
    e = math.sqrt(2) / noise
    pairs = loss_pairs(Laplace(noise))
    assert pairs.remove.support == (-e, e) == pairs.add.support
    for loss in (-1.1 * e, -e, -0.999 * e, -0.4 * e, 0.0, 0.7 * e, math.nextafter(e, 0), e, 2 * e):
        exact = [float(mass) for mass in laplace(e, loss)]
        assert both_sides(pairs.remove, loss) == pytest.approx(exact, rel=1e-9, abs=1e-17)


def test_of_a_pure_mechanism_every_loss_is_epsilon_or_its_opposite() -> None:
    for e in (1e-9, 0.3, 4.0):
        up, down = (float(1 / (1 + mpmath.exp(side * mpmath.mpf(e)))) for side in (-1, 1))
        for rest in (1.0, 1 - 0.01):
            pairs = loss_pairs(PureDP(e) if rest == 1.0 else ApproximateDP(e, 0.01))
            assert pairs.infinite == (0.0 if rest == 1.0 else 0.01)
            for pair in (pairs.remove, pairs.add):
                assert pair.support == (-e, e)
                assert both_sides(pair, -e * 1.01) == pytest.approx((0, rest, 0, rest), rel=1e-14, abs=0)
                for loss in (-e, 0.0, math.nextafter(e, 0)):
                    exact = (rest * down, rest * up, rest * up, rest * down)
                    assert both_sides(pair, loss) == pytest.approx(exact, rel=1e-14, abs=0)
                assert both_sides(pair, e) == pytest.approx((rest, 0, rest, 0), rel=1e-14, abs=0)


def test_atoms_above_a_grid_are_left_out_and_those_far_below_move_up() -> None:
    pair = loss_pairs(PureDP(650.0)).remove
    p, q = pair.masses(np.array([-math.inf, -600.0, 0.0, 600.0]))
    assert p.tolist() == pytest.approx([math.exp(-650), 0, 0], rel=1e-12, abs=0)
    assert q.tolist() == pytest.approx([math.exp(-50), 0, 0], rel=1e-12, abs=0)
    p, q = loss_pairs(PureDP(2.0)).remove.masses(np.array([-2.0, 0.0, 2.0]))
    assert p.tolist() == pytest.approx([0, 1 / (1 + math.exp(-2))])
    assert q.tolist() == pytest.approx([0, 1 / (1 + math.exp(2))])


@pytest.mark.parametrize(("rate", "noise"), [(0.3, 0.7), (0.01, 2.0)])
def test_samples_of_a_fixed_size_mirror_their_losses(rate: float, noise: float) -> None:
    """Above 0 they are those of a sampled Gaussian, below their mirror images, and what is left has no loss."""
    pairs, oracle = loss_pairs(SampledWithoutReplacement(rate, Gaussian(noise, REPLACE))), sampled(rate, noise)
    _, p_zero, _, q_zero = oracle.masses(0.0)
    rest = 1 - p_zero - q_zero
    for pair in (pairs.remove, pairs.add):
        assert pair.support[0] == -pair.support[1]
        assert oracle.masses(pair.support[1])[1] <= 3e-40
        for place in (0.1, 0.6, 2.0, 6.0):
            loss = float(oracle.loss(place * noise + 0.5))
            _, p_above, _, q_above = oracle.masses(loss)
            p, q = pair.masses(np.array([-math.inf, -loss, -1e-30, 0.0, loss, math.inf]))
            assert p.tolist() == pytest.approx(
                [float(mass) for mass in (q_above, q_zero - q_above, rest, p_zero - p_above, p_above)], rel=1e-9
            )
            assert q.tolist() == pytest.approx(
                [float(mass) for mass in (p_above, p_zero - p_above, rest, q_zero - q_above, q_above)], rel=1e-9
            )


def gains(masses: Callable[[float], tuple[mpmath.mpf, mpmath.mpf]], edges: NDArray[np.float64]) -> list[float]:
    """p − q·e^edge of each cell, at its lower edge; `masses(loss)` are P's and Q's up to a loss."""
    found: list[float] = []
    for low, high in itertools.pairwise(edges.tolist()):
        below, above = masses(low), masses(high)
        found.append(float(above[0] - below[0] - (above[1] - below[1]) * mpmath.exp(low)))
    return found


@pytest.mark.parametrize(("event", "oracle"), MIXTURES, ids=[repr(event) for event, _ in MIXTURES])
def test_gains_of_cells_have_their_digits(event: Event, oracle: Mixtures) -> None:
    """A cell's gain is small beside its masses where losses are small: it is not made of their difference."""
    directions = loss_pairs(event)
    edges = np.array(
        [-math.inf, *(float(oracle.loss(place * oracle.spread + 0.3)) for place in (-4.0, -1.0, 0.2, 0.9, 2.0, 5.0))]
    )

    def below(loss: float) -> tuple[mpmath.mpf, mpmath.mpf]:
        exact = oracle.masses(loss) if loss > -math.inf else (mpmath.mpf(0), None, mpmath.mpf(0), None)
        return exact[0], exact[2]

    def mirrored(loss: float) -> tuple[mpmath.mpf, mpmath.mpf]:
        exact = oracle.masses(-loss) if loss > -math.inf else (None, mpmath.mpf(0), None, mpmath.mpf(0))
        return exact[3], exact[1]

    assert cells(directions.remove, edges).gain.tolist() == pytest.approx(gains(below, edges), rel=1e-7, abs=1e-15)
    backwards = np.concatenate([[-math.inf], -edges[:0:-1]])
    assert cells(directions.add, backwards).gain.tolist() == pytest.approx(gains(mirrored, backwards), rel=1e-7, abs=1e-15)


@pytest.mark.parametrize(("rate", "noise"), [(0.3, 0.7), (0.01, 2.0), (1e-5, 30.0)])
@pytest.mark.parametrize("low", [-2.0, -0.5, -1e-3])
def test_gains_of_samples_of_a_fixed_size_begin_at_the_lower_edge(rate: float, noise: float, low: float) -> None:
    """That holds for the cell with the mass at 0, too."""
    pair, oracle = loss_pairs(SampledWithoutReplacement(rate, Gaussian(noise, REPLACE))).remove, sampled(rate, noise)
    top = float(oracle.loss(2 * noise + 0.5))

    def below(loss: float) -> tuple[mpmath.mpf, mpmath.mpf]:
        if loss < 0:
            _, p, _, q = oracle.masses(-loss)
            return q, p
        _, p, _, q = oracle.masses(loss)
        return 1 - p, 1 - q

    edges = np.array([2 * low * top, low * top, 0.4 * top, top])
    assert cells(pair, edges).gain.tolist() == pytest.approx(gains(below, edges), rel=1e-7, abs=1e-15)


def test_numbers_of_rows_that_are_all_but_impossible_count_as_an_infinite_loss() -> None:
    """300 rows, each drawn with a chance of a thousandth: more than some twenty are left out."""
    for rate, number in ((0.001, 300), (1e-20, 3), (1e-7, 40), (0.4, 2), (1e-12, 2)):
        pairs = loss_pairs(RowsSampled(rate, Gaussian(0.1), number))
        q = mpmath.mpf(rate)
        chances = [mpmath.binomial(number, j) * q**j * (1 - q) ** (number - j) for j in range(number + 1)]
        beyond = [float(mpmath.fsum(chances[j:])) for j in range(number + 2)]  # that so many or more are drawn
        assert pairs.infinite <= 1e-18
        kept = min(range(2, number + 2), key=lambda j: abs(math.log((pairs.infinite + 1e-300) / (beyond[j] + 1e-300))))
        assert pairs.infinite == pytest.approx(beyond[kept], rel=1e-9, abs=0)
        assert kept == 2 or beyond[kept - 1] > 1e-19  # not more than that is worth
        oracle = rows(rate, 0.1, number)
        held = replace(oracle, first=oracle.first[:kept])
        high = float(held.loss(mpmath.mpf(kept - 1) / number + mpmath.mpf(1.35)))
        assert pairs.remove.support[1] == pytest.approx(high, rel=1e-9)


def test_losses_of_rows_are_found_wherever_they_are() -> None:
    """Rates, numbers and noise of all sizes: the loss at the place that is found for it is that loss, and places rise."""
    rng = np.random.default_rng(1)
    for _ in range(12):
        rate, number, noise = 10 ** rng.uniform(-9, -0.05), int(rng.integers(2, 40)), 10 ** rng.uniform(-1.5, 3)
        pair = loss_pairs(RowsSampled(rate, Gaussian(noise), number)).remove
        assert isinstance(pair, _RowsSampled)
        low, high = pair.support
        losses = low + (high - low) * rng.random(300) ** rng.choice([1.0, 4.0])
        places = pair._places(np.sort(losses))
        clear = np.sort(losses) > low + 1e-9 * (high - low) + 2e-13
        found = [pair._loss(float(place)) for place in places[clear]]
        assert found == pytest.approx(np.sort(losses)[clear], abs=1e-11 * (1 + abs(high)))
        assert (np.diff(places[clear]) >= -1e-6 * noise).all()
        nothing = pair.masses(np.array([-math.inf, low - 1.0, low - 0.5]))
        assert nothing[0].tolist() == [0.0, 0.0] == nothing[1].tolist()


@pytest.mark.parametrize("rate", [2.8e-15, 1e-10, 1e-30])
@pytest.mark.parametrize("noise", [0.19, 0.5, 76.5])
@pytest.mark.parametrize("number", [1, 3])
def test_losses_of_rows_at_rates_next_to_nothing(rate: float, noise: float, number: int) -> None:
    """The P- and Q-masses of losses above each place are those of 40 digits, and the support is that of the losses themselves:
    rates of 1e-13 and less once counted as none, or ended in NaN."""
    pair = loss_pairs(RowsSampled(rate, Gaussian(noise), number)).remove
    with mpmath.workdps(80):
        oracle = rows(rate, noise, number)
        oracle = replace(oracle, first=oracle.first[:2])  # more rows are all but impossible: they count as an infinite loss
        low, high = (oracle.loss(mpmath.mpf(at) * noise + (at > 0) / mpmath.mpf(number)) for at in (-13.5, 13.5))
        assert pair.support == pytest.approx((float(low), float(high)), rel=1e-10, abs=0)
        for place in (-2.0, 0.3, 1.7, 6.0):
            loss = float(oracle.loss(mpmath.mpf(place) * noise + 0.5))
            exact = [float(mass) for mass in oracle.masses(loss)]
            assert list(both_sides(pair, loss)) == pytest.approx(exact, rel=1e-9, abs=0)


@pytest.mark.parametrize(("rate", "noise", "steps"), [(2.8e-15, 0.19, 1), (2.8e-15, 0.5, 10**5), (9e-14, 0.3, 10**6)])
def test_delta_of_rows_at_rates_next_to_nothing_is_not_below_the_truth(rate: float, noise: float, steps: int) -> None:
    """The chance that some output lies beyond a place, with the row less without it, is at most δ(0) at each place."""
    held, sampled_with = mpmath.mpf(0), mpmath.mpf(rate)
    for place in range(40):
        tail = mpmath.ncdf(-mpmath.mpf(place) / 4)
        more = (1 - sampled_with) * tail + sampled_with * mpmath.ncdf(1 / mpmath.mpf(noise) - mpmath.mpf(place) / 4)
        held = max(held, (1 - tail) ** steps - (1 - more) ** steps)
    assert delta(SelfComposed(RowsSampled(rate, Gaussian(noise), 1), steps), 0.0) >= float(held) * (1 - 1e-9)


def test_losses_of_rows_may_be_many() -> None:
    """More than are looked at in one go."""
    pair = loss_pairs(RowsSampled(0.3, Gaussian(0.7), 2)).remove
    low, high = pair.support
    edges = np.linspace(low + 0.1, high, (1 << 17) + 3)
    p, q = pair.masses(edges)
    few = pair.masses(edges[:: 1 << 16])
    for masses, fewer in ((p, few[0]), (q, few[1])):
        assert np.add.reduceat(masses[: 1 << 17], [0, 1 << 16]) == pytest.approx(fewer, rel=1e-9, abs=0)


@pytest.mark.parametrize(("noise", "steps", "contraction"), [(2.0, 60, 0.97), (0.5, 5, 0.9), (1.0, 1, 1.0)])
def test_a_random_stop_is_the_mean_of_gaussians(noise: float, steps: int, contraction: float) -> None:
    """One Gaussian mechanism for each stop; which stop it was, everybody sees: profiles are means."""
    pairs = loss_pairs(RandomStop(noise, steps, contraction, 1e-9))
    shifts = stopped_shifts(steps, contraction, 1e-9)
    for value in (0.0, 0.2, 1.0, 3.0):
        exact = float(np.mean([gaussian_delta(noise / shift, value) for shift in shifts]))
        more = float(np.mean([gaussian_delta(noise / shift / 1.0102, value) for shift in shifts]))
        edges = value + np.linspace(0, pairs.remove.support[1], 4001)
        p, q = pairs.remove.masses(edges)
        found = float(p.sum() - math.exp(value) * q.sum())
        assert exact * (1 - 1e-9) <= found <= more * (1 + 1e-9)
        assert p.sum() + pairs.remove.masses(np.array([-math.inf, value]))[0][0] == pytest.approx(1.0, abs=1e-12)


def read_off(pair: LossPair, value: float, infinite: float) -> float:
    """δ of a pair of few atoms, between which there is nothing."""
    edges = np.concatenate([[-math.inf], np.linspace(-6.0, 6.0, 24_001), [math.inf]])
    p, q = pair.masses(edges)
    return infinite + float(np.maximum(p - math.exp(value) * q, 0.0).sum())


@pytest.mark.parametrize(
    "profile",
    [
        PrivacyProfile((0.0, 0.1, 0.4, 1.0), (0.02, 0.004, 1e-4, 1e-5)),
        PrivacyProfile((0.3, 0.5, 2.0), (0.1, 0.09, 1e-3)),
        PrivacyProfile((0.0,), (0.3,)),
        PrivacyProfile((0.0, 3.0), (0.999, 0.5)),
    ],
    ids=range(4),
)
def test_the_pair_of_a_stated_profile_has_that_profile_and_its_mirror_image(profile: PrivacyProfile) -> None:
    """Its hull, which `dperm.privacy.accountants.stated_points` evaluates: at 0 and above, and mirrored below."""
    pairs = loss_pairs(profile)
    assert pairs.infinite == profile.deltas[-1]
    p, q = pairs.remove.masses(np.array([-math.inf, math.inf]))
    assert p[0] == pytest.approx(1 - pairs.infinite, abs=1e-13)
    assert q[0] == pytest.approx(1 - pairs.infinite, abs=1e-13)
    for value in (0.0, 0.07, 0.25, 0.4, 0.9, 1.7, 2.5):
        exact = profile_delta(profile, value)
        assert read_off(pairs.remove, value, pairs.infinite) == pytest.approx(exact, rel=1e-6)
        mirrored = -math.expm1(-value) + math.exp(-value) * exact
        assert read_off(pairs.add, -value, pairs.infinite) == pytest.approx(mirrored, rel=1e-3)


@pytest.mark.parametrize("size", [0.05, 1.0, 3.0])
def test_the_pair_of_a_choice_has_the_profile_of_bounded_range(size: float) -> None:
    """(√e^ε − √e^x)²/(e^ε − 1): less than that of a pure mechanism, and in blocks little more."""
    pairs = loss_pairs(ExponentialMechanism(size))
    for value in (0.0, 0.1 * size, 0.5 * size, 0.9 * size):
        exact = (math.exp(size / 2) - math.exp(value / 2)) ** 2 / math.expm1(size)
        assert exact * (1 - 1e-3) <= read_off(pairs.remove, value, pairs.infinite) <= exact * 1.01 + 1e-6
    edges = np.linspace(-size, size, 7)
    (of_blocks, number), *others = composed_pairs(ExponentialMechanism(size), 1)
    assert (number, others) == (1, [])
    assert np.array_equal(of_blocks.add.masses(edges), pairs.add.masses(edges))
    blocks = composed_pairs(ExponentialMechanism(size), 1000)
    assert sum(pair.remove.support[1] / size * count for pair, count in blocks) == pytest.approx(1000)


def test_choices_of_a_huge_range_count_as_pure() -> None:
    for size in (500.5, 599.0):
        pairs = loss_pairs(ExponentialMechanism(size))
        assert (pairs.remove.support, pairs.infinite) == ((-size, size), 0.0)
        assert both_sides(pairs.remove, 0.0) == pytest.approx((0, 1, 1, 0), abs=1e-200)
        assert [(pair.remove.support, count) for pair, count in composed_pairs(ExponentialMechanism(size), 7)] == [
            ((-size, size), 7)
        ]
    assert composed_pairs(Laplace(1.0), 5)[0][1] == 5


# Which pair is whose


def test_a_side_exchanges_its_pairs_where_the_record_joins() -> None:
    inner = PoissonSampled(0.1, Gaussian(1.0))
    apart = loss_pairs(inner)
    joins, leaves = (loss_pairs(Side(inner, joins)) for joins in (True, False))
    edges = np.linspace(-1, 1, 9)
    for mine, theirs in ((joins.remove, apart.add), (joins.add, apart.remove), (leaves.remove, apart.remove)):
        assert np.array_equal(mine.masses(edges), theirs.masses(edges))
    assert np.array_equal(leaves.add.masses(edges), apart.add.masses(edges))


def test_events_that_are_others_as_far_as_losses_go() -> None:
    edges = np.linspace(-1, 1, 9)
    hidden = HiddenIterates(2.0, 20, 10, 1.0, 50.0, 1e-9)
    cut = TruncatedPoisson(0.1, Gaussian(1.0), 50, 100)
    for event, other in ((hidden, hidden.whole), (cut, PoissonSampled(0.1, Gaussian(1.0)))):
        for mine, theirs in zip(
            (loss_pairs(event).remove, loss_pairs(event).add), (loss_pairs(other).remove, loss_pairs(other).add), strict=True
        ):
            assert np.array_equal(mine.masses(edges), theirs.masses(edges))


def test_refused_is_what_has_no_pair() -> None:
    with pytest.raises(UnsupportedEventError, match="Poisson"):
        loss_pairs(PoissonSampled(0.1, Laplace(1.0)))
    little = 1 / math.sqrt(8 * 600)
    loss_pairs(PoissonSampled(0.1, Gaussian(little * 1.001, REPLACE)))
    with pytest.raises(UnsupportedEventError, match="so little noise"):
        loss_pairs(PoissonSampled(0.1, Gaussian(little * 0.999, REPLACE)))


def test_losses_of_hundreds_are_finite() -> None:
    """Grids end at 600: a mechanism whose ε is 500 is bounded."""
    exact = 500.0
    assert pld_epsilon(PureDP(exact), 1e-6) == pytest.approx(exact, rel=1e-4)
    noise = 1 / 27
    found = pld_epsilon(PoissonSampled(0.5, Gaussian(noise)), 1e-3)
    assert profile(sampled(0.5, noise), found * 0.999) > 1e-3 > profile(sampled(0.5, noise), found)


NOISY: list[Callable[[float], Event]] = [
    lambda noise: Gaussian(noise),
    lambda noise: PoissonSampled(0.5, Gaussian(noise)),
    lambda noise: PoissonSampled(0.5, Gaussian(noise, REPLACE)),
    lambda noise: SampledWithoutReplacement(0.5, Gaussian(noise, REPLACE)),
    lambda noise: RandomStop(noise, 1, 1.0, 1e-9),
]


@pytest.mark.parametrize("noise", [1e8, 1e19])
@pytest.mark.parametrize("event", NOISY)
def test_however_much_noise_there_is_nothing_is_below_the_truth(event: Callable[[float], Event], noise: float) -> None:
    """The total variation of N(0, σ²) and N(1, σ²) is erf(1/(σ√8)); a sample of one half has half of it."""
    share = 1.0 if isinstance(event(noise), RandomStop | Gaussian) else 0.5
    exact = share * math.erf(1 / (noise * math.sqrt(8)))
    assert exact <= pld_delta(event(noise), 0.0) <= 1.1 * share * math.erf(1 / (min(noise, 1e9) * math.sqrt(8))) + 1e-13


def test_more_noise_than_losses_can_be_told_from_counts_as_less() -> None:
    assert loss_pairs(RowsSampled(0.5, Gaussian(1e19), 2)).remove == loss_pairs(RowsSampled(0.5, Gaussian(1e9), 2)).remove


def test_allocation_has_both_directions_and_none_with_too_little_noise() -> None:
    """Its ratio is U = P/Q, whose mean is 1: adding a record has the loss −ln U."""
    pairs = loss_pairs(RandomAllocation(4, Gaussian(0.8)))
    assert pairs.infinite == allocation_ratio(4, 0.8).lost
    low, high = pairs.remove.support
    assert pairs.add.support == (-high, -low)
    for value in (-0.3, 0.1, 1.0):
        p_below, p_above, q_below, q_above = both_sides(pairs.remove, value)
        assert (p_below + p_above, q_below + q_above) == (pytest.approx(1.0, abs=1e-12), pytest.approx(1.0, abs=1e-12))
        assert both_sides(pairs.add, -value) == pytest.approx((q_above, q_below, p_above, p_below), rel=1e-12)
    hopeless = loss_pairs(RandomAllocation(4, Gaussian(0.0499)))
    assert hopeless.infinite == 1.0
    assert both_sides(hopeless.remove, 0.0) == (1.0, 0.0, 1.0, 0.0)
