"""Private coordinate descent for composite objectives: L1 and L2 penalties, a box (Mangold, Bellet, Salmon, Tommasi 2022).

Each step moves one coordinate, by a noisy sum of one number from each record, clipped for that coordinate, and a proximal map.
How large coordinates are is not known beforehand: their sums of squares are released first; clipping and step sizes follow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dperm import _validate as check
from dperm._progress import watched
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, right_angles
from dperm.mechanisms.method import NoisyMethod, one_for_each
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.sums import exact_sum
from dperm.privacy import Composed, Event, Gaussian, Relation, SelfComposed
from dperm.release import Channel, GaussianNoise

_SCALES_SHARE = 0.1  # of the budget's μ², for the sums of squares
_USUAL = 1.5  # of a bound on a record's gradient: coordinates share it, but not all are large in one record
_LEAST = 0.01  # of the mean square: smaller ones are taken for as much


@dataclass(frozen=True, kw_only=True)
class CoordinateDescent(Mechanism):
    """`epochs` times each coordinate once, in a public order: θ_j ← prox(θ_j − η_j(g_j + l2·θ_j)), g_j the noisy
    sum of records' ∂_jℓ, clipped at C_j, over `public_size`. Penalties are those beside the *mean* loss: l1·‖θ‖₁ without the
    intercept, (l2/2)·‖θ‖²; `box` holds |θ_j| ≤ box.

    With m_j the released mean squares: C_j = clipping_norm·√(m_j/Σm), η_j = 1/(β·m_j/‖x‖²_max + l2). The later half
    of the passes is averaged where there is no l1.
    """

    epochs: check.Count
    clipping_norm: check.Scale
    noise_multiplier: check.Positive
    public_size: check.Count
    l1: check.NonNegative = 0.0
    l2: check.NonNegative = 0.0
    box: check.Scale | None = None

    @property
    def name(self) -> str:
        return "coordinate descent"

    @property
    def paper(self) -> str:
        return "Mangold, Bellet, Salmon, Tommasi 2022; exact Gaussian composition"

    def scales_noise(self, steps: int) -> float:
        return self.noise_multiplier / math.sqrt(_SCALES_SHARE * steps)

    def event(self, facts: PublicFacts) -> Event:
        if not facts.smoothness < math.inf:
            raise ValueError("Expected a smooth loss for coordinate descent, whose steps are 1/β.")
        steps = self.epochs * facts.dimension
        return Composed(
            (
                Gaussian(self.scales_noise(steps), facts.relation),
                SelfComposed(Gaussian(self.noise_multiplier, facts.relation), steps),
            )
        )

    def refuse(self, objective: LinearObjective, records: int) -> None:
        if objective.outputs > 1:
            raise ValueError(f"Expected a loss of one output for coordinate descent, got {objective.loss.name}.")
        if objective.strong_convexity:
            raise ValueError("Expected the quadratic penalty as the mechanism's l2, not the objective's.")
        super().refuse(objective, records)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        facts, columns = objective.facts, _Columns(objective, records)
        moves = 1 if facts.relation is Relation.ADD_OR_REMOVE_ONE else 2
        size, dimension = self.public_size, objective.dimension
        scales = self._scales(objective, columns, channel, moves)
        clips = self.clipping_norm * np.sqrt(scales / scales.sum())
        rates = 1 / (facts.smoothness * scales / objective.row_norm**2 + self.l2)
        penalties = np.full(dimension, self.l1)
        penalties[objective.features :] = 0.0
        theta, mean, averaged = np.zeros(dimension), np.zeros(dimension), 0
        draws = np.random.default_rng(dimension)
        for done in watched(range(self.epochs), "Training", self.epochs):
            for place in draws.permutation(dimension).tolist():
                slopes = exact_sum(columns.gradient(place), clips[place])
                noise = GaussianNoise(moves * clips[place], self.noise_multiplier, what="slope of a coordinate")
                noisy = float(channel.release(slopes, noise)[0])
                wanted = float(theta[place] - rates[place] * (noisy / size + self.l2 * theta[place]))
                wanted = math.copysign(max(abs(wanted) - rates[place] * penalties[place], 0.0), wanted)
                wanted = wanted if self.box is None else min(max(wanted, -self.box), self.box)
                columns.move(place, wanted - float(theta[place]))
                theta[place] = wanted
            if not self.l1 and 2 * done >= self.epochs:
                mean, averaged = mean + theta, averaged + 1
        found = mean / averaged if averaged else theta
        return found, {"steps": self.epochs * dimension, "non_zero": int(np.count_nonzero(found))}

    def _scales(self, objective: LinearObjective, columns: _Columns, channel: Channel, moves: int) -> Array:
        """Mean squares of the coordinates, noisy, and above a public number.

        A record's squares, as a vector, are no longer than ‖x‖². None is negative, so that those of two records have no negative
        product: replacing one by the other moves their sum by at most √2·‖x‖².
        """
        most = objective.row_norm**2
        moved = most * math.sqrt(moves)
        squares = np.concatenate([exact_sum(columns.squares(place), most) for place in range(objective.dimension)])
        noise = self.scales_noise(self.epochs * objective.dimension)
        released = np.asarray(channel.release(squares, GaussianNoise(moved, noise, what="sums of squares"))) / self.public_size
        spread = noise * moved / self.public_size
        return np.maximum(released, max(spread, _LEAST * most / objective.dimension))

    released_kinds = frozenset({"sums of squares", "slope of a coordinate"})
    curved = False

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return right_angles(objective)

    def settings(self) -> Mapping[str, Any]:
        return {
            "epochs": self.epochs,
            "clipping_norm": self.clipping_norm,
            "l1": self.l1,
            "l2": self.l2,
            "box": self.box,
        }


class _Columns:
    """Rows by column, kept once more, and the margins of all records at a θ that moves by one coordinate at a time."""

    def __init__(self, objective: LinearObjective, records: Records) -> None:
        parts: list[Any] = []
        tables: list[tuple[Array, Array, Array]] = []
        for batch in records.batches():
            parts.append(batch.rows.astype(np.float32) if sp.issparse(batch.rows) else np.array(batch.rows, dtype=np.float32))
            tables.append((batch.targets.copy(), batch.norms.copy(), batch.units.copy()))
        self._objective = objective
        self._targets, norms, self._units = (
            np.concatenate(column) if column else np.empty(0) for column in (list(zip(*tables, strict=True)) or ([], [], []))
        )
        self._present = norms > 0
        self._sparse = bool(parts) and sp.issparse(parts[0])
        self._columns: Any = None
        if parts:
            self._columns = sp.csc_array(sp.vstack(parts)) if self._sparse else np.asfortranarray(np.vstack(parts))
        self._margins = np.zeros(len(self._targets))

    def _entries(self, place: int) -> tuple[Any, Array]:
        """Which records have this coordinate, and its values, in proper units."""
        if place >= self._objective.features:
            return slice(None), np.where(self._present, self._objective.intercept_scale, 0.0)
        if self._columns is None:
            return slice(None), self._margins
        if self._sparse:
            low, high = self._columns.indptr[place : place + 2]
            which = self._columns.indices[low:high]
            return which, self._columns.data[low:high] * self._units[which]
        return slice(None), self._columns[:, place] * self._units

    def gradient(self, place: int) -> Array:
        """∂_jℓ_i of the records that have the coordinate."""
        which, values = self._entries(place)
        slopes = self._objective.loss.slope(self._margins[which], self._targets[which])
        return np.where(self._present[which], slopes, 0.0) * values

    def squares(self, place: int) -> Array:
        which, values = self._entries(place)
        return np.where(self._present[which], values * values, 0.0)

    def move(self, place: int, by: float) -> None:
        if by:
            which, values = self._entries(place)
            self._margins[which] += by * values


@dataclass(frozen=True, kw_only=True, repr=False)
class Coordinate(NoisyMethod):
    """Coordinate descent, with penalties beside the mean loss: `l1`·‖θ‖₁ and (`l2`/2)·‖θ‖², and |θ_j| ≤ `box`.

    For features of different sizes, and penalties that are not smooth. Gradients of a coordinate are clipped at a share of
    `clipping_norm`, by default 1.5 times the largest norm that a record's gradient has, of squared loss at 0. `epochs`: 10.
    """

    l1: check.NonNegative = 0.0
    l2: check.NonNegative = 0.0
    box: check.Positive | None = None
    epochs: check.Count | None = None
    clipping_norm: check.Positive | None = None

    key = "coordinate"
    title = "Coordinate descent"
    label = "coordinate descent"

    def at(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Mechanism:
        assert facts.public_size is not None
        usual = _USUAL * (facts.data_norm * facts.target_bound if facts.target_bound is not None else facts.lipschitz)
        part = self.made(
            CoordinateDescent,
            budget,
            epochs=10,
            clipping_norm=usual,
            noise_multiplier=noise_multiplier,
            public_size=facts.public_size,
        )
        return one_for_each(part, models)
