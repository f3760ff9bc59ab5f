"""Rows and what belongs to each of them, as estimators take them: validated once, and used as validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils.validation import validate_data

from dperm._column import agreement, column, refuse_masked, refuse_other_than_numbers
from dperm.distributed.table import refuse_dask
from dperm.estimators.labels import refuse_missing


def admit_records(
    estimator: Any, X: Any, y: Any, *, numeric: bool, sparse: bool = True, reset: bool = True, least: int = 1
) -> tuple[Any, NDArray[Any]]:
    """Finite rows X (n, d) of at least so many records, and targets y (n,), labels unless they are `numeric`. With `reset` these
    are the columns of the estimator from now on; without, its columns are expected.

    Raises ValueError for whatever is not usable. A table y of one column becomes a vector, with scikit-learn's warning.
    """
    same_rows(X, y, "y")
    refuse_masked("rows X", X)
    refuse_other_than_numbers("rows X", X)
    if y is not None:  # which scikit-learn refuses in words that its own checks look for
        vector = column("targets y", y)
        if numeric:
            refuse_other_than_numbers("targets y", vector)
        axes = y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim
        y = vector[:, None] if axes == 2 else vector
    if not numeric:
        refuse_missing(y)
    return validate_data(
        estimator,
        X,
        y,
        accept_sparse="csr" if sparse else False,
        dtype=[np.float64, np.float32],
        y_numeric=numeric,
        reset=reset,
        ensure_min_samples=least,
    )


def beside(answers: NDArray[Any], y: Any, sample_weight: Any = None) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Targets (n,) and weights (n,), or None, of the records that a model gave `answers` (n, …) to. ValueError for others."""
    refuse_dask(y=y, sample_weight=sample_weight)
    targets = column("targets y", y, len(answers))
    return targets, None if sample_weight is None else column("weights", sample_weight, len(answers)).astype(np.float64)


def same_rows(X: Any, others: Any, what: str) -> None:
    """ValueError where both have an index, and not the same one."""
    mine, theirs = (getattr(table, "index", None) for table in (X, others))
    if hasattr(mine, "equals") and hasattr(theirs, "equals") and not mine.equals(theirs):  # pyright: ignore[reportOptionalMemberAccess]
        raise ValueError(f"Expected {what} with the index of X, in the same order: each is taken for the row at its place.")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Rows (h, d) with the columns of an estimator, and their targets (h,), which its models are scored on."""

    rows: Any
    targets: NDArray[Any]

    @classmethod
    def of(cls, estimator: Any, given: Any, *, numeric: bool) -> Self:
        """Of `given` = (rows, targets), for an estimator that knows its columns. TypeError for no such pair, ValueError for
        unusable ones."""
        if not (isinstance(given, tuple) and len(given) == 2):
            raise TypeError("Expected held_out as (rows, labels).")
        refuse_dask(**dict(zip(("held-out rows", "held-out labels"), given, strict=True)))
        try:
            rows, targets = admit_records(estimator, *given, numeric=numeric, reset=False)
        except ValueError as error:
            raise ValueError(f"Of the held-out records: {error}") from error
        return cls(_named(rows, getattr(estimator, "feature_names_in_", None)), targets)

    def right(self, model: Any) -> int:
        """The number of records whose label the model predicts: each counts for 1 at most. ValueError for a model that does not
        answer each of them once."""
        answers = column("predictions", model.predict(self.rows), len(self.targets))
        return int(np.count_nonzero(agreement(answers, self.targets)))


def _named(rows: Any, names: Any) -> Any:
    """Rows as a frame of these columns, where they have names: models that were trained on such expect them."""
    if names is None:
        return rows
    import pandas as pd

    return pd.DataFrame.sparse.from_spmatrix(rows, columns=names) if issparse(rows) else pd.DataFrame(rows, columns=names)
