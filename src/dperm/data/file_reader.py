"""The family of readers: each states the endings and first bytes of its files, and reads them. Files in `readers/` add to it."""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from numpy.typing import NDArray

from dperm._memory import free_memory
from dperm.data.decoding import read_bytes
from dperm.data.schema.entries import ReadTable
from dperm.data.untrusted_files import DataError, parsing

#: how a missing value is written, beside what a schema's format says
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "<NA>", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "#NULL!", r"\N")
_SHOWN = 5  # names
_FIRST = 100_000  # bytes, decompressed, in which a first line ends


def distinct_names(names: Sequence[str]) -> tuple[list[str], str]:
    """Names of columns, of which those that come again get a number, as pandas does: score, score.1; and that in words."""
    taken, seen, numbers = set(names), set[str](), Counter[str]()
    found, renamed = list[str](), list[str]()
    for name in names:
        plain = name
        while name in seen:
            numbers[plain] += 1
            if (other := f"{plain}.{numbers[plain]}") not in taken:
                name = other
                renamed.append(name)
        taken.add(name)
        seen.add(name)
        found.append(name)
    more = f" and {len(renamed) - _SHOWN:,} more" if len(renamed) > _SHOWN else ""
    return found, f"columns of the same name are called {', '.join(renamed[:_SHOWN])}{more}" if renamed else ""


@dataclass(frozen=True)
class TableOptions:
    """What is known of a table before it is read.

    Attributes
    ----------
    stated : Mapping
        How it is written, as the format of a schema or a caller states it: `separator`, `missing` and so on.
    names : Sequence
        Lists of names that columns may have in a file without a header.
    values : Mapping
        By column, texts that are categories or labels there, also where they are a usual word for a missing value.
    """

    stated: Mapping[str, Any] = field(default_factory=dict[str, Any])
    names: Sequence[Sequence[str]] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def marks(self, column: str, decimal: str = ".") -> set[str]:
        """How missing values are written in this column: the usual marks, and those stated, a number in any way that it may be;
        but for what is a category there, such as NA for Namibia."""
        marks = set[str](MISSING)
        stated = self.stated.get("missing", ())
        for mark in listed(stated):
            text = str(mark).strip()
            marks.add(text)
            if plain := re.fullmatch(r"([+-]?\d+)(\.0*)?", text):
                marks |= {plain[1] + end for end in ("", f"{decimal}0", f"{decimal}00")}
            elif not isinstance(mark, str):
                marks.add(text.replace(".", decimal))
        return marks - set(self.values.get(column, ()))


def listed(stated: Any) -> Sequence[Any]:
    """What is stated once or as a list, as a list."""
    return stated if isinstance(stated, list | tuple) else [stated]


@dataclass(frozen=True)
class Arrays:
    """Features (n, d), dense or CSR, and targets (n,) of a file without names for columns. `indices`: the first and the last that
    features have in it; `indices_stated`: somebody stated these, so that they are public."""

    features: Any
    targets: NDArray[Any]
    indices: tuple[int, int] | None = None
    indices_stated: bool = False


class FileReader(ABC):
    """One kind of data files. It has no state: an object of it stands for the kind.

    A reader may raise any exception for a file that is not what it should be: whoever calls it makes a `DataError` of one line of
    it, by `parsing`. Before it takes memory, it refuses what `Limits.current()` does not allow.

    Attributes
    ----------
    title : str
        What the kind is called, in help and documentation.
    endings : tuple of str
        Endings of names, in lower case with their dot. No other reader has them.
    magic : tuple of bytes
        First bytes of files of this kind, by which one without a known ending is told; empty where they do not tell.
    first_line : bytes
        A regular expression that the first line of a text of this kind matches as a whole, and of no other; empty: none.
    unreadable : Mapping
        Endings of related files that cannot be read, and what to do with such a file.
    any_text : bool
        Whether every file that is of no other kind is of this one.
    memory_mapped : bool
        Whether such a file may be larger than memory.
    """

    title: ClassVar[str]
    endings: ClassVar[tuple[str, ...]]
    magic: ClassVar[tuple[bytes, ...]] = ()
    first_line: ClassVar[bytes] = b""
    unreadable: ClassVar[Mapping[str, str]] = {}
    any_text: ClassVar[bool] = False
    memory_mapped: ClassVar[bool] = False


