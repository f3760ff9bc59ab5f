"""Progress of whatever takes longer than two seconds, on a terminal or in a notebook; elsewhere nothing is shown.

What is shown are titles, public numbers of steps and times, and it goes when the work is done. Steps whose number follows from
the records, as those of a solver, are not counted. Of works within works the outermost is shown. A screen that takes nothing ends
no work: this may run after a charge.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE, _EVERY = 2.0, 0.2  # seconds before something is shown, and between two pictures of it
_CLEAR = "\r\x1b[2K"  # back to the start of the line, and nothing on it

#: Set to 0, nothing is shown.
VARIABLE = "DPERM_PROGRESS"


class _Screen:
    """Whether somebody watches, and what is shown to them, one work at a time."""

    def __init__(self) -> None:
        self.busy = False
        self._handle: Any = None

    def free(self) -> bool:
        """Whether a work may be shown now."""
        if self.busy or threading.current_thread() is not threading.main_thread() or os.environ.get(VARIABLE) == "0":
            return False
        return in_notebook() or (_is_terminal() and os.environ.get("TERM") != "dumb")

    def show(self, line: str) -> None:
        with contextlib.suppress(Exception):  # a screen that is gone must not end a work that is paid for
            if not in_notebook():
                sys.stderr.write(f"{_CLEAR}{line}")
                sys.stderr.flush()
                return
            shows: Any = import_module("IPython.display")
            if self._handle is None:
                self._handle = shows.display(shows.Pretty(line), display_id=True)
            else:
                self._handle.update(shows.Pretty(line))

    def clear(self) -> None:
        with contextlib.suppress(Exception):  # as above
            if not in_notebook():
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
            elif self._handle is not None:
                shows: Any = import_module("IPython.display")
                self._handle.update(shows.Pretty(""))
        self._handle = None


_SCREEN = _Screen()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # it is closed, or there is none
        return False


@contextmanager
def watching(title: str) -> Iterator[Callable[..., None]]:
    """Within the block, `step(done, total)` tells how far a work is, and `step()` that it goes on."""
    if not _SCREEN.free():
        yield lambda *_: None
        return
    began = time.monotonic()
    last = began + _PATIENCE - _EVERY
    shown = False

    def step(done: int = 0, total: int = 0) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if now - last >= _EVERY:
            last, shown = now, True
            _SCREEN.show(_line(title, now - began, done, total))

    _SCREEN.busy = True
    try:
        yield step
    finally:
        _SCREEN.busy = False
        if shown:
            _SCREEN.clear()


def watched(items: Iterable[T], title: str, total: int) -> Iterator[T]:
    """The items, of which there are publicly `total`, shown as they are worked on."""
    with watching(title) as step:
        for done, item in enumerate(items):
            step(done, total)
            yield item


@contextmanager
def told(progress: Callable[..., None] | None, title: str) -> Iterator[Callable[..., None]]:
    """Within the block, what tells `progress(done, total)` how far a work is; where a caller gave none, the screen."""
    if progress is None:
        with watching(title) as step:
            yield step
        return
    with unwatched():
        yield progress


@contextmanager
def unwatched() -> Iterator[None]:
    """Within the block nothing is shown: the number of works there is a secret, or somebody else shows them."""
    before, _SCREEN.busy = _SCREEN.busy, True
    try:
        yield
    finally:
        _SCREEN.busy = before


def _line(title: str, seconds: float, done: int, total: int) -> str:
    """How far a work is, and about how long the rest takes."""
    if not total:
        return f"{title}: {_duration(seconds)}"
    left = f", about {_duration(seconds * (total - done) / done)} left" if done else ""
    return f"{title}: {done:,} of {total:,}{left}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
