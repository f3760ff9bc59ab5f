"""Sums over parts on a Dask cluster: what records in parts ask of an engine."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dperm import _validate as check

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")

_FAN_IN = 8  # shares that are added up by one task
_LARGE = 1 << 20  # bytes of a share that is not sent here beside others
_AT_ONCE = 1 << 29  # bytes of parts in one task, which move together where their worker is lost
_OF_MEMORY = 8  # no more than one in so many of what a worker may hold, for each of its threads: parts may lie on its disk


class DaskEngine:
    """Runs functions on the workers of a `distributed.Client`. Parts are futures, or delayed values that were not computed yet.

    Where a worker is lost, the scheduler runs its tasks again elsewhere. `timeout`: seconds after which a sum, or the making of
    the parts, is given up with TimeoutError, for instance because no worker is left. ValueError for an asynchronous client.

    A task costs some milliseconds, whatever it does: parts in the memory of one worker are added up by few tasks, each of which
    holds no more of them than a thread's share.
    """

    def __init__(self, client: Client, timeout: float = 3600.0) -> None:
        if client.asynchronous:
            raise ValueError("Expected a client that waits for its cluster, got an asynchronous one.")
        self.client = client
        self.timeout = check.positive("timeout", timeout)
        self._limits: dict[str, int] = {}  # bytes that workers may hold, 0 where that is not limited

    def derive(self, function: Callable[[Any, Any], Any], parts: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
        from dask.delayed import delayed

        made = delayed(function, pure=False)
        # computed together: what the parts are made of is then dropped as soon as it was used
        futures: Any = self.client.compute([made(part, each) for part, each in zip(parts, given, strict=True)])
        return list(futures)

    def total(self, function: Callable[[Any, Any], T], parts: Sequence[Any], given: Sequence[Any], add: Callable[[T, T], T]) -> T:
        until = time.monotonic() + self.timeout
        waiting: list[Any] = []
        try:
            waiting = self._shares(function, parts, given, add, until)
            waiting = self._few(waiting, functools.partial(_added, add), until)
            return functools.reduce(add, (share.result(timeout=_left(until)) for share in waiting))
        except TimeoutError as error:
            self.client.cancel(waiting)
            raise TimeoutError(
                f"The cluster gave no sum within {self.timeout:g} s: are its workers alive? What was charged stays charged."
            ) from error

    def _shares(self, function: Any, parts: Sequence[Any], given: Sequence[Any], add: Any, until: float) -> list[Any]:
        """Futures of sums over some of the parts each."""
        groups = self._together(parts, until)
        if groups is None:
            return list(self.derive(function, parts, given))
        summed = functools.partial(_summed, function, add)
        return [
            self.client.submit(summed, [parts[number] for number in group], [given[number] for number in group], pure=False)
            for group in groups
        ]

    def _few(self, waiting: list[Any], adding: Any, until: float) -> list[Any]:
        """Added up where they are until they are few; large ones until one is left, which alone is sent here."""
        from distributed import wait

        while len(waiting) > _FAN_IN:
            tasks = [waiting[start : start + _FAN_IN] for start in range(0, len(waiting), _FAN_IN)]
            waiting = [self.client.submit(adding, task, pure=False) if len(task) > 1 else task[0] for task in tasks]
        if len(waiting) > 1:
            wait(waiting, timeout=_left(until))
            scheduler: Any = self.client.scheduler
            sizes = self._asked(scheduler.nbytes, until, keys=[waiting[0].key], summary=False)
            if max(sizes.values(), default=0) > _LARGE:
                waiting = [self.client.submit(adding, waiting, pure=False)]
        return waiting

    def _together(self, parts: Sequence[Any], until: float) -> list[list[int]] | None:
        """The numbers of parts that one task adds up each; None where it is not known of all where they are."""
        from distributed import Future

        if not all(isinstance(part, Future) for part in parts):
            return None
        scheduler: Any = self.client.scheduler
        keys = [part.key for part in parts]
        holders = self._asked(scheduler.who_has, until, keys=list(dict.fromkeys(keys)))
        if not all(holders.get(key) for key in keys):
            return None
        sizes = self._asked(scheduler.nbytes, until, keys=keys, summary=False)
        threads = self._asked(scheduler.ncores, until)
        if not sizes.keys() >= set(keys):
            return None
        if not self._limits.keys() >= threads.keys():
            workers = self._asked(scheduler.identity, until, n_workers=-1)["workers"]
            self._limits = {address: worker["memory_limit"] or 0 for address, worker in workers.items()}
        at: dict[str, list[int]] = {}
        for number, key in enumerate(keys):  # of several holders the one with the least to do
            holder = min(holders[key], key=lambda worker: len(at.get(worker, ())))
            at.setdefault(holder, []).append(number)
        bytes_of = [max(1, sizes[key]) for key in keys]
        fair = sum(bytes_of) / max(1, sum(threads.values()))
        found: list[list[int]] = []
        for worker, numbers in at.items():
            limit = self._limits.get(worker, 0) / (_OF_MEMORY * threads.get(worker, 1))
            most = min(fair, _AT_ONCE, limit or _AT_ONCE)
            found += _groups(numbers, [bytes_of[number] for number in numbers], most)
        return found

    def _asked(self, question: Any, until: float, **about: Any) -> Any:
        """What the scheduler answers, in time; nothing where it does not know a key."""
        try:
            return self.client.sync(question, callback_timeout=_left(until), **about)
        except KeyError:
            return {}


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())


def _groups(numbers: Sequence[int], sizes: Sequence[float], most: float) -> list[list[int]]:
    """In their order, each of at most so many bytes, or of one part."""
    groups: list[list[int]] = []
    held = 0.0
    for number, size in zip(numbers, sizes, strict=True):
        if not groups or held + size > most * (1 + 1e-9):
            groups.append([])
            held = 0.0
        groups[-1].append(number)
        held += size
    return groups


def _summed(function: Any, add: Any, parts: Sequence[Any], given: Sequence[Any]) -> Any:
    return functools.reduce(add, map(function, parts, given))


def _added(add: Callable[[Any, Any], Any], shares: Sequence[Any]) -> Any:
    return functools.reduce(add, shares)
