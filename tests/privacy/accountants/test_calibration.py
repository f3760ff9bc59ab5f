from __future__ import annotations

import pytest

from dperm.privacy import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    Relation,
    SelfComposed,
    calibrate,
    calibrate_steps,
    epsilon,
)


def test_the_reference_setting() -> None:
    """q = 512/60000, T = 2340, ε = 1, δ = 1e-5: σ within 0.1 % of dp-accounting's 1.7212, not above ε."""

    def event(noise: float) -> SelfComposed:
        return SelfComposed(PoissonSampled(512 / 60000, Gaussian(noise)), 2340)

    noise = calibrate(event, 1.0, 1e-5)
    assert noise == pytest.approx(1.7212, rel=1e-3)
    assert 0.9999 <= epsilon(event(noise), 1e-5) <= 1.0


@pytest.mark.parametrize("target", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: Gaussian(x),
        lambda x: SelfComposed(Gaussian(x, Relation.REPLACE_ONE), 7),
        lambda x: SelfComposed(PoissonSampled(0.1, Gaussian(x)), 50),
        lambda x: Composed((PoissonSampled(0.1, Gaussian(x)), Gaussian(3 * x))),
        lambda x: PureDP(1 / x),
        lambda x: ExponentialMechanism(1 / x),
        lambda x: ObjectivePerturbationEvent(x, 1.0, 0.25, 500.0, loss="logistic"),
    ],
)
def test_never_above_the_target_and_close_below(make: object, target: float) -> None:
    noise = calibrate(make, target, 1e-5)
    value = epsilon(make(noise), 1e-5)
    assert value <= target
    assert value >= target * (1 - 1e-4)


def test_what_noise_cannot_pay_for_is_refused() -> None:
    with pytest.raises(ValueError, match="other parts exceed it"):
        calibrate(lambda x: Composed((Gaussian(x), Gaussian(1.0))), 1.0, 1e-5)
    with pytest.raises(ValueError, match="stays below target"):
        calibrate(lambda x: Gaussian(1.0), 5.0, 1e-5)
    with pytest.raises(ValueError, match="epsilon > 0, got 0"):
        calibrate(lambda x: Gaussian(x), 0.0, 1e-5)


def test_steps() -> None:
    def event(steps: int) -> SelfComposed:
        return SelfComposed(PoissonSampled(0.01, Gaussian(1.0)), steps)

    steps = calibrate_steps(event, 2.0, 1e-5)
    assert epsilon(event(steps), 1e-5) <= 2.0 < epsilon(event(steps + 1), 1e-5)
    assert calibrate_steps(lambda n: SelfComposed(Gaussian(0.1), n), 1.0, 1e-5) == 0
