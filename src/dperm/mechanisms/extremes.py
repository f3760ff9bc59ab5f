"""Records on which sensitivities are nearly reached, from the proofs of those sensitivities: what audits replay.

A record moves the minimiser θ̂ of Σℓ + (Λ/2)‖θ‖² by at most L/Λ, since the objective is Λ-strongly convex and the record's
gradient is at most L long. Both inequalities are tight at once where the record's slope is at its bound, though the others'
Hessian is zero in the direction in which it pulls. A record that is misclassified by much has the steepest slope, but it cannot
be the opposite of the others that put θ where it is: their Hessian is then as large as their pull. So others lie along an axis e₁
and hold θ near −R·e₁, with no curvature across e₁; the record lies nearly across it, at ε·e₁ ± √(1 − ε²)·e₂ in units of the
bound, so that its prediction is −ε·R times the bound whichever the sign. Under replace-one the one sign replaces the other: their
pulls are nearly opposite, and both slopes are at their bounds. Curvatures, which are largest at another prediction, are reached
in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dperm.objectives import LinearObjective

__all__ = [
    "Extreme",
    "across_a_third_class",
    "against_others_alike",
    "beside_others_alike",
    "curved",
    "instead_of_none",
    "opposites",
    "right_angles",
    "some_places",
    "steep",
]

Array = NDArray[np.float64]

_ALONG = 0.25  # ε: how far a record lies along what holds θ
_NEARLY = 0.97  # of the largest slope or curvature
_OTHERS = 1.25  # prediction of those who hold θ, in absolute value: about where the slope of a loss times it is largest
_MOST = 10_000  # of them
_GRID = np.linspace(0.0, 8.0, 161)  # of predictions
_SOME_PLACES = 6
_OTHERS_THERE = 39
_ALIKE = 1000
_SHORT = 0.2


@dataclass(frozen=True)
class Extreme:
    """Others with `rows` (n, d) and `targets` (n,), a (row, target) that comes to them, and under replace-one in whose place.

    It stands at `place` among them, None: at the end.
    """

    name: str
    rows: Array
    targets: Array
    record: tuple[Array, float]
    instead: tuple[Array, float]
    place: int | None = None

    def moved(self, lift: Array) -> Extreme:
        """The same records with rows (x, 1)·lift, for a matrix `lift` (d + 1, e)."""

        def lifted(rows: Array) -> Array:
            return np.concatenate([rows, np.ones((*rows.shape[:-1], 1))], axis=-1) @ lift

        (row, target), (other, instead) = self.record, self.instead
        return replace(self, rows=lifted(self.rows), record=(lifted(row), target), instead=(lifted(other), instead))


def some_places(records: int) -> Sequence[int]:
    """A few of so many, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, records - 1, min(records, _SOME_PLACES))})


def opposites(objective: LinearObjective, classes: int = 0, others: int = _OTHERS_THERE) -> list[Extreme]:
    """A record at the norm bound has the steepest gradient where its target is at one end, and its replacement pulls the other
    way: by the opposite target, or by the opposite row. `classes` of one model each, whose targets are class numbers."""
    if objective.features < 2:
        return []
    first, one, other = _first_row(objective), *_ends(objective, classes)
    crowd = _crowd(objective, classes, others)
    return [
        Extreme("a target at the other end", *crowd, (first, one), (first, other)),
        Extreme("the opposite row", *crowd, (-first, one), (first, one)),
    ]


def right_angles(objective: LinearObjective) -> list[Extreme]:
    """For sums of squares and of products of a record's numbers with themselves. They have no negative inner product, so that one
    record in another's place moves them by at most √2 times their length: as far as that where they are at right angles."""
    if objective.features < 2:
        return []
    first, second = objective.data_norm * np.eye(objective.features)[:2]
    other = _ends(objective, 0)[1]
    return [Extreme("a row at right angles", *_crowd(objective), (first, other), (second, other))]


def instead_of_none(objective: LinearObjective) -> list[Extreme]:
    """For sums of squared residuals: a record in the place of one that is absent, among others who hold θ where its residual is
    large."""
    row, (one, other) = _first_row(objective), _ends(objective, 0)
    absent = np.full(objective.features, np.nan), other
    return [Extreme("in the place of one that is absent", *_alike(row, one), (row, other), absent)]


def _first_row(objective: LinearObjective) -> Array:
    return objective.data_norm * np.eye(objective.features)[0]


def _ends(objective: LinearObjective, classes: int) -> tuple[float, float]:
    """Two targets as far apart as there are."""
    return (0.0, 1.0) if classes or objective.outputs > 1 else objective.loss.extremes


def _crowd(objective: LinearObjective, classes: int = 0, others: int = _OTHERS_THERE) -> tuple[Array, Array]:
    """Rows and targets of others who lie across a record on the first axis, but for three, so that sums of what it has more of
    are not about them. At θ = 0 the gradients of those across nearly cancel."""
    one, other = _ends(objective, classes)
    share = 0.5
    if not classes and objective.outputs == 1:
        pulls = np.abs(objective.loss.slope(np.zeros(2), np.array([one, other])))
        share = pulls[1] / pulls.sum()
    across = others - 3
    rows = objective.data_norm * np.eye(objective.features)[[0] * 3 + [1] * across]
    return rows, np.append(np.full(3, one), np.where(np.arange(across) < round(share * across), one, other))


def _alike(row: Array, target: float) -> tuple[Array, Array]:
    return np.tile(row, (_ALIKE, 1)), np.full(_ALIKE, target)


