"""The method that chooses a method."""

from __future__ import annotations

from dataclasses import dataclass

from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.gradient import Gradient
from dperm.mechanisms.method import Method
from dperm.mechanisms.objective import Objective
from dperm.mechanisms.output import Output
from dperm.mechanisms.preconditioned import Preconditioned
from dperm.mechanisms.second_moments import MOST_PARAMETERS
from dperm.objectives import PublicFacts, Squared, Task


@dataclass(frozen=True, kw_only=True, repr=False)
class Auto(Method):
    """Output perturbation for pure privacy; gradient perturbation for more than two classes (docs/tuning.md has what it gains);
    preconditioned descent for squared loss; otherwise objective perturbation, or full-batch gradient perturbation of a loss that
    rules it out."""

    key = "auto"
    unbounded = True

    @property
    def rule(self) -> str:
        return (
            "By the task: objective perturbation for two classes, gradient perturbation for more, preconditioned descent for "
            "numbers, output perturbation where δ = 0"
        )

    def chosen(self, task: Task, budget: Budget) -> Method:
        if budget.delta == 0:
            return Output()
        if task.classes > 2:
            return Gradient()
        if isinstance(task.loss.plain, Squared) and task.features < MOST_PARAMETERS:
            return Preconditioned()
        return Objective() if task.loss.rank_one else Gradient(sampling="full")

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        raise TypeError("Call `chosen` first: facts do not say what is to be learnt.")
