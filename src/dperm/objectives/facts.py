"""Public facts: everything a mechanism may know before it sees data."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dperm import _validate as check
from dperm.objectives.records import RECORD, PrivacyUnit
from dperm.privacy.events import Relation


@dataclass(frozen=True)
class PublicFacts:
    """Stated by the caller or derived from the loss; never read from records.

    `dimension` counts the parameters of one model, intercept included; `data_norm` bounds a row's L2 norm with the
    intercept's constant feature included; `lipschitz` and `smoothness` bound one record's gradient and curvature;
    `loss` names a loss with a sharp bound; `target_bound` bounds a regression target; `public_size` is None where the
    number of records is private and unstated. `size_limit` is the number of records up to which the rounding of a minimiser is
    bounded, `loss_at_zero` bounds how far a record's loss at θ = 0 lies above its least. `foreign_loss` names a loss that dperm
    did not write. `unit` is what neighbours differ in. `roughness` bounds the penalty on
    roughness: its largest eigenvalue, and what rounding makes of it (`Roughness.rounding`). `intercept_scale` is the value of the
    constant feature, 0 where there is no intercept. ValueError for finite constants of a
    loss with which doubles cannot work.
    """

    dimension: int
    data_norm: float
    lipschitz: float
    smoothness: float
    relation: Relation
    public_size: int | None = None
    loss: str | None = None
    rank_one: bool = True
    radius: float | None = None
    target_bound: float | None = None
    size_limit: int | None = None
    loss_at_zero: float | None = None
    foreign_loss: str | None = None
    unit: PrivacyUnit = RECORD
    roughness: float = 0.0
    intercept_scale: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lipschitz", "smoothness"):
            if getattr(self, name) < math.inf:
                check.scale(f"the loss's {name}", getattr(self, name))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; None where a constant is infinite."""
        values = {name: None if value in (math.inf, -math.inf) else value for name, value in asdict(self).items()}
        del values["unit"]
        return {**values, "relation": self.relation.value, "max_rows_per_unit": self.unit.max_rows}
