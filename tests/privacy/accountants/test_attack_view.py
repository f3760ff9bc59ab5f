"""What a profile says of attacks: never below what the best test reaches, and never what nothing could be."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from dperm.privacy.accountants.gaussian import gaussian_delta
from dperm.privacy.accountants.risk import attack_view

RATES = (0.001, 0.01, 0.1, 0.5, 0.9, 0.999)


@pytest.mark.parametrize("mu", [0.1, 1.0, 4.0])
def test_a_gaussian_s_best_test_is_what_its_profile_allows(mu: float) -> None:
    """Neyman and Pearson: Φ(Φ⁻¹(a) + μ) at a false-positive rate of a."""
    grid = np.linspace(0, 12 * mu + mu**2, 400)
    view = attack_view(grid, np.array([gaussian_delta(1 / mu, float(point)) for point in grid]), RATES)
    exact = ndtr(ndtri(np.array(RATES)) + mu)
    assert np.all(view.true_positive_rates >= exact * (1 - 1e-12))
    assert view.true_positive_rates == pytest.approx(exact, abs=1e-3)
    assert view.advantage == pytest.approx(2 * ndtr(mu / 2) - 1)


def test_rates_stay_between_guessing_and_certainty() -> None:
    assert attack_view(np.zeros(1), np.zeros(1), RATES).true_positive_rates == RATES
    assert attack_view(np.array([0.0, 1.0]), np.array([0.8, 0.7]), RATES).true_positive_rates[-2:] == (1.0, 1.0)
