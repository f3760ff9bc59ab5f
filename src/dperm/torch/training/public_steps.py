"""Steps on public values beside a private run, as of a generator beside a private discriminator: functions that read the model as
it was released.

Such a function is called with a copy, so that whatever it does to what it was given goes nowhere. What a pass over records
leaves in the private model is put back after each pass (`dperm.torch.engine.model_state`), so that the copy holds released
parameters and what the model held before the run. Whether the function itself reads records cannot be proved: it is looked at,
and is an assumption on the certificate.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dperm.torch.tensors.nested import map_tensors, tensors
from dperm.torch.training.reachable import PrivateData, way_to

T = TypeVar("T")

#: integers of as many bytes: bits are compared, so that what is no number equals itself
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


class PublicSteps:
    """Calls functions with copies of a run's `model`, whose parameters `optimizer` may step on; `data` are the records."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None, data: PrivateData) -> None:
        self._model, self._optimizer, self._data = model, optimizer, data
        self._way = way_to(data, model)

    def run(self, function: Callable[[nn.Module], T]) -> T:
        """What the function returns for a copy of the model. RuntimeError where it leads to the records, is given tensors of
        them, or changes the private model, its gradients or its optimiser: these are put back."""
        if (way := self._way or way_to(self._data, function)) is not None:
            raise RuntimeError(
                f"The function of public_step leads to the private records, by {way}. It may use the copy of the model that it "
                "is given, public values and what it draws: hold the records elsewhere."
            )
        released = self._copied()
        with _Unchanged(self._model, self._optimizer), _WithoutRecords(self._data):
            return function(released)

    def _copied(self) -> nn.Module:
        try:
            released = copy.deepcopy(self._model)
        except RuntimeError as error:  # of tensors with a graph, which torch does not copy
            raise TypeError(f"The model cannot be copied for public_step: {error}") from error
        mine = {id(tensor) for _, _, tensor, _ in _tensors_of(self._model)}
        places = {tensor.data_ptr() for _, _, tensor, _ in _tensors_of(self._model) if tensor.numel()}
        if shared := [name for _, name, tensor, _ in _tensors_of(released) if id(tensor) in mine or tensor.data_ptr() in places]:
            raise TypeError(
                f"The model's copy for public_step shares {', '.join(shared[:3])} with it: a __deepcopy__ of its own must copy "
                "parameters and buffers."
            )
        for parameter in released.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        return released


class _WithoutRecords(TorchFunctionMode):
    """Within the block functions of torch take no tensor whose numbers are those of the records."""

    def __init__(self, data: PrivateData) -> None:
        super().__init__()
        self._data = data

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(map(self._data.holds, tensors((args, kwargs)))):
            raise RuntimeError(
                f"The function of public_step reads a tensor of the private records ({func.__name__}). It may use the copy of "
                "the model that it is given, public values and what it draws."
            )
        return func(*args, **kwargs)


class _Unchanged(contextlib.AbstractContextManager["_Unchanged"]):
    """At the end of the block a model's parameters, their gradients, its buffers and its optimiser's state are as they were.
    RuntimeError where the block changed them, unless it ended by an error of its own."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        self._model, self._optimizer = model, optimizer
        self._tensors = list(_tensors_of(model))
        self._before = [tensor.detach().clone() for _, _, tensor, _ in self._tensors]
        self._gradients = [(tensor, tensor.grad, _clone(tensor.grad)) for _, _, tensor, _ in self._tensors]
        self._trained = [(tensor, tensor.requires_grad) for _, _, tensor, _ in self._tensors]
        self._modes = [(module, module.training) for module in model.modules()]
        self._state = None if optimizer is None else map_tensors(_clone, optimizer.state_dict())

    @torch.no_grad()
    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        changed = [*self._put_back_tensors(), *self._put_back_gradients()]
        for module, mode in self._modes:
            module.training = mode
        if self._optimizer is not None and self._state is not None and not _equal(self._optimizer.state_dict(), self._state):
            changed.append("the optimizer's state")
            self._optimizer.load_state_dict(self._state)
        if changed and error is None:
            shown = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            raise RuntimeError(
                f"The function of public_step changed {shown} of the private model, which was put back: it may change what is "
                "its own, such as a generator that is no part of the model, and the copy that it is given."
            )

    def _put_back_tensors(self) -> Iterator[str]:
        now = {name: tensor for _, name, tensor, _ in _tensors_of(self._model)}
        for (owner, name, tensor, attribute), before in zip(self._tensors, self._before, strict=True):
            same = now.get(name) is tensor
            if not same:
                setattr(owner, attribute, tensor)
            if tensor.shape != before.shape or tensor.dtype != before.dtype:
                tensor.data = before
                same = False
            elif not _equal(tensor, before):
                tensor.copy_(before)
                same = False
            if not same:
                yield name
        for name in now.keys() - {name for _, name, _, _ in self._tensors}:
            yield f"{name}, which is new,"

    def _put_back_gradients(self) -> Iterator[str]:
        names = [name for _, name, _, _ in self._tensors]
        for name, (tensor, held, before) in zip(names, self._gradients, strict=True):
            if tensor.grad is held and _equal(held, before):
                continue
            if held is not None and before is not None:
                held.copy_(before)
            tensor.grad = held
            yield f"the gradient of {name}"
        for name, (tensor, trained) in zip(names, self._trained, strict=True):
            if tensor.requires_grad != trained:
                tensor.requires_grad_(trained)
                yield f"whether {name} is trained"


def _tensors_of(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor, str]]:
    """(module, full name, tensor, attribute) of a model's parameters and buffers."""
    for prefix, module in model.named_modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield module, f"{prefix}.{name}" if prefix else name, tensor, name


def _clone(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _equal(one: Any, other: Any) -> bool:
    """Whether nested values are the same, bit for bit where they are tensors."""
    if isinstance(one, Tensor):
        if not isinstance(other, Tensor) or one.shape != other.shape or one.dtype != other.dtype:
            return False
        mine, theirs = (item.detach().contiguous().reshape(-1).view(_BITS[item.element_size()]) for item in (one, other))
        return torch.equal(mine, theirs)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
