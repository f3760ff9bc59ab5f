"""The weights of a network within a model's file: safetensors, as text. Nothing in it runs."""

from __future__ import annotations

import base64
import importlib.util
from typing import Any

from dperm.estimators.networks import DPMLPClassifier, PrivateNetworkClassifier


def weights_of(model: PrivateNetworkClassifier) -> dict[str, Any]:
    """What a file holds of a fitted network beside its settings. TypeError for a module that a file could not make again."""
    if type(model) is not DPMLPClassifier:
        raise TypeError(
            f"Expected a DPMLPClassifier, whose settings say how it is built, got {type(model).__name__}: save the weights by "
            "torch (module_.state_dict()), and the certificate as JSON (certificate_.to_json())."
        )
    import torch
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.module_.state_dict().items()}
    if not all(torch.isfinite(tensor).all() for tensor in tensors.values()):
        raise ValueError("Expected finite weights: this training diverged, and there is no model to save.")
    return {"weights": base64.b64encode(save(tensors)).decode("ascii"), "history": model.history_}


def read_network(model: DPMLPClassifier, data: dict[str, Any]) -> None:
    """Make `model` the fitted one of a file. ValueError for weights that are none, or those of another network."""
    if importlib.util.find_spec("torch") is None:
        raise ModuleNotFoundError("Networks need PyTorch: pip install 'dperm[torch]'.")
    import torch
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
