"""Frank–Wolfe on the L2 ball: both relations, squared loss, softmax, a private size."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import FrankWolfeBall
from dperm.objectives import Logistic, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Logistic(), features=3, classes=2, public_size=SIZE, relation=relation, intercept_scale=0.2)
        yield f"frank-wolfe-l2, {relation}", *FrankWolfeBall(radius=2.0, epochs=6).build(task, BUDGET)
    squared = Task(loss=Squared(1.0, 2.0), features=3, public_size=SIZE)
    yield "frank-wolfe-l2, squared", *FrankWolfeBall(radius=2.0, epochs=5).build(squared, BUDGET)
    three = Task(loss=Logistic(), features=3, classes=3, public_size=SIZE)
    yield "frank-wolfe-l2, softmax", *FrankWolfeBall(radius=2.0, epochs=5).build(three, BUDGET)
    unknown = Task(loss=Logistic(), features=3, classes=2)
    yield "frank-wolfe-l2, private size", *FrankWolfeBall(radius=2.0, epochs=5).build(unknown, BUDGET)
