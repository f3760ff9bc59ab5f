"""How strongly neighbouring weights are drawn together, by a public rule (docs/curves.md)."""

from __future__ import annotations

import math
from dataclasses import replace

from dperm import _validate as check
from dperm.mechanisms.base import Budget
from dperm.objectives import LinearObjective, Roughness, Task
from dperm.privacy.gaussian import gaussian_mu

#: where the signal S = nμ/√d is below the first number: chosen on made tables, see docs/curves.md
_WEAK, _USUAL = 50.0, 0.3


def with_roughness(objective: LinearObjective, task: Task, budget: Budget | None, asked: float | None) -> LinearObjective:
    """The objective with a penalty on roughness of the weight that was asked for, where features of the task are neighbours.

    None: 0.3 where the number of records is public and the signal weak, otherwise 0. What the budget is must be known for that.
    """
    if not task.neighbours:
        if asked:
            raise ValueError("Expected neighbours, pairs of features on a curve, with a penalty on roughness.")
        return objective
    weight = usual_weight(objective, task, budget) if asked is None else asked
    return replace(objective, roughness=Roughness(task.neighbours, weight)) if weight else objective


def usual_weight(objective: LinearObjective, task: Task, budget: Budget | None) -> float:
    """The weight by rule."""
    if budget is None or budget.epsilon is None or task.public_size is None:
        return 0.0
    epsilon = check.positive("epsilon", budget.epsilon)
    strength = task.public_size * (gaussian_mu(epsilon, budget.delta) if budget.delta else epsilon)
    weak = strength < _WEAK * math.sqrt(objective.dimension * task.models(objective))
    return _USUAL if weak else 0.0
