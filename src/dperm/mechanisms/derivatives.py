"""What the uncertainty of released parameters is computed from: derivatives of the losses there, and how much gradients vary.

A model is released first. Then, at its parameters θ, Σ ℓ''(t)·xxᵀ is released, t = xᵀθ, and on request Σ ℓ'(t)·x, Σ ℓ'(t)²·xxᵀ
and Σ r². θ is public and fixed before the records are looked at again, so that this is one more release on the same records, and
charged like any other (adaptive composition). `dperm.inference` makes standard errors and bands of it.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, around_parameters, instead_of_none, right_angles
from dperm.mechanisms.second_moments import refuse_many_parameters, released_matrix, sensitivity
from dperm.objectives import Batch, LinearObjective, PublicFacts, Records, Squared
from dperm.objectives.checking import foreign
from dperm.objectives.losses import Loss
from dperm.objectives.parts import exact_total
from dperm.objectives.sums import exact_sum
from dperm.privacy import Composed, Event, Gaussian, Relation, calibrate
from dperm.release import Channel, GaussianNoise

_LONGEST_RESIDUAL = 2.0  # in bounds on a target: longer residuals count as so long


class _Sum(ABC):
    """One of the sums over records that are released at public parameters."""

    #: its name, in the trace of an audit and in `beside`
    what: ClassVar[str]
    #: its share of the budget's μ², relative to those of the others
    weight: ClassVar[float]

    @abstractmethod
    def moved(self, objective: LinearObjective) -> float:
        """How far one record moves it, in the L2 norm."""

    @abstractmethod
    def released(
        self, objective: LinearObjective, theta: Array, records: Records, channel: Channel, noise_multiplier: float
    ) -> Array:
        """The sum with noise of `noise_multiplier` sensitivities."""


class _Matrix(_Sum):
    """A sum of outer products w·xxᵀ (p, p), w in [0, `most`]: `second_moments` has its sensitivity, and releases it."""

    @abstractmethod
    def most(self, objective: LinearObjective) -> float:
        """The largest weight."""

    @abstractmethod
    def weights(self, objective: LinearObjective, theta: Array, batch: Batch) -> Array:
        """(b,) the weights of a batch's rows, in units of the largest."""

    def moved(self, objective: LinearObjective) -> float:
        return sensitivity(objective, self.most(objective))

    def released(
        self, objective: LinearObjective, theta: Array, records: Records, channel: Channel, noise_multiplier: float
    ) -> Array:
        weights = functools.partial(self.weights, objective, theta)
        return released_matrix(
            objective, records, channel, weights, most=self.most(objective), noise_multiplier=noise_multiplier, what=self.what
        )


class _Hessian(_Matrix):
    """Σ ℓ''(t)·xxᵀ (p, p). ℓ'' lies in [0, β/B²], larger values are cut to that, and rows are no longer than B. A record adds a
    positive semi-definite matrix of Frobenius norm at most β."""

    what = "Hessian"
    weight = 1.0

    def most(self, objective: LinearObjective) -> float:
        return objective.curvature

    def weights(self, objective: LinearObjective, theta: Array, batch: Batch) -> Array:
        return objective.loss.curvature(_predictions(objective, theta, batch), batch.targets) / self.most(objective)


class _OuterProducts(_Matrix):
    """Σ ℓ'(t)²·xxᵀ (p, p), with |ℓ'| cut to `steepest`. A record adds a matrix of Frobenius norm at most (B·steepest)²."""

    what = "outer products of gradients"
    weight = 1.0

    def most(self, objective: LinearObjective) -> float:
        return steepest(objective) ** 2

    def weights(self, objective: LinearObjective, theta: Array, batch: Batch) -> Array:
        return _squared_slopes(objective, theta, batch)


