"""A model in evaluation mode, with kernels that can be differentiated twice and forwards."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


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
