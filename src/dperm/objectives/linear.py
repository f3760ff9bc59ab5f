"""Linear models: the objective Σ_i ℓ(x_iᵀθ, y_i) + (strong_convexity/2)·(‖θ‖² + θᵀRθ) over ℝ^d or an L2 ball.

An intercept is a constant feature appended after row scaling: the last parameter (or the last row of parameters of a
softmax model), regularised like the others.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.checking import foreign, refuse_contradictions
from dperm.objectives.facts import PublicFacts
from dperm.objectives.grouped import MeanPass, added_by_person, flattened, grouped_records
from dperm.objectives.local_training import LocalSteps, linear_updates
from dperm.objectives.losses import Loss
from dperm.objectives.per_example import Pass
from dperm.objectives.records import EXACT_ROWS, RECORD, ROW_BITS, Batch, PrivacyUnit, Records
from dperm.objectives.roughness import Roughness, admit_neighbours
from dperm.objectives.sums import RunningSum
from dperm.privacy.events import Relation
from dperm.release.grid import power_below

_DIGITS = 53  # of a double
_THETA_BITS = _DIGITS - 2 - ROW_BITS  # of parameters where records see them
_SMALLEST, _LARGEST = 1e-30, 1e30  # norm bounds and constants whose squares and units stay within doubles
_FARTHEST = 1e100  # parameters further out are brought back for records: their products stay within doubles
_LEAST_SLOPE = 2.0**-600  # smaller ones are left out, and counted: their digits would be no doubles
_SLOPE_BITS = _DIGITS - ROW_BITS - EXACT_ROWS.bit_length() + 1  # of slopes whose products with EXACT_ROWS rows add up exactly
_UNSTATED_LIMIT = 4_000_000  # records, where nothing is known of their number

#: Least strong convexity, relative to n·smoothness, at which a single-precision Hessian still steers well.
_SINGLE_PRECISION = 1e-5


@dataclass(frozen=True)
class LinearObjective:
    """A loss, the public bounds of its data, the quadratic regulariser and an optional L2 ball of `radius`. R of the regulariser
    is that of `roughness`, or 0.

    `features` is d without the intercept; `intercept_scale` is the value of the constant feature (0: no intercept). `size_limit`
    is the public number of records up to which a minimiser's rounding is bounded (None: four times `public_size`, at least a
    million; four million where that is None). With a `unit` of several rows a record is a person, whose loss
    is the mean of the rows' (1: of the one that is used). ValueError for bounds that doubles cannot work with: see the messages.
    """

    loss: Loss
    features: int
    data_norm: float = 1.0
    intercept_scale: float = 0.0
    strong_convexity: float = 0.0
    radius: float | None = None
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    public_size: int | None = None
    size_limit: int | None = None
    unit: PrivacyUnit = RECORD
    roughness: Roughness | None = None

    def __post_init__(self) -> None:
        check.plain_numbers(self, list(vars(self)))
        check.integer("features", self.features, minimum=0)
        for name, value in (
            ("data_norm", check.positive("data_norm", self.data_norm)),
            ("intercept_scale", self.intercept_scale),
        ):
            if check.non_negative(name, value) and not _SMALLEST <= value <= _LARGEST:
                raise ValueError(f"Expected {name} between {_SMALLEST:g} and {_LARGEST:g}, got {value!r}.")
        check.non_negative("strong_convexity", self.strong_convexity)
        object.__setattr__(self, "relation", Relation(self.relation))
        if self.radius is not None:
            check.scale("radius", self.radius)
        if self.loss.ball is not None and (self.radius is None or self.radius > self.loss.ball):
            raise ValueError(
                f"Expected a radius of at most {self.loss.ball:g}, the ball in which the {self.loss.name} loss's constants hold, "
                f"got {self.radius}."
            )
        if foreign(self.loss):
            refuse_contradictions(self.loss, self.row_norm, self.radius)
        if self.public_size is not None:
            object.__setattr__(self, "public_size", check.integer("public_size", self.public_size))
        limit = max(_UNSTATED_LIMIT // 4, 4 * self.public_size) if self.public_size is not None else _UNSTATED_LIMIT
        object.__setattr__(self, "size_limit", check.integer("size_limit", limit if self.size_limit is None else self.size_limit))

        if self.roughness is not None:
            if type(self.roughness) is not Roughness:  # of a stranger's, derived from it, nothing is known
                raise TypeError(f"Expected roughness to be a Roughness, got {self.roughness!r}.")
            admit_neighbours(self.roughness.neighbours, self.features)

    @property
    def outputs(self) -> int:
        return self.loss.outputs

    @property
    def dimension(self) -> int:
        return (self.features + (self.intercept_scale > 0)) * self.outputs

    @functools.cached_property
    def row_norm(self) -> float:
        """B: bound on a row's norm, constant feature included."""
        return math.hypot(self.data_norm, self.intercept_scale)

    @functools.cached_property
    def curvature(self) -> float:
        """Bound on the loss's second derivative in a prediction: the smoothness is not always in proportion to ‖x‖²."""
        return self.loss.smoothness(self.row_norm) / self.row_norm**2

    @property
    def facts(self) -> PublicFacts:
        return PublicFacts(
            dimension=self.dimension,
            data_norm=self.row_norm,
            lipschitz=self.loss.lipschitz(self.row_norm),
            smoothness=self.loss.smoothness(self.row_norm),
            relation=self.relation,
            public_size=self.public_size,
            size_limit=self.size_limit,
            loss_at_zero=self.loss.at_zero(),
            loss=None if foreign(self.loss) else self.loss.sharp,  # a sharp bound is proved of our own losses
            foreign_loss=f"{type(self.loss).__module__}.{type(self.loss).__qualname__}" if foreign(self.loss) else None,
            rank_one=self.loss.rank_one,
            radius=self.radius,
            target_bound=None if self.loss.targets.classification else max(map(abs, self.loss.targets.extremes)),
            unit=self.unit,
            roughness=0.0 if self.roughness is None else self.roughness.rounding,
            intercept_scale=self.intercept_scale,
        )

    def with_strong_convexity(self, strong_convexity: float) -> LinearObjective:
        return replace(self, strong_convexity=strong_convexity)

    def smoother(self, factor: float) -> LinearObjective | None:
        """The same with bends of the loss that are `factor` ≥ 1 times as wide (`Loss.smoother`); None where there is none, and
        for a loss that dperm did not write: what it would raise here could depend on records."""
        loss = None if foreign(self.loss) else self.loss.smoother(factor)
        return None if loss is None else replace(self, loss=loss)

    def penalty_gradient(self, theta: Array) -> Array:
        """(I + R)θ (…, p): times the strong convexity, it is the regulariser's gradient; times θ/2 in addition, its value."""
        if self.roughness is None:
            return theta
        table = theta.reshape(*theta.shape[:-1], -1, self.outputs).copy()
        table[..., : self.features, :] += self.roughness.times(table[..., : self.features, :])
        return table.reshape(theta.shape)

    def penalty_hessian(self) -> Array:
        """I + R (p, p): times the strong convexity, the regulariser's Hessian."""
        matrix = np.eye(self.dimension)
        if self.roughness is not None:
            wide = self.features * self.outputs
            matrix[:wide, :wide] += sp.kron(self.roughness.matrix(self.features), np.eye(self.outputs)).toarray()
        return matrix

    def records(
        self, rows: Any, targets: Any, *, groups: Any = None, present: NDArray[np.bool_] | None = None, keep: bool = True
    ) -> Records:
        """Wrap data for this objective; see `Records`, and of persons `GroupedRecords`, where `groups` (n,) tells
        whose each row is. Rows (persons, k, d) with targets (persons, k) need no groups.

        ValueError where the number of features differs, for targets with weights (n, 2) where the loss has none, and for groups
        without such a unit or the other way round.
        """
        if rows.shape[-1] != self.features:
            raise ValueError(f"Expected rows with {self.features} features, got {rows.shape[-1]}.")
        if self.unit != RECORD:
            rows, targets, groups = flattened(rows, targets, groups)
        if (groups is None) != (self.unit == RECORD):
            raise ValueError(
                f"Expected groups with max_rows_per_unit, and only then, got max_rows_per_unit={self.unit.max_rows}."
            )
        if np.ndim(targets) == 2 and np.shape(targets)[1] == 2 and not self.loss.weighs:
            raise ValueError(f"Expected targets (n,), got weights beside them: the {self.loss.name} loss has none (`Weighted`).")
        if groups is None:
            return Records(rows, targets, self.data_norm, self.intercept_scale, present=present, keep=keep)
        assert self.unit.max_rows is not None
        return grouped_records(
            rows, targets, groups, self.data_norm, self.intercept_scale, most=self.unit.max_rows, present=present, keep=keep
        )

    def predict(self, theta: Array, batch: Batch) -> Array:
        """t, shape (b,) or (b, K); (m, b) or (m, b, K) for m models at once, θ (m, p)."""
        if theta.ndim > 1:
            return self._predict_many(theta, batch)
        weights, intercept = self._split(theta)
        t = batch.rows @ weights
        t *= batch.units if t.ndim == 1 else batch.units[:, None]
        if self.intercept_scale:
            t += self.intercept_scale * intercept
        return t

    def _predict_many(self, theta: Array, batch: Batch) -> Array:
        if self.outputs == 1:
            weights = theta[:, : self.features]
            t = (batch.rows @ weights.T).T if sp.issparse(batch.rows) else weights @ batch.rows.T
            t = t * batch.units
            if self.intercept_scale:
                t += self.intercept_scale * theta[:, -1:]
            return t
        table = theta.reshape(len(theta), -1, self.outputs)  # (m, d, K)
        weights = table[:, : self.features].transpose(1, 0, 2).reshape(self.features, -1)
        t = (batch.rows @ weights).reshape(len(batch.targets), len(theta), self.outputs)
        t = t.transpose(1, 0, 2) * batch.units[:, None]
        if self.intercept_scale:
            t += self.intercept_scale * table[:, -1:]
        return t

    def seen(self, theta: Array) -> Array:
        """θ as records see it: rounded to 30 digits, so that its products with rows have no rounding, whichever rows are
        there. Beyond 10¹⁰⁰ it is brought back to that length, and to 0 where it is not finite: no product overflows."""
        if theta.ndim > 1:
            theta = _within_reach(theta)
            lengths = np.sqrt(np.square(theta).sum(axis=-1, keepdims=True))
            steps = np.ldexp(1.0, np.frexp(lengths)[1] - _THETA_BITS)
            return np.where(lengths > 0, np.rint(theta / steps) * steps, theta)
        with np.errstate(over="ignore", invalid="ignore"):
            square = theta.dot(theta)
        if not square < _FARTHEST**2:
            theta = _within_reach(theta)
            square = theta.dot(theta)
        if square == 0:
            return theta
        step = math.ldexp(1.0, math.frexp(math.sqrt(square))[1] - _THETA_BITS)
        rounded = theta / step
        np.rint(rounded, out=rounded)
        rounded *= step
        return rounded

    def _split(self, theta: Array) -> tuple[Array, Any]:
        """Weights (d,) or (d, K), and the intercept's parameter(s)."""
        if self.outputs == 1:
            return (theta[:-1], theta[-1]) if self.intercept_scale else (theta, 0.0)
        table = theta.reshape(-1, self.outputs)
        return (table[:-1], table[-1]) if self.intercept_scale else (table, 0.0)

    def per_example(self, theta: Array, batch: Batch, *, norms_only: bool = False, anchor: Array | None = None) -> Pass:
        """The closed-form pass; see `Pass`. It computes what it is asked for, so that `norms_only` makes no difference. Of
        persons with several rows it has one vector each."""
        rows = LinearPass(self, theta, batch, anchor)
        return rows if batch.starts is None else MeanPass(*rows.means(batch))

    def local_updates(self, theta: Array, batch: Batch, local: LocalSteps) -> MeanPass:
        """θ − θ' of each record, where θ' is what local training on its rows leaves; see `linear_updates`."""
        self.refuse_local(local)
        return linear_updates(self, theta, batch, local)

    def refuse_local(self, local: LocalSteps) -> None:
        """ValueError for local batches: rows of linear models are not drawn within a record."""
        if local.batch_size is not None:
            raise ValueError(
                "Expected batch_size=None for local training of a linear model: each local step takes all rows of a client."
            )

    def per_row(self, theta: Array, batch: Batch) -> LinearPass:
        """The pass of rows, whosever they are: weights are left out."""
        return LinearPass(self, theta, batch)

    def plain_gradient(self, theta: Array, batch: Batch) -> Array:
        """Σ ∇ℓ_i over a batch (p,), rounded as double precision rounds: nothing is cut or exact."""
        t = self.predict(theta, batch)
        present = batch.norms > 0
        slope = self.loss.slope(t, batch.targets)
        slope = np.where(present if slope.ndim == 1 else present[:, None], slope, 0.0)
        scaled = slope * (batch.units if slope.ndim == 1 else batch.units[:, None])
        gradient = np.asarray(batch.rows.T @ scaled).ravel()
        return np.append(gradient, self.intercept_scale * slope.sum(axis=0)) if self.intercept_scale else gradient

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
        return records.total(functools.partial(self._sums, theta, len(records) if hessian else None), _added_up)

    def _sums(self, theta: Array, size: int | None, records: Records) -> tuple[float, Array, Array | None]:
        """Of these records, with the Hessian where the `size` of all is given."""
        value = 0.0
        gradient = np.zeros(self.dimension)
        d = self.features
        matrix = None if size is None else np.zeros((self.dimension, self.dimension))
        work: Array | None = None
        for batch in records.in_turn():
            t, y = self.predict(theta, batch), batch.targets
            slope = batch.counted(self.loss.slope(t, y))
            value += float(batch.counted(self.loss.value(t, y)).sum())
            gradient[:d] += batch.rows.T @ (slope * batch.units)
            if self.intercept_scale:
                gradient[-1] += self.intercept_scale * float(slope.sum())
            if matrix is not None and size is not None:
                work = self._add_hessian(matrix, batch, batch.counted(self.loss.curvature(t, y)), size, work)
        return value, gradient, matrix

    def hessian(self, theta: Array, records: Records) -> Array:
        """Σ ∇²ℓ_i (p, p) at one θ (p,), as `evaluate` has it, by itself."""
        matrix = np.zeros((self.dimension, self.dimension))
        for batch in records.batches():
            curvature = self.loss.curvature(self.predict(theta, batch), batch.targets)
            self._add_hessian(matrix, batch, batch.counted(curvature), len(records))
        return matrix

    def _evaluate_many(self, theta: Array, records: Records, hessian: bool) -> Any:
        count, p = theta.shape
        values, gradients = np.zeros(count), np.zeros((count, p))
        matrices = np.zeros((count, p, p)) if hessian else None
        for batch in records.in_turn():
            t = self.predict(theta, batch)
            slope = batch.counted(self.loss.slope(t, batch.targets))
            values += batch.counted(self.loss.value(t, batch.targets)).sum(axis=1)
            scaled = slope * batch.units
            gradients[:, : self.features] += (batch.rows.T @ scaled.T).T if records.sparse else scaled @ batch.rows
            if self.intercept_scale:
                gradients[:, -1] += self.intercept_scale * slope.sum(axis=1)
            if matrices is not None:
                rows = (batch.rows.toarray() if records.sparse else batch.rows) * batch.units[:, None]
                if self.intercept_scale:
                    rows = np.column_stack([rows, np.full(len(rows), self.intercept_scale)])
                curvature = batch.counted(self.loss.curvature(t, batch.targets))
                products = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), p * p)
                matrices += (curvature @ products).reshape(count, p, p)
        return values, gradients, matrices

    def _add_hessian(self, matrix: Array, batch: Batch, curvature: Array, size: int, work: Any = None) -> Any:
        """Add a batch's part to `matrix`; returns memory to work in, for the next batch."""
        d, block = self.features, batch.rows
        root = np.sqrt(curvature) * batch.units
        if sp.issparse(block):
            scaled = block.multiply(root[:, None]).tocsr()
            product = scaled.T @ scaled
            matrix[:d, :d] += product.toarray()
        else:
            single = self.strong_convexity > _SINGLE_PRECISION * self.loss.smoothness(self.row_norm) * size
            # in units of the bounds, or single precision would overflow, and warn, for the longest of records alone
            unit = power_below(math.sqrt(self.curvature) * self.row_norm) if single else 1.0
            if work is None or len(work) < len(block):
                work = np.empty(block.shape, dtype=np.float32 if single else np.float64)
            scaled = work[: len(block)]
            np.multiply(block, root[:, None] / unit, out=scaled, casting="same_kind")
            matrix[:d, :d] += np.multiply(scaled.T @ scaled, unit**2, dtype=np.float64)
        if self.intercept_scale:
            cross = self.intercept_scale * (block.T @ (curvature * batch.units))
            matrix[:d, d] += cross
            matrix[d, :d] += cross
            matrix[d, d] += self.intercept_scale**2 * float(curvature.sum())
        return work

    def exact_gradient(self, theta: Array, records: Records) -> tuple[Array, float]:
        """Σ ∇ℓ_i (p,) and a bound on its distance from the true one: only each record's slope is rounded.

        Predictions are sums of exact products with two parts of θ, of 30 digits each. Slopes are cut into three parts of so
        few digits that their sums over a batch are exact, and sums over batches lose nothing. What remains is the error of a
        slope, `Loss.slope_error`, at a prediction that is right to 3 units in the last place: times the sum of all norms.
        """
        total, norms, rest, steepest = records.total(functools.partial(self._exact_sums, theta), _exact_added)
        first = self.seen(theta)
        second = self.seen(theta - first)
        reach = self.row_norm * math.sqrt(theta.dot(theta))  # no prediction is larger
        astray = self.row_norm * float(np.linalg.norm(theta - first - second)) + 3 * 2.0**-53 * reach
        gradient = total.value()
        wrong = self.loss.slope_error(reach, steepest, self.curvature) + self.curvature * astray
        if self.unit.several_rows:
            wrong += 2.0**-53 * steepest  # of a slope times a weight
        return (np.zeros(self.dimension) if gradient is None else gradient), (wrong * norms + rest) * (1 + 2.0**-20)

    def _exact_sums(self, theta: Array, records: Records) -> tuple[RunningSum, float, float, float]:
        """The sum of gradients, that of norms, what digits of slopes that are left out may add, and the steepest slope."""
        first = self.seen(theta)
        second = self.seen(theta - first)
        total = RunningSum()
        norms = rest = steepest = 0.0
        for batch in records.in_turn():
            t = self.predict(first, batch) + self.predict(second, batch)
            raw = self.loss.slope(t, batch.targets)
            slope, length = batch.counted(raw), float(batch.counted(batch.norms).sum())
            steepest, norms = max(steepest, float(np.abs(raw[batch.norms > 0]).max(initial=0.0))), norms + length
            sums, left = _exact_product(slope * batch.units, batch.rows)
            rest += left * 2.0**ROW_BITS * len(slope)  # no row is longer, in its units
            if self.intercept_scale:
                ones, left = _exact_product(slope, np.ones((len(slope), 1)))
                sums = [np.append(part, self.intercept_scale * one) for part, one in zip(sums, ones, strict=True)]
                rest += left * length + 2.0**-53 * steepest * length
            for part in sums:
                total.add(part)
        return total, norms, rest, steepest

    def hessian_product(self, theta: Array, records: Records, vectors: Array) -> Array:
        """(Σ ∇²ℓ_i)·v for one v (p,): for conjugate gradients where p × p is too large."""
        return records.total(functools.partial(self._products, theta, vectors), operator.add)

    def _products(self, theta: Array, vectors: Array, records: Records) -> Array:
        result = np.zeros(self.dimension)
        for batch in records.in_turn():
            curvature = batch.counted(self.loss.curvature(self.predict(theta, batch), batch.targets))
            moved = curvature * self.predict(vectors, batch)
            result[: self.features] += batch.rows.T @ (moved * batch.units)
            if self.intercept_scale:
                result[-1] += self.intercept_scale * float(moved.sum())
        return result


