"""Preconditioned descent for least squares: a noisy Gram matrix, of little budget, shapes the steps of noisy full gradients.

Sufficient statistics (AdaSSP, Wang 2018) pay for the Gram matrix to invert it; noisy descent pays for none and stalls where
features differ in size. Here a twentieth of the budget buys a matrix that is good enough to step by, and the rest buys gradients,
clipped at what residuals are: better than either on most tables (docs/regression.md).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm._progress import watched
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, instead_of_none, right_angles
from dperm.mechanisms.method import NoisyMethod
from dperm.mechanisms.released_mass import MASS_ENTRY, ReleasedMass
from dperm.mechanisms.second_moments import refuse_many_parameters, released_matrix, sensitivity
from dperm.objectives import Batch, LinearObjective, PublicFacts, Records, Squared
from dperm.objectives.parts import exact_total
from dperm.objectives.sums import exact_sum
from dperm.privacy import Composed, Event, Gaussian, Relation, SelfComposed
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, GaussianNoise

_GRAM, _SCALE = 0.05, 0.06  # of the budget's μ²: for the Gram matrix, and for the residuals' scale
_STEPS = (6, 60)  # the fewest and the most
_TAIL = 0.25  # of the steps, the last: they are averaged
_LONGER = 2.5  # a step after the clip is known, at most


@dataclass(frozen=True, kw_only=True)
class PreconditionedDescent(Mechanism):
    """θ ← θ − step·P⁻¹·Σ x·clip(xᵀθ − y, ±C), `steps` times from 0 with noise, the last quarter averaged.

    P is the Gram matrix Σxxᵀ with noise, no eigenvalue of it below `floor`. C is the bound on targets in the first step, then
    min(Y, `kappa`·√(v/n)), v the noisy sum of squared residuals. Each of `noise_multiplier`·(1/√0.05, 1/√0.06, √(steps/0.89)): as
    private as one Gaussian of noise_multiplier.

    Of a person with several rows it is the mean of their x·clip(…), of xxᵀ and of squares: as short, and as long, as one.

    What a record does to the Gram matrix: `dperm.mechanisms.second_moments`.
    """

    steps: check.Count
    step_size: check.Scale
    floor: check.Scale
    kappa: check.Scale
    noise_multiplier: check.Scale
    public_size: check.Count

    @property
    def name(self) -> str:
        return f"preconditioned descent ({self.steps} steps)"

    @property
    def paper(self) -> str:
        return "dperm, docs/regression.md; Dwork, Talwar, Thakurta, Zhang 2014 (the Gram matrix); exact Gaussian composition"

    def _noises(self) -> tuple[float, float, float]:
        """Noise multipliers of the Gram matrix, of the residuals' scale, and of a step."""
        whole, rest = self.noise_multiplier, 1 - _GRAM - _SCALE
        return whole / math.sqrt(_GRAM), whole / math.sqrt(_SCALE), whole * math.sqrt(self.steps / rest)

    def event(self, facts: PublicFacts) -> Event:
        gram, scale, step = (Gaussian(noise, facts.relation) for noise in self._noises())
        return Composed((gram, scale, SelfComposed(step, self.steps)))

    def refuse(self, objective: LinearObjective, records: int) -> None:
        if not isinstance(objective.loss.plain, Squared):
            raise ValueError(f"Expected squared loss for preconditioned descent, got {objective.loss.name}.")
        if objective.strong_convexity:
            raise ValueError("Expected no quadratic penalty with preconditioned descent: what it leaves out shrinks like one.")
        refuse_many_parameters(objective)
        super().refuse(objective, records)

    released_kinds = frozenset({"Gram matrix", "sum of gradients", "sum of squared residuals"})
    curved = False
    grouped = True
    by_parts = True

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        replaced = objective.relation is Relation.REPLACE_ONE
        gram_noise, scale_noise, step_noise = self._noises()
        row, most = objective.row_norm, max(map(abs, objective.loss.targets.extremes))
        counts = functools.partial(_counts, objective)
        gram = released_matrix(objective, records, channel, counts, noise_multiplier=gram_noise, what="Gram matrix")
        inverse = self._inverse(gram)
        clip, step = most, self.step_size
        theta, mean = np.zeros(objective.dimension), np.zeros(objective.dimension)
        first = math.floor(self.steps * (1 - _TAIL))
        for done in watched(range(self.steps), "Training", self.steps):
            if done == 1:
                spread = scale_noise * most**2
                squares = exact_total(records, functools.partial(_squares, objective, theta, most)).value()
                squares = np.zeros(1) if squares is None else squares
                released = channel.release(squares, GaussianNoise(most**2, scale_noise, what="sum of squared residuals"))
                clip = min(most, self.kappa * math.sqrt((max(float(released[0]), 0.0) + spread) / self.public_size))
                step = min(1.0, self.step_size * min(most / clip, _LONGER))
            moved = row * clip * (2 if replaced else 1)
            total = exact_total(records, functools.partial(_gradient, objective, theta, clip)).query(moved, step_noise)
            total = np.zeros(objective.dimension) if total is None else total
            gradient = channel.release(total, GaussianNoise(moved, step_noise, what="sum of gradients"))
            theta = theta - step * (inverse @ gradient)
            if objective.radius is not None and (length := float(np.linalg.norm(theta))) > objective.radius:
                theta = theta * (objective.radius / length)
            if done >= first:
                mean = mean + theta
        mass = ReleasedMass(np.diagonal(gram), gram_noise * sensitivity(objective))
        return mean / (self.steps - first), {"steps": self.steps, "clip": clip, MASS_ENTRY: mass.to_dict()}

    def _inverse(self, gram: Array) -> Array:
        """P⁻¹ (p, p), of the Gram matrix that was released."""
        values, vectors = np.linalg.eigh(gram)
        return (vectors / np.maximum(values, self.floor)) @ vectors.T

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return [*right_angles(objective), *instead_of_none(objective)]

    def settings(self) -> Mapping[str, Any]:
        return {"steps": self.steps, "step_size": self.step_size, "floor": self.floor, "kappa": self.kappa}


