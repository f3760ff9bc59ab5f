"""Find the attributes, lists and global variables that a pass changes, under the names that their author gave them. They are put
back after each pass, and somebody who counts steps there should know."""

from __future__ import annotations

import sys
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dperm.torch.data.dataset_generators import is_filled
from dperm.torch.engine import put_back as state
from dperm.torch.engine.model_state import INSTALLED, Snapshot, is_library
from dperm.torch.engine.put_back import UNSET

_PLAIN = (bool, int, float, complex, str, bytes)
#: what is changed in place, and has a name by whoever holds it
_NAMED = (list, tuple, deque, dict, set, np.ndarray, Tensor, nn.Module)
_SHORT = 1000  # entries of a table or a list that is looked into
#: where modules keep what has a page of its own in the documentation: buffers, and what they are made of
_OF_MODULES = ("_buffers", "_parameters", "_modules")


def changes(kept: Snapshot) -> list[str]:
    """Return the names of things whose value differs from that in the snapshot, such as "Net.calls", each once.

    Left out are buffers and parameters, what objects of installed packages keep, what a function with a cache remembers, and
    activations: tensors with a graph, and tensors where nothing was.

    Comparing and naming may run code of the model's own classes. Where that code fails, the list says so in place of a name: a
    warning must not keep a model from training.
    """
    names = _Names(kept)
    found: dict[str, None] = {}
    for back, item, held in kept.entries:
        compare = _COMPARED.get(back)
        if compare is None:
            continue
        try:
            found |= dict.fromkeys(compare(names, item, held))
        except Exception as error:
            found[f"perhaps an object of {type(item).__name__}, which could not be compared ({type(error).__name__})"] = None
    return list(found)


def name_of_layer(kept: Snapshot, layer: nn.Module) -> str:
    """Return the author's name of a layer within a module that the loss holds, such as "Paired.generator, layer 2"."""
    names = _Names(kept)
    holders = [item for item in kept.objects if isinstance(item, nn.Module) and any(layer is part for part in item.modules())]
    for holder in holders:
        if (whole := names.of(holder)) is not None:
            within = next(name for name, part in holder.named_modules() if part is layer)
            return f"{whole}, layer {within}" if within else whole
    return "a layer"


class _Names:
    """Names of the objects in a snapshot. They are collected when the first change is found."""

    def __init__(self, kept: Snapshot) -> None:
        self._kept = kept
        self._owners: dict[int, Any] | None = None
        self._called: dict[int, str] = {}
        self._skipped = set[int]()

    def owner(self, named: Mapping[str, Any]) -> Any:
        """The object whose attributes these are; None of any other table."""
        self._look()
        assert self._owners is not None
        return self._owners.get(id(named))

    def of(self, item: Any) -> str | None:
        """The name of a list, a table or a tensor by whoever holds it; None where only others hold it."""
        self._look()
        return None if id(item) in self._skipped else self._called.get(id(item))

    def of_owner(self, owner: Any) -> str | None:
        """The name of an object; None of one that an installed package wrote."""
        self._look()
        return None if _installed(type(owner)) else self._called.get(id(owner)) or type(owner).__name__

    def function_of(self, cell: types.CellType) -> tuple[str, str] | None:
        """The function that closes over a cell, and the name that it has there."""
        for item in self._kept.objects:
            if isinstance(item, types.FunctionType):
                for name, other in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
                    if other is cell:  # cells are equal where their contents are
                        return item.__qualname__, name
        return None

    def _look(self) -> None:
        if self._owners is not None:
            return
        self._owners = {}
        for item in self._kept.objects:
            if isinstance(item, nn.Module):
                for name, module in item.named_modules():
                    if name and not _installed(type(module)):
                        self._called.setdefault(id(module), f"{name} ({type(module).__name__})")
                self._skipped |= {id(vars(item)[name]) for name in _OF_MODULES}
                self._skipped |= {id(tensor) for tensor in (*item.buffers(), *item.parameters())}
            if not isinstance(item, type | types.ModuleType | Tensor) and isinstance(getattr(item, "__dict__", None), dict):
                self._owners[id(item.__dict__)] = item
        for back, item, held in self._kept.entries:
            if back in (state.dict_back, state.slots_back):
                owner = self._owners.get(id(item)) if back is state.dict_back else item
                if owner is None or _installed(type(owner)):
                    continue
                whole = self._called.get(id(owner)) or type(owner).__name__
                self._name(held, lambda name, whole=whole: f"{whole}.{name}")
            elif back is state.names_back:
                self._name(held, lambda name: f"the global name {name}")
            elif back is state.class_back and not _installed(item):
                self._name(held, lambda name, kind=item: f"{kind.__name__}.{name}")
            elif back is state.cell_back and (found := self.function_of(item)) is not None:
                self._called.setdefault(id(held), f"{found[1]} of {found[0]}")

    def _name(self, held: Mapping[str, Any], called: Callable[[str], str]) -> None:
        """Name what these attributes hold, and what their tables and lists hold, by the attribute."""
        for name, value in held.items():
            waiting = [] if name in _OF_MODULES else [value]
            while waiting:
                item = waiting.pop()
                if isinstance(item, _NAMED) and id(item) not in self._called:
                    self._called[id(item)] = called(name)
                    if isinstance(item, dict | list | tuple | deque) and len(item) <= _SHORT:
                        waiting += _parts(item)


