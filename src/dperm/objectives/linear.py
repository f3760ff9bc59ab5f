"""Linear models: the objective Σ_i ℓ(x_iᵀθ, y_i) + (strong_convexity/2)·‖θ‖² over ℝ^d or an L2 ball.

An intercept is a constant feature appended after row scaling: the last parameter (or the last row of parameters of a
softmax model), regularised like the others.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.objectives.facts import PublicFacts
from dperm.objectives.losses import Loss, Softmax, Squared
from dperm.objectives.per_example import Pass
from dperm.objectives.records import Batch, Records
from dperm.privacy.events import Relation

__all__ = ["LinearObjective", "LinearPass"]

#: Least strong convexity, relative to n·smoothness, at which a single-precision Hessian still steers well.
_SINGLE_PRECISION = 1e-5

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LinearObjective:
    """A loss, the public bounds of its data, the quadratic regulariser and an optional L2 ball of `radius`.

    `features` is d without the intercept; `intercept_scale` is the value of the constant feature (0: no intercept).
    """

    loss: Loss
    features: int
    data_norm: float = 1.0
    intercept_scale: float = 0.0
    strong_convexity: float = 0.0
    radius: float | None = None
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    public_size: int | None = None

    def __post_init__(self) -> None:
        check.integer("features", self.features, minimum=0)
        check.positive("data_norm", self.data_norm)
        check.non_negative("intercept_scale", self.intercept_scale)
        check.non_negative("strong_convexity", self.strong_convexity)
        object.__setattr__(self, "relation", Relation(self.relation))
        if self.radius is not None:
            check.positive("radius", self.radius)
        if isinstance(self.loss, Squared) and self.loss.radius != (math.inf if self.radius is None else self.radius):
            raise ValueError(f"Expected one radius for the squared loss and its ball, got {self.loss.radius} and {self.radius}.")
        if self.public_size is not None:
            object.__setattr__(self, "public_size", check.integer("public_size", self.public_size))

    @property
    def outputs(self) -> int:
        return self.loss.classes if isinstance(self.loss, Softmax) else 1

    @property
    def dimension(self) -> int:
        return (self.features + (self.intercept_scale > 0)) * self.outputs

    @functools.cached_property
    def row_norm(self) -> float:
        """B: bound on a row's norm, constant feature included."""
        return math.hypot(self.data_norm, self.intercept_scale)

    @property
    def facts(self) -> PublicFacts:
        return PublicFacts(
            dimension=self.dimension,
            data_norm=self.row_norm,
            lipschitz=self.loss.lipschitz(self.row_norm),
            smoothness=self.loss.smoothness(self.row_norm),
            relation=self.relation,
            public_size=self.public_size,
            loss=self.loss.sharp,
            rank_one=self.loss.rank_one,
            radius=self.radius,
            target_bound=self.loss.target_bound if isinstance(self.loss, Squared) else None,
        )

    def with_strong_convexity(self, strong_convexity: float) -> LinearObjective:
        return replace(self, strong_convexity=strong_convexity)

    def records(self, rows: Any, targets: Any) -> Records:
        """Wrap data for this objective. ValueError where the number of features differs."""
        if rows.shape[1] != self.features:
            raise ValueError(f"Expected rows with {self.features} features, got {rows.shape[1]}.")
        return Records(rows, targets, self.data_norm, self.intercept_scale)

    def predict(self, theta: Array, batch: Batch) -> Array:
        """t, shape (b,) or (b, K); (m, b) or (m, b, K) for m models at once, θ (m, p)."""
        if theta.ndim > 1:
            return self._predict_many(theta, batch)
        weights, intercept = self._split(theta)
        t = batch.rows @ weights.astype(batch.rows.dtype, copy=False)  # mixed types would copy the rows
        t = t * (batch.factors if t.ndim == 1 else batch.factors[:, None])
        if self.intercept_scale:
            t += self.intercept_scale * intercept
        return t

    def _predict_many(self, theta: Array, batch: Batch) -> Array:
        if not isinstance(self.loss, Softmax):
            weights = theta[:, : self.features]
            t = (batch.rows @ weights.T).T if sp.issparse(batch.rows) else weights @ batch.rows.T
            t *= batch.factors
            if self.intercept_scale:
                t += self.intercept_scale * theta[:, -1:]
            return t
        table = theta.reshape(len(theta), -1, self.outputs)  # (m, d, K)
        weights = table[:, : self.features].transpose(1, 0, 2).reshape(self.features, -1)
        t = (batch.rows @ weights).reshape(len(batch.targets), len(theta), self.outputs)
        t = t.transpose(1, 0, 2) * batch.factors[:, None]
        if self.intercept_scale:
            t += self.intercept_scale * table[:, -1:]
        return t

    def _split(self, theta: Array) -> tuple[Array, Any]:
        """Weights (d,) or (d, K), and the intercept's parameter(s)."""
        if self.outputs == 1:
            return (theta[:-1], theta[-1]) if self.intercept_scale else (theta, 0.0)
        table = theta.reshape(-1, self.outputs)
        return (table[:-1], table[-1]) if self.intercept_scale else (table, 0.0)

    def per_example(self, theta: Array, batch: Batch, *, norms_only: bool = False) -> LinearPass:
        """The closed-form pass; see `Pass`. It computes what it is asked for, so that `norms_only` makes no difference."""
        return LinearPass(self, theta, batch)

    def evaluate(self, theta: Array, records: Records, hessian: bool = False) -> tuple[float, Array, Array | None]:
        """Σ ℓ_i, its gradient (p,) and, if asked, its Hessian (p, p), in one pass over the rows; no regulariser.

        For m models at once, θ (m, p): values (m,), gradients (m, p), Hessians (m, p, p).

        Value and gradient are in double precision. The Hessian only steers a solver and certifies nothing: its products
        are in single precision where the regulariser is large enough to absorb their rounding.
        """
        if self.outputs != 1:
            raise TypeError("Expected a loss with one output; minimise softmax by a gradient method.")
        if theta.ndim > 1:
            return self._evaluate_many(theta, records, hessian)
        weights, intercept = self._split(theta)
        value = 0.0
        gradient = np.zeros(self.dimension)
        d = self.features
        matrix = np.zeros((self.dimension, self.dimension)) if hessian else None
        shift = self.intercept_scale * float(intercept)
        for part, block in records.chunks():
            factors, y = records.factors[part], records.targets[part]
            t = block @ weights
            t *= factors
            if shift:
                t += shift
            losses, slope = self.loss.value(t, y), self.loss.slope(t, y)
            if records.masked:
                losses, slope = np.where(factors > 0, losses, 0.0), np.where(factors > 0, slope, 0.0)
            value += float(losses.sum())
            scaled = slope * factors
            gradient[:d] += block.T @ scaled
            if self.intercept_scale:
                gradient[-1] += self.intercept_scale * float(slope.sum())
            if matrix is not None:
                self._add_hessian(matrix, block, factors, self._curvature(t, y, factors, records), records)
        return value, gradient, matrix

    def _evaluate_many(self, theta: Array, records: Records, hessian: bool) -> Any:
        count, p = theta.shape
        values, gradients = np.zeros(count), np.zeros((count, p))
        matrices = np.zeros((count, p, p)) if hessian else None
        for batch in records.batches():
            t = self.predict(theta, batch)
            present = batch.factors > 0 if batch.masked else True
            rows = (batch.rows.toarray() if records.sparse else batch.rows) * batch.factors[:, None]
            if self.intercept_scale:
                rows = np.column_stack([rows, np.full(len(rows), self.intercept_scale)])
            values += np.where(present, self.loss.value(t, batch.targets), 0.0).sum(axis=1)
            gradients += np.where(present, self.loss.slope(t, batch.targets), 0.0) @ rows
            if matrices is not None:
                curvature = np.where(present, self.loss.curvature(t, batch.targets), 0.0)
                products = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), p * p)
                matrices += (curvature @ products).reshape(count, p, p)
        return values, gradients, matrices

    def _curvature(self, t: Array, y: Array, factors: Array, records: Records) -> Array:
        curvature = self.loss.curvature(t, y)
        return np.where(factors > 0, curvature, 0.0) if records.masked else curvature

    def _add_hessian(self, matrix: Array, block: Any, factors: Array, curvature: Array, records: Records) -> None:
        d, size = self.features, len(records)
        root = np.sqrt(curvature) * factors
        if records.sparse:
            scaled = block.multiply(root[:, None]).tocsr()
            product = scaled.T @ scaled
            matrix[:d, :d] += product.toarray()
        else:
            single = self.strong_convexity > _SINGLE_PRECISION * self.facts.smoothness * size
            scaled = np.empty(block.shape, dtype=np.float32 if single else np.float64)
            # scaled in double precision, narrowed on the way out: an unscaled entry may not fit into single precision
            np.multiply(block, root[:, None], out=scaled, casting="same_kind")
            matrix[:d, :d] += scaled.T @ scaled
        if self.intercept_scale:
            cross = self.intercept_scale * (block.T @ (curvature * factors))
            matrix[:d, d] += cross
            matrix[d, :d] += cross
            matrix[d, d] += self.intercept_scale**2 * float(curvature.sum())

    def hessian_product(self, theta: Array, records: Records, vectors: Array) -> Array:
        """(Σ ∇²ℓ_i)·v for one v (p,): for conjugate gradients where p × p is too large."""
        weights, intercept = self._split(theta)
        v, v0 = self._split(vectors)
        result = np.zeros(self.dimension)
        s0 = self.intercept_scale
        for part, block in records.chunks():
            factors, y = records.factors[part], records.targets[part]
            t = (block @ weights) * factors + s0 * float(intercept)
            moved = self._curvature(t, y, factors, records) * ((block @ v) * factors + s0 * float(v0))
            result[: self.features] += block.T @ (moved * factors)
            if s0:
                result[-1] += s0 * float(moved.sum())
        return result


