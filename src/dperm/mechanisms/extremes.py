"""Records on which sensitivities are nearly reached, from the proofs of those sensitivities: what audits replay.

A record moves the minimiser θ̂ of Σℓ + (Λ/2)‖θ‖² by at most L/Λ, since the objective is Λ-strongly convex and the record's
gradient is at most L long. Both inequalities are tight at once where the record's slope is at its bound, though the others'
Hessian is zero in the direction in which it pulls. A record that is misclassified by much has the steepest slope, but it cannot
be the opposite of the others that put θ where it is: their Hessian is then as large as their pull. So others lie along an axis
and hold θ away from zero, with no curvature across it, and with little along it where they are many and short; the record lies
across that axis, or along it, and under replace-one its mirror image replaces it. `steep` knows how far each such record moves θ̂
at the settings that it is given, and takes the best. Curvatures, which are largest at another prediction, are reached in the same
way. Where θ is reached by descent, others who all pull one way bring it there (`pulled_along`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dperm._types import Array
from dperm.objectives import LinearObjective
from dperm.privacy.events import Relation

_ALONG = 0.25  # ε: how far a record lies along what holds θ
_NEARLY = 0.97  # of the largest slope or curvature
_OTHERS = 1.25  # prediction of those who hold θ, in absolute value: about where the slope of a loss times it is largest
_MOST = 10_000  # of them
_FEWEST = 5  # of them on either side
_GRID = np.linspace(0.0, 8.0, 161)  # of predictions
_FARTHEST = 1e3  # the largest prediction that is tried
_ANGLES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0)  # of a record to what holds θ: cosines
_ACROSS = (0.25, 0.6)  # the same, where others pull it
_NEAR = (0.05, 0.1, 0.2, 0.4, 0.8, 1.25)  # predictions of those who hold θ, in absolute value
_HALVINGS = 40
_ALL_COSINES = np.linspace(-1.0, 1.0, 81)
_SOME_PLACES, _EVERY = 6, 100
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


def every_place(records: int) -> Sequence[int]:
    """All of so many, or 100 that are spread at random, the first and the last among them."""
    if records <= _EVERY:
        return range(records)
    return sorted({0, records - 1, *np.random.default_rng(0).permutation(records)[: _EVERY - 2].tolist()})


def some_places(records: int) -> Sequence[int]:
    """A few of so many, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, records - 1, min(records, _SOME_PLACES))})


def opposites(objective: LinearObjective, classes: int = 0, others: int = _OTHERS_THERE) -> list[Extreme]:
    """A record at the norm bound has the steepest gradient where its target is at one end, and its replacement pulls the other
    way: by the opposite target, or by the opposite row. `classes` of one model each, whose targets are class numbers."""
    if not objective.features:
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
    first, second = _axes(objective)
    other = _ends(objective, 0)[1]
    return [Extreme("a row at right angles", *_crowd(objective), (first, other), (second, other))]


def instead_of_none(objective: LinearObjective) -> list[Extreme]:
    """For sums of squared residuals: a record in the place of one that is absent, among others who hold θ where its residual is
    large."""
    row, (one, other) = _first_row(objective), _ends(objective, 0)
    absent = np.full(objective.features, np.nan), other
    return [Extreme("in the place of one that is absent", *_alike(row, one), (row, other), absent)]


def around_parameters(objective: LinearObjective, theta: Array, steepest: float) -> list[Extreme]:
    """For sums at public parameters `theta` (p,) of gradients, and of outer products weighted by curvatures or by squared slopes,
    slopes being cut to `steepest`: two rows at the same angle to the parameters, on different sides of them. Of all angles those
    where a weight is largest, and where the rows' gradients or outer products are furthest apart."""
    weights = theta[: objective.features]
    length = float(np.linalg.norm(weights))
    if not length > 0 or len(weights) < 2:
        return []
    along = weights / length
    sides = np.linalg.svd(along[None])[2][1:]  # at right angles to `along`, and to each other
    cosines = _ALL_COSINES
    sines = np.sqrt(1 - cosines**2)
    predictions = objective.data_norm * length * cosines + objective.intercept_scale * float(theta[objective.features :].sum())
    found: list[Extreme] = []
    for target, other in itertools.product(_ends(objective, 0), (-sides[0], sides[-1])):
        targets = np.full(len(cosines), target)
        curvatures = _curvature(objective, predictions, targets)
        slopes = np.minimum(np.abs(_slope(objective, predictions, targets)), steepest)
        apart = np.sqrt(1 - (cosines**2 + sines**2 * float(sides[0] @ other)) ** 2)
        for sizes in (curvatures, slopes, curvatures * apart, slopes**2 * apart, slopes * sines):
            best = int(np.argmax(sizes))
            rows = [objective.data_norm * (cosines[best] * along + sines[best] * side) for side in (sides[0], other)]
            found.append(Extreme("at an angle to the parameters", *_crowd(objective), (rows[0], target), (rows[1], target)))
    return found