# What has changed of each kind of thing


def _table(names: _Names, item: dict[Any, Any], held: dict[Any, Any]) -> Iterator[str]:
    changed = [key for key in dict.keys(item) | held.keys() if _differ(held.get(key, UNSET), item.get(key, UNSET))]
    if not changed:
        return
    owner = names.owner(item)
    if owner is None:
        yield from _named(names.of(item))
    elif (whole := names.of_owner(owner)) is not None:
        yield from (f"{whole}.{key}" for key in sorted(map(str, changed)))


def _slots(names: _Names, item: Any, held: dict[str, Any]) -> Iterator[str]:
    changed = [name for name, value in held.items() if _differ(value, getattr(item, name, UNSET))]
    if changed and (whole := names.of_owner(item)) is not None:
        yield from (f"{whole}.{name}" for name in changed)


def _list(names: _Names, item: Any, held: Any) -> Iterator[str]:
    if len(item) != len(held) or any(a is not b for a, b in zip(item, held, strict=True)):
        before = set(map(id, held))
        if not any(_activation(value) for value in item if id(value) not in before):
            yield from _named(names.of(item))


def _set(names: _Names, item: set[Any], held: set[Any]) -> Iterator[str]:
    if item != held:
        yield from _named(names.of(item))


def _array(names: _Names, item: Any, held: Any) -> Iterator[str]:
    if item.shape != held.shape or (not item.dtype.hasobject and item.tobytes() != held.tobytes()):
        yield from _named(names.of(item))


def _tensor(names: _Names, item: Tensor, held: Tensor) -> Iterator[str]:
    if item.shape != held.shape or item.dtype != held.dtype or not _equal(item, held):
        yield from _named(names.of(item))


def _equal(item: Tensor, held: Tensor) -> bool:
    if state.same(item, held):
        return True
    if item.layout is not torch.strided or item.is_quantized or item.is_nested:
        return True  # nobody counts in these
    return bool(((item == held) | ((item != item) & (held != held))).all())


def _cell(names: _Names, item: types.CellType, held: Any) -> Iterator[str]:
    now = item.cell_contents if is_filled(item) else UNSET
    if _differ(held, now) and (found := names.function_of(item)) is not None:
        yield f"{found[1]} of {found[0]}"


def _globals(names: _Names, item: dict[str, Any], held: dict[str, Any]) -> Iterator[str]:
    module = sys.modules.get(str(item.get("__name__")))
    if module is not None and _installed(module):
        return
    yield from (f"the global name {name}" for name, value in held.items() if _differ(value, item.get(name, UNSET)))


def _class(names: _Names, item: type, held: dict[str, Any]) -> Iterator[str]:
    if not _installed(item):
        yield from (f"{item.__name__}.{name}" for name, value in held.items() if _differ(value, vars(item).get(name, UNSET)))


_COMPARED: dict[Any, Callable[[_Names, Any, Any], Iterable[str]]] = {
    state.dict_back: _table,
    state.slots_back: _slots,
    state.list_back: _list,
    state.set_back: _set,
    state.array_back: _array,
    state.tensor_back: _tensor,
    state.cell_back: _cell,
    state.names_back: _globals,
    state.class_back: _class,
}


def _named(name: str | None) -> list[str]:
    return [] if name is None else [name]


def _differ(before: Any, now: Any) -> bool:
    """Return whether the user would look for this value after the run: it is no activation, and no pass makes it anew."""
    if now is before or now is UNSET or (type(now) is type(before) and type(now) in _PLAIN and now == before):
        return False
    if before is UNSET or before is None:
        return isinstance(now, _PLAIN)
    return not _activation(now) and not (isinstance(now, list | dict | set | tuple) and any(map(_activation, _parts(now))))


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _activation(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.grad_fn is not None or value.requires_grad)


def _installed(kind: Any) -> bool:
    """Whether a class, or a module, is part of an installed package."""
    name = str(getattr(kind, "__module__", None) or getattr(kind, "__name__", ""))
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return is_library(name) or file.startswith(INSTALLED)
