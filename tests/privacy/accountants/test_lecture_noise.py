"""The lecture's noise for SGD: where its proof holds, from the proof's own steps."""

from __future__ import annotations

import math

import pytest

from dperm.privacy.accountants.closed_forms import lecture_sgd_noise


@pytest.mark.parametrize(("size", "epsilon", "delta"), [(1000, 1.0, 1e-5), (1000, 0.3, 1e-5), (5000, 0.05, 1e-3)])
def test_each_step_must_be_one_private_before_it_is_amplified(size: int, epsilon: float, delta: float) -> None:
    """Strong composition makes √(2T ln(2/δ)) times a step's ε half of the whole, and a step is amplified at a rate of 2/n: it has
    ε = 1 by itself at T = (nε)²/(32 ln(2/δ))."""
    steps = (size * epsilon) ** 2 / (32 * math.log(2 / delta))
    each = epsilon / 2 / math.sqrt(2 * steps * math.log(2 / delta))
    assert each * size / 2 == pytest.approx(1.0)
    with pytest.raises(ValueError, match="more steps: each would have epsilon"):
        lecture_sgd_noise(size, math.floor(steps * 0.999), epsilon, delta)
    assert lecture_sgd_noise(size, math.ceil(steps * 1.001), epsilon, delta) > 0


def test_each_step_must_have_a_delta_that_is_a_chance() -> None:
    """Half of δ is for T steps, and a step is amplified by 1/n: δn/(2T) before that."""
    with pytest.raises(ValueError, match="delta above 1"):
        lecture_sgd_noise(30, 1, 0.01, 0.1)
    assert lecture_sgd_noise(30, 2, 0.01, 0.1) > 0


def test_noise_grows_as_epsilon_falls() -> None:
    at = [lecture_sgd_noise(1000, 10**6, epsilon, 1e-5) * epsilon for epsilon in (1.0, 0.5, 0.01)]
    assert at == pytest.approx([at[0]] * 3, rel=1e-12)
