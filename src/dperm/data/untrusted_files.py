"""Files that somebody else wrote: the errors that they raise, and limits on their size, which are checked before memory is taken
and can be raised by a user who knows the file."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from dperm._memory import free_memory

VARIABLE = "DPERM_LIMITS"
CELL = 40  # bytes that an entry of a table takes in memory while it is read, about


class DataError(ValueError):
    """A file cannot be used; the message says which, why, and what to do."""


_SMALL = 1 << 28  # bytes of memory that any file may take


class TooLargeError(ValueError):
    """A file would become larger than its reader is prepared for. The message goes on from "Cannot read FILE: "."""


@dataclass(frozen=True)
class Limits:
    """Limits of what is read from one file. The environment variable ``DPERM_LIMITS`` raises or lowers them, by texts such as
    ``columns=100000,unpacking=1e4``.

    Parameters
    ----------
    columns : int
        Columns of a table.
    features : int
        Features of an array file, of NumPy or libsvm.
    cells : int
        Entries of a table or array: rows times columns, or those that a sparse one states. One that is memory-mapped may have
        more.
    unpacking : int
        How many times its own size a file may take in memory, where it takes more than 256 MiB. A text takes about 10 times its
        bytes, an entry of a table 40 bytes: at 2,000, a compressed text may be 200 times as long as its file, and a workbook may
        have 50 entries for each byte of its file.
    """

    columns: int = 50_000
    features: int = 1_000_000
    cells: int = 1_000_000_000
    unpacking: int = 2_000

    @classmethod
    def current(cls) -> Limits:
        """Those that the environment states. ValueError for a text that states none."""
        return _stated(os.environ.get(VARIABLE, ""))

    def enough(self, stored: int) -> float:
        """Bytes of memory that a file of `stored` bytes may take."""
        return max(_SMALL, self.unpacking * stored)

    def refuse_columns(self, count: int) -> None:
        """TooLargeError for a table of more columns."""
        _refuse_more(count, self.columns, "columns", "columns")

    def refuse_features(self, count: int) -> None:
        """TooLargeError for an array file of more features."""
        _refuse_more(count, self.features, "features", "features")

    def refuse_cells(self, count: int, stored: int, each: int = CELL) -> None:
        """TooLargeError for so many entries of `each` bytes in a file of `stored` bytes."""
        _refuse_more(count, self.cells, "cells", "entries")
        self.refuse_memory(count * each, stored)

    def refuse_memory(self, needed: float, stored: int) -> None:
        """TooLargeError where what a file of `stored` bytes takes in memory is out of proportion, or more than half of what is
        free."""
        self.refuse_proportion(needed, stored)
        refuse_beyond_free(needed)

    def refuse_proportion(self, needed: float, stored: int, *, whole: bool = True) -> None:
        """TooLargeError where what a file of `stored` bytes takes in memory is out of proportion. Unless `whole`, `needed` is
        what was unpacked of it so far."""
        times = math.ceil(needed / max(1, stored))
        if needed > self.enough(stored):
            more, enough = ("", times) if whole else (" or more", 10 * times)
            raise TooLargeError(
                f"it has {stored:,} bytes and would take {needed / 1e9:.3g} GB of memory{more}, {times:,} times as many; the "
                f"limit is {self.unpacking:,} times. If that is meant, {VARIABLE}=unpacking={enough} raises it"
            )


def refuse_beyond_free(needed: float) -> None:
    """TooLargeError for more than half of the memory that is free."""
    if needed > (free := free_memory()) / 2:
        raise TooLargeError(
            f"it would take about {needed / 1e9:.3g} GB of memory, too much for the {free / 1e9:.3g} GB that are free"
        )


def _refuse_more(count: int, most: int, name: str, what: str) -> None:
    if count > most:
        raise TooLargeError(
            f"it has {count:,} {what}, and the limit is {most:,}. If that is meant, {VARIABLE}={name}={count} raises it"
        )


@cache
def _stated(text: str) -> Limits:
    known = {each.name for each in fields(Limits)}
    given: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in known or name in given or not re.fullmatch(r"\d{1,15}(\.\d*)?([eE]\d{1,2})?", value) or float(value) < 1:
            raise ValueError(
                f"Expected {VARIABLE} such as columns=100000,cells=1e10, of {', '.join(sorted(known))}, got {text!r}."
            )
        given[name] = int(float(value))
    return Limits(**given)


@contextlib.contextmanager
def parsing(path: Path) -> Iterator[None]:
    """A block in which libraries read a file: whatever they raise becomes a `DataError` of one line that names the file.

    The exceptions that a parser raises for malformed input are no part of its interface: `OverflowError`, `struct.error`,
    `KeyError`, a `SyntaxError` for XML, a `TokenError` for the header of an array, an `AttributeError` for an object that is
    not the one it expected. Therefore every `Exception` is taken for what it says, that the file cannot be read, and stays the
    cause of the `DataError`. The block holds calls of libraries and nothing that could hide a fault of dperm's own.
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
