"""Forks of a process whose threads use SQLite files.

SQLite keeps in memory what its process has locked. In a child that was forked while another thread had a file open, it takes
that thread's locks for its own, which nobody there ever lets go of: the child can charge nothing. A fork therefore waits until
other threads have closed their files, and threads that open one meanwhile wait for the fork.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator

_PATIENCE = 10.0  # seconds: a charge takes milliseconds, but others may be before it
_changed = threading.Condition(threading.Lock())
_open: Counter[int] = Counter()  # files, by the thread that has them open
_forking: set[int] = set()  # threads


@contextlib.contextmanager
def in_use() -> Iterator[None]:
    """Within the block, this thread has a file open."""
    mine = threading.get_ident()
    with _changed:
        if mine not in _open:  # a fork waits for who has one open, who must not wait for the fork
            _changed.wait_for(lambda: not _forking, _PATIENCE)
        _open[mine] += 1
    try:
        yield
    finally:
        with _changed:
            _open[mine] -= 1
            if not _open[mine]:
                del _open[mine]
            _changed.notify_all()


def _before() -> None:
    mine = threading.get_ident()
    _changed.acquire()  # held until the fork is done, but while it waits
    _forking.add(mine)
    _changed.wait_for(lambda: not _open.keys() - {mine}, _PATIENCE)


def _in_parent() -> None:
    _forking.discard(threading.get_ident())
    _changed.notify_all()
    _changed.release()


def _in_child() -> None:
    mine = threading.get_ident()
    for other in _open.keys() - {mine}:
        del _open[other]
    _forking.clear()
    _changed.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