def _axes(objective: LinearObjective) -> tuple[Array, Array]:
    """Two rows at right angles, as long as the bound. Of one feature there is no second: a row of zeros."""
    first, second = objective.data_norm * np.eye(max(objective.features, 2))[:2, : objective.features]
    return first, second


def _first_row(objective: LinearObjective) -> Array:
    return _axes(objective)[0]


def _ends(objective: LinearObjective, classes: int) -> tuple[float, float]:
    """Two targets as far apart as there are."""
    return (0.0, 1.0) if classes or objective.outputs > 1 else objective.loss.targets.extremes


def _crowd(objective: LinearObjective, classes: int = 0, others: int = _OTHERS_THERE) -> tuple[Array, Array]:
    """Rows and targets of others who lie across a record on the first axis, but for three, so that sums of what it has more of
    are not about them. At θ = 0 the gradients of those across nearly cancel."""
    one, other = _ends(objective, classes)
    share = 0.5
    if not classes and objective.outputs == 1:
        pulls = np.abs(objective.loss.slope(np.zeros(2), np.array([one, other])))
        share = pulls[1] / pulls.sum()
    across = others - 3
    rows = np.stack(_axes(objective))[[0] * 3 + [1] * across]
    return rows, np.append(np.full(3, one), np.where(np.arange(across) < round(share * across), one, other))


def _alike(row: Array, target: float) -> tuple[Array, Array]:
    return np.tile(row, (_ALIKE, 1)), np.full(_ALIKE, target)


def steep(objective: LinearObjective, modulus: float, spread: float = 0.0) -> list[Extreme]:
    """A record that moves the minimiser of Σℓ + (modulus/2)‖θ‖² furthest, and its gradient there, beside others who hold θ along
    an axis of the rows, and one beside others who hold it along the intercept. `spread` is the standard deviation of a linear
    term of the objective."""
    if not objective.features or objective.outputs > 1:
        return []
    ways = [_held_along_rows, *([_held_along_intercept] if objective.intercept_scale else [])]
    best = [held(objective, modulus).furthest(objective, modulus, spread) for held in ways]
    return [extreme for extreme in best if extreme is not None]


@dataclass(frozen=True)
class _Held:
    """Candidates (k,): others who hold θ at a distance along an axis, and a record among them.

    Vectors (k, 3) are along the axis of the others' rows, across it, and along the intercept: `record` and, in its place,
    `instead`, with their targets; the others' `curvatures`. Both have the prediction `predicted` at the θ that is held. On
    either side (2, k) are so many others, with rows so long, and that target.
    """

    record: Array
    instead: Array
    targets: tuple[Array, Array]
    curvatures: Array
    predicted: Array
    counts: Array
    lengths: Array
    others_targets: Array

    def chosen(self, usable: NDArray[np.bool_]) -> _Held:
        """Some of them."""
        each = np.flatnonzero(usable)
        one, other = self.targets
        return _Held(
            self.record[each],
            self.instead[each],
            (one[each], other[each]),
            self.curvatures[each],
            self.predicted[each],
            self.counts[:, each],
            self.lengths[:, each],
            self.others_targets[:, each],
        )

    def movement(self, objective: LinearObjective, modulus: float, shift: float) -> Array:
        """(k,): how far the minimiser moves, of what the proof allows, where predictions are off by `shift`.

        With a record of vector v and slope ℓ' the minimiser moves by −H⁻¹v·ℓ'(p), where H is the others' Hessian and p the
        record's prediction there: p = p₀ − (vᵀH⁻¹v)·ℓ'(p), which rises in p.
        """
        weights = 1 / (modulus + self.curvatures)

        def moved(vector: Array, target: Array) -> Array:
            start = self.predicted + shift
            along = (vector**2 * weights).sum(axis=1)
            ends = start, start - along * _slope(objective, start, target)
            low, high = np.minimum(*ends), np.maximum(*ends)
            for _ in range(_HALVINGS):
                middle = (low + high) / 2
                beyond = middle + along * _slope(objective, middle, target) > start
                low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
            return -vector * weights * _slope(objective, low, target)[:, None]

        one = moved(self.record, self.targets[0])
        if objective.relation is Relation.ADD_OR_REMOVE_ONE:
            return np.linalg.norm(one, axis=1) * modulus / objective.facts.lipschitz
        other = moved(self.instead, self.targets[1])
        return np.linalg.norm(one - other, axis=1) * modulus / (2 * objective.facts.lipschitz)

    def furthest(self, objective: LinearObjective, modulus: float, spread: float) -> Extreme | None:
        """The best of them, of those with no more others than may be; of those that are nearly as good, the one with fewest."""
        often = 2 * spread * objective.row_norm / modulus
        reached = np.min([self.movement(objective, modulus, shift) for shift in {-often, 0.0, often}], axis=0)
        reached = np.where(np.isfinite(reached), reached, 0.0)
        if not reached.max(initial=0.0) > 0:
            return None
        total = self.counts.sum(axis=0)
        best = min(np.flatnonzero(reached >= _NEARLY * reached.max()), key=lambda each: float(total[each]))
        first, second = _smooth_axes(objective)

        def row(vector: Array) -> Array:
            return vector[0] * first + vector[1] * second

        counts = np.rint(self.counts[:, best]).astype(int)
        rows = np.concatenate([np.tile(self.lengths[side, best] * first, (counts[side], 1)) for side in range(2)])
        targets = np.repeat(self.others_targets[:, best], counts)
        record, instead = (
            (row(vector[best]), float(target[best]))
            for vector, target in zip((self.record, self.instead), self.targets, strict=True)
        )
        return Extreme(f"the steepest record among {len(rows)} others", rows, targets, record, instead)


