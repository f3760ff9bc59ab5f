"""Derivatives of the losses at a released model's parameters, released as well: what statements of uncertainty are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._family import ours
from dperm._types import Array
from dperm.inference.parameter_noise import ParameterNoise
from dperm.mechanisms import DerivativesRelease
from dperm.mechanisms.derivatives import steepest
from dperm.objectives import LinearObjective, Logistic, Squared
from dperm.privacy import Assumption, Certificate
from dperm.privacy.certificates.assumptions import stranger
from dperm.release import Channel

HIDDEN = 3.0  # standard deviations of the noise: up to them an entry of the Hessian is not distinguished from 0
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
class ReleasedDerivatives:
    """Derivatives of the losses at a model's parameters θ, with normal noise; what `release_derivatives` gives.

    Attributes
    ----------
    theta : (p,)
        The model's parameters, as its objective has them.
    hessian, hessian_std : (p, p), float
        F = Σ ℓ''(t)·xxᵀ with symmetric noise of this standard deviation τ on the diagonal; off it, τ/√2.
    spread : str
        What gradients' variance is computed from: "noise" (nothing: only the noise of the model's training is known), "model"
        (the model is true) or "robust".
    certificate : Certificate
        What this release cost. The model's own is another.
    gradient, gradient_std : (p,) or None, float
        Σ ℓ'(t)·x: where the law of the noise in θ is not known, or large, estimates take a step from θ by it.
    products : (p, p) or None
        Σ ℓ'(t)²·xxᵀ, of "robust".
    residuals, number_std, squares_std : (number, Σr²) or None, float, float
        Of squared loss and "model", and the standard deviations of the noise in both.
    clipped : bool
        Whether rows or targets may have been clipped, for nobody looked: then coefficients are those of clipped records.
    """

    theta: Array
    hessian: Array
    hessian_std: float
    spread: str
    certificate: Certificate
    gradient: Array | None = None
    gradient_std: float = 0.0
    products: Array | None = None
    residuals: tuple[float, float] | None = None
    number_std: float = 0.0
    squares_std: float = 0.0
    clipped: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it; `from_dict` reads it."""
        numbers = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(self).items()}
        return numbers | {"certificate": json.loads(self.certificate.to_json())}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave. ValueError for anything else."""
        try:
            theta = _numbers("theta", data["theta"], 1)
            square, line = (len(theta),) * 2, (len(theta),)
            given = {name: data[name] for name in ("gradient", "products", "residuals")}
            shapes = {"gradient": line, "products": square, "residuals": (2,)}
            read = {
                name: None if value is None else _numbers(name, value, len(shapes[name]), shapes[name])
                for name, value in given.items()
            }
            residuals = read["residuals"]
            return cls(
                theta=theta,
                hessian=_numbers("hessian", data["hessian"], 2, square),
                hessian_std=check.positive("hessian_std", data["hessian_std"]),
                spread=check.choice("spread", data["spread"], _SPREADS),
                certificate=Certificate.from_json(json.dumps(data["certificate"])),
                gradient=read["gradient"],
                gradient_std=check.non_negative("gradient_std", data["gradient_std"]),
                products=read["products"],
                residuals=None if residuals is None else (float(residuals[0]), float(residuals[1])),
                number_std=check.non_negative("number_std", data["number_std"]),
                squares_std=check.non_negative("squares_std", data["squares_std"]),
                clipped=bool(data["clipped"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"Expected released derivatives, as ReleasedDerivatives.to_dict gives them: {error}.") from None

    def present(self, model: Any) -> NDArray[np.bool_]:
        """(p,) whether a feature is distinguished from one that no record has: its entry on the Hessian's diagonal is more than
        three standard deviations of the noise. The constant feature always is."""
        found = np.diagonal(self.hessian) > HIDDEN * self.hessian_std
        if model.objective_.intercept_scale:
            found[-1] = True
        return found

    def refuse_other(self, model: Any) -> None:
        """ValueError where these were not released at the parameters of this fitted model."""
        mine = model.parameters()
        if mine.shape != self.theta.shape or not np.allclose(mine, self.theta, rtol=1e-9, atol=1e-12):
            raise ValueError("Expected derivatives that were released at this model's parameters, got those of another model.")


def release_derivatives(
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
) -> ReleasedDerivatives:
    """Release derivatives of a fitted model's losses on the records that it was trained on, and charge for it.

    Parameters
    ----------
    model : a fitted linear model of two classes or of numbers, by any mechanism
        Its parameters are public, and where derivatives are taken.
    X, y, groups, sample_weight
        The records that it was trained on, as of its `fit`.
    epsilon, delta : float
        What this release costs, beside what the model cost.
    spread : {"model", "robust", "noise"}
        "model" for standard errors that hold if the model is true (logistic loss without margin, squared loss); "robust" for
        standard errors that hold whatever the records' law is, which needs more records; "noise" only to say what the noise of
        the model's own training does to it.
    clipped : {"refuse", "named"}
        Rows longer than data_norm are scaled down, and targets outside their range are clipped. With "refuse" such records are an
        error, before anything is charged; with "named" what is estimated is what clipped records have.
    label : str
        Name of the data set in the spend log. By default that of the model.

    Returns
    -------
    ReleasedDerivatives
        From which `coefficient_intervals` and `ContrastNoise` are computed, at no further cost.

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
    unclipped = clipped == "refuse" and spread != "noise"
    objective, records, inputs = model.records_of(X, y, groups, sample_weight=sample_weight, unclipped=unclipped)
    beside = _beside(model, objective, spread)
    theta = model.parameters()
    mechanism = DerivativesRelease.calibrate(objective.facts, theta, check.positive("epsilon", epsilon), delta, beside=beside)
    said = [_AT_PARAMETERS, *([_NOTHING_CLIPPED] if unclipped else []), *inputs]
    if not ours(type(model)):
        said.append(stranger("estimator", model, "prepares each record by itself, as in its own fit", "stated"))
    channel = Channel.open(random_state, label=label or str(model.fitted_params_.get("label", "")))
    release = mechanism.release(objective, records, channel)
    parts, deviations = mechanism.parts(release.theta), mechanism.deviations(objective)
    residuals = parts.get("residuals")
    return ReleasedDerivatives(
        theta=theta,
        hessian=parts["hessian"],
        hessian_std=deviations["hessian"],
        spread=spread,
        certificate=release.certificate.with_assumptions(*said),
        gradient=parts.get("gradient"),
        gradient_std=deviations.get("gradient", 0.0),
        products=parts.get("products"),
        residuals=None if residuals is None else (float(residuals[0]), float(residuals[1])),
        number_std=deviations.get("residuals", 0.0),
        squares_std=deviations.get("residuals", 0.0) * steepest(objective) ** 2,
        clipped=not unclipped,
    )


