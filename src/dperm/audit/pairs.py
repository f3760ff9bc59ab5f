"""Neighbouring data sets: made by hand, and the worst cases of each linear objective."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, to_device
from numpy.typing import NDArray

from dperm._family import is_third_party
from dperm._types import Array
from dperm.influence import LinearInfluence
from dperm.mechanisms import Mechanism
from dperm.mechanisms.extremes import Extreme, opposites
from dperm.objectives import RECORD, LinearObjective, Logistic
from dperm.privacy import Relation

Indices = NDArray[np.intp]
_USUAL = 40  # records
_MOST_ROWS = 64  # of a made person
#: (rows or inputs, targets), arrays or tensors with the records along the first axis
Data = tuple[Any, Any]


@dataclass(frozen=True)
class Pair:
    """Two neighbouring data sets.

    `index_map[i]` is the second's index of the first's record i, −1 if it left; `extra` are the second's records that the
    first lacks; `changed` are the first's records that are replaced in the second.
    """

    name: str
    first: Data
    second: Data
    index_map: Indices
    extra: Indices
    changed: Indices = field(default_factory=lambda: np.array([], dtype=np.intp))

    def __post_init__(self) -> None:
        """ValueError where these are not neighbours."""
        count, other = len(self.first[1]), len(self.second[1])
        lost = int((self.index_map < 0).sum())
        if len(self.index_map) != count or count - lost + len(self.extra) != other or self.index_map.max(initial=-1) >= other:
            raise ValueError(f"{self.name}: index_map and extra do not lead from {count} records to {other}.")
        if lost + len(self.extra) + len(self.changed) != 1:
            raise ValueError(f"{self.name}: expected one record added, removed or replaced, not several or none.")
        kept = np.setdiff1d(np.flatnonzero(self.index_map >= 0), self.changed)
        for before, after in zip(self.first, self.second, strict=True):
            if isinstance(before, np.ndarray) and isinstance(after, np.ndarray) and before.dtype.kind in "fiub":
                same = np.array_equal(before[kept], after[self.index_map[kept]], equal_nan=before.dtype.kind == "f")
                if not same:
                    raise ValueError(f"{self.name}: records that should be the same in both data sets differ.")

    @property
    def relation(self) -> Relation:
        """Which neighbours these are."""
        return Relation.REPLACE_ONE if len(self.changed) else Relation.ADD_OR_REMOVE_ONE

    @classmethod
    def adding(cls, name: str, data: Data, row: Any, target: Any) -> Pair:
        """`data` against `data` with one more record at the end. ValueError for one of another shape or type."""
        _arrays(data)
        count = len(data[1])
        second = tuple(_appended(part, value) for part, value in zip(data, (row, target), strict=True))
        return cls(name, data, (second[0], second[1]), np.arange(count, dtype=np.intp), np.array([count], dtype=np.intp))

    @classmethod
    def replacing(cls, name: str, data: Data, row: Any, target: Any, index: int = -1) -> Pair:
        """`data` against `data` with the record at `index` replaced: it keeps its place in every draw."""
        _arrays(data)
        second = tuple(_replaced(part, index, value) for part, value in zip(data, (row, target), strict=True))
        places = np.arange(len(data[1]), dtype=np.intp)
        nobody = np.array([], dtype=np.intp)
        return cls(name, data, (second[0], second[1]), places, nobody, places[index][None])

    @classmethod
    def neighbour(cls, relation: Relation, name: str, data: Data, row: Any, target: Any) -> Pair:
        """One more record, or the last one replaced, as the relation says."""
        make = cls.adding if relation is Relation.ADD_OR_REMOVE_ONE else cls.replacing
        return make(name, data, row, target)

    def reversed(self) -> Pair:
        """The same two data sets in the other order."""
        backward = np.full(len(self.second[1]), -1, dtype=np.intp)
        for old, new in enumerate(self.index_map):
            if new >= 0:
                backward[new] = old
        lost = np.flatnonzero(self.index_map < 0)
        changed = self.index_map[self.changed]
        return Pair(f"{self.name}, reversed", self.second, self.first, backward, lost, changed)


def _arrays(data: Data) -> None:
    for part in data:
        if not is_array_api_obj(part):
            raise TypeError(
                f"Expected NumPy arrays or tensors, got {type(part).__name__}: convert it, or make a Pair(...) by hand."
            )


def _appended(part: Any, value: Any) -> Any:
    xp = array_namespace(part)
    return xp.concat([part, _record_like(part, value)[None]])


def _replaced(part: Any, index: int, value: Any) -> Any:
    xp = array_namespace(part)
    changed = xp.asarray(part, copy=True)
    changed[index] = _record_like(part, value)
    return changed


def _record_like(part: Any, value: Any) -> Any:
    """One record of the type of `part`; ValueError where it does not fit without loss."""
    xp = array_namespace(part)
    plain = np.asarray(value if isinstance(value, np.ndarray) else to_device(value, "cpu") if is_array_api_obj(value) else value)
    if plain.shape != tuple(part.shape[1:]):
        raise ValueError(f"Expected a record of shape {tuple(part.shape[1:])}, got {plain.shape}.")
    if isinstance(part, np.ndarray) and part.dtype.kind not in "fiub":  # texts: as wide as they need to be
        return plain
    with np.errstate(invalid="ignore"):
        cast = xp.asarray(plain, dtype=part.dtype, device=device(part))
    whole = np.asarray(to_device(cast, "cpu"), dtype=np.float64)
    if not np.allclose(whole, plain.astype(np.float64), rtol=1e-6, atol=0, equal_nan=True):
        raise ValueError(f"Expected a record that fits into {part.dtype}, got {value!r}.")
    return cast


def records_for(mechanism: Mechanism, objective: LinearObjective) -> int:
    """How many records data sets of an audit have: as many as are stated where a mechanism trains on no other number, else 40."""
    stated = objective.public_size
    return stated if stated is not None and not admits(mechanism, objective, _USUAL) else _USUAL


def admits(mechanism: Mechanism, objective: LinearObjective, *counts: int) -> bool:
    """Whether a mechanism trains on each of these numbers of records."""
    try:
        for count in counts:
            mechanism.refuse(objective, count)
    except ValueError:
        return False
    return True


def extreme_pairs(
    objective: LinearObjective, records: int = 40, classes: int = 0, rng: np.random.Generator | None = None
) -> list[Pair]:
    """Neighbours on which a broken sensitivity, norm bound or validation shows, for replay.

    Records of the largest norm and far beyond it, zero, repeated, not finite, with the other label; among ordinary records,
    among aligned ones, among none. `classes` for one-vs-rest mechanisms, whose targets are class numbers.
    """
    if objective.unit != RECORD:
        alone = replace(objective, unit=RECORD)
        return [of_persons(pair, objective.unit.rows, alike=False) for pair in extreme_pairs(alone, records, classes, rng)]
    rng = rng or np.random.default_rng(0)
    d, bound, relation = objective.features, objective.data_norm, objective.relation
    count = classes or (objective.outputs if objective.outputs > 1 else 0)
    one, other = (0.0, 1.0) if count else objective.loss.targets.extremes
    rows = rng.normal(size=(records, d)) * bound
    targets = np.arange(records) % count * 1.0 if count else np.where(rng.random(records) < 0.5, one, other)
    unit = np.eye(d)[0]
    extreme: list[tuple[str, Array, float]] = [
        ("a row of the largest norm", bound * unit, one),
        ("a row of the largest norm, other target", bound * unit, other),
        ("a row far beyond the norm bound", 1e6 * bound * unit, one),
        ("a row of zeros", np.zeros(d), one),
        ("a copy of a record", rows[0], other),
        ("a row that is not a number", np.full(d, np.nan), one),
        ("an infinite row", np.full(d, np.inf), one),
        ("a target that is not a number", unit, np.nan),
    ]
    pairs = [Pair.neighbour(relation, name, (rows, targets), row, target) for name, row, target in extreme]
    alike = records if relation is Relation.REPLACE_ONE else 6  # a number that is stated is that of both data sets
    aligned = (np.tile(bound * unit, (alike, 1)), np.full(alike, one))
    pairs.append(Pair.neighbour(relation, "against aligned records", aligned, bound * unit, other))
    if relation is Relation.ADD_OR_REMOVE_ONE:
        pairs += [
            Pair.adding("one record against none", (rows[:0], targets[:0]), bound * unit, one),
            Pair.adding("a second identical record", (bound * unit[None], np.full(1, one)), bound * unit, one),
        ]
    return pairs + (_of_weights(relation, (rows, targets), bound * unit, other, rng) if objective.loss.weighs else [])


def worst_pairs(mechanism: Mechanism, objective: LinearObjective, records: int | None = None) -> list[Pair]:
    """Neighbours on which queries move nearly as far as is charged, for replay.

    Records that pull as far as they can, and opposite ways, and what the mechanism's own proofs add, `Mechanism.extremes`; where
    a record's place may matter, at several places (`Mechanism.audited_places`), and these all where dperm did not write the
    mechanism. `records`: how many there are; None: `records_for`.
    """
    records = records_for(mechanism, objective) if records is None else records
    if objective.unit != RECORD:
        alone = replace(objective, unit=RECORD)
        return [of_persons(pair, objective.unit.rows, alike=True) for pair in worst_pairs(mechanism, alone, records)]
    relation, usual = objective.relation, opposites(objective, mechanism.target_classes, records - 1)
    extremes = mechanism.extremes(objective)
    pairs = [_pair_of(item, relation) for item in [*usual, *extremes]]
    if is_third_party(mechanism):
        usual = [*usual, *(item for item in extremes if len(item.targets) >= records - 1)]
    elsewhere = [place for place in mechanism.audited_places(records) if place != records - 1]
    return pairs + [_pair_of(replace(item, place=place), relation) for place in elsewhere for item in usual]


def _pair_of(extreme: Extreme, relation: Relation) -> Pair:
    place = len(extreme.targets) if extreme.place is None else extreme.place
    name = extreme.name if place == len(extreme.targets) else f"{extreme.name}, at place {place + 1}"

    def among(row: Array, target: float) -> Data:
        return np.insert(extreme.rows, place, row, axis=0), np.insert(extreme.targets, place, target)

    after, count = among(*extreme.record), len(extreme.targets)
    if relation is Relation.ADD_OR_REMOVE_ONE:
        shifted = np.arange(count) + (np.arange(count) >= place)
        return Pair(name, (extreme.rows, extreme.targets), after, shifted, np.array([place]))
    nobody = np.array([], dtype=np.intp)
    return Pair(name, among(*extreme.instead), after, np.arange(count + 1), nobody, np.array([place]))


def _of_weights(relation: Relation, others: Data, row: Array, target: float, rng: np.random.Generator) -> list[Pair]:
    """A record of every kind of weight, also of such as are none, among others of every weight."""
    rows, targets = others
    weighed = rows, np.column_stack([targets, rng.choice([0.0, 1e-9, 0.3, 1.0], len(rows))])
    weights = (0.0, 0.4, 1.0, 1e9, -1e9, np.nan, np.inf)
    return [Pair.neighbour(relation, f"a record of weight {u:g}", weighed, row, np.array([target, u])) for u in weights]


def game_pairs(objective: LinearObjective, classes: int = 0, records: int | None = None) -> list[Pair]:
    """Candidates for the pair that is easiest to tell apart: a record at the norm bound by itself, against records that
    pull the other way, replaced by its opposite, and the most influential one beside ordinary ones. `records`: how many all
    data sets have; None: those that tell most."""
    if objective.unit != RECORD:
        pairs = game_pairs(replace(objective, unit=RECORD), classes, records)
        return [of_persons(pair, objective.unit.rows, alike=alike) for pair in pairs for alike in (True, False)]
    d, bound, relation = objective.features, objective.data_norm, objective.relation
    one, other = (0.0, 1.0) if classes else objective.loss.targets.extremes
    x = bound * np.eye(d)[0]
    pairs: list[Pair] = []
    for crowd in (0, 4, 12) if records is None else (records - 1,):
        # the crowd pulls θ to where the record is misclassified, and its gradient longest
        rows, targets = np.tile(x, (crowd, 1)), np.full(crowd, other)
        if relation is Relation.ADD_OR_REMOVE_ONE:
            pairs.append(Pair.adding(_crowd_name(crowd), (rows, targets), x, one))
        else:
            start = (np.vstack([rows, x[None]]), np.append(targets, other))
            pairs.append(Pair.replacing(f"a record's target flipped beside {crowd} others", start, x, one))
    if relation is Relation.REPLACE_ONE and d > 1:
        # two records that θ misclassifies both, pulling in nearly opposite directions
        push, side = np.eye(d)[0], np.eye(d)[1]
        near, far = 0.2 * push + 0.98 * side, 0.2 * push - 0.98 * side
        count = 12 if records is None else records - 1
        start = (np.vstack([np.tile(x, (count, 1)), bound * near[None]]), np.append(np.full(count, other), one))
        pairs.append(Pair.replacing("a record replaced by one across", start, bound * far, one))
    return [*pairs, influential_pair(objective, records, classes)]


def of_persons(pair: Pair, most: int, *, alike: bool) -> Pair:
    """The same neighbours, each record a person of as many rows as are used of one, at most 64: copies of it, or the record with
    its features in other places, and of some persons the last row without a target. What a person has depends on that record
    alone.
    """
    each = min(most, _MOST_ROWS)

    def persons(data: Data) -> Data:
        rows, targets = data
        turned = np.stack([rows if alike else np.roll(rows, place, axis=1) for place in range(each)], axis=1)
        known = np.repeat(np.asarray(targets)[:, None], each, axis=1)
        if not alike and each > 2:
            known = known.astype(np.float64)
            known[rows.sum(axis=1) > 0, -1] = np.nan  # with its weight, where there is one
        return turned, known

    name = f"{pair.name}, of persons with {each} rows" + (", all alike" if alike else "")
    return Pair(name, persons(pair.first), persons(pair.second), pair.index_map, pair.extra, pair.changed)


def _crowd_name(crowd: int) -> str:
    return f"a record against {crowd} opposite ones" if crowd else "a record by itself"


def network_pairs(data: Data, relation: Relation, classes: int, rng: np.random.Generator | None = None) -> list[Pair]:
    """Neighbours of a network's (inputs, targets), floating-point inputs: a mislabelled record, noise, far too large, zero,
    and inputs that are not numbers."""
    rng = rng or np.random.default_rng(0)
    inputs, targets = data
    if not array_namespace(inputs).isdtype(inputs.dtype, "real floating"):
        raise ValueError(f"Expected floating-point inputs, got {inputs.dtype}: make pairs by hand with Pair.adding.")
    shape = tuple(inputs.shape[1:])
    scale = float(abs(inputs).max())
    first, label = np.asarray(inputs[0]), int(targets[0])
    extreme = [
        ("a mislabelled record", first, (label + 1) % classes),
        ("noise as a record", rng.normal(size=shape) * scale, int(rng.integers(classes))),
        ("a record a million times as large", 1e6 * first, (label + 1) % classes),
        ("a record of zeros", np.zeros(shape), label),
        ("a record that is not a number", np.full(shape, np.nan), label),
    ]
    return [Pair.neighbour(relation, name, data, row, target) for name, row, target in extreme]


def influential_pair(objective: LinearObjective, records: int | None = None, classes: int = 0) -> Pair:
    """Ordinary records, as many as are stated (at most 200; None stated: 60), and beside them the record that moves their
    minimiser furthest: found by its influence, of records as long as the bound along each axis and where the others have least to
    say."""
    count = min(objective.public_size or 60, 200) if records is None else records
    d, bound = objective.features, objective.data_norm
    rng = np.random.default_rng(0)
    scales = np.geomspace(1.0, 0.03, max(1, d))  # directions in which others say much, and little
    rows = rng.normal(size=(max(1, count - 1), d)) * scales
    rows *= bound / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), bound)
    binary = objective if not classes else replace(objective, loss=Logistic(), radius=None)
    one, other = (0.0, 1.0) if objective.outputs > 1 else binary.loss.targets.extremes
    targets = np.where(rng.random(len(rows)) < 0.5, one, other)
    places = [*np.eye(d)[:8], np.linalg.svd(rows)[2][-1]] if d else []
    candidates = [(sign * bound * place, target) for place in places for sign in (1, -1) for target in (one, other)]
    influence = _influence(binary, rows, targets)
    moves = [np.linalg.norm(influence.with_more(row[None], np.array([target])) - influence.theta) for row, target in candidates]
    row, target = candidates[int(np.argmax(moves))] if candidates else (np.zeros(d), one)
    if classes:  # class numbers
        targets, target = (targets > 0).astype(np.float64), float(target > 0)
    name = f"the most influential of {len(candidates)} records beside {len(rows)} ordinary ones"
    if objective.relation is Relation.ADD_OR_REMOVE_ONE:
        return Pair.adding(name, (rows, targets), row, target)
    opposite = other if target == one else one
    start = (np.vstack([rows, row[None]]), np.append(targets, float(opposite > 0) if classes else opposite))
    return Pair.replacing(f"{name}, its target flipped", start, row, target)


def _influence(objective: LinearObjective, rows: Array, targets: Array) -> LinearInfluence:
    """At the minimiser, with as much regularisation as keeps it inside the ball; at zero, where descent starts, for a loss that
    has no second derivative to find it by."""
    count, radius = len(rows), objective.radius
    modulus = 0.02 * count * objective.row_norm**2
    # ‖θ̂‖ ≤ ‖∇J(0)‖ ÷ modulus ≤ n·lipschitz ÷ modulus: a quarter of the radius at most, from here on
    free = 0.0 if radius is None else 4 * count * objective.facts.lipschitz / radius
    while True:
        regularised = objective.with_strong_convexity(modulus)
        records = regularised.records(rows, targets)
        if not objective.facts.smoothness < np.inf:
            return LinearInfluence(regularised, records, np.zeros(objective.dimension))
        try:
            return LinearInfluence.at_minimiser(regularised, records)
        except ValueError:
            if modulus > max(free, 1e6 * count * objective.facts.smoothness):
                raise
            modulus *= 4
