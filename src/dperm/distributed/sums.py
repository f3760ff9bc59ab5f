"""Sums over the parts of Dask's collections, on whatever Dask runs: what needs no cluster, and keeps nothing where parts live."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dperm.distributed.table import cut_alike, refuse_other_lengths

T = TypeVar("T")

_FAN_IN = 8  # shares that are added up by one task


class PartSums:
    """Rows X, targets y and maybe weights, collections of Dask that are cut alike. ValueError where they are not."""

    def __init__(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        self._parts = cut_alike(X, y, sample_weight)

    def of_rows(self, share: Callable[[Any, Any, Any], T], add: Callable[[T, T], T]) -> T:
        """Σ share(X, y, weights) over the parts that have rows. ValueError where none has, or where y has others."""
        return sum_over(functools.partial(_share_of_rows, share), self._parts, add)

    def of_targets(self, share: Callable[[Any, Any], T], add: Callable[[T, T], T]) -> T:
        """Σ share(y, weights) over the parts that have rows, without reading X."""
        return sum_over(functools.partial(_share_of_targets, share), [part[1:] for part in self._parts], add)


def sum_over(share: Callable[..., T | None], parts: Sequence[tuple[Any, ...]], add: Callable[[T, T], T]) -> T:
    """Σ share(*part) over the parts that have one, by a tree of tasks: each part counts once, also where it is computed again.
    ValueError where none has one."""
    from dask.delayed import delayed

    of_part, adding = delayed(share, pure=False), delayed(functools.partial(_added, add), pure=False)
    waiting: list[Any] = [of_part(*part) for part in parts]
    while len(waiting) > 1:
        waiting = [adding(waiting[start : start + _FAN_IN]) for start in range(0, len(waiting), _FAN_IN)]
    total = waiting[0].compute()
    if total is None:
        raise ValueError("Expected at least one row, got a table without any.")
    return total


def _share_of_rows(share: Callable[[Any, Any, Any], Any], X: Any, y: Any, weights: Any) -> Any:
    for name, given in (("y", y), ("sample_weight", weights)):
        refuse_other_lengths(name, given, X)
    return share(X, y, weights) if X.shape[0] else None


def _share_of_targets(share: Callable[[Any, Any], Any], y: Any, weights: Any) -> Any:
    return share(y, weights) if len(y) else None


def _added(add: Callable[[Any, Any], Any], shares: Sequence[Any]) -> Any:
    there = [share for share in shares if share is not None]
    return functools.reduce(add, there) if there else None
