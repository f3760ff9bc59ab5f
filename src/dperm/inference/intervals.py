"""Standard errors and confidence intervals of linear models' coefficients, with the noise of privacy in them.

A model θ̂ solves ∇Σℓ + Aθ̂ + b = 0, but for added noise z: A = Λ(I + R) is its regulariser, and b the noise in its objective. About
the parameters θ* at which the expected gradient is zero, with F = Σ∇²ℓ and G = Σ∇ℓ(θ*), to first order

    (F + A)(θ̂ − z) = Fθ* − G − b,    so that    F⁻¹(F + A)θ̂ = θ* − F⁻¹(G + b) + (I + F⁻¹A)z.

So θ̃ = θ̂ + F⁻¹Aθ̂ estimates θ* without the regulariser's bias. Its variance is F⁻¹(V + σ²I)F⁻¹ + s²(I + F⁻¹A)(I + F⁻¹A)ᵀ, with V
the variance of G, and σ and s the standard deviations of b and of z. Where a logistic model is true, V = F; where a model of
numbers is true, with residuals of variance v, V = v·F. Σℓ'²xxᵀ estimates V whatever is true.

Other mechanisms' noise has no such law, or is large. There the gradient at θ̂ is released as well, with noise e of standard
deviation τ_g, and θ̃ = θ̂ − F⁻¹(∇Σℓ(θ̂) + e), a step of Newton's method, estimates θ* with the variance F⁻¹(V + τ_g²I)F⁻¹, whatever
brought θ̂ near to it.

F is known up to symmetric noise E, with entries of variance τ² on the diagonal and τ²/2 off it. It moves θ̃ by F⁻¹Eu, u = θ̃ − θ̂,
which adds F⁻¹(τ²/2)(‖u‖²I + uuᵀ)F⁻¹ to the variance. Variances are computed with F's eigenvalues lowered by the largest of E.
Features that few records have are left out until F's least eigenvalue is far above the noise, and what they leave open is
added (`Directions`). Where none of this holds, or for losses other than the squared one u is long, intervals are refused.

Where the features of a column add up to the same for each row, rows have no component in some direction. Only what is estimable
without that direction has an interval.
docs/standard-errors.md has the coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm

from dperm import _validate as check
from dperm._types import Array
from dperm.inference.directions import Directions
from dperm.inference.parameter_noise import ParameterNoise
from dperm.inference.released_derivatives import ReleasedDerivatives
from dperm.objectives import Squared

_NEAR = 0.25  # how far predictions may move from the model's, for losses that are not squared
_FEWEST = 10.0  # records, in standard deviations of the noise in their number
_NEARLY = 1e-6  # of a contrast's length: what may lie in directions without rows


@dataclass(frozen=True)
class Interval:
    """An estimate, its standard error and a confidence interval: both have the noise of privacy in them, and the chance of which
    records were drawn."""

    name: str
    estimate: float
    standard_error: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.name}: {self.estimate:.4g} ± {self.standard_error:.2g} [{self.low:.4g}, {self.high:.4g}]"


def coefficient_intervals(
    model: Any, released: ReleasedDerivatives, *, level: float = 0.95, names: Sequence[str] | None = None
) -> list[Interval]:
    """An interval for each coefficient, and for the intercept where there is one.

    Parameters
    ----------
    model : the fitted model
    released : ReleasedDerivatives
        What was released at its parameters, with `spread` "model" or "robust".
    level : float
        Share of such intervals that hold what they estimate.
    names : d texts
        Names of the features; by default those of the columns that the model was fitted on.

    Returns
    -------
    list of Interval
        In the model's own units: of `coef_` and `intercept_`, without the bias of the regulariser, so that estimates are not
        exactly these. The parameters estimated are those at which the expected loss is least among records like these.

    Raises
    ------
    ValueError
        For derivatives of another model, those released for noise alone, and those whose noise is too large beside them.
    """
    features, scale = model.n_features_in_, model.objective_.intercept_scale
    given = names if names is not None else getattr(model, "feature_names_in_", [f"x{place}" for place in range(features)])
    labels = [*map(str, given), *(["intercept"] if scale else [])]
    if len(labels) != features + bool(scale):
        raise ValueError(f"Expected {features} names, one a feature, got {len(labels) - bool(scale)}.")
    units = np.eye(len(released.theta))
    if scale:
        units[-1] *= scale
    return contrast_intervals(model, released, units, labels, level=level)


def contrast_intervals(
    model: Any,
    released: ReleasedDerivatives,
    contrasts: ArrayLike,
    names: Sequence[str],
    *,
    level: float = 0.95,
    never: ArrayLike | None = None,
) -> list[Interval]:
    """An interval for each sum cᵀθ of parameters, of `contrasts` (m, p), in the units of the target.

    The last parameter is that of the intercept, where there is one: it is multiplied by the objective's `intercept_scale`.
    `never` (k, p) are directions in which no row, or hardly any, has a component, from public facts: `constant_sums` has those of
    a schema. They are left out unless the release shows that rows have them. ValueError as for `coefficient_intervals`, and for
    contrasts that are not `estimable`.
    """
    check.fraction("level", level)
    table = np.atleast_2d(np.asarray(contrasts, dtype=np.float64))
    if table.shape != (len(names), len(released.theta)):
        raise ValueError(f"Expected contrasts ({len(names)}, {len(released.theta)}), one a name, got {table.shape}.")
    possible = estimable(model, released, table, never=never)
    if not possible.all():
        raise ValueError(
            f"Expected contrasts that the records determine, got {', '.join(np.asarray(names)[~possible][:5])}: the noise of the "
            "release hides such features, because few records have them or its epsilon is small; or they always add up to the "
            "same, so that only differences can be estimated."
        )
    estimate, covariance, basis = _estimated(model, released, never)
    inside = table @ basis
    unit, middle = target_unit(model)
    values = unit * (inside @ estimate)
    if middle and model.objective_.intercept_scale:
        values = values + middle * table[:, -1] / model.objective_.intercept_scale
    errors = unit * np.sqrt(np.einsum("ij,jk,ik->i", inside, covariance, inside))
    far = float(norm.isf((1 - level) / 2)) * errors
    return [
        Interval(str(name), float(value), float(error), float(value - width), float(value + width))
        for name, value, error, width in zip(names, values, errors, far, strict=True)
    ]


def target_unit(model: Any) -> tuple[float, float]:
    """How large a target is that is 1 inside, and which one is 0 there: 1 and 0 of labels."""
    return model.target_unit() if hasattr(model, "target_unit") else (1.0, 0.0)


def estimable(
    model: Any, released: ReleasedDerivatives, contrasts: ArrayLike, *, never: ArrayLike | None = None
) -> NDArray[np.bool_]:
    """(m,) which of the contrasts (m, p) the records determine, so that they have intervals: those of features that the noise of
    the release does not hide, outside of directions without rows."""
    table = np.atleast_2d(np.asarray(contrasts, dtype=np.float64))
    basis = Directions.of(model, released, never).basis
    left_out = np.linalg.norm(table - table @ basis @ basis.T, axis=1)
    return left_out <= _NEARLY * np.linalg.norm(table, axis=1)


def _estimated(model: Any, released: ReleasedDerivatives, never: ArrayLike | None) -> tuple[Array, Array, Array]:
    """θ̃ (r,) and its covariance (r, r) in a basis (p, r) of the directions that rows may have."""
    released.refuse_other(model)
    if released.spread == "noise":
        raise ValueError('Expected derivatives released with spread="model" or "robust": of "noise" only the noise is known.')
    found = Directions.of(model, released, never)
    if not found.least > found.asked:
        raise ValueError(
            "The noise of the released Hessian is too large beside it for standard errors: its least eigenvalue is "
            f"{found.least:.3g}, and {found.asked:.3g} is asked for. More records, a larger epsilon for it, or fewer features "
            "are needed."
        )
    basis, curvature, std = found.basis, found.curvature, released.hessian_std
    size, inverse = len(curvature), np.linalg.inv(curvature)
    inner = _gradient_variance(released, basis, curvature)
    if released.gradient is not None:
        moved = -inverse @ basis.T @ released.gradient
        inner = inner + released.gradient_std**2 * np.eye(size)
        added = np.zeros((size, size))
    else:
        noise = ParameterNoise.of(model)
        penalty = noise.strong_convexity * basis.T @ model.objective_.penalty_hessian()
        moved = inverse @ penalty @ released.theta
        inner = inner + noise.on_gradient**2 * np.eye(size)
        outer = basis.T + inverse @ penalty
        added = noise.on_parameters**2 * outer @ outer.T
    length = float(np.linalg.norm(moved))
    if not isinstance(model.objective_.loss.plain, Squared) and length * model.objective_.row_norm > _NEAR:
        raise ValueError(
            f"The model's parameters are too far from where the losses are least for standard errors: predictions move by up to "
            f"{length * model.objective_.row_norm:.2g}, and the theory is of small moves, up to {_NEAR:g}. Train it by "
            "mechanism=Objective(margin=0.0), or with a larger epsilon or more records."
        )
    inner = inner + std**2 / 2 * (length**2 * np.eye(size) + np.outer(moved, moved)) + found.spilled(model, released)
    wide = found.inverse_allowing_for_noise(std)
    return basis.T @ released.theta + moved, wide @ inner @ wide + added, basis


def _gradient_variance(released: ReleasedDerivatives, basis: Array, curvature: Array) -> Array:
    """V (r, r): the variance of the sum of gradients."""
    if released.products is not None:
        values, vectors = np.linalg.eigh(basis.T @ released.products @ basis)
        return (vectors * np.maximum(values, 0.0)) @ vectors.T
    if released.residuals is None:
        return curvature
    number, squares = released.residuals
    if not number > _FEWEST * released.number_std:
        raise ValueError("The noise of the number of records is too large beside it for standard errors.")
    # One standard deviation more, for the noise of the sum itself.
    squares = max(squares, 0.0) + released.squares_std
    return squares / number * curvature
