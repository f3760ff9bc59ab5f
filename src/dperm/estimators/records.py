"""Rows, labels and weights as estimators take them: validated once, and used as validated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from dperm import _validate as check
from dperm._column import agreement, column, is_missing, refuse_masked, refuse_other_than_numbers
from dperm._extras import needed
from dperm._types import Array
from dperm.distributed.table import refuse_dask
from dperm.privacy import Assumption
from dperm.privacy.certificates import assumptions as statements
from dperm.privacy.certificates.assumptions import WEIGHTS_APART


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
            vector = _numbers_of_texts("targets y", vector)
        axes = y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim
        y = vector[:, None] if axes == 2 else vector
    if not numeric:
        refuse_missing(y)
    with explained(X):
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


@contextmanager
def explained(X: Any) -> Iterator[None]:
    """Within the block rows X are validated: where texts or missing values are why they are refused, the ValueError says what to
    do about them without learning from the rows."""
    try:
        yield
    except ValueError:
        if texts := _columns_of_texts(X):
            named = ", ".join(map(str, texts[:5])) + (f" and {len(texts) - 5:,} more" if len(texts) > 5 else "")
            raise ValueError(
                f"Expected rows X as numbers, got texts in the columns {named}. Encode the table by a public schema, by "
                "TableEncoder of dperm.estimators in a Pipeline: make_pipeline(TableEncoder(schema), model)."
            ) from None
        if _has_gaps(X):
            raise ValueError(
                'Input X contains NaN. Fill gaps by values known without the rows: "missing": "middle" or "separate" in a '
                "schema, with TableEncoder, or SimpleImputer(strategy='constant'). What an imputer learns from the rows, such as "
                "means, is neither private nor charged."
            ) from None
        raise


def _columns_of_texts(X: Any) -> list[Any]:
    """Names, or numbers, of the columns of a frame, or of an array of objects, with texts that state no number."""
    if hasattr(X, "columns") and hasattr(X, "__getitem__"):
        columns = {name: X[name] for name in X.columns}
    elif isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind in "OUS":
        columns = dict(enumerate(X.T))
    else:
        return []
    return [name for name, entries in columns.items() if any(_is_no_number(entry) for entry in np.asarray(entries).flat)]


def _is_no_number(entry: Any) -> bool:
    """Whether an entry is a text that states no number."""
    if not isinstance(entry, str | bytes):
        return False
    try:
        float(entry)
    except ValueError:
        return True
    return False


def _has_gaps(X: Any) -> bool:
    """Whether some entries of rows are missing."""
    entries = X.data if issparse(X) else np.asarray(X)
    return any(map(is_missing, entries.flat)) if entries.dtype.kind == "O" else bool((entries != entries).any())


def _numbers_of_texts(name: str, vector: NDArray[Any]) -> NDArray[Any]:
    """Numbers (n,) of texts that state numbers; others as they are. ValueError that names the first text that states none."""
    if vector.dtype.kind not in "USO":
        return vector
    numbers = np.empty(len(vector))
    for place, entry in enumerate(vector):
        if not isinstance(entry, str | bytes):  # scikit-learn refuses None and the like in words of its own
            return vector
        try:
            numbers[place] = float(entry)
        except ValueError:
            text = entry if isinstance(entry, str) else entry.decode(errors="replace")
            raise ValueError(
                f"Expected {name} as numbers, got the text {str(text)!r:.40} for record {place}: a regression takes numbers, "
                "written out in digits with a decimal point, such as 57000.0. A schema reads other forms."
            ) from None
    return numbers


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
    with needed("pandas", "A table with names of columns"):
        import pandas as pd

    return pd.DataFrame.sparse.from_spmatrix(rows, columns=names) if issparse(rows) else pd.DataFrame(rows, columns=names)


_AT_ONCE = 1 << 22

#: the public bound on weights of records where none is stated
DEFAULT_WEIGHT_BOUND = 1.0


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
    labels = np.asarray(y)
    if labels.ndim and labels.dtype.kind == "O" and (missing := sum(map(is_missing, labels.flat))):
        raise ValueError(f"Expected a label for each record, got {missing} without one: leave them out, or give them a label.")


def admit_class_weight(given: Any) -> dict[str, float] | None:
    """Weights by the labels' texts, the largest 1. ValueError for what is no table of weights, also for "balanced"."""
    if given is None:
        return None
    if given == "balanced":
        raise ValueError('Expected class_weight as public numbers, got "balanced": that counts the labels, which is not private.')
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"Expected class_weight as weights by label, such as {{'no': 1, 'yes': 4}}, got {given!r}.")
    weights = {str(label): check.positive(f"class_weight of {label!r}", weight) for label, weight in given.items()}
    if len(weights) < len(given):
        raise ValueError(f"Expected class_weight with one weight a label, got {given!r}.")
    most = max(weights.values())
    return {label: weight / most for label, weight in weights.items()}


def weights_by_class(weights: dict[str, float], index: NDArray[np.integer], classes: NDArray[Any]) -> Array:
    """(n,) weights of records of the classes `index` (n,). ValueError unless each of `classes`, and nothing else, has one."""
    known = [str(label) for label in classes]
    if set(known) != set(weights):
        raise ValueError(f"Expected class_weight with one weight of each of the classes {known}, got those of {list(weights)}.")
    return np.array([weights[label] for label in known])[index]


def admit_weights(size: int, sample_weight: Any, most: float | None) -> Array:
    """(size,) weights in [0, 1] of records: each one's own, clipped to `most` and relative to it.

    A weight follows from its own record: none is divided by the largest, the sum or the mean of others.
    ValueError for a bound without weights, and for weights below 0 or not finite.
    """
    if sample_weight is None and most is not None:
        raise ValueError(
            f"Expected sample_weight in fit with max_sample_weight={most:g}: how much each record counts is measured against it."
        )
    weights = np.ones(size)
    if sample_weight is not None and most is not None:
        given = column("weights", sample_weight, size)
        refuse_other_than_numbers("weights", given)
        own = given.astype(np.float64)
        if not np.isfinite(own).all() or own.min(initial=0.0) < 0:
            raise ValueError("Expected sample_weight to be finite and at least 0.")
        weights = np.minimum(own / most, 1.0)
    return weights


def refuse_no_weight(sample_weight: Any) -> None:
    """ValueError for weights (n,) of records that all are zero."""
    if sample_weight is None:
        return
    own = column("weights", sample_weight)
    if own.dtype.kind in "biuf" and len(own) and not own.any():
        raise ValueError("Expected some sample weights above zero, got a weight of zero for every record.")


def weight_assumptions(class_weight: dict[str, float] | None, most: float | None) -> list[Assumption]:
    """What a certificate says of weights."""
    said: list[Assumption] = []
    if class_weight is not None:
        told = ", ".join(f"{label}: {weight:.4g}" for label, weight in class_weight.items())
        said.append(Assumption(f"The weights of classes are public ({told}).", "caller", "stated", "class weights"))
    if most is not None:
        said.append(WEIGHTS_APART)
        text = f"A record counts at most as much as a weight of {most:g}; what it counts is as private as it is."
        said.append(Assumption(text, "library", "enforced: larger weights are clipped", "record weights"))
    return said


def bounded(most: Any) -> float | None:
    """A public bound on weights. ValueError for anything but a finite number above 0."""
    if most is None:
        return None
    most = check.positive("max_sample_weight", most)
    if math.isinf(most):
        raise ValueError("Expected a finite max_sample_weight.")
    return most
