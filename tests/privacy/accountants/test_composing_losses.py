"""What composes losses, piece by piece: against sums in longer digits, and so that what is left out is always accounted for."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import ndtr

from dperm.privacy import ApproximateDP, Composed, Gaussian, Laplace, PoissonSampled, PureDP, Relation, RowsSampled, SelfComposed
from dperm.privacy.accountants import pld
from dperm.privacy.accountants.dominating_pairs import LossPair, loss_pairs
from dperm.privacy.accountants.loss_bound import LossBound, Rayleigh
from dperm.privacy.accountants.pld import (
    PrivacyLossDistribution,
    _Composition,
    _convolved,
    _Discrete,
    _in_levels,
    _Rough,
    _Tilted,
    infinite_mass,
    lay,
)
from dperm.privacy.events import TruncatedPoisson

Parts = list[tuple[_Tilted, int]]


def tilted(weights: list[float] | np.ndarray, start: int = 0, h: float = 0.1, missing: float = 0.0) -> _Tilted:
    values = np.asarray(weights, dtype=np.float64)
    return _Tilted(values / values.sum(), start, h, 0.3, missing, 0.0, 0.0)


def composed(parts: Parts) -> tuple[np.ndarray, int]:
    """All copies one after the other, in longer digits, and the first place."""
    whole, start = np.ones(1, dtype=np.longdouble), 0
    for part, count in parts:
        for _ in range(count):
            whole, start = np.convolve(whole, part.weights.astype(np.longdouble)), start + part.start
    return whole, start


def left_out(found: _Tilted, parts: Parts) -> float:
    """Weight of the composition that is nowhere in what was found."""
    exact, start = composed(parts)
    scale = np.exp(np.longdouble(found.log_moment) - sum(count * np.longdouble(part.log_moment) for part, count in parts))
    low, high = min(start, found.start), max(start + exact.size, found.start + found.weights.size)
    gap = np.zeros(high - low, dtype=np.longdouble)
    gap[start - low :][: exact.size] += exact
    gap[found.start - low :][: found.weights.size] -= scale * found.weights
    return float(np.maximum(gap, 0).sum())


RNG = np.random.default_rng(7)
COMPOSITIONS: list[Parts] = [
    [(tilted(RNG.random(9), -4), 2)],
    [(tilted(RNG.random(5), 3), 3), (tilted(RNG.random(40), -30), 1)],
    [(tilted([0.9, 0.05, 0.05], -1), 7), (tilted(RNG.exponential(size=12) ** 3, 0), 4), (tilted([1.0], 6), 5)],
    [(tilted(np.exp(-np.arange(200.0) / 7), -100), 6)],
    [(tilted([0.98, *[0.0] * 150, 0.02], 0), 5), (tilted([0.01, *[0.0] * 300, 0.99], -300), 3)],
]


@pytest.mark.parametrize("aliased", [1e-25, 1e-12, 1e-4, 0.02])
@pytest.mark.parametrize("parts", COMPOSITIONS, ids=range(len(COMPOSITIONS)))
def test_what_a_window_leaves_out_is_no_more_than_is_missing(parts: Parts, aliased: float) -> None:
    found = _convolved(parts, aliased)
    missing = found.missing * math.exp(found.log_moment - sum(count * part.log_moment for part, count in parts))
    assert left_out(found, parts) <= missing + found.rounding  # of which the latter is noted apart
    assert missing <= 2.1 * aliased + 3e-11
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-14)
    assert math.exp(found.log_moment - sum(count * part.log_moment for part, count in parts)) == pytest.approx(1.0, abs=1e-12)
    if aliased < 1e-10:
        assert found.mean == pytest.approx(sum(count * part.mean for part, count in parts), abs=1e-9)
    assert found.rounding >= sum(count * part.rounding for part, count in parts)


@pytest.mark.parametrize("length", [900, 997, 1019, 2031])
def test_tails_of_both_sides_may_be_cut(length: int) -> None:
    """Losses of ±length with a chance of a hundredth each: Chernoff's bound is exact there, and the window ends just before."""
    atoms = np.zeros(2 * length + 1)
    atoms[[0, length, -1]] = 0.01, 0.98, 0.01
    parts = [(tilted(atoms, -length), 1), (tilted([1.0], 0), 1)]
    found = _convolved(parts, 0.0101)
    assert left_out(found, parts) <= found.missing * math.exp(found.log_moment - 0.6) + 1e-15
    assert found.missing <= 0.021


