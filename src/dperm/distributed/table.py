"""A table in parts: Dask's arrays and frames, row block by row block, with their targets; and
predictions for each part."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dperm._extras import needed
from dperm.distributed.engine import DaskEngine
from dperm.objectives.parts import Engine

T = TypeVar("T")


class PartedTable:
    """Rows, targets and maybe weights in parts on an engine: what `fit` takes in place of X, with y left None.

    `parts` are the engine's handles of blocks (X, y, weights), weights None unless the table is `weighed`, and `size` is the
    number of rows where it is known; X a NumPy array, SciPy matrix or pandas frame of `columns`, names or numbers from 0. Another
    engine than Dask's makes one of these: see docs/dask.md.
    """

    def __init__(
        self, engine: Engine, parts: Sequence[Any], columns: Sequence[Any], *, size: int | None = None, weighed: bool = False
    ) -> None:
        self.engine, self.parts, self.columns, self.weighed = engine, list(parts), list(columns), weighed
        self._size = size

    def __len__(self) -> int:
        if self._size is None:
            self._size = self.engine.total(_length, self.parts, [None] * len(self.parts), operator.add)
        return self._size

    def example(self) -> Any:
        """One row of zeros with the table's columns, for checks that look at no record."""
        return _zeros(self.columns, np.dtype(np.float64))

    def total_of_targets(self, share: Callable[[Any], T], add: Callable[[T, T], T]) -> T:
        """Σ share(targets) over the parts."""
        of_part = functools.partial(_of_targets, share)
        return self.engine.total(of_part, self.parts, [None] * len(self.parts), add)

    def derive(self, function: Callable[[Any, Any], Any]) -> Sequence[Any]:
        """Handles of function(block, None)."""
        return self.engine.derive(function, self.parts, [None] * len(self.parts))


def parted_table(X: Any, y: Any = None, sample_weight: Any = None, *, client: Any = None) -> PartedTable | None:
    """X of Dask, cut as it is, with y and weights cut alike; a `PartedTable` as it is; None for anything else.

    `client` is the `distributed.Client` to run on: the current one, unless it is given. ValueError where there is none, where
    columns are cut, where y or weights are no collections of Dask or cut otherwise, and for what another cluster holds.
    """
    if isinstance(X, PartedTable):
        if y is not None or sample_weight is not None:
            raise ValueError("Expected y=None and no sample_weight with a table in parts, which holds them.")
        return X
    if not of_dask(X):
        refuse_dask(y=y, sample_weight=sample_weight)
        return None
    from dask.delayed import delayed

    columns = _columns(X)
    together = delayed(_together, pure=True)
    parts = [together(*part) for part in cut_alike(X, y, sample_weight)]
    size = X.shape[0] if isinstance(X.shape[0], int) else None  # of frames, and of what was made of them, it is not known
    client = client or _client()
    _refuse_elsewhere(client, X=X, y=y, sample_weight=sample_weight)
    return PartedTable(DaskEngine(client), parts, columns, size=size, weighed=sample_weight is not None)


def cut_alike(X: Any, y: Any, sample_weight: Any = None) -> list[tuple[Any, Any, Any]]:
    """Delayed blocks of X, y and weights, None without weights. ValueError where columns are cut, and where y or weights are no
    collections of Dask or have another number of parts."""
    _columns(X)
    blocks = _blocks("X", X)
    others = [_alike(name, given, X, len(blocks)) for name, given in (("y", y), ("sample_weight", sample_weight))]
    return list(zip(blocks, *others, strict=True))


def row_of_zeros(X: Any) -> Any:
    """One row as a collection of Dask has them, for checks that look at no record. ValueError where its columns are cut."""
    columns = _columns(X)
    kinds = list(X.dtypes) if hasattr(X, "dtypes") else [X.dtype]
    numeric = all(isinstance(kind, np.dtype) and kind.kind in "biuf" for kind in kinds)
    return _zeros(columns, np.result_type(*kinds) if numeric and kinds else np.dtype(np.float64))


def _zeros(columns: Sequence[Any], kind: np.dtype[Any]) -> Any:
    zeros = np.zeros((1, len(columns)), dtype=kind)
    if not any(isinstance(column, str) for column in columns):
        return zeros
    with needed("pandas", "A table with names of columns"):
        import pandas as pd

    return pd.DataFrame(zeros, columns=columns)  # pyright: ignore[reportArgumentType]


