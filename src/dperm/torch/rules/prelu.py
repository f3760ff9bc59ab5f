"""PReLU: max(0, x) + a·min(0, x), one slope a in all, or one a channel (He, Zhang, Ren, Sun 2015)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.forms import Dense, Form, wide
from dperm.torch.rules.registry import detached, records_first, register, trainable
from dperm.torch.tape import Call

__all__ = ["prelu"]


@register(nn.PReLU, fits=records_first)
def prelu(module: Any, call: Call, input: Tensor) -> Tensor:
    """∂/∂a is the sum of g·min(0, x) over a record's entries, of each channel by itself where each has its slope."""
    axis = call.layout.arguments[0]
    assert axis is not None

    def read(gradient: Tensor, *saved: Tensor) -> Iterator[tuple[nn.Parameter, Form]]:
        values = axis.to_front(wide(gradient * saved[0].clamp(max=0)), call.size)
        rows = values.reshape(call.size, -1, *gradient.shape[1:]).sum(1)  # a record may be seen several times
        channels = rows.flatten(2).sum(2) if rows.dim() > 2 else rows
        yield module.weight, Dense(channels if module.num_parameters > 1 else rows.flatten(1).sum(1, keepdim=True))

    return call.tap(F.prelu(input, detached(module.weight)), trainable(module.weight), read, input)
