"""Scores of a model on private records, for everybody: from one table of noisy counts, or of noisy sums, that is charged.

Of labels: how many records of each class, in each group, get each answer, by how likely it is; a record is in one cell. Of
numbers: how many records there are, and sums of errors and of targets, each divided by the target's range. All scores are made of
what was released, so that they cost nothing more. A person's rows count as their mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._column import column
from dperm._types import Array
from dperm.data.schema.ranges import checked_range
from dperm.objectives.grouped import numbered
from dperm.privacy import Assumption, Certificate, Event, Gaussian, Relation, calibrate
from dperm.privacy.certificates import assumptions as statements
from dperm.release import Channel, GaussianNoise
from dperm.report.judging import MIDDLE_OFF, RANKS_OFF, Judgement

Numbers = NDArray[np.integer]

_BINS = 20  # of probabilities; half of one is an edge
_FINE = 2.0**30  # parts of 1, in which contributions are counted: sums of millions are exact
_DRAWS = 1000  # of the noise, for intervals
_COVERED = 0.95
_MOST = 1 << 22  # records: more would not be summed exactly
_MODEL = Assumption("The model is public, and these records did not choose it, or that was charged.", "caller", "stated", "model")
_ALONE = Assumption(
    "The model answers each record by itself.",
    "caller",
    "stated; so by `dperm evaluate`, which asks one by one: of many at once, last bits may depend on how many there are",
    "answers apart",
)
_MEANS = Assumption("All rows of a person count as their mean.", "library", "enforced", "rows of a person")


@dataclass(frozen=True)
class ReleasedScores:
    """What may be published: scores of all records, and of each group; `widths` and `part_widths`, halves of 95 % intervals for
    the noise alone. A score that has none, where the noise alone may leave it undefined, is not shown: NaN."""

    whole: Judgement
    parts: dict[str, Judgement]
    widths: dict[str, float]
    certificate: Certificate
    part_widths: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])


@dataclass(frozen=True)
class _Table:
    """What a released table's scores are made by: cells (groups, classes, columns), columns by the answer that they stand for."""

    classes: tuple[str, ...]
    answers: Numbers  # (columns,)
    ordered: bool  # whether columns rise with the probability of the second class
    ranked: bool = False  # whether the classes stand from the least to the greatest

    def scores(self, cells: Array) -> dict[str, float]:
        """Of cells (classes, columns); NaN for what the noise leaves undefined."""
        sizes, right = cells.sum(axis=1), np.array([row[self.answers == place].sum() for place, row in enumerate(cells)])
        total = float(sizes.sum())
        recalls = [_share(float(hits), float(size)) for hits, size in zip(right, sizes, strict=True)]
        found = {
            "records": total,
            "accuracy": _share(float(right.sum()), total),
            "most frequent class": _share(float(sizes.max()), total),
            "above the most frequent class": float(right.sum() - sizes.max()) / total if total > 0 else math.nan,
            "balanced accuracy": float(np.mean(recalls)),
        }
        if self.ranked:
            ranks, middles = np.arange(len(self.classes)), np.cumsum(sizes)
            middle = int(np.argmax(middles >= total / 2))
            off = float((cells * np.abs(ranks[:, None] - self.answers)).sum())
            found[RANKS_OFF] = off / total if total > 0 else math.nan
            found[MIDDLE_OFF] = float(sizes @ np.abs(ranks - middle)) / total if total > 0 else math.nan
        if self.ordered:
            first, second = cells
            below = np.cumsum(first) - first / 2  # a pair in one column counts half
            found["AUC"] = _share(float(second @ below), float(sizes[0] * sizes[1])) if (sizes > 0).all() else math.nan
        return found | {f"recall of {name}": recall for name, recall in zip(self.classes, recalls, strict=True)}


