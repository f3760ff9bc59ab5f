"""Records: rows and targets behind one face, whatever holds the rows — a dense array, SciPy CSR, or a memory-mapped file.

Rows longer than the public `data_norm` are scaled down to it, and each is truncated to 21 binary digits of its own length: whole
numbers times a power of two, whose products and sums in double precision have no rounding, so that nothing depends on the order
of records or on which others are there. A record is what is left of it then, everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._column import column, refuse_masked
from dperm._types import Array

T = TypeVar("T")

ROW_BITS = 21  # a row, in its units, is shorter than 2 to this
EXACT_ROWS = 1 << 13  # rows in a batch, at most

_LONGEST = 1e30  # rows longer than this many bounds count as not finite
_SHORTEST = -400  # the exponent of two below which rows count as zeros: their units stay within doubles
_CHUNK_BYTES = 1 << 21  # a batch of rows that stays in cache while it is used twice or three times
_KEPT_BYTES, _KEPT_MAPPED = 1 << 29, 1 << 25  # of rows in units that are kept: of an array in memory, and of a file
_NOBODY: NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)


class Batch:
    """At most `EXACT_ROWS` records: `rows` (b, d) are whole numbers in double precision, dense or CSR, in multiples of `units`
    (b,), powers of two; targets (b,), or (b, 2) with a weight each.

    `norms` (b,) bound the rows' lengths from above, the constant feature included: 0 for a record that is absent and contributes
    nothing. `included` (m, b) tells which records each of m models trained at once sees; None: every model sees all.

    Where records are persons, the rows of one follow each other from `starts[i]` to `starts[i + 1]` (persons + 1,), and the
    `weights` (b,) of a person add up to at most 1. None of records that have one row each.
    """

    __slots__ = ("included", "norms", "rows", "starts", "targets", "units", "weights")

    def __init__(self, rows: Any, table: Any, included: Any = None, starts: Any = None, weights: Any = None) -> None:
        self.rows = rows
        self.norms, self.units, targets = table[0], table[1], table[2:]
        self.targets = targets[0] if len(targets) == 1 else np.stack(targets, axis=-1)
        self.included = included
        self.starts, self.weights = starts, weights

    def counted(self, values: Array) -> Array:
        """(…, b) numbers of rows, 0 for those that are absent; a person's count by their weights."""
        if not self.norms.all():
            values = np.where(self.norms > 0, values, 0.0)
        return values if self.weights is None else values * self.weights


