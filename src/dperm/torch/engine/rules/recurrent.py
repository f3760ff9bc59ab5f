"""nn.LSTM, nn.GRU and nn.RNN, by the library's fused kernel forward and one scan of our own backward; and cells of one step.

The fused kernel gives every hidden state, so all gates can be computed again at once, in two large products; what is left for
the way back is a short loop over time that yields the gradients of the gates' inputs. These are what a linear layer's output
gradients are: W_ih, W_hh and both biases have per-example gradients Σ_t dgates_t ⊗ (x_t, h_{t−1}, 1, 1). Both directions of a
layer run in one scan. Sequences are padded, and the reverse direction reads each from its own end; padded positions come
after every real one and have no gradient. Columns of the kernel's batch never meet: state t of a sequence is computed from
its own input t and its own state t − 1.

A packed sequence of one record keeps its padding here: its lengths are remembered beside its batch sizes, which count one
sequence at every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.by_record import Alone
from dperm.torch.engine.gradient_forms import Dense, Form, Outer
from dperm.torch.engine.layer_taps import Tape
from dperm.torch.engine.rules.cells import CELLS, Backward, Cell, Forward, Incoming, Weights
from dperm.torch.engine.rules.linear import affine
from dperm.torch.engine.tracing import SPECIAL, Run, detached, rule_for


def _rule(mode: str) -> Any:
    def rule(run: Run, *args: Any) -> Any:
        return recurrent(run, mode, *args)

    return rule


for _function, _mode in ((torch.lstm, "LSTM"), (torch.gru, "GRU"), (torch.rnn_tanh, "RNN_TANH"), (torch.rnn_relu, "RNN_RELU")):
    rule_for(_function)(_rule(_mode))


def recurrent(run: Run, mode: str, input: Tensor, *args: Any) -> Any:
    """All layers and directions. The arguments are those of the fused functions, for padded or for packed sequences."""
    packed = not isinstance(args[2], bool)  # (data, batch_sizes, hx, weights, ...) in place of (input, hx, weights, ...)
    hx, weights, has_biases, layers, dropout, train, bidirectional = args[1:8] if packed else args[:7]
    batch_first = not packed and args[7]
    if not run.constant(*weights) or run.trains(input) or (packed and id(args[0]) not in run.packed):
        return NotImplemented
    lengths = run.packed[id(args[0])][1] if packed else None
    initial = [run.own(state) if run.trains(state) else state for state in (hx if isinstance(hx, (tuple, list)) else (hx,))]
    directions = 2 if bidirectional else 1
    groups = _by_direction(weights, has_biases, layers * directions)
    cell = CELLS[mode]

    def body(x: Tensor, ends: Tensor | None, *starts: Tensor) -> Any:
        size = len(x)
        x = x[:, :, None] if packed else x.transpose(1, 2) if batch_first else x  # (b, T, n, features)
        steps, several = x.shape[1:3]
        states = x.transpose(0, 1).flatten(1, 2)  # (T, b·n, features)
        whole = tuple(start.transpose(0, 1).flatten(1, 2) for start in starts)  # (layers·directions, b·n, size)
        ends = None if ends is None else ends.reshape(size).clamp(1, steps)
        finals: list[tuple[Tensor, ...]] = []
        for number in range(layers):
            part = slice(number * directions, (number + 1) * directions)
            learned = run.learned(*(parameter for group in groups[part] for parameter in group))
            layer = _Layer(cell, run.tape, groups[part], learned, ends, several)
            states, final = layer(states, tuple(start[part] for start in whole))
            finals.append(final)
            if dropout and train and number + 1 < layers:
                by_record = states.unflatten(1, (size, several)).transpose(0, 1)
                states = run.dropout(by_record, dropout).transpose(0, 1).flatten(1, 2)
        last = [torch.cat(items).unflatten(1, (size, several)).transpose(0, 1) for items in zip(*finals, strict=True)]
        output = states.unflatten(1, (size, several)).transpose(0, 1)  # (b, T, n, size)
        output = output[:, :, 0] if packed else output.transpose(1, 2) if batch_first else output
        return output, *last

    batch = 0 if batch_first else 1
    axes, returned = (batch, 0, *[1] * len(initial)), (batch, *[1] * len(initial))
    return run.together(body, input, lengths, *initial, axes=axes, returned=returned)


def _pack(run: Run, func: Any, input: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """(data (T, features), batch sizes) of one record's sequence, which stays padded."""
    sequence = input if batch_first else input.transpose(0, 1)
    if sequence.shape[0] != 1 or isinstance(run, Alone):
        return NotImplemented
    sizes = torch.ones(sequence.shape[1], dtype=torch.int64)
    run.packed[id(sizes)] = sizes, lengths
    return sequence[0], sizes


