"""Noise and regulariser along ε: those of the mechanism, smooth, with slopes."""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from dperm.mechanisms import ObjectivePerturbation
from dperm.objectives import Huber, LinearObjective, Logistic, SmoothedHinge
from dperm.utility import EpsilonCurve

DELTA = 1e-6


def facts(loss: Any = None, relation: str = "add_or_remove_one") -> Any:
    return LinearObjective(loss or Logistic(), 8, public_size=5000, intercept_scale=1.0, relation=relation).facts


CURVES = {
    "sharp, by rule": partial(EpsilonCurve, facts(), DELTA, 0.2, 5.0),
    "sharp, fixed": partial(EpsilonCurve, facts(), DELTA, 0.2, 5.0, strong_convexity=20.0),
    "sharp, Huber": partial(EpsilonCurve, facts(Huber(0.5)), DELTA, 0.2, 5.0),
    "sharp, hinge": partial(EpsilonCurve, facts(SmoothedHinge(0.5)), DELTA, 0.2, 5.0),
    "generic": partial(EpsilonCurve, facts(), DELTA, 0.2, 5.0, "generic"),
    "generic, replace one": partial(EpsilonCurve, facts(relation="replace_one"), DELTA, 0.2, 5.0, "generic", 20.0),
    "kifer": partial(EpsilonCurve, facts(), DELTA, 0.2, 5.0, "kifer", 0.01),
}


@cache
def curve_of(name: str) -> EpsilonCurve:
    """Made where a test first asks for it: each takes a third of a second."""
    return CURVES[name]()


@pytest.mark.fast_cases("sharp, hinge", "sharp, fixed", "generic")
@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_what_mechanisms_are_calibrated_to(name: str) -> None:
    curve = curve_of(name)
    for epsilon in (0.2, 0.37, 1.0, 2.9, 5.0):
        mechanism = curve.mechanism(epsilon)
        assert mechanism.budget.epsilon == epsilon
        assert curve.modulus(epsilon)[0] == mechanism.strong_convexity == curve.method(epsilon).strong_convexity
        assert curve.noise_std(epsilon)[0] == pytest.approx(mechanism.noise_std, rel=1e-3)


@pytest.mark.parametrize("name", CURVES)
def test_slopes_are_those_of_differences(name: str) -> None:
    curve, at, step = curve_of(name), np.array([0.3, 1.0, 4.0]), 1e-4
    for which, slope in zip((curve.noise_std, curve.modulus), curve.slopes(at), strict=True):
        differences = (which(at * (1 + step)) - which(at * (1 - step))) / (2 * at * step)
        assert slope == pytest.approx(differences, rel=1e-4, abs=1e-6)
    assert (curve.slopes(at)[0] < 0).all()  # noise falls as ε grows: the paper prints the other sign


def test_kifers_slopes_are_the_papers_with_the_sign_put_right() -> None:
    curve, epsilon, known = curve_of("kifer"), 0.7, facts()
    noise, modulus = curve.slopes(epsilon)
    root = math.sqrt(2 * math.log(2 / DELTA) + epsilon)
    assert noise[0] == pytest.approx(-known.lipschitz * (4 * math.log(2 / DELTA) + epsilon) / (epsilon**2 * root), rel=1e-6)
    assert modulus[0] == pytest.approx(-2 * known.smoothness / epsilon**2, rel=1e-6)


def test_the_public_rule_is_met_in_the_middle() -> None:
    """Elsewhere the rule, which chooses on a grid of factor √2, jumps where the curve does not."""
    for epsilon in (0.2, 1.0, 5.0):
        ruled = ObjectivePerturbation.calibrate(facts(), epsilon, DELTA).strong_convexity
        assert 0.4 < curve_of("sharp, by rule").modulus(epsilon)[0] / ruled < 2.5
    assert curve_of("sharp, by rule").modulus(1.0)[0] == pytest.approx(
        ObjectivePerturbation.calibrate(facts(), 1.0, DELTA).strong_convexity, rel=0.02
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0.0}, "low > 0"),
        ({"low": math.nan}, "low"),
        ({"low": 2.0, "high": 2.0}, "high above low"),
        ({"high": math.inf}, "high"),
        ({"delta": 0.0}, "delta"),
        ({"strong_convexity": -1.0}, "strong_convexity > 0"),
        ({"strong_convexity": 0.5}, "larger strong_convexity"),
        ({"calibration": "best"}, "calibration"),
    ],
)
def test_what_no_curve_has_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EpsilonCurve(**{"facts": facts(), "delta": DELTA, "low": 0.2, "high": 5.0, **settings})


@pytest.mark.parametrize("wrong", [0.1, 6.0, math.nan, [], [[1.0]], [1.0, -1.0]])
def test_epsilons_are_between_the_ends(wrong: Any) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        curve_of("kifer").noise_std(wrong)