class LinearPass(Pass):
    """∇ℓ_i = ℓ'(t_i)·x_i: norms are |ℓ'|·‖x_i‖, a weighted sum is one thin product. Nothing (b, d) is made. With an anchor, ℓ'
    is how much the slope changed from there.

    Bounded sums are exact: each record's coefficient is truncated towards zero to a public grid, so that its products with the
    row are whole multiples of one power of two, and small enough that no sum of `EXACT_ROWS` of them is ever rounded. What a
    record adds does not depend on which others are there.

    Of m models at once, θ (m, p), everything has a leading axis m; each sees the records that `batch.included` says.
    """

    __slots__ = ("_all_there", "_batch", "_norms", "_objective", "_slope", "_t", "_wide")

    def __init__(self, objective: LinearObjective, theta: Array, batch: Batch, anchor: Array | None = None) -> None:
        self._objective = objective
        self._batch = batch
        self._wide = objective.outputs > 1
        self._t = objective.predict(objective.seen(theta), batch)
        slope = objective.loss.slope(self._t, batch.targets)
        if anchor is not None:
            slope = slope - objective.loss.slope(objective.predict(objective.seen(anchor), batch), batch.targets)
        self._all_there = bool(batch.norms.all())
        # A record whose numbers are not finite contributes nothing: mask it before it meets a product.
        flat = slope.ravel()
        if not (self._all_there and math.isfinite(flat.dot(flat))):
            bad = ~np.isfinite(slope)
            slope[(bad.any(axis=-1) if self._wide else bad) | (batch.norms == 0)] = 0.0
        if batch.included is not None:
            slope = slope * (batch.included[..., None] if self._wide else batch.included)
        self._slope = slope
        self._norms: Array | None = None

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

    def weighted_sum(self, factors: Array, bound: float | None = None) -> Array:
        """(p,), or (m, p): one sum a model."""
        objective, batch = self._objective, self._batch
        with np.errstate(over="ignore", invalid="ignore"):  # where a factor is too large for its record, or no number
            slope = self._slope * (factors[..., None] if self._wide else factors)
            if bound is not None:
                bad = ~np.isfinite(slope)
                if bad.any():
                    slope[bad.any(axis=-1) if self._wide else bad] = 0.0
                slope = self._held(slope, bound)
        constant, step = objective.intercept_scale, 1.0
        ones = constant * slope if constant else slope
        slope = slope * (batch.units[:, None] if self._wide else batch.units)
        if bound is not None:
            step = 2 * power_below(bound * EXACT_ROWS * 2.0**-_DIGITS)  # EXACT_ROWS vectors as long as `bound`: at most 2⁵³ steps
            slope = _truncated(slope, step)
            ones = _truncated(ones, step) if constant else ones
        if slope.ndim == 1:
            gradient = slope @ batch.rows
            gradient *= step
            return np.append(gradient, step * ones.sum()) if constant else gradient
        # (…, b, K) to (…·K, b), and back to (…, d, K)
        table = slope.swapaxes(-1, -2) if self._wide else slope[:, None]
        flat = table.reshape(math.prod(table.shape[:-1]), len(batch.targets))
        sums = (flat @ batch.rows).reshape(*table.shape[:-1], objective.features).swapaxes(-1, -2)
        if constant:
            added = ones.sum(axis=-2 if self._wide else -1)
            sums = np.concatenate([sums, added[..., None, :] if self._wide else added[..., None, None]], axis=-2)
        return step * sums.reshape(*slope.shape[: slope.ndim - 1 - self._wide], -1)

    def means(self, batch: Batch) -> tuple[Any, Array]:
        """Of a batch of persons: Σ w·ℓ'(t)·x, (persons, p), CSR where rows are, and Σ w·ℓ, (persons,). With a leading axis each
        for m models."""
        starts, persons = batch.starts, len(batch.starts) - 1
        losses = added_by_person(batch.counted(self.losses), starts, persons)
        slope = self._slope * (batch.weights[:, None] if self._wide else batch.weights)
        table = slope if self._wide else slope[..., None]
        if table.ndim == 2:
            return _joined([self._mean(column, batch) for column in table.T]), losses
        rows = (batch.rows.toarray() if sp.issparse(batch.rows) else batch.rows) * batch.units[:, None]
        if constant := self._objective.intercept_scale:
            rows = np.column_stack([rows, np.full(len(rows), constant)])
        vectors = rows[:, :, None] * table[..., :, None, :]  # (m, b, d, K)
        flat = vectors.reshape(*vectors.shape[:-2], -1)
        return added_by_person(flat.swapaxes(-1, -2), starts, persons).swapaxes(-1, -2), losses

    def _mean(self, slope: Array, batch: Batch) -> Any:
        """(persons, d) sums of slope (b,) times row over each person's rows, in their order; with the constant feature's."""
        persons, constant = len(batch.starts) - 1, self._objective.intercept_scale
        adding = sp.csr_array((slope * batch.units, np.arange(len(slope)), batch.starts), shape=(persons, len(slope)))
        vectors = adding @ batch.rows
        if not constant:
            return vectors
        ones = constant * added_by_person(slope, batch.starts, persons)[:, None]
        return sp.hstack([vectors, sp.csr_array(ones)], format="csr") if sp.issparse(vectors) else np.hstack([vectors, ones])

    def _held(self, slope: Array, bound: float) -> Array:
        """Coefficients no longer than what makes a record's vector as long as `bound`."""
        norms = self._batch.norms
        limits = bound / norms if self._all_there else np.divide(bound, norms, out=np.zeros_like(norms), where=norms > 0)
        if not self._wide:
            slope = np.minimum(slope, limits)
            return np.maximum(slope, -limits, out=slope)
        lengths = np.linalg.norm(slope, axis=-1)
        limits *= 1 - (slope.shape[-1] + 8) * 2.0**-50  # a hair less: lengths and quotients are rounded
        share = np.divide(limits, lengths, out=np.ones_like(lengths), where=lengths > limits)
        return slope * share[..., None]


