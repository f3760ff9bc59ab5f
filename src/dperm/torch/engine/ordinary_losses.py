"""The losses that a model and a loss give to one ordinary batch of records, and their second derivatives."""

from __future__ import annotations

import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dperm.torch.parameters.flat_parameters import FlatParameters
from dperm.torch.tensors.nested import call_model, packed, size_of


class OrdinaryLosses:
    """(inputs, targets) → losses (b,), with a graph; `autocast` names a narrower type for the forward.

    `roots` have all that may keep something of records, the model first: of a loss that is a method, its object too.
    """

    def __init__(
        self, model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], flat: FlatParameters, autocast: torch.dtype | None
    ) -> None:
        self.model, self.loss_fn, self.flat, self.autocast = model, loss_fn, flat, autocast
        self.roots = (model, loss_fn, getattr(loss_fn, "__self__", None))

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        # context variables that a run of the model sets are gone when it ends, also those that had no value before
        return contextvars.copy_context().run(self._in_a_context_of_its_own, inputs, targets)

    def _in_a_context_of_its_own(self, inputs: Any, targets: Any) -> Tensor:
        inputs, targets = packed(inputs), packed(targets)
        if self.autocast is None:
            losses = self.loss_fn(call_model(self.model, inputs), targets)
        else:
            with torch.autocast(self.flat.device.type, dtype=self.autocast):
                losses = self.loss_fn(call_model(self.model, inputs), targets)
        size = size_of(inputs, targets)
        shape = tuple(getattr(losses, "shape", ()))
        if shape != (size,):
            raise ValueError(
                f"Expected loss_fn to give one loss per record, shape ({size},), got {shape}: use reduction='none' and "
                "average over everything but the first axis. For one record, squeeze() drops that axis, too: name another."
            )
        return losses.to(torch.promote_types(self.flat.dtype, torch.float32))

    @contextlib.contextmanager
    def in_full_precision(self) -> Iterator[None]:
        """Within the block without autocast, but for a model with a part in half precision, which may not run without."""
        narrow = self.autocast
        if not any(each.dtype in (torch.float16, torch.bfloat16) for each in self.model.parameters()):
            self.autocast = None
        try:
            yield
        finally:
            self.autocast = narrow


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
