"""Transformers that learn nothing: a scaler with given ranges, and an encoder of tables by a public schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dperm.distributed.table import of_dask
from dperm.estimators.records import explained

if TYPE_CHECKING:
    from dperm.data import Schema


from numpy.typing import ArrayLike
from sklearn.base import OneToOneFeatureMixin
from sklearn.utils.validation import validate_data

from dperm.distributed.table import by_part, row_of_zeros


class PublicRangeScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Map each feature from its public range to [0, 1]; values outside are clipped to the range.

    Parameters
    ----------
    ranges : one (low, high) pair for all features, or an array (d, 2) of pairs. Stated by the caller; `fit` only
        checks shapes, so it costs no privacy.
    """

    def __init__(self, ranges: ArrayLike = (0.0, 1.0)) -> None:
        self.ranges = ranges

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that the ranges fit X, of a collection of Dask its columns alone; learns nothing."""
        with explained(X):
            X = validate_data(self, row_of_zeros(X) if of_dask(X) else X, dtype=[np.float64, np.float32])
        ranges = np.asarray(self.ranges, dtype=np.float64)
        if ranges.shape == (2,):
            ranges = np.tile(ranges, (X.shape[1], 1))
        if ranges.shape != (X.shape[1], 2):
            raise ValueError(f"Expected ranges of shape (2,) or ({X.shape[1]}, 2), got {ranges.shape}.")
        if not (np.isfinite(ranges).all() and (ranges[:, 0] < ranges[:, 1]).all()):
            wrong = ranges[~(ranges[:, 0] < ranges[:, 1])][:1]
            raise ValueError(f"Expected finite ranges with low < high, got {wrong.tolist() or ranges.tolist()[:3]}.")
        self.ranges_ = ranges
        return self

    @by_part
    def transform(self, X: Any) -> NDArray[Any]:
        """Scaled rows, shape of X; of a collection of Dask a lazy array of Dask, cut as it is."""
        check_is_fitted(self)
        with explained(X):
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        low, high = self.ranges_.T.astype(X.dtype)
        return (np.clip(X, low, high) - low) / (high - low)


class TableEncoder(TransformerMixin, BaseEstimator):
    """Numbers of a frame by their public range, as lines or curves, and categories one-hot: `Schema.encode_features`.

    Parameters
    ----------
    schema : a `Schema`, or the path of one.
    curves : knots of each number's curve, 0 for straight lines; None: as the schema says.

    Nothing is learnt from records, so this costs no privacy; a schema that is still marked as proposed is refused. The target may
    stay in the frame, other columns are left out. Rows with missing values are refused, unless the schema says what to
    make of them ("middle", "separate"): here none may be left out.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.pipeline import make_pipeline
    >>> from dperm.data import Column, Schema
    >>> from dperm.estimators import DPLogisticRegression, TableEncoder
    >>> frame = pd.DataFrame({"age": [20, 30, 60, 70] * 50, "job": ["a", "b", "b", "a"] * 50})
    >>> columns = (Column("age", "number", (0, 100)), Column("job", "category", categories=("a", "b")), Column("paid", "label"))
    >>> encoder = TableEncoder(Schema("people", "paid", columns, ("no", "yes")), curves=5)
    >>> model = make_pipeline(encoder, DPLogisticRegression(epsilon=3.0, delta=1e-3, classes=["no", "yes"]))
    >>> model.fit(frame, ["no", "no", "yes", "yes"] * 50).predict(frame).shape
    (200,)
    """

    def __init__(self, schema: Schema | str | Path, curves: int | None = None) -> None:
        self.schema = schema
        self.curves = curves

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check that the frame, of pandas, polars or Arrow, fits the schema; learns nothing. ValueError where it does not."""
        from dperm.data import Schema

        if not isinstance(self.schema, (Schema, str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected a schema or the path of one, got {type(self.schema).__name__}.")
        schema = self.schema if isinstance(self.schema, Schema) else Schema.load(self.schema)
        if schema.proposed:
            raise ValueError(
                "Expected a schema that was confirmed: ranges and categories of this one were read off the data, which is not "
                "private. Correct it by what is publicly known, and pass confirmed(schema)."
            )
        schema = schema.without_notes()
        self.schema_ = schema if self.curves is None else schema.with_curves(self.curves)
        if self.schema_.found is not None:
            raise ValueError(
                "Expected a schema that is public, got one that was found on records: a pipeline's certificate would leave out "
                "what that cost. Encode the table by Dataset.of, and state what its certified() gives."
            )
        if self.schema_.unit:
            raise ValueError(
                f"Expected a schema without a unit, got {self.schema_.unit!r}: a pipeline cannot tell a private estimator whose "
                "each row is. Encode the table by Dataset.of, and pass its groups to fit."
            )
        self.n_features_in_ = len(self.schema_.feature_columns)
        self._encoded(X.head(1) if of_dask(X) else X)
        return self

    @classmethod
    def of_schema(cls, schema: Schema) -> Self:
        """A fitted encoder by the schema of a trained model, also one with a unit or that was found privately: it answers new
        rows, and no estimator is trained behind it."""
        schema = schema.without_notes()  # which a proposed schema has of the rows it was read off
        encoder = cls(schema)
        encoder.schema_ = schema
        encoder.n_features_in_ = len(schema.feature_columns)
        return encoder

    def transform(self, X: Any) -> Any:
        """Features (n, d) of a frame X (n rows) with the schema's columns; others are left out. Of a frame of Dask an array of
        Dask, whose parts are encoded where they are."""
        check_is_fitted(self)
        if of_dask(X):
            return X.map_partitions(self._encoded, meta=np.empty((0, len(self.schema_.features)), dtype=np.float32))
        return self._encoded(X)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        check_is_fitted(self)
        return np.array(self.schema_.features, dtype=object)

    def _encoded(self, X: Any) -> NDArray[np.float32]:
        from dperm.data import SchemaEncoder

        features, kept = SchemaEncoder(self.schema_, X).features()
        if not kept.all():
            raise ValueError(
                f"Expected no missing values, got {int((~kept).sum())} rows with some, which no transformer may leave out: set "
                '"missing" to "middle" or "separate" in the schema.'
            )
        return features
