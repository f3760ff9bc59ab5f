"""Recurrent cells that take one step at a time: two affine layers, and what their kind makes of the sums, elementwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dperm.torch.engine.rules.linear import affine
from dperm.torch.engine.rules.registry import rule_for
from dperm.torch.engine.tracing import Run


@rule_for(torch.lstm_cell)
def _lstm_cell(run: Run, input: Tensor, states: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    hidden, memory = states
    sums = _sums(run, input, hidden, w_ih, w_hh, b_ih, b_hh)
    if sums is NotImplemented:
        return sums
    enter, forget, new, leave = (sums[0] + sums[1]).chunk(4, dim=-1)
    memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(memory), memory


@rule_for(torch.gru_cell)
def _gru_cell(run: Run, input: Tensor, hidden: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    sums = _sums(run, input, hidden, w_ih, w_hh, b_ih, b_hh)
    if sums is NotImplemented:
        return sums
    (reset, keep, new), (reset_hidden, keep_hidden, new_hidden) = (part.chunk(3, dim=-1) for part in sums)
    keep = torch.sigmoid(keep + keep_hidden)
    new = torch.tanh(new + torch.sigmoid(reset + reset_hidden) * new_hidden)
    return (1 - keep) * new + keep * hidden


@rule_for(torch.rnn_tanh_cell)
def _tanh_cell(run: Run, input: Tensor, hidden: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    sums = _sums(run, input, hidden, w_ih, w_hh, b_ih, b_hh)
    return sums if sums is NotImplemented else torch.tanh(sums[0] + sums[1])


@rule_for(torch.rnn_relu_cell)
def _relu_cell(run: Run, input: Tensor, hidden: Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    sums = _sums(run, input, hidden, w_ih, w_hh, b_ih, b_hh)
    return sums if sums is NotImplemented else torch.relu(sums[0] + sums[1])


def _sums(run: Run, input: Tensor, hidden: Tensor, w_ih: Any, w_hh: Any, b_ih: Any, b_hh: Any) -> Any:
    """What the input and the hidden state give to the gates."""
    if not run.constant(w_ih, w_hh, b_ih, b_hh) or run.trains(input) or run.trains(hidden):
        return NotImplemented

    def body(x: Tensor, h: Tensor) -> Any:
        return affine(run, x, w_ih, b_ih), affine(run, h, w_hh, b_hh)

    return run.together(body, input, hidden)
