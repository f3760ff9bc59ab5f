"""Our PLD against dp-accounting's, where the design trusts that one, and against closed forms everywhere."""

from __future__ import annotations

import itertools
import math

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
    SelfComposed,
    epsilon,
)
from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from dperm.privacy.accountants.pld import pld_delta, pld_epsilon
from dperm.privacy.accountants.rdp import rdp_epsilon

REPLACE = Relation.REPLACE_ONE


def oracle(
    q: float, sigma: float, steps: int, delta: float, relation: Relation = Relation.ADD_OR_REMOVE_ONE
) -> tuple[float, float]:
    """dp-accounting's optimistic and pessimistic ε. Under replace-one it doubles the sensitivity itself."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    theirs = NeighboringRelation.ADD_OR_REMOVE_ONE if relation is not REPLACE else NeighboringRelation.REPLACE_ONE
    guess = rdp_epsilon(SelfComposed(PoissonSampled(q, Gaussian(sigma)), steps), delta)
    found = []
    for pessimistic in (False, True):
        step = privacy_loss_distribution.from_gaussian_mechanism(
            sigma * (2 if relation is REPLACE else 1),
            sampling_prob=q,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=min(1e-4, guess / 5e3 / math.sqrt(steps)),
            neighboring_relation=theirs,
        )
        found.append(step.self_compose(steps).get_epsilon_for_delta(delta))
    return found[0], found[1]


#: (q, σ, T, δ): large and small rates, noises and step counts with 0.05 ≤ ε ≤ 50.
CASES = [
    (512 / 60000, 1.72124, 2340, 1e-5),
    (1e-3, 0.6, 1000, 1e-6),
    (0.01, 1.0, 500, 1e-5),
    (0.1, 2.0, 200, 1e-5),
    (0.5, 3.0, 50, 1e-3),
    (0.9, 10.0, 100, 1e-8),
    (0.2, 0.7, 5, 1e-5),
    (0.02, 0.5, 20, 1e-5),
    (1e-4, 0.4, 1000, 1e-6),
    (0.3, 30.0, 2000, 1e-5),
]


@pytest.mark.fast_cases("0.5-3.0-50-0.001", "0.9-10.0-100-1e-08")
@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), CASES)
def test_poisson_sampled_gaussian_agrees_with_dp_accounting(q: float, sigma: float, steps: int, delta: float) -> None:
    ours = pld_epsilon(SelfComposed(PoissonSampled(q, Gaussian(sigma)), steps), delta)
    low, high = oracle(q, sigma, steps, delta)
    assert ours >= low * (1 - 1e-9)
    assert ours <= high * 1.001


@pytest.mark.fast_cases("1.0-4.0-10-1e-05")
@pytest.mark.parametrize(("q", "sigma", "steps", "delta"), [(0.01, 1.0, 300, 1e-5), (0.3, 2.0, 40, 1e-6), (1.0, 4.0, 10, 1e-5)])
def test_replace_one_agrees_with_dp_accounting(q: float, sigma: float, steps: int, delta: float) -> None:
    ours = epsilon(SelfComposed(PoissonSampled(q, Gaussian(sigma, REPLACE)), steps), delta)
    low, high = oracle(q, sigma, steps, delta, REPLACE)
    assert ours >= low * (1 - 1e-9)
    assert ours <= high * 1.001


@pytest.mark.slow
def test_wide_grid_against_dp_accounting() -> None:
    """q from 1e-4 to 1, σ from 0.3 to 50, T from 1 to 1e5, wherever 0.05 ≤ ε ≤ 50 and the oracle finishes."""
    compared = 0
    for q, sigma, steps in itertools.product(
        (1e-4, 1e-3, 0.01, 0.1, 0.5), (0.3, 0.6, 1.0, 3.0, 10.0, 50.0), (1, 30, 1000, 30000)
    ):
        event = SelfComposed(PoissonSampled(q, Gaussian(sigma)), steps)
        ours = pld_epsilon(event, 1e-5)
        assert ours >= 0
        if not 0.05 <= ours <= 50 or q * math.sqrt(steps) / sigma > 3 or steps > 1000:
            continue
        low, high = oracle(q, sigma, steps, 1e-5)
        assert low * (1 - 1e-9) <= ours <= high * 1.003, (q, sigma, steps, low, ours, high)
        compared += 1
    assert compared >= 25


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(1e-4, 50.0, 100_000), (1e-4, 0.3, 100_000), (1e-4, 5.0, 100_000), (0.9, 0.3, 1000), (1.0, 0.05, 3)]
)
def test_extreme_settings_stay_bounded(q: float, sigma: float, steps: int) -> None:
    event = SelfComposed(PoissonSampled(q, Gaussian(sigma)), steps)
    ours = epsilon(event, 1e-5)
    assert 0 <= ours < math.inf
    # amplification never hurts, and RDP is an upper bound too
    assert ours <= epsilon(SelfComposed(Gaussian(sigma), steps), 1e-5) * 1.001
    assert ours <= rdp_epsilon(event, 1e-5) * 1.001


@pytest.mark.parametrize("s", [0.01, 0.3, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12, 1e-25])
def test_gaussian_to_tiny_delta(s: float, delta: float) -> None:
    """The tilt keeps relative digits where a plain FFT has none: δ = 1e-25 is as good as 1e-3."""
    exact = gaussian_epsilon(1 / s, delta)
    ours = pld_epsilon(Gaussian(1 / s), delta)
    assert exact * (1 - 1e-9) <= ours <= exact * 1.0003 + 1e-6
    assert pld_delta(Gaussian(1 / s), exact) >= gaussian_delta(1 / s, exact) * (1 - 1e-9)


def test_many_gaussians_through_the_fft() -> None:
    """A sampling rate of almost 1 takes the FFT path where the answer is a plain Gaussian's."""
    exact = gaussian_epsilon(5.0 / math.sqrt(1000 / 100), 1e-5)
    event = Composed((SelfComposed(PoissonSampled(1 - 1e-12, Gaussian(50.0)), 1000),))
    ours = pld_epsilon(event, 1e-5)
    assert exact * (1 - 1e-6) <= ours <= exact * 1.001


