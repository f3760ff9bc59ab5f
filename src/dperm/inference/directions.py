"""Directions of parameters that a released Hessian tells enough about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dperm._types import Array
from dperm.inference.parameter_noise import ParameterNoise
from dperm.inference.released_derivatives import HIDDEN, ReleasedDerivatives

_ABOVE_NOISE = 4.0  # the Hessian's least eigenvalue ÷ the largest that its noise has
_RARE = 2.0  # a feature's entry on the diagonal ÷ the eigenvalue that is asked for: one that may be left out


def rows_basis(
    released: ReleasedDerivatives, kept: NDArray[np.bool_], never: ArrayLike | None, most: float | None = None
) -> Array:
    """(p, r) an orthonormal basis of the directions that rows have, among those of features that are `kept` (p,): without the
    directions `never` (k, p) in which the released Hessian has at most `most`, by default what its noise hides."""
    places = np.flatnonzero(kept)
    identity = np.eye(len(kept))[:, places]
    inside = np.zeros((0, len(places))) if never is None else np.atleast_2d(np.asarray(never, dtype=np.float64))[:, places]
    inside = inside[inside.any(axis=1)]
    inside /= np.linalg.norm(inside, axis=1, keepdims=True)
    shown = np.einsum("ij,jk,ik->i", inside, released.hessian[np.ix_(places, places)], inside)
    inside = inside[shown <= (HIDDEN * released.hessian_std if most is None else most)]
    if not inside.any():
        return identity
    _, values, right = np.linalg.svd(inside)
    return identity @ right[int((values > values[0] * 1e-9).sum()) :].T


@dataclass(frozen=True, eq=False)
class Directions:
    """What intervals are computed in: features that enough records have, without the directions that no row has.

    Features are left out one by one, those with the smallest entry on the Hessian's diagonal first, until its least eigenvalue is
    four times the largest that its noise has: one level that few records have does not hide the others. What is left open of the
    parameters of a feature that is left out moves the others by F_KJ·δ_J. Since F_jj·δ_j is what the gradient has there, g_j, and
    records with the feature are spread over the others, that adds about (g_j² + its variance)·diag(p) to the variance of the
    gradient, p_k at most the share of records that have feature k.

    Attributes
    ----------
    kept : (p,) of bool
        The features that are not left out.
    basis : (p, r)
        An orthonormal basis of the directions that intervals are computed in.
    curvature : (r, r)
        The released Hessian there.
    least, asked : float
        Its least eigenvalue, and the one that is asked for.
    """

    kept: NDArray[np.bool_]
    basis: Array
    curvature: Array
    least: float
    asked: float

    @classmethod
    def of(cls, model: Any, released: ReleasedDerivatives, never: ArrayLike | None) -> Self:
        """For a fitted model and what was released at its parameters."""
        diagonal = np.diagonal(released.hessian)
        kept = released.present(model)
        constant = len(kept) - 1 if model.objective_.intercept_scale else -1
        while True:
            asked = _ABOVE_NOISE * released.hessian_std * float(np.sqrt(2 * kept.sum()))
            basis = rows_basis(released, kept, never, _RARE * asked)
            curvature = basis.T @ released.hessian @ basis
            least = float(np.linalg.eigvalsh(curvature)[0])
            rare = [place for place in np.flatnonzero(kept) if place != constant and diagonal[place] <= _RARE * asked]
            if least > asked or not rare:
                return cls(kept, basis, curvature, least, asked)
            kept[min(rare, key=lambda place: diagonal[place])] = False

    def inverse_allowing_for_noise(self, std: float) -> Array:
        """(r, r) the inverse of the Hessian with eigenvalues lowered by the largest that its noise has: the released ones may
        have been let through because they are too large by chance."""
        values, vectors = np.linalg.eigh(self.curvature)
        return (vectors / (values - std * np.sqrt(2 * len(values)))) @ vectors.T

    def spilled(self, model: Any, released: ReleasedDerivatives) -> Array:
        """(r, r) what features that are left out, though the release shows them, add to the variance of the gradient."""
        open_ones = released.present(model) & ~self.kept
        if not open_ones.any():
            return np.zeros_like(self.curvature)
        if released.gradient is not None:
            left, std = released.gradient, released.gradient_std
        else:
            noise = ParameterNoise.of(model)
            left, std = noise.strong_convexity * model.objective_.penalty_hessian() @ released.theta, noise.on_gradient
        total = float(np.square(left[open_ones]).sum() + open_ones.sum() * std**2)
        diagonal = np.where(self.kept, np.diagonal(released.hessian), 0.0)
        features = diagonal[: model.n_features_in_]
        shares = diagonal / features.max() if features.any() else np.ones_like(diagonal)
        return total * (self.basis.T * np.maximum(shares, 0.0)) @ self.basis
