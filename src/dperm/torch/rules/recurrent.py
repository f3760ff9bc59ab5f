"""nn.LSTM, nn.GRU and nn.RNN: the library's fused kernel forward, one scan of our own backward.

The fused kernel gives every hidden state, so all gates can be computed again at once, in two large products; what is
left for the way back is a short loop over time that yields the gradients of the gates' inputs. These are what a linear
layer's output gradients are: W_ih, W_hh and both biases have per-example gradients Σ_t dgates_t ⊗ (x_t, h_{t−1}, 1, 1).
Both directions of a layer run in one scan. Sequences are padded, and the reverse direction reads each from its own end;
padded positions come after every real one and have no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dperm.torch.forms import Dense, Form, Outer
from dperm.torch.rules.cells import CELLS, Backward, Cell, Forward, Incoming, Weights
from dperm.torch.rules.registry import detached, register, trainable
from dperm.torch.tape import PACKED, Axis, Call, CallLayout, RecordsLostError

__all__ = ["recurrent"]


def _fits(module: Any, layout: CallLayout | None) -> bool:
    return layout is None or layout.arguments[0] in (Axis(0 if module.batch_first else 1), PACKED)


@register(nn.LSTM, nn.GRU, nn.RNN, fits=_fits)
def recurrent(module: Any, call: Call, input: Any, hx: Any = None) -> Any:
    """All layers and directions; returns what the module returns, packed if the input is."""
    cell = CELLS[module.mode]
    lengths: Tensor | None = None
    states: Tensor  # (T, b, features)
    if isinstance(input, PackedSequence):
        states, lengths = pad_packed_sequence(input)
        lengths = lengths.to(states.device)
    else:
        states = input.transpose(0, 1) if module.batch_first else input
    if states.shape[1] != call.size:
        raise RecordsLostError(f"A recurrent layer sees {states.shape[1]} sequences for {call.size} records.")
    directions = 2 if module.bidirectional else 1
    initial = _initial(module, hx, states, directions)
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        part = slice(layer * directions, (layer + 1) * directions)
        states, final = _layer(module, cell, call, layer, states, tuple(item[part] for item in initial), lengths)
        finals.append(final)
        if module.dropout and layer + 1 < module.num_layers:
            states = F.dropout(states, module.dropout, module.training)
    last = tuple(torch.cat(items) for items in zip(*finals, strict=True))
    output: Any = states.transpose(0, 1) if module.batch_first else states
    if isinstance(input, PackedSequence):
        output = _packed_like(input, states, lengths)
    return output, last if cell.has_memory else last[0]


def _initial(module: Any, hx: Any, states: Tensor, directions: int) -> tuple[Tensor, ...]:
    """(layers·directions, b, size) initial hidden states, and memories for an LSTM."""
    if hx is not None:
        return tuple(hx) if isinstance(hx, (tuple, list)) else (hx,)
    count, b = module.num_layers * directions, states.shape[1]
    hidden = states.new_zeros(count, b, module.proj_size or module.hidden_size)
    if module.mode != "LSTM":
        return (hidden,)
    return hidden, states.new_zeros(count, b, module.hidden_size)


class _Names(NamedTuple):
    """The parameters of one direction of one layer; None where the module has none."""

    input: nn.Parameter
    hidden: nn.Parameter
    input_bias: nn.Parameter | None
    hidden_bias: nn.Parameter | None
    projection: nn.Parameter | None


def _layer(
    module: Any, cell: Cell, call: Call, layer: int, states: Tensor, initial: tuple[Tensor, ...], lengths: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer, both directions: outputs (T, b, directions·size) and final states (directions, b, size)."""
    names = [
        _Names(
            getattr(module, f"weight_ih_l{layer}{suffix}"),
            getattr(module, f"weight_hh_l{layer}{suffix}"),
            getattr(module, f"bias_ih_l{layer}{suffix}", None),
            getattr(module, f"bias_hh_l{layer}{suffix}", None),
            getattr(module, f"weight_hr_l{layer}{suffix}", None),
        )
        for suffix in ("", "_reverse")[: len(initial[0])]
    ]
    turned = [states] if len(names) == 1 else [states, _reversed(states, lengths)]
    learned = trainable(*(parameter for group in names for parameter in group))
    run = _Run(cell, call, names, learned, lengths)
    call.tape.expect(learned)
    outputs, *final = _Scan.apply(torch.stack(turned), call.tape.anchor, run, *initial)
    if len(names) == 1:
        return outputs[0], tuple(final)
    return torch.cat([outputs[0], _reversed(outputs[1], lengths)], dim=-1), tuple(final)


@dataclass(frozen=True)
class _Run:
    """What the scan needs besides tensors."""

    cell: Cell
    call: Call
    names: list[_Names]
    learned: list[nn.Parameter]
    lengths: Tensor | None

    @property
    def weights(self) -> list[list[Tensor]]:
        """Each direction's weights in the order of the fused kernel."""
        return [[detached(parameter) for parameter in group if parameter is not None] for group in self.names]

    def stacked(self) -> Weights:
        def stack(parameters: list[nn.Parameter]) -> Tensor:
            return torch.stack([detached(parameter) for parameter in parameters])

        def stack_any(parameters: list[nn.Parameter | None]) -> Tensor | None:
            present = [parameter for parameter in parameters if parameter is not None]
            return stack(present) if present else None

        return Weights(
            stack([group.input for group in self.names]),
            stack([group.hidden for group in self.names]),
            stack_any([group.input_bias for group in self.names]),
            stack_any([group.hidden_bias for group in self.names]),
            stack_any([group.projection for group in self.names]),
        )


