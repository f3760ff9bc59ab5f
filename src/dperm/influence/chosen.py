"""Which records are meant: indices or a mask, each record once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def admit_indices(indices: Any, count: int) -> NDArray[np.intp]:
    """Indices of `count` records in the order given, or those that a mask (count,) has. ValueError for anything else, and for a
    record that is named twice."""
    given = np.atleast_1d(np.asarray(indices))
    if given.dtype == bool:
        if given.shape != (count,):
            raise ValueError(f"Expected a mask of {count} records, got shape {given.shape}.")
        return np.flatnonzero(given)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise ValueError(f"Expected indices of records, or a mask, got {given.dtype} of shape {given.shape}.")
    chosen = given.astype(np.intp)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < count):
        raise ValueError(f"Expected indices from 0 to {count - 1}, got {chosen.min()} to {chosen.max()}.")
    if len(np.unique(chosen)) < len(chosen):
        raise ValueError("Expected each record once: some are named twice.")
    return chosen
