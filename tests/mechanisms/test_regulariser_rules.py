"""The public rules for the regulariser, against the risks that they say they make least."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dperm.mechanisms.tuning import TYPICAL_NORM, objective_strong_convexity, output_strong_convexity
from dperm.objectives import LinearObjective, Logistic, PublicFacts, Squared

CLASSES = LinearObjective(Logistic(), 9, data_norm=2.0, public_size=1000).facts
NUMBERS = LinearObjective(Squared(30.0, 5.0), 9, data_norm=2.0, radius=5.0).facts


def risk(facts: PublicFacts, noise_at: Callable[[float], float], modulus: float) -> float:
    """What σ(Λ)·N(0, I) in place of no linear term does to a quadratic of curvature Λ, and what Λ‖θ‖²/2 does at the usual length:
    40 in units of rows, or four times the bound on targets."""
    length = (40.0 if facts.target_bound is None else 4 * facts.target_bound) / facts.data_norm
    return noise_at(modulus) ** 2 * facts.dimension / modulus + modulus * length**2


@pytest.mark.parametrize("facts", [CLASSES, NUMBERS], ids=["classes", "numbers"])
@pytest.mark.parametrize("noise", [0.5, 300.0])
def test_at_a_constant_noise_the_least_risk_is_at_the_root_of_the_quotient(noise: float, facts: PublicFacts) -> None:
    length = (TYPICAL_NORM if facts.target_bound is None else 4 * 30.0) / 2
    expected = noise * 3 / length
    found = objective_strong_convexity(facts, lambda _: noise, 1e-6)
    assert found == pytest.approx(expected if facts.target_bound is None else max(expected, facts.smoothness / 4), rel=1e-9)


@pytest.mark.parametrize("edge", [1e-3, 0.1, 3.0, 100.0])
def test_where_noise_falls_with_the_regulariser_no_other_one_is_much_better(edge: float) -> None:
    """σ(Λ) = 2Λ/(Λ − edge), and no noise suffices up to the edge. Where at most half more than the least noise is needed, the
    search goes by factors of √2, and the risk grows no faster than Λ."""

    def noise_at(modulus: float) -> float:
        return math.inf if modulus <= edge else 2 * modulus / (modulus - edge)

    found = objective_strong_convexity(CLASSES, noise_at, edge)
    assert noise_at(found) <= 1.5 * 2.0 * (1 + 1e-5)
    grid = [modulus for modulus in np.geomspace(1e-4, 1e5, 2001).tolist() if noise_at(modulus) <= 3.0]
    least = min(risk(CLASSES, noise_at, modulus) for modulus in grid)
    assert risk(CLASSES, noise_at, found) <= math.sqrt(2) * 1.001 * least


def test_a_regression_s_regulariser_is_at_least_a_quarter_of_a_record_s_curvature() -> None:
    assert objective_strong_convexity(NUMBERS, lambda _: 1e-9, 1e-12) == NUMBERS.smoothness / 4
    assert objective_strong_convexity(CLASSES, lambda _: 1e-9, 1e-12) < CLASSES.smoothness / 1e6


def test_output_perturbation_s_rule_makes_its_risk_least() -> None:
    """(σL/Λ)²·n against Λ²... as the two sides of a sum a/Λ² + bΛ: the derivative is 0 at Λ³ = 2a/b."""
    facts = replace(CLASSES, public_size=3200)
    noise = 5.0
    found = output_strong_convexity(facts, noise) / facts.data_norm**2
    grid = np.geomspace(1e-2, 1e4, 100_001)
    least = grid[np.argmin(noise**2 * 3200 / grid**2 + 2 * 400 * grid)]
    assert found == pytest.approx(least, rel=1e-3)
    with pytest.raises(ValueError, match="needs public_size"):
        output_strong_convexity(replace(facts, public_size=None), noise)
