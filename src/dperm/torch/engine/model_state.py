"""What a model keeps besides its trained parameters, to be put back: what a run leaves there would leave it without noise, and
would tell later runs of earlier records."""

from __future__ import annotations

import array
import contextvars
import ctypes
import functools
import io
import queue
import random
import sys
import sysconfig
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm.torch.data.dataset_generators import is_filled
from dperm.torch.engine.put_back import (
    CODE,
    UNSET,
    array_back,
    bytes_back,
    cache_back,
    cell_back,
    class_back,
    dict_back,
    kind_of_dict,
    leaf_back,
    list_back,
    names_back,
    of_every_class,
    set_back,
    slots_back,
    tensor_back,
    variable_back,
)
from dperm.torch.tensors.nested import local

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size})
#: types whose empty objects, of which every module has a dozen, are put back all at once; only an OrderedDict has attributes
_BACK_OF_EMPTY: dict[type, Callable[[Any, Any], None]] = {dict: dict_back, OrderedDict: dict_back, list: list_back, set: set_back}
#: how a thing is put back, the thing, and what it held
Entry = tuple[Callable[[Any, Any], None], Any, Any]
_COPIED = 1 << 20  # numbers of a tensor
_LONG = 1000  # entries of a collection that holds a data set's records
_MOST = 200_000  # objects: what hangs on a function may be anything
#: modules whose objects and functions keep nothing of a model's records, or are put back by their owners
_LEFT = ("dperm", "torch", "numpy", "lightning", "pytorch_lightning")
#: whose objects lead to all of a program, to data, or to what is none of Python's
_LEFT_OBJECTS = ("dperm", "lightning", "pytorch_lightning", "logging", "torch")
#: but for these
_KEPT_OBJECTS = ("torch.nn", "torch.distributions", "torch.optim", "torch.utils.data", "dperm.torch.data.units")
#: they are another at each use, and nobody can put them back so that each step has numbers of its own
_MOVING = (
    types.GeneratorType, random.Random, np.random.Generator, np.random.RandomState, torch.Generator, io.StringIO, io.BytesIO,
    queue.SimpleQueue, ctypes.Array, ctypes.Structure,
)  # fmt: skip
#: where packages are installed
INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
#: the type of functions that remember what they gave
_CACHED: Any = type(functools.cache(lambda: None))
#: methods that nobody calls of an object that is there
_UNCALLED = frozenset(
    {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__", "__reduce__", "__reduce_ex__", "__getstate__",
     "__setstate__", "__deepcopy__", "__copy__", "__repr__", "__str__", "__del__"}
)  # fmt: skip
#: whose states are put back by themselves
_GLOBAL_GENERATORS = {id(method.__self__) for method in (random.random, np.random.rand)}


