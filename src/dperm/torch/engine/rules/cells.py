"""The three recurrent cells: gates from known hidden states, and the scan that takes gradients back through time.

Shapes: D directions, T steps, b records, size h (p where projected), G gates. Gates are ordered as in torch: LSTM
(i, f, g, o), GRU (r, z, n). Scans work on a few time steps at once: bulk operations on what the cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dperm.torch.tensors.buffers import Scratch

_STEPS_AT_ONCE = 8


class Weights(NamedTuple):
    """Stacked over directions: input (D, G·h, in), hidden (D, G·h, p), biases (D, G·h), projection (D, p, h)."""

    input: Tensor
    hidden: Tensor
    input_bias: Tensor | None
    hidden_bias: Tensor | None
    projection: Tensor | None


class Forward(NamedTuple):
    """x (D, T, b, in); states (D, T + 1, b, p) with the initial one first; the initial memory (D, b, h) of an LSTM."""

    x: Tensor
    states: Tensor
    memory: Tensor | None


class Gates(NamedTuple):
    """`values` (D, T, b, G, h) after their activations; an LSTM's `memory` (D, T + 1, b, h), the initial one first; a
    GRU's `candidate` W_hn·h_{t−1} + b_hn (D, T, b, h)."""

    values: Tensor
    memory: Tensor
    candidate: Tensor


class Backward(NamedTuple):
    """Gradients at the gates' inputs as the input's weights and as the hidden weights see them (D, T, b, G·h), at the
    initial states, and, for projections, at h (D, T, b, p) and at what is projected to it, with its value (D, T, b, h)."""

    input_gates: Tensor
    hidden_gates: Tensor
    initial: tuple[Tensor, ...]
    projected: Tensor | None = None
    unprojected: Tensor | None = None


class Incoming(NamedTuple):
    """Gradients at all states (D, T, b, p), at the last state and memory (D, b, ·), and, where sequences end at different
    steps, at all memories (D, T, b, h)."""

    states: Tensor
    last: Tensor
    last_memory: Tensor | None
    memories: Tensor | None


def _affine(x: Tensor, weight: Tensor, bias: Tensor | None, scratch: Scratch) -> Tensor:
    """x·weightᵀ + bias for x (D, T, b, ·), in scratch memory."""
    d, t, b, _ = x.shape
    out = scratch((d, t * b, weight.shape[1]), x)
    torch.bmm(x.reshape(d, t * b, -1), weight.mT, out=out)
    if bias is not None:
        out += bias[:, None]
    return out.view(d, t, b, -1)


