"""Persons with several rows: each is one record, whose loss is the mean of its rows' losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._column import column, is_missing
from dperm._types import Array
from dperm.objectives.per_example import Pass
from dperm.objectives.records import EXACT_ROWS, Batch, PrivacyUnit, Records, admit_shape, known
from dperm.release.grid import power_below

_HAIR = 1 - 2.0**-40  # weights and lengths are a hair less than they might be: products with them are rounded


def numbered(groups: Any, rows: int) -> tuple[NDArray[np.intp], int]:
    """Whose each row is (rows,), as numbers of persons in the order of their first rows, and how many these are. Values are told
    apart as Python does: a list's are not brought to one type. ValueError for groups of another length, and where one is missing.
    """
    values = column("groups", groups, rows, as_given=True)
    number, persons = _in_order(values)
    if missing := int(np.isin(number, [place for place, person in enumerate(persons) if is_missing(person)]).sum()):
        raise ValueError(f"Expected to be told whose each row is, but {missing} groups are missing.")
    if not check.told_apart(persons, values.dtype):
        raise ValueError("Expected groups as texts or whole numbers: of floats so large, several are one and the same.")
    return number, len(persons)


def _in_order(values: NDArray[Any]) -> tuple[NDArray[np.intp], Any]:
    """The place of each value among the different ones, and these, in the order in which they come first."""
    if values.dtype.kind in "biufcmM":
        different, first, place = np.unique(values, return_index=True, return_inverse=True)
        order = np.argsort(first)
        return np.argsort(order)[place.ravel()], different[order]
    places: dict[Any, int] = {}
    number = [places.setdefault(value, len(places)) for value in values.tolist()]
    return np.asarray(number, dtype=np.intp), list(places)


def flattened(rows: Any, targets: Any, groups: Any) -> tuple[Any, Any, Any]:
    """Rows (persons, k, d) and targets (persons, k), or (persons, k, 2), as rows, targets and groups; others as they are."""
    if rows.ndim != 3:
        return rows, targets, groups
    persons, each = rows.shape[:2]
    if groups is not None or np.shape(targets) not in ((persons, each), (persons, each, 2)):
        raise ValueError(f"Expected targets ({persons}, {each}) and no groups with rows of {persons} persons by themselves.")
    flat = np.reshape(targets, (persons * each, *np.shape(targets)[2:]))
    return rows.reshape(persons * each, rows.shape[2]), flat, np.repeat(np.arange(persons), each)


def grouped_records(
    rows: Any,
    targets: Any,
    groups: Any,
    data_norm: float,
    constant: float,
    *,
    most: int,
    present: NDArray[np.bool_] | None = None,
    keep: bool = True,
) -> Records:
    """Records of persons: rows with the same entry of `groups` (n,) are one person's. Of each at most `most` are used, spread
    evenly over that person's rows in their order: what is used of a person depends on nobody else.

    Rows without a finite target, or that `present` leaves out, are passed over first; a person with no other is absent, and one
    of the n. With `most` = 1 these are plain `Records`, one row each.
    """
    size = rows.shape[0]
    number, persons = numbered(groups, size)
    targets = admit_shape(targets, size)
    usable = known(targets)
    if present is not None:
        usable &= column("entries of present", present, size).astype(np.bool_)
    kept, starts = spread_rows(number, usable, persons, most)
    if most == 1:
        empty = np.diff(starts) == 0
        first = np.flatnonzero(~np.isin(number, number[kept]) & ~_repeated(number))  # absent persons keep a row, and add nothing
        chosen = np.concatenate([kept, first])
        order = np.argsort(number[chosen], kind="stable")
        chosen = chosen[order]
        assert len(chosen) == persons
        records = Records(rows[chosen], targets[chosen], data_norm, constant, present=~empty, keep=keep)
        records.unit = PrivacyUnit(1)
        return records
    return GroupedRecords(rows[kept], targets[kept], data_norm, constant, starts=starts, most=most, keep=keep)


def _repeated(number: NDArray[np.intp]) -> NDArray[np.bool_]:
    """(n,) whether a row's person had one before."""
    again = np.ones(len(number), dtype=np.bool_)
    again[np.unique(number, return_index=True)[1]] = False
    return again


