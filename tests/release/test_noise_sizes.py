"""The noise that leaves a channel is as large as what was charged says: of each kind, by sizes that many numbers hold closely."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dperm._random import Randomness
from dperm.privacy import AboveThreshold, Event, ExponentialMechanism, Gaussian, PureDP, SelfComposed
from dperm.privacy.events import ObjectivePerturbationEvent
from dperm.release import (
    Channel,
    CountNoise,
    ExponentialChoice,
    FallingNoise,
    GaussianNoise,
    HiddenNoise,
    ObjectiveNoise,
    PureNoise,
    SystemSource,
    ThresholdNoise,
)

SIZE = 6000


def paid(event: Event) -> Channel:
    channel = Channel.open(7)
    channel.charge(event, "noise")
    return channel


def test_gaussian_noise_has_its_deviation() -> None:
    for kind in (GaussianNoise, CountNoise):
        noisy = paid(Gaussian(3.0)).release(np.full(SIZE, 5.0), kind(0.5, 3.0))
        assert np.std(noisy) == pytest.approx(1.5, rel=0.04) and np.mean(noisy) == pytest.approx(5.0, abs=0.1)


def test_noise_of_pure_releases_has_its_length() -> None:
    """Of density ∝ exp(−ε·‖b‖/Δ) in p dimensions the length is Gamma(p)·Δ/ε: p·Δ/ε, within a few parts in √p."""
    query = np.full(SIZE, 5.0)
    noise = paid(PureDP(2.0)).release(query, PureNoise(0.5, 2.0)) - query
    assert np.linalg.norm(noise) == pytest.approx(SIZE * 0.5 / 2.0, rel=0.06)
    falling = paid(PureDP(4.0)).release(query, FallingNoise(0.5, (1.0, 2.0, 4.0))) - query
    assert np.linalg.norm(falling, axis=1) == pytest.approx(SIZE * 0.5 / np.array([1.0, 2.0, 4.0]), rel=0.06)
    event = AboveThreshold(3.0, queries=2000)
    channel = paid(event)
    tests = np.array([channel.release(np.array([5.0]), ThresholdNoise(0.5, event.rate))[0] for _ in range(2000)]) - 5.0
    assert np.abs(tests).mean() == pytest.approx(0.5 / 1.0, rel=0.06)  # Laplace, of a third of ε


@pytest.mark.parametrize("std", [1e-3, 1.5, 40.0])
def test_noise_of_hidden_steps_has_its_deviation_and_is_added_to_the_step(std: float) -> None:
    noise = SystemSource(Randomness.fixed(7)).noisy(np.full(SIZE, 5.0), HiddenNoise(0.5, std / 0.5)) - 5.0
    assert np.std(noise) == pytest.approx(std, rel=0.04)
    assert abs(np.mean(noise)) < 5 * std / np.sqrt(SIZE)
    assert stats.kstest(noise / std, "norm").pvalue > 1e-4


def test_the_linear_term_of_an_objective_has_its_deviation() -> None:
    event = ObjectivePerturbationEvent(3.0, 1.0, 0.25, 7.0)
    drawn = paid(event).release(np.zeros(SIZE), ObjectiveNoise.of(event))
    assert np.std(drawn) == pytest.approx(3.0, rel=0.04)


def test_choices_have_their_odds() -> None:
    """Of two scores, ln of the odds is ε·(their difference)/(2Δ)."""
    trials = 3000
    channel = paid(SelfComposed(ExponentialMechanism(2.0), trials))
    scores = np.array([0.3, 0.3 + 0.35, 0.3 + 0.85])
    counts = np.bincount([channel.release(scores, ExponentialChoice(0.5, 2.0)) for _ in range(trials)], minlength=3)
    expected = np.exp(2.0 * scores)
    expected *= trials / expected.sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_noise_takes_nothing_of_the_stream_that_records_are_drawn_by() -> None:
    """That stream can be predicted from what it drew before, which is seen in part. Whatever noise is asked for, its state stays,
    and another stream of draws changes no noise."""
    query = np.full(4, 5.0)
    kinds: dict[str, Callable[[SystemSource], Any]] = {
        "gaussian": lambda source: source.noisy(query, GaussianNoise(1.0, 3.0, step=2.0**-20)),
        "pure": lambda source: source.noisy(query, PureNoise(1.0, 0.5, step=2.0**-20)),
        "hidden": lambda source: source.noisy(query, HiddenNoise(1.0, 3.0)),
        "falling": lambda source: source.noisy(query, FallingNoise(1.0, (0.25, 0.5), step=2.0**-20)),
        "choice": lambda source: [source.noisy(query, ExponentialChoice(1.0, 0.5, step=2.0**-20)) for _ in range(30)],
        "threshold": lambda source: source.noisy(query[:1], ThresholdNoise(1.0, 0.5, step=2.0**-20)),
        "objective": lambda source: source.noisy(np.zeros(4), ObjectiveNoise.of(ObjectivePerturbationEvent(3.0, 1.0, 1.0, 1.0))),
    }
    for kind, ask in kinds.items():
        answers = []
        for draws in (1, 2):
            sampling = np.random.Generator(np.random.SFC64(draws))
            source = SystemSource(replace(Randomness.fixed(3), sampling=sampling))
            answers.append(np.asarray(ask(source)))
            fresh = np.random.Generator(np.random.SFC64(draws))
            assert np.array_equal(sampling.integers(2**63, size=8), fresh.integers(2**63, size=8)), kind
        assert np.array_equal(*answers), kind
        assert np.unique(answers[0]).size > 1 or kind == "threshold"
