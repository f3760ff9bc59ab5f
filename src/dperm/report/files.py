"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write to a temporary neighbour, flush, rename. OSError, with nothing left behind, where any of it fails."""
    path = Path(path).resolve()  # through links: replace the file, not the link
    if path.exists() and not path.is_file():
        raise OSError(f"Cannot write {path}: it exists and is not a regular file.")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
