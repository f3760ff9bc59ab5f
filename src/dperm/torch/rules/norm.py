"""Normalisation within one record: LayerNorm, RMSNorm, GroupNorm, InstanceNorm. Scale and shift act elementwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.forms import Dense, Form, wide
from dperm.torch.rules.registry import detached, records_first, register, trainable
from dperm.torch.tape import Axis, Call

__all__ = ["channel_norm", "last_axes_norm"]


@register(nn.LayerNorm, nn.RMSNorm)
def last_axes_norm(module: Any, call: Call, input: Tensor) -> Tensor:
    """LayerNorm and RMSNorm: the last axes are normalised, one scale and shift per entry of them."""
    bias: Tensor | None = getattr(module, "bias", None)
    shape = list(module.normalized_shape)
    axis = call.layout.arguments[0]

    def normalised(x: Tensor) -> Tensor:
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(x, shape, None, None, module.eps)
        return F.rms_norm(x, shape, None, module.eps)

    if isinstance(module, nn.LayerNorm):
        output = F.layer_norm(input, shape, detached(module.weight), detached(bias), module.eps)
    else:
        output = F.rms_norm(input, shape, detached(module.weight), module.eps)
    if axis is None:
        output, input, axis = call.repeated(output), call.repeated(input), Axis(0)
    learned = trainable(module.weight, bias)

    def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        for parameter in learned:
            values = gradient if parameter is bias else gradient * normalised(saved[0])
            yield parameter, Dense(call.front(wide(values), axis, len(shape)).sum(1))

    return call.tap(output, learned, read, input)


@register(nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d, fits=records_first)
def channel_norm(module: Any, call: Call, input: Tensor) -> Tensor:
    """GroupNorm and InstanceNorm on (b, channels, ...): one scale and shift per channel."""
    weight, bias = detached(module.weight), detached(module.bias)

    def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if isinstance(module, nn.GroupNorm):
            return F.group_norm(x, module.num_groups, weight, bias, module.eps)
        statistics = module.running_mean, module.running_var
        return F.instance_norm(x, *statistics, weight, bias, module.running_mean is None, module.momentum or 0.0, module.eps)

    axis = call.layout.arguments[0]
    assert axis is not None
    learned = trainable(module.weight, module.bias)

    def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        for parameter in learned:
            values = gradient if parameter is module.bias else gradient * normalise(saved[0], None, None)
            summed = wide(values).flatten(2).sum(2) if values.dim() > 2 else wide(values)
            yield parameter, Dense(axis.to_front(summed, call.size).reshape(call.size, -1, summed.shape[1]).sum(1))

    return call.tap(normalise(input, weight, bias), learned, read, input)
