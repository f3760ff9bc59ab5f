"""Replay: run a mechanism on D, teacher-force it on a neighbour with D's releases and draws, compare every query.

For gradient and output perturbation the pre-noise queries must differ by at most the sensitivity charged. Objective
perturbation has no pre-noise query: at the released θ the two objectives' gradients must differ by at most L and
their log-determinants by at most the bound's; its second release must be within the solver's tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dperm._random import Randomness
from dperm.mechanisms import Mechanism, ObjectivePerturbation
from dperm.objectives import LinearObjective
from dperm.privacy import Channel, Forced, Recorder, Relation, SystemSource
from dperm.privacy.channel import Recording


class ReplayFailure(AssertionError):
    """A query moved by more than was charged."""


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets. `index_map[i]` is the second's index of the first's record i, −1 if it left."""

    name: str
    first: tuple[np.ndarray, np.ndarray]
    second: tuple[np.ndarray, np.ndarray]
    index_map: np.ndarray
    extra: np.ndarray

    def reversed(self) -> Pair:
        backward = np.full(len(self.second[1]), -1, dtype=np.intp)
        for old, new in enumerate(self.index_map):
            if new >= 0:
                backward[new] = old
        lost = np.flatnonzero(self.index_map < 0)
        return Pair(f"{self.name}, reversed", self.second, self.first, backward, lost)


def adding(name: str, rows: np.ndarray, targets: np.ndarray, row: np.ndarray, target: float) -> Pair:
    count = len(targets)
    second = (np.vstack([rows, row[None]]), np.append(targets, target))
    return Pair(name, (rows, targets), second, np.arange(count, dtype=np.intp), np.array([count], dtype=np.intp))


def replacing(name: str, rows: np.ndarray, targets: np.ndarray, row: np.ndarray, target: float) -> Pair:
    """The last record becomes another; it keeps its place in every draw."""
    new_rows, new_targets = rows.copy(), targets.copy()
    new_rows[-1], new_targets[-1] = row, target
    return Pair(
        name, (rows, targets), (new_rows, new_targets), np.arange(len(targets), dtype=np.intp), np.array([], dtype=np.intp)
    )


def run(mechanism: Mechanism, objective: LinearObjective, data: tuple[np.ndarray, np.ndarray], source: object) -> None:
    channel = Channel(source, private=False)  # type: ignore[arg-type]
    channel.charge(mechanism.event(objective.facts), "replay")
    mechanism.train(objective, objective.records(*data), channel)


def record(mechanism: Mechanism, objective: LinearObjective, pair: Pair, seed: int = 0) -> Recording:
    recorder = Recorder(SystemSource(Randomness.fixed(seed)))
    run(mechanism, objective, pair.first, recorder)
    # The record that only one data set has is drawn in every step: the worst case, and the same mask for both.
    lost = np.flatnonzero(pair.index_map < 0)
    for step, included in enumerate(recorder.recording.inclusions):
        recorder.recording.inclusions[step] = np.union1d(included, lost)
    return recorder.recording


def largest_movement(mechanism: Mechanism, objective: LinearObjective, pair: Pair, seed: int = 0) -> float:
    """max over releases of ‖q(D) − q(D')‖ ÷ sensitivity; more than 1 is a broken guarantee."""
    reference = record(mechanism, objective, pair, seed)
    if reference.inclusions:  # run D again with the worst-case mask, forced by its own releases
        same = Forced(reference, np.arange(len(pair.first[1]), dtype=np.intp), np.array([], dtype=np.intp))
        run(mechanism, objective, pair.first, same)
        reference = Recording(same.recording.releases, reference.inclusions)
    forced = Forced(reference, pair.index_map, pair.extra)
    run(mechanism, objective, pair.second, forced)
    assert len(forced.recording.releases) == len(reference.releases) > 0
    ratios = [
        float(np.linalg.norm(a.query - b.query)) / a.sensitivity
        for a, b in zip(reference.releases, forced.recording.releases, strict=True)
    ]
    assert all(
        (a.sensitivity, a.noise) == (b.sensitivity, b.noise)
        for a, b in zip(reference.releases, forced.recording.releases, strict=True)
    )
    return max(ratios)


def check_replay(mechanism: Mechanism, objective: LinearObjective, pair: Pair) -> float:
    """Both directions; returns the largest ratio. Raises ReplayFailure where it exceeds 1."""
    if isinstance(mechanism, ObjectivePerturbation):
        largest = max(_objective_ratio(mechanism, objective, pair), _objective_ratio(mechanism, objective, pair.reversed()))
    else:
        largest = max(largest_movement(mechanism, objective, pair), largest_movement(mechanism, objective, pair.reversed()))
    if largest > 1 + 1e-7:
        raise ReplayFailure(f"{mechanism.name} on {pair.name}: moved {largest:.4f} times what was charged")
    return largest


def _objective_ratio(mechanism: ObjectivePerturbation, objective: LinearObjective, pair: Pair) -> float:
    recorder = Recorder(SystemSource(Randomness.fixed(1)))
    run(mechanism, objective, pair.first, recorder)
    noise, solved = recorder.recording.releases
    # what the first release charges: b has std noise_std for a gradient that moves by at most `lipschitz` (2L replaced)
    moves = 1 if objective.relation is Relation.ADD_OR_REMOVE_ONE else 2
    theta = solved.query
    sides = [objective.evaluate(theta, objective.records(*data), hessian=True) for data in (pair.first, pair.second)]
    ratio = float(np.linalg.norm(sides[0][1] - sides[1][1])) / (noise.sensitivity * moves)
    eye = mechanism.strong_convexity * np.eye(objective.dimension)
    logdets = [np.linalg.slogdet(side[2] + eye)[1] for side in sides]
    allowed = np.log1p(objective.facts.smoothness / mechanism.strong_convexity)
    ratio = max(ratio, abs(logdets[0] - logdets[1]) / (allowed * (1 + 1e-5) + 1e-6))
    # what the second release charges: the solver's θ is within half the sensitivity of the exact minimiser
    regularised = replace(objective, strong_convexity=mechanism.strong_convexity)
    _, gradient, _ = regularised.evaluate(theta, objective.records(*pair.first))
    residual = gradient + mechanism.strong_convexity * theta + noise.released
    if objective.radius is None:
        ratio = max(ratio, float(np.linalg.norm(residual)) / mechanism.strong_convexity / (solved.sensitivity / 2))
    return ratio
