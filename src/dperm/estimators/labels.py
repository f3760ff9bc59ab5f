"""The label set of a classifier: stated, or taken from the data and recorded as such."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.multiclass import check_classification_targets

from dperm.privacy import Assumption, statements

_AT_ONCE = 1 << 22


def admit_labels(y: Any, classes: ArrayLike | None) -> tuple[NDArray[Any], NDArray[np.signedinteger], Assumption]:
    """All labels in order, each record's index among them, and what the certificate says of them.

    ValueError for labels outside a stated set, and for fewer than two.
    """
    parts = np.array_split(y, max(1, -(-len(y) // _AT_ONCE)))  # sorting copies: of very many labels, some at once
    for part in parts:
        check_classification_targets(part)
    seen = np.unique(np.concatenate([np.unique(part) for part in parts]))
    if classes is None:
        known = seen
    else:
        known = np.unique(np.asarray(classes))
        unknown = np.setdiff1d(seen, known)
        if unknown.size:
            raise ValueError(f"Expected labels among classes = {known.tolist()}, got {unknown.tolist()[:5]}.")
    if len(known) < 2:
        raise ValueError(
            f"Expected at least 2 classes, got one class only: {known.tolist()}. State all possible labels with classes=."
        )
    kind = np.min_scalar_type(-len(known))  # signed, and no wider than it need be
    index = np.concatenate([np.searchsorted(known, part).astype(kind) for part in parts])
    return known, index, statements.labels(len(known), stated=classes is not None)


def refuse_missing(y: Any) -> None:
    """ValueError where labels are None, NaN or pandas's NA among texts, which libraries refuse in words of their own."""
    import pandas as pd

    labels = np.asarray(y)
    if labels.ndim and labels.dtype.kind == "O" and (missing := int(np.sum(pd.isna(labels)))):
        raise ValueError(f"Expected a label for each record, got {missing} without one: leave them out, or give them a label.")
