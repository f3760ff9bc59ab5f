"""Engines for records in parts, in this process: an honest one, and some that go wrong as clusters may."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from dperm.distributed import PartedTable

__all__ = ["ChangingEngine", "LocalEngine", "cut"]


class LocalEngine:
    """Runs everything here, each function pickled on its way, and adds up in an order of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.order = random.Random(seed)
        self.sums = 0

    def derive(self, function: Callable[[Any, Any], Any], parts: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        return [_sent(function)(part, each) for part, each in zip(parts, given, strict=True)]

    def total(self, function: Any, parts: Sequence[Any], given: Sequence[Any], add: Any) -> Any:
        self.sums += 1
        shares = [_sent(_sent(function)(part, each)) for part, each in zip(parts, given, strict=True)]
        self.order.shuffle(shares)
        functools.reduce(_sent(add), shares)  # a task whose result was lost, and runs again on what is still there
        return functools.reduce(_sent(add), shares)


class ChangingEngine(LocalEngine):
    """After so many sums, something goes wrong with part `number`: it is lost ("lost"), counted twice ("twice"), or another
    ("changed")."""

    def __init__(self, what: str, after: int, number: int = 1) -> None:
        super().__init__()
        self.what, self.after, self.number = what, after, number

    def total(self, function: Any, parts: Sequence[Any], given: Sequence[Any], add: Any) -> Any:
        parts, given = list(parts), list(given)
        if self.sums >= self.after and len(parts) > self.number:
            if self.what == "lost":
                del parts[self.number], given[self.number]
            elif self.what == "twice":
                parts.append(parts[self.number])
                given.append(given[self.number])
            else:  # as a file that was written over, and is read again where a worker was lost
                part = cloudpickle.loads(cloudpickle.dumps(parts[self.number]))
                object.__setattr__(part, "digest", "another")
                parts[self.number] = part
        return super().total(function, parts, given, add)


def _sent(value: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(value))


def cut(X: Any, y: NDArray[Any], sizes: Sequence[int], engine: Any, weights: Any = None, columns: Any = None) -> PartedTable:
    """The first rows of a table in parts of these sizes."""
    stops = np.cumsum([0, *sizes])
    assert stops[-1] == X.shape[0]
    rows = X.iloc if hasattr(X, "iloc") else X
    blocks = [
        (rows[start:stop], y[start:stop], None if weights is None else weights[start:stop])
        for start, stop in itertools.pairwise(stops)
    ]
    return PartedTable(engine, blocks, range(X.shape[1]) if columns is None else columns, weighed=weights is not None)
