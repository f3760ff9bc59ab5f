"""Whose random numbers are whose, while an audit replays a run on neighbours: torch-free, so that whoever draws may ask.

A model or a data set draws masks and augmentations for each record, from seeds that nobody knows. Neighbouring runs can be
compared only where each record that they share draws the same in both (a coupling of the two runs), and everything else is drawn
as in any run: what belongs to no record, once for each physical batch, and what comes of a known seed, from that seed. If records
share what they draw, one more of them moves the others to other batches, and the queries show it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Alignment", "aligned", "current"]


class Alignment:
    """One replayed run. `names(numbers)` are names of these records of its data set that are the same in the run that it is
    compared with."""

    def __init__(self, names: Callable[[Sequence[int]], Sequence[int]]) -> None:
        self._names = names
        self._handed: dict[int, tuple[Any, tuple[object, ...]]] = {}
        self._passes = 0

    def hands_out(self, inputs: Any, numbers: Sequence[int], rows: Sequence[int] | None = None) -> None:
        """A physical batch of these records is about to be used, or of one of the `rows` of each."""
        names = self._names(numbers)
        # the batch itself is kept: nothing else may have its identity meanwhile
        self._handed[id(inputs)] = inputs, tuple(names if rows is None else zip(names, rows, strict=True))

    def names_of(self, inputs: Any) -> tuple[object, ...] | None:
        """The names of a batch's records, which are forgotten then; None for a batch that was not handed out."""
        return self._handed.pop(id(inputs), (None, None))[1]

    def name_of(self, number: int) -> int:
        """The name of one record."""
        return self._names([number])[0]

    def next_pass(self) -> int:
        """The number of a pass over a physical batch, counted from 1."""
        self._passes += 1
        return self._passes


_current: ContextVar[Alignment | None] = ContextVar("alignment", default=None)


def current() -> Alignment | None:
    """The alignment of the run in progress; None where it is no replay."""
    return _current.get()


@contextmanager
def aligned(names: Callable[[Sequence[int]], Sequence[int]]) -> Iterator[None]:
    """Within the block a run is replayed: see `Alignment`."""
    token = _current.set(Alignment(names))
    try:
        yield
    finally:
        _current.reset(token)


def seed_of(*parts: object) -> int:
    """A seed made of these names and numbers: the same in every run, so that it is no secret."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little")