def _smooth_axes(objective: LinearObjective) -> tuple[Array, Array]:
    """Two directions of rows, those in which the penalty on roughness, of which sensitivities take no account, is least."""
    d = objective.features
    penalty = np.zeros((d, d)) if objective.roughness is None else objective.roughness.matrix(d).toarray()
    axes = np.linalg.eigh(penalty)[1].T
    return axes[0], axes[1] if d > 1 else np.zeros(1)


def _candidates(*lists: Sequence[float]) -> list[Array]:
    """All combinations of these numbers, one array for each list."""
    return [each.ravel() for each in np.meshgrid(*lists, indexing="ij")]


def _farthest(objective: LinearObjective) -> float:
    """How far from zero θ may be held."""
    return 0.98 * min(objective.radius or math.inf, objective.loss.ball or math.inf)


def _predictions(objective: LinearObjective) -> Sequence[float]:
    """Of a record, in absolute value."""
    largest = max(8.0, min(_farthest(objective) * objective.data_norm, _FARTHEST))
    return [0.0, *np.geomspace(0.05, largest, 40)]


@np.errstate(divide="ignore", invalid="ignore")  # θ at zero needs no others
def _held_along_rows(objective: LinearObjective, modulus: float) -> _Held:
    """Others along an axis of the rows, by how long they are and how far they hold θ, half of them on either side, so that what
    they say of the intercept cancels. The record is at several angles to the axis."""
    bound, intercept = objective.data_norm, objective.intercept_scale
    ends, angles = objective.loss.targets.extremes, _ANGLES if objective.features > 1 else (1.0,)
    size, sign, target, along, near, turned = _candidates(_predictions(objective), (-1.0, 1.0), ends, angles, _NEAR, (0.0, 1.0))
    across = np.sqrt(np.maximum(0.0, 1 - along**2))
    distance = size / (along * bound)  # of θ from zero
    length = np.minimum(near / distance, bound)
    sides = np.stack([sign, -sign])
    predicted = sides * length * distance
    theirs = _pulling(objective, predicted, sides)
    pulls = -sides * _slope(objective, predicted, theirs)
    counts = np.where(size > 0, modulus * distance / (2 * length * pulls), 0.0)
    curvature = np.where(counts > 0, counts * _curvature(objective, predicted, theirs), 0.0).sum(axis=0)
    curvatures = np.stack([np.where(size > 0, curvature * length**2, 0.0), 0 * size, curvature * intercept**2], axis=1)
    record = np.stack([bound * along, bound * across, np.full(len(size), intercept)], axis=1)
    # under replace-one its mirror image, or the same row with the other target
    instead = record * np.stack([turned**0, np.where(turned > 0, -1, 1), turned**0], axis=1)
    targets = target, np.where(turned > 0, target, sum(ends) - target)
    lengths = np.stack([length, -length])
    usable = (size == 0) | ((distance <= _farthest(objective)) & _usable(counts, pulls))
    return _Held(record, instead, targets, curvatures, sign * size, counts, lengths, theirs).chosen(usable)


