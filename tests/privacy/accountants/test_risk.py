"""Budgets said as what an attacker may achieve: against closed forms, and never above the limit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from dperm.estimators import DPLogisticRegression
from dperm.privacy import (
    Composed,
    Event,
    FilteredRdp,
    Gaussian,
    PoissonSampled,
    PureDP,
    Relation,
    Risk,
    SelfComposed,
    Unsupported,
    calibrate,
    calibrate_steps,
    epsilon,
)

RISKS = [
    Risk(advantage=0.1),
    Risk(true_positive_rate=0.05, false_positive_rate=0.01),
    Risk(true_positive_rate=0.5, false_positive_rate=0.3),
    Risk(true_positive_rate=0.9, false_positive_rate=0.7),
    Risk(prior=0.5, posterior=0.6),
    Risk(prior=0.1, posterior=0.92),
    Risk(prior=0.9, posterior=0.92),
]


def reached(risk: Risk, mu: float) -> float:
    """By a Gaussian of parameter μ, from its trade-off curve."""
    if risk.advantage is not None:
        return float(2 * norm.cdf(mu / 2) - 1)
    if risk.false_positive_rate is not None:
        return float(norm.cdf(norm.ppf(risk.false_positive_rate) + mu))
    assert risk.prior is not None
    rates = np.linspace(1e-9, 1 - 1e-9, 2_000_001)
    return float((risk.prior * norm.cdf(norm.ppf(rates) + mu) + (1 - risk.prior) * (1 - rates)).max())


@pytest.mark.parametrize("risk", RISKS, ids=str)
def test_calibration_agrees_with_the_trade_off_curve(risk: Risk) -> None:
    for relation in Relation:
        noise = calibrate(lambda x, relation=relation: Gaussian(x, relation), risk)
        assert -1e-6 < reached(risk, 1 / noise) - risk.limit <= 1e-10
    assert risk.of(Gaussian(2.0)) == pytest.approx(reached(risk, 0.5), abs=1e-7)
    assert risk.of(Gaussian(2.0)) >= reached(risk, 0.5) - 1e-12
    assert risk.admits(Gaussian(noise)) and not risk.admits(Gaussian(noise * (1 - 1e-5)))


@pytest.mark.fast_cases("an attacker's advantage of at most 0.1", "right guesses of at most 0.6, from a prior of 0.5")
@pytest.mark.parametrize("risk", RISKS[:2] + RISKS[4:5], ids=str)
def test_what_is_sampled_keeps_the_limit_with_less_noise_than_by_way_of_epsilon(risk: Risk) -> None:
    def event(noise: float) -> Event:
        return SelfComposed(PoissonSampled(0.02, Gaussian(noise)), 100)

    noise = calibrate(event, risk)
    assert risk.limit * (1 - 1e-4) <= risk.of(event(noise)) <= risk.limit
    target = math.log((1 + 0.1) / (1 - 0.1))  # the ε at which pure privacy keeps an advantage of 0.1
    assert noise < calibrate(event, target, 1e-5)


def test_pure_privacy_is_randomised_response() -> None:
    found = Risk(advantage=0.1).epsilon_for(PureDP)
    assert math.tanh(found / 2) == pytest.approx(0.1, rel=2e-4) and math.tanh(found / 2) <= 0.1
    found = Risk(true_positive_rate=0.02, false_positive_rate=0.01).epsilon_for(PureDP)
    assert found == pytest.approx(math.log(2), rel=1e-4)
    found = Risk(true_positive_rate=0.9, false_positive_rate=0.8).epsilon_for(PureDP)  # the mirrored line is the nearer one
    assert found == pytest.approx(math.log(2), rel=1e-4)


def test_steps_and_budgets_are_found_too() -> None:
    risk = Risk(advantage=0.1)
    steps = calibrate_steps(lambda count: SelfComposed(Gaussian(40.0), count), risk)
    assert reached(risk, math.sqrt(steps) / 40) <= 0.1 < reached(risk, math.sqrt(steps + 1) / 40)
    found = risk.epsilon_for(lambda e: Gaussian(calibrate(Gaussian, e, 1e-6)))
    assert epsilon(calibrate_gaussian(risk), 1e-6) == pytest.approx(found, rel=1e-4)


def calibrate_gaussian(risk: Risk) -> Event:
    return Gaussian(calibrate(Gaussian, risk))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "none of them"),
        ({"advantage": 0.0}, "advantage"),
        ({"advantage": 1.0}, "advantage"),
        ({"advantage": math.nan}, "advantage"),
        ({"advantage": 0.1, "prior": 0.5}, "advantage, prior"),
        ({"true_positive_rate": 0.1}, "got true_positive_rate"),
        ({"true_positive_rate": 0.1, "false_positive_rate": 0.1}, "above false_positive_rate"),
        ({"prior": 0.3, "posterior": 0.6}, "above 0.7"),
        ({"prior": 0.5, "posterior": 1.0}, "posterior"),
    ],
)
def test_limits_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Risk(**settings)


def test_what_no_noise_brings_about_is_said() -> None:
    risk = Risk(advantage=0.1)
    with pytest.raises(ValueError, match="other parts"):
        calibrate(lambda x: Composed((Gaussian(x), Gaussian(1.0))), risk)
    with pytest.raises(ValueError, match="each keeps it"):
        calibrate(lambda x: Gaussian(100.0), risk)
    with pytest.raises(ValueError, match="so they say"):
        risk.of(Composed((Gaussian(1.0), Unsupported("so they say"))))
    with pytest.raises(TypeError, match="delta"):
        calibrate(Gaussian, 1.0)
    assert 0 < risk.of(FilteredRdp(8.0, 1.0, Relation.ADD_OR_REMOVE_ONE)) <= 1  # weak, and true


def test_they_are_written_and_read() -> None:
    for risk in RISKS:
        assert Risk(**risk.to_dict()) == risk
    assert Risk(advantage=np.float32(0.5)).to_dict() == {"advantage": 0.5}


#: (rate, noise, steps): advantage, true positives at 1 % false ones, Bayes risk from a prior of 0.3, by riskcal 1.5.1 (Kulynych
#: et al.) from connected dots on a grid of 1e-4
PEER = {
    (1.0, 2.0, 1): (0.19741265, 0.03389892, 0.29585256),
    (0.02, 2.0, 300): (0.07319063, 0.01634526, 0.29999971),
    (0.01, 1.0, 1000): (0.16101842, 0.02909972, 0.29819721),
    (0.1, 3.0, 200): (0.18995125, 0.03328881, 0.29626346),
}


@pytest.mark.parametrize(("setting", "theirs"), PEER.items(), ids=str)
def test_a_peer_finds_the_same(setting: tuple[float, float, int], theirs: tuple[float, float, float]) -> None:
    rate, noise, steps = setting
    event = SelfComposed(PoissonSampled(rate, Gaussian(noise)), steps)
    advantage, found, bayes = theirs
    assert Risk(advantage=0.5).of(event) == pytest.approx(advantage, abs=2e-6)
    # theirs is of one direction, ours of whichever is worse
    assert -1e-6 < Risk(true_positive_rate=0.5, false_positive_rate=0.01).of(event) - found < 5e-5
    assert 1 - Risk(prior=0.3, posterior=0.8).of(event) == pytest.approx(bayes, abs=1e-6)


def test_extreme_limits_are_kept_or_refused_in_words() -> None:
    noise = Risk(true_positive_rate=0.9999, false_positive_rate=0.99).noise_for(Gaussian)
    assert Risk(true_positive_rate=0.9999, false_positive_rate=0.99).admits(Gaussian(noise))
    with pytest.raises(ValueError, match="limit that some epsilon keeps"):
        DPLogisticRegression(epsilon=Risk(advantage=1e-9), classes=[0, 1]).mechanism_for(3)
