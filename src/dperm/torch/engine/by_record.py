"""Runs in which code sees one record: all records of a physical batch in step, under `torch.vmap`, or one record alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dperm.torch.engine.batching import together
from dperm.torch.engine.checkpoints import run_part
from dperm.torch.engine.known_functions import CHECKPOINTING, inplace_argument, module_of, written_by
from dperm.torch.engine.randomness import draws_by_name
from dperm.torch.engine.tracing import OutsideError, Run


class _ByRecord(Run):
    """A run of the records at `branch.records` in a physical batch of `physical_size` records, each of which draws its own
    numbers.

    Where `physical_size` is None, a record draws from the global generator, so that checkpointed layers draw the same again when
    they are run once more on the way back.
    """

    def __init__(self, physical_size: int | None, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.physical_size = physical_size

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.physical_size is None or not draws_by_name(func.__name__) or _drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        return self._drawn(func, args, kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a function that draws returns: each record's own numbers."""
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        written = written_by(func, args, kwargs)
        if written is not None and inplace_argument(func) is not None:
            place = inplace_argument(func)
            args = tuple(False if number == place else value for number, value in enumerate(args))
            kwargs = {name: value for name, value in kwargs.items() if name != "inplace"}

        def one(*mine: Tensor) -> Any:
            left = iter(mine if written is None else (mine[0].clone(), *mine[1:]))
            each = [next(left) if isinstance(value, Tensor) else value for value in args]
            return func(*each, **{name: next(left) if isinstance(value, Tensor) else value for name, value in kwargs.items()})

        def body(*numbers: Tensor) -> Any:
            return self._made_by_place(func.__name__, one, *numbers)

        output = self.together(body, *given)
        return output if written is None else written.copy_(output)

    def dropout(self, numbers: Tensor, chance: float) -> Tensor:
        """Numbers (k, ...) of all records with each record's own left out by this chance, and the others as much larger."""

        def one(mine: Tensor) -> Tensor:
            return F.dropout(mine, chance)

        return self._made_by_place("dropout", one, numbers)

    def _made_by_place(self, name: str, draw: Callable[..., Any], *given: Tensor) -> Any:
        """The next draw on this branch, `draw` of each record's numbers in `given` (k, ...)."""
        assert self.physical_size is not None
        return self.draws.made(name, self.branch.path, self.branch.records, self.physical_size, draw, *given)


