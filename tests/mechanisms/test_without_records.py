"""The law of parameters that no record has a say in, against parameters of many fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import laplace

from dperm._random import Randomness
from dperm.audit.linear import Trials
from dperm.audit.outputs import unlogged
from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import BoltOn, Objective, Output
from dperm.mechanisms.without_records import ENTRY, WithoutRecords
from dperm.release import Channel

METHODS: dict[str, tuple[Any, dict[str, Any]]] = {
    "objective": (Objective(), {}),
    "objective without a margin": (Objective(margin=0.0, strong_convexity=3.0), {}),
    "output": (Output(), {"public_size": 60}),
    "output, pure": (Output(), {"public_size": 60, "delta": 0.0}),
    "bolt-on": (BoltOn(epochs=1), {"public_size": 60, "relation": "replace_one"}),
}
EMPTY = 3  # features that no record has, beside two that all have


def _records(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    rows = np.zeros((60, 2 + EMPTY))
    rows[:, :2] = rng.random((60, 2)) / 2
    return rows, np.where(rows[:, 0] + 0.2 * rng.normal(size=60) > 0.25, 1.0, -1.0)


def _empty(mechanism: Any, objective: Any, fits: int) -> tuple[WithoutRecords, Any]:
    """The law that a fit states, and the parameters (fits, EMPTY) of features that no record has, in fits of a fixed seed."""
    with unlogged():
        alone = mechanism.release(objective, objective.records(*_records()), Channel.open(0))
        channel = Channel.open(Trials(fits, Randomness.fixed(1)))
        channel.charge(mechanism.event(objective.facts), mechanism.name)
        found, trace = mechanism.train(objective, objective.records(*_records()), channel)
    law = WithoutRecords.of(alone.trace)
    assert law is not None
    assert trace[ENTRY] == law.to_dict()
    return law, np.reshape(found, (fits, -1))[:, 2 : 2 + EMPTY]


@pytest.mark.parametrize("name", METHODS)
def test_noise_alone_reaches_as_far_as_is_said(name: str) -> None:
    """Shares of parameters beyond `reach`, at several chances, within three simulation errors of these; and both signs alike."""
    method, given = METHODS[name]
    model = DPLogisticRegression(epsilon=1.0, mechanism=method, classes=[0, 1], random_state=0, **given)
    mechanism, objective = model.mechanism_for(2 + EMPTY)
    law, found = _empty(mechanism, objective, 4000)
    # coordinates of one vector of pure noise depend on each other by its length: one of them counts
    alone = found[:, 0] if law.dimension else found.ravel()
    contrast = (found[:, 1] - found[:, 2]) / math.sqrt(2)  # of length 1, as one parameter is: both laws are round
    for sample in (alone, contrast):
        for chance in (0.5, 0.05, 0.01):
            error = math.sqrt(chance * (1 - chance) / len(sample))
            assert abs((np.abs(sample) > law.reach(chance)).mean() - chance) < 3 * error, chance
    assert alone.std() == pytest.approx(law.deviation, rel=0.05)
    assert abs((alone > 0).mean() - 0.5) < 3 * 0.5 / math.sqrt(len(alone))


def test_a_ball_only_brings_parameters_nearer() -> None:
    """Where the minimiser would leave the ball, objective perturbation reaches less far than is said, never farther."""
    model = DPLogisticRegression(epsilon=1.0, mechanism=Objective(strong_convexity=0.5, margin=0.0), classes=[0, 1])
    mechanism, objective = model.mechanism_for(2 + EMPTY)
    law, free = _empty(mechanism, objective, 100)
    assert (np.abs(free) > law.reach(0.3)).any()
    ball = replace(objective, radius=1.0)
    with unlogged():
        releases = [mechanism.release(ball, ball.records(*_records()), Channel.open(seed)) for seed in range(30)]
    assert releases[0].trace[ENTRY]["scale"] == pytest.approx(law.scale, rel=1e-5)  # the solver comes as near
    held = np.stack([release.theta for release in releases])[:, 2 : 2 + EMPTY]
    assert not (np.abs(held) > law.reach(0.3)).any()


@pytest.mark.parametrize("dimension", [2, 7, 400])
def test_the_law_of_pure_noise_is_that_of_a_coordinate(dimension: int) -> None:
    """Against the definition: a length of the Gamma law along a random direction."""
    rng = np.random.default_rng(dimension)
    direction = rng.normal(size=(20_000, dimension if dimension < 400 else 20))
    squares = np.square(direction).sum(axis=1)
    if dimension == 400:  # the other coordinates only count by their squares
        squares += rng.chisquare(380, size=20_000)
    sample = np.abs(rng.gamma(dimension, size=20_000) * direction[:, 0] / np.sqrt(squares))
    law = WithoutRecords(1.0, dimension)
    assert math.sqrt(np.square(sample).mean()) == pytest.approx(law.deviation, rel=0.03)
    chances = [0.9, 0.5, 0.1, 0.01, 0.001]
    for chance in chances:
        assert abs((sample > law.reach(chance)).mean() - chance) < 3 * math.sqrt(chance * (1 - chance) / 20_000)


def test_one_dimension_is_laplace_and_scales_are_units() -> None:
    assert WithoutRecords(2.0, 1).reach(0.05) == pytest.approx(laplace(scale=2.0).isf(0.025))
    assert WithoutRecords(3.0, 5).reach(0.1) == pytest.approx(3 * WithoutRecords(1.0, 5).reach(0.1))
    assert WithoutRecords(1.0).reach(0.05) == pytest.approx(1.959964, rel=1e-6)
    sample = [WithoutRecords(1.0, 4).reach(1 - share) for share in np.linspace(0.01, 0.99, 50)]
    assert sample == sorted(sample)


def test_what_is_no_law_is_refused() -> None:
    assert WithoutRecords.of({"steps": 3}) is None
    for wrong in (
        {"scale": 1.0},
        {"scale": -1.0, "dimension": None},
        {"scale": 1.0, "dimension": 0},
        {"scale": "x", "dimension": 1},
        3.0,
    ):
        with pytest.raises(ValueError, match="Expected"):
            WithoutRecords.of({ENTRY: wrong})
    for chance in (0.0, 1.0, 2.0):
        with pytest.raises(ValueError, match="chance"):
            WithoutRecords(1.0).reach(chance)
