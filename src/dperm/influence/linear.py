"""Influence of records on a linear model's minimiser θ̂ = argmin J, J = Σ_j ℓ_j + (Λ/2)(‖θ‖² + θᵀRθ).

Where record i leaves, J loses ℓ_i: θ̂ moves by about H⁻¹∇ℓ_i, H = ∇²J(θ̂) (Koh & Liang 2017; "first order"), and by one step of
Newton's method on what is left by (H − ∇²ℓ_i)⁻¹∇ℓ_i, which is exact for the squared loss ("step"). With ∇ℓ_i = x_i ⊗ s_i and
∇²ℓ_i = x_ix_iᵀ ⊗ C_i, of K outputs, the step is the first order with (I − C_iA_i)⁻¹s_i in place of s_i, A_i = X_iᵀH⁻¹X_i and
X_i = x_i ⊗ I: one factor of H serves all records.
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
from dperm._types import Array
from dperm.objectives import Batch, LinearObjective, Records, RegularisedSum
from dperm.solvers import minimise, minimise_softmax

Indices = NDArray[np.intp]

_AT_THE_EDGE = 1e-6  # of a ball's radius: nearer than that the ball holds θ̂, and influence is another


@dataclass(frozen=True)
class _Slopes:
    """Of n records at θ̂: s (n, K), and C (n, K, K)."""

    first: Array
    second: Array

    def of(self, chosen: Any) -> _Slopes:
        return _Slopes(self.first[chosen], self.second[chosen])


class LinearInfluence:
    """The influence of records on the minimiser `theta` (p,) of an objective.

    Changes are those of θ, or of a score of it, where a record *leaves*. ValueError where the Hessian is singular (no
    regularisation), and where a ball holds the minimiser.
    """

    def __init__(self, objective: LinearObjective, records: Records, theta: Array) -> None:
        self.theta = np.asarray(theta, dtype=np.float64)
        if self.theta.shape != (objective.dimension,):
            raise ValueError(f"Expected theta of shape ({objective.dimension},), got {self.theta.shape}.")
        if objective.radius is not None and np.linalg.norm(self.theta) > objective.radius * (1 - _AT_THE_EDGE):
            raise ValueError(f"The ball ‖θ‖ ≤ {objective.radius:g} holds the minimiser: influence is about free ones.")
        if objective.unit.several_rows:
            raise ValueError("Expected one row a record: the influence of persons with several rows is not known here.")
        self.objective, self.records = objective, records.relabelled(objective.loss.admit(records.targets))

    @classmethod
    def at_minimiser(cls, objective: LinearObjective, records: Records, tolerance: float = 1e-8) -> LinearInfluence:
        """At the non-private minimiser, to a residual of `tolerance` times the largest gradient."""
        check.positive("strong_convexity", objective.strong_convexity)
        check.positive("tolerance", tolerance)
        if not objective.facts.smoothness < math.inf:
            raise ValueError(f"Expected a smooth loss, whose minimiser can be found, got {objective.loss.name}.")
        if not isinstance(records, Records):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError("Expected records made by the objective: objective.records(rows, targets).")
        records = records.relabelled(objective.loss.admit(records.targets))
        if objective.outputs > 1:
            return cls(objective, records, minimise_softmax(objective, records))
        scale = objective.loss.lipschitz(objective.row_norm)
        if not scale < math.inf:  # of slopes without a bound: the longest at θ = 0, or thereabouts
            scale = objective.row_norm * max(1e-100, float(np.abs(records.targets).max(initial=1.0)))
        theta = minimise(RegularisedSum(objective, records), tolerance * scale, objective.radius).theta
        return cls(objective, records, theta)

    # What each record does

    def parameters(self, indices: Any = None, *, step: bool = True) -> Array:
        """(m, p): the change of θ̂ where each of these records (None: all) leaves by itself."""
        chosen = self._chosen(indices)
        rows = self._rows(chosen)
        return self._solve(_outer(_dense(rows), self._all_slopes(step)[chosen]).T).T

    def on(self, direction: Array, *, step: bool = True) -> Array:
        """(n,): the change of a score where each record leaves, to first order in θ. `direction` (p,) is the score's gradient at
        θ̂."""
        gradient = np.asarray(direction, dtype=np.float64)
        if gradient.shape != (self.objective.dimension,):
            raise ValueError(f"Expected a score's gradient of shape ({self.objective.dimension},), got {gradient.shape}.")
        return self._on(gradient[:, None], step)[:, 0]

    def on_predictions(self, rows: Any, *, step: bool = True) -> Array:
        """(n, m): the change of predictions xᵀθ of m new rows; (n, m, K) of K outputs."""
        if np.ndim(rows) != 2:
            raise ValueError(f"Expected rows (m, d), got shape {np.shape(rows)}.")
        targets = np.full(rows.shape[0], self.objective.loss.targets.extremes[0])
        new = _dense(self._all_rows(self._of_new(rows, targets)))
        outputs = self.objective.outputs
        directions = np.asarray(
            np.kron(new, np.eye(outputs)).T, dtype=np.float64
        )  # (p, m·K): the gradient of a prediction is its row
        changes = self._on(directions, step)
        return changes if outputs == 1 else changes.reshape(len(changes), len(new), outputs)

    def on_loss(self, rows: Any, targets: Any, *, step: bool = True) -> Array:
        """(n,): the change of the mean loss of other records, without the regulariser. Above 0: the record helps them."""
        others = self._of_new(rows, targets)
        slopes = _slopes_of(self.objective, others, self.theta)
        return self.on(self._gradient(self._all_rows(others), slopes) / len(others), step=step)

    def lengths(self, *, step: bool = True) -> Array:
        """(n,): ‖change of θ̂‖ where each record leaves."""
        found: list[Array] = []
        for rows, part in self._batches():
            moved = self._solve(_outer(_dense(rows), self._all_slopes(step)[part]).T)
            found.append(np.sqrt(np.einsum("ji,ji->i", moved, moved)))
        return np.concatenate(found)

    # Several at once

    def without(self, indices: Any, *, step: bool = True) -> Array:
        """θ (p,) after these records have left together: a person's rows, a class."""
        chosen = self._chosen(indices)
        slopes = self._slopes.of(chosen)
        rows = self._rows(chosen)
        moved = self._solve(self._gradient(rows, slopes))
        if step:  # (H − UᵀU)⁻¹g by Woodbury, for as many records as there are
            thin = _dense(_thin(rows, slopes))
            inner = np.eye(len(thin)) - thin @ self._solve(thin.T)
            moved = moved + self._solve(thin.T @ np.linalg.solve(inner, thin @ moved))
        return self.theta + moved

    def with_more(self, rows: Any, targets: Any) -> Array:
        """θ (p,) after these records have arrived, by one step."""
        arrived = self._of_new(rows, targets)
        slopes, new = _slopes_of(self.objective, arrived, self.theta), self._all_rows(arrived)
        thin = _dense(_thin(new, slopes))
        moved = self._solve(self._gradient(new, slopes))
        inner = np.eye(len(thin)) + thin @ self._solve(thin.T)
        return self.theta - moved + self._solve(thin.T @ np.linalg.solve(inner, thin @ moved))

    # How far it can be trusted

    def error_bound(self) -> float:
        """Bound on ‖true change − first order‖ for any one record: (2LG + nCG²/ζ)/ζ² with ζ = Λ (Theorem 4 of PIDP-SGD, in sums).

        G, L and C bound one record's gradient, its Hessian, and how fast that changes (`Loss.bend`); inf where the loss has none.
        The theorem asks for ζ along the whole path on which the record leaves: Λ holds there, the Hessian's least eigenvalue at
        θ̂, which the paper takes, need not. Constants that hold in a ball alone are taken to hold on that path.
        """
        loss, norm, zeta = self.objective.loss, self.objective.row_norm, self.objective.strong_convexity
        if zeta == 0:
            return math.inf
        steep, curved, bend = loss.lipschitz(norm), loss.smoothness(norm), loss.bend(norm)
        if not max(steep, curved, bend) < math.inf:
            return math.inf
        return (2 * curved * steep + len(self.records) * bend * steep**2 / zeta) / zeta**2

    # The factor of H

    @functools.cached_property
    def _slopes(self) -> _Slopes:
        return _slopes_of(self.objective, self.records, self.theta)

    @functools.cached_property
    def _few(self) -> bool:
        """Whether there are fewer records than parameters: then their Gram matrix is factored, if the regulariser is ‖θ‖²."""
        return self.objective.roughness is None and len(self.records) * self.objective.outputs < self.objective.dimension

    @functools.cached_property
    def _all_thin(self) -> Any:
        return _thin(self._all_rows(self.records), self._slopes)

    @functools.cached_property
    def _factor(self) -> Any:
        modulus, outputs = self.objective.strong_convexity, self.objective.outputs
        if self._few:
            matrix = _gram(self._all_thin.T)
        else:
            table = np.zeros((outputs, outputs, *2 * (self._width,)))
            for rows, part in self._batches():
                curved = self._slopes.second[part]
                for k in range(outputs):
                    for other in range(k, outputs):
                        table[k, other] += _weighted_gram(rows, curved[:, k, other])
            for k in range(outputs):
                for other in range(k):
                    table[k, other] = table[other, k]
            matrix = table.transpose(2, 0, 3, 1).reshape(self.objective.dimension, -1)
        if self._few:
            matrix[np.diag_indices_from(matrix)] += modulus
        else:
            matrix += modulus * self.objective.penalty_hessian()
        try:
            factor = la.cho_factor(matrix, lower=True)
        except la.LinAlgError:
            factor = None
        pivots = np.array([]) if factor is None else np.diag(factor[0])
        if factor is None or (self._few and modulus == 0) or (pivots.min() / pivots.max()) ** 2 < 1e-14:
            raise ValueError("Expected strong_convexity > 0: the Hessian at the minimiser is singular.")
        return factor

    def _solve(self, right: Array) -> Array:
        """H⁻¹·right, (p,) or (p, m)."""
        if not self._few:
            return la.cho_solve(self._factor, right)
        thin = self._all_thin
        return (right - thin.T @ la.cho_solve(self._factor, thin @ right)) / self.objective.strong_convexity

    @functools.cached_property
    def _inverse(self) -> Array:
        """H⁻¹ (p, p): for K > 1, where leverages are matrices."""
        return self._solve(np.eye(self.objective.dimension))

    def _lifted(self, rows: Any, slopes: _Slopes) -> Array:
        """(I − C_iA_i)⁻¹s_i, (b, K): the slopes that make the first order a step on the others' Hessian."""
        dense, outputs = _dense(rows), self.objective.outputs
        if outputs == 1:
            leverage = np.einsum("ij,ji->i", dense, self._solve(dense.T))
            return slopes.first / np.maximum(1 - slopes.second[:, 0] * leverage[:, None], np.finfo(np.float64).eps)
        width = dense.shape[1]
        blocks = self._inverse.reshape(width, outputs, width, outputs)
        leverage = np.einsum("ia,akbl,ib->ikl", dense, blocks, dense, optimize=True)
        return np.linalg.solve(np.eye(outputs) - slopes.second @ leverage, slopes.first[:, :, None])[:, :, 0]

    @functools.cached_property
    def _all_lifted(self) -> Array:
        return np.concatenate([self._lifted(rows, self._slopes.of(part)) for rows, part in self._batches()])

    def _all_slopes(self, step: bool) -> Array:
        return self._all_lifted if step else self._slopes.first

    def _on(self, directions: Array, step: bool) -> Array:
        """(n, m): the changes of m scores of gradients (p, m)."""
        outputs = self.objective.outputs
        towards = self._solve(directions).reshape(self._width, outputs * directions.shape[1])
        slopes = self._all_slopes(step)
        parts = [
            np.einsum("ikm,ik->im", np.asarray(rows @ towards).reshape(-1, outputs, directions.shape[1]), slopes[part])
            for rows, part in self._batches()
        ]
        return np.concatenate(parts)

    def _gradient(self, rows: Any, slopes: _Slopes) -> Array:
        """Σ x_i ⊗ s_i, (p,)."""
        return np.asarray(rows.T @ slopes.first).ravel()

    # Rows

    @property
    def _width(self) -> int:
        return self.objective.dimension // self.objective.outputs

    def _chosen(self, indices: Any) -> Indices:
        if indices is None:
            return np.arange(len(self.records))
        return admit_indices(indices, len(self.records))

    def _rows(self, chosen: Indices) -> Any:
        parts = [self._with_constant(self.records.take(chosen[start : start + 4096])) for start in range(0, len(chosen), 4096)]
        return _stacked(parts, self._width)

    def _all_rows(self, records: Records) -> Any:
        return _stacked([self._with_constant(batch) for batch in records.batches()], self._width)

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
        if not all(batch.norms.all() for batch in records.batches()):
            raise ValueError("Expected finite rows and targets, got some that are not.")
        return records.relabelled(self.objective.loss.admit(records.targets))


