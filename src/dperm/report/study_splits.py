"""How a study divides records into those that models are trained on and those that they are judged by; and copies among them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse

from dperm.data import Dataset
from dperm.privacy import Relation


def count_of(dataset: Dataset) -> int:
    """The number of records: of persons, where one may have several rows."""
    return len(dataset) if dataset.groups is None else len(np.unique(dataset.groups))


def trained_on(dataset: Dataset, test_share: float) -> int:
    """The number of records, or persons, that is stated as public."""
    count = count_of(dataset)
    return min(count - 1, max(1, round((1 - test_share) * count)))


def split(
    dataset: Dataset, test_share: float, relation: str, entropy: int, repeat: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Train and test indices, the same for every mechanism of a repeat. A person's rows are all on one side.

    Each record is held out by a draw of its own, so that a record more or less moves no other record between the parts.
    """
    count = count_of(dataset)
    draws = np.random.default_rng([entropy, repeat]).random(count)
    held_out = draws < test_share
    if Relation(relation) is Relation.REPLACE_ONE:  # how many are trained on is public, and is what was stated
        held_out = np.argsort(np.argsort(draws)) < count - trained_on(dataset, test_share)
    held_out[np.argmin(draws)] = True  # never an empty part
    held_out[np.argmax(draws)] = False
    if dataset.groups is not None:  # persons with all their rows
        held_out = held_out[np.unique(dataset.groups, return_inverse=True)[1].reshape(-1)]
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def numbers_of_copies(dataset: Dataset) -> NDArray[np.intp] | None:
    """(n,) one number for all rows that are alike in every feature and the target; None where no two are."""
    known: dict[bytes, int] = {}
    targets = np.asarray(dataset.targets)
    targets = targets.astype(str) if targets.dtype == object else targets
    numbers = [
        known.setdefault(hashlib.blake2b(row + target.tobytes(), digest_size=16).digest(), len(known))
        for row, target in zip(_rows(dataset.features), targets, strict=True)
    ]
    return None if len(known) == len(numbers) else np.array(numbers, dtype=np.intp)


def _rows(features: Any) -> Iterator[bytes]:
    """Each row as bytes that rows alike share."""
    if not issparse(features):
        yield from (row.tobytes() for row in np.ascontiguousarray(features) + 0)  # no negative zeros
        return
    table = features.tocsr(copy=True)
    table.sum_duplicates()
    table.eliminate_zeros()
    for start, end in zip(table.indptr[:-1], table.indptr[1:], strict=True):
        yield table.indices[start:end].tobytes() + table.data[start:end].tobytes()
