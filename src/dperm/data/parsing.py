"""The one way in which a library parses a file that somebody else wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dperm.data.dataset import DataError


@contextlib.contextmanager
def parsing(path: Path) -> Iterator[None]:
    """A block in which libraries read a file: whatever they raise becomes a `DataError` of one line that names the file.

    What a parser raises for malformed input is no part of its interface: `OverflowError`, `struct.error`, `KeyError`, a
    `SyntaxError` for XML, a `TokenError` for the header of an array, an `AttributeError` for an object that is not the one it
    expected. Therefore every `Exception` is taken for what it says, that the file cannot be read, and stays the cause of the
    `DataError`. The block holds calls of libraries and nothing that could hide a fault of dperm's own.
    """
    try:
        yield
    except (DataError, ModuleNotFoundError):  # it says what to do
        raise
    except MemoryError as error:
        raise DataError(f"Cannot read {path}: it needs more memory than there is.") from error
    except Exception as error:
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DataError(f"Cannot read {path}: {said}") from error
