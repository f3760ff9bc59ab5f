"""All records of a batch in one ordinary run: for what no record can run by itself, such as parameters that FSDP gathers.

Nothing here keeps a record from seeing another. That the model does not mix them is tested
(`dperm.torch.independence.agreement`), and is the caller's assumption.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from dperm.torch.engine.tracing import RULES, RefusedError, Run, is_property
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

    def _of_parameters(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func in RULES or is_property(func) or not any(map(self.trains, (*args, *kwargs.values()))):
            return super()._of_parameters(func, args, kwargs)
        given = [value for value in (*args, *kwargs.values()) if self.trains(value)]
        if all(parameter.dim() and parameter.shape[0] == 1 for parameter in given):
            return super()._of_parameters(func, args, kwargs)
        raise RefusedError(f"{func.__name__} has no rule, and no record can have a copy of a parameter that is sharded.")
