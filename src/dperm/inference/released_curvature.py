"""The Hessian of a released model's losses, released as well: what all statements of uncertainty here are computed from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms import HessianAndGradients, HessianAndResiduals, HessianRelease
from dperm.mechanisms.curvature import steepest
from dperm.mechanisms.second_moments import sensitivity
from dperm.objectives import LinearObjective, Logistic, Squared
from dperm.privacy import Assumption, Certificate
from dperm.release import Channel

_KINDS: dict[str, type[HessianRelease]] = {
    "noise": HessianRelease,
    "model": HessianRelease,
    "residuals": HessianAndResiduals,
    "robust": HessianAndGradients,
}
_SPREADS = ("noise", "model", "robust")
_NOTHING_CLIPPED = Assumption(
    "No row was longer than data_norm and no target outside its range: coefficients are those of the records as they are.",
    "caller",
    "looked at before the charge; that it is so is known from the results",
    "nothing clipped",
)
_AT_PARAMETERS = Assumption(
    "The model's parameters were released before, and charged.", "caller", "stated", "parameters are public"
)


@dataclass(frozen=True, eq=False)
class ReleasedCurvature:
    """Second derivatives of the losses at a model's parameters θ, with noise; what `release_curvature` gives.

    Attributes
    ----------
    theta : (p,)
        The model's parameters, as its objective has them.
    hessian : (p, p)
        F = Σ ℓ''(t)·xxᵀ with symmetric normal noise.
    hessian_std : float
        Standard deviation τ of the noise on the diagonal; off it, τ/√2.
    spread : str
        What gradients' variance is computed from: "noise" (nothing: only what the noise of the model does can be told), "model"
        (the model is true), "robust".
    products, products_std : (p, p) or None, float
        Σ ℓ'(t)²·xxᵀ with noise, of "robust".
    residuals, residuals_std : (number, Σr²) or None, pair of float
        Of squared loss and "model".
    clipped : bool
        Whether rows or targets may have been clipped: then coefficients are those of clipped records.
    certificate : Certificate
        What this release cost. The model's own is another.
    """

    theta: Array
    hessian: Array
    hessian_std: float
    spread: str
    certificate: Certificate
    products: Array | None = None
    products_std: float = 0.0
    residuals: tuple[float, float] | None = None
    residuals_std: tuple[float, float] = (0.0, 0.0)
    clipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; `from_dict` reads it."""
        return {
            "theta": self.theta.tolist(),
            "hessian": self.hessian.tolist(),
            "hessian_std": self.hessian_std,
            "spread": self.spread,
            "products": None if self.products is None else self.products.tolist(),
            "products_std": self.products_std,
            "residuals": None if self.residuals is None else list(self.residuals),
            "residuals_std": list(self.residuals_std),
            "clipped": self.clipped,
            "certificate": json.loads(self.certificate.to_json()),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave. ValueError for anything else."""
        try:
            theta = _numbers("theta", data["theta"], 1)
            size = (len(theta),) * 2
            hessian, products = _numbers("hessian", data["hessian"], 2), data["products"]
            products = None if products is None else _numbers("products", products, 2)
            if any(matrix.shape != size for matrix in (hessian, products) if matrix is not None):
                raise ValueError(f"its matrices are not of {size[0]} × {size[1]} numbers")
            residuals = data["residuals"]
            return cls(
                theta,
                hessian,
                check.positive("hessian_std", data["hessian_std"]),
                check.choice("spread", data["spread"], _SPREADS),
                Certificate.from_json(json.dumps(data["certificate"])),
                products,
                check.non_negative("products_std", data["products_std"]),
                None if residuals is None else _pair("residuals", residuals),
                _pair("residuals_std", data["residuals_std"]),
                bool(data["clipped"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Expected a released curvature, as ReleasedCurvature.to_dict gives it: {error}.") from None

    def of_model(self, model: Any) -> None:
        """ValueError where this was not released at the parameters of this fitted model."""
        mine = model.parameters()
        if mine.shape != self.theta.shape or not np.allclose(mine, self.theta, rtol=1e-9, atol=1e-12):
            raise ValueError("Expected a curvature that was released at this model's parameters, got that of another model.")


def release_curvature(
    model: Any,
    X: Any,
    y: Any,
    groups: Any = None,
    *,
    epsilon: float,
    delta: float = 1e-5,
    spread: str = "model",
    clipped: str = "refuse",
    sample_weight: Any = None,
    label: str = "",
    random_state: Any = None,
) -> ReleasedCurvature:
    """Release the Hessian of a fitted model's losses on the records that it was trained on, and charge for it.

    Parameters
    ----------
    model : a fitted linear model of two classes or of numbers
        Its parameters are public, and where derivatives are taken.
    X, y, groups, sample_weight
        The records that it was trained on, as of its `fit`.
    epsilon, delta : float
        What this release costs, beside what the model cost.
    spread : {"model", "robust", "noise"}
        "model" for standard errors that hold if the model is true (logistic loss without margin, squared loss); "robust" for
        standard errors that hold whatever the records' law is, which needs more records; "noise" only to tell what the noise of
        the model's own training does.
    clipped : {"refuse", "named"}
        Rows longer than data_norm are scaled down, and targets outside their range are clipped. With "refuse" such records are an
        error, before anything is charged; with "named" what is estimated is what clipped records have.
    label : str
        Name of the data set in the spend log. By default that of the model.

    Returns
    -------
    ReleasedCurvature
        From which `coefficient_intervals` and `level_noise` are computed, for nothing.

    Raises
    ------
    ValueError
        Before anything is charged: for a model or records that do not fit, and for what `spread` has no theory for.
    """
    check.choice("spread", spread, _SPREADS)
    check.choice("clipped", clipped, ("refuse", "named"))
    check.fraction("delta", delta)
    if not callable(getattr(model, "records_of", None)):
        raise ValueError(f"Expected a linear model of dperm.estimators, got {type(model).__name__}.")
    objective, records = model.records_of(X, y, groups, sample_weight=sample_weight)
    kind = _kind(objective, spread)
    theta = model.parameters()
    mechanism = kind.calibrate(objective.facts, theta, check.positive("epsilon", epsilon), delta)
    said: list[Assumption] = [_AT_PARAMETERS]
    if clipped == "refuse":
        model.refuse_clipped(X, y)
        said.append(_NOTHING_CLIPPED)
    channel = Channel.open(random_state, label=label or str(model.fitted_params_.get("label", "")))
    release = mechanism.release(objective, records, channel)
    size = len(theta)
    matrices = release.theta[: size**2].reshape(size, size), release.theta[size**2 :]
    products = matrices[1].reshape(size, size) if kind is HessianAndGradients else None
    longest = steepest(objective)
    number_std = mechanism.rest_noise * 2**0.5
    return ReleasedCurvature(
        theta=theta,
        hessian=matrices[0],
        hessian_std=mechanism.hessian_noise * sensitivity(objective, objective.curvature),
        spread=spread,
        certificate=release.certificate.with_assumptions(*said),
        products=products,
        products_std=0.0 if products is None else mechanism.rest_noise * sensitivity(objective, longest**2),
        residuals=(float(matrices[1][0]), float(matrices[1][1])) if kind is HessianAndResiduals else None,
        residuals_std=(number_std, number_std * longest**2) if kind is HessianAndResiduals else (0.0, 0.0),
        clipped=clipped == "named",
    )


def _kind(objective: LinearObjective, spread: str) -> type[HessianRelease]:
    """What has to be released. ValueError for a loss that `spread` has no theory for."""
    loss = objective.loss
    if spread == "model" and isinstance(loss, Squared):
        return _KINDS["residuals"]
    if spread == "model" and not (isinstance(loss, Logistic) and not loss.margin):
        raise ValueError(
            f'Expected the squared loss, or the logistic loss without margin, with spread="model", got the {loss.name} loss. '
            'Fit with mechanism=Objective(margin=0.0), or take spread="robust".'
        )
    return _KINDS[spread]


def _numbers(name: str, values: Any, axes: int) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != axes or not np.isfinite(array).all():
        raise ValueError(f"{name} is no array of finite numbers with {axes} axes")
    return array


def _pair(name: str, values: Any) -> tuple[float, float]:
    first, second = values
    return check.finite(name, first), check.finite(name, second)