class _Gradient(_Sum):
    """Σ ℓ'(t)·x (p,), with |ℓ'| cut to `steepest`: a record adds a vector no longer than B·steepest, and one in another's place
    moves the sum by twice that."""

    what = "gradient"
    weight = 2.0

    def moved(self, objective: LinearObjective) -> float:
        longest = objective.row_norm * steepest(objective)
        return longest * (2 if objective.relation is Relation.REPLACE_ONE else 1)

    def released(
        self, objective: LinearObjective, theta: Array, records: Records, channel: Channel, noise_multiplier: float
    ) -> Array:
        moved = self.moved(objective)
        total = exact_total(records, functools.partial(_cut_gradients, objective, theta)).query(moved, noise_multiplier)
        total = np.zeros(objective.dimension) if total is None else total
        return np.asarray(channel.release(total, GaussianNoise(moved, noise_multiplier, what=self.what)))


class _Residuals(_Sum):
    """Of squared loss the number of records, and Σ min(r², 4Y²), Y the bound on targets. A record adds (1, r²/4Y²), two numbers
    in [0, 1], before the second is multiplied by 4Y²: it moves them by at most √2 under both relations."""

    what = "number and sum of squared residuals"
    weight = 0.5

    def moved(self, objective: LinearObjective) -> float:
        return math.sqrt(2)

    def released(
        self, objective: LinearObjective, theta: Array, records: Records, channel: Channel, noise_multiplier: float
    ) -> Array:
        moved = self.moved(objective)
        total = exact_total(records, functools.partial(_number_and_squares, objective, theta)).query(moved, noise_multiplier)
        total = np.zeros(2) if total is None else total
        number, squares = np.asarray(channel.release(total, GaussianNoise(moved, noise_multiplier, what=self.what)))
        return np.array([number, squares * steepest(objective) ** 2])


_SUMS: dict[str, _Sum] = {"gradient": _Gradient(), "products": _OuterProducts(), "residuals": _Residuals()}


