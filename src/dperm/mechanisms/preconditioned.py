"""Preconditioned descent for least squares: a noisy Gram matrix, of little budget, shapes the steps of noisy full gradients.

Sufficient statistics (AdaSSP, Wang 2018) pay for the Gram matrix to invert it; noisy descent pays for none and stalls where
features differ in size. Here a twentieth of the budget buys a matrix that is good enough to step by, and the rest buys the mean
of the targets, from which descent starts, and gradients, clipped at what residuals are (docs/regression.md).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dperm import _validate as check
from dperm._progress import watched
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, instead_of_none, opposites, right_angles
from dperm.mechanisms.method import NoisyMethod
from dperm.mechanisms.released_mass import MASS_ENTRY, ReleasedMass
from dperm.mechanisms.second_moments import refuse_many_parameters, released_matrix, sensitivity
from dperm.objectives import Batch, LinearObjective, PublicFacts, Records, Squared
from dperm.objectives.parts import exact_total
from dperm.objectives.sums import exact_sum
from dperm.privacy import Composed, Event, Gaussian, Relation, SelfComposed
from dperm.privacy.accountants.gaussian import gaussian_mu
from dperm.release import Channel, GaussianNoise

_GRAM, _SCALES = 0.05, (0.036, 0.054)  # of the budget's μ²: for the Gram matrix, and twice for the residuals' scale
_MEAN = (0.02, 0.5)  # likewise for the mean of the targets: the least and the most
_MEAN_NOISE = 0.1  # of the bound on targets: the noise of the mean that its share is chosen for
_PRIOR = 1 / 3  # of the bound squared: the variance of a mean that may lie anywhere in the range
_MEAN_ALONE = 5.0  # the signal S below which nothing but the mean is released
_STEPS = (6, 60)  # the fewest and the most
_TAIL = 0.25  # of the steps, the last: they are averaged
_LONGER = 2.5  # a step after the clip is known, at most


@dataclass(frozen=True, kw_only=True)
class PreconditionedDescent(Mechanism):
    """θ ← θ − step·P⁻¹·Σ x·clip(xᵀθ − y, ±C), `steps` times with noise, the last quarter averaged and shrunk toward the start.

    P is the Gram matrix Σxxᵀ with noise, no eigenvalue of it below `floor`. The start is the noisy mean of the targets, of a
    `mean_share` of the budget, as the intercept; without an intercept nothing is released for it, and the start is 0. C is
    min(Y, `kappa`·√(v/n)), v the noisy sum of squared residuals, which is released before the first step and again after it.
    With no `steps` the whole budget buys the mean, which is all that is released.

    Noise multipliers are `noise_multiplier`/√share for shares of the squared budget that add up to 1, and √(steps/share) times it
    for steps: as private as one Gaussian of noise_multiplier.

    Of a person with several rows it is the mean of their x·clip(…), of xxᵀ, of targets and of squares: as short, and as long, as
    one.

    What a record does to the Gram matrix: `dperm.mechanisms.second_moments`. It moves Σy by at most Y, a replaced one by 2Y.
    """

    steps: check.CountOrNone
    step_size: check.Scale
    floor: check.Scale
    kappa: check.Scale
    noise_multiplier: check.Scale
    public_size: check.Count
    mean_share: check.NonNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mean_share > _MEAN[1]:
            raise ValueError(f"Expected mean_share of at most {_MEAN[1]:g}, got {self.mean_share!r}.")

    @property
    def name(self) -> str:
        return f"preconditioned descent ({self.steps} steps)" if self.steps else "mean of the targets"

    @property
    def paper(self) -> str:
        return "dperm, docs/regression.md; Dwork, Talwar, Thakurta, Zhang 2014 (the Gram matrix); exact Gaussian composition"

    @property
    def forewarning(self) -> str:
        if self.steps:
            return ""
        return (
            f"So few records ({self.public_size:,}) at this epsilon let nothing be learnt but the mean of the target: every "
            "answer will be the same. More records, a larger epsilon or fewer columns would help."
        )

    def _noise_of(self, share: float) -> float:
        """The noise multiplier that this share of the squared budget buys."""
        return self.noise_multiplier / math.sqrt(share)

    @property
    def _mean_noise(self) -> float:
        """The noise multiplier of the sum of targets: of its share, or of all where there are no steps. 0: it is not released."""
        share = self.mean_share if self.steps else 1.0
        return self._noise_of(share) if share else 0.0

    @property
    def _step_noise(self) -> float:
        return self._noise_of((1 - _GRAM - sum(_SCALES) - self.mean_share) / self.steps)

    def event(self, facts: PublicFacts) -> Event:
        if not self.steps:
            return Gaussian(self._mean_noise, facts.relation)
        once = [_GRAM, *_SCALES, *([self.mean_share] if self.mean_share else [])]
        parts = [Gaussian(self._noise_of(share), facts.relation) for share in once]
        return Composed((*parts, SelfComposed(Gaussian(self._step_noise, facts.relation), self.steps)))

    def refuse(self, objective: LinearObjective, records: int) -> None:
        if not isinstance(objective.loss.plain, Squared):
            raise ValueError(f"Expected squared loss for preconditioned descent, got {objective.loss.name}.")
        if objective.strong_convexity:
            raise ValueError("Expected no quadratic penalty with preconditioned descent: what it leaves out shrinks like one.")
        refuse_many_parameters(objective)
        if self._mean_noise and not objective.intercept_scale:
            raise ValueError("Expected an intercept where the mean of the targets is released: it starts from there.")
        super().refuse(objective, records)

    @property
    def released_kinds(self) -> frozenset[str]:
        descent = {"Gram matrix", "sum of gradients", "sum of squared residuals"} if self.steps else set[str]()
        return frozenset({*descent, *({"sum of targets"} if self._mean_noise else ())})

    curved = False
    grouped = True
    by_parts = True

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        whole = _Whole.of(objective, records, channel)
        shape = self._shape(whole) if self.steps else None
        start = self._start(whole)
        if shape is None:
            return start, {"steps": 0}
        clip, step = self._clip(whole, start, _SCALES[0])
        theta, mean, noises = start, np.zeros(objective.dimension), list[tuple[float, float]]()
        first = math.floor(self.steps * (1 - _TAIL))
        for done in watched(range(self.steps), "Training", self.steps):
            if done == 1:
                clip, step = self._clip(whole, theta, _SCALES[1])
            moved = objective.row_norm * clip * whole.turns
            total = exact_total(records, functools.partial(_gradient, objective, theta, clip)).query(moved, self._step_noise)
            total = np.zeros(objective.dimension) if total is None else total
            gradient = channel.release(total, GaussianNoise(moved, self._step_noise, what="sum of gradients"))
            theta = theta - step * shape.inverse(gradient)
            if objective.radius is not None and (length := float(np.linalg.norm(theta))) > objective.radius:
                theta = theta * (objective.radius / length)
            noises.append((step, moved * self._step_noise))
            if done >= first:
                mean = mean + theta
        theta = mean / (self.steps - first)
        kept = shape.kept(theta - start, noises, first)
        mass = ReleasedMass(shape.diagonal, self._noise_of(_GRAM) * sensitivity(objective))
        return start + kept * (theta - start), {"steps": self.steps, "clip": clip, "kept": kept, MASS_ENTRY: mass.to_dict()}

    def _start(self, whole: _Whole) -> Array:
        """(p,) parameters that predict the noisy mean of the targets, shrunk toward the middle of the range as far as its noise
        and a mean that may lie anywhere in the range say."""
        objective, most = whole.objective, whole.most
        start = np.zeros(objective.dimension)
        if not self._mean_noise:
            return start
        moved = most * whole.turns
        total = exact_total(whole.records, functools.partial(_sum_of_targets, objective, most)).query(moved, self._mean_noise)
        total = np.zeros(1) if total is None else total
        released = whole.channel.release(total, GaussianNoise(moved, self._mean_noise, what="sum of targets"))
        spread = _PRIOR * most**2
        trust = spread / (spread + (self._mean_noise * moved / self.public_size) ** 2)
        start[-1] = trust * min(max(float(released[0]) / self.public_size, -most), most) / objective.intercept_scale
        if objective.radius is not None:
            start[-1] = min(max(float(start[-1]), -objective.radius), objective.radius)
        return start

    def _clip(self, whole: _Whole, theta: Array, share: float) -> tuple[float, float]:
        """What residuals are clipped at from here on, by their released sum of squares, and the step size that goes with it."""
        most, noise = whole.most, self._noise_of(share)
        squares = exact_total(whole.records, functools.partial(_squares, whole.objective, theta, most)).query(most**2, noise)
        squares = np.zeros(1) if squares is None else squares
        released = whole.channel.release(squares, GaussianNoise(most**2, noise, what="sum of squared residuals"))
        spread = noise * most**2
        clip = min(most, self.kappa * math.sqrt((max(float(released[0]), 0.0) + spread) / self.public_size))
        return clip, min(1.0, self.step_size * min(most / clip, _LONGER))

    def _shape(self, whole: _Whole) -> _Shape:
        """The Gram matrix as it is released."""
        objective, counts = whole.objective, functools.partial(_counts, whole.objective)
        gram = released_matrix(
            objective, whole.records, whole.channel, counts, noise_multiplier=self._noise_of(_GRAM), what="Gram matrix"
        )
        return _Shape.of(gram, self.floor)

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        return [*right_angles(objective), *instead_of_none(objective), *opposites(objective)]

    def settings(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in ("steps", "step_size", "floor", "kappa", "mean_share")}


class _Whole(NamedTuple):
    """What a run is on: `most` is Y, and `turns` how many records a neighbour's place counts for, 2 where one is replaced."""

    objective: LinearObjective
    records: Records
    channel: Channel
    most: float
    turns: int

    @classmethod
    def of(cls, objective: LinearObjective, records: Records, channel: Channel) -> _Whole:
        turns = 2 if objective.relation is Relation.REPLACE_ONE else 1
        return cls(objective, records, channel, max(map(abs, objective.loss.targets.extremes)), turns)


