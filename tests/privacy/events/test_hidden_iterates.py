"""What is hidden costs what the theorem says: against a quadratic programme, closed forms and exact linear processes."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import norm

from dperm.privacy import Composed, Gaussian, HiddenIterates, RandomStop, Relation, SelfComposed, delta, epsilon
from dperm.privacy.accountants.gaussian import gaussian_delta
from dperm.privacy.events import event_from_dict
from dperm.privacy.events.hidden import GRID, hidden_shift, stopped_shifts

FAR = 1e9


def moves(batches: int, passes: int, rounding: float) -> np.ndarray:
    steps = np.full(batches * passes, rounding)
    steps[batches - 1 :: batches] += 1
    steps[-1] += GRID
    return steps


def least(batches: int, passes: int, contraction: float, diameter: float, rounding: float) -> float:
    """min Σa² over the theorem's constraints, from every start, by a general solver."""
    m, best = moves(batches, passes, rounding), math.inf
    for start in range(len(m)):
        mine, first = m[start:], diameter if start else 0.0

        def apart(a: np.ndarray, mine: np.ndarray = mine, first: float = first) -> np.ndarray:
            z, path = first, []
            for move, taken in zip(mine, a, strict=True):
                z = contraction * z + move - taken
                path.append(z)
            return np.array(path)

        z, at = first, []
        for move in mine:
            at.append(contraction * z + move)
            z = 0.0
        constraints = [{"type": "eq", "fun": lambda a, apart=apart: apart(a)[-1]}]
        if len(mine) > 1:
            constraints.append({"type": "ineq", "fun": lambda a, apart=apart: apart(a)[:-1]})
        found = minimize(
            lambda a: a @ a, np.array(at), jac=lambda a: 2 * a, bounds=[(0, None)] * len(mine), constraints=constraints,
            options={"maxiter": 500, "ftol": 1e-13},
        )  # fmt: skip
        if found.success:
            best = min(best, float(found.fun))
    return math.sqrt(best)


@pytest.mark.parametrize(
    "case", [(3, 3, 0.9, FAR, 0.0), (4, 3, 1.0, 2.0, 0.01), (2, 6, 1.0, 1.0, 0.0), (5, 2, 0.7, 1.0, 0.05), (1, 8, 1.0, 1.5, 0.0)]
)
def test_the_string_is_the_quadratic_programme(case: tuple[int, int, float, float, float]) -> None:
    assert hidden_shift(*case) == pytest.approx(least(*case), rel=1e-5)


@pytest.mark.parametrize(("steps", "c"), [(5, 0.9), (50, 0.99), (200, 0.5)])
def test_full_batches_have_a_closed_form(steps: int, c: float) -> None:
    """Bok, Su, Altschuler 2024, for strongly convex losses."""
    expected = math.sqrt((1 - c**steps) / (1 + c**steps) * (1 + c) / (1 - c))
    assert hidden_shift(1, steps, c, FAR, 1e-12) == pytest.approx(expected, rel=2 * GRID)


def test_many_passes_cost_little_more_than_one() -> None:
    assert hidden_shift(50, 1, 1.0, FAR, 1e-12) == pytest.approx(1.0, rel=2 * GRID)
    assert hidden_shift(50, 20, 1.0, FAR, 1e-12) == pytest.approx(math.sqrt(1 + 19 / 50), rel=2 * GRID)
    with_ball = [hidden_shift(1, passes, 1.0, 4.0, 1e-12) for passes in (1, 10, 100, 10_000)]
    assert with_ball == sorted(with_ball) and with_ball[-1] == pytest.approx(with_ball[-2])
    assert with_ball[-1] < 5


@pytest.mark.parametrize(("batches", "passes", "c"), [(1, 30, 0.9), (5, 4, 0.97), (3, 10, 1.0), (7, 2, 0.5)])
def test_never_below_exact_linear_processes(batches: int, passes: int, c: float) -> None:
    """x ← c·x + move + noise: the shift of the last iterate over its spread, for every place of a record."""
    last = batches * passes
    decay = c ** np.arange(last - 1, -1, -1.0)
    bound = hidden_shift(batches, passes, c, FAR, 1e-12)
    for place in range(batches):
        used = np.zeros(last)
        used[place::batches] = 1
        exact = float(decay @ used / math.sqrt(decay @ decay))
        assert exact <= bound
    assert bound <= math.sqrt(passes) * (1 + 2 * GRID)  # what releasing every iterate costs


def test_a_random_process_is_within_it() -> None:
    """Non-linear steps and a ball: the tilted tests of an attacker who knows everything else, against the bound."""
    rng, trials, passes, batches, noise = np.random.default_rng(0), 400_000, 3, 2, 1.0
    ends: list[np.ndarray] = []
    for record in (-0.5, 0.5):
        x = np.zeros(trials)
        for step in range(passes * batches):
            x = x - 0.3 * np.tanh(x) + (record if step % batches == batches - 1 else 0.0)
            x = np.clip(x + noise * rng.standard_normal(trials), -2.0, 2.0)
        ends.append(x)
    mu = hidden_shift(batches, passes, 1.0, 4.0, 1e-12) / noise
    for threshold in (-1.0, 0.0, 1.0):
        alarm, hit = (float((end > threshold).mean()) for end in ends)
        assert hit <= norm.cdf(norm.ppf(alarm) + mu) + 4e-3
    assert mu < math.sqrt(passes)


EVENTS = [HiddenIterates(2.0, 20, 10, 1.0, 50.0, 1e-9), RandomStop(2.0, 400, 0.999, 1e-9)]


@pytest.mark.parametrize("event", EVENTS, ids=["many passes", "stopped"])
def test_events(event: HiddenIterates | RandomStop) -> None:
    assert event_from_dict(event.to_dict()) == event
    assert epsilon(SelfComposed(event, 3), 1e-5) > epsilon(event, 1e-5)
    assert epsilon(Composed((event, Gaussian(1.0, Relation.REPLACE_ONE))), 1e-5) > epsilon(Gaussian(1.0), 1e-5)
    with pytest.raises(ValueError, match="replace_one"):
        dataclasses.replace(event, relation=Relation.ADD_OR_REMOVE_ONE)


def test_a_random_stop_is_a_mixture() -> None:
    noise, steps = 1.5, 30
    event = RandomStop(noise, steps, 1.0, 1e-12)
    for size in (0.1, 0.5, 1.0):
        mixed = np.mean([gaussian_delta(noise * math.sqrt(stop), size) for stop in range(1, steps + 1)])
        assert mixed <= delta(event, size) <= 1.03 * mixed
    # a record of a later step is in fewer of the runs
    assert np.all(np.diff(stopped_shifts(steps, 0.9, 1e-12)) < 0)
    harmonic = sum(1 / stop for stop in range(1, steps + 1))
    assert epsilon(event, 1e-5) < epsilon(Gaussian(noise), 1e-5)
    assert harmonic / steps < 0.15


def test_long_runs_do_not_underflow() -> None:
    assert hidden_shift(1000, 100, 0.9, FAR, 1e-12) == pytest.approx(1.0, rel=1e-3)
    assert 1 < hidden_shift(10, 10_000, 0.999, FAR, 1e-12) < 20
    assert hidden_shift(2, 3, 1e-6, FAR, 1e-12) == pytest.approx(1.0, rel=1e-3)
