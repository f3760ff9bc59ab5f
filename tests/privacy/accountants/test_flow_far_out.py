"""The flow where hardly anything happens: beyond the quantiles that are computed, against an integrator in their own variable."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import ndtr

from dperm.privacy.accountants.loss_bound import TAIL
from dperm.privacy.accountants.tradeoff_flow import (  # pyright: ignore[reportPrivateUsage]
    BothGains,
    Gain,
    GaussianGain,
    HingeGain,
    TiedGain,
    TwoSidedGain,
    _Half,
    flow_bound,
)

GAINS: list[tuple[Gain, Gain]] = [
    (HingeGain(0.6), GaussianGain()),
    (HingeGain(8.0), GaussianGain()),
    (TwoSidedGain(5.0), TwoSidedGain(5.0, losing=True)),
    (TwoSidedGain(0.0, losing=True), TwoSidedGain(0.0, losing=True)),
    (BothGains(HingeGain(6.0), GaussianGain()), BothGains(GaussianGain(), HingeGain(6.0))),
    (BothGains(TwoSidedGain(3.0), TwoSidedGain(3.0, losing=True)), BothGains(TwoSidedGain(3.0), TwoSidedGain(3.0, losing=True))),
]


def way_back(rising: Gain, falling: Gain, speed: float, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles where events came from that are at `ends`, and ln F'(α), slopes of the gains added up along the way."""

    def back(time: float, state: np.ndarray) -> np.ndarray:
        z = state[: len(ends)]
        paces, slopes = np.zeros_like(z), np.zeros_like(z)
        for gain, sign in ((rising, 1.0), (falling, -1.0)):
            at = np.maximum(sign * z, 0.0)
            density = np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)
            inside, near = at <= gain.edge, np.minimum(at, gain.edge)
            mine = z >= 0 if sign > 0 else z < 0
            paces += mine * np.where(inside, gain.value(near) / density, gain.factor)
            slopes += mine * sign * np.where(inside, gain.slope(near), gain.factor * at)
        return speed * np.concatenate([paces, slopes])

    found = solve_ivp(back, (0, 1), np.concatenate([ends, np.zeros_like(ends)]), rtol=1e-9, atol=1e-11)
    return found.y[: len(ends), -1], found.y[len(ends) :, -1]


@pytest.mark.parametrize("speed", [0.4, 3.0])
@pytest.mark.parametrize(("rising", "falling"), GAINS)
def test_losses_beyond_the_last_quantile_are_bounded_and_nearly_so(rising: Gain, falling: Gain, speed: float) -> None:
    bound, ends = flow_bound(rising, falling, speed), np.array([TAIL + 1e-6, TAIL + 0.5, TAIL + 3.0])
    truth = np.maximum(way_back(rising, falling, speed, ends)[1], way_back(falling, rising, speed, ends)[1])
    assert np.all(truth * (1 - 1e-9) <= bound(ends))
    assert np.all(bound(ends) <= truth * 1.012)


@pytest.mark.parametrize(
    ("rising", "falling", "speed"), [(HingeGain(8.0), GaussianGain(), 1.5), (TiedGain(6.0), GaussianGain(), 0.3)]
)
def test_delta_is_bounded_in_both_directions_below_zero_too(rising: Gain, falling: Gain, speed: float) -> None:
    """A pair that composes bounds δ(ε) = max P(S) − e^ε·Q(S) at every real ε, and each direction is the larger one somewhere."""
    bound, ends = flow_bound(rising, falling, speed), np.linspace(-5.0, 5.0, 61)
    starts = [way_back(*gains, speed, ends)[0] for gains in ((rising, falling), (falling, rising))]
    larger: set[int] = set()
    for size in (-3.0, -1.0, -0.3, -0.1, 0.1, 0.5, 2.0):
        each = [float(np.max(ndtr(-ends) - math.exp(size) * ndtr(-start))) for start in starts]
        larger.add(int(np.argmax(each)))
        assert max(each) <= bound.delta(size) + 1e-8
    assert larger == {0, 1}


@pytest.mark.parametrize(
    "gain", [GaussianGain(), TiedGain(0.3), TiedGain(40.0), HingeGain(20.0), TwoSidedGain(2.0), TwoSidedGain(2.0, losing=True)]
)
def test_times_are_integrals_and_quantiles_their_inverse(gain: Gain) -> None:
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


def test_what_gains_all_that_there_is_even_far_out_is_not_known() -> None:
    """Curvature so large that events of probability Φ(−13.5) gain φ(0)."""
    for gain in (HingeGain(1e42), BothGains(HingeGain(1e42), GaussianGain())):
        assert float(flow_bound(gain, GaussianGain(), 1e-45)(np.array([TAIL + 0.1]))[0]) > 1e8


def test_only_speeds_at_which_something_stays_hidden_are_computed() -> None:
    assert flow_bound(HingeGain(0.6), GaussianGain(), 10.0).delta(1.0) > 0.9
    with pytest.raises(ValueError, match="at least a tenth"):
        flow_bound(HingeGain(0.6), GaussianGain(), 10.01)


@pytest.mark.parametrize("edge", [0.05, 3.0, 13.0, 14.0, 36.0, 60.0])
def test_a_gaussian_s_loss_is_a_line_beyond_the_edge(edge: float) -> None:
    """From where the gain is the Gaussian mechanism's on, and nothing else was on the way: μz + μ²/2 at the end's quantile."""
    for speed in (0.1, 2.0):
        bound = flow_bound(TiedGain(edge), GaussianGain(), speed)
        for z in (edge + 1e-6, edge + 5.0):
            value = float(bound(np.array([z]))[0])
            assert value >= speed * z + speed**2 / 2 - 1e-12
            if edge <= TAIL:
                assert value == pytest.approx(speed * z + speed**2 / 2, rel=1e-9)
