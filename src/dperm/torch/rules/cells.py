"""The three recurrent cells: gates from known hidden states, and the scan that takes gradients back through time.

Shapes: D directions, T steps, b records, size h (p where projected). Gates are ordered as in torch: LSTM (i, f, g, o),
GRU (r, z, n).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["CELLS", "Cell", "Gates", "Scan", "Weights"]


class Weights(NamedTuple):
    """Stacked over directions: input (D, G·h, in), hidden (D, G·h, p), biases (D, G·h), projection (D, p, h)."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None


class Gates(NamedTuple):
    """`values` (D, T, b, G, h) after their activations; for an LSTM its `memory` c (D, T, b, h); for a GRU the hidden
    part W_hn·h + b_hn of the candidate; `before` the states h_{t−1} (c_{t−1} for an LSTM)."""

    values: Tensor
    before: Tensor
    memory: Tensor
    candidate: Tensor | None = None


class Scan(NamedTuple):
    """Gradients at the gates' inputs, as the input's and the hidden weights see them (D, T, b, G·h), at the initial
    states, and for projections at h and before it."""

    input_gates: Tensor
    hidden_gates: Tensor
    initial: tuple[Tensor, ...]
    projected: Tensor | None = None
    unprojected: Tensor | None = None


def _inputs(x: Tensor, outputs: Tensor, initial: Tensor, weights: Weights) -> tuple[Tensor, Tensor, Tensor]:
    """W_ih·x + b_ih, W_hh·h_{t−1} + b_hh (D, T, b, G·h), and h_{t−1}."""
    before = torch.cat([initial[:, None], outputs[:, :-1]], dim=1)
    from_input = x @ weights.input.mT[:, None]
    from_hidden = before @ weights.hidden.mT[:, None]
    if weights.input_bias is not None and weights.hidden_bias is not None:
        from_input += weights.input_bias[:, None, None]
        from_hidden += weights.hidden_bias[:, None, None]
    return from_input, from_hidden, before


def _lstm_gates(x: Tensor, outputs: Tensor, initial: tuple[Tensor, ...], weights: Weights) -> Gates:
    from_input, from_hidden, _ = _inputs(x, outputs, initial[0], weights)
    values = (from_input + from_hidden).unflatten(3, (4, -1))
    values[..., :2, :].sigmoid_()
    values[..., 2, :].tanh_()
    values[..., 3, :].sigmoid_()
    memory = values[..., 0, :] * values[..., 2, :]
    forget = values[..., 1, :]
    before = initial[1]
    for t in range(memory.shape[1]):
        memory[:, t].addcmul_(forget[:, t], before)
        before = memory[:, t]
    return Gates(values, torch.cat([initial[1][:, None], memory[:, :-1]], dim=1), memory)


def _lstm_scan(gates: Gates, at_outputs: Tensor, at_memory: Tensor | None, weights: Weights) -> Scan:
    """h = o·tanh(c), c_t = f·c_{t−1} + i·g; with a projection h = W_hr(o·tanh(c))."""
    i, f, g, o = gates.values.unbind(3)
    squashed = gates.memory.tanh()
    into_memory = o * (1 - squashed * squashed)
    slopes = torch.empty_like(gates.values)  # of c (i, f, g) and of h (o) with respect to the gates' inputs
    torch.mul(i * (1 - i), g, out=slopes[..., 0, :])
    torch.mul(f * (1 - f), gates.before, out=slopes[..., 1, :])
    torch.mul(i, 1 - g * g, out=slopes[..., 2, :])
    torch.mul(o * (1 - o), squashed, out=slopes[..., 3, :])
    at_c = torch.zeros_like(gates.memory[:, 0])
    at_h = torch.zeros_like(at_outputs[:, 0])
    for t in reversed(range(slopes.shape[1])):
        at_h = at_outputs[:, t].add_(at_h)
        at_m = at_h if weights.projection is None else at_h @ weights.projection
        if at_memory is not None:
            at_c += at_memory[:, t]
        at_c.addcmul_(at_m, into_memory[:, t])
        step = slopes[:, t]
        step[..., :3, :] *= at_c[:, :, None]
        step[..., 3, :] *= at_m
        at_c *= f[:, t]
        at_h = step.flatten(2) @ weights.hidden
    flat = slopes.flatten(3)
    unprojected = None if weights.projection is None else o * squashed
    return Scan(flat, flat, (at_h, at_c), at_outputs, unprojected)


