"""The audit's statistics on mechanisms whose true ε is known: coverage, power, and no false refutation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dperm.audit import compare_scores
from dperm.audit.statistics import (
    TradeOff,
    area_under_curve,
    epsilon_from_rates,
    gdp_estimate,
    one_run_epsilon,
    one_run_p_value,
    upper_bound,
)
from dperm.privacy import Event, Gaussian, Laplace, PoissonSampled, PureDP, SelfComposed, epsilon
from dperm.privacy.accountants.gaussian import gaussian_mu

DELTA = 1e-5


class World:
    """Scores of a mechanism with a known event, from its two worlds."""

    def __init__(self, name: str, event: Event) -> None:
        self.name, self.event = name, event

    def scores(self, rng: np.random.Generator, trials: int) -> tuple[np.ndarray, np.ndarray]:
        event = self.event
        if isinstance(event, PureDP):  # randomised response: the answer alone, as coarse as a score can be
            truth = 1 / (1 + math.exp(-event.epsilon))
            first, second = rng.random(trials) > truth, rng.random(trials) < truth
            return first.astype(float), second.astype(float)
        if isinstance(event, Laplace):
            scale = event.noise_multiplier / math.sqrt(2)
            return rng.laplace(size=trials, scale=scale), rng.laplace(size=trials, scale=scale) + 1
        if isinstance(event, Gaussian):
            sigma = event.noise_multiplier
            return rng.normal(size=trials) * sigma, rng.normal(size=trials) * sigma + 1
        assert isinstance(event, SelfComposed) and isinstance(event.event, PoissonSampled)
        inner = event.event.event
        assert isinstance(inner, Gaussian)
        return self._sampled(rng, trials, event.event.rate, inner.noise_multiplier, event.count)

    @staticmethod
    def _sampled(rng: np.random.Generator, trials: int, rate: float, sigma: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """The exact likelihood ratio of all steps together."""
        noise = rng.normal(size=(2, trials, steps)) * sigma
        noise[1] += rng.random((trials, steps)) < rate
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * noise - 1) / (2 * sigma**2)).sum(axis=2)
        return ratio[0], ratio[1]


WORLDS = [
    World("Gaussian", Gaussian(1 / gaussian_mu(1.0, DELTA))),
    World("Laplace", Laplace(math.sqrt(2))),
    World("randomised response", PureDP(1.0)),
    World("sub-sampled Gaussian", SelfComposed(PoissonSampled(0.01, Gaussian(0.5)), 1)),
    World("sub-sampled Gaussian, composed", SelfComposed(PoissonSampled(0.2, Gaussian(1.5)), 20)),
]
each_world = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)


# Clopper and Pearson


def test_upper_bound_is_the_beta_quantile() -> None:
    for errors, trials in ((0, 10), (3, 50), (49, 50), (50, 50), (0, 100_000), (700, 100_000)):
        expected = 1.0 if errors == trials else stats.beta.ppf(0.975, errors + 1, trials - errors)
        assert upper_bound(errors, trials, 0.975) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.3, 0.9])
def test_upper_bound_covers_exactly(rate: float) -> None:
    counts = np.arange(201)
    missed = stats.binom.pmf(counts, 200, rate)[upper_bound(counts, 200, 0.95) < rate].sum()
    assert missed <= 0.05


def test_rates_prove_what_they_should() -> None:
    assert epsilon_from_rates(0.1, 1 - 0.1 * math.e, 0.0) == pytest.approx(1.0)
    assert epsilon_from_rates(1 - 0.1 * math.e, 0.1, 0.0) == pytest.approx(1.0)
    assert epsilon_from_rates(0.5, 0.5, 0.0) == 0.0 == epsilon_from_rates(0.4, 0.7, 1e-5)


def test_area_and_its_error() -> None:
    rng = np.random.default_rng(0)
    areas, errors = [], []
    for _ in range(400):
        first, second = rng.normal(size=80), rng.normal(size=120) + 1
        area, error = area_under_curve(first, second)
        areas.append(area)
        errors.append(error)
    assert np.mean(areas) == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=0.005)
    assert np.mean(errors) == pytest.approx(np.std(areas), rel=0.1)
    assert area_under_curve(np.zeros(5), np.zeros(7))[0] == 0.5


# The trade-off curve


def test_the_curve_of_a_gaussian_is_its_own() -> None:
    curve = TradeOff(Gaussian(1.0))
    rates = np.array([1e-4, 0.01, 0.2, 0.6])
    exact = stats.norm.cdf(stats.norm.isf(rates) - 1.0)
    assert (curve.excess(rates, exact + 1e-9) <= 0).all()
    assert (curve.excess(rates, exact * 0.97) > 0).all()


def test_the_curve_of_randomised_response_has_its_corner() -> None:
    curve = TradeOff(PureDP(1.0))
    corner = 1 / (1 + math.e)
    assert curve.excess(corner, corner) <= 1e-12
    assert curve.excess(0.95 * corner, 0.95 * corner) > 0


# Coverage, power, false refutations


@pytest.mark.fast_cases("randomised response")
@each_world
def test_the_proven_bound_holds_as_often_as_it_says(world: World) -> None:
    rng = np.random.default_rng(1)
    true = epsilon(world.event, DELTA)
    wrong, runs = 0, 400
    for _ in range(runs):
        result = compare_scores(*world.scores(rng, 300), delta=DELTA, confidence=0.9)
        wrong += result.epsilon_lower > true
    assert wrong <= 0.1 * runs + 4 * math.sqrt(0.1 * 0.9 * runs)


@pytest.mark.fast_cases("randomised response")
@each_world
def test_no_sound_mechanism_is_refuted_in_a_thousand_audits(world: World) -> None:
    rng = np.random.default_rng(2)
    refuted = sum(compare_scores(*world.scores(rng, 1000), claim=world.event, delta=DELTA).refuted for _ in range(200))
    assert refuted == 0


@pytest.mark.fast_cases("Gaussian", "Laplace", "randomised response")
@pytest.mark.parametrize(
    ("world", "claim"),
    [
        (WORLDS[0], Gaussian(2 / gaussian_mu(1.0, DELTA))),
        (WORLDS[1], Laplace(2 * math.sqrt(2))),
        (WORLDS[2], PureDP(0.7)),
        (World("", SelfComposed(PoissonSampled(0.2, Gaussian(1.5)), 60)), SelfComposed(PoissonSampled(0.2, Gaussian(1.5)), 20)),
    ],
    ids=["Gaussian", "Laplace", "randomised response", "sub-sampled"],
)
def test_a_claim_that_is_too_small_is_refuted(world: World, claim: Event) -> None:
    rng = np.random.default_rng(3)
    refuted = [compare_scores(*world.scores(rng, 60_000), claim=claim, delta=DELTA) for _ in range(2)]
    assert all(result.refuted and result.findings for result in refuted)


def test_scores_that_point_the_wrong_way_are_used_all_the_same() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.normal(size=4000), rng.normal(size=4000) + 2
    right = compare_scores(first, second, delta=DELTA)
    wrong = compare_scores(-first, -second, delta=DELTA)
    assert wrong.epsilon_lower == pytest.approx(right.epsilon_lower, rel=0.2) and right.epsilon_lower > 1.5


# Estimates


@pytest.mark.fast_cases("1.0")
@pytest.mark.parametrize("true", [1.0, 4.0])
def test_the_estimate_of_a_gaussian_is_within_ten_percent(true: float) -> None:
    rng = np.random.default_rng(5)
    mu = gaussian_mu(true, DELTA)
    found = [gdp_estimate(rng.normal(size=100_000), rng.normal(size=100_000) + mu, DELTA, 0.95) for _ in range(10)]
    assert all(abs(estimate.epsilon - true) < 0.1 * true for estimate in found)
    assert sum(estimate.low <= true <= estimate.high for estimate in found) >= 8


def test_the_estimate_alone_would_refute_randomised_response() -> None:
    """Why an estimate is never a verdict."""
    result = compare_scores(*WORLDS[2].scores(np.random.default_rng(6), 10_000), claim=PureDP(1.0), delta=DELTA)
    assert result.estimate.low > 3.0
    assert not result.refuted
    assert result.epsilon_lower <= 1.0


@pytest.mark.parametrize(
    ("trials", "least", "repeats"), [(10_000, 1.6, 21), pytest.param(100_000, 2.2, 7, marks=pytest.mark.slow)]
)
def test_what_trials_prove_of_a_gaussian_at_four(trials: int, least: float, repeats: int) -> None:
    rng = np.random.default_rng(7)
    mu = gaussian_mu(4.0, DELTA)
    proven = [
        compare_scores(rng.normal(size=trials), rng.normal(size=trials) + mu, delta=DELTA).epsilon_lower for _ in range(repeats)
    ]
    assert np.median(proven) >= least and max(proven) <= 4.0


# One run


def by_definition(canaries: int, guesses: int, correct: int, eps: float, delta: float) -> float:
    """Theorem 5.2 of Steinke, Nasr, Jagielski 2023, term by term."""
    law = stats.binom(guesses, 1 / (1 + math.exp(-eps)))
    tail = law.sf(correct - 1)
    slope = max(sum(law.pmf(k) for k in range(correct - i, correct)) / i for i in range(1, correct + 1))
    return min(1.0, tail + 2 * canaries * delta * slope)


@pytest.mark.parametrize(
    "case", [(100, 20, 19, 1.0, 1e-5), (1000, 100, 87, 2.0, 1e-3), (50, 50, 30, 0.0, 1e-2), (10, 4, 0, 1.0, 0.1)]
)
def test_the_p_value_is_the_theorem_s(case: tuple[int, int, int, float, float]) -> None:
    expected = by_definition(*case) if case[2] else 1.0
    assert one_run_p_value(*case) == pytest.approx(expected, rel=1e-9)


def test_one_run_inverts_its_p_value() -> None:
    found = one_run_epsilon(1000, 100, 90, 1e-5, 0.95)
    assert one_run_p_value(1000, 100, 90, found, 1e-5) <= 0.05 < one_run_p_value(1000, 100, 90, found + 1e-6, 1e-5)
    assert one_run_epsilon(1000, 100, 50, 1e-5, 0.95) == 0.0


def test_one_run_covers_on_randomised_response() -> None:
    """Every canary answered by randomised response: the theorem's worst case."""
    rng = np.random.default_rng(8)
    truth, runs = 1 / (1 + math.exp(-1.0)), 400
    wrong = sum(one_run_epsilon(200, 200, int((rng.random(200) < truth).sum()), 0.0, 0.95) > 1.0 for _ in range(runs))
    assert 0.01 * runs < wrong <= 0.05 * runs + 4 * math.sqrt(0.05 * 0.95 * runs)


