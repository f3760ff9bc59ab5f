"""Transposed convolutions: the weight's gradient is that of the convolution they are the transpose of.

That convolution takes outputs to inputs, so the output's gradient plays the input and the input plays the gradient. Image i
of the output depends on image i alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.gradient_forms import Dense, Form
from dperm.torch.engine.rules.conv import ConvGradient, kernel, per_axis, per_channel
from dperm.torch.engine.rules.patches import Geometry
from dperm.torch.engine.rules.registry import rule_for
from dperm.torch.engine.tracing import Run, detached

_FORWARD: list[Any] = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]


@rule_for(*_FORWARD)
def transposed_convolution(
    run: Run,
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Input (n, channels, ...) of a record that counts as a batch of n, or (channels, ...)."""
    if not run.constant(weight, bias) or run.trains(input):
        return NotImplemented
    axes = weight.dim() - 2
    stride, padding, dilation = (per_axis(value, axes) for value in (stride, padding, dilation))
    geometry, learned = Geometry(stride, padding, dilation, groups), run.learned(weight, bias)

    def body(x: Tensor) -> Tensor:
        size, several = len(x), x.dim() == axes + 3
        images = x.flatten(0, 1) if several else x
        multiple = len(images) // size

        def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
            for parameter in learned:
                if parameter is weight:
                    yield parameter, ConvGradient(gradient, saved[0], weight.shape, geometry, multiple)
                else:
                    yield parameter, Dense(per_channel(gradient, multiple))

        extra = per_axis(output_padding, axes)
        output = _FORWARD[axes - 1](images, kernel(run, weight), detached(bias), stride, padding, extra, groups, dilation)
        if learned:
            output = run.tape.tap(output, learned, read, (images,) if run.trains(weight) else ())
        return output.unflatten(0, (size, multiple)) if several else output

    return run.together(body, input)