@dataclass(frozen=True, kw_only=True)
class DerivativesRelease(Mechanism):
    """The Hessian at the public parameters `theta` (p,), and what `beside` names, together as private as one Gaussian mechanism
    of `noise_multiplier`.

    `beside` names any of "gradient", "products" (the gradients' outer products) and, of squared loss, "residuals" (the number of
    records and the sum of squared residuals). Persons of several rows add the means of their rows' vectors and matrices, which
    are no longer; "products" and "residuals" are refused for them, since those of means are others.

    The released array (p² + …,) holds the Hessian row by row, then the others in the order of `beside`; `parts` takes it apart.
    """

    theta: tuple[float, ...]
    noise_multiplier: check.Scale
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "theta", tuple(check.finite("theta", value) for value in self.theta))
        for name in self.beside:
            check.choice("beside", name, _SUMS)
        if len(set(self.beside)) < len(self.beside):
            raise ValueError(f"Expected beside without repetitions, got {self.beside!r}.")

    @classmethod
    def calibrate(cls, facts: PublicFacts, theta: Array, epsilon: float, delta: float, *, beside: Sequence[str] = ()) -> Self:
        """With the least noise for this budget."""
        noise = calibrate(lambda multiplier: Gaussian(multiplier, facts.relation), epsilon, delta)
        return cls(budget=Budget(delta, epsilon), theta=tuple(theta.tolist()), noise_multiplier=noise, beside=tuple(beside))

    @property
    def name(self) -> str:
        return "derivatives at public parameters"

    @property
    def paper(self) -> str:
        return "dperm, docs/standard-errors.md; Dwork, Talwar, Thakurta, Zhang 2014 (second moments); exact Gaussian composition"

    @property
    def _sums(self) -> list[_Sum]:
        return [_Hessian(), *(_SUMS[name] for name in self.beside)]

    def _noises(self) -> list[float]:
        """Noise multipliers of the sums, so that their μ² add up to that of `noise_multiplier`."""
        whole = sum(each.weight for each in self._sums)
        return [self.noise_multiplier * math.sqrt(whole / each.weight) for each in self._sums]

    def event(self, facts: PublicFacts) -> Event:
        events = [Gaussian(noise, facts.relation) for noise in self._noises()]
        return events[0] if len(events) == 1 else Composed(tuple(events))

    def deviations(self, objective: LinearObjective) -> dict[str, float]:
        """Standard deviations of the noise: of the Hessian's diagonal under "hessian", and of the others by their names, of
        matrices on their diagonals; of "residuals" that of the number."""
        found = [noise * each.moved(objective) for each, noise in zip(self._sums, self._noises(), strict=True)]
        return dict(zip(("hessian", *self.beside), found, strict=True))

    def parts(self, released: Array) -> dict[str, Array]:
        """The Hessian (p, p) under "hessian", and the others by their names, of a released array."""
        size = len(self.theta)
        shapes = {"hessian": (size, size), "gradient": (size,), "products": (size, size), "residuals": (2,)}
        found: dict[str, Array] = {}
        at = 0
        for name in ("hessian", *self.beside):
            count = math.prod(shapes[name])
            found[name] = released[at : at + count].reshape(shapes[name])
            at += count
        return found

    def refuse(self, objective: LinearObjective, records: int) -> None:
        loss = objective.loss
        if foreign(loss):
            raise ValueError(f"Expected a loss of dperm's own, whose constants are proved, got {loss.name}.")
        if objective.outputs != 1:
            raise ValueError(f"Expected a model of two classes, or of numbers, got one of {objective.outputs} outputs.")
        if not (math.isfinite(objective.curvature) and math.isfinite(steepest(objective))):
            raise ValueError(
                f"Expected a smooth loss of bounded slope, got the {loss.name} loss: state a radius, or another loss."
            )
        if len(self.theta) != objective.dimension:
            raise ValueError(f"Expected theta of {objective.dimension} parameters, got {len(self.theta)}.")
        if "residuals" in self.beside and not isinstance(loss, Squared):
            raise ValueError(f"Expected squared loss, without weights, for a sum of residuals, got the {loss.name} loss.")
        if {"residuals", "products"} & set(self.beside) and objective.unit.several_rows:
            raise ValueError("Expected one row a person: squares of a person's gradient are not the means of its rows'.")
        refuse_many_parameters(objective)
        super().refuse(objective, records)

    grouped = True
    by_parts = True
    curved = False

    @property
    def released_kinds(self) -> frozenset[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return frozenset(each.what for each in self._sums)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        theta = np.array(self.theta)
        found = [
            each.released(objective, theta, records, channel, noise).ravel()
            for each, noise in zip(self._sums, self._noises(), strict=True)
        ]
        return np.concatenate(found), {}

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        more = instead_of_none(objective) if "residuals" in self.beside else []
        return [*right_angles(objective), *around_parameters(objective, np.array(self.theta), steepest(objective)), *more]

    def settings(self) -> Mapping[str, Any]:
        return {"beside": list(self.beside)}


def steepest(objective: LinearObjective) -> float:
    """The bound on |ℓ'| in sums of squared slopes."""
    loss: Loss = objective.loss
    if isinstance(loss.plain, Squared):
        return _LONGEST_RESIDUAL * max(map(abs, loss.targets.extremes))
    return loss.lipschitz(objective.row_norm) / objective.row_norm


def _predictions(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(b,) t of a batch's rows, each by itself: without rounding, whichever rows are there."""
    return objective.predict(objective.seen(theta), batch)


def _squared_slopes(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(b,) ℓ'(t)², in units of its bound."""
    slopes = objective.loss.slope(_predictions(objective, theta, batch), batch.targets)
    return np.square(np.clip(slopes / steepest(objective), -1.0, 1.0))


def _cut_gradients(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(p,) the sum of a batch's gradients, each cut to its bound: exact."""
    longest = objective.row_norm * steepest(objective)
    gradients = objective.per_row(theta, batch)
    limits = steepest(objective) * batch.norms
    factors = np.divide(limits, gradients.norms, out=np.ones_like(limits), where=gradients.norms > limits)
    return gradients.weighted_sum(batch.counted(factors), bound=longest)


def _number_and_squares(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(2,) the number of records in a batch, and the sum of their squared residuals, each at most 1 in units of its bound."""
    squares = _squared_slopes(objective, theta, batch)
    present = batch.counted(np.ones(len(squares)))
    return np.concatenate([exact_sum(present, 1.0), exact_sum(batch.counted(squares), 1.0)])
