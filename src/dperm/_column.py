"""One value of each record: the way in which labels, targets, weights, groups and masks enter comparisons, counts and sums.

NumPy compares a column (n, 1) with a vector (n,) by making a table (n, n) of both: one record then moves a count over it by up to
2n, where it should move it by 1. So nothing that is given for records is used as it came: `column` makes a vector of it or
refuses it, and `agreement` compares vectors of one length alone.
"""

from __future__ import annotations

import contextlib
import datetime
import numbers
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PLAIN = (str, bytes, numbers.Number, datetime.date, type(None))  # entries that are looked at no further


def column(name: str, values: Any, size: int | None = None, *, as_given: bool = False) -> NDArray[Any]:
    """The values of `size` records as a vector (size,): of a vector, of a table of one column (size, 1), whether it is NumPy's,
    pandas', polars', Arrow's or PyTorch's, or of a list.

    name : what the values are, in the plural, for messages.
    size : the number of records; None: any.
    as_given : whether entries keep their Python types: of a list 1 and "1" stay two values, and a tuple is one value.

    Raises ValueError, which says what shape was expected and what came, for anything else: one value without an axis, a row
    (1, n), several columns, ragged lists, entries that are lists or arrays themselves, masked entries, sparse matrices.
    """
    expected = f"Expected {name} as a vector, one a row" if size is None else f"Expected {size} {name}, one a row"
    refuse_masked(name, values)
    if hasattr(values, "detach") and hasattr(values, "numpy"):  # a tensor, wherever it is and whatever it was computed from
        values = values.detach().cpu().numpy()
    if isinstance(values, (str, bytes, Mapping, Set)):
        raise ValueError(f"{expected}, got {values!r:.80}.")
    if as_given and isinstance(values, Iterable) and not hasattr(values, "__array__"):
        array = _of_entries(values)
    else:
        try:
            array = np.asarray(values)
        except ValueError as error:  # lists of several lengths
            raise ValueError(f"{expected}, got entries of several lengths: {error}") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or (size is not None and len(array) != size):
        raise ValueError(f"{expected}, got shape {array.shape}.")
    if array.dtype != object:
        return array
    plain = (*_PLAIN, tuple) if as_given else _PLAIN
    if not all(issubclass(kind, plain) for kind in {type(entry) for entry in array}):
        array = _of_entries(array)
        for entry in array:
            if not isinstance(entry, plain) and (hasattr(entry, "__len__") or hasattr(entry, "ndim")):
                raise ValueError(f"{expected}, got an entry that is a {type(entry).__name__}: {entry!r:.80}.")
    return array if as_given else _numbers(array)


def is_missing(entry: Any) -> bool:
    """Whether an entry is None, NaN, NaT, pandas' NA, or a tuple with one of these."""
    if entry is None or isinstance(entry, str | bytes):
        return entry is None
    if isinstance(entry, tuple):
        return any(map(is_missing, entry))
    return type(entry).__name__ == "NAType" or bool(entry != entry)  # NA says neither that it is like itself nor that it is not


def refuse_masked(name: str, values: Any) -> None:
    """ValueError for masked entries: whatever forgets the mask would use what is under it."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"Expected {name} without masked entries, got {np.ma.count_masked(values)}: leave these records out, or fill them."
        )


def refuse_other_than_numbers(name: str, values: Any) -> None:
    """ValueError for entries that NumPy would convert to numbers that they do not mean.

    Complex numbers would lose their imaginary part, dates and durations would become counts of a unit that nobody stated, and
    structured entries would become their bytes. Texts are accepted here: a text converts to the number that it states, and the
    conversion of any other text fails.
    """
    for column_of in _columns(values):
        dtype = column_of.dtype
        kinds = {type(entry) for entry in np.asarray(column_of).flat} if dtype.kind == "O" else set[type]()
        if dtype.kind == "c" or any(issubclass(kind, (complex, np.complexfloating)) for kind in kinds):
            raise ValueError(f"Complex data not supported: expected {name} as real numbers, got {dtype}.")
        if dtype.kind not in "biufUSO" or any(issubclass(kind, (np.datetime64, np.timedelta64)) for kind in kinds):
            raise ValueError(f"Expected {name} as numbers, got {dtype}: state dates and durations as numbers of a unit.")


def _columns(values: Any) -> list[Any]:
    """Parts of `values` that have a single type each: the columns of a pandas frame, or the whole array."""
    if hasattr(values, "dtypes") and hasattr(values, "iloc") and getattr(values, "ndim", 0) == 2:
        return [values.iloc[:, place] for place in range(values.shape[1])]
    if hasattr(getattr(values, "dtype", None), "kind"):
        return [values]
    try:
        return [np.asarray(values)]
    except ValueError:  # lists of several lengths: whoever makes an array of them says so
        return []


def agreement(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.bool_]:
    """(n,) whether two vectors (n,) have the same entry at each place. ValueError for other shapes: none is broadcast."""
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(f"Expected two vectors of one length, got shapes {first.shape} and {second.shape}.")
    if not len(first):
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(first == second, dtype=np.bool_).reshape(first.shape)


def _numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Objects (n,) that are all whole numbers, all truth values or all numbers as an array of these; others as they are."""
    kinds = {type(entry) for entry in array}
    for of, dtype in (
        ((bool, np.bool_), np.bool_),
        ((int, np.integer), np.int64),
        ((int, float, np.integer, np.floating), np.float64),
    ):
        if kinds and all(issubclass(kind, of) and (dtype is np.bool_ or not issubclass(kind, bool)) for kind in kinds):
            with contextlib.suppress(OverflowError):  # whole numbers that no array holds
                return array.astype(dtype)
    return array


def _of_entries(values: Iterable[Any]) -> NDArray[Any]:
    """(n,) objects; an array or a tensor without axes is the number in it."""
    entries = [entry.item() if getattr(entry, "ndim", None) == 0 and hasattr(entry, "item") else entry for entry in values]
    array = np.empty(len(entries), dtype=object)
    for place, entry in enumerate(entries):  # NumPy would take entries that are sequences apart
        array[place] = entry
    return array
