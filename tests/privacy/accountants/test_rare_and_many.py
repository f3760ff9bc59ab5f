"""Samples that are rare, steps that are many, parts that are unlike: bounds that are tight, quick and above the truth.

The oracles share nothing with the accountant: one step's profile in closed form, in 40 digits; two steps' by quadrature over the
first one's output; many steps' by an integral in the complex plane over the moment generating function.
"""

from __future__ import annotations

import itertools
import math
import tracemalloc

import mpmath
import numpy as np
import pytest

from dperm.privacy import (
    ApproximateDP,
    Composed,
    Event,
    Gaussian,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    Relation,
    RowsSampled,
    SampledWithoutReplacement,
    SelfComposed,
    calibrate,
    delta,
    epsilon,
)
from dperm.privacy.accountants import accounting, pld
from dperm.privacy.accountants.dominating_pairs import loss_pairs
from dperm.privacy.accountants.pld import PrivacyLossDistribution, lay, pld_delta, pld_epsilon


def one_step(q: float, sigma: float, value: float) -> mpmath.mpf:
    """δ(ε) of one step, the record removed: the likelihood ratio rises with the output, which has a Gaussian tail."""
    rate, noise = mpmath.mpf(q), mpmath.mpf(sigma)
    ratio = mpmath.exp(value)
    place = noise**2 * mpmath.log((ratio - 1 + rate) / rate) + mpmath.mpf(1) / 2
    tail = [mpmath.erfc((place - mean) / (noise * mpmath.sqrt(2))) / 2 for mean in (0, 1)]
    return rate * tail[1] + (1 - rate - ratio) * tail[0]


def exact_epsilon(q: float, sigma: float, target: float) -> float:
    with mpmath.workdps(40):
        low, high = mpmath.mpf(0), mpmath.mpf(20)
        for _ in range(130):
            middle = (low + high) / 2
            low, high = (middle, high) if one_step(q, sigma, middle) > target else (low, middle)
        return float(high)


@pytest.mark.parametrize("part", [1e-2, 1e-4])
@pytest.mark.parametrize("sigma", [0.6, 1.0, 4.0])
@pytest.mark.parametrize("q", [9.6e-10, 1e-7, 1e-5, 1e-3, 1e-2])
def test_one_step_at_a_small_rate_costs_what_it_costs(q: float, sigma: float, part: float) -> None:
    """ε was up to 30,000 times the truth."""
    exact = exact_epsilon(q, sigma, q * part)
    ours = epsilon(PoissonSampled(q, Gaussian(sigma)), q * part)
    assert exact * (1 - 1e-12) <= ours <= exact * (1 + 3e-4) + 1e-8


def test_little_noise_at_a_small_rate() -> None:
    """ε was 2.2e-6 above the truth, by what losses that count as infinite take of δ."""
    exact = exact_epsilon(9.6e-10, 0.3, 1e-10)
    assert exact <= epsilon(PoissonSampled(9.6e-10, Gaussian(0.3)), 1e-10) <= exact * (1 + 1e-3)


def one_jump(q: float, sigma: float, steps: int, value: float) -> float:
    """A lower bound on δ(ε): what is learnt from whether any output is beyond a place, the best of many places; in 40 digits."""
    with mpmath.workdps(40):
        best = mpmath.mpf(0)
        rate, noise = mpmath.mpf(q), mpmath.mpf(sigma)
        for loss in np.geomspace(0.3, 30, 60) * value:
            place = noise * mpmath.log((mpmath.expm1(loss) + rate) / rate) + 1 / (2 * noise)
            without, shifted = (mpmath.erfc((place - mean) / mpmath.sqrt(2)) / 2 for mean in (0, 1 / noise))
            found = [-mpmath.expm1(steps * mpmath.log1p(-p)) for p in ((1 - rate) * without + rate * shifted, without)]
            best = max(best, found[0] - mpmath.exp(value) * found[1])
        return float(best)


