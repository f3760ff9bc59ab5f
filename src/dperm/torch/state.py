"""What a model keeps besides its trained parameters, to be put back: what a run leaves there would leave it without noise, and
would tell later runs of earlier records."""

from __future__ import annotations

import functools
import itertools
import random
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm.torch.structure import local

__all__ = ["Snapshot"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_COPIED = 1 << 20  # numbers of a tensor
_MOST = 200_000  # objects: what hangs on a function may be anything
#: modules whose objects and functions keep nothing of a model's records, or are put back by their owners
_LEFT = ("dperm.", "torch.", "numpy", "lightning.", "pytorch_lightning.", "builtins", "functools", "typing", "abc", "logging")
#: they are another at each use, and nobody can put them back so that each step has numbers of its own
_MOVING = (types.GeneratorType, random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_OF_PERSONS = "dperm.torch.persons"  # wrappers of models and losses


class Snapshot:
    """The state reachable from `roots` as it is now: modules, losses and whatever they hold.

    That is attributes, slots, lists, dicts, sets, arrays, tensors, hooks, what closures, default arguments and the global names
    of functions hold, and what hangs on classes. What belongs to PyTorch or dperm is left out, but for modules. Tensors in
    `without` stay as they are, and so do tensors of more than a million numbers: `left_out` says where the latter are.
    `uncopied` names what cannot be put back: iterators, and generators of random numbers.

    Raises ValueError for more than 200,000 objects.
    """

    def __init__(self, roots: Iterable[Any], *, without: Iterable[Tensor] = ()) -> None:
        #: where the numbers of tensors are that are too large to be put back
        self.left_out: set[int] = set()
        self.uncopied: list[str] = []
        self._back: list[tuple[Callable[[Any, Any], None], Any, Any]] = []
        self._without = {id(tensor) for tensor in without}
        self._seen = set[int]()
        self._alive: list[Any] = []  # identities stay theirs as long as this does
        waiting = deque[Any](roots)
        while waiting:
            waiting.extend(self._visit(waiting.popleft()))

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place."""
        for back, item, held in self._back:
            back(item, held)

    def _visit(self, item: Any) -> Iterator[Any]:
        """Hold what is kept in `item` itself, and name what hangs on it."""
        if isinstance(item, _PLAIN) or id(item) in self._seen:
            return
        if len(self._seen) > _MOST:
            raise ValueError(
                f"Expected a model and a loss that hold at most {_MOST:,} objects, which are put back after each pass: keep data "
                "sets and logs elsewhere."
            )
        self._seen.add(id(item))
        self._alive.append(item)
        if isinstance(item, Tensor):
            yield from self._tensor(item)
        elif isinstance(item, np.ndarray):
            self._hold(_array_back, item, item.copy())
        elif isinstance(item, dict):
            kind = _kind_of_dict(item)
            self._hold(_dict_back, item, dict(kind.items(item)))
            yield from kind.values(item)
            yield from self._attributes(item)
        elif isinstance(item, (list, deque)):
            self._hold(_list_back, item, list(item))
            yield from item
            yield from self._attributes(item)
        elif isinstance(item, (tuple, frozenset)):
            yield from item
        elif isinstance(item, set):
            self._hold(_set_back, item, set(item))
            yield from item
        elif isinstance(item, (types.FunctionType, types.MethodType, functools.partial)):
            yield from self._function(item)
        elif isinstance(item, type):
            yield from self._class(item)
        elif isinstance(item, _MOVING) or (isinstance(item, Iterator) and type(item).__module__ in ("builtins", "itertools")):
            self.uncopied.append(type(item).__name__)
        elif isinstance(item, nn.Module) or not (_left(type(item)) or isinstance(item, Dataset)):
            yield from self._attributes(item)
            yield type(item)

    def _hold(self, back: Callable[[Any, Any], None], item: Any, held: Any) -> None:
        self._back.append((back, item, held))

    def _tensor(self, tensor: Tensor) -> Iterator[Any]:
        if isinstance(tensor, nn.Parameter) or vars(tensor):
            yield from self._attributes(tensor)
        if id(tensor) in self._without:
            return
        mine = local(tensor)
        if mine.numel() > _COPIED:
            self.left_out.add(mine.untyped_storage().data_ptr())
        else:
            self._hold(_tensor_back, mine, mine.detach().clone())

    def _attributes(self, item: Any) -> Iterator[Any]:
        named: Any = getattr(item, "__dict__", None)
        if isinstance(named, dict):
            self._hold(_dict_back, named, dict(named))
            yield from named.values()
        slots = [name for kind in type(item).__mro__ for name in _slots(kind) if hasattr(item, name)]
        if slots:
            held = {name: getattr(item, name) for name in slots}
            self._hold(_slots_back, item, held)
            yield from held.values()

    def _function(self, function: Any) -> Iterator[Any]:
        if isinstance(function, functools.partial):
            yield from (function.func, function.args, function.keywords)
        elif isinstance(function, types.MethodType):
            yield from (function.__self__, function.__func__)
        elif not function.__module__.startswith(_LEFT):
            yield from (function.__defaults__, function.__kwdefaults__, vars(function))
            named = function.__globals__
            held = {name: named[name] for name in _names(function.__code__) if name in named}
            self._hold(_names_back, named, held)
            yield from held.values()
            for cell in function.__closure__ or ():
                with _Unfilled():
                    self._hold(_cell_back, cell, cell.cell_contents)
                    yield cell.cell_contents

    def _class(self, kind: type) -> Iterator[Any]:
        for each in kind.__mro__:
            if not _left(each):
                held = {name: value for name, value in vars(each).items() if not _of_every_class(name, value)}
                self._hold(_class_back, each, held)
                yield from held.values()
                yield from (value for value in vars(each).values() if isinstance(value, types.FunctionType))


def _left(kind: type) -> bool:
    return kind.__module__.startswith(_LEFT) and kind.__module__ != _OF_PERSONS


def _slots(kind: type) -> Iterator[str]:
    slots: Any = vars(kind).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        if name not in ("__dict__", "__weakref__"):
            yield f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _of_every_class(name: str, value: Any) -> bool:
    return (name.startswith("__") and name.endswith("__")) or isinstance(
        value, (types.FunctionType, classmethod, staticmethod, property, types.MemberDescriptorType, types.GetSetDescriptorType)
    )


def _names(code: types.CodeType) -> set[str]:
    """The global names that a function's code uses, and that of functions within it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*inner)


class _Unfilled:
    """A closure's cell may not be filled yet."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        return kind is ValueError


# How each kind of thing is put back


def _tensor_back(tensor: Tensor, held: Tensor) -> None:
    if not _same(tensor, held):
        tensor.copy_(held)


def _array_back(array: Any, held: Any) -> None:
    array[...] = held


def _dict_back(item: dict[Any, Any], held: dict[Any, Any]) -> None:
    kind = _kind_of_dict(item)
    now = itertools.chain.from_iterable(kind.items(item))
    if kind.__len__(item) != len(held) or any(a is not b for a, b in zip(now, itertools.chain(*held.items()), strict=True)):
        kind.clear(item)
        kind.update(item, held)


def _kind_of_dict(item: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Whose methods to use, whatever a subclass makes of them."""
    return OrderedDict if isinstance(item, OrderedDict) else dict


def _list_back(item: Any, held: list[Any]) -> None:
    if len(item) != len(held) or any(a is not b for a, b in zip(item, held, strict=True)):
        item.clear()
        item.extend(held)


def _set_back(item: set[Any], held: set[Any]) -> None:
    if item != held:
        item.clear()
        item.update(held)


def _slots_back(item: Any, held: dict[str, Any]) -> None:
    for name, value in held.items():
        if getattr(item, name, None) is not value:
            object.__setattr__(item, name, value)


def _cell_back(cell: types.CellType, held: Any) -> None:
    cell.cell_contents = held


def _names_back(named: dict[str, Any], held: dict[str, Any]) -> None:
    for name, value in held.items():
        if named.get(name) is not value:
            named[name] = value


def _class_back(kind: type, held: dict[str, Any]) -> None:
    now = {name for name, value in vars(kind).items() if not _of_every_class(name, value)}
    for name in now - held.keys():
        delattr(kind, name)
    for name, value in held.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)


def _same(first: Tensor, second: Tensor) -> bool:
    if first.is_sparse or first.is_quantized:
        return torch.equal(first.to_dense(), second.to_dense())
    return torch.equal(first, second)
