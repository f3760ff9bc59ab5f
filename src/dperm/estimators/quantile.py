"""Private quantile regression in scikit-learn's style."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dperm import _validate as check
from dperm.distributed.sums import PartSums
from dperm.distributed.table import by_part, of_dask
from dperm.estimators.base import PrivateLinearModel, all_or_nothing
from dperm.estimators.records import beside
from dperm.estimators.scores import pinball_of_parts
from dperm.mechanisms import Method
from dperm.objectives import LinearObjective, Loss
from dperm.objectives.quantile import QuantileLoss
from dperm.privacy import Assumption, Risk
from dperm.privacy.certificates.assumptions import clipped_targets


class DPQuantileRegressor(RegressorMixin, PrivateLinearModel):
    """Differentially private quantile regression: the `quantile` of targets in ±`target_bound` given a row, 0.5 for the median.

    `mechanism` "auto" is objective perturbation, by the bound that holds for any loss of bounded slope and curvature; "gradient"
    and "output" are others. What is minimised is in units of target_bound, coefficients are not. The loss is smoothed over
    `half_width` (by default a tenth of target_bound): a smaller one is nearer the quantile, and needs more regularisation.
    Targets outside ±target_bound are clipped to it. Two quantiles are two models, and both are paid for. Other parameters as for
    `DPLogisticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> from dperm.estimators import DPQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.random((5000, 2)) / 2
    >>> y = X[:, 0] + rng.exponential(0.1, size=5000)
    >>> high = DPQuantileRegressor(epsilon=2.0, quantile=0.9).fit(X, y)
    >>> bool(0.8 < (y < high.predict(X)).mean() < 1.0)
    True
    """

    def __init__(
        self,
        epsilon: float | Risk = 1.0,
        delta: float = 1e-5,
        *,
        quantile: float = 0.5,
        target_bound: float = 1.0,
        half_width: float | None = None,
        mechanism: str | Method = "auto",
        data_norm: float = 1.0,
        relation: str = "add_or_remove_one",
        public_size: int | None = None,
        max_rows_per_unit: int | None = None,
        max_sample_weight: float | None = None,
        fit_intercept: bool = True,
        intercept_scale: float | None = None,
        label: str = "",
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.quantile = quantile
        self.target_bound = target_bound
        self.half_width = half_width
        self.mechanism = mechanism
        self.data_norm = data_norm
        self.relation = relation
        self.public_size = public_size
        self.max_rows_per_unit = max_rows_per_unit
        self.max_sample_weight = max_sample_weight
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.label = label
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None, *, sample_weight: Any = None, absent: int = 0) -> Self:
        """Train privately on rows X (n, d), dense or CSR, and targets y (n,); see `DPLogisticRegression.fit`."""
        self._check_parameters()
        self._loss()  # refuses what it cannot be made of
        with all_or_nothing(self):
            self._fit(X, y, groups, absent, sample_weight)
        return self

    def _hold(self, theta: NDArray[np.float64], objective: LinearObjective) -> None:
        super()._hold(theta, objective)
        bound = self.target_bound
        self.coef_, self.intercept_ = bound * self.coef_[0], bound * float(np.ravel(self.intercept_)[0])

    def _targets(self, y: Any) -> tuple[NDArray[np.float64], int, list[Assumption]]:
        bound = self.target_bound
        return np.clip(np.asarray(y, dtype=np.float64), -bound, bound) / bound, 0, [clipped_targets(bound)]  # rules know no units

    def _classes(self, classes: int) -> int:
        return 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # a median of scikit-learn's 200 numbers explains little within ε = 1
        return tags

    def _loss(self) -> Loss:
        """Of targets in units of their bound."""
        bound = check.scale("target_bound", self.target_bound)
        width = None if self.half_width is None else check.positive("half_width", self.half_width) / bound
        return QuantileLoss(self.quantile, 1.0, width)

    @by_part
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Quantiles, shape (n,)."""
        return self._scores(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D², the share of the pinball loss of the best constant that is saved; at most 1."""
        if of_dask(X):
            return pinball_of_parts(self.predict, PartSums(X, y, sample_weight), self.quantile)
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return self._scored(truth, answers, weights)

    def _scored(self, truth: NDArray[Any], answers: NDArray[Any], weights: NDArray[np.float64] | None) -> float:
        from sklearn.metrics import d2_pinball_score

        return float(d2_pinball_score(truth, answers, sample_weight=weights, alpha=self.quantile))
