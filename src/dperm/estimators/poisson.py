"""Private Poisson regression in scikit-learn's style."""

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
from dperm.estimators.scores import poisson_divergence, share_explained
from dperm.mechanisms import Method
from dperm.objectives import LinearObjective, Loss
from dperm.objectives.poisson import PoissonLoss
from dperm.privacy import Assumption, Risk
from dperm.privacy.certificates.assumptions import clipped_counts

_LEAST_MEAN = 1e-300  # of an expected count: deviances ask for more than 0


class DPPoissonRegressor(RegressorMixin, PrivateLinearModel):
    """Differentially private Poisson regression: counts with mean e^{xᵀw + intercept}, over the ball ‖θ‖ ≤ `radius`.

    `mechanism` "auto" is gradient perturbation by full batches; "objective" is refused. Counts above `target_bound` are clipped
    to it, negative ones refused. The loss bends by e^{data_norm·radius}: keep the product small. Other parameters as for
    `DPLogisticRegression`.
    """

    def __init__(
        self,
        epsilon: float | Risk = 1.0,
        delta: float = 1e-5,
        *,
        radius: float = 2.0,
        target_bound: float = 10.0,
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
        self.radius = radius
        self.target_bound = target_bound
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
        """Train privately on rows X (n, d), dense or CSR, and counts y (n,); see `DPLogisticRegression.fit`."""
        self._check_parameters()
        check.scale("radius", self.radius)
        check.positive("target_bound", self.target_bound)
        with all_or_nothing(self):
            self._fit(X, y, groups, absent, sample_weight)
        return self

    def _hold(self, theta: NDArray[np.float64], objective: LinearObjective) -> None:
        super()._hold(theta, objective)
        self.coef_, self.intercept_ = self.coef_[0], float(np.ravel(self.intercept_)[0])

    def _targets(self, y: Any) -> tuple[NDArray[np.float64], int, list[Assumption]]:
        if np.any(np.asarray(y) < 0):
            raise ValueError("Expected counts >= 0, got negative ones.")
        return np.minimum(np.asarray(y, dtype=np.float64), self.target_bound), 0, [clipped_counts(self.target_bound)]

    def _classes(self, classes: int) -> int:
        return 0

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # scikit-learn's 200 numbers are no counts, and explain little within ε = 1
        return tags

    def _loss(self) -> Loss:
        return PoissonLoss(target_bound=self.target_bound, radius=self.radius)

    @by_part
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Expected counts, shape (n,)."""
        return np.exp(np.minimum(self._scores(X), 700.0))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """D², the share of Poisson deviance explained."""
        if of_dask(X):
            return share_explained(self._means, PartSums(X, y, sample_weight), poisson_divergence)
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return self._scored(truth, answers, weights)

    def _scored(self, truth: NDArray[Any], answers: NDArray[Any], weights: NDArray[np.float64] | None) -> float:
        from sklearn.metrics import d2_tweedie_score

        return float(d2_tweedie_score(truth, np.maximum(answers, _LEAST_MEAN), sample_weight=weights, power=1))

    def _means(self, X: Any) -> NDArray[np.float64]:
        """Expected counts of rows in memory, above 0, as deviances ask for."""
        return np.maximum(self.predict(X), _LEAST_MEAN)
