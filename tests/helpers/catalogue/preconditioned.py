"""Preconditioned descent: both relations, with and without a ball, an intercept, a private size; and the mean alone."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import Budget, Preconditioned
from dperm.objectives import Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Squared(1.0, 2.0), features=3, public_size=SIZE, relation=relation, intercept_scale=0.2)
        yield f"preconditioned, {relation}", *Preconditioned().build(task, BUDGET)
    yield "preconditioned, no ball", *Preconditioned().build(Task(loss=Squared(1.0), features=3, public_size=SIZE), BUDGET)
    yield "preconditioned, private size", *Preconditioned().build(Task(loss=Squared(1.0, 2.0), features=3), BUDGET)
    for relation in (ADD, REPLACE):
        task = Task(loss=Squared(1.0), features=3, public_size=SIZE, relation=relation, intercept_scale=0.5)
        yield f"mean of the targets, {relation}", *Preconditioned().build(task, Budget(1e-5, 0.01))
