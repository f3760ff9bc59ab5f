"""The last iterate alone: one pass and many, with and without a penalty, stopped at random."""

from __future__ import annotations

from collections.abc import Iterator

from dperm.mechanisms import LastIterate
from dperm.objectives import Logistic, Task
from helpers.catalogue.common import BUDGET, REPLACE, Entry

COUNT = 40  # records, as many as audits bring


def entries() -> Iterator[Entry]:
    def task(loss: object, classes: int = 2) -> Task:
        return Task(loss=loss, features=3, classes=classes, public_size=COUNT, relation=REPLACE, intercept_scale=0.2)  # type: ignore[arg-type]

    few = {"batch_size": 8, "radius": 5.0}
    flat = Logistic(8.0)  # whose slope hardly changes within that, wherever noise takes θ
    yield "last-iterate, many passes", *LastIterate(epochs=4, **few).build(task(flat), BUDGET)
    yield "last-iterate, penalty", *LastIterate(epochs=3, strong_convexity=4.0, **few).build(task(flat), BUDGET)
    yield "last-iterate, stopped", *LastIterate(random_stop=True, **few).build(task(flat), BUDGET)
    yield "last-iterate, three classes", *LastIterate(epochs=2, **few).build(task(flat, 3), BUDGET)
