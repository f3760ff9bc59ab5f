"""DP-SVRG: noisy steps whose noise falls with the distance from a snapshot (Wang, Ye, Xu 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from dperm import _validate as check
from dperm.gradient.bounding import Clip
from dperm.gradient.policy import Gradients, Policy
from dperm.gradient.query import GradientDifference, PerExampleGradient
from dperm.gradient.sampling import Poisson
from dperm.gradient.update import Update
from dperm.privacy.events import Composed, Event, Gaussian, Relation, SelfComposed

_LEAST = 1e-6  # of the clipping norm: the bound of differences at the snapshot itself, where they are all 0


class SvrgGradients(Gradients["SvrgPlan"]):
    """An `SvrgPlan` in progress."""

    def start(self) -> None:
        self._anchor = self._mean = None
        draws = Poisson(self.policy.sampling_rate).draws(self.channel, len(self.records), self.policy.steps)
        self._batches = self.records.stream(draws)

    def __call__(self, theta: Any) -> Any:
        plan, bound = self.policy, self.policy.clipping_norm
        if self._anchor is None or self.step % plan.steps_per_epoch == 0:
            self._anchor = theta + 0.0
            everyone = next(self.records.stream([None]))
            total = self.released_sum(theta, everyone, Clip(bound), PerExampleGradient(), plan.snapshot_noise, 1.0)
            self._mean = total / plan.public_size
        moved = float(array_namespace(theta).linalg.vector_norm(theta - self._anchor))
        near = Clip(max(min(2 * bound, self.objective.facts.smoothness * moved), _LEAST * bound))
        change = GradientDifference(self._anchor)
        difference = self.released_sum(theta, next(self._batches), near, change, plan.noise_multiplier, plan.sampling_rate)
        self.step += 1
        return self.regularised(difference / plan.expected_batch_size + self._mean, theta)


@dataclass(frozen=True)
class SvrgPlan(Policy):
    """`epochs` times a snapshot θ̃ of all records and `steps_per_epoch` Poisson draws at `sampling_rate`. Linear models only.

    A snapshot releases Σ∇ℓ_i(θ̃), clipped at C = `clipping_norm`, with `snapshot_noise`; a step Σ(∇ℓ_i(θ) − ∇ℓ_i(θ̃)), clipped at
    min(2C, β‖θ − θ̃‖), with `noise_multiplier`: both times the clip, so that what a step costs does not depend on θ.
    """

    sampling_rate: float
    epochs: int
    steps_per_epoch: int
    clipping_norm: float
    snapshot_noise: float
    noise_multiplier: float
    update: Update
    public_size: int

    run = SvrgGradients
    kind = "variance-reduced"
    anchored = True
    paper = "Wang, Ye, Xu 2017 (DP-SVRG), with Poisson sampling; accounting by privacy loss distribution"

    def __post_init__(self) -> None:
        check.fraction("sampling_rate", self.sampling_rate, one=True)
        check.scale("clipping_norm", self.clipping_norm)
        for name in ("epochs", "steps_per_epoch", "public_size"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        for name in ("snapshot_noise", "noise_multiplier"):
            check.positive(name, getattr(self, name))

    @property
    def released_kinds(self) -> frozenset[str]:
        return frozenset({PerExampleGradient.what, GradientDifference.what})

    @property
    def continues(self) -> bool:
        """No: a step with a snapshot makes two releases, and a run that may go on reserves one for each step."""
        return False

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def rate(self) -> float:
        return self.sampling_rate

    @property
    def expected_batch_size(self) -> float:
        return self.sampling_rate * self.public_size

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        stop = self.steps if stop is None else stop
        if stop <= start:
            return Composed(())
        snapshots = -(-stop // self.steps_per_epoch) - start // self.steps_per_epoch  # a step needs its epoch's
        steps = Poisson(self.sampling_rate).event(Gaussian(self.noise_multiplier, relation), start, stop - start)
        return Composed((SelfComposed(Gaussian(self.snapshot_noise, relation), snapshots), steps))
