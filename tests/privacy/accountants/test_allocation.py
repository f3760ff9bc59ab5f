"""Random allocation is never accounted below certified quadrature, and hardly above Monte Carlo."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from dperm.privacy import (
    Composed,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    RandomAllocation,
    Relation,
    SampledWithoutReplacement,
    SelfComposed,
    TruncatedPoisson,
    calibrate,
    delta,
    epsilon,
)
from dperm.privacy.accountants.gaussian import gaussian_delta
from dperm.privacy.accountants.random_allocation import allocation_ratio
from dperm.privacy.events import event_from_dict, leaves


def least(steps: int, s: float, epsilon: float, removed: bool) -> float:
    """δ(ε) from below: E φ(Σ exp(s·x_i − s²/2)/t), φ convex, step by step.

    Each lognormal is replaced by its means over cells, which a convex function can only fall by (Jensen), and a function known
    at grid points by the chords of the neighbouring intervals, prolonged, which lie below it.
    """
    cells = np.linspace(-9.0, 9.0, 601)
    chance = np.diff(ndtr(cells))
    means = np.diff(ndtr(cells - s)) / np.where(chance > 0, chance, 1.0) / steps  # the rest, beyond nine deviations, is left out
    at = np.concatenate([[0.0], np.geomspace(1e-4, 1e9, 4001)])
    value = np.maximum(at - math.exp(epsilon), 0.0) if removed else np.maximum(1 - math.exp(epsilon) * at, 0.0)
    for step in range(steps):
        where = (at[:, None] + means[None, :]) if step < steps - 1 else means[None, :]
        below = np.maximum(below_chords(at, value, where), 0.0)
        value = below @ chance
    return float(value[0])


def below_chords(at: np.ndarray, value: np.ndarray, where: np.ndarray) -> np.ndarray:
    slopes = np.diff(value) / np.diff(at)
    place = np.clip(np.searchsorted(at, where) - 1, 0, len(slopes) - 1)
    left, right = np.maximum(place - 1, 0), np.minimum(place + 1, len(slopes) - 1)
    from_left = np.where(place > 0, value[place] + slopes[left] * (where - at[place]), 0.0)
    from_right = np.where(
        place < len(slopes) - 1, value[place + 1] + slopes[right] * (where - at[place + 1]), value[-1] + 0 * where
    )
    return np.maximum(from_left, from_right)


@pytest.mark.parametrize(
    ("steps", "noise"),
    [(1, 1.0), (2, 0.6), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((3, 1.0), (5, 0.8), (12, 0.7)))],
)
def test_never_below_certified_quadrature(steps: int, noise: float) -> None:
    event = RandomAllocation(steps, Gaussian(noise)) if steps > 1 else None
    ratio = allocation_ratio(steps, noise)
    values = np.exp(ratio.losses)
    for size in (0.2, 1.0, 2.5):
        for removed in (True, False):
            lower = least(steps, 1 / noise, size, removed)
            gain = values - math.exp(size) if removed else 1 - math.exp(size) * values
            here = float(ratio.mass @ np.maximum(gain, 0.0))
            assert here >= lower
            if lower > 1e-6:
                assert here <= 1.03 * lower  # the quadrature itself is coarse
        if event is not None:
            both = max(least(steps, 1 / noise, size, removed) for removed in (True, False))
            assert delta(event, size) >= both
        else:
            assert least(1, 1 / noise, size, True) <= gaussian_delta(noise, size)


@pytest.mark.parametrize("target", [2.0, *(pytest.param(target, marks=pytest.mark.slow) for target in (0.5, 8.0))])
def test_within_five_per_cent_of_monte_carlo(target: float) -> None:
    steps, draws = 100, 200_000
    low, high = 0.1, 2.0  # noise at which one epoch's δ at this ε is near 1e-3
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(RandomAllocation(steps, Gaussian(middle)), target) > 1e-3 else (low, middle)
    noise = high
    s = 1 / noise
    rng = np.random.default_rng(5)
    others = np.zeros(draws)
    for _ in range(steps - 1):
        others += np.exp(s * rng.standard_normal(draws) - s * s / 2)
    # with the record in a step: its own number, of mean s, is integrated out
    sums = np.linspace(others.min(), others.max(), 400)
    own = np.linspace(s - 9, s + 9, 4001)
    ratio = (sums[:, None] + np.exp(s * own - s * s / 2)) / steps
    inside = np.maximum(1 - math.exp(target) / ratio, 0.0) @ np.exp(-((own - s) ** 2) / 2) * (own[1] - own[0])
    gain = np.interp(others, sums, inside / math.sqrt(2 * math.pi))
    found, error = float(gain.mean()), float(gain.std() / math.sqrt(draws))
    assert error < 0.03 * found
    ours = delta(RandomAllocation(steps, Gaussian(noise)), target)
    assert found - 4 * error <= ours <= 1.05 * found + 4 * error


def test_epochs_compose_and_need_no_more_than_poisson_sampling() -> None:
    for steps, noise, epochs in ((20, 0.8, 5), (100, 0.8, 10)):
        allocated = SelfComposed(RandomAllocation(steps, Gaussian(noise)), epochs)
        drawn = SelfComposed(PoissonSampled(1 / steps, Gaussian(noise)), steps * epochs)
        assert 0.5 * epsilon(drawn, 1e-5) < epsilon(allocated, 1e-5) < epsilon(drawn, 1e-5)
    assert epsilon(Composed((allocated, Gaussian(5.0))), 1e-5) > epsilon(allocated, 1e-5)


def test_more_noise_and_more_steps_are_more_private() -> None:
    by_noise = [epsilon(RandomAllocation(10, Gaussian(noise)), 1e-5) for noise in (0.5, 0.7, 1.0, 2.0)]
    by_steps = [epsilon(RandomAllocation(steps, Gaussian(0.7)), 1e-5) for steps in (2, 3, 7, 31, 200)]
    assert by_noise == sorted(by_noise, reverse=True) and by_steps == sorted(by_steps, reverse=True)
    assert by_steps[0] < epsilon(Gaussian(0.7), 1e-5)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="add_or_remove_one"):
        RandomAllocation(4, Gaussian(1.0, Relation.REPLACE_ONE))
    with pytest.raises(ValueError, match="replace_one"):
        SampledWithoutReplacement(0.1, Gaussian(1.0))
    with pytest.raises(TypeError, match="Expected a Gaussian"):
        RandomAllocation(4, PoissonSampled(0.1, Gaussian(1.0)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps >= 2"):
        RandomAllocation(1, Gaussian(1.0))
    assert epsilon(RandomAllocation(4, Gaussian(0.01)), 1e-5) == math.inf


def test_little_noise_and_many_steps_are_accounted_for_quickly_and_closely() -> None:
    """Grids may be coarse where losses are large; bounds stay between one Gaussian and its shares."""
    for steps, noise in ((1000, 0.1), (8, 0.06), (100, 0.3)):
        found = epsilon(RandomAllocation(steps, Gaussian(noise)), 1e-5)
        assert epsilon(Gaussian(noise), min(0.9, 1e-5 * steps)) - math.log(steps) <= found * 1.01
        assert found <= epsilon(Gaussian(noise), 1e-5)
    assert calibrate(lambda noise: RandomAllocation(8, Gaussian(noise)), 500.0, 1e-5) == pytest.approx(0.05, rel=1e-3)


def test_what_no_accountant_knows_with_the_rest_is_added_to_it() -> None:
    filtered = FilteredRdp(8.0, 0.05)
    apart = epsilon(filtered, 5e-6) + epsilon(RandomAllocation(8, Gaussian(1.0)), 5e-6)
    assert epsilon(Composed((filtered, RandomAllocation(8, Gaussian(1.0)))), 1e-5) == pytest.approx(apart, rel=1e-6)


# Any number of steps


@pytest.mark.parametrize(
    ("steps", "noise"), [(3, 0.4), (7, 1.0), (129, 160.0), (1000, 0.6374), (1025, 40.0), (1023, 3.0), (2**20 - 1, 3.0), (9, 1e6)]
)
def test_any_number_of_steps_has_the_exact_mean_and_hardly_more_variance(steps: int, noise: float) -> None:
    ratio = allocation_ratio(steps, noise)
    values = np.expm1(ratio.losses)
    assert ratio.mass.sum() == pytest.approx(1.0, abs=1e-14)
    assert abs(ratio.mass @ values) < 1e-13
    exact = math.expm1(1 / noise**2) / steps
    assert exact <= ratio.mass @ np.square(values) <= 1.006 * exact


@pytest.mark.parametrize(("steps", "noise"), [(129, 160.0), (1025, 40.0), (5, 6e7), (1023, 0.9), (2**30 + 1, 5.0), (10**6, 0.5)])
def test_time_and_grid_hardly_depend_on_the_digits_of_the_number_of_steps(steps: int, noise: float) -> None:
    allocation_ratio.cache_clear()
    started = time.process_time()
    ratio = allocation_ratio(steps, noise)
    assert time.process_time() - started < 3.0  # half a second; 129 steps took 12.5
    assert ratio.mass.size < 6000


def test_epsilon_falls_with_each_step() -> None:
    found = [epsilon(RandomAllocation(steps, Gaussian(0.9)), 1e-6) for steps in (*range(2, 10), 63, 64, 65, 127, 128, 129)]
    assert found == sorted(found, reverse=True) and len(set(found)) == len(found)


# Several of the steps


def log_ratio_of_subsets(draws: np.ndarray, selected: int, s: float) -> np.ndarray:
    """(draws,): the mean over all sets of `selected` steps of Π exp(s·x_i − s²/2), x = draws (draws, steps)."""
    each = np.exp(s * draws - s * s / 2)
    sets = list(itertools.combinations(range(draws.shape[1]), selected))
    return np.log(np.mean([np.prod(each[:, list(chosen)], axis=1) for chosen in sets], axis=0))


@pytest.mark.parametrize(("steps", "selected", "noise"), [(4, 2, 1.0), (5, 2, 1.5), (5, 3, 1.0), (6, 5, 2.0)])
def test_several_steps_cost_no_less_than_uniform_sets(steps: int, selected: int, noise: float) -> None:
    event = RandomAllocation(steps, Gaussian(noise), selected)
    rng = np.random.default_rng(3)
    draws = rng.standard_normal((200_000, steps))
    with_record = draws.copy()
    with_record[:, :selected] += 1 / noise  # which of the steps they are makes no difference to the ratio
    removed = log_ratio_of_subsets(with_record, selected, 1 / noise)
    added = -log_ratio_of_subsets(draws, selected, 1 / noise)
    for x in (0.5, 1.5):
        gains = [np.maximum(-np.expm1(x - losses), 0.0) for losses in (removed, added)]
        lower = max(float(gain.mean() - 4 * gain.std() / math.sqrt(len(draws))) for gain in gains)
        upper = max(float(gain.mean() + 4 * gain.std() / math.sqrt(len(draws))) for gain in gains)
        assert lower <= delta(event, x) <= 1.35 * upper


def test_several_steps_are_blocks_of_one_each() -> None:
    noise = Gaussian(1.3)
    assert leaves(RandomAllocation(10, noise, 3)) == {RandomAllocation(4, noise): 1, RandomAllocation(3, noise): 2}
    assert leaves(RandomAllocation(12, noise, 3)) == {RandomAllocation(4, noise): 3}
    assert leaves(SelfComposed(RandomAllocation(5, noise, 4), 2)) == {RandomAllocation(2, noise): 2, noise: 6}
    assert epsilon(RandomAllocation(4, noise, 4), 1e-5) == epsilon(SelfComposed(noise, 4), 1e-5)
    published = epsilon(SelfComposed(RandomAllocation(3, noise), 3), 1e-5)
    assert epsilon(RandomAllocation(9, noise, 3), 1e-5) == published
    assert epsilon(RandomAllocation(12, noise, 3), 1e-5) < epsilon(RandomAllocation(11, noise, 3), 1e-5) < published
    for wrong in (0, 5, 1.5):
        with pytest.raises(ValueError, match="num_selected"):
            RandomAllocation(4, noise, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "event",
    [
        RandomAllocation(4, Gaussian(1.0)),
        RandomAllocation(4, Gaussian(1.0), 3),
        TruncatedPoisson(0.1, Gaussian(1.0), 20, 100),
        SampledWithoutReplacement(0.1, Gaussian(1.0, Relation.REPLACE_ONE)),
    ],
)
def test_they_are_written_and_read(event: RandomAllocation) -> None:
    assert event_from_dict(event.to_dict()) == event


# Sampling without replacement


def exact(q: float, sigma: float, epsilon: float) -> float:
    """δ by quadrature where the query moves from +½ to −½, and samples without the record give 0."""
    x = np.linspace(-40, 40, 800_001)

    def density(mean: float) -> np.ndarray:
        return np.exp(-(((x - mean) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))

    first, second = ((1 - q) * density(0.0) + q * density(move) for move in (0.5, -0.5))
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum() * (x[1] - x[0]))


def extreme(q: float, sigma: float, epsilon: float) -> float:
    """The same where samples without the record give what its replacement gives: a query that moves by the whole sensitivity."""
    x = np.linspace(-40, 40, 800_001)
    base = np.exp(-((x / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    moved = np.exp(-(((x - 1) / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
    mixed = (1 - q) * base + q * moved
    gap = [np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in ((mixed, base), (base, mixed))]
    return float(max(gap) * (x[1] - x[0]))


@pytest.mark.parametrize(("q", "sigma"), [(0.1, 1.0), (0.3, 0.7), (0.01, 0.5)])
def test_without_replacement_is_above_exact_densities(q: float, sigma: float) -> None:
    event = SampledWithoutReplacement(q, Gaussian(sigma, Relation.REPLACE_ONE))
    for size in (0.1, 0.5, 1.5, 3.0):
        bound = delta(event, size)
        assert bound >= (1 - 1e-9) * exact(q, sigma, size) and bound >= (1 - 1e-9) * extreme(q, sigma, size)
        assert bound <= extreme(q, sigma, size) * 1.001 + 1e-12
    assert epsilon(event, 1e-5) < epsilon(event.event, 1e-5)


def test_without_replacement_below_zero_mirrors_itself() -> None:
    """H at e^ε < 1 is 1 − e^ε + e^ε·H(e^−ε), of the mirrored pair: composition counts on it."""
    event = SampledWithoutReplacement(0.2, Gaussian(0.8, Relation.REPLACE_ONE))
    from dperm.privacy.accountants.dominating_pairs import loss_pairs

    pair = loss_pairs(event).remove
    edges = np.linspace(-20, 20, 400_001)
    p, q = pair.masses(edges)
    assert p.sum() == pytest.approx(1.0, abs=1e-9) and q.sum() == pytest.approx(1.0, abs=1e-9)
    for size in (0.2, 1.0):
        above = np.maximum(p - math.exp(size) * q, 0.0).sum()
        below = np.maximum(p - math.exp(-size) * q, 0.0).sum()
        assert below == pytest.approx(1 - math.exp(-size) + math.exp(-size) * above, rel=1e-3)


# Poisson sampling cut short


@pytest.mark.parametrize(
    ("capacity", "largest", "rate", "exact"),
    [(10, 5_000_000_000, 1e-9, 1.3695e-2), (1300, 10**9, 1e-6, 5.280285e-20), (45, 60, 0.3, 1.3e-14), (10, 10**18, 1e-17, 0.4)],
)
def test_overflow_is_never_below_the_tail(capacity: int, largest: int, rate: float, exact: float) -> None:
    """Also beyond 2³¹ records, where a common implementation of the binomial tail wraps around."""
    bound = TruncatedPoisson.overflow(rate, capacity, largest)
    assert bound >= exact if largest > 100 else bound >= binom.sf(capacity, largest, rate) > 0
    assert bound <= 200 * exact


@pytest.mark.slow
def test_what_is_cut_short_is_charged() -> None:
    whole = PoissonSampled(0.01, Gaussian(1.0))
    for capacity in (170, 200):
        cut = TruncatedPoisson(0.01, Gaussian(1.0), capacity, 10_000)
        for size in (0.5, 1.0):
            more = delta(SelfComposed(cut, 100), size) - delta(SelfComposed(whole, 100), size)
            assert more == pytest.approx(100 * (1 + math.exp(size)) * cut.astray, rel=1e-6, abs=1e-15)
    spent = epsilon(SelfComposed(TruncatedPoisson(0.01, Gaussian(1.0), 165, 10_000), 100), 1e-5)
    assert delta(SelfComposed(TruncatedPoisson(0.01, Gaussian(1.0), 165, 10_000), 100), spent) <= 1e-5 * (1 + 1e-4)
    assert spent > epsilon(SelfComposed(whole, 100), 1e-5)
    assert epsilon(SelfComposed(TruncatedPoisson(0.01, Gaussian(1.0), 110, 10_000), 100), 1e-5) == math.inf
    assert TruncatedPoisson(0.01, Gaussian(1.0), 10_000, 10_000).astray == 0.0
    # however much noise there is
    assert epsilon(SelfComposed(TruncatedPoisson(0.01, Gaussian(1e5), 110, 10_000), 100), 1e-5) == math.inf


@pytest.mark.parametrize("noise", [0.06, 0.7, 3.0, 200.0])
def test_what_is_cut_off_one_lognormal_is_accounted_for(noise: float) -> None:
    """ln U is normal: of mean −s²/2 without the record and s²/2 with it."""
    ratio, s = allocation_ratio(1, noise), 1 / noise
    low, high = ratio.support
    for side, end in ((1, low), (-1, high)):
        for mean in (-s * s / 2, s * s / 2):
            assert ndtr(side * (end - mean) / s) <= ratio.lost
    assert allocation_ratio(4, noise).lost >= 4 * ratio.lost
