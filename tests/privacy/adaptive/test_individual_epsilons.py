"""What records have spent each by itself: against a Gaussian of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from dperm.privacy.adaptive.individual_accounting import individual_epsilons


def least_epsilon(mu: float, delta: float) -> float:
    """Of N(0, 1) against N(μ, 1) (Balle & Wang 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        return float(ndtr(mu / 2 - eps / mu) - math.exp(eps + log_ndtr(-mu / 2 - eps / mu))) - delta

    return float(brentq(excess, 0.0, 500.0, xtol=1e-13)) if mu and excess(0.0) > 0 else 0.0


@pytest.mark.parametrize(("noise", "largest"), [(0.7, 0.3), (3.0, 40.0), (20.0, 2500.0)])
def test_each_record_costs_its_own_steps_and_hardly_more(noise: float, largest: float) -> None:
    """Steps add up in squares; each record's are rounded up to one of 512 levels of their root."""
    rng = np.random.default_rng(0)
    spent = np.append(largest * rng.uniform(0, 1, 60) ** 3, [0.0, 0.0, largest])
    found = individual_epsilons(spent, noise, 1e-5)
    assert found.shape == (63,)
    step = math.sqrt(largest) / 512
    for value, stated in zip(spent, found, strict=True):
        mu = math.sqrt(value) / noise
        above = mu + step / noise if value else 0.0
        assert least_epsilon(mu, 1e-5) * (1 - 1e-9) <= stated <= least_epsilon(above, 1e-5) * (1 + 1e-9)
    assert found[-1] == pytest.approx(least_epsilon(math.sqrt(largest) / noise, 1e-5), rel=1e-9)
    assert not found[60:62].any()


def test_nothing_spent_costs_nothing_and_what_is_no_number_of_steps_is_refused() -> None:
    assert individual_epsilons(np.zeros(4), 2.0, 1e-5).tolist() == [0.0] * 4
    assert individual_epsilons(np.zeros(0), 2.0, 1e-5).shape == (0,)
    for wrong in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="finite and not negative"):
            individual_epsilons(np.array([1.0, wrong]), 2.0, 1e-5)
    for noise, delta in ((0.0, 1e-5), (2.0, 0.0), (2.0, 1.0)):
        with pytest.raises(ValueError, match="Expected"):
            individual_epsilons(np.array([1.0]), noise, delta)