@pytest.mark.parametrize("parts", COMPOSITIONS, ids=range(len(COMPOSITIONS)))
def test_a_window_of_too_few_points_leaves_out_more_and_says_so(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    exact, _ = composed(parts)
    for points in (4, 11, 40):
        monkeypatch.setattr(pld, "_MAX_POINTS", points)
        found = _convolved(parts, 1e-15)
        assert found.weights.size <= max(2 * points + 20, 20)
        missing = found.missing * math.exp(found.log_moment - sum(count * part.log_moment for part, count in parts))
        assert left_out(found, parts) <= missing + found.rounding
        assert missing <= 2.0 + 1e-9
    assert exact.size > 9


def test_what_parts_miss_their_composition_misses() -> None:
    """Of two copies that miss a tenth each, up to 1.1² − 1 of what they have is missing."""
    parts = [(tilted([0.5, 0.5], missing=0.1), 2), (tilted([0.2, 0.8], missing=0.01), 3)]
    found = _convolved(parts, 1e-12)
    assert found.missing == pytest.approx(1.1**2 * 1.01**3 - 1, rel=1e-9)
    alone = tilted([0.5, 0.5], missing=0.1)
    assert _convolved([(alone, 1)], 1e-12) is alone
    assert _convolved([(tilted([0.5, 0.5], missing=3.0), 2)], 1e-12).missing == math.inf


# Tilts


def masses_of(found: _Tilted, tilt: float, less: float) -> float:
    """Σ mass·e^{−less·loss} without the tilt: P-mass for 0, Q-mass for 1."""
    return float(np.sum(found.weights * np.exp(found.log_moment - (tilt + less) * found.losses)))


@pytest.mark.parametrize("tilt", [0.01, 1.0, 12.0])
def test_a_tilt_multiplies_by_an_exponential_and_keeps_what_it_takes_out(tilt: float) -> None:
    masses = RNG.random(40) ** 5 / 30
    discrete = _Discrete(masses, -17, 0.05)
    assert discrete.losses == pytest.approx(0.05 * (np.arange(40) - 17), abs=1e-15)
    found = discrete.tilted(tilt)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-15)
    assert found.weights * math.exp(found.log_moment) == pytest.approx(masses * np.exp(tilt * discrete.losses), rel=1e-12)
    assert discrete.log_moment(tilt) == pytest.approx(found.log_moment, abs=1e-14)
    assert masses_of(found, tilt, 0.0) == pytest.approx(masses.sum(), rel=1e-12)
    assert found.mean == pytest.approx(np.average(discrete.losses, weights=found.weights), rel=1e-12)
    assert found.variance == pytest.approx(np.average((discrete.losses - found.mean) ** 2, weights=found.weights), rel=1e-12)
    assert found.further(0.7) == pytest.approx(math.log(found.weights @ np.exp(0.7 * (found.losses - found.mean))), abs=1e-13)


@pytest.mark.parametrize("tilt", [0.01, 1.0, 12.0])
@pytest.mark.parametrize("coarser", [0.075, 0.13, 0.2])
def test_on_a_coarser_grid_both_masses_stay_and_profiles_only_rise(tilt: float, coarser: float) -> None:
    fine = _Discrete(RNG.random(60) ** 5 / 50, -29, 0.05).tilted(tilt)
    found = fine.relaid(coarser, tilt)
    assert found.h == coarser
    for less in (0.0, 1.0):
        assert masses_of(found, tilt, less) == pytest.approx(masses_of(fine, tilt, less), rel=1e-12)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-14)
    before, after = (_Composition(whole, tilt, 0.0) for whole in (fine, found))
    grid = coarser * np.arange(math.ceil(-1.4 / coarser), math.floor(1.4 / coarser))
    for value in (*np.linspace(-1.4, 1.4, 29), *grid):
        assert after.log_delta(value) >= before.log_delta(value) - 1e-12
    for value in grid:
        assert after.log_delta(value) == pytest.approx(before.log_delta(value), abs=1e-9)
    missing = _Tilted(fine.weights, fine.start, fine.h, fine.log_moment, 0.2, 1e-15, 0.1).relaid(coarser, tilt)
    scale = math.exp(fine.log_moment - found.log_moment)
    assert (missing.missing, missing.doubtful) == pytest.approx((0.2 * scale, 0.1 * scale), rel=1e-12)
    assert missing.rounding > 1e-15


