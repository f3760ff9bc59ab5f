"""What single events promise, against a derivation of its own: by integrals, exact tails and numbers by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom

from dperm.privacy import AboveThreshold, Composed, Gaussian, PoissonSampled, PureDP, Relation, SelfComposed, epsilon
from dperm.privacy.events import (
    BoundedSquaresGaussian,
    HiddenIterates,
    Paid,
    PrivacyProfile,
    RandomAllocation,
    RandomStop,
    RowsSampled,
    SampledWithoutReplacement,
    TruncatedPoisson,
    event_from_dict,
    leaves,
    relation_of,
)

ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def worst_loss(rate: float, queries: int) -> float:
    """The largest log-ratio of the answers no, …, no, yes, by quadrature over the threshold's noise. One neighbour's queries are
    all 0; the other's are all higher by one sensitivity, but for the last, which is lower by one: then a lower threshold makes up
    for the first, and the last is two away."""
    grid = np.linspace(-60 / rate, 60 / rate, 200_001)
    density = rate / 2 * np.exp(-rate * np.abs(grid))

    def below(shift: float) -> np.ndarray:
        moved = grid - shift
        return np.where(moved < 0, 0.5 * np.exp(rate * np.minimum(moved, 0)), 1 - 0.5 * np.exp(-rate * np.maximum(moved, 0)))

    def chance(before: float, last: float) -> float:
        return float(np.trapezoid(density * below(before) ** (queries - 1) * (1 - below(last)), grid))

    return abs(math.log(chance(0.0, 0.0) / chance(1.0, -1.0)))


@pytest.mark.parametrize("budget", [0.3, 1.0, 4.0])
def test_the_noise_of_a_threshold_makes_its_questions_cost_the_budget(budget: float) -> None:
    for queries in (1, 2, 12, 1000):
        event = AboveThreshold(budget, queries=queries)
        assert event.pays_for == Paid("threshold", event.rate)
        assert worst_loss(event.rate, queries) <= budget * (1 + 1e-6)
    assert worst_loss(AboveThreshold(budget, queries=1000).rate, 1000) > 0.999 * budget
    assert AboveThreshold(budget, queries=7).releases == 8  # the threshold itself, and each question


@pytest.mark.parametrize(
    ("rate", "capacity", "largest"), [(0.1, 20, 100), (0.3, 31, 100), (0.5, 99, 100), (0.01, 40, 1000), (0.2, 9, 10)]
)
def test_a_batch_overflows_no_more_often_than_is_charged(rate: float, capacity: int, largest: int) -> None:
    """Chernoff's bound is the least of E[e^{tX}]·e^{−tk} over t, here by search; the true tail is within it."""
    bound = TruncatedPoisson.overflow(rate, capacity, largest)

    def logarithm(t: float) -> float:
        return largest * math.log1p(rate * math.expm1(t)) - t * (capacity + 1)

    found = minimize_scalar(logarithm, bounds=(0.0, 60.0), method="bounded", options={"xatol": 1e-12})
    assert bound == pytest.approx(math.exp(found.fun), rel=2e-5)
    assert binom.sf(capacity, largest, rate) < bound
    event = TruncatedPoisson(rate, Gaussian(1.0), capacity, largest)
    assert event.astray == bound


def test_a_batch_that_holds_all_never_overflows_and_one_below_the_mean_may_always() -> None:
    assert TruncatedPoisson.overflow(0.5, 100, 100) == TruncatedPoisson.overflow(0.5, 101, 100) == 0.0
    assert TruncatedPoisson.overflow(0.5, 49, 100) == TruncatedPoisson.overflow(0.5, 10, 100) == 1.0
    assert 0.5 < TruncatedPoisson.overflow(0.5, 50, 100) < 1.0
    assert TruncatedPoisson.overflow(0.5, 5 * 10**8, 10**9) <= 1.0  # a chance, where rounding up would make it more
    assert TruncatedPoisson.overflow(1e-10, 99, 100) > 0.0  # 1e-1000 is no double
    for rate in (0.3, 0.5):  # one place too few: all records, or none of them left out
        assert rate**100 < TruncatedPoisson.overflow(rate, 99, 100) < rate**100 * (1 + 2e-6)


