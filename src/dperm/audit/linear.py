"""Mechanisms on linear models under audit: many runs at once, what they minimised, likelihoods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from dperm._random import Randomness
from dperm._types import Array
from dperm.audit.outputs import Progress
from dperm.audit.pairs import Data, Pair
from dperm.audit.recording import Recording
from dperm.mechanisms import ByPart, Mechanism, Stage
from dperm.objectives import LinearObjective
from dperm.release import Noise, Source
from dperm.release.draws import Draw

_AT_ONCE = 1 << 17  # numbers in the largest array of trainings run at once: it is to stay in cache


def trained_at_once(
    train: Callable[[Data, Source], tuple[Array, Any]], objective: LinearObjective, *, curved: bool
) -> Callable[[Data, int, Progress | None], Array]:
    """`curved`: whether the mechanism looks at Hessians, p × p for each training."""

    def outputs(data: Data, trials: int, progress: Progress | None = None) -> Array:
        widest = max(np.size(data[1]) * objective.outputs, objective.dimension**2 if curved else objective.dimension, 1)
        at_once = max(1, min(trials, _AT_ONCE // widest))
        parts: list[Array] = []
        for start in range(0, trials, at_once):
            parts.append(train(data, Trials(min(at_once, trials - start)))[0])
            if progress is not None:
                progress(min(start + at_once, trials), trials)
        return np.concatenate(parts).reshape(trials, -1)

    return outputs


def minimisations_of(mechanism: Mechanism, objective: LinearObjective, data: Data, recording: Recording) -> list[Stage]:
    """The stages of a recorded run that released a minimiser, in order."""
    records = mechanism.admit(objective, objective.records(*data))
    if isinstance(mechanism, ByPart):
        stages: list[Stage] = []
        doors = [recording.places(door) for door in range(1, len(mechanism.columns) + 1)]
        of_parts = mechanism.stages_of_parts(records, [[recording.releases[place].released for place in door] for door in doors])
        for places, mine in zip(doors, of_parts, strict=True):
            beyond = len(recording.releases)  # a release that is missing
            firsts = [dict(enumerate(places)).get(stage.first_release, beyond) for stage in mine]
            stages += [replace(stage, first_release=first) for stage, first in zip(mine, firsts, strict=True)]
    else:
        stages = mechanism.stages(objective, records, [item.released for item in recording.releases])
    return [stage for stage in stages if stage.mechanism.minimiser is not None]


def likelihood_ratio_of(mechanism: Mechanism, objective: LinearObjective, pair: Pair) -> Callable[[Array], Array] | None:
    """ln of the density of the second world over the first's at outputs (m, p), where it is known."""
    sides = [mechanism.admit(objective, objective.records(*data)) for data in (pair.first, pair.second)]
    if mechanism.log_density(objective, sides[0], np.zeros((1, objective.dimension))) is None:
        return None

    def ratio(outputs: Array) -> Array:
        first, second = (mechanism.log_density(objective, side, outputs) for side in sides)
        assert first is not None and second is not None
        return second - first

    return ratio


class Trials(Source):
    """m independent runs: every query, (p,) or (m, p), leaves as (m, p) with noise of its own in each row.

    Draws are tables (m, n) of booleans. Noise comes from the library's keystream, inclusions from its sampling stream.
    """

    def __init__(self, trials: int, randomness: Randomness | None = None) -> None:
        self.trials = trials
        self._count = trials
        self._randomness = randomness or Randomness.from_system()

    def noisy(self, query: Any, noise: Noise) -> Array:
        if not noise.at_once:
            raise NotImplementedError(f"Expected a release whose trials are made at once, got {type(noise).__name__}.")
        return noise.answer(query, (self._count, query.shape[-1]), self._randomness.noise)

    def draw(self, draw: Draw, records: int, steps: int) -> Iterator[Any]:
        return draw.tables(self._randomness.sampling, self._count, records, steps)
