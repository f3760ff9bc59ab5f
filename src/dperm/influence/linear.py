"""Influence of records on a linear model's minimiser θ̂ = argmin J, J = Σ_j ℓ_j + (Λ/2)‖θ‖².

Where record i leaves, J loses ℓ_i: θ̂ moves by about H⁻¹∇ℓ_i, H = ∇²J(θ̂) (Koh & Liang 2017; "first order"), and by one step of
Newton's method on what is left by (H − ∇²ℓ_i)⁻¹∇ℓ_i, which is exact for the squared loss ("step"). The rest is algebra on the
factor of H, once for all records.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg as la
import scipy.sparse as sp
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.objectives import Batch, LinearObjective, Records, RegularisedSum
from dperm.solvers import minimise

__all__ = ["LinearInfluence"]

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_AT_THE_EDGE = 1e-6  # of a ball's radius: nearer than that the ball holds θ̂, and influence is another


@dataclass(frozen=True)
class _Slopes:
    """Of n records at θ̂: ∂ℓ/∂t and ∂²ℓ/∂t², (n,)."""

    first: Array
    second: Array


class LinearInfluence:
    """The influence of records on the minimiser `theta` (p,) of an objective with one output.

    Changes are those of θ, or of a score of it, where a record *leaves*. ValueError where the Hessian is singular (no
    regularisation), where a ball holds the minimiser, and for losses of several outputs.
    """

    def __init__(self, objective: LinearObjective, records: Records, theta: Array) -> None:
        if objective.outputs != 1:
            raise ValueError(f"Expected a loss of one output, got {objective.loss.name} of {objective.outputs}.")
        if objective.radius is not None and np.linalg.norm(theta) > objective.radius * (1 - _AT_THE_EDGE):
            raise ValueError(f"The ball ‖θ‖ ≤ {objective.radius:g} holds the minimiser: influence is about free ones.")
        self.objective, self.records = objective, records
        self.theta = np.asarray(theta, dtype=np.float64)
        if self.theta.shape != (objective.dimension,):
            raise ValueError(f"Expected theta of shape ({objective.dimension},), got {self.theta.shape}.")

    @classmethod
    def at_minimiser(cls, objective: LinearObjective, records: Records, tolerance: float = 1e-8) -> LinearInfluence:
        """At the non-private minimiser, to a residual of `tolerance` times the largest gradient."""
        check.positive("strong_convexity", objective.strong_convexity)
        scale = objective.loss.lipschitz(objective.row_norm)
        theta = minimise(RegularisedSum(objective, records), tolerance * scale, objective.radius).theta
        return cls(objective, records, theta)

    # What each record does

    def parameters(self, indices: Any = None, *, step: bool = True) -> Array:
        """(m, p): the change of θ̂ where each of these records (None: all) leaves by itself."""
        chosen = self._chosen(indices)
        rows = self._rows(chosen)
        solved = self._solve(rows.T if not sp.issparse(rows) else rows.toarray().T).T
        slope, curvature = self._slopes.first[chosen], self._slopes.second[chosen]
        return solved * (slope * self._lifted(curvature, np.einsum("ij,ij->i", _dense(rows), solved), step))[:, None]

    def on(self, direction: Array, *, step: bool = True) -> Array:
        """(n,): the change of a score where each record leaves, to first order in θ. `direction` (p,) is the score's gradient at
        θ̂."""
        towards = self._solve(np.asarray(direction, dtype=np.float64))
        moved = np.concatenate([_product(rows, towards) for rows, _ in self._batches()])
        return moved * self._slopes.first * self._lifted(self._slopes.second, self.leverage if step else moved, step)

    def on_predictions(self, rows: Any, *, step: bool = True) -> Array:
        """(n, m): the change of predictions xᵀθ of m new rows."""
        new = self.objective.records(rows, np.zeros(rows.shape[0]))
        return np.stack([self.on(row, step=step) for row in _dense(self._all_rows(new))], axis=1)

    def on_loss(self, rows: Any, targets: Any, *, step: bool = True) -> Array:
        """(n,): the change of the mean loss of other records, without the regulariser. Above 0: the record helps them."""
        others = self._of_new(rows, targets)
        return self.on(self.objective.evaluate(self.theta, others)[1] / len(others), step=step)

    def lengths(self, *, step: bool = True) -> Array:
        """(n,): ‖change of θ̂‖ where each record leaves."""
        found: list[Array] = []
        for rows, _ in self._batches():
            solved = self._solve(_dense(rows).T)
            found.append(np.sqrt(np.einsum("ji,ji->i", solved, solved)))
        return np.concatenate(found) * np.abs(self._slopes.first) * self._lifted(self._slopes.second, self.leverage, step)

    @functools.cached_property
    def leverage(self) -> Array:
        """(n,): xᵢᵀH⁻¹xᵢ."""
        found = [np.einsum("ij,ji->i", _dense(rows), self._solve(_dense(rows).T)) for rows, _ in self._batches()]
        return np.concatenate(found)

    # Several at once

    def without(self, indices: Any, *, step: bool = True) -> Array:
        """θ (p,) after these records have left together: a person's rows, a class."""
        chosen = self._chosen(indices)
        rows = _dense(self._rows(chosen))
        gradient = rows.T @ self._slopes.first[chosen]
        solved = self._solve(gradient)
        if step:  # (H − RᵀCR)⁻¹g by Woodbury, for as many records as there are
            roots = np.sqrt(self._slopes.second[chosen])
            thin = rows * roots[:, None]
            inner = np.eye(len(rows)) - thin @ self._solve(thin.T)
            solved = solved + self._solve(thin.T @ np.linalg.solve(inner, thin @ solved))
        return self.theta + solved

    def with_more(self, rows: Any, targets: Any) -> Array:
        """θ (p,) after these records have arrived, by one step."""
        arrived = self._of_new(rows, targets)
        slopes, more = _slopes_of(self.objective, arrived, self.theta), _dense(self._all_rows(arrived))
        thin = more * np.sqrt(slopes.second)[:, None]
        solved = self._solve(more.T @ slopes.first)
        inner = np.eye(len(more)) + thin @ self._solve(thin.T)
        return self.theta - solved + self._solve(thin.T @ np.linalg.solve(inner, thin @ solved))

    # How far it can be trusted

    def error_bound(self) -> float:
        """Bound on ‖true change − first order‖ for any one record: (2LG + nCG²/ζ)/ζ² with ζ = Λ (Theorem 4 of PIDP-SGD, in sums).

        G, L and C bound one record's gradient, its Hessian, and how fast that changes (`Loss.bend`); inf where the loss has none.
        The theorem asks for ζ along the whole path on which the record leaves: Λ holds there, the Hessian's least eigenvalue at
        θ̂, which the paper takes, need not.
        """
        loss, norm, zeta = self.objective.loss, self.objective.row_norm, self.objective.strong_convexity
        if zeta == 0:
            return math.inf
        steep, curved, bend = loss.lipschitz(norm), loss.smoothness(norm), loss.bend(norm)
        return (2 * curved * steep + len(self.records) * bend * steep**2 / zeta) / zeta**2

    # The factor of H

    @functools.cached_property
    def _slopes(self) -> _Slopes:
        return _slopes_of(self.objective, self.records, self.theta)

    @functools.cached_property
    def _few(self) -> bool:
        """Whether there are fewer records than parameters: then their Gram matrix is factored."""
        return len(self.records) < self.objective.dimension

    @functools.cached_property
    def _factor(self) -> Any:
        modulus = self.objective.strong_convexity
        if self._few:
            thin = self._thin
            gram = thin @ thin.T
            matrix = gram.toarray() if sp.issparse(gram) else gram
        else:
            matrix = np.zeros((self.objective.dimension, self.objective.dimension))
            for rows, part in self._batches():
                scaled = _scaled(rows, np.sqrt(self._slopes.second[part]))
                product = scaled.T @ scaled
                matrix += product.toarray() if sp.issparse(product) else product
        matrix[np.diag_indices_from(matrix)] += modulus
        try:
            factor = la.cho_factor(matrix, lower=True)
        except la.LinAlgError:
            factor = None
        pivots = np.array([]) if factor is None else np.diag(factor[0])
        if factor is None or (self._few and modulus == 0) or (pivots.min() / pivots.max()) ** 2 < 1e-14:
            raise ValueError("Expected strong_convexity > 0: the Hessian at the minimiser is singular.")
        return factor

    @functools.cached_property
    def _thin(self) -> Any:
        """√c·x, (n, p)."""
        return _scaled(self._all_rows(self.records), np.sqrt(self._slopes.second))

    def _solve(self, right: Array) -> Array:
        """H⁻¹·right, (p,) or (p, m)."""
        if not self._few:
            return la.cho_solve(self._factor, right)
        return (right - self._thin.T @ la.cho_solve(self._factor, self._thin @ right)) / self.objective.strong_convexity

    def _lifted(self, curvature: Array, leverage: Array, step: bool) -> Array:
        """1/(1 − cᵢxᵢᵀH⁻¹xᵢ): what a step on the others' Hessian adds to the first order (Sherman & Morrison)."""
        return 1 / np.maximum(1 - curvature * leverage, np.finfo(np.float64).eps) if step else np.ones(len(curvature))

    # Rows

    def _chosen(self, indices: Any) -> Indices:
        if indices is None:
            return np.arange(len(self.records))
        chosen = np.asarray(indices)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else np.atleast_1d(chosen).astype(np.intp)
        if len(chosen) and not (chosen.min() >= 0 and chosen.max() < len(self.records)):
            raise ValueError(f"Expected indices from 0 to {len(self.records) - 1}, got {chosen.min()} to {chosen.max()}.")
        return chosen

    def _rows(self, chosen: Indices) -> Any:
        parts = [self._with_constant(self.records.take(chosen[start : start + 4096])) for start in range(0, len(chosen), 4096)]
        return _stacked(parts, self.objective.dimension)

    def _all_rows(self, records: Records) -> Any:
        return _stacked([self._with_constant(batch) for batch in records.batches()], self.objective.dimension)

    def _batches(self) -> Iterator[tuple[Any, slice]]:
        """Rows (b, p) with the constant feature, and their places."""
        start = 0
        for batch in self.records.batches():
            stop = start + len(batch.targets)
            yield self._with_constant(batch), slice(start, stop)
            start = stop

    def _with_constant(self, batch: Batch) -> Any:
        rows = _scaled(batch.rows, batch.units)
        scale = self.objective.intercept_scale
        if not scale:
            return rows
        constant = np.where(batch.norms > 0, scale, 0.0)[:, None]
        return sp.hstack([rows, sp.csr_matrix(constant)], format="csr") if sp.issparse(rows) else np.hstack([rows, constant])

    def _of_new(self, rows: Any, targets: Any) -> Records:
        records = self.objective.records(rows, targets)
        return records.relabelled(self.objective.loss.admit(records.targets))


def _slopes_of(objective: LinearObjective, records: Records, theta: Array) -> _Slopes:
    first: list[Array] = []
    second: list[Array] = []
    for batch in records.batches():
        t, there = objective.predict(theta, batch), batch.norms > 0
        first.append(np.where(there, objective.loss.slope(t, batch.targets), 0.0))
        second.append(np.where(there, objective.loss.curvature(t, batch.targets), 0.0))
    return _Slopes(np.concatenate(first), np.concatenate(second))


def _scaled(rows: Any, factors: Array) -> Any:
    return rows.multiply(factors[:, None]).tocsr() if sp.issparse(rows) else rows * factors[:, None]


def _dense(rows: Any) -> Array:
    return rows.toarray() if sp.issparse(rows) else rows


def _product(rows: Any, vector: Array) -> Array:
    return np.asarray(rows @ vector).ravel()


def _stacked(parts: list[Any], width: int) -> Any:
    if not parts:
        return np.zeros((0, width))
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.vstack(parts)