@pytest.mark.parametrize("tilt", [0.02, 1.0, 30.0])
def test_a_profile_is_read_off_the_tilted_masses(tilt: float) -> None:
    """With the infinite loss, and with what is missing at the worst place that it can be: Σ weight·e^{−tilt·x}(1 − e^{−x})."""
    masses = RNG.random(50) ** 4
    masses /= 2 * masses.sum()
    discrete = _Discrete(masses, -20, 0.04)
    whole = discrete.tilted(tilt)
    for value in (-0.5, 0.0, 0.33, 1.1):
        gain = np.maximum(-np.expm1(value - discrete.losses), 0.0)
        for infinite in (0.0, 1e-3):
            found = math.exp(_Composition(whole, tilt, infinite).log_delta(value))
            exact = float(masses @ gain) + infinite
            assert exact <= found <= exact * (1 + 1e-9) + 1e-20 * math.exp(whole.log_moment - tilt * value)
        missing = _Tilted(whole.weights, whole.start, whole.h, whole.log_moment, 1e-2, whole.rounding, 0.0)
        x = np.geomspace(1e-3, 60, 20_001)
        worst = 1e-2 * math.exp(whole.log_moment - tilt * value) * float((np.exp(-tilt * x) * -np.expm1(-x)).max())
        found = math.exp(_Composition(missing, tilt, 0.0).log_delta(value))
        assert found == pytest.approx(min(1.0, float(masses @ gain) + worst), rel=1e-6)
    assert _Composition(whole, tilt, 1.0).log_delta(0.5) == 0.0
    little = _Tilted(whole.weights, whole.start, whole.h, whole.log_moment, 1e-5, whole.rounding, 0.0)
    slack = 1 - math.exp(_Composition(whole, tilt, 0.0).log_delta(1.1) - _Composition(little, tilt, 0.0).log_delta(1.1))
    assert _Composition(little, tilt, 0.0).loose(1.1) == pytest.approx(slack / (1.1 * tilt), rel=1e-3)


# The rough grid, from which all else is chosen

PAIRS: list[LossPair] = [
    loss_pairs(Gaussian(1.0)).remove,
    loss_pairs(PoissonSampled(0.01, Gaussian(0.6))).remove,
    loss_pairs(PoissonSampled(0.01, Gaussian(0.6))).add,
    loss_pairs(PoissonSampled(0.2, Gaussian(0.8, Relation.REPLACE_ONE))).remove,
    loss_pairs(Laplace(1.0)).remove,
    loss_pairs(PureDP(0.3)).add,
    loss_pairs(RowsSampled(0.3, Gaussian(0.7), 8)).remove,
]


