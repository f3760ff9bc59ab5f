"""What is known of how far the heights of a model's levels are off by chance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from dperm._types import Array
from dperm.mechanisms.without_records import WithoutRecords

if TYPE_CHECKING:
    from dperm.report.refits import Refits


class LevelNoise(ABC):
    """Standard deviations of sums of the coefficients that a model gives one class, or of a regression.

    The sums are contrasts v within a column, as `dperm.data.schema.level_contrasts` lists them: whoever knows the law of the
    coefficients w, be it from how they were released or from released curvature, states the standard deviation of vᵀw here.
    """

    #: whether levels count by how many records have them in the average that heights are compared with
    weighted: bool = False
    #: what heights are compared with, in words
    compared: str = "compared with the average over the places shown"
    #: whether it is made from records without noise, so that what shows it is for the data holder alone
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

    def reference(self, features: slice) -> Array | None:
        """The weights (w,) of a column's features in the average that heights are compared with; None: as `level_contrasts` has
        it."""
        return None

    def present(self, features: slice) -> NDArray[np.bool_] | None:
        """(w,) Which features records are known to have; None where nothing is known of that."""
        return None

    def mass(self, features: slice) -> Array | None:
        """(w,) How much records say at each feature, as it was released with noise; None where nothing was."""
        return None


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


class Contrasts(Protocol):
    """The noise of contrasts between a model's p parameters from a released Hessian, as `dperm.inference` computes it."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """(p,) Which features records are known to have."""
        ...

    @property
    def mass(self) -> Array:
        """(p,) The diagonal of the released Hessian, 0 of features that are not present."""
        ...

    def deviations(self, contrasts: Array) -> Array:
        """(m,) standard deviations of contrasts (m, p), in units of parameters."""
        ...

    def reference(self, features: slice) -> Array:
        """(w,) weights of a column's features in an average over those that records have."""
        ...


@dataclass(frozen=True)
class CurvatureNoise(LevelNoise):
    """The noise of privacy by a released Hessian, for a model of two classes or of numbers. Coefficients are `unit` times those
    that the Hessian was released at."""

    contrasts: Contrasts
    unit: float = 1.0
    weighted = True
    compared = "compared with the average over the levels that records have, by about how many have them"

    @classmethod
    def of(cls, model: Any, contrasts: Contrasts) -> CurvatureNoise:
        """That of a fitted model, of which the contrasts were computed."""
        return cls(contrasts, unit_of_coefficients(model))

    @property
    def meaning(self) -> str:
        return (
            "They cover the noise of privacy, not the choice of records (no sampling error). They follow from how many records "
            "have each value, which was released with noise and paid for."
        )

    def deviations(self, vectors: Array, features: slice) -> Array:
        table = np.zeros((len(vectors), len(self.contrasts.present)))
        table[:, features] = vectors
        return self.unit * self.contrasts.deviations(table)

    def reference(self, features: slice) -> Array:
        return self.contrasts.reference(features)

    def present(self, features: slice) -> NDArray[np.bool_]:
        return self.contrasts.present[features]

    def mass(self, features: slice) -> Array:
        return self.contrasts.mass[features]


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

    def reach(self, chance: float) -> float:
        """That of Student's law: so few models tell a standard deviation no better."""
        return -float(stdtrit(self.models - 1, chance / 2))


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