class TableReader(FileReader):
    """Files of tables with named columns.

    Attributes
    ----------
    options : tuple of str
        Which of `TableOptions.stated` `read` follows: files for which others are stated are refused.
    """

    options: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, path: Path, options: TableOptions) -> ReadTable:
        """The whole table, with what was found out or chosen to read it. Entries of texts are texts, and missing where they are
        one of `options.marks`."""


class ArrayReader(FileReader):
    """Files of numbers without names: features and targets."""

    takes_indices: ClassVar[bool] = False

    @abstractmethod
    def read(self, path: Path, target: str | None, indices: tuple[int, int] | None) -> Arrays:
        """`target`: which column is the target, where the file does not say; `indices`: the first and the last of features, where
        it takes such."""


@cache
def all_readers() -> tuple[FileReader, ...]:
    """One of each kind that dperm knows: of the classes in `readers/`. TypeError for a file there that has none."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "readers")])]
    found = [reader for name in names for reader in readers_in(importlib.import_module(f"dperm.data.readers.{name}"))]
    return tuple(sorted(found, key=lambda reader: reader.title))


def readers_in(module: ModuleType) -> list[FileReader]:
    """One of each kind that a file of `readers/` has: of its classes whose names do not begin with _. TypeError, in a sentence
    that begins with the file, for one that has none, and for a kind that lacks something."""
    file = f"data/readers/{module.__name__.rpartition('.')[2]}.py"
    own = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    kinds = [kind for kind in own if issubclass(kind, FileReader) and not kind.__name__.startswith("_")]
    if not kinds:
        raise TypeError(f"{file}: expected a class below TableReader, ColumnarReader or ArrayReader.")
    for kind in kinds:
        bases = [base for base in kind.__mro__ if issubclass(base, FileReader)]
        stated = [name for base in bases for name in inspect.get_annotations(base) if name not in vars(base)]
        lacking = [*sorted(kind.__abstractmethods__), *(name for name in stated if not getattr(kind, name, None))]
        if lacking or not issubclass(kind, TableReader | ArrayReader):
            what = " and ".join(lacking) or "a base that is TableReader, ColumnarReader or ArrayReader"
            raise TypeError(f"{file}: expected {kind.__name__} to have {what}.")
    return [kind() for kind in kinds]


def reader_of(path: Path, *, text: bool = False) -> FileReader:
    """The reader of a file: by its ending or, where that says nothing, by its first bytes or its first line. `text`: it is no
    array, somebody said. DataError for a file that is not there or is of an unreadable kind."""
    name, readers = path.name.lower(), all_readers()
    ended = next((reader for reader in readers if name.endswith(reader.endings)), None)
    if ended is not None and not ended.any_text:
        return ended
    refuse_unreadable(path)
    for ending, advice in {ending: advice for reader in readers for ending, advice in reader.unreadable.items()}.items():
        if name.endswith(ending):
            raise DataError(f"Cannot read {path}: {advice}.")
    with path.open("rb") as file:
        start = file.read(max(len(magic) for reader in readers for magic in reader.magic))
    if (marked := next((reader for reader in readers if start.startswith(reader.magic)), None)) is not None:
        return marked
    plain = next(reader for reader in readers if reader.any_text)
    if ended is not None or text:
        return plain
    with parsing(path):
        start = read_bytes(path, _FIRST)
    line = next(filter(None, start.splitlines()), b"").strip()
    return next((reader for reader in readers if reader.first_line and re.fullmatch(reader.first_line, line)), plain)


def refuse_unreadable(path: Path) -> None:
    """DataError for what is no file, or may not be read, or is empty."""
    if path.is_dir():
        raise DataError(f"Expected a file, got the folder {path}.")
    if not path.is_file():
        raise DataError(f"No file {path}.")
    if not os.access(path, os.R_OK):
        raise DataError(f"The file {path} may not be read by you.")
    if not path.stat().st_size:
        raise DataError(f"The file {path} is empty.")


def refuse_too_large(path: Path, reader: FileReader) -> None:
    """DataError for what cannot be read, or is too large for the free memory."""
    refuse_unreadable(path)
    size, free = path.stat().st_size, free_memory()
    if size > free / 2 and not reader.memory_mapped:
        raise DataError(
            f"The file {path} has {size / 1e9:.1f} GB, too much for the {free / 1e9:.1f} GB of free memory. "
            "`dperm train` reads a Parquet file in parts where a schema is given; a .npy file of features is memory-mapped."
        )