def _added_up(first: tuple[Any, ...], second: tuple[Any, ...]) -> Any:
    return tuple(None if one is None else one + other for one, other in zip(first, second, strict=True))


def _exact_added(first: Any, second: Any) -> Any:
    return first[0].joined(second[0]), first[1] + second[1], first[2] + second[2], max(first[3], second[3])


def _joined(parts: list[Any]) -> Any:
    """K matrices (persons, d), dense or CSR, as one (persons, d·K), the k-th's column j at j·K + k."""
    count = len(parts)
    if count == 1:
        return parts[0]
    if not sp.issparse(parts[0]):
        return np.stack(parts, axis=-1).reshape(len(parts[0]), -1)
    shape = parts[0].shape[0], parts[0].shape[1] * count
    spread = [sp.csr_array((part.data, part.indices * count + k, part.indptr), shape=shape) for k, part in enumerate(parts)]
    return sp.csr_array(sum(spread[1:], start=spread[0]))


def _within_reach(theta: Array) -> Array:
    """Parameters brought back to where their products with rows are doubles; 0 where they are not finite."""
    largest = np.abs(theta).max(axis=-1, keepdims=True, initial=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.isfinite(largest), theta * np.minimum(1.0, _FARTHEST / np.maximum(largest, 1.0)), 0.0)


def _truncated(values: Array, step: float) -> Array:
    """How many whole steps, towards zero."""
    values = values / step
    return np.trunc(values, out=values)


def _exact_product(coefficients: Array, rows: Any) -> tuple[list[Array], float]:
    """Three arrays whose sum is coefficients (b,) times whole rows (b, d), each product exact; and how much of a coefficient is
    left out."""
    step = 2 * power_below(max(float(np.abs(coefficients).max(initial=0.0)), _LEAST_SLOPE))
    parts: list[Array] = []
    for _ in range(3):
        step *= 2.0**-_SLOPE_BITS
        digits = np.trunc(coefficients / step) * step
        coefficients = coefficients - digits
        parts.append(digits @ rows)
    return parts, step