class _Room:
    """Memory for batches that are used one after the other: asking for it again each time would cost more than filling it."""

    def __init__(self, features: int) -> None:
        self._features = features
        self._buffers: tuple[NDArray[Any], Array] | None = None

    def of(self, count: int) -> tuple[NDArray[Any], Array]:
        """(count, d) in single precision, and in double."""
        if self._buffers is None or count > len(self._buffers[0]):
            shape = (count + count // 4 + 16, self._features)
            self._buffers = np.empty(shape, dtype=np.float32), np.empty(shape)
        return self._buffers[0][:count], self._buffers[1][:count]


@dataclass(frozen=True)
class PrivacyUnit:
    """What neighbouring data sets differ in: one row; or one person, of whom at most `max_rows` rows are used.

    None: each row is a record by itself. With `max_rows` a record is a person, whose loss is the mean of the rows' losses.
    ValueError for more rows than a batch holds.
    """

    max_rows: int | None = None

    def __post_init__(self) -> None:
        if self.max_rows is None:
            return
        if isinstance(self.max_rows, bool | np.bool_):
            raise TypeError(f"Expected max_rows_per_unit to be a number, got {self.max_rows!r}.")
        most = check.integer("max_rows_per_unit", self.max_rows)
        if most > EXACT_ROWS:
            raise ValueError(
                f"Expected max_rows_per_unit of at most {EXACT_ROWS:,}, got {most:,}: of persons with more, some rows are used."
            )
        object.__setattr__(self, "max_rows", most)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("A PrivacyUnit cannot be derived from: who is protected is what it says.")

    @property
    def rows(self) -> int:
        """The most rows of a record."""
        return self.max_rows or 1

    @property
    def several_rows(self) -> bool:
        """Whether a record may be of more than one row."""
        return self.rows > 1

    @property
    def whom(self) -> str:
        """What is counted, in messages."""
        return "records" if self.max_rows is None else "persons"


#: each row is a record
RECORD = PrivacyUnit()


class Records:
    """rows: (n, d) float64 or float32, dense (possibly memory-mapped) or CSR; targets: (n,), or (n, 2) with a weight each, for
    `Weighted` losses.

    `constant` is the value of the constant feature (0: none). A record with a number that is not finite, or whose norm
    overflows, is absent: it contributes nothing anywhere, and is one of the n. So is one that `present` (n,) leaves out.

    Rows in units are kept in memory of its own, in row order and single precision: those of an array up to 512 MiB, of a
    memory-mapped file up to 32 MiB, sparse ones always (8 bytes an entry). Larger tables are read, scaled and measured each time
    they are used. Either way a row is no longer than its norm says when it is used, whatever happened to the table in between.
    """

    #: what a record is, among these rows
    unit: PrivacyUnit = RECORD

    def __init__(
        self,
        rows: Any,
        targets: Any,
        data_norm: float,
        constant: float = 0.0,
        *,
        present: NDArray[np.bool_] | None = None,
        keep: bool = True,
    ) -> None:
        self.rows = rows
        self.data_norm = data_norm
        self.constant = constant
        self.sparse = sp.issparse(rows)
        if self.sparse and rows.format != "csr":
            raise TypeError(f"Expected sparse rows in CSR format, got {rows.format}.")
        if rows.dtype not in (np.float64, np.float32):  # others wrap, or hold fewer digits than a row in units
            raise TypeError(f"Expected rows of float64 or float32, got {rows.dtype}.")
        if self.sparse:
            rows.check_format(full_check=True)
        self.size, self.features = rows.shape
        self.targets = admit_shape(targets, self.size)
        absent = ~known(self.targets)
        if present is not None:
            absent |= ~column("entries of present", present, self.size).astype(np.bool_)
        self.targets[absent] = 1.0
        self._absent = absent if absent.any() else _NOBODY
        self._kept: Any = None
        self._table = np.empty((0, 0))  # norms, units and targets of the rows that are kept
        if self.sparse or (keep and 4 * rows.size <= (_KEPT_MAPPED if _is_mapped(rows) else _KEPT_BYTES)):
            self._keep()

    def __len__(self) -> int:
        return self.size

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept, or of the table where none are, and of what is known of each record."""
        rows = self.rows if self._kept is None else self._kept
        entries = sum(part.nbytes for part in (rows.data, rows.indices, rows.indptr)) if self.sparse else rows.nbytes
        return int(entries) + self._table.nbytes + self.targets.nbytes

    def forget_table(self) -> None:
        """Let go of the table where its rows are kept in units: afterwards there are no subsets."""
        if self._kept is not None:
            self.rows: Any = None

    def relabelled(self, targets: Array) -> Records:
        """The same rows with other targets of the same shape, sharing all memory. ValueError for another shape."""
        targets = admit_shape(targets, self.size)
        if targets.shape != self.targets.shape:
            raise ValueError(f"Expected targets of shape {self.targets.shape}, as before, got {targets.shape}.")
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.targets = targets
        if self._kept is not None:
            other._table = np.concatenate([self._table[:2], np.atleast_2d(other.targets.T)])
        return other

    def subset(self, indices: NDArray[np.intp]) -> Records:
        """These records alone, each once; absent ones stay absent."""
        if self.rows is None:
            raise TypeError("Expected records that have their table, got a part that let go of it.")
        present = None if not len(self._absent) else ~self._absent[indices]
        chosen = Records(self.rows[indices], self.targets[indices], self.data_norm, self.constant, present=present)
        chosen.unit = self.unit
        return chosen

    def places(self, columns: Sequence[int]) -> NDArray[np.intp]:
        """(n,) for each record which of these features is its largest, by its number among them, the first of several alike; −1
        where none is above 0, and of absent records. It follows from each record by itself."""
        return np.concatenate([self._named(batch, columns) for batch in self.batches()] or [np.zeros(0, dtype=np.intp)])

    @staticmethod
    def _named(batch: Batch, columns: Sequence[int]) -> NDArray[np.intp]:
        """Of each row."""
        entries = batch.rows[:, list(columns)]
        entries = np.asarray(entries.todense()) if sp.issparse(entries) else entries
        return np.where((entries.max(axis=1) > 0) & (batch.norms > 0), entries.argmax(axis=1), -1).astype(np.intp)

    def admitted(self, admit: Callable[[Array], Array]) -> Records:
        """The same rows with the targets that `admit` makes of theirs."""
        return self.relabelled(admit(self.targets))

    @property
    def weighed(self) -> bool:
        """Whether targets have weights beside them."""
        return self.targets.ndim > 1

    def total(self, compute: Callable[[Records], T], add: Callable[[T, T], T]) -> T:
        """compute(self); of records that live in parts elsewhere, the sum by `add` of what is computed of each."""
        return compute(self)

    def one_against_rest(self, number: int) -> Records:
        """With targets 1 where they were this class number, and −1 elsewhere; weights stay."""
        targets = np.where(self.targets == number, 1.0, -1.0)
        if targets.ndim > 1:
            targets[:, 1] = self.targets[:, 1]
        return self.relabelled(targets)

    def batches(self) -> Iterator[Batch]:
        """All records, a cache-sized batch at a time, in order."""
        for part in self._parts():
            yield self._batch(part)

    def in_turn(self) -> Iterator[Batch]:
        """`batches`, each valid until the next is asked for: they share memory, which is dear to ask for anew where an allocator
        gives it back at once, as on Dask's workers."""
        room = _Room(self.features)
        for part in self._parts():
            yield self._batch(part, room)

    def stream(self, draws: Iterable[NDArray[Any] | None]) -> Iterator[Iterable[Batch]]:
        """The records of each draw (None: all), in batches; a batch is valid until the next is asked for.

        A draw for m models at once is a table (m, n) of who sees which record.
        """
        room = _Room(self.features)  # of this stream alone: another thread may have one too
        for indices in draws:
            if indices is None:
                yield self.in_turn()
            elif indices.ndim == 2:
                yield self._seen_by(indices)
            elif len(indices) <= EXACT_ROWS:
                yield (self.take(indices, room),)
            else:
                starts = range(0, len(indices), EXACT_ROWS)
                yield (self.take(part, room) for part in [indices[start : start + EXACT_ROWS] for start in starts])

    def _seen_by(self, included: NDArray[np.bool_]) -> Iterator[Batch]:
        for part in self._parts():
            batch = self._batch(part)
            batch.included = included[:, part]
            yield batch

    def take(self, indices: NDArray[np.intp], room: _Room | None = None) -> Batch:
        """The batch of at most `EXACT_ROWS` records. A dense one lives in `room`, which the next call overwrites."""
        if self._kept is None:
            # `take` would bring all of a table in column order into row order first
            return self._measured(self.rows[indices], indices)
        if self.sparse:
            rows = self._kept[indices].astype(np.float64)
        else:
            raw, rows = (room or _Room(self.features)).of(len(indices))
            self._kept.take(indices, axis=0, out=raw, mode="clip")  # "raise" would copy through a second buffer
            np.copyto(rows, raw)
        return Batch(rows, self._table.take(indices, axis=1))

    @property
    def _at_once(self) -> int:
        """Rows in a batch."""
        entries = (self.rows if self._kept is None else self._kept).nnz if self.sparse else 0
        width = max(1, entries * 12 // max(1, 8 * self.size)) if self.sparse else max(1, self.features)
        # a sum over a batch of sparse rows is as long as a row: few batches where that is long
        chunk = max(_CHUNK_BYTES, 8 * self.features) if self.sparse else _CHUNK_BYTES
        return min(EXACT_ROWS, max(64, chunk // (8 * width)))

    def _parts(self) -> Iterator[slice]:
        step = self._at_once
        for start in range(0, self.size, step):
            yield slice(start, min(start + step, self.size))

    def _batch(self, part: slice, room: _Room | None = None) -> Batch:
        """The batch of these records. A dense one lives in `room`, which the next call overwrites."""
        if self._kept is None:
            return self._measured(self.rows[part], part, room)
        return Batch(
            self._kept[part].astype(np.float64) if self.sparse else _doubles(self._kept[part], room), self._table[:, part]
        )

    def _keep(self) -> None:
        """Bring all rows to units, in single precision, which holds whole numbers up to 2²⁴."""
        table = np.empty((2 + (self.targets.shape[1] if self.targets.ndim > 1 else 1), self.size))
        parts: list[Any] = []
        dense = None if self.sparse else np.empty((self.size, self.features), dtype=np.float32)
        room = _Room(self.features)
        for part in self._parts():
            batch = self._measured(self.rows[part], part, room)
            table[:2, part], table[2:, part] = (batch.norms, batch.units), batch.targets.T
            if dense is None:
                parts.append(batch.rows.astype(np.float32))
            else:
                dense[part] = batch.rows
        if dense is None and not parts:
            parts.append(sp.csr_array((0, self.features), dtype=np.float32))
        self._kept, self._table = (sp.vstack(parts, format="csr") if dense is None else dense), table

    def _measured(self, raw: Any, which: Any, room: _Room | None = None) -> Batch:
        """The batch of these rows of the table, scaled, truncated and measured now; in `room` where they are dense."""
        absent = self._absent[which] if len(self._absent) else np.zeros(raw.shape[0], dtype=np.bool_)
        rows: Any = _canonical(raw) if self.sparse else _doubles(raw, room)
        factors, units, absent = _units(_squares(rows), absent, self.features, self.data_norm)
        entries: Array = rows
        if self.sparse:
            counts = np.diff(rows.indptr)
            entries, absent_entries, factors = rows.data, np.repeat(absent, counts), np.repeat(factors, counts)
        else:
            absent_entries, factors = absent, factors[:, None]
        if absent.any():
            entries[absent_entries] = 0.0  # 0·nan is nan
        entries *= factors
        np.trunc(entries, out=entries)
        # squares are whole now: their root is right to a unit in the last place, and raised by more. A row of zeros is there
        norms = np.hypot(np.sqrt(_squares(rows)) * units, self.constant) * (1 + 2.0**-40)
        norms = np.maximum(norms, 1e-200)
        norms[absent] = 0.0
        return Batch(rows, (norms, units, *np.atleast_2d(self.targets[which].T.astype(np.float64))))


def admit_shape(targets: Any, size: int) -> Array:
    """A copy of targets (n,), or (n, 2) with weights. ValueError for other shapes."""
    if np.shape(targets) != (size, 2):
        return _copied(column("targets", targets, size))
    refuse_masked("targets", targets)
    return _copied(targets)


def _copied(targets: Any) -> NDArray[Any]:
    """In double precision, but for classes of a byte each: of many records that are much of what memory holds."""
    return np.array(targets, dtype=np.int8 if getattr(targets, "dtype", None) == np.int8 else np.float64)


def known(targets: Array) -> NDArray[np.bool_]:
    """(n,) whether a target, and its weight, are numbers."""
    return np.isfinite(targets if targets.ndim == 1 else targets.sum(axis=1))


def _is_mapped(rows: Any) -> bool:
    while rows is not None and not isinstance(rows, np.memmap):
        rows = getattr(rows, "base", None)
    return rows is not None


def _doubles(rows: Any, room: _Room | None) -> Array:
    """A copy in double precision and row order, in `room` where there is one."""
    if room is None:
        return np.array(rows, dtype=np.float64, order="C")
    copy = room.of(len(rows))[1]
    np.copyto(copy, rows)
    return copy


def _units(squares: Array, absent: NDArray[np.bool_], features: int, data_norm: float) -> tuple[Array, Array, NDArray[np.bool_]]:
    """What brings rows of these squared lengths within the bound and into units; the units; and who is absent, those among them
    whose length is not finite."""
    lengths = np.sqrt(squares)
    absent = absent | ~(lengths < _LONGEST * data_norm)
    lengths[absent] = 0.0
    # a hair less: a computed length may be too short by its rounding
    shrunk = 1 - max(2.0**-40, (features + 8) * 2.0**-52)
    factors = np.divide(shrunk * data_norm, lengths, out=np.full_like(lengths, shrunk), where=lengths > data_norm)
    lengths *= factors
    exponents = np.where(lengths > 0, np.frexp(lengths)[1], _SHORTEST)  # frexp gives 0 for 0: a unit far above the others'
    units = np.ldexp(1.0, np.maximum(exponents, _SHORTEST) - ROW_BITS)
    return factors / units, units, absent


def _squares(rows: Any) -> Array:
    """(b,) squared lengths, each of its row's entries alone."""
    with np.errstate(over="ignore", invalid="ignore"):
        if not sp.issparse(rows):
            return np.einsum("ij,ij->i", rows, rows)
        filled = np.diff(rows.indptr) > 0
        sums = np.zeros(rows.shape[0])
        if filled.any():
            sums[filled] = np.add.reduceat(np.square(rows.data), rows.indptr[:-1][filled])
        return sums


def _canonical(raw: Any) -> Any:
    """A copy in double precision with one entry a column. What the matrix says of itself is not asked: it may have been
    changed."""
    data = np.array(raw.data[: raw.indptr[-1]], dtype=np.float64)
    indices = np.array(raw.indices[: raw.indptr[-1]])
    rows = sp.csr_array((data, indices, np.array(raw.indptr)), shape=raw.shape)
    rows.has_canonical_format = rows.has_sorted_indices = False
    starts = np.zeros(len(indices), dtype=np.bool_)
    starts[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = True
    if len(indices) and not (starts[1:] | (indices[1:] > indices[:-1])).all():
        with np.errstate(over="ignore", invalid="ignore"):
            rows.sum_duplicates()
    return rows