def _slopes_of(objective: LinearObjective, records: Records, theta: Array) -> _Slopes:
    first: list[Array] = []
    second: list[Array] = []
    for batch in records.batches():
        t, there = objective.predict(theta, batch), (batch.norms > 0)[:, None]
        slope = objective.loss.slope(t, batch.targets).reshape(len(there), -1)
        first.append(np.where(there, slope, 0.0))
        second.append(np.where(there[:, :, None], objective.loss.curvatures(t, batch.targets), 0.0))
    return _Slopes(np.concatenate(first), np.concatenate(second))


def _thin(rows: Any, slopes: _Slopes) -> Any:
    """U (b·K, p) with UᵀU = Σ x_ix_iᵀ ⊗ C_i."""
    if slopes.first.shape[1] == 1:
        return _scaled(rows, np.sqrt(slopes.second[:, 0, 0]))
    values, vectors = np.linalg.eigh(slopes.second)
    roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]  # C = RRᵀ
    dense = _dense(rows)
    return np.einsum("ia,ikl->ilak", dense, roots).reshape(-1, dense.shape[1] * roots.shape[1])


def _weighted_gram(rows: Any, weights: Array) -> Array:
    return _dense(_scaled(rows, weights).T @ rows)


def _gram(columns: Any) -> Array:
    return _dense(columns.T @ columns)


