"""Hugging Face's Conv1D, of GPT-2 and its kin: a linear layer y = xW + bias whose weight is kept as (inputs, outputs)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from dperm.torch.forms import Dense, Form, Outer
from dperm.torch.rules.registry import detached, register_named, trainable
from dperm.torch.tape import Axis, Call

__all__ = ["conv1d"]


@register_named("transformers.pytorch_utils.Conv1D")
def conv1d(module: Any, call: Call, x: Tensor) -> Tensor:
    axis = call.layout.arguments[0]
    output = x @ detached(module.weight) + detached(module.bias)
    if axis is None:
        output, x, axis = call.repeated(output), call.repeated(x), Axis(0)
    learned = trainable(module.weight, module.bias)

    def read(gradient: Tensor, saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        right = call.front(gradient, axis, 1)
        for parameter in learned:
            if parameter is module.weight:
                yield parameter, Outer(call.front(saved, axis, 1), right)
            else:
                yield parameter, Dense(right.sum(1))

    return call.tap(output, learned, read, x)
