"""How noisy the weights of a private model are."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as la
from numpy.typing import NDArray

from dperm.data import Dataset

__all__ = ["weight_noise"]

Array = NDArray[np.float64]


def weight_noise(model: Any, records: Dataset | None = None) -> Array | None:
    """A root N (d, m) of the covariance NNᵀ of the noise of a fitted estimator's d weights; None where it is not known.

    After output perturbation by Gaussian noise it is public. After objective perturbation θ ≈ θ̂ − W⁻¹b, W the Hessian at θ̂, b
    the noise: with the `records` that the model was trained on N = σW⁻¹, W at θ, to first order. That looks at the records: it is
    for the data holder alone. ValueError for records of a model whose noise is not known by them.
    """
    trace, features = model.trace_, model.n_features_in_
    if records is None:
        return trace["noise_std"] * np.eye(features) if {"noise_std", "sensitivity"} <= set(trace) else None
    objective = model.objective_
    known = list(getattr(model, "classes_", ()))
    if not {"noise_std", "output_noise_std", "strong_convexity"} <= set(trace) or len(np.atleast_2d(model.coef_)) > 1:
        raise ValueError(
            "Expected one model by objective perturbation, whose noise its records tell. That of output perturbation is public, "
            "and drawn without them; that of others is not known."
        )
    if model.fitted_params_.get("max_sample_weight") is not None:
        raise ValueError("Expected a model without max_sample_weight: how much each record counted does not stand in a table.")
    if records.features.shape[1] != features:
        raise ValueError(
            f"Expected the records that the model was trained on, of {features} features, got {records.features.shape}."
        )
    if known and not set(np.unique(records.targets)) <= set(known):
        raise ValueError(
            f"Expected records with the model's labels {known[:8]}, got {sorted(set(records.targets) - set(known))[:8]}."
        )
    targets = np.where(np.asarray(records.targets) == known[1], 1.0, -1.0) if known else records.targets
    if objective.loss.weighs:
        targets = np.column_stack([targets, model.label_weights(records.targets)])
    rows = objective.records(records.features, targets, groups=records.groups if objective.person_rows else None)
    constant = np.ravel(model.intercept_) / objective.intercept_scale if objective.intercept_scale else []
    theta = np.concatenate([np.ravel(model.coef_), constant])
    modulus = float(trace["strong_convexity"])
    hessian = objective.with_strong_convexity(modulus).hessian(theta, rows) + modulus * objective.penalty_hessian()
    return float(trace["noise_std"]) * la.inv(hessian)[:features]
