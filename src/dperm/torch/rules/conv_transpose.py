"""Transposed convolutions: the weight's gradient is that of the convolution they are the transpose of.

That convolution takes outputs to inputs, so the output's gradient plays the input and the input plays the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.forms import Dense, Form, wide
from dperm.torch.rules.conv import ConvGradient, kernel
from dperm.torch.rules.patches import Geometry
from dperm.torch.rules.registry import detached, records_first, register, trainable
from dperm.torch.tape import Call

__all__ = ["transposed_convolution"]

_FORWARD: list[Any] = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]


@register(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, fits=records_first)
def transposed_convolution(module: Any, call: Call, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
    geometry = Geometry(module.stride, module.padding, module.dilation, module.groups)
    extra = _output_padding(module, input, output_size)
    output = _FORWARD[len(module.stride) - 1](
        input,
        kernel(call, module.weight),
        detached(module.bias),
        module.stride,
        module.padding,
        extra,
        module.groups,
        module.dilation,
    )
    learned = trainable(module.weight, module.bias)
    multiple = call.multiple(output)

    def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        for parameter in learned:
            if parameter is module.weight:
                yield parameter, ConvGradient(gradient, saved[0], module.weight.shape, geometry, multiple)
            else:
                summed = wide(gradient).flatten(2).sum(2)
                yield parameter, Dense(summed.view(call.size, multiple, -1).sum(1))

    return call.tap(output, learned, read, *([input] if module.weight.requires_grad else []))


def _output_padding(module: Any, input: Tensor, output_size: Sequence[int] | None) -> tuple[int, ...]:
    """Rows that the stride leaves undecided: the module's own, or what `output_size` asks for."""
    if output_size is None:
        return tuple(module.output_padding)
    wanted = list(output_size)[-len(module.stride) :]
    least = [
        (size - 1) * s - 2 * p + d * (k - 1) + 1
        for size, s, p, d, k in zip(
            input.shape[2:], module.stride, module.padding, module.dilation, module.kernel_size, strict=True
        )
    ]
    extra = [size - smallest for size, smallest in zip(wanted, least, strict=True)]
    if any(not 0 <= amount < max(s, d) for amount, s, d in zip(extra, module.stride, module.dilation, strict=True)):
        raise ValueError(f"Expected output_size within a stride of {least}, got {wanted}.")
    return tuple(extra)
