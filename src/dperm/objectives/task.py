"""What is to be learnt, as publicly known: from which every method makes its objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.objectives.linear import LinearObjective
from dperm.objectives.losses import Loss
from dperm.objectives.records import RECORD, PrivacyUnit
from dperm.objectives.roughness import Neighbours, admit_neighbours
from dperm.privacy.events import Relation


@dataclass(frozen=True, kw_only=True)
class Task:
    """A linear model of `features` numbers. `loss` is that of one model; `classes` = 0 stands for regression. `ordered`: whether
    the classes have an order, by which reports judge; objectives are made alike.

    Other fields as in `LinearObjective`. `public_size` is None where the number of records is private. `neighbours`: which
    features are next to each other on a curve, for methods with a penalty on roughness; others have no use for it.
    """

    loss: Loss
    features: int
    classes: int = 0
    data_norm: float = 1.0
    intercept_scale: float = 0.0
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    public_size: int | None = None
    unit: PrivacyUnit = RECORD
    neighbours: Neighbours = ()
    ordered: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "neighbours", admit_neighbours(self.neighbours, self.features))

    def objective(self, *, joint: bool = False, strong_convexity: float = 0.0) -> LinearObjective:
        """What one model minimises; with `joint` one model of more than two classes, where the loss has a form for that."""
        loss = (self.loss.joint(self.classes) if joint and self.classes > 2 else None) or self.loss
        if loss.outputs not in (1, self.classes):
            raise ValueError(f"Expected a loss of {self.classes} outputs for as many classes, got {loss.outputs}.")
        return LinearObjective(
            loss,
            features=self.features,
            data_norm=self.data_norm,
            intercept_scale=self.intercept_scale,
            strong_convexity=strong_convexity,
            radius=loss.ball,
            relation=self.relation,
            public_size=self.public_size,
            unit=self.unit,
        )

    def models(self, objective: LinearObjective) -> int:
        """How many models this objective needs: one, or one for each of more than two classes."""
        return self.classes if self.classes > 2 and objective.outputs == 1 else 1

    def targets(self, numbers: NDArray[np.integer]) -> NDArray[Any]:
        """Targets of classification from class numbers (n,): ±1 for two classes, of a byte each, and the numbers for more."""
        return np.where(numbers == 1, np.int8(1), np.int8(-1)) if self.classes == 2 else numbers.astype(np.float64)