def _gru_gates(x: Tensor, outputs: Tensor, initial: tuple[Tensor, ...], weights: Weights) -> Gates:
    from_input, from_hidden, before = _inputs(x, outputs, initial[0], weights)
    values = from_input.unflatten(3, (3, -1))
    hidden = from_hidden.unflatten(3, (3, -1))
    values[..., :2, :] += hidden[..., :2, :]
    values[..., :2, :].sigmoid_()
    values[..., 2, :].addcmul_(values[..., 0, :], hidden[..., 2, :]).tanh_()
    return Gates(values, before, outputs, hidden[..., 2, :])


def _gru_scan(gates: Gates, at_outputs: Tensor, at_memory: Tensor | None, weights: Weights) -> Scan:
    """h = (1 − z)·n + z·h_{t−1}, n = tanh(W_in·x + r·(W_hn·h_{t−1} + b_hn)): the reset gate stands between, so the hidden
    weights of n see its gradient times r."""
    assert gates.candidate is not None
    r, z, n = gates.values.unbind(3)
    slopes = torch.empty_like(gates.values)
    candidate = (1 - z) * (1 - n * n)
    torch.mul(candidate * gates.candidate, r * (1 - r), out=slopes[..., 0, :])
    torch.mul(gates.before - n, z * (1 - z), out=slopes[..., 1, :])
    torch.mul(candidate, r, out=slopes[..., 2, :])
    at_h = torch.zeros_like(at_outputs[:, 0])
    for t in reversed(range(slopes.shape[1])):
        at_h = at_outputs[:, t].add_(at_h)
        step = slopes[:, t]
        step *= at_h[:, :, None]
        at_h = torch.addcmul(step.flatten(2) @ weights.hidden, at_h, z[:, t])
    at_input = slopes.clone()
    torch.mul(candidate, at_outputs, out=at_input[..., 2, :])
    return Scan(at_input.flatten(3), slopes.flatten(3), (at_h,))


def _rnn_gates(activation: Callable[[Tensor], Tensor]) -> Callable[..., Gates]:
    def gates(x: Tensor, outputs: Tensor, initial: tuple[Tensor, ...], weights: Weights) -> Gates:
        return Gates(activation(outputs)[:, :, :, None], outputs, outputs)  # slopes follow from the states themselves

    return gates


def _rnn_scan(gates: Gates, at_outputs: Tensor, at_memory: Tensor | None, weights: Weights) -> Scan:
    slopes = gates.values[:, :, :, 0]
    at_h = torch.zeros_like(at_outputs[:, 0])
    for t in reversed(range(slopes.shape[1])):
        at_h = slopes[:, t].mul_(at_outputs[:, t].add_(at_h)) @ weights.hidden
    return Scan(slopes, slopes, (at_h,))


@dataclass(frozen=True)
class Cell:
    """A cell's fused kernel, its gates from known states, and its scan."""

    fused: Callable[..., Any]
    gates: Callable[[Tensor, Tensor, tuple[Tensor, ...], Weights], Gates]
    scan: Callable[[Gates, Tensor, Tensor | None, Weights], Scan]
    has_memory: bool = False


CELLS = {
    "LSTM": Cell(torch.lstm, _lstm_gates, _lstm_scan, has_memory=True),
    "GRU": Cell(torch.gru, _gru_gates, _gru_scan),
    "RNN_TANH": Cell(torch.rnn_tanh, _rnn_gates(lambda h: 1 - h * h), _rnn_scan),
    "RNN_RELU": Cell(torch.rnn_relu, _rnn_gates(lambda h: (h > 0).to(h.dtype)), _rnn_scan),
}