def _outer(rows: Array, slopes: Array) -> Array:
    """x_i ⊗ s_i, (b, p)."""
    return (rows[:, :, None] * slopes[:, None, :]).reshape(len(rows), -1)


def _scaled(rows: Any, factors: Array) -> Any:
    return rows.multiply(factors[:, None]).tocsr() if sp.issparse(rows) else rows * factors[:, None]


def _dense(rows: Any) -> Array:
    return rows.toarray() if sp.issparse(rows) else rows


def _stacked(parts: list[Any], width: int) -> Any:
    if not parts:
        return np.zeros((0, width))
    return sp.vstack(parts, format="csr") if sp.issparse(parts[0]) else np.vstack(parts)


def admit_indices(indices: Any, count: int) -> NDArray[np.intp]:
    """Indices of `count` records in the order given, or those that a mask (count,) has. ValueError for anything else, and for a
    record that is named twice."""
    given = np.atleast_1d(np.asarray(indices))
    if given.dtype == bool:
        if given.shape != (count,):
            raise ValueError(f"Expected a mask of {count} records, got shape {given.shape}.")
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"Expected indices of records, or a mask, got {given.dtype} of shape {given.shape}.")
    chosen = given.astype(np.intp)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < count):
        raise ValueError(f"Expected indices from 0 to {count - 1}, got {chosen.min()} to {chosen.max()}.")
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("Expected each record once: some are named twice.")
    return chosen
