"""NumPy's files: what an array is, and how much memory it takes, is read off its header before any of it is unpacked."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm.data.file_reader import ArrayReader, Arrays
from dperm.data.untrusted_files import DataError, Limits

_NUMBERS = "biuf"  # kinds of dtypes: truths, whole numbers with and without a sign, floating-point numbers
_TARGETS = f"{_NUMBERS}US"  # and texts
_USED = 24  # bytes of a number, as it is used: with copies that are scaled, and of other types
_LONGEST_HEADER = 1 << 14  # bytes of a file that say what array it holds; NumPy reads headers of 10,000
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class NumpyArchive(ArrayReader):
    """An archive with arrays X (n, d) and y (n,)."""

    title, endings = "NumPy archive", (".npz",)

    def read(self, path: Path, target: str | None, indices: tuple[int, int] | None) -> Arrays:
        return Arrays(*arrays_of_archive(path))


class NumpyTable(ArrayReader):
    """One array (n, d + 1), memory-mapped, whose first or last column is the target: the last, unless its number is stated."""

    title, endings, memory_mapped = "NumPy array", (".npy",), True

    def read(self, path: Path, target: str | None, indices: tuple[int, int] | None) -> Arrays:
        table = np.load(path, mmap_mode="r", allow_pickle=False)
        admit_table(table, path.stat().st_size)
        try:
            column = range(table.shape[1])[int(target if target is not None else -1)]
        except (ValueError, IndexError):
            raise DataError(f"Expected target to be the number of a column of {path}, got {target!r}.") from None
        if column not in (0, table.shape[1] - 1):
            raise DataError(
                f"Cannot read {path}: the target must be the first or the last column, so that the rest can stay mapped."
            )
        return Arrays(table[:, 1:] if column == 0 else table[:, :-1], np.array(table[:, column]))


def admit_table(table: NDArray[Any], stored: int) -> None:
    """ValueError for an array of a .npy file of `stored` bytes that is no table (n, d + 1) of numbers, of features and a target;
    TooLargeError for one beyond the limits."""
    if table.ndim != 2 or table.shape[1] < 2 or table.dtype.kind not in _NUMBERS:
        raise ValueError(f"expected a table of at least two columns of numbers, got {_described(table.shape, table.dtype)}")
    Limits.current().refuse_features(table.shape[1] - 1)
    if not is_floating(table.dtype):  # else it stays mapped
        Limits.current().refuse_cells(table.size, stored, _USED)


def arrays_of_archive(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    """Features X (n, d) and targets y (n,) of a .npz file.

    ValueError for arrays of other shapes, and where one is not there; DataError for arrays of other lengths than each other, and
    of anything but numbers (targets: or texts); TooLargeError for more than the limits allow.
    """
    stored, limits = path.stat().st_size, Limits.current()
    with zipfile.ZipFile(path) as archive:
        (rows, columns), kind = _header(archive, "X", 2, "rows and columns of numbers")
        (targets,), target_kind = _header(archive, "y", 1, "targets in one column")
        if kind.kind not in _NUMBERS:
            raise DataError(f"Expected numbers as features in {path}, got {kind}.")
        if target_kind.kind not in _TARGETS:
            raise DataError(f"Expected labels or numbers as targets in {path}, got {target_kind}.")
        if rows != targets:
            raise DataError(f"Expected {rows:,} targets in {path}, one for each row of X, got {targets:,} in y.")
        limits.refuse_features(columns)
        limits.refuse_cells(rows * columns, stored, _USED + (0 if is_floating(kind) else kind.itemsize))
        limits.refuse_cells(targets, stored, _USED + target_kind.itemsize)
        return _array(archive, "X"), _array(archive, "y")


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this type are used as they are, in double or single precision."""
    return dtype.kind == "f" and dtype.itemsize in (4, 8)


def _header(archive: zipfile.ZipFile, name: str, dimensions: int, what: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and type of an array of an archive."""
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        raise ValueError(f"it holds no array {name}: expected X and y") from None
    with archive.open(info) as whole:
        file = io.BytesIO(whole.read(_LONGEST_HEADER))  # it may state that its header has gigabytes
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"expected {name} in version 1 or 2 of NumPy's format, got {version[0]}")
        shape, _, dtype = _HEADERS[version](file)
    if len(shape) != dimensions:
        raise ValueError(f"expected {name} as {what}, got {_described(shape, dtype)}")
    return shape, dtype


def _array(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """The array whose header was read: another file of the archive may have the name without its ending."""
    with archive.open(f"{name}.npy") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _described(shape: tuple[int, ...], dtype: np.dtype[Any]) -> str:
    return f"an array of shape {shape} and type {dtype}"