class Snapshot:
    """The state reachable from `roots` as it is now: modules, losses and whatever they hold.

    That is attributes, slots, lists, dicts, sets, arrays, tensors, hooks, what closures, default arguments and the global names
    of functions hold, and what hangs on classes. Global names are those of code that may be called, by its name, from `forward`
    or the loss; of packages that are installed, those of code that is in `ran`. What belongs to PyTorch or dperm is left out, but
    for modules. The numbers of tensors in `without` and of their gradients stay as they are, and so do those of tensors with more
    than a million: `left_out` says where the latter, and the gradients, are. `uncopied` names what cannot be put back: iterators,
    and generators of random numbers.

    Raises ValueError for more than 200,000 objects.
    """

    def __init__(self, roots: Iterable[Any], *, without: Iterable[Tensor] = (), ran: Collection[types.CodeType] = ()) -> None:
        #: where the numbers of tensors are that are not put back, and that nobody may write into
        self.left_out: set[int] = set()
        self.uncopied: list[str] = []
        self._back: list[Entry] = []
        self._empty: list[Any] = []
        self._ran = ran
        self._without = {id(tensor) for tensor in without}
        self._seen = set[int]()
        #: names that code uses which may be called, and methods that are called when one of them is theirs
        self._names = {"forward"}
        self._methods: dict[str, list[Any]] = {}
        self.objects: list[Any] = []  # all that was found and was not empty; identities stay theirs as long as this does
        waiting, seen, empty = list(roots), self._seen, self._empty
        while waiting:
            item = waiting.pop()
            kind = type(item)
            if kind in _PLAIN or id(item) in seen:
                continue
            if len(seen) > _MOST:
                raise ValueError(
                    f"Expected a model and a loss that hold at most {_MOST:,} objects, which are put back after each pass: keep "
                    "data sets and logs elsewhere."
                )
            seen.add(id(item))
            if kind in _BACK_OF_EMPTY and not item:
                empty.append(item)
                if kind is OrderedDict and vars(item):
                    waiting.extend(self._attributes(item))
                elif kind is OrderedDict:
                    empty.append(vars(item))
            else:
                self.objects.append(item)
                waiting.extend(self._visit(item))

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place."""
        for filled in filter(None, self._empty):
            filled.clear()
        for back, item, held in self._back:
            back(item, held)

    @property
    def entries(self) -> list[Entry]:
        """How each thing is put back, the thing, and what it held; without containers that were empty and still are."""
        return [*self._back, *((_BACK_OF_EMPTY[type(item)], item, type(item)()) for item in self._empty if item)]

    def holds(self, item: Any) -> bool:
        """Whether the object was there, and is put back, or was left out on purpose."""
        return id(item) in self._seen

    def _visit(self, item: Any) -> Iterable[Any]:
        """Hold what is kept in `item` itself, and name what hangs on it."""
        if isinstance(item, Tensor):
            return self._tensor(item)
        if isinstance(item, nn.Module):
            return (*self._attributes(item), type(item))
        if isinstance(item, dict):
            kind = kind_of_dict(item)
            self._hold(dict_back, item, dict(kind.items(item)))
            return (*kind.keys(item), *kind.values(item), *self._attributes(item))
        if isinstance(item, (list, deque)):
            self._hold(list_back, item, list(item))
            return (*item, *self._attributes(item))
        if isinstance(item, (tuple, frozenset)):
            return item
        if isinstance(item, set):
            self._hold(set_back, item, set(item))
            return (*item, *self._attributes(item))
        return self._visit_other(item)

    def _visit_other(self, item: Any) -> Iterable[Any]:
        if isinstance(item, np.ndarray):
            if item.flags.writeable:
                self._hold(array_back, item, item.copy())
            return item.flat if item.dtype.hasobject else ()
        if isinstance(item, (array.array, bytearray)):
            self._hold(bytes_back, item, item[:])
            return ()
        if isinstance(item, (types.FunctionType, types.MethodType, functools.partial)):
            return self._function(item)
        if isinstance(item, (staticmethod, classmethod, property, functools.cached_property)):
            return _behind(item)
        if isinstance(item, types.BuiltinMethodType):
            return (item.__self__,)
        if isinstance(item, _CACHED):
            self._hold(cache_back, item, None)
            return (item.__wrapped__,)
        if isinstance(item, type):
            return self._class(item)
        if isinstance(item, contextvars.ContextVar):
            value = item.get(UNSET)
            self._hold(variable_back, item, value)
            return (value,)
        if id(item) in _GLOBAL_GENERATORS:
            return ()
        if isinstance(item, _MOVING) or (isinstance(item, Iterator) and type(item).__module__ in ("builtins", "itertools")):
            self.uncopied.append(type(item).__name__)
            return ()
        if _left(type(item)) or isinstance(item, types.ModuleType):
            return ()
        if isinstance(item, Dataset):
            return self._dataset(item)
        return (*self._attributes(item), type(item))

    def _hold(self, back: Callable[[Any, Any], None], item: Any, held: Any) -> None:
        self._back.append((back, item, held))

    def _tensor(self, tensor: Tensor) -> Iterable[Any]:
        named = vars(tensor)
        self._hold(dict_back, named, dict(named))
        gradient = tensor.grad if tensor.is_leaf else None
        if tensor.is_leaf:
            self._hold(leaf_back, tensor, (tensor.requires_grad, gradient))
        if id(tensor) in self._without:
            if gradient is not None:  # a noisy one, as large as the model: nobody writes into it, so that it needs no copy
                self.left_out.add(local(gradient).untyped_storage().data_ptr())
                gradient = None
        else:
            mine = local(tensor)
            if mine.numel() <= _COPIED and not mine.is_meta:
                self._hold(tensor_back, mine, mine.detach().clone())
            elif mine.layout is torch.strided and not mine.is_meta:
                self.left_out.add(mine.untyped_storage().data_ptr())
        return (*named.values(), gradient)

    def _attributes(self, item: Any) -> Iterable[Any]:
        named: Any = getattr(item, "__dict__", None)
        held: dict[str, Any] = {}
        if isinstance(named, dict):
            if not named and type(named) is dict:
                self._empty.append(named)
            else:
                held = dict(named)
                self._hold(dict_back, named, held)
        if not (names := _slots(type(item))):
            return held.values()
        slots = {name: getattr(item, name, UNSET) for name in names}
        self._hold(slots_back, item, slots)
        return (*held.values(), *slots.values())

    def _dataset(self, item: Any) -> Iterable[Any]:
        """A data set that a model or a loss holds: long collections, which are its records, are held and not looked through."""
        hanging = [value for value in self._attributes(item) if id(value) not in self._seen]
        long = [value for value in hanging if isinstance(value, (list, dict, set)) and len(value) > _LONG]
        for value in long:
            back = list_back if isinstance(value, list) else set_back if isinstance(value, set) else dict_back
            self._hold(back, value, type(value)(value) if type(value) in (list, set) else dict(value))
            self._seen.add(id(value))
            self.objects.append(value)
        return (*(value for value in hanging if id(value) not in self._seen), type(item))

    def _function(self, function: Any) -> Iterable[Any]:
        if isinstance(function, functools.partial):
            return (function.func, function.args, function.keywords)
        if isinstance(function, types.MethodType):
            return (function.__self__, function.__func__)
        if is_library(function.__module__ or ""):
            return ()
        code = function.__code__
        cells = function.__closure__ or ()
        contents = [cell.cell_contents if is_filled(cell) else UNSET for cell in cells]
        for cell, content in zip(cells, contents, strict=True):
            self._hold(cell_back, cell, content)
        hanging = (function.__defaults__, function.__kwdefaults__, vars(function), *contents)
        if code.co_filename.startswith(INSTALLED) and code not in self._ran:
            return hanging
        names = _names(code)
        called = [method for name in names - self._names for method in self._methods.pop(name, ())]
        self._names |= names
        held = self._named(function.__globals__, names)
        held += [sys.modules[name] for name in names if name in sys.modules]  # imported where it is called
        modules = [module for module in held if isinstance(module, types.ModuleType)]
        for module in modules:  # a module may name another
            if not is_library(module.__name__):
                found = self._named(vars(module), names)
                modules += [other for other in found if isinstance(other, types.ModuleType) and other not in modules]
                held += found
        return (*hanging, *called, *held)

    def _named(self, named: dict[str, Any], names: Iterable[str]) -> list[Any]:
        held = {name: named.get(name, UNSET) for name in names}
        self._hold(names_back, named, held)
        return [value for value in held.values() if value is not UNSET]

    def _class(self, kind: type) -> Iterable[Any]:
        hanging: list[Any] = []
        for each in kind.__mro__:
            if not is_library(each.__module__):
                held = {name: value for name, value in vars(each).items() if not of_every_class(name, value)}
                self._hold(class_back, each, held)
                hanging += held.values()
                for name, value in vars(each).items():
                    if isinstance(value, CODE):
                        if name in self._names or (name not in _UNCALLED and name.startswith("__")):
                            hanging.append(value)
                        else:
                            self._methods.setdefault(name, []).append(value)
        return hanging


def is_library(module: str) -> bool:
    """Whether code of this module keeps nothing of a model's."""
    package = module.partition(".")[0]
    return package in _LEFT or package in sys.stdlib_module_names


def _left(kind: type) -> bool:
    """Whether what its objects hold is none of a model's."""
    module = f"{kind.__module__}."
    return module.startswith(tuple(f"{left}." for left in _LEFT_OBJECTS)) and not module.startswith(
        tuple(f"{kept}." for kept in _KEPT_OBJECTS)
    )


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> tuple[str, ...]:
    """The attributes of its objects that are in no dict."""
    found: list[str] = []
    for each in kind.__mro__:
        slots: Any = vars(each).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                found.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    return tuple(found)


def _behind(item: Any) -> Iterable[Any]:
    """The functions that a class calls by this attribute."""
    if isinstance(item, property):
        return (item.fget, item.fset, item.fdel)
    return (item.func if isinstance(item, functools.cached_property) else item.__func__,)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """The global names and attributes that a function's code uses, and that of functions within it."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return frozenset(code.co_names).union(*inner)
