"""AboveThreshold's answers have the law of noise on both sides: on the threshold once, and on each query anew."""

from __future__ import annotations

import numpy as np
import pytest

from dperm.privacy import AboveThreshold, SelfComposed
from dperm.release import Channel
from dperm.release.threshold import ThresholdTest

RUNS, QUESTIONS = 600, 8
SENSITIVITY = 0.5


def refusals(query: float, event: AboveThreshold) -> np.ndarray:
    """(RUNS,) how often each of many tests said no before it said yes; QUESTIONS where it never did."""
    channel = Channel.open(11)
    channel.charge(SelfComposed(event, RUNS), "questions")

    def ask() -> int:
        test = ThresholdTest(channel, event, SENSITIVITY)
        return next((number for number in range(QUESTIONS) if test.above(query)), QUESTIONS)

    return np.array([ask() for _ in range(RUNS)])


def test_a_borderline_question_is_answered_no_as_often_as_the_threshold_is_the_largest_of_all() -> None:
    """Threshold and k queries, all 0, have noise of one law: by symmetry the threshold is above all k with chance 1/(k + 1).
    Without noise on the threshold it would be 2⁻ᵏ, and with noise that is drawn anew for each question too."""
    found = refusals(0.0, AboveThreshold(3.0, queries=QUESTIONS))
    for asked in range(1, QUESTIONS + 1):
        chance = 1 / (asked + 1)
        assert abs(np.mean(found >= asked) - chance) < 4.5 * np.sqrt(chance * (1 - chance) / RUNS)


@pytest.mark.parametrize("charged", [0.6, 3.0])
@pytest.mark.parametrize("distance", [-2.0, 1.0])
def test_a_first_answer_has_the_law_of_the_difference_of_two_laplace_noises(charged: float, distance: float) -> None:
    """Of a query `distance` scales b = 3·sensitivity/ε above the threshold: two Laplace numbers of scale b differ by more than
    t·b with chance e⁻ᵗ·(2 + t)/4."""
    query = distance * 3 * SENSITIVITY / charged
    beyond = np.exp(-abs(distance)) * (2 + abs(distance)) / 4
    chance = beyond if distance > 0 else 1 - beyond
    refused = np.mean(refusals(query, AboveThreshold(charged, queries=QUESTIONS)) >= 1)
    assert abs(refused - chance) < 4.5 * np.sqrt(chance * (1 - chance) / RUNS)
