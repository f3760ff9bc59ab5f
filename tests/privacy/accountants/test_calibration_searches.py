"""What calibration finds: against closed forms, from any start, and where ε jumps; and how much it asks for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dperm.privacy import ApproximateDP, Event, Gaussian, PureDP, Risk, SelfComposed, calibrate, calibrate_steps
from dperm.privacy.accountants.calibration import _certify, calibrate_below  # pyright: ignore[reportPrivateUsage]
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.privacy.accountants.privacy_filters import BudgetExceeded, ProfileFilter
from dperm.privacy.events import PrivacyProfile

JUMP = 1.2345


def asked(make: Callable[[float], Event], most: int) -> Callable[[float], Event]:
    """The same, an error after so many calls: a search that goes astray goes on for longer."""
    left = most

    def counted(x: float) -> Event:
        nonlocal left
        left -= 1
        assert left >= 0, "too many events"
        return make(x)

    return counted


@pytest.mark.parametrize("target", [1e-5, 0.03, 1.0, 40.0, 3e3])
@pytest.mark.parametrize("start", [1e-7, 1.0, 1e7])
def test_the_noise_of_a_gaussian_has_a_closed_form(target: float, start: float) -> None:
    for delta in (1e-12, 1e-5, 0.2):
        noise = calibrate(asked(Gaussian, 60), target, delta, start=start)
        exact = 1 / gaussian_mu(target, delta)
        near = 3e-5 if target > 1e-3 else 1.2e-4  # at δ = 0.2 a little more noise has no ε at all
        assert exact * (1 - 1e-12) <= noise <= exact * (1 + near)
        draft = calibrate(Gaussian, target, delta, start=start, draft=True)
        assert draft == pytest.approx(exact, rel=2e-3)


def test_noise_is_found_from_a_billionth_to_a_billion_and_refused_beyond() -> None:
    exact = 1 / gaussian_mu(1.0, 1e-5)
    for at in (1.01e-9, 0.99e9):
        noise = calibrate(lambda x, at=at: Gaussian(x / at * exact), 1.0, 1e-5)
        assert at * (1 - 1e-12) <= noise <= at * (1 + 3e-5)
    for at, message in ((0.99e-9, "stays below target"), (1.01e9, "noise can reach")):
        with pytest.raises(ValueError, match=message):
            calibrate(lambda x, at=at: Gaussian(x / at * exact), 1.0, 1e-5)


def test_the_scale_of_pure_privacy_is_its_inverse() -> None:
    for target in (0.02, 1.0, 30.0):
        noise = calibrate(lambda x: PureDP(1 / x), target, 0.0)
        assert 1 / target * (1 - 1e-12) <= noise <= 1 / target * (1 + 3e-5)


def test_where_epsilon_jumps_the_safe_side_is_taken() -> None:
    """Too little noise, and no δ is left (ε is ∞); or so much that nothing is lost (ε is 0); or two finite values."""
    for before, after, target in (
        (ApproximateDP(1.0, 0.5), PureDP(1.0), 1.5),
        (PureDP(2.0), PrivacyProfile((0.0,), (1e-9,)), 1.5),
        (PureDP(2.0), PureDP(1.0), 1.5),
    ):
        for start in (0.1, 1.0, 20.0):
            noise = calibrate(asked(lambda x, b=before, a=after: a if x >= JUMP else b, 80), target, 1e-6, start=start)
            assert JUMP <= noise <= JUMP * 1.02


@pytest.mark.parametrize("power", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("off", [-0.3, -1e-3, 0.0, 1e-3, 0.3])
@pytest.mark.parametrize("wrong", [0.8, 1.0, 1.2])
def test_a_certified_answer_is_just_below_the_target(power: float, off: float, wrong: float) -> None:
    """On ε = x^−p, from a start that is off and with a slope that is wrong: a few steps, and within 2e-5."""
    values: list[float] = []

    def spent(log_x: float) -> float:
        values.append(math.exp(-power * log_x))
        return values[-1]

    target = 0.7
    found = _certify(spent, -math.log(target) / power + off, -power * wrong, target)
    assert target * (1 - 2e-5) <= found**-power <= target * (1 + 1e-14)
    assert found**-power == pytest.approx(values[-1], rel=1e-12)
    assert len(values) <= (3 if wrong == 1.0 else 10)
    assert len([value for value in values if target * (1 - 2e-5) <= value <= target]) == 1


def test_certifying_goes_on_until_something_is_safe() -> None:
    """ε is ∞ for long; or falls so slowly that the walk ends before it has found anything."""
    found = _certify(lambda log_x: math.inf if log_x < 0.5 else 1.0, 0.0, -1.0, 1.5)
    assert 0.5 <= math.log(found) <= 0.5 + 2e-4
    found = _certify(lambda log_x: 2.0 if log_x < 0.03 else 1.0, 0.0, -1e4, 1.5)
    assert 0.03 <= math.log(found) <= 0.03 + 2e-4
    # everything is lost on one side, and nothing on the other: back from there by small steps
    found = _certify(lambda log_x: math.inf if log_x < 0.0 else 0.0, 0.005, -1.0, 1.5)
    assert 0.0 <= math.log(found) <= 0.0051


@pytest.mark.parametrize("points", [((0.5, 3.0), (1e-2, 1e-6)), ((0.5, 3.0), (1e-4, 1e-6))])
def test_a_gaussian_below_a_profile_is_below_its_points(points: tuple[tuple[float, ...], tuple[float, ...]]) -> None:
    """The least noise at which it is (ε, δ)-private at each, from any start."""
    exact = max(1 / gaussian_mu(size, delta) for size, delta in zip(*points, strict=True))
    profile = PrivacyProfile(*points)
    for start in (0.4, 0.8, 1.5, exact, 12.0):
        edge = calibrate_below(asked(Gaussian, 40), profile, start=start)
        assert exact * (1 - 1e-12) <= edge <= exact * (1 + 3e-5)
        ProfileFilter(profile).charge(Gaussian(edge))


def test_a_profile_that_noise_does_not_matter_to_is_told_from_one_that_none_keeps() -> None:
    profile = PrivacyProfile((0.5, 3.0), (1e-2, 1e-6))
    with pytest.raises(ValueError, match="noise matters to"):
        calibrate_below(asked(lambda x: Gaussian(50.0), 300), profile)
    with pytest.raises(BudgetExceeded, match="No noise keeps"):
        calibrate_below(asked(lambda x: Gaussian(0.5), 300), profile)


def test_the_most_steps_and_not_one_more() -> None:
    """Of PureDP(1/8) eight fit into ε = 1, at δ = 0; and a limit of steps is kept, whatever would fit."""
    for most in (1, 2, 3, 7, 8, 9, 100):
        made: list[int] = []

        def event(steps: int, made: list[int] = made) -> Event:
            made.append(steps)
            return SelfComposed(PureDP(0.125), steps)

        assert calibrate_steps(event, most / 8, 0.0) == most
        assert len(made) <= 2 * math.log2(most) + 3
        assert min(made) == 1
    assert calibrate_steps(lambda steps: SelfComposed(PureDP(0.1), steps), 0.05, 0.0) == 0
    for limit in (1, 2, 10, 16, 17):
        assert calibrate_steps(lambda steps: SelfComposed(PureDP(1e-9), steps), 1.0, 0.0, limit=limit) == limit
        most = [calibrate_steps(lambda steps: SelfComposed(Gaussian(1e4), steps), Risk(advantage=0.1), limit=limit)]
        assert most == [limit]
