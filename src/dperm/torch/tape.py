"""One pass: layers tap their outputs on the way forward; gradients become per-example forms on the way back.

A tap is an identity in the graph of activations. Layers run with detached parameters, so autograd computes gradients of
layer outputs only; every tap hands its output gradient G to the layer's rule as soon as it is known, and G and the
layer's input are freed with the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.flat import FlatParameters
from dperm.torch.forms import Form, total
from dperm.torch.scratch import Pool

__all__ = ["PACKED", "Axis", "Call", "CallLayout", "Reader", "RecordsLostError", "Tape", "repeated"]

#: (output gradient, *saved) → (parameter, form) pairs
Reader = Callable[..., Iterable[tuple[nn.Parameter, Form]]]


class RecordsLostError(ValueError):
    """A tensor's shape does not follow from the number of records."""


@dataclass(frozen=True)
class Axis:
    """Where the records are in a tensor: `multiple`·b entries along axis `dim`, those of one record together."""

    dim: int
    multiple: int = 1

    def to_front(self, tensor: Tensor, size: int) -> Tensor:
        """The same numbers with the records, and nothing else, along the first axis. Raises RecordsLostError."""
        if tensor.shape[self.dim] != size * self.multiple:
            raise RecordsLostError(
                f"A layer sees {tensor.shape[self.dim]} entries for {size} records, where {self.multiple} a record were "
                "expected: some records, or some of their entries, take another way through the model than others."
            )
        if self.multiple != 1:
            tensor = tensor.unflatten(self.dim, (size, self.multiple))
        return tensor.movedim(self.dim, 0)


#: The axis of a packed sequence's data, where entries of all records alternate.
PACKED = Axis(-1, 0)


@dataclass(frozen=True)
class CallLayout:
    """Axes of the tensors among one call's arguments and outputs; None for a tensor that belongs to no record."""

    arguments: tuple[Axis | None, ...]
    outputs: tuple[Axis | None, ...]
    leading_one: bool = False  # of the first output, where it belongs to no record: the records take that axis

    @property
    def shared(self) -> bool:
        """Whether the call sees no record: its outputs are then repeated for each."""
        return not any(self.arguments)


class Tape:
    """What one forward and one backward of `size` records at the parameters of `flat` leave behind.

    Memory for the forms comes from `pool`. With `norms_only`, forms are dropped as soon as their norms are known.
    """

    def __init__(self, size: int, flat: FlatParameters, norms_only: bool, pool: Pool) -> None:
        self.size = size
        self.flat = flat
        self.scratch = pool.lease()
        self._pool = pool
        self.norms_only = norms_only
        self.forms: dict[nn.Parameter, Form] = {}
        self.squares: list[tuple[int, Tensor]] = []
        self.recording = True  # False on the way back, where checkpointed layers run forward once more
        self._uses: dict[nn.Parameter, int] = {}
        self._pending: dict[nn.Parameter, list[Form]] = {}
        self.anchor = torch.zeros((), dtype=flat.dtype, device=flat.device, requires_grad=True)

    def tap(self, output: Tensor, parameters: Iterable[nn.Parameter], reader: Reader, saved: tuple[Tensor, ...]) -> Tensor:
        """`output`, whose gradient will be read; `parameters` are those that the reader will speak of."""
        self.expect(parameters)
        return _Tap.apply(output, self.anchor, self, reader, *saved)  # type: ignore[no-any-return]

    def expect(self, parameters: Iterable[nn.Parameter]) -> None:
        """One more use of each of `parameters` is on its way forward."""
        if self.recording:
            for parameter in parameters:
                self._uses[parameter] = self._uses.get(parameter, 0) + 1

    def add(self, forms: Iterable[tuple[nn.Parameter, Form]]) -> None:
        """Take forms in; a parameter's norm is computed when its last use has arrived."""
        for parameter, form in forms:
            pending = self._pending.setdefault(parameter, [])
            pending.append(form)
            if len(pending) == self._uses[parameter]:
                self._finish(parameter, self._pending.pop(parameter))

    def finish(self) -> None:
        """Parameters with uses that no loss depends on."""
        for parameter, pending in self._pending.items():
            self._finish(parameter, pending)
        self._pending.clear()

    def _finish(self, parameter: nn.Parameter, pending: list[Form]) -> None:
        form = total(pending)
        if self.norms_only:
            lease = self._pool.lease()  # of its own: used again by the next parameter
            settled = form.settled(lease)
        else:
            settled = self.forms[parameter] = form.settled(self.scratch)
        self.squares.append((self.flat.group_of[parameter], settled.squares()))

    def drop(self, bad: Tensor) -> None:
        """Zero the contributions of the records in `bad` (b,): 0·nan is nan, so a factor of 0 is not enough."""
        for parameter, form in self.forms.items():
            self.forms[parameter] = form.without(bad)


class Call:
    """One call of a tapped module: the tape, and where the records are."""

    def __init__(self, tape: Tape, layout: CallLayout) -> None:
        self.tape = tape
        self.size = tape.size
        self.layout = layout

    def front(self, tensor: Tensor, axis: Axis, features: int) -> Tensor:
        """(b, T, *features) from a tensor whose last `features` axes are kept and whose others become T."""
        whole = axis.to_front(tensor, self.size)
        kept = whole.shape[whole.dim() - features :]
        return whole.reshape(self.size, -1, *kept)

    def multiple(self, output: Tensor) -> int:
        """Entries per record along the first axis of an output, as its first argument has them."""
        axis = self.layout.arguments[0]
        assert axis is not None and axis.dim == 0
        if output.shape[0] != self.size * axis.multiple:
            raise RecordsLostError(f"A layer sees {output.shape[0]} entries for {self.size} records.")
        return axis.multiple

    def tap(self, output: Tensor, parameters: Iterable[nn.Parameter], reader: Reader, *saved: Tensor) -> Tensor:
        return self.tape.tap(output, parameters, reader, saved)

    def repeated(self, output: Tensor) -> Tensor:
        return repeated(output, self.size, self.layout.leading_one)


def repeated(output: Tensor, size: int, leading_one: bool) -> Tensor:
    """One copy per record of an output that belongs to no record, so that each copy has a gradient of its own.

    The records take the place of a leading axis of one, or get an axis before all others.
    """
    if not leading_one:
        return output.expand(size, *output.shape)
    if output.shape[0] != 1:
        raise RecordsLostError(f"Expected a leading axis of one, as when the model was checked, got shape {tuple(output.shape)}.")
    return output.expand(size, *output.shape[1:])


class _Tap(torch.autograd.Function):
    """The identity. In place, so that layers that overwrite their input (ReLU(inplace=True)) may follow."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, tape: Tape, reader: Reader, *saved: Tensor) -> Tensor:
        ctx.tape, ctx.reader = tape, reader
        ctx.save_for_backward(*saved)
        ctx.count = len(saved)
        if 0 in output.stride():  # copies that share memory cannot be overwritten
            return output.view_as(output)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0]
        with torch.autocast(gradient.device.type, enabled=False):
            # detached: a view of a saved output would hold the graph, and the graph holds this tape
            ctx.tape.add(ctx.reader(gradient.detach(), *(tensor.detach() for tensor in ctx.saved_tensors)))
        return gradient, None, None, None, *[None] * ctx.count