def release_class_scores(
    truth: Numbers,
    answers: Numbers,
    likely: Array | None,
    classes: Sequence[str],
    *,
    epsilon: float,
    delta: float = 1e-5,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    groups: Numbers | None = None,
    persons: Numbers | None = None,
    group_names: Sequence[str] = (),
    ordered: bool = False,
    label: str = "",
    random_state: Any = None,
) -> ReleasedScores:
    """Scores of answers (n,), as numbers of `classes`, beside the truth (n,), within (ε, δ), and charged.

    `likely` (n,): of two classes, the second's probability, for the AUC, which is made of twenty bins of it. `groups` (n,)
    numbers of `group_names`, which must be public: scores of each. `persons` (n,): whose each row is. `ordered`: `classes` stand
    from the least to the greatest, so that errors in ranks are made of the same counts. ValueError, before anything is charged,
    for what does not fit.
    """
    count, by_chance = len(classes), likely is not None and len(classes) == 2
    truth = _numbers("truth", truth, count, None)
    answers = _numbers("answers", answers, count, len(truth))
    if not len(truth) or count < 2:
        raise ValueError(f"Expected some records of at least two classes, got {len(truth)} of {count}.")
    if by_chance:
        given = column("probabilities", likely, len(truth)).astype(np.float64)
        given = np.clip(np.nan_to_num(given, nan=0.5), 0.0, 1.0)
        places = np.minimum((given * _BINS).astype(np.intp), _BINS - 1)
        half = _BINS // 2
        columns = np.where(answers == 1, np.maximum(places, half), np.minimum(places, half - 1))
        meant = np.repeat([0, 1], half)
    else:
        columns, meant = answers, np.arange(count)
    names = tuple(group_names) or ("",)
    where = np.zeros(len(truth), dtype=np.intp) if groups is None else _numbers("groups", groups, len(names), len(truth))
    shape = (len(names), count, len(meant))
    cells = np.ravel_multi_index((where, truth, columns), shape)
    table = _counted(cells, int(np.prod(shape)), persons)
    moved = math.sqrt(2.0) if Relation(relation) is Relation.REPLACE_ONE else 1.0
    noisy, std, certificate = _released(
        table, moved, (epsilon, delta), Relation(relation), persons is not None, label, random_state
    )
    noisy = noisy.reshape(shape)
    kind = _Table(tuple(classes), meant, by_chance, ordered)
    again = np.random.default_rng(0).normal(scale=std * math.sqrt(len(names)), size=(_DRAWS, *shape[1:]))
    scores, widths = _with_widths(kind.scores, noisy.sum(axis=0), again)
    found = {
        name: _with_widths(kind.scores, part, again / math.sqrt(len(names)))
        for name, part in zip(names, noisy, strict=True)
        if group_names
    }
    parts = {name: _judged(part) for name, (part, _) in found.items()}
    return ReleasedScores(_judged(scores), parts, widths, certificate, {name: each for name, (_, each) in found.items()})


def release_number_scores(
    truth: Array,
    answers: Array,
    target_range: tuple[float, float],
    *,
    epsilon: float,
    delta: float = 1e-5,
    relation: Relation | str = Relation.ADD_OR_REMOVE_ONE,
    groups: Numbers | None = None,
    persons: Numbers | None = None,
    group_names: Sequence[str] = (),
    label: str = "",
    random_state: Any = None,
) -> ReleasedScores:
    """R² and errors of answers (n,) beside the truth (n,), both clipped to the target's public range, within (ε, δ), and charged.

    `groups`, `group_names` and `persons` as of `release_class_scores`. ValueError, before anything is charged, for what does not
    fit.
    """
    low, high = checked_range(target_range, "the target")
    truth = column("targets", truth).astype(np.float64)
    answers = column("answers", answers, len(truth)).astype(np.float64)
    if not len(truth):
        raise ValueError("Expected some targets and as many answers, got none.")
    if not (np.isfinite(truth).all() and np.isfinite(answers).all()):
        raise ValueError("Expected finite targets and answers.")
    place = (np.clip(truth, low, high) - low) / (high - low)
    off = np.abs((np.clip(answers, low, high) - low) / (high - low) - place)
    rows = np.column_stack([np.ones(len(truth)), off, off**2, place, place**2])  # within [0, 1]: no rounding leads out of it
    names = tuple(group_names) or ("",)
    where = np.zeros(len(rows), dtype=np.intp) if groups is None else _numbers("groups", groups, len(names), len(rows))
    table = _added(rows, where, len(names), persons)
    # all entries of a record, or person, are within [0, 1], and each of the five adds up to 1 at most over the groups: what is
    # left out, and what takes its place in the same group, differ by √5 at most, and in two groups by √(5 + 5)
    moved = math.sqrt(10.0 if len(names) > 1 and Relation(relation) is Relation.REPLACE_ONE else 5.0)
    noisy, std, certificate = _released(
        table, moved, (epsilon, delta), Relation(relation), persons is not None, label, random_state
    )
    noisy = noisy.reshape(len(names), 5)
    again = np.random.default_rng(0).normal(scale=std * math.sqrt(len(names)), size=(_DRAWS, 5))

    def scores_of(sums: Array) -> dict[str, float]:
        return _number_scores(sums, high - low)

    scores, widths = _with_widths(scores_of, noisy.sum(axis=0), again)
    found = {
        name: _with_widths(scores_of, part, again / math.sqrt(len(names)))
        for name, part in zip(names, noisy, strict=True)
        if group_names
    }
    parts = {name: _judged(part) for name, (part, _) in found.items()}
    return ReleasedScores(_judged(scores), parts, widths, certificate, {name: each for name, (_, each) in found.items()})