@pytest.mark.fast_cases("1e-09-0.3-10000-1e-06")
@pytest.mark.parametrize(
    ("q", "sigma", "steps", "target"),
    [(1e-9, 0.3, 10**4, 1e-6), (1e-9, 0.6, 10**5, 1e-12), (1e-8, 0.5, 10**4, 1e-10), (1e-7, 0.6, 10**5, 1e-9)],
)
def test_rare_samples_of_many_steps_cost_about_what_one_of_them_tells(q: float, sigma: float, steps: int, target: float) -> None:
    """They took up to 17 seconds of longer digits, and the first was three times the truth."""
    ours = epsilon(SelfComposed(PoissonSampled(q, Gaussian(sigma)), steps), target)
    assert one_jump(q, sigma, steps, ours) <= target * (1 + 1e-9)
    assert one_jump(q, sigma, steps, ours * 0.85) >= target


def test_an_extreme_rate() -> None:
    exact = exact_epsilon(9.6e-10, 0.603, 3.8e-15)
    assert exact <= epsilon(PoissonSampled(9.6e-10, Gaussian(0.603)), 3.8e-15) <= 1.001 * exact


def two_steps(q: float, sigma: float, value: float) -> float:
    """δ(ε) of two steps, the record removed: that of the second at what the first one's loss leaves of ε, on average."""
    edge = math.log1p(-q)  # no loss is less; where the second loss must be more than that, the integrand has a kink
    ends = [-14 * sigma, 1 + 14 * sigma]
    if value - edge > edge:
        kink = sigma**2 * math.log((math.expm1(value - edge) + q) / q) + 0.5
        ends = [ends[0], *([kink] if ends[0] < kink < ends[1] else []), ends[1]]
    nodes, weights = np.polynomial.legendre.leggauss(100)
    total = 0.0
    for start, end in itertools.pairwise(ends):
        cuts = np.linspace(start, end, 60)
        x = ((cuts[1:] + cuts[:-1])[:, None] + np.diff(cuts)[:, None] * nodes).ravel() / 2
        weight = (np.diff(cuts)[:, None] / 2 * weights).ravel()
        loss = np.log1p(q * np.expm1((2 * x - 1) / (2 * sigma**2)))
        density = np.exp(loss - np.square(x / sigma) / 2) / (sigma * math.sqrt(2 * math.pi))
        left = value - loss
        lift = np.expm1(left) + q
        place = sigma**2 * np.log(np.where(lift > 0, lift, q) / q) + 0.5
        upper = [np.array([math.erfc(z) for z in (place - mean) / (sigma * math.sqrt(2))]) / 2 for mean in (0, 1)]
        second = np.where(lift > 0, q * upper[1] - lift * upper[0], -np.expm1(left))
        total += float((weight * density) @ second)
    return total


@pytest.mark.parametrize(
    ("q", "sigma", "target"),
    [(1e-5, 1.0, 1e-8), (1e-7, 0.6, 1e-11), (1e-4, 1.0, 1e-7), (1e-3, 0.6, 1e-7), (1e-2, 1.0, 1e-6), (0.1, 1.0, 1e-5)],
)
def test_two_steps_against_quadrature(q: float, sigma: float, target: float) -> None:
    event = SelfComposed(PoissonSampled(q, Gaussian(sigma)), 2)
    ours = epsilon(event, target)
    assert two_steps(q, sigma, ours) <= target * (1 + 1e-9)
    assert two_steps(q, sigma, ours * (1 - 3e-4)) >= target
    exact = two_steps(q, sigma, ours)
    assert exact * (1 - 1e-9) <= delta(event, ours) <= 1.002 * exact