def steep(objective: LinearObjective, modulus: float, spread: float = 0.0) -> list[Extreme]:
    """Where a record's gradient at θ̂ is nearly as long as the bound L, and under replace-one moves by nearly 2L.

    `modulus` is Λ, `spread` the standard deviation of a linear term.
    """
    target = objective.loss.extremes[0]
    slopes = np.abs(objective.loss.slope(-_GRID, np.full_like(_GRID, target)))
    enough = np.flatnonzero(slopes >= _NEARLY * objective.loss.lipschitz(1.0)) if objective.loss.ball is None else []
    if not len(enough):
        return []
    bound = objective.row_norm
    # as far as the record moves it, and the linear term
    away = float(_GRID[enough[0]]) + bound * (objective.facts.lipschitz + 2 * spread) / modulus
    return _held(objective, modulus, -away, target, "steepest")


def beside_others_alike(objective: LinearObjective) -> list[Extreme]:
    """Where θ moves along the record's own row, so that its gradient changes by its curvature times the way: what a step of
    variance reduction sums. Others are copies of the record, so many that noise does not turn θ away.

    Of two records at one θ and one anchor the changes are H·Δθ and H'·Δθ with 0 ≤ H, H' ≤ β: they differ by at most β‖Δθ‖, which
    is half of what replacing a clipped vector is charged.
    """
    row, target = _first_row(objective), _ends(objective, 0)[0]
    absent = np.full(objective.features, np.nan), target
    return [Extreme("one more like the others", *_alike(row, target), (row, target), absent)]


def against_others_alike(objective: LinearObjective) -> list[Extreme]:
    """Where a coordinate is chosen before the record's part in it is released: others make it the first choice."""
    row, (one, other) = _first_row(objective), _ends(objective, 0)
    return [Extreme("one against many", *_alike(row, one), (row, other), (row, one))]


def across_a_third_class(objective: LinearObjective, others: int, place: int) -> list[Extreme]:
    """Of a softmax of three classes and more: a record whose probabilities are all of another class than its own has the longest
    gradient, √2 times its row. The `others` are all of class 2, and short, so that descent goes far along their row before they
    are sure; the record, of class 0, lies nearly across them, and is replaced by its mirror image."""
    if objective.outputs < 3 or objective.features < 2:
        return []
    first, second = objective.data_norm * np.eye(objective.features)[:2]
    across = math.sqrt(1 - _ALONG**2)
    one, other = ((_ALONG * first + sign * across * second, 0.0) for sign in (1, -1))
    rows, targets = np.tile(_SHORT * first, (others, 1)), np.full(others, 2.0)
    return [Extreme("the steepest record across a third class", rows, targets, one, other, place)]


def curved(objective: LinearObjective, modulus: float) -> list[Extreme]:
    """Where a record's curvature at θ̂ is as large as the bound, and under replace-one that of the one in its place is nothing.

    θ̂ is random: one pair may miss it, several hardly do.
    """
    found: list[Extreme] = []
    least = math.inf
    for target in (0.0, *objective.loss.extremes):
        if target == 0 and objective.loss.classification:
            continue
        both = np.concatenate([-_GRID[::-1], _GRID])
        curvatures = objective.loss.curvature(both, np.full_like(both, target))
        flat = both[curvatures >= _NEARLY * objective.loss.smoothness(1.0)]
        if len(flat) and abs(middle := float(flat.mean())) < least:
            least = abs(middle)
            found = _held(objective, modulus, middle, target, "most curved")
    absent = np.full(objective.features, np.nan), objective.loss.extremes[0]
    return [replace(item, record=record, instead=absent) for item in found for record in (item.record, item.instead) * 2]


def _held(objective: LinearObjective, modulus: float, prediction: float, target: float, name: str) -> list[Extreme]:
    """Records of this prediction and target among others that hold θ there; none where it takes too many."""
    d, bound = objective.features, objective.data_norm
    if d < 2:
        return []
    # where the penalty on roughness, which sensitivities take no account of, is least
    penalty = np.zeros((d, d)) if objective.roughness is None else objective.roughness.matrix(d).toarray()
    first, second = np.linalg.eigh(penalty)[1].T[:2]
    if abs(prediction) < 1e-6:
        rows, targets, along = np.zeros((0, d)), np.zeros(0), 0.0
    else:
        along = _ALONG
        reach = abs(prediction) / (along * bound)  # R
        if objective.radius is not None and reach > objective.radius:
            return []
        short = min(_OTHERS / reach, bound)
        high, low = objective.loss.extremes
        # half of them on either side, so that what they say of the intercept cancels
        pulls = [
            abs(float(objective.loss.slope(np.array([sign * short * reach]), np.array([aim]))[0]))
            for sign, aim in ((-1, low), (1, high))
        ]
        count = modulus * reach / short / 2
        if not min(pulls) > 0 or 2 * count / min(pulls) > _MOST:
            return []
        up, down = (math.ceil(count / pull) for pull in pulls)
        side = np.sign(prediction)
        rows = np.vstack([np.tile(-side * short * first, (up, 1)), np.tile(side * short * first, (down, 1))])
        targets = np.concatenate([np.full(up, low), np.full(down, high)])
        # θ = side·R·e₁ where `low` pulls predictions of −side·r·e₁ down
    across = math.sqrt(1 - along**2)
    one, other = (bound * (along * first + sign * across * second) for sign in (1, -1))
    return [Extreme(f"the {name} record across {len(rows)} others", rows, targets, (one, target), (other, target))]
