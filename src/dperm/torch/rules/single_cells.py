"""Recurrent cells that take one step at a time: two affine layers, and what their kind makes of the sums."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.rules.linear import affine
from dperm.torch.rules.registry import detached, records_first, register
from dperm.torch.tape import Call

__all__ = ["cell"]


@register(nn.LSTMCell, nn.GRUCell, nn.RNNCell, fits=records_first)
def cell(module: Any, call: Call, input: Tensor, state: Any = None) -> Any:
    """One step of every record. States that are not given are zeros, as in torch."""
    axis = call.layout.arguments[0]
    assert axis is not None  # `records_first`
    memory = None
    if isinstance(module, nn.LSTMCell):
        hidden, memory = (None, None) if state is None else state
        memory = input.new_zeros(len(input), module.hidden_size) if memory is None else memory
    else:
        hidden = state
    hidden = input.new_zeros(len(input), module.hidden_size) if hidden is None else hidden
    mine, theirs = (
        affine(call, F.linear(values, detached(weight), detached(bias)), values, axis, weight, bias)
        for values, weight, bias in (
            (input, module.weight_ih, module.bias_ih),
            (hidden, module.weight_hh, module.bias_hh),
        )
    )
    if memory is not None:
        enter, forget, new, leave = (mine + theirs).chunk(4, dim=1)
        memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(memory), memory
    if isinstance(module, nn.GRUCell):
        (reset, keep, new), (reset_hidden, keep_hidden, new_hidden) = mine.chunk(3, dim=1), theirs.chunk(3, dim=1)
        keep = torch.sigmoid(keep + keep_hidden)
        new = torch.tanh(new + torch.sigmoid(reset + reset_hidden) * new_hidden)
        return (1 - keep) * new + keep * hidden
    return torch.tanh(mine + theirs) if module.nonlinearity == "tanh" else torch.relu(mine + theirs)
