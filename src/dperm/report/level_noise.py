"""What is known of how far the heights of a model's levels are off by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from dperm._types import Array
from dperm.mechanisms.without_records import WithoutRecords

if TYPE_CHECKING:
    from dperm.report.refits import Refits


class LevelNoise(ABC):
    """Standard deviations of sums of the coefficients that a model gives one class, or of a regression.

    The sums are contrasts v within a column, as `dperm.data.schema.level_contrasts` lists them: whoever knows the law of the
    coefficients w, be it from how they were released or from released curvature, states the standard deviation of vᵀw here.
    """

    #: whether it is made from records without noise of its own, so that what shows it is for the data holder alone
    private: bool = False

    @property
    @abstractmethod
    def meaning(self) -> str:
        """What the deviations cover, as a sentence for the page."""

    @abstractmethod
    def deviations(self, vectors: Array, features: slice) -> Array:
        """(k,) standard deviations of vᵀw[features] for the rows v of `vectors` (k, w), in the units of the model's `coef_`."""

    def reach(self, chance: float) -> float:
        """How many standard deviations noise passes, on either side, with probability `chance`: here those of a normal law."""
        return -float(ndtri(chance / 2))


@dataclass(frozen=True)
class EqualNoise(LevelNoise):
    """Coefficients with independent noise of one standard deviation, as output perturbation by Gaussian noise releases them."""

    deviation: float

    @property
    def meaning(self) -> str:
        return "They cover the noise of privacy, not the choice of records (no sampling error)."

    def deviations(self, vectors: Array, features: slice) -> Array:
        return self.deviation * np.linalg.norm(vectors, axis=1)


@dataclass(frozen=True)
class SphericalNoise(EqualNoise):
    """The noise of pure output perturbation, of density ∝ exp(−‖b‖/s): vᵀb has the law of ‖v‖ times one coordinate of b."""

    law: WithoutRecords

    def reach(self, chance: float) -> float:
        return self.law.reach(chance) / self.law.deviation


@dataclass(frozen=True)
class RefittedNoise(LevelNoise):
    """How models like this one differ that are trained on draws of the same records: NOT PRIVATE.

    `root` (d, m) is a root N of the covariance NNᵀ of the coefficients, of `models` models.
    """

    root: Array
    models: int
    private = True

    @property
    def meaning(self) -> str:
        return (
            f"They are made of {self.models} models trained like this one, each on as many of the given records, drawn "
            "with replacement. They cover the noise of privacy and the choice of records, but not what the penalty shifts. "
            "The records should be those that it was trained on, which nothing checks."
        )

    def deviations(self, vectors: Array, features: slice) -> Array:
        return np.linalg.norm(vectors @ self.root[features], axis=1)


def known_noise(model: Any, refits: Refits | None, row: int) -> LevelNoise | None:
    """The noise of one row of `coef_`, from refits where there are some, or from the trace of output perturbation; None where
    neither is known.

    The trace is about coefficients as they are inside, and those of regressions are in the target's units.
    """
    if refits is not None:
        return RefittedNoise(refits.root(row), len(refits.models))
    trace, law = model.trace_, WithoutRecords.of(model.trace_)
    if law is not None and law.dimension is not None:  # only what is added to all coefficients has such a law
        return SphericalNoise(unit_of_coefficients(model) * law.deviation, law)
    if not {"noise_std", "sensitivity"} <= set(trace):
        return None
    return EqualNoise(unit_of_coefficients(model) * trace["noise_std"])


def unit_of_coefficients(model: Any) -> float:
    """How large a coefficient in `coef_` is that is 1 inside: regressions keep theirs in the target's units."""
    return 1.0 if hasattr(model, "classes_") else model._unit_of_targets()
