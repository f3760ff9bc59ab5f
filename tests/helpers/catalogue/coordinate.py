"""Coordinate descent: with and without penalties, both relations, squared loss, one class against the rest."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import Coordinate
from dperm.objectives import Logistic, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Logistic(4.0), features=3, classes=2, public_size=SIZE, relation=relation, intercept_scale=0.2)
        yield f"coordinate, {relation}", *Coordinate(epochs=3).build(task, BUDGET)
    yield "coordinate, penalties", *Coordinate(epochs=3, l1=0.01, l2=0.1, box=2.0).build(task, BUDGET)
    squared = Task(loss=Squared(20.0, 1.0), features=3, public_size=SIZE)
    yield "coordinate, squared", *Coordinate(epochs=2).build(squared, BUDGET)
    three = Task(loss=Logistic(4.0), features=3, classes=3, public_size=SIZE)
    yield "coordinate, three classes", *Coordinate(epochs=2).build(three, BUDGET)
    unknown = Task(loss=Logistic(4.0), features=3, classes=2)
    yield "coordinate, private size", *Coordinate(epochs=2).build(unknown, BUDGET)
