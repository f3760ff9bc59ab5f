"""Answers for rows in parts: what a model says of collections of Dask, each part where it lives."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

from dperm.distributed.table import of_dask, row_of_zeros

Model = TypeVar("Model")


def by_part(method: Callable[[Model, Any], NDArray[Any]]) -> Callable[[Model, Any], Any]:
    """A method that answers rows in memory, made to answer collections of Dask as well, by a lazy array that is cut as they are.

    Each part is answered by `method` itself, of the model as it is when it is asked. A part without rows, which `method` may
    refuse, has no answers. Raises at once what `method` raises of a row of zeros with the same columns.
    """

    @functools.wraps(method)
    def answered(model: Model, X: Any) -> Any:
        if not of_dask(X):
            return method(model, X)
        answer = functools.partial(answered, copy.copy(model))
        none = answer(row_of_zeros(X))[:0]
        return _lazily(functools.partial(_of_part, answer, none), X, none)

    return answered


def _of_part(answer: Callable[[Any], NDArray[Any]], none: NDArray[Any], part: Any) -> NDArray[Any]:
    return answer(part) if part.shape[0] else none


def _lazily(answer: Callable[[Any], NDArray[Any]], X: Any, none: NDArray[Any]) -> Any:
    if hasattr(X, "columns"):
        return X.map_partitions(answer, meta=none)
    if none.ndim == 1:
        return X.map_blocks(answer, drop_axis=1, dtype=none.dtype, meta=none)
    return X.map_blocks(answer, chunks=(X.chunks[0], none.shape[1:]), dtype=none.dtype, meta=none)