def _counts(objective: LinearObjective, batch: Batch) -> Array:
    """(b,) how much each row of a batch counts: 1, or its record's weight, which is the curvature of the squared loss."""
    return objective.loss.curvature(np.zeros(len(batch.units)), batch.targets)


def _residuals(objective: LinearObjective, theta: Array, batch: Any) -> tuple[Any, Array]:
    """A pass, and the lengths of its residuals (b,): 0 of who is absent."""
    gradients = objective.per_row(theta, batch)
    return gradients, np.divide(gradients.norms, batch.norms, out=np.zeros_like(batch.norms), where=batch.norms > 0)


def _squares(objective: LinearObjective, theta: Array, most: float, batch: Batch) -> Array:
    """(1,) Σ min(r², Y²) of a batch."""
    _, lengths = _residuals(objective, theta, batch)
    return exact_sum(batch.counted(np.square(np.minimum(lengths, most))), most**2)


def _gradient(objective: LinearObjective, theta: Array, clip: float, batch: Batch) -> Array:
    """(p,) Σ x·clip(xᵀθ − y, ±clip) of a batch: an exact sum."""
    gradients, lengths = _residuals(objective, theta, batch)
    factors = np.divide(clip, lengths, out=np.ones_like(lengths), where=lengths > clip)
    return gradients.weighted_sum(batch.counted(factors), bound=objective.row_norm * clip)


@dataclass(frozen=True, kw_only=True, repr=False)
class Preconditioned(NoisyMethod):
    """Descent for least squares, preconditioned by a noisy Gram matrix; all its settings follow from n, d and the budget."""

    key = "preconditioned"
    unbounded = True
    title = "Preconditioned descent"
    label = "preconditioned descent"

    def at(self, facts: PublicFacts, budget: Budget, models: int, noise_multiplier: float) -> Mechanism:
        """By the rules of docs/regression.md: S = nμ/√d; an effective ridge of λB²/μ with λ = min(1, √(1000/S)) + 20/S."""
        assert facts.public_size is not None
        if facts.target_bound is None:
            raise ValueError("Expected a regression for preconditioned descent, with a bound on targets.")
        mu = gaussian_mu(check.positive("epsilon", budget.epsilon), budget.delta)
        n, d, square = facts.public_size, facts.dimension, facts.data_norm**2
        signal = n * mu / math.sqrt(d)
        floor = min(square / (math.sqrt(_GRAM) * mu) * math.sqrt(2 * d), n * square)
        share = min(1.0, math.sqrt(1000 / signal)) + 20 / signal
        progress = floor * mu * math.sqrt(1 - _GRAM - _SCALE) / (share * square)
        steps = min(max(math.ceil(progress), _STEPS[0]), _STEPS[1])
        return PreconditionedDescent(
            budget=budget,
            steps=steps,
            step_size=min(1.0, progress / steps),
            floor=floor,
            kappa=1 + signal / 500,
            noise_multiplier=noise_multiplier,
            public_size=n,
        )
