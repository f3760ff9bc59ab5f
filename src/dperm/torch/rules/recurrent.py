"""nn.LSTM, nn.GRU and nn.RNN: the library's fused kernel forward, one scan of our own backward.

The fused kernel gives every hidden state, so all gates can be computed again at once, in two large products; what is
left for the way back is a short loop over time that yields the gradients of the gates' inputs. These are what a linear
layer's output gradients are: W_ih, W_hh and both biases have per-example gradients Σ_t dgates_t ⊗ (x_t, h_{t−1}, 1, 1).
Both directions of a layer run in one scan. Sequences are padded, and the reverse direction reads each from its own end;
padded positions come after every real one and have no gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from dperm.torch.forms import Dense, Form, Outer
from dperm.torch.rules.cells import CELLS, Cell, Weights
from dperm.torch.rules.registry import detached, register, trainable
from dperm.torch.tape import PACKED, Axis, Call, CallLayout

__all__ = ["recurrent"]


def _fits(module: Any, layout: CallLayout | None) -> bool:
    return layout is None or layout.arguments[0] in (Axis(0 if module.batch_first else 1), PACKED)


@register(nn.LSTM, nn.GRU, nn.RNN, fits=_fits)
def recurrent(module: Any, call: Call, input: Any, hx: Any = None) -> Any:
    """All layers and directions; returns what the module returns, packed if the input is."""
    cell = CELLS[module.mode]
    packed = input if isinstance(input, PackedSequence) else None
    lengths: Tensor | None = None
    if packed is not None:
        states, lengths = pad_packed_sequence(packed)
        lengths = lengths.to(states.device)
    else:
        states = input.transpose(0, 1) if module.batch_first else input  # (T, b, features)
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
    if packed is not None:
        output = _packed_like(packed, states, lengths)
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
        def stack(field: int) -> Tensor | None:
            found = [group[field] for group in self.names]
            return None if found[0] is None else torch.stack([detached(item) for item in found])

        return Weights(*(stack(field) for field in range(5)))  # type: ignore[arg-type]


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
        if run.lengths is not None:
            last = (run.lengths - 1)[None, None, :, None]
            final[0] = stacked.gather(1, last.expand(len(stacked), 1, -1, stacked.shape[-1]))[:, 0]
            if run.cell.has_memory:
                memory = run.cell.gates(x, stacked, initial, run.stacked()).memory
                final[1] = memory.gather(1, last.expand(len(memory), 1, -1, memory.shape[-1]))[:, 0]
        ctx.run = run
        ctx.save_for_backward(x, stacked, *initial)
        return stacked, *final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, outputs, *initial = (tensor.detach() for tensor in ctx.saved_tensors)
        run: _Run = ctx.run
        weights = run.stacked()
        at_outputs, *at_final = gradients
        at_outputs = at_outputs.clone()
        at_memory: Tensor | None = None
        d, t, b, _ = at_outputs.shape
        last = torch.full((b,), t - 1, device=x.device) if run.lengths is None else run.lengths - 1
        records = torch.arange(b, device=x.device)
        at_outputs[:, last, records] += at_final[0]
        if run.cell.has_memory:
            at_memory = at_outputs.new_zeros(d, t, b, at_final[1].shape[-1])
            at_memory[:, last, records] = at_final[1]
        gates = run.cell.gates(x, outputs, tuple(initial), weights)
        scan = run.cell.scan(gates, at_outputs, at_memory, weights)
        with torch.autocast(x.device.type, enabled=False):
            run.call.tape.add(_forms(run, x, outputs, initial[0], scan))
        at_x = scan.input_gates @ weights.input[:, None] if ctx.needs_input_grad[0] else None
        return at_x, None, None, *scan.initial


def _forms(run: _Run, x: Tensor, outputs: Tensor, initial: Tensor, scan: Any) -> Iterator[tuple[nn.Parameter, Form]]:
    before = torch.cat([initial[:, None], outputs[:, :-1]], dim=1)
    for direction, names in enumerate(run.names):
        from_input = scan.input_gates[direction].transpose(0, 1)  # (b, T, gates)
        from_hidden = scan.hidden_gates[direction].transpose(0, 1)
        found: list[tuple[nn.Parameter | None, Form]] = [
            (names.input, Outer(from_input, x[direction].transpose(0, 1))),
            (names.hidden, Outer(from_hidden, before[direction].transpose(0, 1))),
            (names.input_bias, Dense(from_input.sum(1))),
            (names.hidden_bias, Dense(from_hidden.sum(1))),
        ]
        if names.projection is not None:
            pair = (scan.projected[direction].transpose(0, 1), scan.unprojected[direction].transpose(0, 1))
            found.append((names.projection, Outer(*pair)))
        for parameter, form in found:
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