def _pad(run: Run, func: Any, data: Tensor, sizes: Tensor, batch_first: bool, value: float, total: int) -> Any:
    """(padded, lengths) of what `_pack` packed."""
    if id(sizes) not in run.packed:
        return NotImplemented
    lengths = run.packed[id(sizes)][1]
    beyond = torch.arange(len(sizes), device=data.device) >= lengths.to(data.device)
    padded = torch.where(beyond.reshape(-1, *[1] * (data.dim() - 1)), value, data)
    if total > len(sizes):
        padded = F.pad(padded, (*[0] * (2 * data.dim() - 1), total - len(sizes)), value=value)
    return padded[None] if batch_first else padded[:, None], lengths


# `torch.nn.utils.rnn` calls them; Python sees no other name of theirs
SPECIAL |= {
    function: special
    for name, special in (("_pack_padded_sequence", _pack), ("_pad_packed_sequence", _pad))
    if (function := getattr(torch, name, None)) is not None
}


class _Names(NamedTuple):
    """The parameters of one direction of one layer; None where the module has none."""

    input: Any
    hidden: Any
    input_bias: Any
    hidden_bias: Any
    projection: Any


def _by_direction(weights: Sequence[Any], has_biases: bool, count: int) -> list[_Names]:
    each = len(weights) // count
    groups = [list(weights[start : start + each]) for start in range(0, len(weights), each)]
    none = (None, None)
    named = [(*group[:2], *(group[2:4] if has_biases else none), group[-1] if each % 2 else None) for group in groups]
    return [_Names(*each) for each in named]


