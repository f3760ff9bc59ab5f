"""Frank–Wolfe: few steps and many, both relations, one class against the rest."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import FrankWolfe
from dperm.objectives import Logistic, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Logistic(4.0), features=3, classes=2, public_size=SIZE, relation=relation, intercept_scale=0.2)
        yield f"frank-wolfe, {relation}", *FrankWolfe(radius=2.0, steps=6).build(task, BUDGET)
        yield f"frank-wolfe, entries, {relation}", *FrankWolfe(radius=2.0, steps=6, entry_bound=0.3).build(task, BUDGET)
    three = Task(loss=Logistic(4.0), features=3, classes=3, public_size=SIZE)
    yield "frank-wolfe, three classes", *FrankWolfe(radius=2.0, steps=3).build(three, BUDGET)
    yield (
        "frank-wolfe, squared",
        *FrankWolfe(radius=1.0).build(Task(loss=Squared(20.0, 1.0), features=3, public_size=SIZE), BUDGET),
    )
