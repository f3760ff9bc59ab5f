"""Tensors that are functions of parameters alone, such as `1 + weight`, a slice of learned positions, or a product of two
matrices. They are the same for every record, and computed once for all.

A record's gradient with respect to such a tensor is taken back to the parameters by the transposed derivative of the function:
it is linear, and the same for every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import set_multithreading_enabled

from dperm.torch.engine.gradient_forms import Block, Dense, Form, Outer

_TURNS = {Tensor.t, torch.t, Tensor.T.__get__, Tensor.mT.__get__}  # type: ignore[attr-defined]
_CASTS = {Tensor.to, Tensor.float, Tensor.half, Tensor.bfloat16, Tensor.type, Tensor.type_as}


class Derived:
    """A function of trained `parameters`, with its value as `tensor`, whose graph leads to them. `back` takes a form of gradients
    with respect to the value to one of the first parameter, where it keeps its cheap form; None where autograd has to."""

    def __init__(self, tensor: Tensor, parameters: Sequence[nn.Parameter], back: Callable[[Form], Form] | None) -> None:
        self.tensor, self.parameters, self._back = tensor, parameters, back

    def taken_back(self, form: Form) -> Iterable[tuple[nn.Parameter, Form]]:
        """Gradients of the parameters from those of the value."""
        if self._back is not None:
            return [(self.parameters[0], self._back(form))]
        with set_multithreading_enabled(False):
            found: Any = torch.autograd.grad(
                self.tensor, self.parameters, form.dense().to(self.tensor.dtype), retain_graph=True, allow_unused=True,
                is_grads_batched=True,
            )  # fmt: skip
        pairs = zip(self.parameters, found, strict=True)
        return [(parameter, Dense(slope.detach())) for parameter, slope in pairs if slope is not None]


def way_back(func: Any, args: Sequence[Any], output: Tensor) -> Callable[[Form], Form] | None:
    """How forms keep their kind on the way from `output` to the parameter that is the first of `args`, where they do."""
    parameter = args[0] if args else None
    if not isinstance(parameter, nn.Parameter):
        return None
    shape = parameter.shape
    if func in _TURNS and len(shape) == 2:
        return _turned
    if func in _CASTS and output.shape == shape and torch.float32 == parameter.dtype != torch.float64 != output.dtype:
        return lambda form: form
    if func is not Tensor.__getitem__ or len(args) != 2 or not shape:
        return None
    index = args[1]
    if isinstance(index, slice):
        start, stop, step = index.indices(shape[0])
        return (lambda form: Block(form, start, shape)) if step == 1 and stop > start else None
    if type(index) is int or (isinstance(index, Tensor) and not index.dim() and index.dtype is not torch.bool):
        row = int(index) % shape[0]
        return lambda form: Block(_as_a_row(form), row, shape)
    return None


def _turned(form: Form) -> Form:
    if isinstance(form, Outer) and tuple(form.shape) == (form.left.shape[2], form.right.shape[2]):
        return Outer(form.right, form.left)
    return Dense(form.dense().mT)


def _as_a_row(form: Form) -> Form:
    """The same numbers as gradients of a tensor with one row."""
    if isinstance(form, Outer):
        return Outer(form.left, form.right, (1, *form.shape))
    return Dense(form.dense()[:, None])