# What must not be judged


def test_scores_that_are_not_numbers_are_refused() -> None:
    rng = np.random.default_rng(9)
    first, second = rng.normal(size=1000), rng.normal(size=1000)
    first[3] = np.nan
    with pytest.raises(ValueError, match="numbers, got NaN"):
        compare_scores(first, second, claim=Gaussian(1.0), delta=DELTA)
    for bad in ([1.0, 2.0], np.zeros((10, 1))):
        with pytest.raises(ValueError, match="scores of each world"):
            compare_scores(bad, second, delta=DELTA)
    with pytest.raises(ValueError, match="confidence"):
        compare_scores(second, second, delta=DELTA, confidence=95)


def test_scores_that_never_overlap_have_no_upper_end() -> None:
    estimate = compare_scores(np.zeros(20), np.ones(20), delta=DELTA).estimate
    assert estimate.high is None and estimate.low < 20


def test_a_tail_that_points_the_other_way_than_the_bulk_is_used() -> None:
    rng = np.random.default_rng(10)
    first, second = rng.normal(size=4000), rng.normal(size=4000) + 0.3
    first[::40] = rng.normal(size=100) + 40  # 2.5 % of the first world, none of the second
    assert compare_scores(first, second, delta=DELTA).epsilon_lower > 1.5
