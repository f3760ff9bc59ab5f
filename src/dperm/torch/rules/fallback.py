"""Any other module: one copy of its parameters per record, so that autograd gives each its gradient.

Under vmap: exact for whatever vmap can run, at the price of b copies of the module's parameters' gradients. Record by record:
exact for whatever runs on one record, at the price of b calls as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dperm.torch.coins import drawing_alone
from dperm.torch.forms import Dense, Form
from dperm.torch.state import Snapshot
from dperm.torch.structure import map_tensors, tensors
from dperm.torch.tape import Axis, Call, RecordsLostError

__all__ = ["fallback", "record_by_record"]

#: (copies of parameters, one record's tensors) → one record's outputs
_One = Callable[..., list[Tensor]]


def fallback(module: nn.Module, call: Call, *args: Any, **kwargs: Any) -> Any:
    """`module(*args, **kwargs)` under vmap, with a tap on every trainable parameter below it."""

    def together(one: _One, copies: dict[str, Tensor], moved: Sequence[Tensor], axes: Sequence[int | None]) -> Any:
        return torch.vmap(one, in_dims=(0, *axes), randomness="different")(copies, *moved)

    return _with_copies(together, module, call, args, kwargs)


def record_by_record(module: nn.Module, call: Call, *args: Any, **kwargs: Any) -> Any:
    """The same with one call per record. Each starts from the module's state as it is, and leaves it so: what a record adds must
    not hang on who came before."""
    kept = Snapshot([module], without=module.parameters(), light=True)
    handed = Snapshot([args, kwargs], without=tensors((args, kwargs)), light=True)

    def in_turn(one: _One, copies: dict[str, Tensor], moved: Sequence[Tensor], axes: Sequence[int | None]) -> Any:
        apart = {name: copy.unbind(0) for name, copy in copies.items()}
        own = [tensor.unbind(0) if axis is not None else None for tensor, axis in zip(moved, axes, strict=True)]
        outputs: list[list[Tensor]] = []
        for record in range(call.size):
            mine = [whole if parts is None else parts[record] for whole, parts in zip(moved, own, strict=True)]
            # of its own: what one call writes into them must not reach what another saved for its way back
            buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
            with drawing_alone(record):
                outputs.append(one(buffers | {name: parts[record] for name, parts in apart.items()}, *mine))
            kept.restore()
            if handed.apart(Snapshot([args, kwargs], without=tensors((args, kwargs)), light=True)):
                raise RecordsLostError(
                    f"{type(module).__name__} writes into what it is given: only the last record would be left."
                )
        return [torch.stack(parts) for parts in zip(*outputs, strict=True)]

    return _with_copies(in_turn, module, call, args, kwargs)


def _with_copies(run: Callable[..., Any], module: nn.Module, call: Call, args: Any, kwargs: Any) -> Any:
    size = call.size
    names = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    given = tensors((args, kwargs))
    # a tensor that holds several entries per record is cut so that each record has an axis of its own
    moved = [axis.to_front(tensor, size) if axis else tensor for tensor, axis in zip(given, call.layout.arguments, strict=True)]
    copies = {name: _tapped(call, parameter) for name, parameter in names.items()}
    structures: list[Any] = []

    def one(parameters: dict[str, Tensor], *mine: Tensor) -> list[Tensor]:
        whole = [_as_given(tensor, axis) for tensor, axis in zip(mine, call.layout.arguments, strict=True)]
        source = iter(whole)
        my_args, my_kwargs = map_tensors(lambda _: next(source), (args, kwargs))
        output = functional_call(module, parameters, my_args, my_kwargs)
        structures.append(output)
        if len(returned := tensors(output)) != len(call.layout.outputs):
            raise RecordsLostError(
                f"{type(module).__name__} returns {len(returned)} tensors, and {len(call.layout.outputs)} when it was looked at."
            )
        return [_one_record(tensor, axis) for tensor, axis in zip(returned, call.layout.outputs, strict=True)]

    outputs = run(one, copies, moved, [0 if axis else None for axis in call.layout.arguments])
    results = [
        _restored(tensor, axis, call.layout.leading_one) for tensor, axis in zip(outputs, call.layout.outputs, strict=True)
    ]
    source = iter(results)
    return map_tensors(lambda _: next(source), structures[-1])


def _tapped(call: Call, parameter: nn.Parameter) -> Tensor:
    """(b, *shape): one copy of the parameter per record."""

    def read(gradient: Tensor) -> list[tuple[nn.Parameter, Form]]:
        return [(parameter, Dense(gradient))]

    return call.tap(parameter.detach().expand(call.size, *parameter.shape), [parameter], read)


def _as_given(tensor: Tensor, axis: Axis | None) -> Tensor:
    """One record's entries where the module expects a batch: as a batch of one (or of its `multiple`)."""
    if axis is None or axis.multiple != 1:
        return tensor
    return tensor.unsqueeze(axis.dim)


def _one_record(tensor: Tensor, axis: Axis | None) -> Tensor:
    return tensor.squeeze(axis.dim) if axis and axis.multiple == 1 else tensor


def _restored(tensor: Tensor, axis: Axis | None, leading_one: bool) -> Tensor:
    """(b, ...) back to where the module's caller expects the records."""
    if axis is None:
        # one copy per record of something that belonged to none; a leading axis of one becomes the records'
        return tensor.flatten(0, 1) if leading_one else tensor
    tensor = tensor.movedim(0, axis.dim)
    return tensor.flatten(axis.dim, axis.dim + 1) if axis.multiple != 1 else tensor