@np.errstate(divide="ignore", invalid="ignore")
def _held_along_intercept(objective: LinearObjective, modulus: float) -> _Held:
    """Others whose rows are zeros hold the intercept: no row of theirs has any curvature."""
    bound, intercept = objective.data_norm, objective.intercept_scale
    size, sign, target = _candidates(_predictions(objective)[1:], (-1.0, 1.0), objective.loss.targets.extremes)
    zero, distance = 0 * size, size / intercept
    theirs = _pulling(objective, sign * size, sign)
    pulls = -sign * _slope(objective, sign * size, theirs)
    count = modulus * distance / (intercept * pulls)
    curvature = np.where(count > 0, count * _curvature(objective, sign * size, theirs), 0.0)
    record = np.stack([zero + bound, zero, zero + intercept], axis=1)
    usable = (distance <= _farthest(objective)) & _usable(count[None], pulls[None])
    return _Held(
        record,
        record * [-1, 1, 1],
        (target, target),
        np.stack([zero, zero, curvature * intercept**2], axis=1),
        sign * size,
        np.stack([count, zero]),
        np.zeros((2, len(size))),
        np.stack([theirs, theirs]),
    ).chosen(usable)


def _pulling(objective: LinearObjective, predicted: Array, towards: Array) -> Array:
    """The targets at which records of these predictions pull them most in the direction of that sign."""
    high, low = objective.loss.targets.extremes
    pulls = [-towards * _slope(objective, predicted, np.full_like(predicted, target)) for target in (high, low)]
    return np.where(pulls[0] >= pulls[1], high, low)


def _usable(counts: Array, pulls: Array) -> NDArray[np.bool_]:
    """Whether the others are as many as there may be, and enough for a count to be nearly what it should be."""
    return np.all((pulls > 0) & (counts >= _FEWEST), axis=0) & (counts.sum(axis=0) <= _MOST)


def _slope(objective: LinearObjective, predictions: Array, targets: Array) -> Array:
    """ℓ' of records that count whole, of arrays of any shape."""
    return objective.loss.plain.slope(predictions.ravel(), targets.ravel()).reshape(predictions.shape)


def _curvature(objective: LinearObjective, predictions: Array, targets: Array) -> Array:
    """ℓ'', likewise."""
    return objective.loss.plain.curvature(predictions.ravel(), targets.ravel()).reshape(predictions.shape)


def pulled_along(
    objective: LinearObjective, others: int, places: Sequence[int | None] = (None,), beside: int = 0
) -> list[Extreme]:
    """Where descent brings θ: the others pull all one way, so that a record across them is soon misclassified by much, and so is
    its mirror image, which pulls nearly the opposite way. Of one feature others pull on the intercept. `beside` of the others
    pull across instead, so that the length of a sum moves as far as the sum."""
    (first, second), (one, other) = _axes(objective), _ends(objective, 0)
    crowd, angles = first, _ACROSS
    if objective.features < 2:
        crowd, first, second, angles = 0 * first, 0 * first, first, (0.0,)
    if not objective.features or (not crowd.any() and not objective.intercept_scale):
        return []
    rows = np.concatenate([np.tile(crowd, (others - beside, 1)), np.tile(second, (beside, 1))])
    targets = np.append(np.full(others - beside, other), np.full(beside, one))
    return [
        Extreme(
            f"a record at a cosine of {along:g} to others who all pull one way",
            rows,
            targets,
            (along * first + across * second, one),
            (along * first - across * second, one),
            place,
        )
        for along in angles
        for across in [math.sqrt(1 - along**2)]
        for place in places
    ]


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
    for target in (*objective.loss.targets.between, *objective.loss.targets.extremes):
        both = np.concatenate([-_GRID[::-1], _GRID])
        curvatures = objective.loss.curvature(both, np.full_like(both, target))
        flat = both[curvatures >= _NEARLY * objective.loss.smoothness(1.0)]
        if len(flat) and abs(middle := float(flat.mean())) < least:
            least = abs(middle)
            found = _held(objective, modulus, middle, target, "most curved")
    absent = np.full(objective.features, np.nan), objective.loss.targets.extremes[0]
    return [replace(item, record=record, instead=absent) for item in found for record in (item.record, item.instead) * 2]


def _held(objective: LinearObjective, modulus: float, prediction: float, target: float, name: str) -> list[Extreme]:
    """Records of this prediction and target among others that hold θ there; none where it takes too many."""
    d, bound = objective.features, objective.data_norm
    if not d:
        return []
    first, second = _smooth_axes(objective)
    along = _ALONG if d > 1 else 1.0
    if abs(prediction) < 1e-6:
        rows, targets, along = np.zeros((0, d)), np.zeros(0), 0.0 if d > 1 else 1.0
    else:
        reach = abs(prediction) / (along * bound)  # R
        if objective.radius is not None and reach > objective.radius:
            return []
        short = min(_OTHERS / reach, bound)
        high, low = objective.loss.targets.extremes
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
