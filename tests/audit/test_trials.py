"""Trials at once are the trials one by one: same code, same noise, same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dperm._random import Randomness
from dperm.audit import Training, Trials
from dperm.mechanisms import Mechanism
from dperm.objectives import LinearObjective
from dperm.release import Channel, Source
from dperm.release.draws import Draw
from dperm.solvers import SolverError, minimise_many
from helpers.catalogue import catalogue

TRIALS = 5


class Kept(Trials):
    """Keeps the noise and draws of all trials."""

    def __init__(self) -> None:
        super().__init__(TRIALS, Randomness.fixed(3))
        self.noise: list[np.ndarray] = []
        self.tables: list[np.ndarray] = []

    def gaussian(self, query: Any, sensitivity: float, std: float, step: float) -> Any:
        released = super().gaussian(query, sensitivity, std, step)
        self.noise.append(released - np.rint(query / step) * step)
        return released

    def pure(self, query: Any, sensitivity: float, epsilon: float, step: float) -> Any:
        released = super().pure(query, sensitivity, epsilon, step)
        self.noise.append(released - query)
        return released

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Any:
        self.noise.append(super().objective_noise(dimension, lipschitz, std))
        return self.noise[-1]

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        for table in super().draw(draw, records, steps):
            self.tables.append(table)
            yield table


class One(Source):
    """One of those trials by itself."""

    def __init__(self, kept: Kept, number: int) -> None:
        self._noise = iter([noise[number] for noise in kept.noise])
        self._draws = iter([np.flatnonzero(table[number]) for table in kept.tables])

    def gaussian(self, query: Any, sensitivity: float, std: float, step: float) -> Any:
        return query + next(self._noise)

    def pure(self, query: Any, sensitivity: float, epsilon: float, step: float) -> Any:
        return query + next(self._noise)

    def objective_noise(self, dimension: int, lipschitz: float, std: float) -> Any:
        return next(self._noise)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        return itertools.islice(self._draws, steps)


VECTORISED = [entry for entry in catalogue() if Training.of_mechanism(*entry[1:]).many is not None]


@pytest.mark.parametrize(("mechanism", "objective"), [entry[1:] for entry in VECTORISED], ids=[entry[0] for entry in VECTORISED])
def test_trials_at_once_are_trials_one_by_one(mechanism: Mechanism, objective: LinearObjective) -> None:
    pair = Training.of_mechanism(mechanism, objective).replay_pairs[6]  # an infinite row among ordinary ones
    kept = Kept()

    def train(source: Source) -> np.ndarray:
        return mechanism.release(objective, objective.records(*pair.second), Channel.open(source)).theta

    together = train(kept)
    assert len(together) == TRIALS
    for number in range(TRIALS):
        # objective perturbation: both solvers stop within their tolerance, not at the same point
        assert np.allclose(train(One(kept, number)), together[number], rtol=1e-5, atol=1e-5)
    assert len({float(row.ravel()[0]) for row in together}) == TRIALS


def test_nearly_everything_linear_is_vectorised() -> None:
    one_by_one = {name for name, *_ in catalogue()} - {name for name, *_ in VECTORISED}
    adapts = (
        "accuracy first",
        "adaptive",
        "coordinate",
        "frank-wolfe",
        "greedy-coordinate",
        "last-iterate",
        "noisy size",
        "persons, preconditioned",
        "persons, private size",
        "preconditioned",
        "recipe dpis",
        "svrg",
    )  # a state or a plan of its own for each run
    assert [name for name in one_by_one if not name.startswith(adapts)] == []
    # K̃ and the rate differ from run to run, so that there is no one draw to share: trials must refuse, not thin wrongly
    with pytest.raises(NotImplementedError, match="no importance sampling"):
        Kept().thin(np.arange(3), np.ones(3), (0, 0))


def test_many_problems_report_what_they_cannot_reach() -> None:
    class Quartic:
        """Σ x⁴/4 + x²/2 + bx, a problem a row."""

        def __init__(self, linear: np.ndarray) -> None:
            self.linear = linear

        def evaluate(self, theta: np.ndarray, hessian: bool) -> Any:
            matrices = (3 * theta**2 + 1)[:, :, None] * np.eye(theta.shape[1])
            values = (theta**4 / 4 + theta**2 / 2 + self.linear * theta).sum(axis=1)
            return values, theta**3 + theta + self.linear, matrices

    linear = np.random.default_rng(0).normal(size=(50, 3)) * 100
    solution = minimise_many(Quartic(linear), np.zeros((50, 3)), 1e-9)
    assert np.abs(solution.theta**3 + solution.theta + linear).max() <= 1e-9 >= solution.residual
    with pytest.raises(ValueError, match="within the ball"):
        minimise_many(Quartic(linear), np.zeros((50, 3)), 1e-9, radius=0.1)
    with pytest.raises(SolverError, match=r"not reached|below rounding"):
        minimise_many(Quartic(linear), np.zeros((50, 3)), 1e-30)