@pytest.mark.fast_cases("1e-06-1e-10")
@pytest.mark.parametrize(("q", "target"), [(1e-5, 1e-8), (1e-6, 1e-10), (1e-3, 1e-6)])
def test_more_steps_cost_more(q: float, target: float) -> None:
    """Where the grid was chosen from Chernoff's ε, ten steps cost less than one."""
    counts = [1, 2, 3, 4, 6, 8, 10, 20, 50, 300, 4096, 4200]
    values = [epsilon(SelfComposed(PoissonSampled(q, Gaussian(1.0)), count), target) for count in counts]
    assert values == sorted(values)


def integral_delta(q: float, sigma: float, steps: int, value: float, tilt: float) -> float:
    """δ(ε) = (1/2π) ∫ M(z)^steps·e^{−zε}/(z(z + 1)) du over z = tilt + iu, M(z) = E_P e^{z·loss} = E_Q e^{(z + 1)·loss}."""
    x = np.linspace(-12 * sigma, 1 + 20 * sigma, 1201)
    ratio = q * np.expm1((2 * x - 1) / (2 * sigma**2))
    loss = np.log1p(ratio)
    mass = np.exp(-np.square(x / sigma) / 2) * (x[1] - x[0]) / (sigma * np.sqrt(2 * math.pi))

    def log_moment(z: np.ndarray) -> np.ndarray:
        exponent = (z[:, None] + 1) * loss
        series = exponent * (1 + exponent / 2 * (1 + exponent / 3 * (1 + exponent / 4 * (1 + exponent / 5))))
        rise = np.where(np.abs(exponent) < 1e-3, series, np.exp(exponent) - 1) - (z[:, None] + 1) * ratio  # E_Q ratio = 0
        return np.log1p(rise @ mass)

    centre = log_moment(np.array([tilt], dtype=complex)).real[0] * steps
    u = np.linspace(0, 60 / math.sqrt(2 * abs(float(centre)) + 1e-9) * tilt, 400)
    z = tilt + 1j * u
    values = np.exp(steps * log_moment(z) - centre - 1j * u * value) / (z * (z + 1))
    sides = values.real
    return float((sides.sum() - sides[0] / 2 - sides[-1] / 2) * (u[1] - u[0]) / math.pi * np.exp(centre - tilt * value))


@pytest.mark.parametrize(
    ("q", "steps", "tilt", "loose"), [(1e-5, 10**10, 5.0, 1e-3), (1e-6, 10**12, 5.0, 1e-2), (1e-4, 10**6, 12.0, 1e-3)]
)
def test_very_many_steps_are_tight(q: float, steps: int, tilt: float, loose: float) -> None:
    """By Rényi divergences alone 6.6 % more at 10¹⁰ steps. Rounding of 10¹² copies is allowed for by less than 1 %."""
    ours = epsilon(SelfComposed(PoissonSampled(q, Gaussian(1.0)), steps), 1e-6)
    exact = integral_delta(q, 1.0, steps, ours, tilt)
    assert exact == pytest.approx(integral_delta(q, 1.0, steps, ours, 0.8 * tilt), rel=1e-4)  # the path does not matter
    assert exact <= 1e-6 * (1 + 1e-4)
    assert integral_delta(q, 1.0, steps, ours * (1 - loose), tilt) >= 1e-6


def test_an_epsilon_of_zero_needs_no_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("composed")

    monkeypatch.setattr(pld, "_convolved", refuse)
    accounting._known.cache_clear()
    assert epsilon(SelfComposed(PoissonSampled(1e-7, Gaussian(1.0)), 10), 1e-5) == 0.0
    event = PoissonSampled(1e-7, Gaussian(1.0))
    assert float(one_step(1e-7, 1.0, 0.0)) < 4e-8 and epsilon(event, 4e-8) == 0.0


def test_an_epsilon_of_zero_of_many_steps() -> None:
    """Total variations add up to more than δ, but losses cancel."""
    event = SelfComposed(PoissonSampled(1e-3, Gaussian(5.0)), 10_000)
    bound = delta(event, 0.0)
    assert bound < 0.2 * 10_000 * float(one_step(1e-3, 5.0, 0.0))
    assert epsilon(event, bound * 1.001) == 0.0 < epsilon(event, bound * 0.99)


