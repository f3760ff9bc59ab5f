"""Fitted linear models as plain fitted models of scikit-learn: what a private training released, without dperm's training."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_expit
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dperm import _validate as check
from dperm._types import Array

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

    from dperm.data import Schema


class RowNormScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Scale each row that is longer than `data_norm` down to that length; shorter rows stay as they are.

    It is the step that dperm's linear models have within themselves, as a transformer. A row's factor depends on that row alone,
    so that nothing is learnt.

    Parameters
    ----------
    data_norm : float
        The most that the L2 norm of a row may be.
    """

    def __init__(self, data_norm: float = 1.0) -> None:
        self.data_norm = data_norm

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the parameter and the shape of X (n, d); nothing is learnt. ValueError for a `data_norm` that is not above 0."""
        check.positive("data_norm", self.data_norm)
        validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        return self

    def transform(self, X: Any) -> Any:
        """Rows (n, d) of norm at most `data_norm`, dense or CSR as X is."""
        check_is_fitted(self, "n_features_in_")
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        squares = np.asarray(X.multiply(X).sum(axis=1)).ravel() if sp.issparse(X) else np.einsum("ij,ij->i", X, X)
        factors = (1 / np.maximum(1.0, np.sqrt(squares) / self.data_norm)).astype(X.dtype)
        return sp.diags_array(factors).dot(X).tocsr() if sp.issparse(X) else X * factors[:, None]


class MarginLogOdds(TransformerMixin, BaseEstimator):
    """The log-odds of classes by a logistic loss with a margin, ln σ(a + t) − ln σ(a − t) for the score t = x·w + b and the
    margin a.

    Objective perturbation of two classes trains such losses (docs/margin.md), whose log-odds are not linear in a row. A
    `LogisticRegression` that takes these numbers as they are then answers as the model does.

    Parameters
    ----------
    coef, intercept : arrays (k, d) and (k,)
        The weights of k scores.
    margin : float
        The margin a, at least 0.
    """

    def __init__(self, coef: ArrayLike, intercept: ArrayLike, margin: float) -> None:
        self.coef = coef
        self.intercept = intercept
        self.margin = margin

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Check the shape of X (n, d); nothing is learnt. ValueError for other columns than the weights have."""
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        if X.shape[1] != np.shape(self.coef)[1]:
            raise ValueError(f"Expected rows of {np.shape(self.coef)[1]} features, as coef has, got {X.shape[1]}.")
        return self

    def transform(self, X: Any) -> Array:
        """Log-odds (n, k)."""
        check_is_fitted(self, "n_features_in_")
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        scores = X @ np.asarray(self.coef, dtype=np.float64).T + np.asarray(self.intercept, dtype=np.float64)
        return log_expit(self.margin + scores) - log_expit(self.margin - scores)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        return np.array([f"log-odds {number}" for number in range(len(np.asarray(self.coef)))], dtype=object)


class ExportsToSklearn(BaseEstimator):
    """Base of the estimators that scikit-learn's own can stand for, once they are fitted."""

    data_norm: float

    @abstractmethod
    def _plain_steps(self, target_range: tuple[float, float] | None) -> list[tuple[str, Any]]:
        """The steps after rows have been scaled, fitted: the last is a model of scikit-learn. `target_range`: the one that
        targets were scaled by, if they were."""

    def to_sklearn(self, schema: Schema | None = None, *, target_range: tuple[float, float] | None = None) -> Pipeline:
        """A fitted pipeline of scikit-learn whose answers are those of this model.

        Its steps are a `RowNormScaler`, for rows longer than data_norm are scaled down, and a plain fitted model:
        `LogisticRegression`, `LinearSVC`, `Ridge`, … with the released coefficients. With a margin in the loss a `MarginLogOdds`
        stands before a `LogisticRegression` that takes log-odds as they are. The models hold nothing but public settings and
        what was released, so that this costs no privacy. The certificate does not go with them: keep the model's file.

        Parameters
        ----------
        schema : Schema or None
            The schema that the model was trained by: then a `TableEncoder` stands first, the pipeline takes frames, and numbers
            are answered in the target's own units.
        target_range : (low, high) or None
            Without a schema the range by which targets were scaled to [−1, 1] before the fit, as `dperm train` does it for files
            of arrays.

        Returns
        -------
        Pipeline
            Its scores differ from this model's by no more than √d·2⁻²⁰·‖w‖·data_norm and a few roundings: dperm cuts rows off
            after 21 binary digits of their length.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            For a schema of other features.
        """
        from sklearn.pipeline import Pipeline

        from dperm.estimators.preprocessing import TableEncoder

        check_is_fitted(self)
        width: int = self.n_features_in_  # pyright: ignore[reportAttributeAccessIssue]
        if schema is not None and schema.dimension != width:
            raise ValueError(f"Expected the schema that this model was trained by, of {width} features, got {schema.dimension}.")
        norm = RowNormScaler(float(self.data_norm))
        norm.n_features_in_ = width
        if schema is None and hasattr(self, "feature_names_in_"):
            norm.feature_names_in_ = np.array(self.feature_names_in_)
        first = [] if schema is None else [("encoder", TableEncoder.of_schema(schema))]
        bounds = target_range if schema is None else schema.target_range
        return Pipeline([*first, ("norm", norm), *self._plain_steps(bounds)])


def with_coefficients(model: Any, coef: Any, intercept: Any, classes: Any = None) -> Any:
    """A model of scikit-learn with these coefficients, as if it were fitted."""
    model.coef_ = np.array(coef, dtype=np.float64)
    model.intercept_ = np.array(intercept, dtype=np.float64) if np.ndim(intercept) else float(intercept)
    model.n_features_in_ = model.coef_.shape[-1]
    if classes is not None:
        model.classes_ = np.array(classes)
    return model
