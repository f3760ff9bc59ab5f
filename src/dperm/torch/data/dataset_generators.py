"""Generators of random numbers that a data set keeps."""

from __future__ import annotations

import random
import types
from functools import partial
from types import ModuleType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

_SHORT = 100  # entries of a collection that may be transforms; longer ones are data


def refuse_generators(*roots: Any) -> None:
    """ValueError where a data set or a collation keeps a generator of random numbers: what it draws for a record hangs on what
    was read before. Looks at attributes, entries of short collections, closures and default arguments."""
    waiting, seen = list(roots), set[int]()
    while waiting:
        item = waiting.pop()
        if isinstance(item, random.Random | np.random.Generator | np.random.RandomState | torch.Generator):
            raise ValueError(
                f"The data set or collate_fn keeps a generator of random numbers ({type(item).__name__}): what it draws for one "
                "record would hang on who was read before. Draw from the global generators of torch, NumPy or Python: they start "
                "anew for each record, from a secret seed."
            )
        if id(item) in seen or isinstance(item, Tensor | np.ndarray | str | bytes | type | ModuleType):
            continue
        seen.add(id(item))
        if isinstance(item, list | tuple) and len(cast(Any, item)) <= _SHORT:
            waiting += cast(Any, item)
        elif isinstance(item, dict) and len(cast(Any, item)) <= _SHORT:
            waiting += cast(Any, item).values()
        waiting += getattr(item, "__dict__", {}).values()
        waiting += [cell.cell_contents for cell in getattr(item, "__closure__", None) or () if is_filled(cell)]
        waiting += [
            *(getattr(item, "__defaults__", None) or ()),
            getattr(item, "__self__", None),
            getattr(item, "__func__", None),
        ]
        if isinstance(item, partial):
            waiting += [item.func, item.args, item.keywords]


def is_filled(cell: types.CellType) -> bool:
    """Whether a closure has filled the cell already."""
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
