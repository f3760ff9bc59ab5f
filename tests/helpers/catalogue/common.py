"""What the entries share: a small problem, a budget, and plans that spend it."""

from __future__ import annotations

from typing import Any

from dperm.gradient import SGD, Clip, Constant, Plan, Poisson, PoissonUpTo
from dperm.mechanisms import Budget, GradientPerturbation, Mechanism, ObjectivePerturbation, OutputPerturbation
from dperm.objectives import LinearObjective, Logistic
from dperm.privacy import Relation

#: (name, mechanism, objective)
Entry = tuple[str, Mechanism, LinearObjective]

EPSILON, DELTA, SIZE = 4.0, 1e-5, 60
BUDGET = Budget(DELTA, EPSILON)
ADD, REPLACE = Relation.ADD_OR_REMOVE_ONE, Relation.REPLACE_ONE


def objective(loss: Any = None, relation: Relation = ADD, **changes: Any) -> LinearObjective:
    settings = {"data_norm": 1.0, "intercept_scale": 0.2, "public_size": SIZE, "relation": relation}
    return LinearObjective(loss or Logistic(), 3, **(settings | changes))


def plan(multiplier: float, **changes: Any) -> Plan:
    parts: dict[str, Any] = {
        "sampler": Poisson(0.3),
        "bounding": Clip(0.5),
        "noise": Constant(multiplier),
        "update": SGD(0.3, 0.9),
        "steps": 20,
        "public_size": SIZE,
    }
    return Plan(**(parts | changes))


def truncated_poisson() -> GradientPerturbation:
    """Of noise that was found once, for finding it takes seconds: nearly what the budget allows."""
    return GradientPerturbation(budget=BUDGET, plan=plan(1.9207, sampler=PoissonUpTo(0.3, capacity=40, largest=SIZE)))


def gradient(facts: Any, **changes: Any) -> GradientPerturbation:
    def make(noise: float) -> Plan:
        made = {name: value(noise) if callable(value) else value for name, value in changes.items()}
        return plan(noise, **made)

    return GradientPerturbation.calibrate(make, facts, EPSILON, DELTA)


def output(problem: LinearObjective, *, delta: float = DELTA, **settings: Any) -> OutputPerturbation:
    """Of a strong convexity at which a record moves the minimiser by little beside what its slope changes over."""
    return OutputPerturbation.calibrate(problem.facts, EPSILON, delta, **({"strong_convexity": 4.0} | settings))


def perturbed(problem: LinearObjective, **settings: Any) -> ObjectivePerturbation:
    """Of a strong convexity at which noise moves the minimiser by little beside what curvatures change over."""
    return ObjectivePerturbation.calibrate(problem.facts, EPSILON, DELTA, **({"strong_convexity": 8.0} | settings))
