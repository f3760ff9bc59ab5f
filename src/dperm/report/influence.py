"""Which records matter to a model of a table: a page for the data holder, and for nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.data import Dataset
from dperm.influence import LinearInfluence
from dperm.objectives import Huber, LinearObjective, Logistic, Loss, Softmax, Squared
from dperm.report.figures import influence_figure
from dperm.report.page import rendered

_INTERCEPT = 0.5  # of data_norm, as estimators have it


@dataclass(frozen=True)
class Influences:
    """Of each record used (n,): how much `what` changes where it leaves, its loss, and its row in the table, counted from 1.

    All of it is private: it is made from the records, without noise.
    """

    dataset: Dataset
    what: str
    model: str
    change: Array
    losses: Array
    rows: NDArray[np.intp]
    regularisation: float

    def most(self, count: int) -> list[dict[str, Any]]:
        """The records that matter most, first the largest."""
        chosen = np.argsort(-np.abs(self.change), kind="stable")[:count]
        return [
            {
                "row": int(self.rows[place]),
                "change": float(self.change[place]),
                "target": _plain(self.dataset.targets[place]),
                "loss": float(self.losses[place]),
            }
            for place in chosen
        ]

    def share_of(self, count: int) -> float:
        """The share of all changes, by their squares, that so many records have."""
        squares = np.sort(np.square(self.change))[::-1]
        return float(squares[:count].sum() / squares.sum()) if squares.sum() else 0.0


def influences(
    dataset: Dataset, model: str = "logistic", *, row: int | None = None, regularisation: float = 1e-3, data_norm: float = 1.0
) -> Influences:
    """Of a linear model without privacy: logistic, svm (two classes) or ridge, with (regularisation/2)‖θ‖² beside the mean loss.

    On the parameters, by their length; or, with `row`, on the prediction for that row of the table (counted from 1).
    """
    check.choice("model", model, ("logistic", "svm", "ridge"))
    check.positive("regularisation", regularisation)
    dataset.refuse_persons("influence")
    rows = np.arange(len(dataset)) + 1 if dataset.places is None else dataset.places + 1
    loss, targets = _task(dataset, model)
    objective = LinearObjective(
        loss,
        dataset.features.shape[1],
        data_norm=data_norm,
        intercept_scale=_INTERCEPT * data_norm,
        strong_convexity=regularisation * len(dataset),
    )
    features = dataset.features.astype(np.float64)
    records = objective.records(features, targets)
    influence = LinearInfluence.at_minimiser(objective, records)
    if row is None:
        what, change = "the model's parameters", influence.lengths()
    else:
        places = np.flatnonzero(rows == check.integer("row", row))
        if not len(places):
            left_out = row < (rows[-1] if len(rows) else 0)
            raise ValueError(
                f"Row {row} was left out: a value is missing, or its target."
                if left_out
                else f"Expected a row among those used, 1 to {rows[-1]}, got {row}."
            )
        moved = influence.on_predictions(features[places])[:, 0]
        # of several classes, the one that the row has
        change = moved if moved.ndim == 1 else moved[:, int(targets[places[0]])]
        names = sorted(dataset.classes)
        scored = f"score of {names[int(targets[places[0]])] if moved.ndim > 1 else names[1]}" if names else "prediction"
        what = f"the {scored} for row {row}"
    losses = [np.asarray(loss.value(objective.predict(influence.theta, batch), batch.targets)) for batch in records.batches()]
    return Influences(dataset, what, model, change, np.concatenate(losses), rows, regularisation)


def _task(dataset: Dataset, model: str) -> tuple[Loss, Array]:
    if model == "ridge":
        if dataset.target_range is None:
            raise ValueError(f"Expected numbers as target for a ridge model, got the labels {list(dataset.classes)[:5]}.")
        return Squared(), np.asarray(dataset.target_range.centred.scaled(dataset.targets), dtype=np.float64)
    if not dataset.classes:
        raise ValueError(f"Expected labels as target for a {model} model, got numbers; use ridge.")
    numbers = np.searchsorted(np.array(sorted(dataset.classes)), dataset.targets).astype(np.float64)
    if len(dataset.classes) > 2:
        if model == "svm":
            raise ValueError("Expected two classes for a support vector machine; use logistic.")
        return Softmax(len(dataset.classes)), numbers
    return (Logistic() if model == "logistic" else Huber(0.5)), 2 * numbers - 1


def _plain(target: Any) -> str:
    return f"{target:g}" if isinstance(target, (float, np.floating)) else str(target)


def influence_page(found: Influences, count: int = 20) -> str:
    """A self-contained page: the records that matter most, and a picture of all."""
    most = found.most(count)
    return rendered(
        "influence.html",
        found=found,
        title=found.dataset.title or found.dataset.name,
        most=most,
        share=found.share_of(max(1, len(found.change) // 100)),
        figure=influence_figure(found.change, found.losses, [record["row"] for record in most[:3]], found.rows, found.what),
    )
