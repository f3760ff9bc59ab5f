"""Sums over parts on a Dask cluster: what records in parts ask of an engine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dperm import _validate as check

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["DaskEngine"]

T = TypeVar("T")

_FAN_IN = 8  # shares that are added up by one task
_AT_ONCE = 1 << 29  # bytes of parts in one task, which move together where their worker is lost


class DaskEngine:
    """Runs functions on the workers of a `distributed.Client`. Parts are futures, or delayed values that were not computed yet.

    Where a worker is lost, the scheduler runs its tasks again elsewhere. `timeout`: seconds after which a sum, or the making of
    the parts, is given up with TimeoutError, for instance because no worker is left.

    A task costs some milliseconds, whatever it does: parts in the memory of one worker are added up by one task, as long as each
    of its threads has one.
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
        until = time.monotonic() + self.timeout
        groups = self._together(parts)
        if groups is None:
            waiting = list(self.derive(function, parts, given))
        else:
            summed = functools.partial(_summed, function, add)
            waiting = [
                self.client.submit(summed, [parts[number] for number in group], [given[number] for number in group], pure=False)
                for group in groups
            ]
        adding = functools.partial(_added, add)
        while len(waiting) > _FAN_IN:
            tasks = [waiting[start : start + _FAN_IN] for start in range(0, len(waiting), _FAN_IN)]
            waiting = [self.client.submit(adding, task, pure=False) if len(task) > 1 else task[0] for task in tasks]
        try:
            return functools.reduce(add, (share.result(timeout=max(0.0, until - time.monotonic())) for share in waiting))
        except TimeoutError as error:
            self.client.cancel(waiting)
            raise TimeoutError(
                f"The cluster gave no sum within {self.timeout:g} s: are its workers alive? What was charged stays charged."
            ) from error

    def _together(self, parts: Sequence[Any]) -> list[list[int]] | None:
        """The numbers of parts that one task adds up each; None where it is not known of all where they are."""
        from distributed import Future

        if not all(isinstance(part, Future) for part in parts):
            return None
        keys = [part.key for part in parts]
        holders: Any = self.client.who_has(parts)
        threads = self.client.nthreads()
        at: dict[str, list[int]] = {}
        for number, key in enumerate(keys):
            if not (known := [worker for worker in holders.get(key, ()) if worker in threads]):
                return None
            at.setdefault(known[0], []).append(number)
        sizes: Any = self.client.nbytes(keys, summary=False)  # of what is there: it knows no others
        return [
            group
            for worker, numbers in at.items()
            for group in _groups(numbers, [sizes[keys[number]] for number in numbers], threads[worker])
        ]


def _groups(numbers: Sequence[int], sizes: Sequence[int], threads: int) -> list[list[int]]:
    """As many groups as threads, and more where they would hold too many bytes."""
    count = min(len(numbers), max(threads, -(-sum(sizes) // _AT_ONCE)))
    return [list(numbers[start::count]) for start in range(count)]


def _summed(function: Any, add: Any, parts: Sequence[Any], given: Sequence[Any]) -> Any:
    return functools.reduce(add, map(function, parts, given))


def _added(add: Callable[[Any, Any], Any], shares: Sequence[Any]) -> Any:
    return functools.reduce(add, shares)