def beyond(pair: LossPair, loss: float) -> tuple[float, float]:
    p, q = pair.masses(np.array([loss, math.inf]))
    return float(p[0]), float(q[0])


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_the_rough_grid_rounds_up(pair: LossPair) -> None:
    rough = _Rough(pair)
    total_variation = beyond(pair, 0.0)[0] - beyond(pair, 0.0)[1]
    assert total_variation <= rough.at_zero <= total_variation + 1e-12
    for mass in (1e-3, 1e-7, 1e-15, 1e-30):
        points, left = rough.beyond(mass)
        place = float(rough.edges[points - 1])
        assert place >= 0
        assert beyond(pair, place)[0] * (1 - 1e-14) <= left <= max(mass, beyond(pair, place)[0] * (1 + 1e-9) + 3e-40)
        assert points == 1 or rough.edges[points - 2] < 0 or beyond(pair, float(rough.edges[points - 2]))[0] + 3e-40 > mass
    points = len(rough.edges)
    exact = lay(pair, (pair.support[1] - pair.support[0]) / 20_000)
    for tilt in (0.3, 3.0, 20.0):
        log_moment, mean, variance = rough.tilted(tilt, points)
        fine = exact.tilted(tilt)
        assert rough.log_moment(tilt, points) == log_moment
        assert fine.log_moment - 1e-3 <= log_moment <= fine.log_moment + 0.1 * (1 + tilt * tilt * fine.variance)
        assert mean == pytest.approx(fine.mean, abs=0.1 * (1 + abs(fine.mean)))
        assert fine.variance * (1 - 0.05) - 1e-12 <= variance <= fine.variance * 1.2 + 1e-5
        for log_least in (-3.0, -20.0, -60.0):
            low, high = rough.span(tilt, points, log_least)
            below = float(pair.masses(np.array([-math.inf, low]))[0][0])
            assert high == rough.edges[-1]
            assert low < high
            assert math.log(below + 1e-300) + tilt * low <= log_least or low == rough.edges[0]


def test_of_losses_beyond_the_cap_the_mass_is_infinite() -> None:
    pair = loss_pairs(PoissonSampled(0.5, Gaussian(1 / 27))).remove  # 30 deviations shift the loss by a thousand
    exact = beyond(pair, 600.0)[0]
    assert exact > 1e-20
    assert exact <= infinite_mass(pair) <= exact + 2e-15
    assert _Rough(pair).infinite == infinite_mass(pair)


def test_of_losses_beyond_the_support_the_mass_is_infinite() -> None:
    """The norm of two normal variables is beyond 13.5 with a chance of e^{−13.5²/2}."""
    pair = LossBound(Rayleigh(), np.array([1.0]), np.array([0.0]), np.array([]))
    assert math.exp(-(13.5**2) / 2) <= infinite_mass(pair) <= 1e-39


@pytest.mark.parametrize("pair", PAIRS, ids=range(len(PAIRS)))
def test_laid_on_a_grid_both_masses_stay_and_profiles_are_exact_at_its_points(pair: LossPair) -> None:
    low, high = pair.support
    h = (high - low) / 300
    found = lay(pair, h)
    losses = found.losses
    assert losses[0] <= low
    assert losses[-1] >= high
    assert found.mass.sum() == pytest.approx(1.0, abs=1e-12)
    for number in range(0, len(losses), 13):
        value = float(losses[number])
        p, q = beyond(pair, value)
        profile = float(found.mass @ np.maximum(-np.expm1(value - losses), 0.0))
        assert profile == pytest.approx(p - math.exp(value) * q, rel=1e-9, abs=1e-13)
    for number, share in itertools.product(range(40, 260, 11), (0.3, 0.6)):
        value = float(losses[number]) + share * h
        p, q = beyond(pair, value)
        assert float(found.mass @ np.maximum(-np.expm1(value - losses), 0.0)) >= (p - math.exp(value) * q) * (1 - 1e-12) - 1e-15


@pytest.mark.parametrize("tilt", [0.5, 2.0, 40.0])
def test_losses_so_far_above_that_they_are_not_summed_are_accounted_for(tilt: float) -> None:
    """One loss of 0: far below it δ is 1, also where its weight is less than e^−60."""
    whole = _Discrete(np.ones(1), 0, 0.1).tilted(tilt)
    for reach in (1.0, 30.0, 59.0, 59.99, 60.01, 60.5, 90.0):
        value = -reach / tilt
        found = _Composition(whole, tilt, 0.0).log_delta(value)
        assert math.log(-math.expm1(value)) - 1e-12 <= found <= 0.0


# Whole compositions


