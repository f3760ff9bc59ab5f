"""How much records say of each parameter, where a mechanism released that with noise on its way to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._json import foreign
from dperm._types import Array

#: The entry of a trace that holds it.
MASS_ENTRY = "mass"
_PRESENT = 3.0  # standard deviations above 0


@dataclass(frozen=True)
class ReleasedMass:
    """The diagonal of Σ w·xxᵀ over records, with normal noise: Σ w·x_j² of each parameter j, the intercept's last.

    It is a part of a release that was charged, so that whoever reads a model may have it. A category's entry is in proportion to
    how many records have it; the knots of a curve show where records are.

    Attributes
    ----------
    diagonal : (p,)
        The entries, in the square of the rows' units.
    deviation : float
        The standard deviation of their noise.
    """

    diagonal: Array
    deviation: float

    @property
    def present(self) -> NDArray[np.bool_]:
        """(p,) Which parameters some record has a say in, beyond 3 standard deviations: noise alone passes that in 1 of 740."""
        return self.diagonal > _PRESENT * self.deviation

    def to_dict(self) -> dict[str, Any]:
        """The entry of a trace, as JSON has it."""
        return {"diagonal": self.diagonal.tolist(), "deviation": self.deviation}

    @classmethod
    def of(cls, trace: Mapping[str, Any], parameters: int) -> Self | None:
        """What a fitted model's trace states of so many parameters; None where it states nothing. ValueError otherwise."""
        stated = trace.get(MASS_ENTRY)
        if stated is None:
            return None
        with foreign(f"Expected {MASS_ENTRY} of a trace as numbers of {parameters} parameters"):
            diagonal = np.asarray(stated["diagonal"], dtype=np.float64)
            if diagonal.shape != (parameters,) or not np.isfinite(diagonal).all():
                raise ValueError(f"got {diagonal.shape}")
            return cls(diagonal, check.positive("deviation", stated["deviation"]))
