"""The losses that a model and a loss give to one ordinary batch of records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

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
        narrow, self.autocast = self.autocast, None
        try:
            yield
        finally:
            self.autocast = narrow
