"""Sums over parts on a Dask cluster: what records in parts ask of an engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dperm import _validate as check

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["DaskEngine"]

T = TypeVar("T")

_FAN_IN = 8  # shares that are added up by one task


class DaskEngine:
    """Runs functions on the workers of a `distributed.Client`. Parts are futures, or delayed values that were not computed yet.

    Where a worker is lost, the scheduler runs its tasks again elsewhere. `timeout`: seconds after which a sum, or the making of
    the parts, is given up with TimeoutError, for instance because no worker is left.
    """

    def __init__(self, client: Client, timeout: float = 3600.0) -> None:
        self.client = client
        self.timeout = check.positive("timeout", timeout)

    def derive(self, function: Callable[[Any, Any], Any], parts: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        from dask.delayed import delayed

        made = delayed(function, pure=False)
        # computed together: what the parts are made of is then dropped as soon as it was used
        futures: Any = self.client.compute([made(part, each) for part, each in zip(parts, given, strict=True)])
        return list(futures)

    def total(self, function: Callable[[Any, Any], T], parts: Sequence[Any], given: Sequence[Any], add: Callable[[T, T], T]) -> T:
        waiting = list(self.derive(function, parts, given))
        adding = functools.partial(_added, add)
        while len(waiting) > 1:
            groups = [waiting[start : start + _FAN_IN] for start in range(0, len(waiting), _FAN_IN)]
            waiting = [self.client.submit(adding, group, pure=False) if len(group) > 1 else group[0] for group in groups]
        try:
            return waiting[0].result(timeout=self.timeout)
        except TimeoutError as error:
            self.client.cancel(waiting)
            raise TimeoutError(
                f"The cluster gave no sum within {self.timeout:g} s: are its workers alive? What was charged stays charged."
            ) from error


def _added(add: Callable[[Any, Any], Any], shares: Sequence[Any]) -> Any:
    return functools.reduce(add, shares)
