"""Where budgets said as risks are looked for: as far as is stated, and from any start."""

from __future__ import annotations

import math

import pytest
from scipy.special import ndtri

from dperm.privacy import Gaussian, PureDP, Risk

RISK = Risk(advantage=0.1)
EPSILON = 2 * math.atanh(0.1)  # of randomised response
NOISE = -0.5 / float(ndtri(0.45))  # 2Φ(μ/2) − 1 = 0.1


@pytest.mark.parametrize("at", [1.01e-6, 1e-3, 1.0, 990.0])
def test_an_epsilon_is_found_from_a_millionth_to_a_thousand(at: float) -> None:
    """`make_event` may make little or much of its ε."""
    for start in (0.0, 500.0):
        found = RISK.epsilon_for(lambda epsilon: PureDP(epsilon * EPSILON / at), start=start)
        assert at * (1 - 2e-4) <= found <= at * (1 + 1e-9)


@pytest.mark.parametrize("at", [1.01e-9, 1e-4, 30.0, 0.99e9])
def test_a_noise_is_found_from_a_billionth_to_a_billion(at: float) -> None:
    for start in (1e-6, 1e6):
        found = RISK.noise_for(lambda noise: Gaussian(noise * NOISE / at), start=start)
        assert at * (1 - 1e-9) <= found <= at * (1 + 1e-6)


def test_what_lies_outside_is_refused() -> None:
    for at, message in ((0.98e-6, "some epsilon keeps"), (1020.0, "each keeps it")):
        with pytest.raises(ValueError, match=message):
            RISK.epsilon_for(lambda epsilon, at=at: PureDP(epsilon * EPSILON / at))
    for at, message in ((0.98e-9, "each keeps it"), (1.02e9, "some noise keeps")):
        with pytest.raises(ValueError, match=message):
            RISK.noise_for(lambda noise, at=at: Gaussian(noise * NOISE / at))


@pytest.mark.parametrize("rate", [0.001, 0.99])
def test_the_best_line_of_a_trade_off_is_found_on_either_side(rate: float) -> None:
    """Randomised response: e^ε·a up to a = 1/(1 + e^ε), and 1 − e^{−ε}(1 − a) from there on."""
    for epsilon in (0.05, 3.0):
        exact = min(math.exp(epsilon) * rate, 1 - math.exp(-epsilon) * (1 - rate))
        found = Risk(true_positive_rate=0.9999, false_positive_rate=rate).of(PureDP(epsilon))
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-4)


@pytest.mark.parametrize("prior", [0.02, 0.3, 0.5, 0.9])
def test_the_best_guess_from_a_prior_is_what_bayes_rule_gives(prior: float) -> None:
    """Of randomised response: the answer is believed where it outweighs the prior, and else the prior."""
    for epsilon in (0.05, 1.5):
        right = 1 / (1 + math.exp(-epsilon))
        exact = max(prior, 1 - prior, right)
        found = Risk(prior=prior, posterior=0.9999).of(PureDP(epsilon))
        assert found == pytest.approx(exact, rel=1e-6)
        assert found >= exact * (1 - 1e-12)