def binomial_delta(e: float, failure: float, count: int, value: float) -> float:
    """δ of so many (e, failure)-private mechanisms that tell all there is, in closed form (Kairouz, Oh, Viswanath 2015)."""
    p = 1 / (1 + math.exp(-e))
    kept = math.fsum(
        math.comb(count, i) * p**i * (1 - p) ** (count - i) * max(0.0, -math.expm1(value - (2 * i - count) * e))
        for i in range(count + 1)
    )
    return kept - (1 - kept) * math.expm1(count * math.log1p(-failure))


@pytest.mark.parametrize(
    ("e", "failure", "count"),
    [(0.5, 0.0, 8), (0.1, 1e-7, 40), (2.0, 1e-3, 3), (0.02, 0.0, 200), (0.7, 0.0, 1), (1e-3, 8e-4, 1), (0.1, 0.3, 1)],
)
def test_what_tells_all_that_it_may_composes_to_the_closed_form(e: float, failure: float, count: int) -> None:
    event = SelfComposed(ApproximateDP(e, failure) if failure else PureDP(e), count)
    distribution = PrivacyLossDistribution(event)
    values = [0.0, 0.3 * e, 0.31 * e * count, 0.77 * e * count, 1.001 * e * count]
    exact = [binomial_delta(e, failure, count, value) for value in values]
    found = [distribution.delta(value) for value in values]
    together = distribution.deltas(values)
    for number in range(len(values)):
        assert exact[number] * (1 - 1e-9) <= found[number] <= exact[number] * 1.01 + 1e-25
        assert exact[number] * (1 - 1e-9) <= together[number]
    assert together == pytest.approx(exact, rel=0.05, abs=1e-6)
    for value, target in zip(values[1:4], exact[1:4], strict=True):
        assert value * (1 - 1e-9) <= distribution.epsilon(target * (1 + 1e-9)) + 1e-6
        assert binomial_delta(e, failure, count, distribution.epsilon(target)) <= target * (1 + 1e-9)
        assert distribution.epsilon(target * (1 + 1e-9)) <= value * (1 + 1e-3) + 1e-6
    assert distribution.epsilon(exact[-1] * 0.99) == math.inf or not failure


def test_what_goes_astray_costs_more_the_larger_epsilon_is() -> None:
    """A mechanism that is another with a chance of `astray`: δ + astray·(1 + e^ε)."""
    cut = TruncatedPoisson(0.01, Gaussian(3.0), 25, 1000)
    whole = PoissonSampled(0.01, Gaussian(3.0))
    assert 1e-9 < cut.astray < 1e-3
    own, other = (PrivacyLossDistribution(SelfComposed(event, 3)) for event in (cut, whole))
    for value in (0.5, 2.0):
        added = 3 * cut.astray * (1 + math.exp(value))
        assert own.delta(value) == pytest.approx(min(1.0, other.delta(value) + added), rel=1e-9)
        assert own.deltas([value])[0] == pytest.approx(own.delta(value), rel=1e-3)
    target = 20 * cut.astray
    found = own.epsilon(target)
    assert own.delta(found) <= target * (1 + 1e-4)
    assert own.delta(found * 0.99) > target
    assert own.epsilon(3 * cut.astray * 1.9) == math.inf
    for value in (30.0, 800.0):
        assert own.delta(value) == 1.0
        assert own.deltas([value]).tolist() == [1.0]


def test_beside_what_has_no_finite_loss_nothing_helps() -> None:
    for event in (Composed((PureDP(650.0), Gaussian(1.0))), Composed((Gaussian(1e-3), PureDP(0.1)))):
        distribution = PrivacyLossDistribution(event)
        assert distribution.epsilon(0.5) == math.inf
        assert 0.999 <= distribution.delta(10.0) <= 1.0
        assert (distribution.deltas([0.1, 10.0]) >= 0.999).all()
        assert (distribution.deltas([0.1, 10.0]) <= 1.0).all()


