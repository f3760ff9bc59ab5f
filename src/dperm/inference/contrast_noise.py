"""What of a contrast between parameters is the noise of privacy alone.

A model minimises Σℓ + ½θᵀAθ + bᵀθ. Without b it would be θ̂ + H⁻¹b, to first order: H = F + A, F the Hessian of the losses. So the
noise in a contrast vᵀθ̂ has the standard deviation σ‖H⁻¹v‖, and √(σ²‖H⁻¹v‖² + s²‖v‖²) where noise of standard deviation s is added
to parameters.

A feature that no record has is zero in F. There H is Λ, and the standard deviation σ‖v‖/Λ: the largest possible one, and public.
Elsewhere F has to be released, and its noise of standard deviation τ allowed for:

- A feature is present if its entry on the diagonal of the released F is more than 3τ. The others are taken out of F, and their
  parameters are given the largest possible standard deviation.
- The eigenvalues of what is left of F are lowered by τ√(2r), the size of the noise's largest eigenvalue in the r directions that
  rows may have.

A contrast with the mean over all levels of a column has the noise of those that nobody has. One with the mean over the present
levels, weighted by their entries on the diagonal, has not: `reference` has these weights.

This is a band for the noise of privacy, not for the chance of which records were drawn. docs/standard-errors.md has the coverage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dperm._types import Array
from dperm.inference.directions import rows_basis
from dperm.inference.parameter_noise import ParameterNoise
from dperm.inference.released_derivatives import ReleasedDerivatives


@dataclass(frozen=True, eq=False)
class ContrastNoise:
    """The noise of privacy in contrasts vᵀθ̂ of a model's p parameters, of which the intercept's is the last.

    Attributes
    ----------
    law : ParameterNoise
        How the model was released.
    present : (p,) of bool
        Whether so many records have a feature that it is distinguished from one that no record has.
    mass : (p,)
        The diagonal of the released Hessian where a feature is present, and 0 elsewhere.
    inverse : (p, p)
        A bound on H⁻¹ for the present features, as far as the noise of F goes; 0 for others.
    """

    law: ParameterNoise
    present: NDArray[np.bool_]
    mass: Array
    inverse: Array

    @classmethod
    def of(cls, model: Any, released: ReleasedDerivatives, *, never: ArrayLike | None = None) -> Self:
        """Compute it from what was released at the parameters of a fitted `model`.

        `never` (k, p) are directions in which no row has a component, as for `contrast_intervals`. ValueError for another model's
        derivatives, and for mechanisms whose noise has no known law.
        """
        released.refuse_other(model)
        law = ParameterNoise.of(model)
        diagonal = np.diagonal(released.hessian)
        present = released.present(model)
        kept = np.flatnonzero(present)
        basis = rows_basis(released, present, never)[kept]
        values, vectors = np.linalg.eigh(basis.T @ released.hessian[np.ix_(kept, kept)] @ basis)
        lowered = np.maximum(values - released.hessian_std * np.sqrt(2 * len(values)), 0.0)
        vectors = basis @ vectors
        penalty = law.strong_convexity * model.objective_.penalty_hessian()[np.ix_(kept, kept)]
        inverse = np.zeros(released.hessian.shape)
        inverse[np.ix_(kept, kept)] = np.linalg.inv((vectors * lowered) @ vectors.T + penalty)
        return cls(law, present, np.where(present, diagonal, 0.0), inverse)

    def deviations(self, contrasts: ArrayLike) -> Array:
        """(m,) standard deviations of the noise in contrasts (m, p), in units of θ: of scores, or of the target inside."""
        table = np.atleast_2d(np.asarray(contrasts, dtype=np.float64))
        lengths = np.linalg.norm(table, axis=1)
        largest = self.law.on_gradient / self.law.strong_convexity
        known = self.law.on_gradient * np.linalg.norm(table @ self.inverse, axis=1)
        unknown = largest * np.linalg.norm(np.where(self.present, 0.0, table), axis=1)
        return np.hypot(np.minimum(np.hypot(known, unknown), largest * lengths), self.law.on_parameters * lengths)

    def reference(self, features: slice) -> Array:
        """(k,) weights of a column's levels in the mean that they are compared with, which add up to 1: by the released diagonal
        of the Hessian, 0 of levels that are not present; all alike where none is."""
        mass = self.mass[features]
        return mass / mass.sum() if mass.any() else np.full(len(mass), 1 / len(mass))
