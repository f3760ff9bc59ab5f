"""Models as JSON: parameters, public settings and the certificate. No pickle, nothing that runs. Weights of networks are
safetensors within it.

A digest binds what a file holds; a signature, where there is one, says who made the digest.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_regressor
from sklearn.utils.validation import check_is_fitted

from dperm._extras import needed
from dperm._family import members, ours
from dperm._json import foreign, unique_names
from dperm.estimators.base import PrivateLinearModel, plain
from dperm.estimators.networks import DPMLPClassifier, PrivateNetworkClassifier
from dperm.mechanisms import Method, method_from_dict
from dperm.mechanisms.method import FOREIGN
from dperm.objectives import LinearObjective, Roughness
from dperm.privacy import Certificate, Risk
from dperm.privacy.certificates.signing import SigningKey, check_signature, digest_of, sign

Model = PrivateLinearModel | PrivateNetworkClassifier

_FORMAT = 4
_LARGEST_COST = 1000.0  # a minute of accounting: whoever reads a model waits for it
_OF_OBJECTIVE = ("outputs", "data_norm", "intercept_scale", "strong_convexity", "radius")


def model_to_json(model: Model, extra: dict[str, Any] | None = None, *, sign_key: str | Path | SigningKey | None = None) -> str:
    """A fitted model as text, with the settings that it was fitted with; `extra` must be JSON-ready (a schema, for example).

    `sign_key`: a private key (`dperm keygen`), or its file, that signs the whole. `random_state` is left out.
    """
    if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a model of dperm.estimators, got {type(model).__name__}.")
    check_is_fitted(model)
    if not ours(type(model)):
        raise TypeError(
            f"Expected a model of a class of dperm's own, got {type(model).__name__}, which no file is read as: keep its "
            "coef_, intercept_ and certificate_."
        )
    parameters = weights_of(model) if isinstance(model, PrivateNetworkClassifier) else _coefficients(model)
    stated: dict[str, Any] = {
        "format": _FORMAT,
        "kind": type(model).__name__,
        "settings": {name: plain(_setting_to_json(value)) for name, value in model.fitted_params_.items()},
        **parameters,
        "classes": plain(getattr(model, "classes_", None)),
        "trace": plain(model.trace_),
        "features": model.n_features_in_,
        "certificate": json.loads(model.certificate_.to_json()),
        "extra": json.loads(json.dumps(extra or {}, allow_nan=False)),
    }
    stated["digest"] = digest_of(stated)
    if sign_key is not None:
        stated["signature"] = sign(stated["digest"], sign_key)
    return json.dumps(stated, indent=1, allow_nan=False)


def model_from_json(text: str, *, verify_key: str | Path | None = None) -> tuple[Model, dict[str, Any]]:
    """The fitted model and the extra it was saved with.

    ValueError for anything else: also for a model of which something was changed since, for one whose certificate states less
    than its event costs, and, with `verify_key`, for one that the owner of this public key did not sign.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"Expected a model as text, got {type(text).__name__}.")
    try:
        data = json.loads(text, object_pairs_hook=unique_names)
        if not isinstance(data, dict):
            raise ValueError("it holds no table")
        if missing := [name for name in ("format", "kind", "digest") if name not in data]:
            raise ValueError(f"it says nothing of its {', '.join(missing)}")
        if data["format"] != _FORMAT:
            raise ValueError(f"expected model format {_FORMAT}, got {data['format']!r}")
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("Expected a model, as `dperm train` writes it, got another file, which is no JSON.") from None
    except ValueError as error:
        raise ValueError(f"Expected a model, as `dperm train` writes it. Not a dperm model: {error}.") from None
    signature = data.pop("signature", "")
    if data.pop("digest") != digest_of(data):
        raise ValueError("The model cannot be trusted: it was changed after it was saved, its digest is another.")
    if verify_key is not None:
        check_signature(digest_of(data), str(signature), verify_key)
    with foreign("Not a dperm model"):
        model = _read(data)
        model.certificate_.verify()
        return model, data["extra"]


def _coefficients(model: PrivateLinearModel) -> dict[str, Any]:
    if not (np.isfinite(model.coef_).all() and np.isfinite(model.intercept_).all()):
        raise ValueError("Expected finite coefficients: this training diverged, and there is no model to save.")
    return {
        "objective": _stated(model),
        "coef": np.asarray(model.coef_).tolist(),
        "intercept": np.asarray(model.intercept_).tolist(),
    }


def _stated(model: PrivateLinearModel) -> dict[str, Any]:
    """What was minimised, with the settings of its loss that are not the estimator's own: a method may choose them."""
    objective = model.objective_
    fitted = type(model)(**model.fitted_params_)  # settings may have changed since
    loss, own = objective.loss, fitted.task(model.n_features_in_, len(getattr(model, "classes_", ()))).loss
    usual = own.settings() if type(loss) is type(own) else {}
    chosen = {name: value for name, value in loss.settings().items() if name in usual and value != usual[name]}
    rough = None if objective.roughness is None else asdict(objective.roughness)
    numbers = {name: getattr(objective, name) for name in _OF_OBJECTIVE}
    return {"loss": loss.name, "loss_settings": chosen, "roughness": rough, **numbers}


