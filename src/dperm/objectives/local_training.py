"""Local training: a few steps of gradient descent on the rows of one record, such as a client of federated learning, and how far
they move the parameters.

The parameters of each record are its own from the first local step on: no record's movement depends on another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.grouped import MeanPass, added_by_person
from dperm.objectives.losses import Loss
from dperm.objectives.per_example import Objective, Pass
from dperm.objectives.records import Batch


@dataclass(frozen=True)
class LocalSteps:
    """`local_steps` steps of v ← momentum·v + g; θ ← θ − learning_rate·v, where g is the mean gradient over the record's rows.

    With a `batch_size`, a step takes so many of the rows, drawn for this record alone: passes over them in random order, whose
    last batch may be smaller. None: each step takes all rows.
    """

    local_steps: int
    learning_rate: float
    batch_size: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "local_steps", check.integer("local_steps", self.local_steps))
        object.__setattr__(self, "learning_rate", check.positive("learning_rate", self.learning_rate))
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", check.integer("batch_size", self.batch_size))
        object.__setattr__(self, "momentum", check.fraction("momentum", self.momentum, zero=True))

    def descend(self, theta: Any, gradient_at: Callable[[int, Any], Any]) -> Any:
        """The parameters after the local steps from `theta`, which stays as it is. `gradient_at(step, θ)` is the gradient of a
        local step, of the same backend."""
        velocity: Any = None
        for step in range(self.local_steps):
            gradient = gradient_at(step, theta)
            velocity = gradient if velocity is None or not self.momentum else self.momentum * velocity + gradient
            theta = theta - self.learning_rate * velocity
        return theta


class LocallyTrained(Objective, Protocol):
    """An objective whose records can be trained on one by one."""

    def local_updates(self, theta: Any, batch: Any, local: LocalSteps) -> Pass:
        """The pass whose vectors are θ − θ', where θ' is what local training on a record leaves, from θ on."""
        ...

    def refuse_local(self, local: LocalSteps) -> None:
        """ValueError, before any charge, for local training that this objective does not have."""
        ...


class LinearModel(Protocol):
    """What local training needs of a linear objective."""

    @property
    def loss(self) -> Loss: ...

    @property
    def outputs(self) -> int: ...

    @property
    def dimension(self) -> int: ...

    @property
    def intercept_scale(self) -> float: ...

    def seen(self, theta: Array) -> Array: ...


def linear_updates(objective: LinearModel, theta: Array, batch: Batch, local: LocalSteps) -> MeanPass:
    """Local updates of linear models, for all records of a batch at once; a record whose update is not finite has none.

    Every operation is on the numbers of one row or one record, added up in that record's order: what a record gives does not
    depend on which others are in the batch, to the last digit. θ may be (m, p), for m models at once.
    """
    rows = (batch.rows.toarray() if sp.issparse(batch.rows) else batch.rows) * batch.units[:, None]
    if constant := objective.intercept_scale:
        rows = np.column_stack([rows, np.full(len(rows), constant)])
    wide, starts = objective.outputs > 1, batch.starts
    count = len(rows) if starts is None else len(starts) - 1
    owner = np.arange(count) if starts is None else np.repeat(np.arange(count), np.diff(starts))
    weights = np.ones(len(rows)) if batch.weights is None else batch.weights
    absent = batch.norms == 0
    losses: list[Array] = []

    def by_record(values: Array) -> Array:
        return values if starts is None else added_by_person(values, starts, count)

    def gradient_at(step: int, own: Array) -> Array:
        """(…, records, d, K) the mean gradient over each record's rows, at its own parameters."""
        t = (rows[:, :, None] * own[..., owner, :, :]).sum(axis=-2)
        t = t if wide else t[..., 0]
        if not step:
            losses.append(by_record(batch.counted(objective.loss.value(t, batch.targets))))
        slope = objective.loss.slope(t, batch.targets)
        slope = slope if wide else slope[..., None]
        slope = np.where((~np.isfinite(slope)).any(axis=-1, keepdims=True) | absent[:, None], 0.0, slope)
        vectors = (rows * weights[:, None])[:, :, None] * slope[..., None, :]  # (…, b, d, K)
        return np.moveaxis(by_record(np.moveaxis(vectors, -3, -1)), -1, -3)

    with np.errstate(over="ignore", invalid="ignore"):  # what leaves the range of doubles counts as zero
        start = objective.seen(theta).reshape(*theta.shape[:-1], 1, -1, objective.outputs)
        own = np.broadcast_to(start, (*theta.shape[:-1], count, *start.shape[-2:]))
        moved = own - local.descend(own, gradient_at)
    vectors = moved.reshape(*moved.shape[:-2], objective.dimension)
    if batch.included is not None:
        first = np.arange(count) if starts is None else np.minimum(starts[:-1], max(0, len(rows) - 1))
        vectors = np.where(batch.included[..., first, None], vectors, 0.0) if len(rows) else vectors
    return MeanPass(vectors, losses[0])