class _Shape(NamedTuple):
    """The diagonal (p,) of the released Gram matrix, its eigenvalues, the same raised to the floor, and eigenvectors (p, p) as
    columns."""

    diagonal: Array
    values: Array
    raised: Array
    vectors: Array

    @classmethod
    def of(cls, gram: Array, floor: float) -> _Shape:
        values, vectors = np.linalg.eigh(gram)
        return cls(np.diagonal(gram), values, np.maximum(values, floor), vectors)

    def inverse(self, gradient: Array) -> Array:
        """P⁻¹·gradient."""
        return self.vectors @ ((self.vectors.T @ gradient) / self.raised)

    def kept(self, moved: Array, noises: Sequence[tuple[float, float]], first: int) -> float:
        """How much to keep, from 0 to 1, of what parameters moved by from the start, so that predictions are nearest to those
        without noise: James and Stein's estimate, with how far descent came along each eigenvector. It follows from what was
        released.

        `noises` are step sizes with the standard deviations of their gradients; the mean is of the iterates from `first` on.
        """
        values, count = np.maximum(self.values, 0.0), len(noises) - first
        factors = [1 - size * values / self.raised for size, _ in noises]
        left = np.add.reduce(np.multiply.accumulate(factors)[first:]) / count  # of the way to where descent ends
        still, noise = np.zeros(len(values)), np.zeros(len(values))
        for number in range(len(noises) - 1, -1, -1):  # how much of a step's noise is in the sum of the iterates that count
            still = still * factors[number + 1] if number + 1 < len(noises) else still
            still = still + (number >= first)
            size, spread = noises[number]
            noise += np.square(still * size * spread / self.raised)
        squares = np.square(self.vectors.T @ moved)
        weights = np.divide(values, 1 - left, out=np.zeros_like(values), where=left < 1)
        wanted, length = float(weights @ (squares - noise / count**2)), float(values @ squares)
        return min(max(wanted / length, 0.0), 1.0) if length else 0.0