def test_a_hundred_unlike_parts() -> None:
    """They took 15 seconds and 1.2 GB. Equal parts under a hundred names cost what they cost under one."""
    alike = Composed(tuple(PoissonSampled(0.01, Gaussian(1.0 + 1e-9 * number)) for number in range(100)))
    same = epsilon(SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), 100), 1e-5)
    tracemalloc.start()
    try:
        assert epsilon(alike, 1e-5) == pytest.approx(same, rel=1e-4)
        assert tracemalloc.get_traced_memory()[1] < 300e6
    finally:
        tracemalloc.stop()
    unlike = Composed(tuple(PoissonSampled(0.01 + 1e-4 * number, Gaussian(1.0)) for number in range(100)))
    assert same < epsilon(unlike, 1e-5) < epsilon(SelfComposed(PoissonSampled(0.02, Gaussian(1.0)), 100), 1e-5)


def test_calibration_at_a_large_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of losses were laid where none is: 40 seconds. Counted: the points of all grids."""
    laid = 0

    def counted(*args: float) -> object:
        nonlocal laid
        found = lay(*args)  # type: ignore[arg-type]
        laid += found.mass.size
        return found

    monkeypatch.setattr(pld, "lay", counted)
    accounting._known.cache_clear()

    def make(noise: float) -> Event:
        return SelfComposed(PoissonSampled(0.01, Gaussian(noise)), 10)

    noise = calibrate(make, 1000.0, 1e-5)
    assert 999.9 <= epsilon(make(noise), 1e-5) <= 1000.0
    assert laid < 2e6


EVENTS: list[Event] = [
    PureDP(0.3),
    Laplace(2.0),
    ApproximateDP(0.3, 1e-4),
    PoissonSampled(1e-4, Gaussian(0.5)),
    PoissonSampled(0.2, Gaussian(0.8, Relation.REPLACE_ONE)),
    RowsSampled(0.3, Gaussian(0.7), 8),
    SampledWithoutReplacement(0.1, Gaussian(1.0, Relation.REPLACE_ONE)),
    ObjectivePerturbationEvent(4.0, 1.0, 0.25, 2.0, loss="logistic"),
    ObjectivePerturbationEvent(9.0, 1.0, 0.25, 2.0, Relation.REPLACE_ONE),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_pair_that_is_cut_keeps_its_masses(event: Event) -> None:
    """Lower losses move up to the grid's end, so that no P-mass is lost there, and larger ones are left out."""
    for pair in (loss_pairs(event).remove, loss_pairs(event).add):
        low, high = pair.support
        whole = lay(pair, (high - low) / 500)
        infinite = loss_pairs(event).infinite
        assert math.exp(whole.log_moment(0.0)) == pytest.approx(1 - infinite, abs=1e-12)
        assert math.exp(whole.log_moment(-1.0)) <= 1 + 1e-12  # Q-masses
        part = lay(pair, (high - low) / 500, low + 0.3 * (high - low), low + 0.8 * (high - low))
        inside = whole.mass[part.start - whole.start :][: part.mass.size]
        assert part.mass[1:-3] == pytest.approx(inside[1:-3], abs=1e-12)  # the last cell of all is cut
        up_to = pair.masses(np.array([-math.inf, low + 0.8 * (high - low)]))
        assert part.mass.sum() == pytest.approx(float(up_to[0][0]), abs=1e-12)


def test_losses_that_are_cut_take_their_part_of_what_is_left_of_delta() -> None:
    """Another part uses up all but a millionth of δ, which is what the rest has."""
    both = Composed((ApproximateDP(0.5, 1e-5 * (1 - 1e-6)), PoissonSampled(1e-3, Gaussian(1.0))))
    assert pld_epsilon(both, 1e-5) == pytest.approx(0.5 + epsilon(PoissonSampled(1e-3, Gaussian(1.0)), 1e-11), rel=0.05)