def _added(rows: Array, where: Numbers, groups: int, persons: Numbers | None) -> Array:
    """(groups · 5,) sums of rows (n, 5) within [0, 1] over each group, or of persons the means of their rows; exact."""
    shares = np.ones(len(rows))
    if persons is None:
        _refuse_many(len(rows))
    else:
        whose, sizes = _persons(persons, len(rows))
        _refuse_many(len(sizes))
        shares = 1.0 / sizes[whose]
    parts = np.floor(rows * shares[:, None] * _FINE)
    return np.stack([np.bincount(where, each, minlength=groups) for each in parts.T], axis=1).ravel() / _FINE


def _number_scores(sums: Array, span: float) -> dict[str, float]:
    count, off, squares, places, place_squares = map(float, sums)
    spread = place_squares - places**2 / count if count > 0 else 0.0
    return {
        "records": count,
        "R²": min(1.0, 1 - squares / spread) if spread > 0 else math.nan,
        "mean absolute error": span * _share(off, count),
        "root mean squared error": span * math.sqrt(_share(squares, count)) if count > 0 else math.nan,
    }


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole)) if whole > 0 else math.nan


def _numbers(name: str, values: Any, count: int, size: int | None) -> NDArray[np.intp]:
    numbers = column(f"entries of {name}", values, size)
    if numbers.dtype.kind not in "iu":
        raise ValueError(f"Expected {name} as numbers of classes, one a record, got {numbers.dtype}.")
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < count):
        raise ValueError(f"Expected {name} from 0 to {count - 1}, got {numbers.min()} to {numbers.max()}.")
    return numbers.astype(np.intp)


def _persons(persons: Any, size: int) -> tuple[NDArray[np.intp], Numbers]:
    number, _ = numbered(persons, size)
    return number, np.bincount(number)


def _counted(cells: Numbers, size: int, persons: Numbers | None) -> Array:
    """(size,) how many records are in each cell, or persons, each by their rows' shares; sums are exact."""
    if persons is None:
        return np.bincount(cells, minlength=size).astype(np.float64)
    whose, sizes = _persons(persons, len(cells))
    _refuse_many(len(sizes))
    return np.bincount(cells, np.floor(_FINE / sizes[whose]), minlength=size) / _FINE


def _refuse_many(count: int) -> None:
    if count > _MOST:
        raise ValueError(f"Expected at most {_MOST:,} records, got {count:,}.")


def _released(
    table: Array, moved: float, budget: tuple[float, float], relation: Relation, of_persons: bool, label: str, random_state: Any
) -> tuple[Array, float, Certificate]:
    """The table with noise for its L2 sensitivity `moved`, that noise's standard deviation, and what it cost."""
    epsilon, delta = budget
    check.positive("epsilon", epsilon)
    check.fraction("delta", delta)

    def event(noise: float) -> Event:
        return Gaussian(noise, relation)

    noise = calibrate(event, epsilon, delta)
    channel = Channel.open(random_state, label=label)
    certificate = Certificate.issue(
        mechanism="scores of a model, from noisy counts",
        event=event(noise),
        delta=delta,
        target_epsilon=epsilon,
        paper="the Gaussian mechanism, exactly (Balle, Wang 2018)",
        assumptions=[
            *([statements.persons(1)[0], _MEANS] if of_persons else [statements.ONE_RECORD]),
            _MODEL,
            _ALONE,
            Assumption("Classes, groups and the target's range are public.", "caller", "stated", "labels"),
        ],
        public_facts={"max_rows_per_unit": "all"} if of_persons else {},
        not_charged=(statements.WRITTEN, statements.INPUT_CHECKS),
        provenance=channel.provenance,
    )
    channel.charge(certificate.event, certificate.mechanism, persons=of_persons)
    return np.asarray(channel.release(table, GaussianNoise(moved, noise, what="table"))), noise * moved, certificate


def _judged(scores: dict[str, float]) -> Judgement:
    recalls = {name.removeprefix("recall of "): value for name, value in scores.items() if name.startswith("recall of ")}
    others = {name: value for name, value in scores.items() if name != "records" and not name.startswith("recall of ")}
    return Judgement(max(0, round(scores["records"])), others, recalls, ())


def _with_widths(
    scores: Callable[[Array], dict[str, float]], noisy: Array, again: Array
) -> tuple[dict[str, float], dict[str, float]]:
    """Scores of noisy sums, and half-widths of what the same noise `again` would move each by; both NaN where it may leave it
    undefined: without a width a score would look surer than others."""
    found, drawn = scores(noisy), [scores(noisy + noise) for noise in again]
    widths: dict[str, float] = {}
    for name, value in found.items():
        apart = np.abs(np.array([draw[name] for draw in drawn]) - value)
        widths[name] = float(np.quantile(apart, _COVERED)) if np.isfinite(apart).all() else math.nan
    shown = {name: value if name == "records" or math.isfinite(widths[name]) else math.nan for name, value in found.items()}
    return shown, widths
