"""Models as JSON: parameters, public settings and the certificate. No pickle, nothing that runs."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dperm.estimators.base import PrivateLinearModel
from dperm.estimators.classifiers import DPLinearSVC, DPLogisticRegression
from dperm.estimators.ridge import DPRidge
from dperm.objectives import LinearObjective, Logistic, Softmax
from dperm.privacy import Certificate

__all__ = ["model_from_json", "model_to_json"]

_FORMAT = 1
_KINDS: dict[str, type[PrivateLinearModel]] = {cls.__name__: cls for cls in (DPLogisticRegression, DPLinearSVC, DPRidge)}


def model_to_json(model: PrivateLinearModel, extra: dict[str, Any] | None = None) -> str:
    """A fitted model as text; `extra` must be JSON-ready (a schema, for example). `random_state` is left out."""
    check_is_fitted(model)
    settings = {name: _plain(value) for name, value in model.get_params().items() if name != "random_state"}
    return json.dumps(
        {
            "format": _FORMAT,
            "kind": type(model).__name__,
            "settings": settings,
            "coef": np.asarray(model.coef_).tolist(),
            "intercept": np.asarray(model.intercept_).tolist(),
            "classes": _plain(getattr(model, "classes_", None)),
            "joint": model.objective_.outputs > 1,
            "features": model.n_features_in_,
            "certificate": json.loads(model.certificate_.to_json()),
            "extra": extra or {},
        },
        indent=1,
        allow_nan=False,
    )


def model_from_json(text: str) -> tuple[PrivateLinearModel, dict[str, Any]]:
    """The fitted model and the extra it was saved with. Raises ValueError for anything else."""
    try:
        data = json.loads(text)
        if data["format"] != _FORMAT:
            raise ValueError(f"Expected model format {_FORMAT}, got {data['format']!r}.")
        model = _KINDS[data["kind"]](**data["settings"])
        model.coef_ = np.asarray(data["coef"], dtype=np.float64)
        regression = isinstance(model, DPRidge)
        model.intercept_ = data["intercept"] if regression else np.asarray(data["intercept"], dtype=np.float64)
        if not regression:
            model.classes_ = np.asarray(data["classes"])  # type: ignore[attr-defined]
        model.n_features_in_ = data["features"]
        rows = 0 if regression else len(model.classes_)  # type: ignore[attr-defined]
        wide = (data["features"],) if regression else (1 if rows == 2 else rows, data["features"])
        numbers = np.append(np.ravel(model.coef_), model.intercept_)
        if model.coef_.shape != wide or np.shape(model.intercept_) != wide[:-1] or not np.isfinite(numbers).all():
            raise ValueError(f"expected finite coefficients of shape {wide} and as many intercepts")
        if not isinstance(data["extra"], dict):
            raise ValueError("expected extra to be a table")
        loss = Softmax(len(data["classes"])) if data["joint"] else Logistic()
        model.objective_ = LinearObjective(loss, features=data["features"], data_norm=model.data_norm)
        model.certificate_ = Certificate.from_json(json.dumps(data["certificate"]))
        return model, data["extra"]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"Not a dperm model: {error}") from None


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else np.asarray(value).tolist()
