"""Bounds beside what was measured: a page for the data holder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dperm.data import Dataset
from dperm.objectives import Logistic, Task
from dperm.report.figures import bounds_figure
from dperm.report.page import rendered
from dperm.utility import BOUNDS, Bound, MeasuredExcess, Problem, measured_excess


@dataclass(frozen=True)
class BoundRow:
    """One bound at one problem; None where the problem leaves open what it needs."""

    bound: Bound
    value: float | None
    in_size: float | None
    in_epsilon: float | None

    @property
    def missing(self) -> str:
        return ", ".join(self.bound.needs)


def measured_on(dataset: Dataset, data_norm: float, relation: str, **settings: Any) -> MeasuredExcess:
    """The excess risk of logistic regression, measured on a data set of two classes. `settings` are those of
    `measured_excess`."""
    task = Task(
        loss=Logistic(),
        features=dataset.features.shape[1],
        classes=2,
        data_norm=data_norm,
        intercept_scale=0.5 * data_norm,
        relation=relation,  # pyright: ignore[reportArgumentType]
        public_size=len(dataset.targets),
    )
    objective = task.objective()
    numbers = np.searchsorted(np.asarray(sorted(dataset.classes)), dataset.targets)
    return measured_excess(objective, objective.records(dataset.features, task.targets(numbers)), **settings)


def bound_rows(problem: Problem) -> list[BoundRow]:
    """All bounds, those with a value first."""
    rows: list[BoundRow] = []
    for bound in BOUNDS:
        slopes = bound.slopes(problem) or (None, None)
        rows.append(BoundRow(bound, bound.value(problem), *slopes))
    return sorted(rows, key=lambda row: row.value is None)


def bounds_page(measured: MeasuredExcess, title: str) -> str:
    """Slopes and heights of the bounds of excess empirical risk, drawn over ε and over the number of records."""
    drawn = [bound for bound in BOUNDS if bound.of != "population" and bound.value(measured.problem) is not None]
    drawn = [bound for bound in drawn if bound.of != "lower" or "strong_convexity" in bound.needs]  # the problem is of that kind
    along_epsilon = {
        bound.name: [bound.value(replace(measured.problem, epsilon=float(e))) for e in measured.epsilons] for bound in drawn
    }
    along_size = {bound.name: [bound.value(replace(measured.problem, size=int(n))) for n in measured.sizes] for bound in drawn}
    return rendered(
        "bounds.html",
        title=title,
        problem=measured.problem,
        rows=bound_rows(measured.problem),
        slopes=measured.slopes,
        figure=bounds_figure(measured, along_epsilon, along_size),
    )