def _columns(X: Any) -> list[Any]:
    """Names, or numbers from 0."""
    if X.ndim != 2:
        raise ValueError(f"Expected X with rows and columns, got {X.ndim} axes.")
    if hasattr(X, "columns"):
        return list(X.columns)
    if X.numblocks[1] != 1:
        raise ValueError(f"Expected X with whole rows in each chunk, got columns cut in {X.numblocks[1]}: rechunk it.")
    if not isinstance(X.shape[1], int):
        raise ValueError("Expected X with a known number of columns, got one that is not known: X.compute_chunk_sizes() counts.")
    return list(range(X.shape[1]))


def _together(X: Any, y: Any, weights: Any) -> tuple[Any, Any, Any]:
    for name, given in (("y", y), ("sample_weight", weights)):
        refuse_other_lengths(name, given, X)
    return X, y, weights


def refuse_other_lengths(name: str, given: Any, X: Any) -> None:
    """ValueError where a block of this name has another number of rows than that of X."""
    if given is not None and len(given) != X.shape[0]:
        raise ValueError(f"Expected {name} cut as X is, got parts of {len(given)} and {X.shape[0]} rows.")


def _client() -> Any:
    with needed("distributed", "Fitting rows in parts"):
        from distributed import get_client

    try:
        return get_client()
    except ValueError as error:
        raise ValueError("Expected a Dask cluster for rows in parts, got none: client = distributed.Client().") from error


def _refuse_elsewhere(client: Any, **given: Any) -> None:
    """ValueError for what was persisted on another cluster, or was lost since: Dask would say "lost dependencies", or wait."""
    from distributed import futures_of

    for name, value in given.items():
        for future in [] if value is None else futures_of(value):
            there, here = _address(future.client), _address(client)
            if there != here:
                raise ValueError(
                    f"Expected {name} persisted on the cluster that it is fitted on, {here}, got one on {there}: fit within "
                    "`with client.as_current():` of the client that persisted it, or persist it here."
                )
            if future.status in ("cancelled", "lost"):
                raise ValueError(f"Expected {name} as it was persisted, got parts that the cluster lost since: persist it again.")


def _address(client: Any) -> str:
    return client.scheduler.address if client.status == "running" else "one whose client is closed"


def of_dask(value: Any) -> bool:
    """Whether it is one of Dask's collections."""
    return type(value).__module__.partition(".")[0] in ("dask", "dask_expr") and hasattr(value, "to_delayed")


def _blocks(name: str, value: Any) -> list[Any]:
    """Delayed blocks of rows; not optimised, which would compute what X and y share for each of them."""
    delayed = np.asarray(value.to_delayed(optimize_graph=False), dtype=object)
    if delayed.ndim > 1:
        if any(size != 1 for size in delayed.shape[1:]):
            raise ValueError(f"Expected {name} with whole rows in each chunk, got columns cut in {delayed.shape[1]}: rechunk it.")
        delayed = delayed.reshape(len(delayed))
    return list(delayed)


def _alike(name: str, value: Any, X: Any, count: int) -> list[Any]:
    if value is None:
        if name == "y":
            raise ValueError("Expected y with X, a collection of Dask cut as X is, got None.")
        return [None] * count
    if not of_dask(value):
        advice = "" if isinstance(value, str) else f"; dask.array.from_array({name}, chunks=X.chunks[0]) is one"
        raise ValueError(f"Expected {name} as a collection of Dask, cut as X is, got {type(value).__name__}{advice}.")
    blocks = _blocks(name, value)
    if len(blocks) != count and not hasattr(X, "to_dask_array") and hasattr(value, "to_dask_array"):
        # an array that was made of few of a frame's columns may read several files at once, and so may one of the labels
        blocks = _blocks(name, value.to_dask_array())
    if len(blocks) != count:
        raise ValueError(
            f"Expected {name} cut as X is, in {count} parts, got {len(blocks)}: {name}.rechunk(X.chunks[0]) for "
            "arrays; take both from one frame, or persist it first, for frames."
        )
    return blocks


def refuse_dask(**given: Any) -> None:
    """ValueError for collections of Dask, which NumPy would bring to this process without a word."""
    for name, value in given.items():
        if of_dask(value):
            raise ValueError(
                f"Expected {name} in memory, got a collection of Dask: linear estimators alone take these, and with X in parts "
                "all that belongs to it."
            )


def _of_targets(share: Callable[[Any], Any], block: Any, given: None) -> Any:
    return share(block[1])


def _length(block: Any, given: None) -> int:
    return int(block[0].shape[0])


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
