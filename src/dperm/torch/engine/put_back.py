"""How each kind of thing that a model keeps is put back as it was, in place."""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from dperm.torch.data.dataset_generators import is_filled

#: what stands for a name, a cell, a slot or a context variable that has no value; a run may give it one
UNSET = object()
#: functions of a class
CODE = (types.FunctionType, staticmethod, classmethod, property, functools.cached_property)


def tensor_back(tensor: Tensor, held: Tensor) -> None:
    if tensor.shape != held.shape or tensor.dtype != held.dtype:
        tensor.data = held.clone()
    elif not same(tensor, held):
        expanded = any(stride == 0 < size - 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
        if expanded:  # several entries are one number, and PyTorch copies into none of them
            tensor.data = held.clone()
        else:
            tensor.copy_(held)


def leaf_back(tensor: Tensor, held: tuple[bool, Tensor | None]) -> None:
    trains, gradient = held
    if not tensor.is_leaf:  # somebody wrote numbers with a graph into it
        tensor.detach_()
    if tensor.requires_grad != trains:
        tensor.requires_grad_(trains)
    if tensor.grad is not gradient:
        tensor.grad = gradient


def variable_back(item: Any, held: Any) -> None:
    if held is not UNSET and item.get(UNSET) is not held:
        item.set(held)


def bytes_back(item: Any, held: Any) -> None:
    item[:] = held


def array_back(array: Any, held: Any) -> None:
    array.setflags(write=True)
    if array.shape != held.shape:
        array.resize(held.shape, refcheck=False)
    array[...] = held


def dict_back(item: dict[Any, Any], held: dict[Any, Any]) -> None:
    kind = kind_of_dict(item)
    now = list(itertools.chain.from_iterable(kind.items(item)))
    if len(now) != 2 * len(held) or not all(map(operator.is_, now, itertools.chain.from_iterable(held.items()))):
        kind.clear(item)
        kind.update(item, held)


def kind_of_dict(item: dict[Any, Any]) -> type[dict[Any, Any]]:
    """Whose methods to use, whatever a subclass makes of them."""
    return OrderedDict if isinstance(item, OrderedDict) else dict


def list_back(item: Any, held: list[Any]) -> None:
    now = list(item)
    if len(now) != len(held) or not all(map(operator.is_, now, held)):
        item.clear()
        item.extend(held)


def set_back(item: set[Any], held: set[Any]) -> None:
    if item != held:
        item.clear()
        item.update(held)


def slots_back(item: Any, held: dict[str, Any]) -> None:
    for name, value in held.items():
        now = getattr(item, name, UNSET)
        if now is not value and value is UNSET:
            object.__delattr__(item, name)
        elif now is not value:
            object.__setattr__(item, name, value)


def cache_back(function: Any, held: None) -> None:
    """What it remembers cannot be put back, and is found out again."""
    function.cache_clear()


def cell_back(cell: types.CellType, held: Any) -> None:
    if held is not UNSET:
        cell.cell_contents = held
    elif is_filled(cell):
        del cell.cell_contents


def names_back(named: dict[str, Any], held: dict[str, Any]) -> None:
    for name, value in held.items():
        now = named.get(name, UNSET)
        if now is value:
            continue
        if value is not UNSET:
            named[name] = value
        elif not isinstance(now, types.ModuleType):  # a package names its modules once, when they are first imported
            del named[name]


def class_back(kind: type, held: dict[str, Any]) -> None:
    now = {name for name, value in vars(kind).items() if not of_every_class(name, value)}
    for name in now - held.keys():
        delattr(kind, name)
    for name, value in held.items():
        if vars(kind).get(name) is not value:
            setattr(kind, name, value)


def same(first: Tensor, second: Tensor) -> bool:
    if first.is_quantized:
        return torch.equal(first.dequantize(), second.dequantize())
    if first.layout is not torch.strided or first.is_nested:
        return False
    if _has_words(first) and _has_words(second):  # bit by bit, in two thirds of the time
        return torch.equal(first.view(-1).view(torch.int64), second.view(-1).view(torch.int64))
    return torch.equal(first, second)


def _has_words(tensor: Tensor) -> bool:
    """Whether the numbers of a tensor lie in whole words of eight bytes."""
    each = tensor.element_size()
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.is_contiguous()
        and tensor.numel() * each % 8 == tensor.storage_offset() * each % 8 == 0
        and not (tensor.is_conj() or tensor.is_neg())
    )


def of_every_class(name: str, value: Any) -> bool:
    return (name.startswith("__") and name.endswith("__")) or isinstance(
        value, (*CODE, types.MemberDescriptorType, types.GetSetDescriptorType)
    )
