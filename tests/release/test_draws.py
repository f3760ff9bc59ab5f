"""What draws say of a record that may be in them."""

from __future__ import annotations

import numpy as np
import pytest

from dperm.gradient import Poisson
from dperm.release.draws import sampled_log_ratio


def test_the_likelihood_of_sampled_steps_is_the_product_of_their_mixtures() -> None:
    """Each step is of the record with its rate, and of none otherwise."""
    rng = np.random.default_rng(0)
    drawn, rates = rng.normal(size=(5, 3)), np.array([0.01, 0.3, 0.5, 0.9, 1.0])
    likelihood = np.prod(1 - rates[:, None] + rates[:, None] * np.exp(drawn), axis=0)
    assert np.exp(sampled_log_ratio(drawn, rates)) == pytest.approx(likelihood, rel=1e-12)
    same = np.prod(0.75 + 0.25 * np.exp(drawn), axis=0)
    assert np.exp(Poisson(0.25).log_ratio(drawn)) == pytest.approx(same, rel=1e-12)
