"""Private linear regression by squared loss in scikit-learn's style: ridge, Lasso and elastic net."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dperm import _validate as check
from dperm._types import Array
from dperm.distributed.sums import PartSums
from dperm.distributed.table import by_part, of_dask
from dperm.estimators.base import PrivateLinearModel, all_or_nothing
from dperm.estimators.records import beside
from dperm.estimators.scores import share_explained, squared_divergence
from dperm.mechanisms import Coordinate, FrankWolfe, Method
from dperm.objectives import LinearObjective, Loss, Squared
from dperm.privacy import Assumption, Risk
from dperm.privacy.certificates.assumptions import clipped_targets

_USUAL_RADIUS = 5.0


class DPRidge(RegressorMixin, PrivateLinearModel):
    """Differentially private linear regression: squared loss, targets in ±`target_bound`, within the ball ‖θ‖ ≤ `radius`: by
    default 5 for methods that need one, and none for others.

    `mechanism` "auto" is preconditioned descent (docs/regression.md), which shrinks coefficients as ridge regression does where
    noise hides them; "objective" is refused, because the squared loss's gradient is not bounded on all of space. Targets outside
    ±target_bound are clipped to it. Gradients of "gradient" are clipped at data_norm·target_bound, the largest at θ = 0, unless
    the method says otherwise. Other parameters as for `DPLogisticRegression`.
    """

    def __init__(
        self,
        epsilon: float | Risk = 1.0,
        delta: float = 1e-5,
        *,
        radius: float | None = None,
        target_bound: float = 1.0,
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
        """Train privately on rows X (n, d), dense or CSR, and targets y (n,); see `DPLogisticRegression.fit`."""
        self._check_parameters()
        if self.radius is not None:
            check.scale("radius", self.radius)
        check.positive("target_bound", self.target_bound)
        with all_or_nothing(self):
            self._fit(X, y, groups, absent, sample_weight)
        return self

    def _hold(self, theta: NDArray[np.float64], objective: LinearObjective) -> None:
        super()._hold(theta, objective)
        self.coef_, self.intercept_ = self.coef_[0], float(np.ravel(self.intercept_)[0])

    def _targets(self, y: Any) -> tuple[Array, int, list[Assumption]]:
        bound = self.target_bound
        return np.clip(np.asarray(y, dtype=np.float64), -bound, bound), 0, [clipped_targets(bound)]

    def _classes(self, classes: int) -> int:
        return 0

    def _loss(self) -> Loss:
        free = self._method().unbounded and self.delta > 0
        return Squared(target_bound=self.target_bound, radius=self.radius or (math.inf if free else _USUAL_RADIUS))

    @by_part
    def predict(self, X: Any) -> Array:
        """Targets, shape (n,)."""
        return self._scores(X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R², the share of the variance that is explained."""
        if of_dask(X):
            return share_explained(self.predict, PartSums(X, y, sample_weight), squared_divergence)
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return self._scored(truth, answers, weights)

    def _scored(self, truth: NDArray[Any], answers: NDArray[Any], weights: Array | None) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(truth, answers, sample_weight=weights))


class DPLasso(DPRidge):
    """Differentially private Lasso: squared loss over the ball ‖θ‖₁ ≤ `radius`, by Frank and Wolfe's steps (Talwar, Thakurta,
    Zhang 2015), so that at most `steps` coefficients are not 0.

    The ball is Lasso's penalty in its other form. An intercept is one of the parameters in it. `steps` None: by public_size, or
    50. `entry_bound`: a public bound on every feature's size, which noise then follows; let `data_norm` be as large as rows of
    such features are long, for this to help (`FrankWolfe` says more). Other parameters as for `DPRidge`; of data in CSR nothing
    is made dense but vectors of d numbers.
    """

    def __init__(
        self,
        epsilon: float | Risk = 1.0,
        delta: float = 1e-5,
        *,
        radius: float = 1.0,
        target_bound: float = 1.0,
        steps: int | None = None,
        entry_bound: float | None = None,
        data_norm: float = 1.0,
        relation: str = "add_or_remove_one",
        public_size: int | None = None,
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
        self.steps = steps
        self.entry_bound = entry_bound
        self.data_norm = data_norm
        self.relation = relation
        self.public_size = public_size
        self.max_sample_weight = max_sample_weight
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.label = label
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few records of a check: choices are noisy
        return tags

    @property
    def mechanism(self) -> FrankWolfe:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What follows from the parameters."""
        return FrankWolfe(radius=self.radius, steps=self.steps, entry_bound=self.entry_bound)


class DPElasticNet(DPRidge):
    """Differentially private elastic net, by coordinate descent (Mangold and others 2022): it minimises

        Σ(y − xᵀθ)²/(2n) + alpha·l1_ratio·‖θ‖₁ + alpha·(1 − l1_ratio)·‖θ‖²/2,

    scikit-learn's `ElasticNet`, but for an intercept, which has the quadratic penalty too. `epochs` None: 10 passes over the
    coordinates. `radius` bounds every coefficient. Other parameters as for `DPRidge`.
    """

    def __init__(
        self,
        epsilon: float | Risk = 1.0,
        delta: float = 1e-5,
        *,
        alpha: float = 1e-3,
        l1_ratio: float = 0.5,
        radius: float = 5.0,
        target_bound: float = 1.0,
        epochs: int | None = None,
        data_norm: float = 1.0,
        relation: str = "add_or_remove_one",
        public_size: int | None = None,
        max_sample_weight: float | None = None,
        fit_intercept: bool = True,
        intercept_scale: float | None = None,
        label: str = "",
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.radius = radius
        self.target_bound = target_bound
        self.epochs = epochs
        self.data_norm = data_norm
        self.relation = relation
        self.public_size = public_size
        self.max_sample_weight = max_sample_weight
        self.fit_intercept = fit_intercept
        self.intercept_scale = intercept_scale
        self.label = label
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few records of a check
        return tags

    @property
    def mechanism(self) -> Coordinate:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What follows from the parameters."""
        alpha = check.non_negative("alpha", self.alpha)
        share = check.fraction("l1_ratio", self.l1_ratio, zero=True, one=True)
        radius = check.scale("radius", self.radius)
        return Coordinate(l1=alpha * share, l2=alpha * (1 - share), box=radius, epochs=self.epochs)