def spread_rows(
    number: NDArray[np.intp], usable: NDArray[np.bool_], persons: int, most: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows that are used, by person and in order, and where each person's start (persons + 1,)."""
    order = np.argsort(number, kind="stable")
    order = order[usable[order]]
    counts = np.bincount(number[order], minlength=persons)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    place = np.arange(len(order)) - np.repeat(firsts[:-1], counts)  # of a row among its person's
    total = np.repeat(counts, counts)
    # row j of k is used where ⌊(j + 1)·most/k⌋ > ⌊j·most/k⌋: so many, evenly
    used = (total <= most) | ((place + 1) * most // np.maximum(total, 1) > place * most // np.maximum(total, 1))
    return order[used], np.concatenate([[0], np.cumsum(np.minimum(counts, most))])


def added_by_person(values: Array, starts: NDArray[np.intp], persons: int) -> Array:
    """(…, persons) sums of (…, b) numbers over each person's rows, in their order."""
    filled = np.diff(starts) > 0
    sums = np.zeros((*values.shape[:-1], persons))
    if filled.any():
        sums[..., filled] = np.add.reduceat(values, starts[:-1][filled], axis=-1)
    return sums


class GroupedRecords(Records):
    """Persons in order: `len` counts them, and draws, subsets and batches are of whole persons.

    Person i has the rows from `starts[i]` to `starts[i + 1]` (persons + 1,), at most `most`; a row's weight is 1 ÷ how many its
    person has, a hair less. Other arguments as in `Records`.
    """

    def __init__(
        self,
        rows: Any,
        targets: Any,
        data_norm: float,
        constant: float,
        *,
        starts: NDArray[np.intp],
        most: int,
        keep: bool = True,
    ) -> None:
        self.starts, self.most = starts, most
        self.unit = PrivacyUnit(most)
        counts = np.diff(starts)
        if len(starts) == 0 or starts[-1] != rows.shape[0] or counts.min(initial=0) < 0 or counts.max(initial=0) > most:
            raise ValueError(f"Expected starts of persons with at most {most} rows each, {rows.shape[0]} in all.")
        self.weights: Array = np.repeat(_HAIR / np.maximum(counts, 1), counts)
        super().__init__(rows, targets, data_norm, constant, keep=keep)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def subset(self, indices: NDArray[np.intp]) -> GroupedRecords:
        rows, starts = self._rows_of(np.asarray(indices))
        return GroupedRecords(self.rows[rows], self.targets[rows], self.data_norm, self.constant, starts=starts, most=self.most)

    def places(self, columns: Sequence[int]) -> NDArray[np.intp]:
        """(persons,) as of `Records`, where all rows of a person name the same; −1 for other persons."""
        found: list[NDArray[np.intp]] = [np.zeros(0, dtype=np.intp)]
        for batch in self.batches():
            named, counts = self._named(batch, columns), np.diff(batch.starts)
            place = np.full(len(counts), -1, dtype=np.intp)
            filled = counts > 0
            starts = batch.starts[:-1][filled]
            least, most = np.minimum.reduceat(named, starts), np.maximum.reduceat(named, starts)
            place[filled] = np.where(least == most, least, -1)
            found.append(place)
        return np.concatenate(found)

    def batches(self) -> Iterator[Batch]:
        for first, last in self._ranges(self.starts, self._at_once):
            yield self._whole(first, last)

    def in_turn(self) -> Iterator[Batch]:
        return self.batches()

    def stream(self, draws: Iterable[NDArray[Any] | None]) -> Iterator[Iterable[Batch]]:
        for indices in draws:
            if indices is None:
                yield self.batches()
            elif indices.ndim == 2:
                yield self._seen_by(indices)
            else:
                ends = np.concatenate([[0], np.cumsum(np.diff(self.starts)[indices])])
                yield (self.take(indices[first:last]) for first, last in self._ranges(ends, EXACT_ROWS))

    def stream_rows(self, draws: Iterable[NDArray[Any]]) -> Iterator[Iterable[Batch]]:
        """Rows by themselves, in batches, where a draw names row j of person i as i·most + j; or, for m models at once, says who
        sees which (m, persons·most). Rows that a person lacks are nobody's."""
        counts = np.diff(self.starts)
        places = np.repeat(np.arange(len(counts)) * self.most - self.starts[:-1], counts) + np.arange(self.size)
        for drawn in draws:
            if drawn.ndim == 2:
                yield Records._seen_by(self, drawn[:, places])
                continue
            persons, row = np.divmod(drawn, self.most)
            rows = (self.starts[persons] + row)[row < counts[persons]]
            yield (Records.take(self, rows[start : start + EXACT_ROWS]) for start in range(0, len(rows), EXACT_ROWS))

    def take(self, indices: NDArray[np.intp], room: Any = None) -> Batch:
        """The batch of persons with at most `EXACT_ROWS` rows in all."""
        rows, starts = self._rows_of(indices)
        return self._grouped(super().take(rows), starts, self.weights[rows])

    def _seen_by(self, included: NDArray[np.bool_]) -> Iterator[Batch]:
        for first, last in self._ranges(self.starts, self._at_once):
            batch = self._whole(first, last)
            batch.included = np.repeat(included[:, first:last], np.diff(batch.starts), axis=1)
            yield batch

    def _ranges(self, starts: NDArray[np.intp], rows: int) -> Iterator[tuple[int, int]]:
        """Persons (first, last) whose rows fit a batch of about so many, at least one each."""
        first, persons = 0, len(starts) - 1
        while first < persons:
            last = int(np.searchsorted(starts, starts[first] + rows, side="right")) - 1
            last = min(max(last, first + 1), first + EXACT_ROWS, persons)
            yield first, last
            first = last

    def _whole(self, first: int, last: int) -> Batch:
        part = slice(int(self.starts[first]), int(self.starts[last]))
        return self._grouped(self._batch(part), self.starts[first : last + 1] - part.start, self.weights[part])

    def _grouped(self, batch: Batch, starts: NDArray[np.intp], weights: Array) -> Batch:
        batch.starts, batch.weights = starts, weights
        return batch

    def _rows_of(self, persons: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows of these persons, one after the other, and where each one's start."""
        counts = np.diff(self.starts)[persons]
        starts = np.concatenate([[0], np.cumsum(counts)])
        return np.arange(starts[-1]) + np.repeat(self.starts[persons] - starts[:-1], counts), starts


class MeanPass(Pass):
    """∇ of a person's loss: Σ w·ℓ'(t)·x over that person's rows, made for each person of a batch, (persons, p), sparse where rows
    are. Of m models at once there is a leading axis m.

    Bounded sums are exact: each vector is brought within the bound, and its entries are truncated towards zero to a public grid.
    """

    __slots__ = ("_losses", "_norms", "_vectors")

    def __init__(self, vectors: Any, losses: Array) -> None:
        self._vectors, self._losses = vectors, losses
        if sp.issparse(self._vectors):
            self._vectors.sort_indices()  # a product may have them in any order, by what else is in it
        lengths = _lengths(self._vectors)
        bad = ~np.isfinite(lengths)
        if bad.any():  # contributes nothing, and is masked before it meets a product
            with np.errstate(invalid="ignore"):  # a warning of 0·inf would be an output
                self._vectors = _times(self._vectors, np.where(bad, 0.0, 1.0), bad)
            lengths = np.where(bad, 0.0, lengths)
        self._norms = lengths

    @property
    def losses(self) -> Array:
        return self._losses

    @property
    def norms(self) -> Array:
        return self._norms

    def weighted_sum(self, factors: Array, bound: float | None = None) -> Array:
        """(p,), or (m, p): one sum a model."""
        if bound is None:
            return _total(_times(self._vectors, factors))
        lengths = self._norms * np.abs(factors)
        limit = bound * (1 - (self._vectors.shape[-1] + 8) * 2.0**-50)
        share = np.divide(limit, lengths, out=np.ones_like(lengths), where=lengths > limit)
        with np.errstate(invalid="ignore"):
            share = np.where(np.isfinite(factors), factors * share, 0.0)
        step = 2 * power_below(bound * EXACT_ROWS * 2.0**-53)  # so many vectors as long as `bound`: at most 2⁵³ steps
        vectors = _times(self._vectors, share / step)
        if sp.issparse(vectors):
            vectors.data = np.trunc(vectors.data)
        else:
            np.trunc(vectors, out=vectors)
        return step * _total(vectors)


def _lengths(vectors: Any) -> Array:
    """Each vector's squares are added in the order of its own entries: whatever others are there."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not sp.issparse(vectors):
            return np.sqrt(np.einsum("...ij,...ij->...i", vectors, vectors))
        filled = np.diff(vectors.indptr) > 0
        squares = np.zeros(vectors.shape[0])
        if filled.any():
            squares[filled] = np.add.reduceat(np.square(vectors.data), vectors.indptr[:-1][filled])
        return np.sqrt(squares)


def _times(vectors: Any, factors: Array, bad: Any = None) -> Any:
    """Each vector times its factor; those that are `bad` become zeros."""
    if sp.issparse(vectors):
        counts = np.diff(vectors.indptr)
        data = vectors.data * np.repeat(factors, counts)
        if bad is not None:
            data[np.repeat(bad, counts)] = 0.0
        return sp.csr_array((data, vectors.indices, vectors.indptr), shape=vectors.shape)
    product = vectors * factors[..., None]
    if bad is not None:
        product[bad] = 0.0
    return product


def _total(vectors: Any) -> Array:
    return np.asarray(vectors.sum(axis=0)).ravel() if sp.issparse(vectors) else vectors.sum(axis=-2)
