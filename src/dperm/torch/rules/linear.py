"""Linear layers: y = xWᵀ + bias with any axes between the records and the features."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.forms import Dense, Form, Outer
from dperm.torch.rules.registry import detached, register, trainable
from dperm.torch.tape import Axis, Call

__all__ = ["affine", "linear"]


@register(nn.Linear)
def linear(module: nn.Linear, call: Call, input: Tensor) -> Tensor:
    axis = call.layout.arguments[0]
    output = F.linear(input, detached(module.weight), detached(module.bias))
    if axis is None:
        output, input, axis = call.repeated(output), call.repeated(input), Axis(0)
    return affine(call, output, input, axis, module.weight, module.bias)


def affine(call: Call, output: Tensor, input: Tensor, axis: Axis, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Tap the output of input·weightᵀ + bias, both with the records along `axis`."""
    learned = trainable(weight, bias)
    if not learned:
        return output

    def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        left = call.front(gradient, axis, 1)
        for parameter in learned:
            if parameter is weight:
                yield parameter, Outer(left, call.front(saved[0], axis, 1))
            else:
                yield parameter, Dense(left.sum(1) if left.shape[1] > 1 else left[:, 0])

    return call.tap(output, learned, read, *([input] if weight.requires_grad else []))
