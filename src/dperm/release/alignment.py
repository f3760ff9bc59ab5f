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


class Alignment:
    """One replayed run. `names(numbers)` are names of these records of its data set that are the same in the run that it is
    compared with. `released()` is the number of releases so far."""

    def __init__(self, names: Callable[[Sequence[int]], Sequence[int]], released: Callable[[], int]) -> None:
        self.names = names
        self._released = released
        self._charges = 0
        self._handed: dict[int, tuple[Any, Sequence[object]]] = {}
        self._step = ((0, 0), 0)

    def hands_out(self, inputs: Any, names: Sequence[object]) -> None:
        """A physical batch of the records of these names is about to be used."""
        self._handed[id(inputs)] = inputs, names  # the batch is kept: nothing else may have its identity meanwhile

    def names_of(self, inputs: Any) -> Sequence[object] | None:
        """The names of a batch's records, which are forgotten then; None for a batch that was not handed out."""
        return self._handed.pop(id(inputs), (None, None))[1]

    def charged(self) -> None:
        """The run is charged from here on."""
        self._charges += 1

    def next_step(self) -> tuple[tuple[int, int], int]:
        """The name of a step: the charges and releases before it, and its number among the steps since the last of them.

        Both runs make the same charges and releases. They need not evaluate the model equally often: a draw may be empty in one
        run and hold one record in the other, and checks before the charge see other records. A step that is counted by
        evaluations alone would have another number in each of them.
        """
        done = self._charges, self._released()
        self._step = (done, self._step[1] + 1 if self._step[0] == done else 1)
        return self._step


_current: ContextVar[Alignment | None] = ContextVar("alignment", default=None)


def current() -> Alignment | None:
    """The alignment of the run in progress; None where it is no replay."""
    return _current.get()


def names_of(numbers: Sequence[int]) -> Sequence[object]:
    """Names of these records of a data set: their numbers, where the run is no replay."""
    alignment = current()
    return numbers if alignment is None else alignment.names(numbers)


@contextmanager
def aligned(names: Callable[[Sequence[int]], Sequence[int]], released: Callable[[], int] = lambda: 0) -> Iterator[None]:
    """Within the block a run is replayed: see `Alignment`."""
    token = _current.set(Alignment(names, released))
    try:
        yield
    finally:
        _current.reset(token)


def seed_of(*parts: object) -> int:
    """A seed made of these names and numbers, and of nothing else."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little")
