"""What a part of a model is given by others: found out by watching its calls of torch's functions."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from dperm.torch.tensors.nested import tensors


class Watch:
    """The tensors that calls of torch's functions are given and did not make, and in which order functions are called."""

    def __init__(self) -> None:
        self.given: dict[int, Tensor] = {}
        self.order = 0
        self._made: dict[int, weakref.ref[Tensor]] = {}

    def see(self, func: Any, given: Iterable[Tensor]) -> None:
        """A call of a function."""
        self.order = hash((self.order, getattr(func, "__name__", "")))
        self.take(given)

    def take(self, found: Iterable[Tensor]) -> None:
        """Tensors that are used, or returned."""
        for tensor in found:
            made = self._made.get(id(tensor))
            if (made is None or made() is not tensor) and not isinstance(tensor, nn.Parameter):
                self.given[id(tensor)] = tensor

    def made(self, output: Any) -> None:
        for tensor in tensors(output):
            self._made[id(tensor)] = weakref.ref(tensor)