def _beside(model: Any, objective: LinearObjective, spread: str) -> list[str]:
    """What has to be released beside the Hessian. ValueError for a loss that `spread` has no theory for."""
    if spread == "noise":
        ParameterNoise.of(model)  # refused here where it is not known
        return []
    beside = [] if _noise_is_in_the_objective(model) else ["gradient"]
    if objective.unit.several_rows:
        raise ValueError(
            'Expected one row a person, or spread="noise": of persons with several rows the theory here does not hold.'
        )
    if spread == "robust":
        return [*beside, "products"]
    if isinstance(objective.loss, Squared):
        return [*beside, "residuals"]
    if isinstance(objective.loss, Logistic) and not objective.loss.margin:
        return beside
    raise ValueError(
        f'Expected the squared loss, or the logistic loss without margin, with spread="model", got the {objective.loss.name} '
        'loss. For log-odds train with mechanism=Objective(margin=0.0), as `dperm train --margin 0` does; spread="robust" takes '
        "any smooth loss."
    )


def _noise_is_in_the_objective(model: Any) -> bool:
    """Whether the model's noise has a known law and does no more than a change of the objective: then no gradient is needed."""
    try:
        return ParameterNoise.of(model).on_gradient > 0
    except ValueError:
        return False


def _numbers(name: str, values: Any, axes: int, shape: tuple[int, ...] | None = None) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != axes or not np.isfinite(array).all() or (shape is not None and array.shape != shape):
        raise ValueError(f"{name} is no array of finite numbers with {axes} axes, or one of another shape than theta asks for")
    return array
