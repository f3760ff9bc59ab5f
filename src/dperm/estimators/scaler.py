"""A scaler whose ranges are given, never learned."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dperm.distributed.answers import by_part
from dperm.distributed.table import of_dask, row_of_zeros


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
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        low, high = self.ranges_.T.astype(X.dtype)
        return (np.clip(X, low, high) - low) / (high - low)