@dataclass(frozen=True)
class _Layer:
    """One layer, both directions, of `several` sequences a record: what the scan needs besides tensors."""

    cell: Cell
    tape: Tape
    names: list[_Names]
    learned: list[nn.Parameter]
    lengths: Tensor | None
    several: int

    def __call__(self, states: Tensor, initial: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Outputs (T, b·n, directions·size) and final states (directions, b·n, size), from states (T, b·n, features)."""
        turned = [states] if len(self.names) == 1 else [states, _reversed(states, self.lengths)]
        self.tape.expect(self.learned)
        outputs, *final = _Scan.apply(torch.stack(turned), self.tape.anchor, self, *initial)
        if len(self.names) == 1:
            return outputs[0], tuple(final)
        return torch.cat([outputs[0], _reversed(outputs[1], self.lengths)], dim=-1), tuple(final)

    def by_record(self, values: Tensor) -> Tensor:
        """(b, n·T, width) from (T, b·n, width)."""
        return values.transpose(0, 1).reshape(self.tape.size, -1, values.shape[-1])

    @property
    def weights(self) -> list[list[Tensor]]:
        """Each direction's weights in the order of the fused kernel."""
        return [[detached(parameter) for parameter in group if parameter is not None] for group in self.names]

    def stacked(self) -> Weights:
        def stack(parameters: list[Any]) -> Any:
            present = [detached(parameter) for parameter in parameters if parameter is not None]
            return torch.stack(present) if present else None

        return Weights(*(stack(list(parameters)) for parameters in zip(*self.names, strict=True)))


class _Scan(torch.autograd.Function):
    """One layer as one node: x (D, T, b, features) → outputs (D, T, b, size), final states (D, b, size)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: _Layer, *initial: Tensor) -> tuple[Tensor, ...]:
        outputs: list[Tensor] = []
        finals: list[tuple[Tensor, ...]] = []
        for direction, weights in enumerate(layer.weights):
            start = tuple(item[direction : direction + 1].contiguous() for item in initial)
            result = layer.cell.fused(
                x[direction], start if layer.cell.has_memory else start[0], weights,
                layer.names[direction].input_bias is not None, 1, 0.0, False, False, False,
            )  # fmt: skip
            outputs.append(result[0])
            finals.append(tuple(item[0] for item in result[1:]))
        stacked = torch.stack(outputs)
        final = [torch.stack(items) for items in zip(*finals, strict=True)]
        states = torch.cat([initial[0][:, None], stacked], dim=1)
        memory = initial[1] if layer.cell.has_memory else None
        if layer.lengths is not None:
            final[0] = _at_end(stacked, layer.lengths)
            if layer.cell.has_memory:
                gates = layer.cell.gates(Forward(x, states, memory), layer.stacked(), layer.tape.scratch)
                final[1] = _at_end(gates.memory[:, 1:], layer.lengths)
        ctx.layer = layer
        ctx.save_for_backward(x, states, *([memory] if layer.cell.has_memory else []))
        return stacked, *final

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        # detached: a view of a saved tensor would hold the graph
        x, states, *more = (tensor.detach() for tensor in ctx.saved_tensors)
        layer: _Layer = ctx.layer
        scratch = layer.tape.scratch
        weights = layer.stacked()
        forward = Forward(x, states, more[0] if more else None)
        gates = layer.cell.gates(forward, weights, scratch)
        scan = layer.cell.scan(forward, gates, _incoming(layer, gradients), weights, scratch)
        with torch.autocast(x.device.type, enabled=False):
            layer.tape.add(_forms(layer, x, states, scan))
        d, t, b, width = x.shape
        at_x = None
        if ctx.needs_input_grad[0]:
            at_x = torch.bmm(scan.input_gates.reshape(d, t * b, -1), weights.input).view(d, t, b, width)
        return at_x, None, None, *scan.initial


def _at_end(states: Tensor, lengths: Tensor) -> Tensor:
    """(D, b, size): the states (D, T, b, size) at each sequence's last step."""
    last = (lengths - 1)[None, None, :, None]
    return states.gather(1, last.expand(len(states), 1, -1, states.shape[-1]))[:, 0]


def _incoming(layer: _Layer, gradients: Sequence[Tensor]) -> Incoming:
    at_outputs, at_last, *more = (gradient.detach() for gradient in gradients)
    at_memory = more[0] if layer.cell.has_memory else None
    if layer.lengths is None:
        return Incoming(at_outputs, at_last, at_memory, None)
    # sequences end at different steps: their final states' gradients enter there
    ends, records = layer.lengths - 1, torch.arange(len(layer.lengths), device=at_outputs.device)
    at_outputs = at_outputs.clone()
    at_outputs[:, ends, records] += at_last
    if at_memory is None:
        return Incoming(at_outputs, torch.zeros_like(at_last), None, None)
    memories = at_memory.new_zeros(*at_outputs.shape[:3], at_memory.shape[-1])
    memories[:, ends, records] = at_memory
    return Incoming(at_outputs, torch.zeros_like(at_last), torch.zeros_like(at_memory), memories)


def _forms(layer: _Layer, x: Tensor, states: Tensor, scan: Backward) -> Iterator[tuple[nn.Parameter, Form]]:
    for direction, names in enumerate(layer.names):
        from_input = layer.by_record(scan.input_gates[direction])  # (b, n·T, gates)
        from_hidden = layer.by_record(scan.hidden_gates[direction])
        sums = Dense(from_input.sum(1))
        hidden_sums = sums if scan.input_gates is scan.hidden_gates else Dense(from_hidden.sum(1))
        forms: list[tuple[nn.Parameter | None, Form]] = [
            (names.input, Outer(from_input, layer.by_record(x[direction]))),
            (names.hidden, Outer(from_hidden, layer.by_record(states[direction, :-1]))),
            (names.input_bias, sums),
            (names.hidden_bias, hidden_sums),
        ]
        if scan.projected is not None and scan.unprojected is not None:
            pair = (layer.by_record(scan.projected[direction]), layer.by_record(scan.unprojected[direction]))
            forms.append((names.projection, Outer(*pair)))
        for parameter, form in forms:
            if parameter is not None and any(parameter is learned for learned in layer.learned):
                yield parameter, form


def _reversed(states: Tensor, lengths: Tensor | None) -> Tensor:
    """(T, b, ...) with each sequence read from its own end; what is beyond its length stays where it is."""
    if lengths is None:
        return states.flip(0)
    time = torch.arange(len(states), device=states.device)[:, None]
    source = torch.where(time < lengths, lengths - 1 - time, time)
    return states.gather(0, source[:, :, None].expand_as(states))


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