def _blocks(steps: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of the blocks of time, last first."""
    for stop in range(steps, 0, -_STEPS_AT_ONCE):
        yield max(0, stop - _STEPS_AT_ONCE), stop


def _lstm_gates(run: Forward, weights: Weights, scratch: Scratch) -> Gates:
    assert run.memory is not None
    bias = None if weights.input_bias is None or weights.hidden_bias is None else weights.input_bias + weights.hidden_bias
    summed = _affine(run.x, weights.input, bias, scratch)
    d, t, b, width = summed.shape
    flat = summed.view(d, t * b, width)
    torch.baddbmm(flat, run.states[:, :-1].reshape(d, t * b, -1), weights.hidden.mT, out=flat)
    values = summed.unflatten(3, (4, -1))
    values[..., :2, :].sigmoid_()
    values[..., 2, :].tanh_()
    values[..., 3, :].sigmoid_()
    memory = scratch((d, t + 1, b, values.shape[4]), values)
    memory[:, 0] = run.memory
    torch.mul(values[..., 0, :], values[..., 2, :], out=memory[:, 1:])
    for step in range(t):
        memory[:, step + 1].addcmul_(values[:, step, :, 1], memory[:, step])
    return Gates(values, memory, memory)


def _lstm_scan(run: Forward, gates: Gates, incoming: Incoming, weights: Weights, scratch: Scratch) -> Backward:
    """h = o·tanh(c), c_t = f·c_{t−1} + i·g; with a projection h = W_hr(o·tanh(c)). Overwrites the gates."""
    values, memory = gates.values, gates.memory
    projected = torch.empty_like(incoming.states) if weights.projection is not None else None
    unprojected = values[..., 3, :] * memory[:, 1:].tanh() if weights.projection is not None else None
    at_h, at_c = incoming.last, incoming.last_memory
    assert at_c is not None
    for start, stop in _blocks(values.shape[1]):
        block = values[:, start:stop]
        i, f, g, o = block.unbind(3)
        squashed = memory[:, start + 1 : stop + 1].tanh()
        into_memory = o * (1 - squashed * squashed)
        # of c (i, f, g) and of h (o), with respect to the gates' inputs
        slopes = torch.stack(
            [i * (1 - i) * g, f * (1 - f) * memory[:, start:stop], i * (1 - g * g), o * (1 - o) * squashed], dim=3
        )
        for t in reversed(range(start, stop)):
            at_h = incoming.states[:, t] + at_h
            at_m = at_h if weights.projection is None else at_h @ weights.projection
            if projected is not None:
                projected[:, t] = at_h
            if incoming.memories is not None:
                at_c = at_c + incoming.memories[:, t]
            at_c = torch.addcmul(at_c, at_m, into_memory[:, t - start])
            slope, out = slopes[:, t - start], values[:, t]
            earlier = at_c * out[..., 1, :]
            torch.mul(slope[..., :3, :], at_c[:, :, None], out=out[..., :3, :])
            torch.mul(slope[..., 3, :], at_m, out=out[..., 3, :])
            at_c = earlier
            at_h = out.flatten(2) @ weights.hidden
    flat = values.flatten(3)
    return Backward(flat, flat, (at_h, at_c), projected, unprojected)


def _gru_gates(run: Forward, weights: Weights, scratch: Scratch) -> Gates:
    values = _affine(run.x, weights.input, weights.input_bias, scratch).unflatten(3, (3, -1))
    hidden = _affine(run.states[:, :-1], weights.hidden, weights.hidden_bias, scratch).unflatten(3, (3, -1))
    values[..., :2, :] += hidden[..., :2, :]
    values[..., :2, :].sigmoid_()
    values[..., 2, :].addcmul_(values[..., 0, :], hidden[..., 2, :]).tanh_()
    return Gates(values, values, hidden[..., 2, :])


def _gru_scan(run: Forward, gates: Gates, incoming: Incoming, weights: Weights, scratch: Scratch) -> Backward:
    """h = (1 − z)·n + z·h_{t−1}, n = tanh(W_in·x + r·(W_hn·h_{t−1} + b_hn)): the reset gate stands between, so the hidden
    weights of n see its gradient times r. Overwrites the gates."""
    values = gates.values
    d, steps, b, _, h = values.shape
    from_hidden = scratch((d, steps, b, 3, h), values)
    at_h = incoming.last
    for start, stop in _blocks(steps):
        r, z, n = values[:, start:stop].unbind(3)
        reset, keep = r.clone(), z.clone()
        into_candidate = (1 - z) * (1 - n * n)
        slopes = torch.stack(
            [
                into_candidate * gates.candidate[:, start:stop] * r * (1 - r),
                (run.states[:, start:stop] - n) * z * (1 - z),
                into_candidate,
            ],
            dim=3,
        )
        for t in reversed(range(start, stop)):
            at_h = incoming.states[:, t] + at_h
            out, hidden = values[:, t], from_hidden[:, t]
            torch.mul(slopes[:, t - start], at_h[:, :, None], out=out)
            hidden.copy_(out)
            hidden[..., 2, :] *= reset[:, t - start]
            at_h = torch.addcmul(hidden.flatten(2) @ weights.hidden, at_h, keep[:, t - start])
    return Backward(values.flatten(3), from_hidden.flatten(3), (at_h,))


def _rnn_gates(slope: Callable[[Tensor], Tensor]) -> Callable[[Forward, Weights, Scratch], Gates]:
    """Slopes follow from the states themselves."""

    def gates(run: Forward, weights: Weights, scratch: Scratch) -> Gates:
        values = slope(run.states[:, 1:])[:, :, :, None]
        return Gates(values, values, values)

    return gates


def _rnn_scan(run: Forward, gates: Gates, incoming: Incoming, weights: Weights, scratch: Scratch) -> Backward:
    slopes = gates.values[:, :, :, 0]
    at_h = incoming.last
    for t in reversed(range(slopes.shape[1])):
        at_h = slopes[:, t].mul_(incoming.states[:, t] + at_h) @ weights.hidden
    return Backward(slopes, slopes, (at_h,))


@dataclass(frozen=True)
class Cell:
    """A cell's fused kernel, its gates from known states, and its scan."""

    fused: Callable[..., Any]
    gates: Callable[[Forward, Weights, Scratch], Gates]
    scan: Callable[[Forward, Gates, Incoming, Weights, Scratch], Backward]
    has_memory: bool = False


CELLS = {
    "LSTM": Cell(torch.lstm, _lstm_gates, _lstm_scan, has_memory=True),
    "GRU": Cell(torch.gru, _gru_gates, _gru_scan),
    "RNN_TANH": Cell(torch.rnn_tanh, _rnn_gates(lambda h: 1 - h * h), _rnn_scan),
    "RNN_RELU": Cell(torch.rnn_relu, _rnn_gates(lambda h: (h > 0).to(h.dtype)), _rnn_scan),
}