class InStep(_ByRecord):
    """All records of a physical batch in step, under `torch.vmap`: `record` is any tensor of the record."""

    in_step = True

    def __init__(self, record: Tensor, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.record = record

    def again(self, record: Tensor, renewed: dict[int, Tensor]) -> InStep:
        """A run that computes a part of this one again, in which other tensors stand for those of this one."""
        settings = {"own_tensors": self.own_tensors, "fixed": self._fixed}
        other = InStep(record, self.physical_size, self.tape, (), self.branch, self.draws, **settings)
        other._trained, other._renewed = self._trained, renewed
        known = [tuple(map(other.renewed, pair)) for pair in self.packed.values()]
        other.packed = {id(sizes): (sizes, lengths) for sizes, lengths in known}
        return other

    def checkpointed(self, function: Callable[..., Any], *args: Any, **settings: Any) -> Any:
        """By computing it again on the way back: `use_reentrant` makes no difference, and draws are always the same.

        A part within another is computed again with that one, and keeps what it computes then.
        """
        if self._watches:
            return super().checkpointed(function, *args, **settings)
        asked = {name: settings.pop(name) for name in CHECKPOINTING if name in settings}
        return run_part(self, function, asked.get("context_fn"), args, settings)

    def together(self, body: Callable[..., Any], *tensors: Tensor | None, **axes: Any) -> Any:
        size = self.tape.size

        def whole(*found: tuple[Tensor | None, int | None]) -> Any:
            return body(*(_records_first(numbers, axis, size) for numbers, axis in found))

        return together(whole, self.record, *tensors)

    def together_unless_common(self, body: Callable[[Tensor], Tensor], tensor: Tensor) -> Any:
        size = self.tape.size

        def whole(found: tuple[Tensor, int | None]) -> Any:  # one way in says where the records are, and has their numbers
            numbers, axis = found
            return NotImplemented if axis is None and not numbers.requires_grad else body(_records_first(numbers, axis, size))

        return together(whole, self.record, tensor)

    def _special(self, func: Any, args: Any, kwargs: Any) -> Any:
        for generator, seed in self.draws.seeded:
            if generator.initial_seed() != seed:  # what is drawn would hang on places
                raise OutsideError("The model seeds torch's generator.")
        _see_one_record(func, args, kwargs)
        return super()._special(func, args, kwargs)

    def _is_fixed(self, tensor: Tensor) -> bool:
        numbers = self.rows(tensor)
        return super()._is_fixed(tensor if numbers is None else numbers)

    def rows(self, tensor: Tensor) -> Tensor | None:
        found: list[Tensor | None] = []

        def look(given: tuple[Tensor, int | None]) -> None:
            numbers, axis = given
            found.append(None if axis is None else numbers.detach().movedim(axis, 0))

        together(look, self.record, tensor)
        return found[0]

    def belonging(self, tensors: Sequence[Tensor]) -> list[bool]:
        found: list[bool] = []
        if tensors:
            together(lambda *given: found.extend(axis is not None for _, axis in given), self.record, *tensors)
        return found


class Alone(_ByRecord):
    """One record by itself: nothing but it is there."""

    def together(self, body: Callable[..., Any], *tensors: Tensor | None, **axes: Any) -> Any:
        outputs = body(*(None if tensor is None else tensor[None] for tensor in tensors))
        return tuple(output[0] for output in outputs) if isinstance(outputs, tuple) else outputs[0]

    def own(self, parameter: Any, *, noted: bool = True) -> Tensor:
        return parameter

    def stop(self, error: Exception) -> Exception | None:
        """Nothing that it can catch says anything of another record."""
        return None

    def _of_parameters(self, func: Any, args: Any, kwargs: Any) -> Any:
        return self._call(func, args, kwargs)

    def rows(self, tensor: Tensor) -> Tensor | None:
        return tensor.detach()[None]


def _records_first(numbers: Any, axis: int | None, size: int) -> Any:
    if numbers is None:
        return None
    return numbers.expand(size, *numbers.shape) if axis is None else numbers.movedim(axis, 0)


def _see_one_record(func: Any, args: Any, kwargs: Any) -> None:
    """OutsideError for a call in which code that neither PyTorch nor dperm wrote would see the numbers of all records."""
    module = module_of(func)
    if module.startswith("torch._ops.") and module.rpartition(".")[2] not in _OWN_OPERATORS:
        raise OutsideError(
            f"The operator {module.removeprefix('torch._ops.')}::{func.__name__} may have a batching rule of its own."
        )
    owner = args[0].__module__ if func.__name__ == "custom_function_call" else ""
    if owner == together.__module__:
        return
    if owner and not owner.startswith(("torch.", "dperm.")):
        raise OutsideError(f"{args[0].__name__} is a torch.autograd.Function, whose code may see all records.")
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind in (tuple, list):
            for part in value:
                if type(part) not in _PLAIN:
                    _refuse_code(func, part)
        elif kind not in _PLAIN:
            _refuse_code(func, value)


def _refuse_code(func: Any, part: Any) -> None:
    """OutsideError where a function is given something that has code of its own."""
    if isinstance(part, Tensor):
        raise OutsideError(f"{func.__name__} is given a {type(part).__name__}, whose code may see all records.")
    if isinstance(part, FunctionType | MethodType | partial):
        raise OutsideError(f"{func.__name__} is given a function, whose code may see all records.")


_OWN_OPERATORS = ("aten", "prims", "torchvision", "profiler")
_PLAIN = frozenset({Tensor, nn.Parameter, nn.Buffer, int, float, bool, str, type(None), torch.dtype, torch.device, slice})


def _drops_nothing(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it is a dropout that draws nothing: in evaluation mode, or with a chance of zero."""
    if "dropout" not in func.__name__:
        return False
    chance = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    training = args[2] if len(args) > 2 else kwargs.get("training", kwargs.get("train", True))
    return not training or chance == 0
