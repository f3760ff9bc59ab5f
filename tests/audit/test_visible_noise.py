"""Choices, steps of paths and what is compared behind the door: how much less noise an audit sees, or that it sees none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit import AuditResult, Training, replay
from dperm.audit.noise import NoiseSeen, noise_findings, visible_noise
from dperm.audit.noise.size import relative_variance
from dperm.audit.noise.summary import SHARES
from dperm.audit.recording import Recorder, Recording, ReleaseRecord
from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import AccuracyFirst, FrankWolfe
from dperm.release import FallingNoise, SystemSource
from dperm.release.threshold import ThresholdTest

SCORES = np.array([3.0, 3.0, 2.5, 1.0, 0.0, -2.0])


def chosen(rng: np.random.Generator, epsilon: float, count: int, scores: np.ndarray = SCORES) -> NoiseSeen:
    """Choices that are stated at ε = 1 and sensitivity 1."""
    chances = np.exp(epsilon * scores / 2)
    places = rng.choice(len(scores), p=chances / chances.sum(), size=count)
    records = [ReleaseRecord(scores, 1.0, 1.0, np.array([float(place)]), "choice", what="choice") for place in places]
    return NoiseSeen.of(Recording(records))


def test_a2_moments_of_choices_are_those_of_choices_that_are_made() -> None:
    rng = np.random.default_rng(0)
    for place in (3, 12, 20):
        seen = chosen(rng, 1 / float(SHARES[place]), 6_000)
        better, own = (np.array([getattr(choice, name) for choice in seen.choices]) for name in ("better", "own"))
        logs = -np.log(better + rng.uniform(size=len(own)) * own)
        mean, variance = float(seen.choices[0].means[place]), float(seen.choices[0].variances[place])
        assert abs(logs.mean() - mean) < 5 * np.sqrt(variance / len(logs))
        assert logs.var() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_a2_choices_at_an_epsilon_that_is_said_to_be_visible_are_refuted(scale: float) -> None:
    """In at least 17 of 20 audits; of choices that are nearly certain at the stated ε none is, and that is said."""
    rng = np.random.default_rng(1)
    share = visible_noise([chosen(rng, 1.0, 300, scale * SCORES)])["choice"]
    if scale > 1:
        assert share == 0.0
        return
    assert 0.1 < share < 0.9

    def refuted(epsilon: float) -> int:
        return sum(bool(noise_findings([chosen(rng, epsilon, 300)])) for _ in range(30))

    assert refuted(1 / share) > 25
    assert refuted(2 / (1 + share)) < 15


def paths(randomness: Randomness, share: float, size: int) -> NoiseSeen:
    recorder = Recorder(SystemSource(randomness))
    recorder.noisy(np.zeros(size), FallingNoise(1.0, (0.1, 0.2, 0.3, 0.6, 1.0), what="minimiser", step=2.0**-30))
    (record,) = recorder.recording.releases
    assert record.path is not None
    # the noise of the last row is as stated: that of the steps alone is too small
    path = record.path[-1] + share * (record.path - record.path[-1])
    return NoiseSeen.of(
        Recording([ReleaseRecord(record.query, 1.0, 1.0, path[-1], "pure", step=2.0**-30, path=path, epsilons=record.epsilons)])
    )


@pytest.mark.fast_cases("1")
@pytest.mark.parametrize("size", [1, 4])
def test_a2_steps_of_paths_as_small_as_is_said_to_be_visible_are_refuted(size: int) -> None:
    seeds = iter(range(10_000))

    def audited(share: float) -> tuple[dict[str, float], bool]:
        seen = [paths(Randomness.fixed(next(seeds)), share, size) for _ in range(60)]
        return visible_noise(seen), bool(noise_findings(seen))

    visible, found = audited(1.0)
    share = visible["steps of the statistic"]
    assert not found
    assert 0.1 < share < 0.95
    assert sum(audited(share)[1] for _ in range(12)) >= 9


@pytest.mark.parametrize(("size", "low"), [(1, 0.0), (1, 0.5), (3, 0.8), (6, 0.2)])
def test_a2_the_variance_of_a_path_s_step_is_that_of_its_draws(size: int, low: float) -> None:
    """Steps are normals of a variance that is gamma of a negative binomial number, in more dimensions than one."""
    rng = np.random.default_rng(0)
    number = rng.negative_binomial((size + 1) / 2, low**2, size=200_000) if low else None
    if number is None:  # the whole vector, whose norm is gamma
        squares = rng.gamma(size, size=200_000) ** 2
    else:
        variance = np.where(number > 0, 2 * rng.gamma(np.maximum(number, 1)), 0.0) * low**2
        squares = variance * rng.chisquare(size, size=len(variance))
    assert squares.var() / squares.mean() ** 2 == pytest.approx(relative_variance(size, 1.0, low), rel=0.06)


def test_a2_choices_are_named_in_the_limits() -> None:
    mechanism, objective = DPLogisticRegression(classes=[0, 1], mechanism=FrankWolfe(steps=2), public_size=200).mechanism_for(3)
    training = Training.of_mechanism(mechanism, objective)
    result = replay(training, training.replay_pairs[:2], both_ways=False)
    assert result.verdict == "consistent"
    assert result.details["noise"]["choice of a vertex"] < 0.9
    assert any("Too little noise" in line and "choice of a vertex (" in line for line in result.limits())


def test_a3_noise_that_is_drawn_and_not_compared_is_said_not_to_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, objective = DPLogisticRegression(
        classes=[0, 1], mechanism=AccuracyFirst(accuracy=0.9), public_size=200
    ).mechanism_for(2)
    training = Training.of_mechanism(mechanism, objective)
    honest = ThresholdTest._noisy

    def dropped(self: Any, value: float) -> float:
        honest(self, value)
        return value

    for drops in (False, True):
        if drops:
            monkeypatch.setattr(ThresholdTest, "_noisy", dropped)
        result = replay(training, training.replay_pairs[:1], both_ways=False)
        (kind,) = result.details["compared"]
        assert result.refuted or any("does not leave" in line and kind in line for line in result.limits())
    assert AuditResult.from_json(result.to_json()) == result