def test_what_events_pay_for_by_hand() -> None:
    """Kind, noise in sensitivities, rate, and how records are drawn; and how many releases."""
    gaussian, replaced = Gaussian(2.0), Gaussian(2.0, REPLACE)
    assert Gaussian(2.0).pays_for == Paid("gaussian", 2.0, 1.0, "")
    assert PoissonSampled(0.25, gaussian).pays_for == Paid("gaussian", 2.0, 0.25, "poisson")
    assert PoissonSampled(1.0, gaussian).pays_for == Paid("gaussian", 2.0, 1.0, "poisson")
    assert (
        PoissonSampled(0.25, PureDP(1.0)).pays_for is None and PoissonSampled(0.5, PoissonSampled(0.5, gaussian)).pays_for is None
    )
    assert RowsSampled(0.25, gaussian, 3).pays_for == Paid("gaussian", 2.0, 0.25, "rows")
    assert TruncatedPoisson(0.25, gaussian, 5, 9).pays_for == Paid("gaussian", 2.0, 0.25, "truncated")
    assert SampledWithoutReplacement(0.25, replaced).pays_for == Paid("gaussian", 2.0, 0.25, "fixed")
    allocated = RandomAllocation(4, gaussian)
    assert allocated.pays_for == Paid("gaussian", 2.0, 0.25, "allocated") and allocated.releases == 4
    individual = BoundedSquaresGaussian(2.0, 12, 4.0)
    assert individual.releases == 12 and individual.whole == Gaussian(1.0)  # four full steps: twice as loud
    assert HiddenIterates(2.0, 3, 4, 0.5, 1.0, 1e-9).releases == 12
    assert RandomStop(2.0, 7, 0.5, 1e-9).releases == 7


def test_hidden_steps_of_all_records_cost_what_released_ones_do() -> None:
    """Steps that bring nothing together, of all records, from anywhere: the last iterate is the sum of T steps' noise, of which a
    record moves each by one. Its law is that of T releases."""
    hidden = HiddenIterates(2.0, 1, 9, 1.0, 1e6, 1e-12)
    released = epsilon(SelfComposed(Gaussian(2.0, REPLACE), 9), 1e-5)
    assert released <= epsilon(hidden, 1e-5) <= 1.001 * released
    once_a_pass = HiddenIterates(2.0, 50, 1, 1.0, 1e6, 1e-12)  # in the worst place, the last: one release
    assert epsilon(Gaussian(2.0, REPLACE), 1e-5) <= epsilon(once_a_pass, 1e-5) <= 1.001 * epsilon(Gaussian(2.0, REPLACE), 1e-5)
    individual = BoundedSquaresGaussian(2.0, 12, 4.0)
    assert epsilon(individual, 1e-5) == pytest.approx(epsilon(SelfComposed(Gaussian(2.0), 4), 1e-5), rel=1e-9)


def test_counts_are_multiplied_out() -> None:
    one, other = PoissonSampled(0.25, Gaussian(2.0)), Gaussian(3.0)
    whole = Composed((SelfComposed(Composed((one, SelfComposed(other, 3), one)), 5), other))
    assert leaves(whole) == {one: 10, other: 16}
    assert leaves(PoissonSampled(1.0, SelfComposed(other, 3))) == {other: 3}  # a draw of everything is none
    assert leaves(PoissonSampled(0.5, other)) == {PoissonSampled(0.5, other): 1}
    assert relation_of(whole) is ADD and relation_of(Composed(())) is None
    with pytest.raises(ValueError, match="share one relation"):
        relation_of(Composed((Gaussian(1.0), Gaussian(1.0, REPLACE))))
    profile = PrivacyProfile((0.5, 1.0), (1e-3, 1e-5), REPLACE)
    for event in (whole, profile, BoundedSquaresGaussian(2.0, 12, 4.0)):
        assert event_from_dict(json.loads(json.dumps(event.to_dict()))) == event


def test_numbers_whose_squares_are_no_doubles_are_refused() -> None:
    for wrong in (1.0001e60, 0.9999e-60):
        with pytest.raises(ValueError, match=r"between 1e-60 and 1e\+60"):
            Gaussian(wrong)
    assert Gaussian(1e60).noise_multiplier == 1e60 and Gaussian(1.001e-60).noise_multiplier == 1.001e-60


def test_an_event_is_known_by_the_names_that_it_had() -> None:
    """A spend log with a charge of then could not be read: whoever began a new one forgot what was spent."""
    event = SelfComposed(BoundedSquaresGaussian(2.0, 12, 4.0), 2)
    written = json.dumps(event.to_dict()).replace("BoundedSquaresGaussian", "IndividualGaussian")
    assert event_from_dict(json.loads(written)) == event
