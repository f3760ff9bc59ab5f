"""What a stop on the way costs: against the exact law of one stop, against rules that stop, and against bounds that are known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dperm.privacy import Certificate, ExPost, Relation, delta, robbins_epsilon, stopping_delta, stopping_epsilons, stopping_path
from dperm.privacy.gaussian import gaussian_delta, gaussian_epsilon

DELTA = 1e-5


@pytest.mark.parametrize("signal", [0.01, 0.3, 2.0])
def test_one_stop_is_the_gaussian_mechanism(signal: float) -> None:
    for epsilon in (0.01, 0.5 * signal, 3 * signal):
        exact = gaussian_delta(1 / signal, epsilon)
        if exact > 1e-9:
            assert exact * (1 - 1e-9) <= stopping_delta([signal], [epsilon]) <= exact * 1.01 + 1e-12
    assert stopping_epsilons([signal], DELTA)[0] == pytest.approx(gaussian_epsilon(1 / signal, DELTA), rel=2e-3)


def walks(signals: np.ndarray, count: int, seed: int) -> np.ndarray:
    steps = np.diff(signals**2, prepend=0.0)
    rng = np.random.default_rng(seed)
    return np.cumsum(steps / 2 + np.sqrt(steps) * rng.normal(size=(count, len(steps))), axis=1)


def gained(losses: np.ndarray, levels: np.ndarray, margin: np.ndarray) -> np.ndarray:
    """1 − e^{ε_τ − L_τ} of a rule that stops where the loss is so far above its level, and 0 where that is less."""
    above = losses > levels + margin
    first = np.argmax(above, axis=1)
    at = losses[np.arange(len(losses)), first] - levels[first]
    return np.where(above.any(axis=1), -np.expm1(-np.maximum(at, 0.0)), 0.0)


def test_rules_that_stop_come_near_the_bound_and_not_above_it() -> None:
    signals = np.geomspace(0.05, 1.0, 20)
    levels = np.array(stopping_epsilons(tuple(signals), 0.05))
    losses = walks(signals, 200_000, 0)
    found = []
    for share in (0.0, 0.2, 0.4, 0.6, 0.8):
        values = gained(losses, levels, share * signals)
        error = values.std() / math.sqrt(len(values))
        assert values.mean() < 0.05 + 5 * error
        found.append(values.mean())
    assert max(found) > 0.04, found  # the bound is nearly reached by a simple rule
    alone = np.array([gaussian_epsilon(1 / signal, 0.05) for signal in signals])
    assert max(gained(losses, alone, share * signals).mean() for share in (0.2, 0.4, 0.6)) > 0.06  # one release's ε is too little


def test_levels_are_between_those_of_one_stop_and_robbins_s() -> None:
    signals, levels = stopping_path(4.0, DELTA, 40, 64.0)
    assert 4.0 * (1 - 1e-4) <= levels[-1] <= 4.0 and signals[-1] == pytest.approx(64 * signals[0])
    assert stopping_delta(signals, levels) <= DELTA
    assert stopping_delta(signals, np.array(levels) * 0.97) > DELTA  # and hardly less would do
    for signal, level in zip(signals, levels, strict=True):
        assert gaussian_epsilon(1 / signal, DELTA) < level < robbins_epsilon(signal, DELTA, signals[20] ** 2 / 10)


def test_more_stops_cost_more_and_finer_grids_less(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = np.geomspace(0.1, 1.0, 9)
    levels = [gaussian_epsilon(1 / signal, DELTA) for signal in signals]
    all_of_them = stopping_delta(signals, levels)
    assert DELTA < stopping_delta(signals[::4], levels[::4]) < all_of_them < 9 * DELTA
    monkeypatch.setattr("dperm.privacy.ex_post._FINEST", 0.01)
    assert all_of_them * 0.98 < stopping_delta(signals, levels) < all_of_them


def test_a_statement_is_checked_against_its_path() -> None:
    signals, levels = stopping_path(2.0, DELTA, 10, 16.0)
    stated = ExPost(signals, levels, DELTA, 4)
    stated.verify()
    assert stated.epsilon == levels[3] and ExPost(**json.loads(json.dumps(stated.to_dict()))) == stated
    with pytest.raises(ValueError, match="needs delta"):
        replace(stated, epsilons=tuple(0.8 * level for level in levels)).verify()
    with pytest.raises(ValueError, match="stop from 1 to 10"):
        replace(stated, stop=11)
    with pytest.raises(ValueError, match="rise"):
        replace(stated, signals=signals[::-1])
    asked = replace(stated, epsilons=tuple(level + 0.3 for level in levels), asked=0.3)
    asked.verify()
    event = asked.event(Relation.REPLACE_ONE)
    assert delta(event, 2.3) <= DELTA
    certificate = Certificate.issue(mechanism="path", event=event, delta=DELTA).stopped(asked)
    certificate.verify()
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate and "Stopped at release 4 of 10" in str(again)
    with pytest.raises(ValueError, match="another run"):
        certificate.stopped(stated).verify()
    with pytest.raises(ValueError, match="another run"):
        certificate.stopped(replace(asked, delta=1e-6)).verify()
