"""Second derivatives: of a model in evaluation mode, by kernels that can be differentiated twice and forwards."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dperm.torch.engine.ordinary_losses import OrdinaryLosses


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """`model` in evaluation mode, and back; without fused kernels, which have no second and no forward derivatives."""
    modes = {module: module.training for module in model.modules()}
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        for module in modes:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)
        with contextlib.ExitStack() as kernels:
            kernels.enter_context(sdpa_kernel(SDPBackend.MATH))
            if any(isinstance(module, nn.RNNBase) for module in modes):  # only there: convolutions are faster with them
                kernels.enter_context(_without_onednn())
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        for module, mode in modes.items():
            module.training = mode


@contextlib.contextmanager
def _without_onednn() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with warnings.catch_warnings():  # about GPUs that are not there
            warnings.simplefilter("ignore", UserWarning)
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            stack.close()


def hessian_product(losses: OrdinaryLosses, groups: Iterable[tuple[Any, Any, Any]], vector: Tensor) -> Tensor:
    """(Σ ∇²ℓ_i)·v (p,) over groups of records (places, inputs, targets) that can run together."""
    flat = losses.flat
    parts = list(flat.parts(vector))
    total = torch.zeros_like(vector)
    with evaluating(losses.model), losses.in_full_precision():
        for _, inputs, targets in groups:
            summed = losses(inputs, targets).sum()
            slopes = torch.autograd.grad(summed, flat.parameters, create_graph=True, materialize_grads=True)
            along = torch.stack([(slope * part).sum() for slope, part in zip(slopes, parts, strict=True)]).sum()
            if along.requires_grad:  # not that of a loss without curvature
                curved = torch.autograd.grad(along, flat.parameters, materialize_grads=True)
                total += torch.cat([part.flatten() for part in curved])
    return total
