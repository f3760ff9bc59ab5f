"""Greedy coordinate descent: with and without penalties and a bound on entries, both relations, one class against the rest."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import GreedyCoordinate
from dperm.objectives import Logistic, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Logistic(4.0), features=3, classes=2, public_size=SIZE, relation=relation, intercept_scale=0.2)
        yield f"greedy-coordinate, {relation}", *GreedyCoordinate(steps=6).build(task, BUDGET)
        small = GreedyCoordinate(steps=6, entry_bound=0.3, l1=0.01, l2=0.1, box=2.0)
        yield f"greedy-coordinate, entries and penalties, {relation}", *small.build(task, BUDGET)
    squared = Task(loss=Squared(20.0, 1.0), features=3, public_size=SIZE)
    yield "greedy-coordinate, squared", *GreedyCoordinate(steps=5).build(squared, BUDGET)
    three = Task(loss=Logistic(4.0), features=3, classes=3, public_size=SIZE)
    yield "greedy-coordinate, three classes", *GreedyCoordinate(steps=3).build(three, BUDGET)
    unknown = Task(loss=Logistic(4.0), features=3, classes=2)
    yield "greedy-coordinate, private size", *GreedyCoordinate(steps=4).build(unknown, BUDGET)
