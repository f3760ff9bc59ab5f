"""What a stop on the way costs: against the exact law of one stop, against rules that stop, and against bounds that are known."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr

from dperm.privacy import (
    AboveThreshold,
    Certificate,
    Composed,
    ExPost,
    Gaussian,
    PureDP,
    Relation,
    delta,
    epsilon,
    robbins_epsilon,
    stopping_delta,
    stopping_epsilons,
    stopping_path,
)
from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon
from helpers.said import flat

DELTA = 1e-5


@pytest.mark.parametrize("signal", [0.01, 0.3, 2.0])
def test_one_stop_is_the_gaussian_mechanism(signal: float) -> None:
    for level in (0.01, 0.5 * signal, 3 * signal):
        exact = gaussian_delta(1 / signal, level)
        if exact > 1e-9:
            assert exact * (1 - 1e-9) <= stopping_delta([signal], [level]) <= exact * 1.01 + 1e-12
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
    signals, levels = stopping_path(4.0, DELTA, 16, 16.0)
    assert 4.0 * (1 - 1e-4) <= levels[-1] <= 4.0 and signals[-1] == pytest.approx(16 * signals[0])
    assert stopping_delta(signals, levels) <= DELTA
    assert stopping_delta(signals, np.array(levels) * 0.97) > DELTA  # and hardly less would do
    for signal, level in zip(signals, levels, strict=True):
        assert gaussian_epsilon(1 / signal, DELTA) < level < robbins_epsilon(signal, DELTA, signals[8] ** 2 / 10)


def test_more_stops_cost_more_and_finer_grids_less(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = np.geomspace(0.1, 1.0, 9)
    levels = [gaussian_epsilon(1 / signal, DELTA) for signal in signals]
    all_of_them = stopping_delta(signals, levels)
    assert DELTA < stopping_delta(signals[::4], levels[::4]) < all_of_them < 9 * DELTA
    monkeypatch.setattr("dperm.privacy.adaptive.ex_post._FINEST", 0.01)
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
    assert again == certificate and "Stopped at release 4 of 10" in flat(again)
    with pytest.raises(ValueError, match="another run"):
        certificate.stopped(stated).verify()
    with pytest.raises(ValueError, match="another run"):
        certificate.stopped(replace(asked, delta=1e-6)).verify()


def two_stops(signals: tuple[float, float], levels: tuple[float, float]) -> float:
    """E max(1 − e^{ε_1 − L_1}, δ of what follows) over L_1, by Gauss–Legendre quadrature. After L_1 one release is left, a
    Gaussian of its own, whose δ is a closed form (Balle & Wang 2018, Theorem 8)."""
    first, left = signals[0], math.sqrt(signals[1] ** 2 - signals[0] ** 2)
    nodes, weights = np.polynomial.legendre.leggauss(20)
    kink = np.clip((levels[0] - first**2 / 2) / first, -9.5, 9.5)
    edges = np.sort(np.append(np.linspace(-9.5, 9.5, 1001), kink))
    z = ((edges[1:] + edges[:-1])[:, None] + np.diff(edges)[:, None] * nodes) / 2
    loss = first**2 / 2 + first * z
    above = levels[1] - loss
    goes_on = ndtr(left / 2 - above / left) - np.exp(above + log_ndtr(-left / 2 - above / left))
    best = np.maximum(-np.expm1(np.minimum(levels[0] - loss, 0.0)), goes_on)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    return float(np.sum(np.diff(edges)[:, None] / 2 * weights * density * best))


@pytest.mark.parametrize(
    ("signals", "above"),
    [
        ((0.01, 0.02), 1e-2),
        ((0.3, 0.9), 1e-2),
        ((1.0, 3.0), 1e-2),
        ((2.0, 2.5), 1e-2),
        ((0.02, 1.0), 1e-2),
        ((0.3, 28.0), 1e-2),
        ((20.0, 28.9), 3e-2),  # a walk that goes up so steeply that it hardly ever sees its start again
    ],
)
def test_two_stops_cost_what_the_integral_says(signals: tuple[float, float], above: float) -> None:
    first, second = (signal**2 / 2 for signal in signals)
    for levels in (
        (0.0, 0.0),
        (first, second),
        (first + 2 * signals[0], second + 3 * signals[1]),
        (first + 4 * signals[0], second),
        (first + 3 * signals[0], 10 * second + 800),  # which the second never reaches
        (10 * first + 800, second + 5 * signals[1]),
    ):
        exact = two_stops(signals, levels)
        assert exact * (1 - 1e-7) <= stopping_delta(signals, levels) <= exact * (1 + above) + 1e-12


def test_one_stop_is_exact_from_hardly_anything_to_all() -> None:
    for signal in (0.05, 1.0, 5.0, 19.0, 29.0):
        for share in (-6.0, -1.0, 0.0, 2.0, 5.0):
            level = max(0.0, signal**2 / 2 + share * signal)
            exact = gaussian_delta(1 / signal, level)
            found = stopping_delta([signal], [level])
            assert exact * (1 - 1e-9) <= found <= min(1.0, exact * 1.03 + 1e-12)
    assert 1e-15 <= stopping_delta([1.0], [700.0]) < 1e-13  # rounding is allowed for where nothing is left
    assert 1 - 1e-12 < stopping_delta([29.0], [0.0]) <= 1.0


def test_levels_keep_their_delta_and_are_as_low_as_may_be() -> None:
    rng = np.random.default_rng(0)
    for target in (1e-13, 1e-8, 1e-5, 0.3):
        for stops in (1, 2, 4, 6):
            signals = np.cumsum(rng.uniform(0.2, 0.5, stops))
            levels = np.array(stopping_epsilons(tuple(signals), target))
            assert stopping_delta(signals, levels) <= target
            lower = levels * 0.99 - 1e-3
            assert (lower < 0).any() or stopping_delta(signals, lower) > target
    assert stopping_epsilons((0.01, 0.02), 0.05) == (0.0, 0.0)  # δ is reached at ε = 0


def test_what_doubles_cannot_tell_apart_is_refused() -> None:
    for stops, least in ((1, 8e-15), (2, 1.6e-14), (8, 6.4e-14)):
        signals = tuple(np.linspace(0.1, 0.2, stops))
        with pytest.raises(ValueError, match="Expected delta of at least"):
            stopping_epsilons(signals, 0.9 * least)
        levels = stopping_epsilons(signals, 1.1 * least)
        assert stopping_delta(signals, levels) <= 1.1 * least
    for signals in ((30.0,), (1.0, 30.0)):
        with pytest.raises(ValueError, match="at most 29"):
            stopping_delta(signals, [1.0] * len(signals))
    for signals, message in (((1e-3, 1e300), "at most 29"), ((0.9e-60, 1.0), "squares rise"), ((1.0, 1.0), "rise from above 0")):
        with pytest.raises(ValueError, match=message):
            stopping_delta(signals, [1.0, 1.0])
    assert stopping_delta((1.5e-60, 1.0), [1.0, 1.0]) == pytest.approx(gaussian_delta(1.0, 1.0), rel=1e-2)
    for levels in ([1.0], [1.0, -1e-9], [1.0, 2.0, 3.0], [1.0, math.nan]):
        with pytest.raises(ValueError, match="Expected 2 epsilons of at least 0"):
            stopping_delta([0.5, 1.0], levels)
    most = tuple(np.linspace(0.1, 1.0, 256))
    assert ExPost(most, most, 1e-5, 256).epsilon == 1.0
    with pytest.raises(ValueError, match="at most 256 signals"):
        ExPost((*most, 1.1), (*most, 1.1), 1e-5, 1)


@pytest.mark.parametrize("relation", Relation)
def test_a_path_costs_its_last_release_and_the_question(relation: Relation) -> None:
    """The last release tells all that the earlier ones did: a path of Gaussian noise costs the Gaussian of its last signal."""
    signals, levels = stopping_path(2.0, DELTA, 6, 8.0)
    stated = ExPost(signals, levels, DELTA, 3)
    assert stated.question(relation) is None
    assert epsilon(stated.event(relation), 1e-6) == pytest.approx(gaussian_epsilon(1 / signals[-1], 1e-6), rel=1e-9)
    assert sum(1 / each.noise_multiplier**2 for each in stated.event(relation).events[:3]) == pytest.approx(signals[2] ** 2)
    asked = replace(stated, asked=0.3)
    assert asked.event(relation) == Composed((*stated.event(relation).events, AboveThreshold(0.3, relation, 6)))
    pure, same = stopping_path(2.0, 0.0, 6, 8.0)
    assert pure == same
    assert pure[-1] == 2.0
    exact = ExPost(pure, pure, 0.0, 3)
    exact.verify()
    assert exact.event(relation) == Composed((PureDP(2.0, relation),))
    with_question = replace(exact, asked=0.3, epsilons=tuple(each + 0.3 for each in pure))
    with_question.verify()
    assert with_question.event(relation) == Composed((PureDP(2.0, relation), AboveThreshold(0.3, relation, 6)))
    with pytest.raises(ValueError, match="needs epsilons"):
        replace(exact, asked=0.3).verify()
    assert isinstance(stated.event(relation).events[0], Gaussian)


def test_robbins_s_level_is_where_the_mixture_reaches_one_over_delta() -> None:
    """The mean of the likelihood ratio e^{θW − θ²t/2} over θ ~ N(0, 1/ρ) is a martingale, and 1/δ at the level (Robbins 1970)."""
    for signal, rho, target in ((0.3, 0.05, 1e-3), (2.0, 1.0, 1e-5), (1.0, 3.0, 0.1)):
        time = signal**2
        at = robbins_epsilon(signal, target, rho) - time / 2
        ratio, _ = quad(
            lambda x, time=time, at=at, rho=rho: math.exp(x * at - x * x * (time + rho) / 2) * math.sqrt(rho / (2 * math.pi)),
            -60.0,
            60.0,
            points=[at / (time + rho)],
            limit=500,
        )
        assert ratio == pytest.approx(1 / target, rel=1e-6)
