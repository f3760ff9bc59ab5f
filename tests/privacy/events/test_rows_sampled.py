"""Rows of persons drawn each by itself: mixtures of Gaussians against integrals, samples, and what is drawn one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dperm.gradient import PoissonRows
from dperm.privacy import Gaussian, PoissonSampled, Relation, RowsSampled, SelfComposed, delta, epsilon
from dperm.privacy.accountants.dominating_pairs import loss_pairs
from dperm.privacy.events import event_from_dict, leaves


@pytest.mark.fast_cases("0.2-5-0.6", "0.5-2-1.0")
@pytest.mark.parametrize(
    ("rate", "rows", "noise"),
    [
        (0.2, 5, 0.6),
        (0.5, 2, 1.0),
        (0.9, 30, 0.4),
        (0.01, 10, 0.15),
        (0.001, 300, 0.02),
    ],
)
def test_one_step_against_the_integral(rate: float, rows: int, noise: float) -> None:
    """Both directions: a person added or removed."""
    x = np.linspace(-14 * noise, 1 + 14 * noise, 400_001)
    weights = binom.pmf(np.arange(rows + 1), rows, rate)
    with_person = sum(weight * norm.pdf(x, j / rows, noise) for j, weight in enumerate(weights))
    without = norm.pdf(x, 0, noise)
    event = RowsSampled(rate, Gaussian(noise), rows)
    for target in (0.05, 0.5, 1.0, 2.0, 5.0):
        truth = max(
            np.trapezoid(np.maximum(a - math.exp(target) * b, 0), x) for a, b in ((with_person, without), (without, with_person))
        )
        charged = delta(event, target)
        assert truth <= charged * (1 + 1e-6) + 1e-12
        assert charged <= truth * (1 + 2e-3) + 1e-10


def test_one_row_is_poisson_sampling() -> None:
    for steps in (1, 100):
        event = SelfComposed(RowsSampled(0.02, Gaussian(0.8), 1), steps)
        assert epsilon(event, 1e-5) == pytest.approx(
            epsilon(SelfComposed(PoissonSampled(0.02, Gaussian(0.8)), steps), 1e-5), rel=1e-9
        )


def test_composed_it_is_above_samples_and_below_what_is_crude() -> None:
    """20 steps: the estimate of δ from losses of many runs; groups of m records, each of which costs ε, would cost m times it."""
    rate, rows, noise, steps = 0.05, 6, 0.5, 20
    event = SelfComposed(RowsSampled(rate, Gaussian(noise), rows), steps)
    rng = np.random.default_rng(0)
    drawn = rng.binomial(rows, rate, (200_000, steps)) / rows
    y = drawn + noise * rng.normal(size=drawn.shape)
    shifts, weights = np.arange(rows + 1) / rows, binom.pmf(np.arange(rows + 1), rows, rate)
    ratio = np.zeros_like(y)
    for shift, weight in zip(shifts, weights, strict=True):
        ratio += weight * np.exp((shift * y - shift**2 / 2) / noise**2)
    losses = np.log(ratio).sum(axis=1)
    for target in (0.5, 1.0, 2.0):
        values = np.maximum(0.0, -np.expm1(target - losses))
        low, high = (values.mean() + sign * 4 * values.std() / math.sqrt(len(values)) for sign in (-1, 1))
        assert low <= delta(event, target) <= 1.05 * high
    one = SelfComposed(PoissonSampled(rate, Gaussian(noise * rows)), steps)
    assert epsilon(event, 1e-5) < rows * epsilon(one, 1e-5 / (rows * math.exp(rows * epsilon(one, 1e-7))))


def test_more_rows_cost_more_and_more_noise_less() -> None:
    per_row = 3.0
    costs = [epsilon(SelfComposed(RowsSampled(0.01, Gaussian(per_row / rows), rows), 500), 1e-5) for rows in (1, 2, 5, 20)]
    assert costs == sorted(costs) and costs[-1] > 3 * costs[0]
    costs = [epsilon(SelfComposed(RowsSampled(0.01, Gaussian(noise), 5), 500), 1e-5) for noise in (0.5, 1.0, 2.0, 1e12)]
    assert costs == sorted(costs, reverse=True) and costs[-1] < 1e-3


def test_masses_are_those_of_both_sides() -> None:
    pairs = loss_pairs(RowsSampled(0.3, Gaussian(0.7), 8))
    low, high = pairs.remove.support
    p, q = pairs.remove.masses(np.linspace(low - 1, high + 1, 10_001))
    assert p.sum() == pytest.approx(1.0, abs=1e-12) and q.sum() == pytest.approx(1.0, abs=1e-12)
    edges = np.linspace(low, high, 500)
    p, q = pairs.remove.masses(edges)
    inside = q > 1e-200
    ratios = np.log(p[inside]) - np.log(q[inside])
    assert (ratios <= edges[1:][inside] + 1e-9).all() and (ratios >= edges[:-1][inside] - 1e-9).all()


def test_the_event_says_what_it_is() -> None:
    event = RowsSampled(0.1, Gaussian(2.0), 4)
    assert event_from_dict(event.to_dict()) == event and leaves(SelfComposed(event, 3)) == {event: 3}
    assert event.pays_for is not None and (event.pays_for.rate, event.pays_for.draw) == (0.1, "rows")
    with pytest.raises(ValueError, match="add_or_remove_one"):
        RowsSampled(0.1, Gaussian(2.0, Relation.REPLACE_ONE), 4)
    with pytest.raises(ValueError, match="rows"):
        PoissonRows(0.1, 1)  # a row of a person is drawn as the person is
    with pytest.raises(ValueError, match="draw persons"):
        PoissonRows(0.1, 4).event(Gaussian(2.0, Relation.REPLACE_ONE), 0, 10)


def test_draws_are_of_rows() -> None:
    sampler = PoissonRows(0.2, 3)
    rng = np.random.default_rng(0)
    drawn = list(sampler.indices(rng, 50, 400))
    counts = np.bincount(np.concatenate(drawn), minlength=150)
    assert len(counts) == 150
    assert abs(counts.mean() - 80) < 2
    assert counts.std() < 1.5 * math.sqrt(80 * 0.8)
    (table,) = sampler.tables(rng, 7, 50, 1)
    assert table.shape == (7, 150)
