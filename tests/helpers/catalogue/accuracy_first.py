"""Accuracy first: stopped by other records, and by asking the records themselves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dperm.mechanisms import AccuracyFirst, Budget
from dperm.objectives import Logistic, Squared, Task
from helpers.catalogue.common import ADD, BUDGET, REPLACE, SIZE, Entry

_ROWS = np.random.default_rng(5).normal(size=(30, 3)) / 2


def entries() -> Iterator[Entry]:
    for relation in (ADD, REPLACE):
        task = Task(loss=Logistic(4.0), features=3, classes=2, public_size=SIZE, relation=relation, intercept_scale=0.2)
        for held_out in (None, (_ROWS, np.sign(_ROWS[:, 0]))):
            accuracy = 0.6 if held_out is None else 0.97  # of other records: one that is hardly reached, so that more is released
            method = AccuracyFirst(accuracy=accuracy, held_out=held_out, check_share=0.3, stops=8, strong_convexity=1.0)
            yield f"accuracy first, {'asked' if held_out is None else 'others'}, {relation}", *method.build(task, BUDGET)
    task = Task(loss=Logistic(4.0), features=3, classes=2, public_size=SIZE, intercept_scale=0.2)
    yield "accuracy first, pure", *AccuracyFirst(accuracy=0.6, check_share=0.3, stops=8).build(task, Budget(0.0, 4.0))
    task = Task(loss=Squared(20.0, 1.0), features=3, public_size=SIZE)
    yield "accuracy first, loss", *AccuracyFirst(loss=20.0, stops=8, strong_convexity=200.0).build(task, BUDGET)
