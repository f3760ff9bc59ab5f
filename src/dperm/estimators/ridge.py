"""Private ridge regression in scikit-learn's style."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dperm import _validate as check
from dperm.estimators.base import PrivateLinearModel
from dperm.estimators.whole import all_or_nothing
from dperm.mechanisms import Mechanism
from dperm.objectives import LinearObjective, Loss, Squared
from dperm.privacy.statements import clipped_targets

__all__ = ["DPRidge"]

Array = NDArray[np.float64]


class DPRidge(RegressorMixin, PrivateLinearModel):
    """Differentially private ridge regression: squared loss over the ball ‖θ‖ ≤ `radius`, targets in ±`target_bound`.

    `mechanism` is "gradient" (default) or "output"; objective perturbation is refused, because the squared loss's
    gradient is not bounded on all of space. Targets outside ±target_bound are clipped to it. `clipping_norm`
    defaults to data_norm·target_bound, the largest gradient at θ = 0. Other parameters as for `DPLogisticRegression`.
    """

    _mechanisms = ("gradient", "output")

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        radius: float = 5.0,
        target_bound: float = 1.0,
        mechanism: str = "gradient",
        sampling: str = "full",
        data_norm: float = 1.0,
        relation: str = "add_or_remove_one",
        public_size: int | None = None,
        fit_intercept: bool = True,
        intercept_scale: float | None = None,
        strong_convexity: float | None = None,
        expected_batch_size: float | None = None,
        epochs: float | None = None,
        clipping_norm: float | None = None,
        learning_rate: float | None = None,
        label: str = "",
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.radius = radius
        self.target_bound = target_bound
        self.mechanism = mechanism
        self.sampling = sampling
        self.data_norm = data_norm
        self.relation = relation
        self.public_size = public_size
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.strong_convexity = strong_convexity
        self.expected_batch_size = expected_batch_size
        self.epochs = epochs
        self.clipping_norm = clipping_norm
        self.learning_rate = learning_rate
        self.label = label
        self.random_state = random_state

    #: Objective perturbation's parameter does not exist here; the shared code reads it.
    calibration = "sharp"

    def fit(self, X: Any, y: Any, *, absent: int = 0) -> Self:
        """Train privately on rows X (n, d), dense or CSR, and targets y (n,); see `DPLogisticRegression.fit`."""
        if self.mechanism == "objective":
            raise ValueError(
                "Expected mechanism to be 'gradient' or 'output' for DPRidge, got 'objective': "
                "the squared loss has no bounded slope."
            )
        self._check_parameters()
        check.positive("radius", self.radius)
        bound = check.positive("target_bound", self.target_bound)
        with all_or_nothing(self):
            X, y = self._validated(X, y, y_numeric=True)
            targets = np.clip(np.asarray(y, dtype=np.float64), -bound, bound)
            self._fit(X, targets, 0, [clipped_targets(bound)], absent)
            self.coef_, self.intercept_ = self.coef_[0], float(np.ravel(self.intercept_)[0])
        return self

    def mechanism_for(self, features: int, classes: int = 0, public_size: int | None = None) -> tuple[Mechanism, LinearObjective]:
        self._check_parameters()
        return self._problem(features, 0, public_size or self.public_size)

    def _loss(self) -> Loss:
        return Squared(target_bound=self.target_bound, radius=self.radius)

    def predict(self, X: Any) -> Array:
        """Targets, shape (n,)."""
        return self._scores(X)