def _setting_to_json(value: Any) -> Any:
    """A stranger's method is shown, and not made again when the file is read."""
    if isinstance(value, Risk):
        return value.to_dict()
    if isinstance(value, Mapping):  # weights by label
        return {str(key): number for key, number in value.items()}
    if not isinstance(value, Method):
        return value
    return value.to_dict() if ours(type(value)) else f"{FOREIGN}{value!r}"


def _read(data: dict[str, Any]) -> Model:
    settings = data["settings"]
    if isinstance(settings.get("mechanism"), dict):  # some estimators have one mechanism
        settings["mechanism"] = method_from_dict(settings["mechanism"])
    if isinstance(settings["epsilon"], dict):
        settings["epsilon"] = Risk(**settings["epsilon"])
    if not isinstance(data["extra"], dict):
        raise ValueError("expected extra to be a table")
    kinds: dict[str, Any] = {kind.__name__: kind for kind in (*members(PrivateLinearModel), DPMLPClassifier)}
    if data["kind"] not in kinds:
        raise ValueError(f"this version has no {data['kind']}")
    model: Model = kinds[data["kind"]](**settings)
    model.fitted_params_ = settings
    model.n_features_in_ = data["features"]
    model.trace_ = dict(data["trace"])
    model.certificate_ = Certificate.from_json(json.dumps(data["certificate"]), largest_cost=_LARGEST_COST)
    if isinstance(model, PrivateLinearModel):
        _read_linear(model, data)
    else:
        classes = data["classes"]
        if not isinstance(classes, list) or not all(isinstance(label, str | int | float) for label in classes):
            raise ValueError("expected classes as a list of texts or numbers")
        model.classes_ = np.asarray(classes)
        if len(np.unique(model.classes_)) < max(2, len(classes)):
            raise ValueError("expected at least two distinct classes")
        read_network(model, data)
    return model


def _read_linear(model: PrivateLinearModel, data: dict[str, Any]) -> None:
    model.coef_ = np.asarray(data["coef"], dtype=np.float64)
    regression = is_regressor(model)
    model.intercept_ = data["intercept"] if regression else np.asarray(data["intercept"], dtype=np.float64)
    if not regression:
        model.classes_ = np.asarray(data["classes"])  # type: ignore[attr-defined]
    rows = 0 if regression else len(model.classes_)  # type: ignore[attr-defined]
    wide = (data["features"],) if regression else (model.scores_of(rows), data["features"])
    numbers = np.append(np.ravel(model.coef_), model.intercept_)
    if model.coef_.shape != wide or np.shape(model.intercept_) != wide[:-1] or not np.isfinite(numbers).all():
        raise ValueError(f"expected finite coefficients of shape {wide} and as many intercepts")
    model.objective_ = _objective(model, rows, data["objective"])


def _objective(model: PrivateLinearModel, classes: int, stated: dict[str, Any]) -> LinearObjective:
    """What the model minimised: with the numbers of its own, whatever method set them."""
    task = model.task(model.n_features_in_, classes, model.certificate_.public_facts.get("public_size"))
    objective = task.objective(joint=stated["outputs"] > 1)
    objective = replace(objective, loss=objective.loss.with_settings(**stated.get("loss_settings", {})), radius=stated["radius"])
    if (objective.loss.name, objective.outputs) != (stated["loss"], stated["outputs"]):
        raise ValueError(f"it minimised the loss {stated['loss']} of {stated['outputs']} outputs, which {model!r} does not have")
    rough = stated.get("roughness")
    objective = replace(objective, roughness=None if rough is None else Roughness(**rough))
    return replace(objective, **{name: stated[name] for name in _OF_OBJECTIVE if name != "outputs"})


def weights_of(model: PrivateNetworkClassifier) -> dict[str, Any]:
    """What a file holds of a fitted network beside its settings. TypeError for a module that a file could not make again."""
    if type(model) is not DPMLPClassifier:
        raise TypeError(
            f"Expected a DPMLPClassifier, whose settings say how it is built, got {type(model).__name__}: save the weights by "
            "torch (module_.state_dict()), and the certificate as JSON (certificate_.to_json())."
        )
    import torch

    with needed("safetensors", "A file with a network"):
        from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.module_.state_dict().items()}
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise ValueError("Expected finite weights: this training diverged, and there is no model to save.")
    return {"weights": base64.b64encode(save(tensors)).decode("ascii"), "history": model.history_}


def read_network(model: DPMLPClassifier, data: dict[str, Any]) -> None:
    """Make `model` the fitted one of a file. ValueError for weights that are none, or those of another network."""
    with needed("torch", "A network"):
        import torch
    with needed("safetensors", "A file with a network"):
        from safetensors import SafetensorError
        from safetensors.torch import load

    try:
        tensors = load(base64.b64decode(data["weights"], validate=True))
        with torch.device("meta"):  # no memory, however large a file says that it is
            module = model.module_of(data["features"], len(data["classes"]))
        module.load_state_dict(tensors, strict=True, assign=True)
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise ValueError(f"its weights cannot be used ({str(error).splitlines()[0]})") from None
    kinds = {tensor.dtype for tensor in tensors.values()}
    if kinds not in ({torch.float32}, {torch.float64}) or not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise ValueError("expected finite weights of one floating-point type")
    model.module_ = module.eval().requires_grad_(False)
    model.history_ = list(data["history"])
