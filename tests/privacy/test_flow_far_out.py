"""The flow where hardly anything happens: beyond the quantiles that are computed, against an integrator in their own variable."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from dperm.privacy.flow import BothGains, Gain, GaussianGain, HingeGain, TiedGain, TwoSidedGain, _Half, flow_bound  # pyright: ignore[reportPrivateUsage]
from dperm.privacy.loss_bound import TAIL

GAINS: list[tuple[Gain, Gain]] = [
    (HingeGain(0.6), GaussianGain()),
    (HingeGain(8.0), GaussianGain()),
    (TwoSidedGain(5.0), TwoSidedGain(5.0, losing=True)),
    (TwoSidedGain(0.0, losing=True), TwoSidedGain(0.0, losing=True)),
    (BothGains(HingeGain(6.0), GaussianGain()), BothGains(GaussianGain(), HingeGain(6.0))),
    (BothGains(TwoSidedGain(3.0), TwoSidedGain(3.0, losing=True)), BothGains(TwoSidedGain(3.0), TwoSidedGain(3.0, losing=True))),
]


def lost(gain: Gain, speed: float, end: float) -> float:
    """ln F'(α) at the quantile `end`: slopes of the gain, added up on the way back to where an event came from."""

    def back(time: float, state: np.ndarray) -> np.ndarray:
        z = state[:1]
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return speed * np.concatenate([gain.value(z) / density, gain.slope(z)])

    return float(solve_ivp(back, (0, 1), [end, 0.0], rtol=1e-10, atol=1e-12).y[1, -1])


@pytest.mark.parametrize("speed", [0.4, 3.0])
@pytest.mark.parametrize(("rising", "falling"), GAINS)
def test_42_losses_beyond_the_last_quantile_are_bounded_and_nearly_so(rising: Gain, falling: Gain, speed: float) -> None:
    bound = flow_bound(rising, falling, speed)
    for z in (TAIL + 1e-6, TAIL + 0.5, TAIL + 3.0):
        truth = max(lost(rising, speed, z), lost(falling, speed, z))
        assert truth * (1 - 1e-9) <= float(bound(np.array([z]))[0]) <= truth * 1.012


@pytest.mark.parametrize(
    "gain", [GaussianGain(), TiedGain(0.3), TiedGain(40.0), HingeGain(20.0), TwoSidedGain(2.0), TwoSidedGain(2.0, losing=True)]
)
def test_42_times_are_integrals_and_quantiles_their_inverse(gain: Gain) -> None:
    """∫ φ/G from 0 on, by trapezoids, which tangents may shorten a little; also where the gain is flat and where it is a line."""
    half = _Half(gain)
    z = np.concatenate([np.linspace(0.0, 8.0, 1201), [20.0, 36.9, 45.0]])
    assert half.quantiles(half.times(z)) == pytest.approx(z, rel=1e-6, abs=1e-9)
    fine = np.linspace(0.0, 8.0, 24_001)
    inside = gain.value(np.minimum(fine, gain.edge))
    density = np.exp(-(fine**2) / 2) / math.sqrt(2 * math.pi)
    pace = density / np.where(fine <= gain.edge, inside, gain.factor * density)
    exact = np.concatenate([[0.0], np.cumsum((pace[1:] + pace[:-1]) / 2 * np.diff(fine))])[::20]
    times = half.times(z[:1201])
    assert np.all(times <= exact * (1 + 1e-6) + 1e-9)
    assert times == pytest.approx(exact, rel=1e-3)


def test_42_what_gains_all_that_there_is_even_far_out_is_not_known() -> None:
    """Curvature so large that events of probability Φ(−13.5) gain φ(0)."""
    for gain in (HingeGain(1e42), BothGains(HingeGain(1e42), GaussianGain())):
        assert float(flow_bound(gain, GaussianGain(), 1e-45)(np.array([TAIL + 0.1]))[0]) > 1e8


def test_42_only_speeds_at_which_something_stays_hidden_are_computed() -> None:
    assert flow_bound(HingeGain(0.6), GaussianGain(), 10.0).delta(1.0) > 0.9
    with pytest.raises(ValueError, match="at least a tenth"):
        flow_bound(HingeGain(0.6), GaussianGain(), 10.01)


@pytest.mark.parametrize("edge", [0.05, 3.0, 13.0, 14.0, 36.0, 60.0])
def test_42_a_gaussian_s_loss_is_a_line_beyond_the_edge(edge: float) -> None:
    """From where the gain is the Gaussian mechanism's on, and nothing else was on the way: μz + μ²/2 at the end's quantile."""
    for speed in (0.1, 2.0):
        bound = flow_bound(TiedGain(edge), GaussianGain(), speed)
        for z in (edge + 1e-6, edge + 5.0):
            value = float(bound(np.array([z]))[0])
            assert value >= speed * z + speed**2 / 2 - 1e-12
            if edge <= TAIL:
                assert value == pytest.approx(speed * z + speed**2 / 2, rel=1e-9)