def test_levels_compose_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few copies in many levels, with what is left over at each, against all at once."""
    parts = Composed((SelfComposed(PoissonSampled(0.1, Gaussian(1.0)), 45), SelfComposed(Laplace(20.0), 13), Gaussian(10.0)))
    at_once = [pld_epsilon(parts, 1e-6), pld_delta(parts, 1.0)]
    monkeypatch.setattr(pld, "_MOST_COPIES", 4)
    found = PrivacyLossDistribution(parts)
    assert found.epsilon(1e-6) == pytest.approx(at_once[0], rel=1e-4)
    assert found.delta(1.0) == pytest.approx(at_once[1], rel=1e-3)


@pytest.mark.fast_cases("1e-09-0.6-1e-12")
@pytest.mark.parametrize(("rate", "noise", "delta"), [(1e-8, 0.5, 1e-10), (1e-9, 0.6, 1e-12)])
def test_rare_samples_cost_no_less_for_one_step_more(rate: float, noise: float, delta: float) -> None:
    """Longer digits came with the 100,001st copy: ε fell there by a factor of seven."""
    found = [epsilon(SelfComposed(PoissonSampled(rate, Gaussian(noise)), count), delta) for count in (30_000, 100_000, 100_001)]
    for fewer, more in itertools.pairwise(found):
        assert fewer <= more * (1 + 2e-3)
    assert found[2] == pytest.approx(found[1], rel=2e-3)


TINY = [(q, noise) for q in (2.8e-15, 9e-15, 1e-13, 1e-11) for noise in (0.5, 1.0, 40.0, 1e4)]


@pytest.mark.parametrize(("rate", "noise"), TINY)
def test_one_step_of_tiny_losses_is_not_below_its_closed_form(rate: float, noise: float) -> None:
    """δ(ε) = q·δ of the Gaussian at ln(1 + (e^ε − 1)/q), in 40 digits: all digits of a cell's masses cancel in it."""
    with mpmath.workdps(40):
        q, shift = mpmath.mpf(rate), 1 / mpmath.mpf(noise)
        for value in (0.0, rate / noise, 3 * rate / noise):
            at = mpmath.log1p(mpmath.expm1(value) / q)
            gaussian = mpmath.ncdf(shift / 2 - at / shift) - mpmath.exp(at) * mpmath.ncdf(-shift / 2 - at / shift)
            exact = float(q * gaussian)
            for event in (PoissonSampled(rate, Gaussian(noise)), RowsSampled(rate, Gaussian(noise), 1)):
                assert exact <= delta(event, value) <= exact * (1.1 if value else 1.001) + 1e-13 * (value > 0)
            assert delta(SampledWithoutReplacement(rate, Gaussian(noise, Relation.REPLACE_ONE)), value) >= exact


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize(("rate", "steps"), [(1.37e-12, 10**4), (1.37e-11, 10**5), (1.37e-9, 10**4)])
def test_many_steps_of_tiny_losses_are_not_below_their_normal_limit(replaced: bool, rate: float, steps: int) -> None:
    """At σ = 10,000 losses are normal up to their seventh digit: T steps are one Gaussian with μ² = T·q²·(e^{1/σ²} − 1)."""
    noise = 1e4
    event = PoissonSampled(rate, Gaussian(noise, Relation.REPLACE_ONE if replaced else Relation.ADD_OR_REMOVE_ONE))
    with mpmath.workdps(40):
        mu = mpmath.sqrt(steps * mpmath.expm1(mpmath.mpf(noise) ** -2)) * rate
        for place in (0.0, 1.0, 2.0):
            exact = float(mpmath.ncdf(mu / 2 - place) - mpmath.exp(place * mu) * mpmath.ncdf(-mu / 2 - place))
            assert epsilon(SelfComposed(event, steps), exact) >= float(place * mu) * (1 - 1e-4)
            assert delta(SelfComposed(event, steps), float(place * mu)) >= exact * (1 - 1e-4)
