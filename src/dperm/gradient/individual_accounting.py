"""Individual accounting: full-batch descent in which each record spends what its own gradients cost (Koskela, Tobaben, Honkela
2023; Feldman & Zrnic 2021)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.bounding import Clip
from dperm.gradient.policy import Gradients, Policy
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.update import Update
from dperm.objectives.per_example import Pass
from dperm.objectives.sums import RunningSum
from dperm.privacy.events import BoundedSquaresGaussian, Composed, Event, Relation
from dperm.release import GaussianNoise
from dperm.release.grid import Grid


class IndividualGradients(Gradients["IndividualPlan"]):
    """An `IndividualPlan` in progress. What each record has spent is private: `spent_by_record`, in full steps."""

    def start(self) -> None:
        plan, shape = self.policy, (len(self.records),)
        if self.channel.source.trials is not None:
            shape = (self.channel.source.trials, *shape)
        self.spent_by_record: Array = np.zeros(shape)
        self._clip = Clip(plan.clipping_norm)
        self._sensitivity = self._clip.sensitivity(self.relation)
        grid = Grid.of(self._sensitivity, plan.noise_multiplier * self._sensitivity, self.objective.facts.dimension)
        share = plan.clipping_norm / self._sensitivity
        # a record's part of what rounding to the grid adds; and its length where it costs a full step
        self._rounding, self._full = share * (grid.sensitivity - self._sensitivity), share * grid.sensitivity
        self._everyone = self.records.stream([None] * (plan.steps - self.step))

    def __call__(self, theta: Any) -> Any:
        plan, total, start = self.policy, RunningSum(), 0
        for batch in next(self._everyone):
            at_theta = self.objective.per_example(theta, batch)
            if self.observe is not None:
                self.observe(at_theta)
            part = slice(start, start + at_theta.norms.shape[-1])
            start = part.stop
            total.add(self._affordable(at_theta, self.spent_by_record[..., part]))
        value = total.query(self._sensitivity, plan.noise_multiplier)
        query = self._clip.empty(theta) if value is None else value
        released = self.channel.release(query, GaussianNoise(self._sensitivity, plan.noise_multiplier, what="sum of gradients"))
        self.step += 1
        return plan.post.apply(self.regularised(released / plan.public_size, theta))

    def _affordable(self, at_theta: Pass, spent: Array) -> Any:
        """A batch's sum of gradients, each cut at C and at what its record has left; `spent` is brought up to date."""
        bound, device_norms = self.policy.clipping_norm, at_theta.norms
        norms = np.asarray(to_device(device_norms, "cpu"), dtype=np.float64)
        left = self.policy.full_steps - spent
        xp = array_namespace(device_norms)
        slack = 1 + 16 * float(xp.finfo(device_norms.dtype).eps)  # a norm and its product with a factor are rounded
        reach = np.sqrt(np.maximum(left, 0.0)) * self._full - self._rounding
        limits = np.where(left >= 1, bound, np.maximum(reach, 0.0) * (1 - 1e-9) / slack)  # so that what is left affords it
        lengths = np.minimum(norms, limits)
        costs = np.where(lengths > 0, np.minimum((lengths * slack + self._rounding) / self._full, 1.0) ** 2, 0.0)
        silent = costs > left
        with np.errstate(invalid="ignore"):
            factors = np.where(silent | (limits <= 0), 0.0, limits / np.maximum(norms, limits))
        spent += np.where(silent, 0.0, costs)
        return at_theta.weighted_sum(xp.asarray(factors, dtype=device_norms.dtype, device=device(device_norms)), bound)

    def skip(self, steps: int) -> None:
        """Steps that are lost may have been released: they count in full."""
        self.step += steps
        np.minimum(self.spent_by_record + steps, self.policy.full_steps, out=self.spent_by_record)

    def summary(self) -> dict[str, Any]:
        return {"noise_levels": [(self.policy.noise_multiplier, self.policy.steps)]}

    def private(self) -> dict[str, Any]:
        return {"spent_by_record": self.spent_by_record, **self._marks}

    @functools.cached_property
    def _marks(self) -> dict[str, Any]:
        """By which records are known again: an account that is given to another record lets it overspend."""
        records: Any = self.records  # of linear models, whose runs are not continued, they have none
        return {"fingerprints": records.fingerprints().view(np.int64)} if hasattr(records, "fingerprints") else {}

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        spent = np.asarray(private["spent_by_record"], dtype=np.float64)
        if spent.shape != self.spent_by_record.shape:
            raise ValueError(f"The checkpoint is of {len(spent)} records, the data set has {len(self.records)}.")
        for name, marks in self._marks.items():
            if not np.array_equal(marks, private.get(name, ())):
                raise ValueError(
                    "Expected the records of the checkpoint, in the same order, each the same whenever it is read: accounts are "
                    "theirs. Draw augmentations beforehand."
                )
        self.spent_by_record = spent.copy()


@dataclass(frozen=True)
class IndividualPlan(Policy):
    """`steps` steps over all records, each gradient clipped at C = `clipping_norm`, with Gaussian noise; a record is silent once
    the squares of its gradients, in units of C², add up to `full_steps`.

    The whole costs as much as `full_steps` ≤ `steps` ordinary steps: a record whose gradients are always as long as C takes part
    in so many, one with shorter gradients in more. With full_steps = steps nobody is ever silent.
    """

    clipping_norm: float
    noise_multiplier: float
    steps: int
    full_steps: float
    update: Update
    public_size: int
    post: Post = field(default_factory=Identity)

    run = IndividualGradients
    kind = "individual accounting"
    paper = "Koskela, Tobaben, Honkela 2023 (individual Gaussian differential privacy filter)"
    rate = 1.0
    vectorises = True

    def __post_init__(self) -> None:
        check.scale("clipping_norm", self.clipping_norm)
        check.positive("noise_multiplier", self.noise_multiplier)
        for name in ("steps", "public_size"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        if check.positive("full_steps", self.full_steps) > self.steps:
            raise ValueError(f"Expected full_steps of at most steps = {self.steps}, got {self.full_steps!r}.")

    @property
    def expected_batch_size(self) -> float:
        return float(self.public_size)

    @property
    def longest(self) -> float:
        return self.clipping_norm

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        steps = (self.steps if stop is None else stop) - start
        if steps <= 0:
            return Composed(())
        return BoundedSquaresGaussian(self.noise_multiplier, steps, min(self.full_steps, steps), relation)
