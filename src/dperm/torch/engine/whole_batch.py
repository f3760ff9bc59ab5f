"""All records of a batch in one ordinary run: for what no record can run by itself, such as parameters that FSDP gathers.

Nothing here keeps a record from seeing another. That the model does not mix them is tested
(`dperm.torch.independence.agreement`), and is the caller's assumption.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dperm.torch.engine.gradient_forms import Dense
from dperm.torch.engine.known_functions import ENTRYWISE
from dperm.torch.engine.tracing import RefusedError, Run
from dperm.torch.tensors.nested import tensors


class Beside(Run):
    """The records are along an axis of every tensor that was made of theirs, several entries a record where there are several."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._of_records: dict[int, weakref.ref[Tensor]] = {}

    def mark(self, made: Any) -> None:
        """Tensors that are made of records."""
        for tensor in tensors(made):
            self._of_records[id(tensor)] = weakref.ref(tensor)

    def is_of_records(self, tensor: Any) -> bool:
        held = self._of_records.get(id(tensor))
        return held is not None and held() is tensor

    def together(
        self,
        body: Callable[..., Any],
        *tensors: Tensor | None,
        axes: Sequence[int | None] | None = None,
        returned: Sequence[int] | None = None,
    ) -> Any:
        size = self.tape.size
        several = any(map(self.is_of_records, tensors))
        places = axes or (0,) * len(tensors)
        outputs = body(*(self._records_first(tensor, axis) for tensor, axis in zip(tensors, places, strict=True)))
        parts = outputs if isinstance(outputs, tuple) else (outputs,)
        found: list[Tensor] = []
        for output, axis in zip(parts, returned or (0,) * len(parts), strict=True):
            if several:
                found.append(output.movedim(0, axis).flatten(axis, axis + 1))
            else:  # one for each record of what belonged to none
                found.append(output[:, 0] if output.dim() > 1 and output.shape[1] == 1 else output)
        self.mark(found)
        assert all(len(output) for output in found) or not size
        return tuple(found) if isinstance(outputs, tuple) else found[0]

    def _records_first(self, tensor: Tensor | None, axis: int | None) -> Tensor | None:
        if tensor is None:
            return None
        size = self.tape.size
        if not self.is_of_records(tensor):
            return tensor.expand(size, *tensor.shape)
        if axis is None or tensor.shape[axis] % size:
            raise RefusedError(
                f"Expected the {size} records along axis {axis} of a tensor that they are in, got shape {tuple(tensor.shape)}."
            )
        return tensor.unflatten(axis, (size, -1)).movedim(axis, 0)

    def rows(self, tensor: Tensor) -> Tensor | None:
        return tensor.detach() if self.is_of_records(tensor) else None

    def agreed(self, tensor: Tensor) -> Tensor:
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = super().__torch_function__(func, types, args, kwargs)
        if any(map(self.is_of_records, tensors((args, kwargs or {})))):
            self.mark(output)
        return output

    def _special(self, func: Any, args: Any, kwargs: Any) -> Any:
        return NotImplemented

    def _is_derived(self, func: Any, parameters: Sequence[Any], given: Sequence[Any], args: Any, kwargs: Any) -> bool:
        if func in _REPEATING and all(map(_is_one, parameters)):  # that is what makes one for each record
            return False
        return super()._is_derived(func, parameters, given, args, kwargs)

    def _by_copies(self, func: Any, parameters: Sequence[Any], args: Any, kwargs: Any) -> Any:
        if func in ENTRYWISE and len(args) == 2 and len(parameters) == 1 and any(map(self.is_of_records, args)):
            other = args[0] if args[1] is parameters[0] else args[1]
            if parameters[0].dim() < other.dim() or (parameters[0].dim() == other.dim() and _is_one(parameters[0])):
                return self._broadcast(func, parameters[0], other, args, kwargs)
        if not all(map(_is_one, parameters)):
            raise RefusedError(f"{func.__name__} has no rule, and no record can have a copy of a parameter that is sharded.")
        if func is Tensor.repeat and not kwargs:  # each record has its own already
            sizes = args[1:] if isinstance(args[1], int) else args[1]
            args = (args[0], (1 if sizes[0] == self.tape.size else sizes[0], *sizes[1:]))
        return super()._by_copies(func, parameters, args, kwargs)

    def _broadcast(self, func: Any, parameter: Any, other: Tensor, args: Any, kwargs: Any) -> Tensor:
        """What a function of each entry makes of the records' tensor and of a view of the parameter for each of them."""
        size, shape = self.tape.size, parameter.shape

        def body(numbers: Tensor) -> Tensor:
            copies = parameter.detach().expand(size, *shape)
            copies = self.tape.tap(copies, [parameter], lambda gradient: [(parameter, Dense(gradient))], ())
            if parameter.dim() < other.dim():
                copies = copies.view(size, *[1] * (other.dim() - parameter.dim()), *shape)
            return func(*(numbers if value is other else copies for value in args), **kwargs)

        return self.together(body, other)


#: They make several of one.
_REPEATING = {Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to, Tensor.broadcast_to, torch.tile, Tensor.tile}


def _is_one(parameter: Tensor) -> bool:
    return bool(parameter.dim()) and parameter.shape[0] == 1