def test_randomised_response_composition_is_exact() -> None:
    """k-fold composition of a pure mechanism: a binomial sum (Kairouz, Oh, Viswanath 2015, Theorem 3.3)."""
    e, k, target = 0.2, 30, 2.0
    p = 1 / (1 + math.exp(-e))
    exact = sum(
        math.comb(k, i) * p**i * (1 - p) ** (k - i) * max(0.0, 1 - math.exp(target - (2 * i - k) * e)) for i in range(k + 1)
    )
    ours = pld_delta(SelfComposed(PureDP(e), k), target)
    assert exact * (1 - 1e-9) <= ours <= exact * 1.01


def test_laplace_profile() -> None:
    """δ(ε) of one Laplace mechanism of scale 1/e: 1 − exp((ε − e)/2) for ε ≤ e."""
    e = 1.3
    for value in (0.0, 0.4, 1.0):
        exact = 1 - math.exp((value - e) / 2)
        assert exact * (1 - 1e-9) <= pld_delta(Laplace(math.sqrt(2) / e), value) <= exact * 1.001
    assert pld_delta(Laplace(math.sqrt(2) / e), 1.4) < 1e-30


def test_approximate_part_adds_its_delta() -> None:
    event = Composed((PureDP(0.1), ApproximateDP(0.9, 1e-5)))
    assert 1e-5 <= pld_delta(event, 1.0) <= 1.2e-5  # the atom at 1.0 falls between grid points: pessimistic
    assert pld_epsilon(event, 1e-5 * (1 + 1e-5)) <= 1.0 + 1e-4
    assert pld_epsilon(event, 0.9e-5) == math.inf


@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(4.6e-6, 0.619, 226), pytest.param(1.83e-6, 0.198, 243, marks=pytest.mark.slow)]
)
def test_delta_at_zero_is_never_below_the_single_step_bound(q: float, sigma: float, steps: int) -> None:
    """A window that misses the mean would make δ(0) vanish; many rare jumps add up nearly linearly."""
    event = PoissonSampled(q, Gaussian(sigma))
    assert pld_delta(SelfComposed(event, steps), 0.0) >= 0.3 * pld_delta(event, 0.0)
    assert pld_delta(SelfComposed(event, steps), 0.0) <= steps * pld_delta(event, 0.0) * 1.01


def test_small_epsilon_of_one_step_is_tight() -> None:
    exact = 0.02167  # by quadrature
    assert exact * 0.999 <= pld_epsilon(PoissonSampled(0.01, Gaussian(1.0)), 1e-3) <= exact * 1.02


def test_losses_beyond_the_cap_count_as_infinite() -> None:
    assert pld_epsilon(Composed((PureDP(650.0), Gaussian(10.0))), 1e-5) == math.inf
    assert epsilon(PureDP(650.0), 1e-5) == 650.0
    assert epsilon(PureDP(5000.0), 1e-5) == 5000.0
    assert pld_delta(PoissonSampled(0.5, Gaussian(1 / 27)), 599.0) > 5.7e-19


@pytest.mark.parametrize(
    "event",
    [
        PoissonSampled(0.01, Gaussian(1.0)),
        PoissonSampled(0.2, Gaussian(0.8, REPLACE)),
        ObjectivePerturbationEvent(3.7, 1.0, 0.25, 2.0, loss="logistic"),
        ObjectivePerturbationEvent(3.7, 1.0, 0.25, 2.0),
        Laplace(2.0),
        PureDP(0.3),
    ],
    ids=repr,
)
def test_composition_is_monotone(event: Event) -> None:
    values = [pld_epsilon(SelfComposed(event, count), 1e-5) for count in (1, 2, 4, 16)]
    assert values == sorted(values)
    assert values[-1] < math.inf
