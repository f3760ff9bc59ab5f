"""PIDP-SGD as published: noise only where a record's influence is large. Claimed, not certified."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dperm import _validate as check
from dperm.gradient import SGD
from dperm.gradient.recipes import pidp_sgd
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.gradient import GradientPerturbation
from dperm.mechanisms.method import Method, one_for_each
from dperm.objectives import LinearObjective, PublicFacts, Task


@dataclass(frozen=True, kw_only=True, repr=False)
class PublishedPidp(Method):
    """PIDP-SGD as published, `epochs` times as many steps as records. It is not private at the ε it states, and only claimed.

    `strong_convexity` is Λ of (Λ/2)‖θ‖², the others those of `PidpPlan`.
    """

    epochs: float = 1.0
    learning_rate: float = 0.1
    refreshes: int = 1
    modulus: float = 0.01
    space: float = 10.0
    strong_convexity: float | None = None

    key = "pidp-sgd-published"
    title = "PIDP-SGD as published"
    claimed = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            if getattr(self, field.name) is not None:
                check.positive(field.name, getattr(self, field.name))

    @property
    def needs_size(self) -> bool:
        return True

    def objective(self, task: Task, budget: Budget | None = None) -> LinearObjective:
        return task.objective(strong_convexity=self.strong_convexity or 0.0)

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        assert facts.public_size is not None
        plan = pidp_sgd(
            epsilon=check.positive("epsilon", budget.epsilon) / models,
            delta=budget.delta / models,
            public_size=facts.public_size,
            steps=max(1, round(self.epochs * facts.public_size)),
            refreshes=self.refreshes,
            modulus=self.modulus,
            space=self.space,
            update=SGD(self.learning_rate),
        )
        return one_for_each(GradientPerturbation(budget=budget, plan=plan), models)
