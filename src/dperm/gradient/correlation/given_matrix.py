"""A strategy of the caller's own."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np
import scipy.linalg

from dperm._types import Array
from dperm.gradient.correlation.strategy import Last, Memory, Strategy, rounded_terms
from dperm.gradient.correlation.workload import Workload

_ROUNDED = 1 + 1e-12  # products of rows of up to some thousand doubles


@dataclass(frozen=True)
class GivenMatrix(Strategy):
    """C as it is given, (T, T) as rows of public numbers: lower triangular, with ones on its diagonal, for runs of T steps.

    Whatever it is, it is charged what it costs.
    """

    entries: tuple[tuple[float, ...], ...]

    paper = "Denisov, McMahan, Rush, Smith, Thakurta 2022 (matrix mechanism), with a strategy of the caller's"

    def __post_init__(self) -> None:
        matrix = np.array(self.entries, dtype=np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.all(np.isfinite(matrix)):
            raise ValueError("Expected a square matrix of finite numbers as strategy.")
        if np.any(np.triu(matrix, 1)) or np.any(np.diag(matrix) != 1):
            raise ValueError("Expected a lower-triangular strategy with ones on its diagonal: divide its columns by theirs.")
        object.__setattr__(self, "entries", tuple(map(tuple, matrix.tolist())))

    def __repr__(self) -> str:
        digest = hashlib.sha256(np.array(self.entries).tobytes()).hexdigest()[:16]
        return f"GivenMatrix(of {len(self.entries)} steps, sha256={digest!r})"

    @classmethod
    def of(cls, matrix: Array) -> GivenMatrix:
        """Of an array (T, T)."""
        return cls(tuple(map(tuple, np.asarray(matrix, dtype=np.float64).tolist())))

    def matrix(self, steps: int) -> Array:
        if steps > len(self.entries):
            raise ValueError(f"Expected a strategy for {steps} steps, got one for {len(self.entries)}.")
        return np.array(self.entries)[:steps, :steps]

    def bands(self, steps: int) -> int:
        return max(int(np.max(np.subtract(*np.nonzero(self.matrix(steps))))) + 1, 1)

    def products(self, steps: int, lag: int) -> Array:
        matrix = np.abs(self.matrix(steps))
        return np.einsum("ti,ti->i", matrix[:, : steps - lag], matrix[:, lag:]) * _ROUNDED

    def memory(self, steps: int, limit: float, first: int = 0) -> Memory:
        return _Rows(self.matrix(steps)[first:, first:], self.bands(steps), limit)

    def restarts(self, steps: int) -> bool:
        return False  # places that are drawn anew may be the worst ones of both parts

    def kept(self, steps: int) -> int:
        return self.bands(steps) - 1

    def remaining(self, workload: Workload, steps: int) -> float:
        matrix, total = self.matrix(steps), 0.0
        for part, weights in workload.functionals(steps):
            # weights that differ are those of iterates that have one gradient more each, and the same part in the others
            for end in [len(part)] if np.all(weights == weights[0]) else range(1, len(part) + 1):
                row = part[:end][::-1]
                left = scipy.linalg.solve_triangular(matrix[:end, :end], row, trans="T", lower=True)
                total += float(left @ left) * (weights[0] if np.all(weights == weights[0]) else 1 / len(part))
        return math.sqrt(total)

    def deviations(self, steps: int) -> Array:
        inverse = scipy.linalg.solve_triangular(self.matrix(steps), np.eye(steps), lower=True)
        return np.linalg.norm(inverse, axis=1)

    def rounding(self, steps: int) -> float:
        return 2.0 + float(np.abs(self.matrix(steps)).sum(axis=1).max()) * (1 + rounded_terms(self.kept(steps)))


class _Rows(Last):
    """The noise of the last steps, taken back by the coefficients of each step's row."""

    def __init__(self, matrix: Array, bands: int, limit: float) -> None:
        super().__init__([0.0] * (bands - 1), limit)
        self._matrix = matrix

    def _by_age(self) -> Array:
        row = np.zeros(len(self._coefficients))
        before = self._matrix[self._step, max(0, self._step - len(row)) : self._step]
        row[len(row) - len(before) :] = before
        return row