def test_both_directions_count() -> None:
    """At a small ε adding a record to samples may cost more than removing one; the larger is taken at each ε."""
    for event in (PoissonSampled(0.9, Gaussian(0.8)), PoissonSampled(0.3, Gaussian(2.0))):
        pairs = loss_pairs(event)
        for value in (0.05, 0.4, 1.5):
            each = [beyond(pair, value)[0] - math.exp(value) * beyond(pair, value)[1] for pair in (pairs.remove, pairs.add)]
            assert max(each) * (1 - 1e-9) <= PrivacyLossDistribution(event).delta(value) <= max(each) * 1.001
            assert PrivacyLossDistribution(event).deltas([value])[0] >= max(each) * (1 - 1e-9)
            assert PrivacyLossDistribution(event).epsilon(max(each)) >= value * (1 - 1e-9)


def test_gaussians_and_all_else_compose_together() -> None:
    """Gaussians add up to one, of 1/σ² = Σ n/σ_i²; a pure mechanism beside it is a mean of two profiles."""
    e, parts = 0.4, Composed((SelfComposed(Gaussian(4.0), 9), Gaussian(2.0), PureDP(0.4)))
    sigma = 1 / math.sqrt(9 / 16 + 1 / 4)
    p = 1 / (1 + math.exp(-e))
    for value in (0.0, 0.5, 2.0, 5.0):
        exact = p * gaussian_profile(sigma, value - e) + (1 - p) * gaussian_profile(sigma, value + e)
        assert exact * (1 - 1e-9) <= PrivacyLossDistribution(parts).delta(value) <= exact * 1.002


def gaussian_profile(sigma: float, value: float) -> float:
    """Also below 0 (Balle & Wang 2018, Theorem 8)."""
    return float(ndtr(0.5 / sigma - value * sigma) - math.exp(value) * ndtr(-0.5 / sigma - value * sigma))


def test_nothing_that_runs_has_no_loss() -> None:
    nothing = PrivacyLossDistribution(Composed(()))
    assert (nothing.epsilon(1e-9), nothing.delta(0.0)) == (0.0, 0.0)


@pytest.mark.parametrize(("levels", "group"), [(1, 100), (2, 5), (3, 3), (4, 2)])
def test_copies_in_levels_are_all_there_once(levels: int, group: int) -> None:
    """Groups of copies, groups of groups, and what is left over at each level: on one grid they are what all at once are."""
    parts = [(tilted(RNG.random(4), -2), 10), (tilted([0.9, 0.1], 1), 2), (tilted([0.3, 0.7]), 7), (tilted([1.0], 2), 9)]
    found = _in_levels(parts, levels, group, 0.5, lambda copies: 0.1)
    assert left_out(found, parts) <= 1e-10
    assert found.missing <= 1e-10
    assert found.mean == pytest.approx(sum(count * part.mean for part, count in parts), abs=1e-8)
    assert found.h == 0.1


def test_levels_on_coarser_grids_only_round_up() -> None:
    """The last level has few copies left, and a grid for so many; both masses stay."""
    tilt = 0.8
    parts = [(_Discrete(RNG.random(9) / 5, -4, 0.01).tilted(tilt), 30), (_Discrete(RNG.random(5) / 4, -1, 0.01).tilted(tilt), 11)]
    asked: list[int] = []

    def spacing(copies: int) -> float:
        asked.append(copies)
        return 0.1 / math.sqrt(copies)

    whole, found = _convolved(parts, 1e-14), _in_levels(parts, 2, 7, tilt, spacing)
    assert found.h == 0.1 / math.sqrt(asked[-1]) > 0.015
    assert asked[-1] >= 30 // 7 + 11 // 7
    for less in (0.0, 1.0):
        assert masses_of(found, tilt, less) == pytest.approx(masses_of(whole, tilt, less), rel=1e-6)
    fine, coarse = (_Composition(each, tilt, 0.0) for each in (whole, found))
    for value in np.linspace(whole.mean, whole.mean + 0.5, 12):
        assert fine.log_delta(value) - 1e-9 <= coarse.log_delta(value) <= np.logaddexp(fine.log_delta(value) + 1.0, -23.0)
    same = _in_levels(parts, 2, 7, tilt, lambda copies: 0.0149)  # hardly coarser: not worth the loss
    assert same.h == 0.01
