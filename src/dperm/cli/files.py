"""Files that the command that runs has reserved."""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from dperm._files import Reserved, replace_own, write_new

_RESERVED = ExitStack()
atexit.register(_RESERVED.close)


def reserved(path: Path, *, private: bool = False, paid_for: bool = False) -> Reserved:
    """A file of this command's, reserved until it ends: an unusable output is refused now. One that is `paid_for` keeps what
    stands there under another name; others replace it. Only its owner may read what is `private`."""
    door: AbstractContextManager[Reserved] = (write_new if paid_for else replace_own)(path, private=private)
    return _RESERVED.enter_context(door)


def give_up_reserved() -> None:
    """End a command: reservations that were not used leave nothing behind."""
    _RESERVED.close()