def _counts(objective: LinearObjective, batch: Batch) -> Array:
    """(b,) how much each row of a batch counts: 1, or its record's weight, which is the curvature of the squared loss."""
    return objective.loss.curvature(np.zeros(len(batch.units)), batch.targets)


def _residuals(objective: LinearObjective, theta: Array, batch: Any) -> tuple[Any, Array]:
    """A pass, and the lengths of its residuals (b,): 0 of who is absent."""
    gradients = objective.per_row(theta, batch)
    return gradients, np.divide(gradients.norms, batch.norms, out=np.zeros_like(batch.norms), where=batch.norms > 0)


def _sum_of_targets(objective: LinearObjective, most: float, batch: Batch) -> Array:
    """(1,) Σu·y of a batch, u a record's weight, each cut at ±`most`: the slopes of squared loss at 0 are −u·y."""
    slopes = objective.loss.slope(np.zeros(len(batch.units)), batch.targets)
    return exact_sum(batch.counted(-np.fmin(np.fmax(slopes, -most), most)), most)


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
        """By the rules of docs/regression.md: S = nμ/√d; an effective ridge of λB²/μ with λ = min(1, √(1000/S)) + 20/S; where S
        is below 5, the mean alone."""
        assert facts.public_size is not None
        if facts.target_bound is None:
            raise ValueError("Expected a regression for preconditioned descent, with a bound on targets.")
        mu = gaussian_mu(check.positive("epsilon", budget.epsilon), budget.delta)
        n, d, square = facts.public_size, facts.dimension, facts.data_norm**2
        signal = n * mu / math.sqrt(d)
        floor = min(square / (math.sqrt(_GRAM) * mu) * math.sqrt(2 * d), n * square)
        centred = facts.intercept_scale > 0
        mean_share = min(max((_MEAN_NOISE * n * mu) ** -2, _MEAN[0]), _MEAN[1]) if centred else 0.0
        share = min(1.0, math.sqrt(1000 / signal)) + 20 / signal
        progress = floor * mu * math.sqrt(1 - _GRAM - sum(_SCALES) - mean_share) / (share * square)
        steps = min(max(math.ceil(progress), _STEPS[0]), _STEPS[1])
        if centred and signal < _MEAN_ALONE:
            steps = 0
        return PreconditionedDescent(
            budget=budget,
            steps=steps,
            step_size=min(1.0, progress / max(steps, 1)),
            floor=floor,
            kappa=1 + signal / 500,
            noise_multiplier=noise_multiplier,
            public_size=n,
            mean_share=mean_share,
        )
