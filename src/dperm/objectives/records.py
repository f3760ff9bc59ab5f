"""Records: rows and targets behind one face, whatever holds the rows — a dense array, SciPy CSR, or a memory-mapped file.

Rows longer than the public `data_norm` are scaled down to it, lazily: the factor is stored, the rows are never copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["Batch", "Records"]

Array = NDArray[np.float64]

_LONGEST = 1e30  # rows longer than this many bounds count as not finite: their factor would lose its digits in float32
_CHUNK_BYTES = 1 << 21  # a chunk of rows that stays in cache while it is used twice or three times


class Batch:
    """Some rows: features (b, d) dense or CSR, targets (b,), factors (b,), norms (b,) of the scaled rows.

    `masked` tells that some factors are 0: those records contribute nothing, not even to an intercept. `included` (m, b)
    tells which records each of m models trained at once sees; None: every model sees all.
    """

    __slots__ = ("factors", "included", "masked", "norms", "rows", "targets")

    def __init__(self, rows: Any, table: Any, masked: bool, included: Any = None) -> None:
        self.included = included
        self.rows = rows
        self.targets, self.factors, self.norms = table
        self.masked = masked


class Records:
    """rows: (n, d) float64 or float32, dense (possibly memory-mapped) or CSR; targets: (n,).

    `factors` (n,) scale each row down to norm ≤ data_norm; `norms` (n,) are the norms after that, with the constant
    feature `constant` appended. A record with a number that is not finite, or whose norm overflows, gets factor 0 and
    contributes nothing anywhere.
    """

    def __init__(self, rows: Any, targets: Any, data_norm: float, constant: float = 0.0) -> None:
        self.rows = rows
        self.targets = np.asarray(targets, dtype=np.float64)
        self.data_norm = data_norm
        self.constant = constant
        self.sparse = sp.issparse(rows)
        if self.sparse and rows.format != "csr":
            raise TypeError(f"Expected sparse rows in CSR format, got {rows.format}.")
        if rows.dtype not in (np.float64, np.float32):  # narrower sums wrap or round by more than their sensitivity
            raise TypeError(f"Expected rows of float64 or float32, got {rows.dtype}.")
        self.size, self.features = rows.shape
        if self.targets.shape != (self.size,):
            raise ValueError(f"Expected {self.size} targets, one a row, got shape {self.targets.shape}.")
        raw = np.empty(self.size)
        self._invalid: NDArray[np.bool_] | None = None
        with np.errstate(over="ignore", invalid="ignore"):
            for part, block in self.chunks():
                if self.sparse:
                    raw[part] = np.sqrt(np.asarray(block.multiply(block).sum(axis=1)).ravel())
                else:
                    np.sqrt(np.einsum("ij,ij->i", block, block), out=raw[part])
        invalid = ~((raw < _LONGEST * data_norm) & np.isfinite(self.targets))
        self.factors = np.where(raw > data_norm, data_norm / np.where(raw > 0, raw, 1.0), 1.0)
        if invalid.any():
            self._invalid = invalid
            self.factors[invalid] = 0.0
            self.targets = np.where(invalid, 1.0, self.targets)
            raw[invalid] = 0.0
        self.norms = np.hypot(raw * self.factors, constant)
        self._buffer = np.empty((0, self.features), dtype=rows.dtype)
        self._table: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.size

    def relabelled(self, targets: Array) -> Records:
        """The same rows with other targets, sharing all memory."""
        other = object.__new__(Records)
        other.__dict__.update(self.__dict__)
        other.targets = np.asarray(targets, dtype=np.float64)
        other._table = None
        other._buffer = self._buffer[:0]
        return other

    def chunks(self) -> Iterator[tuple[slice, Any]]:
        """(slice, block of rows as float64) in order; dense float64 rows are views."""
        if self.sparse:
            step = max(1, int(8 * _CHUNK_BYTES * self.size / max(1, self.rows.nnz * 12)))
        else:
            step = max(64, _CHUNK_BYTES // (8 * max(1, self.features)))
        for start in range(0, self.size, step):
            part = slice(start, min(start + step, self.size))
            block = self.rows[part]
            block = block.astype(np.float64, copy=False) if self.sparse else np.asarray(block, dtype=np.float64)
            yield part, self._cleaned(block, part)

    def _cleaned(self, block: Any, which: Any) -> Any:
        """The block with its invalid rows zeroed (0·nan is nan); the block itself where there are none."""
        if self._invalid is None or not self._invalid[which].any():
            return block
        bad = self._invalid[which]
        if self.sparse:
            block = block.copy()
            block.data[np.repeat(bad, np.diff(block.indptr))] = 0.0
            return block
        return np.where(bad[:, None], 0.0, block)

    @property
    def masked(self) -> bool:
        return self._invalid is not None

    def batches(self) -> Iterator[Batch]:
        """All records, a cache-sized batch at a time, in order, as float64: long single-precision sums would drift."""
        for part, block in self.chunks():
            yield Batch(block, (self.targets[part], self.factors[part], self.norms[part]), self.masked)

    def stream(self, draws: Iterable[NDArray[Any] | None]) -> Iterator[Iterable[Batch]]:
        """The records of each draw (None: all), in batches; a batch is valid until the next is asked for.

        A draw for m models at once is a table (m, n) of who sees which record.
        """
        for indices in draws:
            if indices is None:
                yield self.batches()
            elif indices.ndim == 2:
                yield (self._seen_by(indices),)
            else:
                yield (self.take(indices),)

    def _seen_by(self, included: NDArray[np.bool_]) -> Batch:
        everyone = self.take(np.arange(self.size, dtype=np.intp))
        return Batch(everyone.rows, (everyone.targets, everyone.factors, everyone.norms), everyone.masked, included)

    def take(self, indices: NDArray[np.intp]) -> Batch:
        """The batch of these records. A dense batch lives in a buffer that the next call overwrites."""
        if self._table is None:  # one gather instead of three, in the rows' own precision
            single = not self.sparse and self.rows.dtype == np.float32
            norms = self.norms * (1 + 1e-6) if single else self.norms  # rounded up: a factor must not come out too large
            self._table = np.stack([self.targets, self.factors, norms]).astype(np.float32 if single else np.float64)
        if self.sparse:
            rows = self.rows[indices]
        else:
            count = len(indices)
            if count > len(self._buffer):
                self._buffer = np.empty((count + count // 4 + 16, self.features), dtype=self.rows.dtype)
            rows = self._buffer[:count]
            self.rows.take(indices, axis=0, out=rows, mode="clip")  # "raise" would copy through a second buffer
        if self._invalid is not None:
            rows = self._cleaned(rows, indices)
        return Batch(rows, self._table.take(indices, axis=1), self._invalid is not None)