class LinearPass(Pass):
    """∇ℓ_i = ℓ'(t_i)·x_i: norms are |ℓ'|·‖x_i‖, a weighted sum is one thin product. Nothing (b, d) is made.

    Of m models at once, θ (m, p), everything has a leading axis m; each sees the records that `batch.included` says.
    """

    __slots__ = ("_batch", "_losses", "_norms", "_objective", "_slope", "_t", "_wide")

    def __init__(self, objective: LinearObjective, theta: Array, batch: Batch) -> None:
        self._objective = objective
        self._batch = batch
        self._t = objective.predict(theta, batch)
        slope = objective.loss.slope(self._t, batch.targets)
        # A record whose numbers are not finite contributes nothing: mask it before it meets a product.
        flat = slope.ravel()
        if batch.masked or not math.isfinite(flat.dot(flat)):
            self._mask(slope)
        if batch.included is not None:
            slope = slope * (batch.included if objective.outputs == 1 else batch.included[..., None])
        self._slope = slope
        self._wide = objective.outputs > 1
        self._norms: Array | None = None

    def _mask(self, slope: Array) -> None:
        bad = ~np.isfinite(slope)
        slope[(bad.any(axis=-1) if self._objective.outputs > 1 else bad) | (self._batch.factors == 0)] = 0.0

    @property
    def losses(self) -> Array:
        return self._objective.loss.value(self._t, self._batch.targets)

    @property
    def norms(self) -> Array:
        norms = self._norms
        if norms is None:
            size = np.linalg.norm(self._slope, axis=-1) if self._wide else np.abs(self._slope)
            norms = self._norms = size * self._batch.norms
        return norms

    def weighted_sum(self, factors: Array) -> Array:
        objective, batch = self._objective, self._batch
        if self._slope.ndim > 1 + self._wide:
            return self._weighted_sums(factors)
        if not self._wide:
            slope = self._slope * factors
            gradient = (slope * batch.factors).astype(batch.rows.dtype, copy=False) @ batch.rows
            if not objective.intercept_scale:
                return gradient.astype(np.float64, copy=False)
            return np.append(gradient, objective.intercept_scale * slope.sum(dtype=np.float64))
        slope = self._slope * factors[:, None]
        parts = [batch.rows.T @ (slope * batch.factors[:, None]).astype(batch.rows.dtype, copy=False)]
        if objective.intercept_scale:
            parts.append(objective.intercept_scale * slope.sum(axis=0)[None])
        return np.concatenate(parts).ravel()

    def _weighted_sums(self, factors: Array) -> Array:
        """(m, p), one sum a model."""
        objective, batch = self._objective, self._batch
        slope = self._slope * (factors[..., None] if self._wide else factors)
        flat = slope.swapaxes(1, 2) if self._wide else slope[:, None]  # (m, K, b)
        sums = (flat * batch.factors).reshape(len(flat) * objective.outputs, len(batch.targets)) @ batch.rows
        table = np.asarray(sums, dtype=np.float64).reshape(len(flat), objective.outputs, objective.features).swapaxes(1, 2)
        if objective.intercept_scale:
            table = np.concatenate([table, objective.intercept_scale * flat.sum(axis=2)[:, None]], axis=1)
        return table.reshape(len(flat), -1)
