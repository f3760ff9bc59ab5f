"""Trials at once beside trials one by one: same code, same noise, same numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from dperm._random import Randomness
from dperm.audit import Training, Trials
from dperm.mechanisms import Mechanism
from dperm.objectives import LinearObjective
from dperm.release import Channel, Noise, Source
from dperm.release.draws import Draw

__all__ = ["TRIALS", "Kept", "trials_agree"]

TRIALS = 3


class Kept(Trials):
    """Keeps the noise and draws of all trials."""

    def __init__(self) -> None:
        super().__init__(TRIALS, Randomness.fixed(3))
        self.noise: list[np.ndarray] = []
        self.tables: list[np.ndarray] = []

    def noisy(self, query: Any, noise: Noise) -> Any:
        released = super().noisy(query, noise)
        self.noise.append(released - (np.rint(query / noise.step) * noise.step if noise.kind == "gaussian" else query))
        return released

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        for table in super().draw(draw, records, steps):
            self.tables.append(table)
            yield table


class One(Source):
    """One of those trials by itself."""

    def __init__(self, kept: Kept, number: int) -> None:
        self._noise = iter([noise[number] for noise in kept.noise])
        self._draws = iter([np.flatnonzero(table[number]) for table in kept.tables])

    def noisy(self, query: Any, noise: Noise) -> Any:
        return query + next(self._noise)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        return itertools.islice(self._draws, steps)


def trials_agree(mechanism: Mechanism, objective: LinearObjective) -> None:
    training = Training.of_mechanism(mechanism, objective)
    if training.many is None:
        return
    pair = training.replay_pairs[6]  # an infinite row among ordinary ones
    kept = Kept()

    def train(source: Source) -> np.ndarray:
        return mechanism.release(objective, objective.records(*pair.second), Channel.open(source)).theta

    together = train(kept)
    assert len(together) == TRIALS
    for number in range(TRIALS):
        # objective perturbation: both solvers stop within their tolerance, not at the same point
        assert np.allclose(train(One(kept, number)), together[number], rtol=1e-5, atol=1e-5)
    assert len({float(row.ravel()[0]) for row in together}) == TRIALS
