"""What a model keeps: parameters, buffers, and whatever else hangs on its modules, to be compared and put back.

What a forward pass leaves behind in any of these would leave the run without noise.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dperm.torch.structure import local

__all__ = ["Snapshot"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NO_STATE = (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)
_COPIED = 1 << 20  # numbers of a tensor
_MOST = 200_000  # objects: what hangs on a function may be anything
_OF_MODULES = set(vars(nn.Module())) - {"training"}
_HELD = ("_parameters", "_buffers", "_modules")  # not hooks: what they write elsewhere is their owner's


class Snapshot:
    """The state reachable from `roots` — modules, losses, whatever has attributes — as it is now.

    Of tensors of more than a million numbers only sums are kept: a change shows, and is not put back. `without` is left out.
    With `light`, so are such tensors, and what functions hold: their closures, the objects that methods belong to.
    """

    def __init__(self, roots: Iterable[Any], *, without: Iterable[Tensor] = (), light: bool = False) -> None:
        self._light, self._inside = light, 0
        #: where the numbers of tensors are that are too large to be put back
        self.left_out: set[int] = set()
        self._leaves: dict[str, Any] = {}
        self._contents: list[tuple[Any, Any]] = []  # what is put back in place: tensors, arrays, containers
        self._seen = {id(tensor) for tensor in without}
        self._alive: list[Any] = []  # ids stay theirs as long as this does
        for number, root in enumerate(roots):
            self._visit("" if number == 0 else f"root {number}", root)

    def _visit(self, path: str, item: Any) -> None:
        if isinstance(item, _PLAIN):
            self._leaves[path] = item
            return
        if id(item) in self._seen or isinstance(item, _NO_STATE) or len(self._seen) > _MOST:
            return
        if type(item).__module__.startswith("torch.distributed.") and not isinstance(item, (Tensor, nn.Module)):
            return  # gathered parameters, and what else FSDP keeps to run: it is put back between passes
        if isinstance(item, (types.FunctionType, types.MethodType, functools.partial)):
            if not self._light:
                self._visit_function(path, item)
            return
        self._seen.add(id(item))
        self._alive.append(item)
        if isinstance(item, Tensor):
            item = local(item)
        if isinstance(item, (Tensor, np.ndarray)):
            size = item.numel() if isinstance(item, Tensor) else item.size
            if size > _COPIED and isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex()):
                self.left_out.add(item.untyped_storage().data_ptr())
                if not self._light:
                    self._leaves[path] = _sums(item)
            else:
                held: Any = item.detach().clone() if isinstance(item, Tensor) else item.copy()
                self._leaves[path] = held
                self._hold((item, held))
        elif isinstance(item, dict):
            self._hold((item, dict(item)))
            for name, part in list(item.items()):
                self._visit(_join(path, name), part)
        elif isinstance(item, (list, deque, tuple)):
            if not isinstance(item, tuple):
                self._hold((item, list(item)))
            self._leaves[f"{path} (length)"] = len(item)
            for number, part in enumerate(list(item)):
                self._visit(_join(path, number), part)
        elif isinstance(item, (set, frozenset)):
            if isinstance(item, set):
                self._hold((item, set(item)))
            self._leaves[path] = sorted(map(repr, item))
        elif isinstance(item, nn.Module):
            self._visit_module(path, item)
        elif hasattr(item, "__dict__"):
            self._visit(path, vars(item))
        for name in getattr(type(item), "__slots__", ()) if not isinstance(item, (Tensor, np.ndarray)) else ():
            if isinstance(name, str) and hasattr(item, name):
                self._visit(_join(path, name), getattr(item, name))

    def _visit_module(self, path: str, module: nn.Module) -> None:
        attributes = vars(module)
        self._hold((attributes, dict(attributes)))
        for name, item in list(attributes.items()):
            if name not in _OF_MODULES or name in _HELD:
                self._visit(_join(path, name), item)

    def _hold(self, entry: tuple[Any, Any]) -> None:
        if not self._inside:
            self._contents.append(entry)

    def _visit_function(self, path: str, function: Any) -> None:
        self._seen.add(id(function))
        self._alive.append(function)
        if isinstance(function, functools.partial):
            held: list[Any] = [function.func, function.args, function.keywords]
        elif isinstance(function, types.MethodType):
            held = [function.__self__]
        else:
            held = [function.__defaults__, function.__kwdefaults__, vars(function)]
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):  # not filled yet
                    held.append(cell.cell_contents)
        self._inside += 1  # compared, and not put back: it may be anybody's
        for number, item in enumerate(held):
            self._visit(f"{path} (held by a function, {number})", item)
        self._inside -= 1

    def apart(self, other: Snapshot) -> list[str]:
        """Paths of what another snapshot of the same roots, of another time, holds otherwise."""
        mine, theirs = self._leaves, other._leaves
        return [path for path in mine | theirs if path not in mine or path not in theirs or not _same(mine[path], theirs[path])]

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back, in place."""
        for item, held in self._contents:
            if isinstance(item, Tensor):
                if not _same(item, held):
                    item.copy_(held)
            elif isinstance(item, np.ndarray):
                item[...] = held
            elif len(item) != len(held) or any(a is not b for a, b in zip(_parts(item), _parts(held), strict=True)):
                item.clear()
                (item.extend if isinstance(item, (list, deque)) else item.update)(held)


def _sums(tensor: Tensor) -> tuple[Any, ...]:
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    length = torch.linalg.vector_norm(values, dtype=torch.float64)
    return tuple(tensor.shape), tensor.dtype, float(values.sum(dtype=torch.float64)), float(length)


def _join(path: str, name: Any) -> str:
    if name in ("_modules", "_parameters", "_buffers"):
        return path
    return f"{path}.{name}" if path else str(name)


def _parts(item: Any) -> list[Any]:
    return [part for pair in item.items() for part in pair] if isinstance(item, dict) else list(item)


def _same(first: Any, second: Any) -> bool:
    if type(first) is not type(second) and not (isinstance(first, Tensor) and isinstance(second, Tensor)):
        return False
    if isinstance(first, Tensor):
        if first.shape != second.shape or first.dtype != second.dtype or first.device != second.device:
            return False
        if first.is_sparse or first.is_quantized:
            return torch.equal(first.to_dense(), second.to_dense())
        return torch.equal(first, second) or bool(((first == second) | (first.isnan() & second.isnan())).all())
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second, equal_nan=first.dtype.kind in "fc"))
    return bool(first == second or (first != first and second != second))
