"""Bounding: what one record can add to a sum, and the sensitivity that follows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from dperm import _validate as check
from dperm.privacy.events import Relation

__all__ = ["Bounding", "Clip", "Normalise"]


@dataclass(frozen=True)
class Bounding(ABC):
    """Maps gradient norms to factors so that no record's vector is longer than `bound`."""

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest length of one record's bounded vector."""

    @abstractmethod
    def factors(self, norms: Any) -> Any:
        """(b,) factors for (b,) norms, in the norms' backend."""

    def sensitivity(self, relation: Relation) -> float:
        """L2 sensitivity of the bounded sum: a record comes or goes, or moves from one end to the other."""
        return self.bound if relation is Relation.ADD_OR_REMOVE_ONE else 2 * self.bound


@dataclass(frozen=True)
class Clip(Bounding):
    """min(1, C/‖g‖) (Abadi et al. 2016)."""

    clipping_norm: float

    def __post_init__(self) -> None:
        check.positive("clipping_norm", self.clipping_norm)

    @property
    def bound(self) -> float:
        return self.clipping_norm

    def factors(self, norms: Any) -> Any:
        # NumPy's own function for its arrays: the method costs three times as much, and this runs every step
        longest = np.maximum(norms, self.clipping_norm) if isinstance(norms, np.ndarray) else norms.clip(min=self.clipping_norm)
        return self.clipping_norm / longest


@dataclass(frozen=True)
class Normalise(Bounding):
    """1/(‖g‖ + γ): automatic clipping (Bu, Wang, Zha, Karypis 2023); every vector is shorter than 1."""

    gamma: float = 0.01

    def __post_init__(self) -> None:
        check.positive("gamma", self.gamma)

    @property
    def bound(self) -> float:
        return 1.0

    def factors(self, norms: Any) -> Any:
        return 1.0 / (norms + self.gamma)
