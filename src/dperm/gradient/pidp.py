"""PIDP-SGD as published (Kang, Li, Liu, Wang, "Data heterogeneity differential privacy: from theory to algorithm", Algorithm 1):
steps on single records, without noise where a record contributes little. Not private at the ε that it states."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.gradient.bounding import Clip
from dperm.gradient.policy import Gradients, Policy
from dperm.gradient.query import PerExampleGradient
from dperm.gradient.update import Update
from dperm.objectives.facts import PublicFacts
from dperm.privacy.events import Composed, Event, Gaussian, Relation, SelfComposed, Unsupported

__all__ = ["PidpPlan"]

Array = NDArray[np.float64]

_CLAIM = (
    "PIDP-SGD takes a step without noise where a record's influence passes a noisy test: such a step gives that record's "
    "gradient away; and its noise follows a formula for batches of one record outside the range where that formula holds."
)
_OF_CONTRIBUTIONS = 2 * math.sqrt(2)  # the paper's c', spelt out in its proof


class _Gradients(Gradients["PidpPlan"]):
    def start(self) -> None:
        plan, facts = self.policy, self.objective.facts
        self._draws = self.channel.source.generator
        count = len(self.records)
        order = self._draws.integers(max(1, count), size=(plan.steps - self.step, 1))
        self._singles = self.records.stream(list(order[:, : min(1, count)]))  # of nobody, where there is nobody
        self._clip = Clip(facts.lipschitz)
        self._inverse: Array | None = None
        self._global: Array | None = None  # θ at the last refresh
        self.noiseless: list[int] = []

    def __call__(self, theta: Any) -> Any:
        plan = self.policy
        if self._inverse is None or self.step % plan.steps_per_refresh == 0:
            self._refresh(theta)
        (batch,) = next(self._singles)
        number = self.step
        self.step += 1
        gradient = self._gradient(theta, batch)
        if self._passes(batch):
            self.noiseless.append(number)
            return self.regularised(gradient, theta)
        sensitivity = self._clip.sensitivity(self.relation)
        return self.regularised(self.channel.release(gradient, sensitivity, plan.noise_multiplier(self.relation)), theta)

    def _gradient(self, theta: Any, batch: Any) -> Any:
        return self._clip.query(PerExampleGradient().at(self.objective, theta, batch), {})

    def _refresh(self, theta: Array) -> None:
        """H⁻¹ at θ, of the mean loss with the regulariser, and ζ added to the diagonal (Remark 5)."""
        objective: Any = self.objective
        size = max(1, len(self.records))
        _, _, hessian = objective.evaluate(theta, self.records, hessian=True)
        hessian = hessian / size + (self._shrink + self.policy.modulus) * np.eye(len(theta))
        self._inverse, self._global = np.linalg.inv(hessian), theta + 0.0

    def _passes(self, batch: Any) -> bool:
        """Lines 8 to 11. E is added to magnitudes: to signed numbers, as printed, it would make negative ones smaller."""
        plan, facts = self.policy, self.objective.facts
        contribution = self._inverse @ self._gradient(self._global, batch) / plan.public_size
        contribution = contribution + np.sign(contribution) * plan.error(facts, self._bend)
        tested = 2 * contribution + plan.contribution_noise(facts) * self._draws.standard_normal(len(contribution))
        largest = float(np.abs(tested).max())
        limit = plan.limit
        return largest < limit and math.log(limit / (limit - largest)) <= 2 * plan.epsilon_steps

    @property
    def _bend(self) -> float:
        objective: Any = self.objective
        return objective.loss.bend(objective.row_norm)

    def private(self) -> dict[str, Any]:
        return {"noiseless_steps": np.array(self.noiseless, dtype=np.int64)}

    def summary(self) -> dict[str, Any]:
        return {"noise_levels": [(self.policy.noise_multiplier(self.relation), self.policy.steps)]}


@dataclass(frozen=True)
class PidpPlan(Policy):
    """`steps` steps on one uniform record each, H refreshed `refreshes` times, at a stated (ε, δ). Of linear models with one
    output.

    ε₁ = 3ε₂ = 3ε/4 and δ₁ = δ₂ = δ/2, as the paper has it. Noise of steps: σ = c·G√(T·ln(1/δ₁))/(nε₁), `constant` c, which the
    paper leaves open; of contributions: 2√2·G·R√(ln(1.25R/δ₂))/(nζε₂). `modulus` is ζ, `space` the radius r of its test.
    """

    epsilon: float
    delta: float
    steps: int
    update: Update
    public_size: int
    refreshes: int = 1
    modulus: float = 0.01
    space: float = 10.0
    constant: float = 2.0

    run = _Gradients
    kind = "PIDP-SGD as published"
    paper = "Kang, Li, Liu, Wang (PIDP-SGD), Algorithm 1 and Theorem 5"
    claim = _CLAIM
    anchored = True

    def refuse(self, objective: Any) -> None:
        if not objective.facts.smoothness < math.inf or objective.outputs > 1:
            raise ValueError("Expected a smooth loss with one output for PIDP-SGD, which inverts its Hessian.")

    def __post_init__(self) -> None:
        check.fraction("delta", self.delta)
        for name in ("epsilon", "modulus", "space", "constant"):
            check.positive(name, getattr(self, name))
        for name in ("steps", "public_size", "refreshes"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))

    @property
    def rate(self) -> float:
        return 1 / self.public_size

    @property
    def expected_batch_size(self) -> float:
        return 1.0

    @property
    def steps_per_refresh(self) -> int:
        return -(-self.steps // self.refreshes)

    @property
    def epsilon_steps(self) -> float:
        """ε₁."""
        return 0.75 * self.epsilon

    @property
    def limit(self) -> float:
        """2re^{ε₁}δ₁/(e^{ε₁} − 1): coordinates of a contribution beyond it mean noise."""
        return 2 * self.space * (self.delta / 2) / -math.expm1(-self.epsilon_steps)

    def noise_multiplier(self, relation: Relation) -> float:
        """Noise of a step in units of what replacing (or adding) the record moves."""
        std = self.constant * math.sqrt(self.steps * math.log(2 / self.delta)) / (self.public_size * self.epsilon_steps)
        return std / Clip(1.0).sensitivity(relation)

    def contribution_noise(self, facts: PublicFacts) -> float:
        """σ_(c)."""
        root = math.sqrt(math.log(1.25 * self.refreshes / (self.delta / 2)))
        return _OF_CONTRIBUTIONS * facts.lipschitz * self.refreshes * root / (self.public_size * self.modulus * self.epsilon / 4)

    def error(self, facts: PublicFacts, bend: float) -> float:
        """E of Theorem 4."""
        steep, zeta = facts.lipschitz, self.modulus
        return (2 * facts.smoothness * steep + bend * steep**2 / zeta) / (zeta * self.public_size) ** 2

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        steps = (self.steps if stop is None else stop) - start
        if steps <= 0:
            return Composed(())
        noisy = SelfComposed(Gaussian(self.noise_multiplier(relation), relation), steps)
        return Composed((noisy, Unsupported(_CLAIM, relation)))

    def describe(self) -> dict[str, Any]:
        return {name: value if name != "update" else repr(value) for name, value in vars(self).items()}
