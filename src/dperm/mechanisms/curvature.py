"""What the uncertainty of released parameters is computed from: the Hessian of the losses there, and how much gradients vary.

A model is released first. Then, at its parameters θ, Σ ℓ''(t)·xxᵀ is released, t = xᵀθ, and on request Σ ℓ'(t)²·xxᵀ or Σ r². θ is
public and fixed before the records are looked at again, so that this is one more release on the same records, charged like any
other (adaptive composition). `dperm.inference` makes standard errors and bands of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, around_parameters, instead_of_none, right_angles
from dperm.mechanisms.second_moments import refuse_many_parameters, released_matrix
from dperm.objectives import Batch, LinearObjective, PublicFacts, Records, Squared
from dperm.objectives.checking import foreign
from dperm.objectives.losses import Loss
from dperm.objectives.parts import exact_total
from dperm.objectives.sums import exact_sum
from dperm.privacy import Composed, Event, Gaussian, calibrate
from dperm.release import Channel, GaussianNoise

_LONGEST_RESIDUAL = 2.0  # in bounds on a target: longer residuals count as so long


@dataclass(frozen=True, kw_only=True)
class HessianRelease(Mechanism):
    """Σ ℓ''(t)·xxᵀ at the public parameters `theta` (p,), as private as a Gaussian mechanism of `noise_multiplier`.

    Sensitivity: ℓ'' lies in [0, β/B²], larger values are cut to that, and rows are no longer than B. A record therefore adds a
    positive semi-definite matrix of Frobenius norm at most β (`second_moments` has the rest). A person of several rows adds the
    mean of the rows' matrices, which is no longer.

    The released array (p²,) holds the matrix row by row. Those that derive from this add what they release beside it.
    """

    theta: tuple[float, ...]
    noise_multiplier: check.Scale

    #: share of the budget's μ² that the Hessian gets
    share: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "theta", tuple(check.finite("theta", value) for value in self.theta))

    @classmethod
    def calibrate(cls, facts: PublicFacts, theta: Array, epsilon: float, delta: float) -> Self:
        """With the least noise for this budget."""
        noise = calibrate(lambda multiplier: Gaussian(multiplier, facts.relation), epsilon, delta)
        return cls(budget=Budget(delta, epsilon), theta=tuple(theta.tolist()), noise_multiplier=noise)

    @property
    def name(self) -> str:
        return "Hessian at public parameters"

    @property
    def paper(self) -> str:
        return "dperm, docs/standard-errors.md; Dwork, Talwar, Thakurta, Zhang 2014 (second moments); exact Gaussian composition"

    @property
    def hessian_noise(self) -> float:
        """Noise multiplier of the Hessian."""
        return self.noise_multiplier / math.sqrt(self.share)

    @property
    def rest_noise(self) -> float:
        """Noise multiplier of what is released beside the Hessian; infinite where nothing is."""
        return self.noise_multiplier / math.sqrt(1 - self.share) if self.share < 1 else math.inf

    def event(self, facts: PublicFacts) -> Event:
        hessian = Gaussian(self.hessian_noise, facts.relation)
        return hessian if self.share == 1 else Composed((hessian, Gaussian(self.rest_noise, facts.relation)))

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
        refuse_many_parameters(objective)
        super().refuse(objective, records)

    grouped = True
    by_parts = True
    curved = False
    released_kinds = frozenset({"Hessian"})

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        curvatures = functools.partial(_curvatures, objective, np.array(self.theta))
        hessian = released_matrix(
            objective, records, channel, curvatures,
            most=objective.curvature, noise_multiplier=self.hessian_noise, what="Hessian",
        )  # fmt: skip
        return np.concatenate([hessian.ravel(), self._rest(objective, records, channel)]), {}

    def _rest(self, objective: LinearObjective, records: Records, channel: Channel) -> Array:
        """What is released beside the Hessian."""
        return np.zeros(0)

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return [*right_angles(objective), *around_parameters(objective, np.array(self.theta))]

    def settings(self) -> Mapping[str, Any]:
        return {"noise_multiplier": self.noise_multiplier}


@dataclass(frozen=True, kw_only=True)
class HessianAndGradients(HessianRelease):
    """The Hessian, and Σ ℓ'(t)²·xxᵀ, the sum of the gradients' outer products, for half of the budget's μ² each.

    |ℓ'| is at most L/B, and of squared loss at most 2Y, Y the bound on targets: longer slopes are cut to that. A record adds a
    matrix of Frobenius norm at most (B·|ℓ'|)². The released array (2p²,) holds both matrices row by row.
    """

    share = 0.5
    grouped = False  # a person's gradient is the mean of the rows', which this is not made of
    released_kinds = frozenset({"Hessian", "outer products of gradients"})

    def _rest(self, objective: LinearObjective, records: Records, channel: Channel) -> Array:
        squares = functools.partial(_squared_slopes, objective, np.array(self.theta))
        return released_matrix(
            objective, records, channel, squares,
            most=steepest(objective) ** 2, noise_multiplier=self.rest_noise, what="outer products of gradients",
        ).ravel()  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HessianAndResiduals(HessianRelease):
    """Of squared loss the Hessian, and for a tenth of the budget's μ² the number of records and Σ min(r², 4Y²), Y the bound on
    targets.

    A record adds a vector (1, r²/4Y²) of two numbers in [0, 1], and so moves that sum by at most √2 under both relations. The
    released array (p² + 2,) holds the matrix row by row, then the number and Σ min(r², 4Y²).
    """

    share = 0.9
    grouped = False
    released_kinds = frozenset({"Hessian", "number and sum of squared residuals"})

    def refuse(self, objective: LinearObjective, records: int) -> None:
        super().refuse(objective, records)
        if not isinstance(objective.loss, Squared):
            raise ValueError(
                f"Expected squared loss, without weights, for a sum of residuals, got the {objective.loss.name} loss."
            )

    def _rest(self, objective: LinearObjective, records: Records, channel: Channel) -> Array:
        of_batch = functools.partial(_number_and_squares, objective, np.array(self.theta))
        total = exact_total(records, of_batch).query(math.sqrt(2), self.rest_noise)
        total = np.zeros(2) if total is None else total
        noise = GaussianNoise(math.sqrt(2), self.rest_noise, what="number and sum of squared residuals")
        number, squares = np.asarray(channel.release(total, noise))
        return np.array([number, squares * steepest(objective) ** 2])

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return [*super().extremes(objective), *instead_of_none(objective)]


def steepest(objective: LinearObjective) -> float:
    """The bound on |ℓ'| in sums of squared slopes."""
    loss: Loss = objective.loss
    if isinstance(loss.plain, Squared):
        return _LONGEST_RESIDUAL * max(map(abs, loss.targets.extremes))
    return loss.lipschitz(objective.row_norm) / objective.row_norm


def _predictions(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(b,) t of a batch's rows, each by itself: without rounding, whichever rows are there."""
    return objective.predict(objective.seen(theta), batch)


def _curvatures(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(b,) ℓ''(t), in units of its bound."""
    return objective.loss.curvature(_predictions(objective, theta, batch), batch.targets) / objective.curvature


def _squared_slopes(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(b,) ℓ'(t)², in units of its bound."""
    slopes = objective.loss.slope(_predictions(objective, theta, batch), batch.targets)
    return np.square(np.clip(slopes / steepest(objective), -1.0, 1.0))


def _number_and_squares(objective: LinearObjective, theta: Array, batch: Batch) -> Array:
    """(2,) the number of records in a batch, and the sum of their squared residuals, each at most 1 in units of its bound."""
    squares = _squared_slopes(objective, theta, batch)
    present = batch.counted(np.ones(len(squares)))
    return np.concatenate([exact_sum(present, 1.0), exact_sum(batch.counted(squares), 1.0)])