class _Scan(torch.autograd.Function):
    """One layer as one node: x (D, T, b, features) → outputs (D, T, b, size), final states (D, b, size)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, run: _Run, *initial: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        finals: list[tuple[Tensor, ...]] = []
        for direction, weights in enumerate(run.weights):
            start = tuple(item[direction : direction + 1].contiguous() for item in initial)
            result = run.cell.fused(
                x[direction], start if run.cell.has_memory else start[0], weights,
                run.names[direction].input_bias is not None, 1, 0.0, False, False, False,
            )  # fmt: skip
            outputs.append(result[0])
            finals.append(tuple(item[0] for item in result[1:]))
        stacked = torch.stack(outputs)
        final = [torch.stack(items) for items in zip(*finals, strict=True)]
        states = torch.cat([initial[0][:, None], stacked], dim=1)
        memory = initial[1] if run.cell.has_memory else None
        if run.lengths is not None:
            final[0] = _at_end(stacked, run.lengths)
            if run.cell.has_memory:
                gates = run.cell.gates(Forward(x, states, memory), run.stacked(), run.call.tape.scratch)
                final[1] = _at_end(gates.memory[:, 1:], run.lengths)
        ctx.run = run
        ctx.save_for_backward(x, states, *([memory] if run.cell.has_memory else []))
        return stacked, *final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # detached: a view of a saved tensor would hold the graph
        x, states, *more = (tensor.detach() for tensor in ctx.saved_tensors)
        run: _Run = ctx.run
        scratch = run.call.tape.scratch
        weights = run.stacked()
        forward = Forward(x, states, more[0] if more else None)
        gates = run.cell.gates(forward, weights, scratch)
        scan = run.cell.scan(forward, gates, _incoming(run, gradients), weights, scratch)
        with torch.autocast(x.device.type, enabled=False):
            run.call.tape.add(_forms(run, x, states, scan))
        d, t, b, width = x.shape
        at_x = None
        if ctx.needs_input_grad[0]:
            at_x = torch.bmm(scan.input_gates.reshape(d, t * b, -1), weights.input).view(d, t, b, width)
        return at_x, None, None, *scan.initial


def _at_end(states: Tensor, lengths: Tensor) -> Tensor:
    """(D, b, size): the states (D, T, b, size) at each sequence's last step."""
    last = (lengths - 1)[None, None, :, None]
    return states.gather(1, last.expand(len(states), 1, -1, states.shape[-1]))[:, 0]


def _incoming(run: _Run, gradients: Sequence[Tensor]) -> Incoming:
    at_outputs, at_last, *more = (gradient.detach() for gradient in gradients)
    at_memory = more[0] if run.cell.has_memory else None
    if run.lengths is None:
        return Incoming(at_outputs, at_last, at_memory, None)
    # sequences end at different steps: their final states' gradients enter there
    ends, records = run.lengths - 1, torch.arange(len(run.lengths), device=at_outputs.device)
    at_outputs = at_outputs.clone()
    at_outputs[:, ends, records] += at_last
    if at_memory is None:
        return Incoming(at_outputs, torch.zeros_like(at_last), None, None)
    memories = at_memory.new_zeros(*at_outputs.shape[:3], at_memory.shape[-1])
    memories[:, ends, records] = at_memory
    return Incoming(at_outputs, torch.zeros_like(at_last), torch.zeros_like(at_memory), memories)


def _forms(run: _Run, x: Tensor, states: Tensor, scan: Backward) -> Iterator[tuple[nn.Parameter, Form]]:
    for direction, names in enumerate(run.names):
        from_input = scan.input_gates[direction].transpose(0, 1)  # (b, T, gates)
        from_hidden = scan.hidden_gates[direction].transpose(0, 1)
        sums = Dense(from_input.sum(1))
        hidden_sums = sums if scan.input_gates is scan.hidden_gates else Dense(from_hidden.sum(1))
        forms: list[tuple[nn.Parameter | None, Form]] = [
            (names.input, Outer(from_input, x[direction].transpose(0, 1))),
            (names.hidden, Outer(from_hidden, states[direction, :-1].transpose(0, 1))),
            (names.input_bias, sums),
            (names.hidden_bias, hidden_sums),
        ]
        if scan.projected is not None and scan.unprojected is not None:
            pair = (scan.projected[direction].transpose(0, 1), scan.unprojected[direction].transpose(0, 1))
            forms.append((names.projection, Outer(*pair)))
        for parameter, form in forms:
            if parameter is not None and parameter.requires_grad:
                yield parameter, form


def _reversed(states: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, b, ...) with each sequence read from its own end; what is beyond its length stays where it is."""
    if lengths is None:
        return states.flip(0)
    time = torch.arange(len(states), device=states.device)[:, None]
    source = torch.where(time < lengths, lengths - 1 - time, time)
    return states.gather(0, source[:, :, None].expand_as(states))


def _packed_like(packed: PackedSequence, states: Tensor, lengths: Any) -> PackedSequence:
    """Padded states (T, b, size) in the order and shape of the packed input."""
    order = packed.sorted_indices
    if order is not None:
        states, lengths = states[:, order], lengths[order]
    data = pack_padded_sequence(states, lengths.cpu()).data
    return PackedSequence(data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices)
