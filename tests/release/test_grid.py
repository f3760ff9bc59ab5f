"""The grid of releases: how fine it is where noise is small, large and too large, and that what leaves lies on it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dperm.privacy import Event, Gaussian, PureDP, SelfComposed
from dperm.release.grid import Grid, admit_noise


def steps_of(sensitivity: float, spread: float, size: int) -> tuple[float, float]:
    """The step in units of what the sensitivity leaves for one number, and in units of the noise."""
    step = Grid.of(sensitivity, spread, size).step
    return step * math.sqrt(size) / sensitivity, step / spread


@pytest.mark.parametrize("sensitivity", [1e-100, 0.37, 1e90])
@pytest.mark.parametrize("size", [1, 50, 10**6])
def test_steps_are_as_fine_as_digits_of_noise_allow(sensitivity: float, size: int) -> None:
    """2⁻²¹ of a sensitivity; from noise of 2³⁴ such steps on, 2⁻³⁴ of the noise, up to 2⁻¹⁴ of a sensitivity; and for the largest
    noise 2⁻⁴⁵ of it, of which doubles hold all digits. Powers of two are within a half of these."""
    unit = sensitivity / math.sqrt(size)
    for spread in (2.0**-3, 1.0, 2.0**6, 2.0**13):
        assert 2.0**-22 < steps_of(sensitivity, spread * unit, size)[0] <= 2.0**-21 * (1 + 1e-12)
    for spread in (2.0**14, 2.0**17, 2.0**20):
        assert 2.0**-35 < steps_of(sensitivity, spread * unit, size)[1] <= 2.0**-34 * (1 + 1e-12)
    for spread in (2.0**21, 2.0**25, 2.0**31):
        assert 2.0**-15 < steps_of(sensitivity, spread * unit, size)[0] <= 2.0**-14 * (1 + 1e-12)
    for spread in (2.0**32, 2.0**40, 2.0**60):
        assert 2.0**-46 < steps_of(sensitivity, spread * unit, size)[1] <= 2.0**-45 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("made", "spread"),
    [
        (lambda x, size: Gaussian(x), lambda x, size: x),
        (lambda x, size: SelfComposed(Gaussian(x), 3), lambda x, size: x),
        (lambda x, size: PureDP(1 / x), lambda x, size: size * x),
    ],
    ids=["gaussian", "several", "pure"],
)
@pytest.mark.parametrize("size", [1, 4, 2**20])
def test_noise_is_refused_from_where_rounding_adds_half_of_a_sensitivity(
    made: Callable[[float, int], Event], spread: Callable[[float, int], float], size: int
) -> None:
    def refused(noise: float) -> bool:
        try:
            admit_noise(made(noise, size), size)
        except ValueError:
            return True
        return False

    low, high = 1e-3, 1e30
    assert refused(high) and not refused(low)
    while high / low > 1 + 1e-12:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refused(middle) else (middle, high)
    assert Grid.of(1.0, spread(high * (1 + 1e-9), size), size).sensitivity == 1.5
    assert Grid.of(1.0, spread(low * (1 - 1e-9), size), size).sensitivity == 1.25
    admit_noise(made(1.0, 0), 0)


def test_little_gaussian_noise_is_held_and_little_epsilon_is_not() -> None:
    admit_noise(Gaussian(1e-20), 4)
    with pytest.raises(ValueError, match="epsilon"):
        admit_noise(PureDP(1e-20), 4)


def test_refused_noise_is_told_with_the_largest_that_is_not() -> None:
    with pytest.raises(ValueError, match=r"noise below 8\.8e\+10 sensitivities, that doubles hold, got 1e\+15"):
        admit_noise(Gaussian(1e15), 10_000)
