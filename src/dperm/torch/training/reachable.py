"""Whether a function leads to a data set: by what it closes over, its default arguments, the global names that its code uses, and
attributes of objects on the way.

What is looked at is where data are found in practice. A function can read data in ways that nobody sees, such as from a file.
"""

from __future__ import annotations

import bisect
import dis
import functools
import gc
import inspect
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from dperm.torch.data.dataset_generators import is_filled
from dperm.torch.engine.model_state import INSTALLED, is_library

_MOST = 20_000  # objects on the way
_SHORT = 100  # entries of a list that holds settings
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
#: packages of torch whose objects hold what a caller gave them
_HOLDERS = ("torch.utils.data", "torch.nn", "torch.optim", "torch.distributions")


class PrivateData:
    """The objects that a data set consists of, by their identities and by where their numbers are in memory."""

    def __init__(self, *roots: Any) -> None:
        self._objects: dict[int, Any] = {}  # kept, so that nothing else gets their identities or their memory
        blocks: list[tuple[int, int]] = []
        waiting = [root for root in roots if root is not None]
        while waiting and len(self._objects) < _MOST:
            item = waiting.pop()
            if id(item) in self._objects or type(item) in _PLAIN:
                continue
            if (block := _block(item)) is not None:
                blocks.append(block)
            elif isinstance(item, list | tuple):
                waiting += cast(Any, item)
            elif isinstance(item, Mapping):
                waiting += cast(Mapping[Any, Any], item).values()
            elif hasattr(item, "__dict__") and not isinstance(item, type | nn.Module):
                waiting += [part for part in vars(item).values() if _is_data(part)]
            self._objects[id(item)] = item
        self._starts = sorted(blocks)

    def holds(self, item: Any) -> bool:
        """Whether it is one of the objects, or has its numbers within the memory of one."""
        if isinstance(item, list | tuple) and not item:  # which may be one object for all
            return False
        if id(item) in self._objects:
            return True
        block = _block(item)
        if block is None:
            return False
        place = bisect.bisect_right(self._starts, (block[0], 1 << 63)) - 1
        return place >= 0 and block[0] < self._starts[place][1]


def _is_data(item: Any) -> bool:
    """Whether an attribute of a data set holds records: short lists are settings, which may be anybody's."""
    if isinstance(item, list | tuple | dict):
        return len(cast(Any, item)) > _SHORT
    return isinstance(item, Tensor | np.ndarray | Dataset)


def _block(item: Any) -> tuple[int, int] | None:
    """Where the numbers of a tensor or an array begin and end in memory; None for all else, and where there are none."""
    if isinstance(item, np.ndarray):
        start = int(item.__array_interface__["data"][0])
        return (start, start + item.nbytes) if item.nbytes else None
    if not isinstance(item, Tensor):
        return None
    try:
        storage = item.untyped_storage()
    except (NotImplementedError, RuntimeError):  # of tensors that stand for others, as within torch.func, or are sparse
        return None
    start, size = storage.data_ptr(), storage.nbytes()
    return (start, start + size) if start and size else None


def way_to(data: PrivateData, *roots: Any) -> str | None:
    """What leads from one of these objects to the data, in words; None where nothing was found."""
    waiting: deque[tuple[Any, str]] = deque((root, "it") for root in roots)
    seen, alive, called = set[int](), list[Any](), set[str]()
    while waiting and len(seen) < _MOST:
        item, how = waiting.popleft()
        if type(item) in _PLAIN or id(item) in seen:
            continue
        if data.holds(item):
            return how
        seen.add(id(item))
        alive.append(item)  # identities stay theirs as long as this does
        waiting.extend(_from(item, called))
    return None


def _from(item: Any, called: set[str]) -> Iterable[tuple[Any, str]]:
    """Objects that this one leads to, and how. Collects in `called` the names that code on the way uses."""
    if isinstance(item, types.MethodType):
        return [(item.__self__, "the object that it is a method of"), (item.__func__, "its code")]
    if isinstance(item, functools.partial):
        return [(part, "its bound arguments") for part in (item.func, *item.args, *item.keywords.values())]
    if isinstance(item, types.FunctionType):
        return _of_function(item, called)
    if isinstance(item, types.GeneratorType):
        return [(value, f"{name!r} of a generator") for name, value in inspect.getgeneratorlocals(item).items()]
    if isinstance(item, Iterator) and type(item).__module__ in ("builtins", "itertools"):
        return [(part, f"a {type(item).__name__}") for part in gc.get_referents(item)]
    if isinstance(item, dict):
        return [(value, f"entry {key!r}"[:80]) for key, value in cast(dict[Any, Any], item).items()]
    if isinstance(item, list | tuple | set | frozenset | deque):
        return [(part, f"a {type(item).__name__}") for part in cast(Iterable[Any], item)]
    if isinstance(item, type | types.ModuleType | Tensor | np.ndarray):
        return ()
    kind = type(item)
    if is_library(kind.__module__) and not kind.__module__.startswith(_HOLDERS):
        return ()
    found = [(value, f"attribute {name!r}") for name, value in getattr(item, "__dict__", {}).items()]
    for each in kind.__mro__:  # methods that code on the way may call
        if not is_library(each.__module__):
            methods = [(name, value) for name, value in vars(each).items() if isinstance(value, types.FunctionType)]
            found += [(value, f"method {name!r}") for name, value in methods if name in called or name in ("__call__", "forward")]
    return found


def _of_function(function: types.FunctionType, called: set[str]) -> list[tuple[Any, str]]:
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    found = [(cell.cell_contents, f"{name!r}, which it closes over") for name, cell in cells if is_filled(cell)]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    found += [(value, "a default argument") for value in defaults]
    if code.co_filename.startswith(INSTALLED) or is_library(function.__module__ or ""):
        return found
    named, attributes = _names(code)
    called |= attributes
    for name in named & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, types.ModuleType):
            if not is_library(value.__name__):
                found += [(vars(value)[part], f"{name}.{part}") for part in attributes & vars(value).keys()]
        else:
            found.append((value, f"the global name {name!r}"))
    return found


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The global names that a function's code uses, and that of functions within it; and the attributes."""
    named = {str(part.argval) for part in dis.get_instructions(code) if part.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    attributes = set(code.co_names) - named
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            inner = _names(part)
            named |= inner[0]
            attributes |= inner[1]
    return frozenset(named), frozenset(attributes)
