"""Private linear regression in scikit-learn's style: least squares (ridge, Lasso, elastic net), quantiles and counts."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin

from dperm import _validate as check
from dperm._remind import beyond, remind_of_clipped_targets
from dperm._types import Array
from dperm.distributed import PartedTable
from dperm.distributed.sums import PartSums
from dperm.distributed.table import by_part, of_dask
from dperm.estimators.base import PrivateLinearModel, WithMechanism
from dperm.estimators.exporting import with_coefficients
from dperm.estimators.records import beside
from dperm.estimators.scores import pinball_of_parts, poisson_divergence, share_explained, squared_divergence
from dperm.mechanisms import Coordinate, FrankWolfe
from dperm.objectives import LinearObjective, Loss, PoissonLoss, QuantileLoss, Squared
from dperm.objectives.targets import Identity
from dperm.privacy import Assumption
from dperm.privacy.certificates.assumptions import clipped_counts, clipped_targets

if TYPE_CHECKING:
    pass

_USUAL_RADIUS = 5.0
_LEAST_MEAN = 1e-300  # of an expected count: deviances ask for more than 0


def _added(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateLinearRegressor(RegressorMixin, PrivateLinearModel):
    """Base of the regressions: one model of targets in a public range, to which others are clipped.

    The range is `target_range` = (low, high), or ±`target_bound`. With `target_range` targets are centred and divided by half its
    width before anything else is done with them, so that the bound on a target is 1 inside: `radius` and `alpha` of those models
    that have them are about such targets. Coefficients, the intercept and predictions are in the target's own units either way.
    Stating both raises ValueError.
    """

    target_bound: float = 1.0
    target_range: tuple[float, float] | None = None

    #: whether targets are counts, whose logarithm is linear: they are neither centred nor scaled
    counts: ClassVar[bool] = False

    @property
    def stated_range(self) -> tuple[float, float] | None:
        """The least and the greatest target, by target_range or by target_bound; None where neither was stated. ValueError for
        what is no range."""
        ends = self._ends()
        return None if self.target_range is None and self.target_bound == type(self).target_bound else ends

    def _ends(self) -> tuple[float, float]:
        """The least and the greatest target. ValueError for a range that is none, and for one beside a bound."""
        bound = check.positive("target_bound", self.target_bound)
        if self.target_range is None:
            return -bound, bound
        if bound != type(self).target_bound:
            raise ValueError(
                f"Expected target_range or target_bound, got both: {self.target_range!r} and {self.target_bound!r}. A bound is "
                "the range from minus it to it."
            )
        return check.interval("target_range", self.target_range)

    def _middle(self) -> float:
        """The target that is 0 inside."""
        low, high = self._ends()
        return low + (high / 2 - low / 2)

    def _unit_of_targets(self) -> float:
        """How large a target is that is 1 inside: half the range's width, or without a range 1."""
        return 1.0 if self.target_range is None else self._half_width()

    def _half_width(self) -> float:
        low, high = self._ends()
        return high / 2 - low / 2

    def _bound(self) -> float:
        """The bound on a target inside, which the loss's constants rest on."""
        return self._half_width() if self.target_range is None else 1.0

    def _targets(self, y: Any) -> tuple[Array, int, list[Assumption]]:
        low, high = self._ends()
        centred = (np.clip(np.asarray(y, dtype=np.float64), low, high) - self._middle()) / self._unit_of_targets()
        bound = self._half_width() / self._unit_of_targets()
        return np.clip(centred, -bound, bound), 0, [clipped_targets(low, high)]

    def _remind_of_targets(self, y: Any, *, stacklevel: int) -> None:
        ends = self._ends()
        remind_of_clipped_targets(beyond(ends, y), ends, stacklevel=stacklevel + 1)

    def _remind_of_targets_in(self, table: PartedTable, *, stacklevel: int) -> None:
        ends = self._ends()
        counted = table.total_of_targets(functools.partial(beyond, ends), _added)
        remind_of_clipped_targets(counted, ends, stacklevel=stacklevel + 1)

    def _classes(self, classes: int) -> int:
        return 0

    def _hold(self, theta: Array, objective: LinearObjective) -> None:
        super()._hold(theta, objective)
        unit, middle = self._unit_of_targets(), self._middle()
        self.coef_, self.intercept_ = unit * self.coef_[0], unit * float(np.ravel(self.intercept_)[0]) + middle

    def target_unit(self) -> tuple[float, float]:
        """How large a target is that is 1 inside, and which one is 0 there, by the settings that the fit had."""
        fitted = type(self)(**self.fitted_params_)
        return fitted._unit_of_targets(), fitted._middle()

    def parameters(self) -> Array:
        scale, (unit, middle) = self.objective_.intercept_scale, self.target_unit()
        weights = self.coef_ / unit
        return np.append(weights, (float(self.intercept_) - middle) / unit / scale) if scale else weights

    def _refuse_clipped(self, X: Any, y: Any) -> None:
        super()._refuse_clipped(X, y)
        low, high = self._ends()
        if (outside := int(np.count_nonzero((y < low) | (y > high)))) > 0:
            raise ValueError(
                f"Expected targets in [{low:g}, {high:g}], got {outside:,} outside, which are clipped: coefficients are not "
                'those of the records as they are. State a wider range, or clipped="named".'
            )

    def _plain_model(self) -> Any:
        """A model of scikit-learn that predicts as this one once it has its coefficients. ValueError for a loss of another link
        than the identity, whose model states its own."""
        from sklearn.linear_model import LinearRegression

        if not isinstance(self.objective_.loss.link, Identity):
            raise ValueError(f"Expected a model whose predictions are linear in a row, got {type(self).__name__}.")
        return LinearRegression()

    def _plain_steps(self, target_range: tuple[float, float] | None) -> list[tuple[str, Any]]:
        """A model that was given targets on [−1, 1] of a range is brought to the target's units."""
        coef, intercept = self.coef_, self.intercept_
        if target_range is not None and not self.counts and self.stated_range is None:
            low, high = target_range
            half = high / 2 - low / 2
            coef, intercept = half * coef, low + half + half * intercept
        return [("model", with_coefficients(self._plain_model(), coef, intercept))]

    @by_part
    def predict(self, X: Any) -> Array:
        """Expected targets, shape (n,): of counts too, and of quantiles these."""
        scores = self._scores(X)
        return self.objective_.loss.link.inverse(scores)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of the targets' variation that predictions explain, at most 1: R², or D² of counts and of quantiles."""
        if of_dask(X):
            return self._metric_of_parts(PartSums(X, y, sample_weight))
        truth, weights = beside(answers := self.predict(X), y, sample_weight)
        return self._metric(truth, answers, weights)

    def _metric(self, truth: NDArray[Any], answers: NDArray[Any], weights: Array | None) -> float:
        from sklearn.metrics import r2_score

        return float(r2_score(truth, answers, sample_weight=weights))

    def _metric_of_parts(self, parts: PartSums) -> float:
        """The same of rows and targets in parts elsewhere."""
        return share_explained(self.predict, parts, squared_divergence)


@dataclass(kw_only=True, eq=False, repr=False)
class DPRidge(WithMechanism, PrivateLinearRegressor):
    """Differentially private linear regression: squared loss, targets in `target_range` or ±`target_bound`, within the ball
    ‖θ‖ ≤ `radius`: by default 5 for methods that need one, and none for others.

    `target_range` = (low, high) is what is publicly known of the target, such as (0, 200_000) of wages: state it unless targets
    are spread about 0. Targets outside are clipped to it, as those outside ±target_bound are; where these are many, a warning
    tells the data holder. Noise follows half of the range's width.

    `mechanism` "auto" is preconditioned descent (docs/regression.md), which shrinks coefficients as ridge regression does where
    noise hides them; "objective" is refused, because the squared loss's gradient is not bounded on all of space. Gradients of
    "gradient" are clipped at data_norm times the bound on a target, the largest at θ = 0, unless the method says otherwise.
    Other parameters as for `DPLogisticRegression`.
    """

    radius: float | None = None

    def _plain_model(self) -> Any:
        from sklearn.linear_model import Ridge

        return Ridge()

    def make_loss(self) -> Loss:
        if self.radius is not None:
            check.scale("radius", self.radius)
        free = self._method().unbounded and self.delta > 0
        return Squared(target_bound=self._bound(), radius=self.radius or (math.inf if free else _USUAL_RADIUS))


@dataclass(kw_only=True, eq=False, repr=False)
class DPLasso(PrivateLinearRegressor):
    """Differentially private Lasso: squared loss over the ball ‖θ‖₁ ≤ `radius`, by Frank and Wolfe's steps (Talwar, Thakurta,
    Zhang 2015), so that at most `steps` coefficients are not 0.

    The ball is Lasso's penalty in its other form. An intercept is one of the parameters in it. `steps` None: by public_size, or
    50. `entry_bound`: a public bound on every feature's size, which noise then follows; let `data_norm` be as large as rows of
    such features are long, for this to help (`FrankWolfe` says more). Other parameters as for `DPRidge`; of data in CSR nothing
    is made dense but vectors of d numbers.
    """

    radius: float = 1.0
    steps: int | None = None
    entry_bound: float | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few records of a check: choices are noisy
        return tags

    def _plain_model(self) -> Any:
        from sklearn.linear_model import Lasso

        return Lasso()

    @property
    def mechanism(self) -> FrankWolfe:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What follows from the parameters."""
        return FrankWolfe(radius=self.radius, steps=self.steps, entry_bound=self.entry_bound)

    def make_loss(self) -> Loss:
        return Squared(target_bound=self._bound(), radius=check.scale("radius", self.radius))


@dataclass(kw_only=True, eq=False, repr=False)
class DPElasticNet(PrivateLinearRegressor):
    """Differentially private elastic net, by coordinate descent (Mangold and others 2022): it minimises

        Σ(y − xᵀθ)²/(2n) + alpha·l1_ratio·‖θ‖₁ + alpha·(1 − l1_ratio)·‖θ‖²/2,

    scikit-learn's `ElasticNet`, but for an intercept, which has the quadratic penalty too. `epochs` None: 10 passes over the
    coordinates. `radius` bounds every coefficient. Other parameters as for `DPRidge`.
    """

    alpha: float = 1e-3
    l1_ratio: float = 0.5
    radius: float = 5.0
    epochs: int | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on the few records of a check
        return tags

    def _plain_model(self) -> Any:
        from sklearn.linear_model import ElasticNet

        return ElasticNet(alpha=self.alpha, l1_ratio=self.l1_ratio)

    @property
    def mechanism(self) -> Coordinate:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What follows from the parameters."""
        alpha = check.non_negative("alpha", self.alpha)
        share = check.fraction("l1_ratio", self.l1_ratio, zero=True, one=True)
        radius = check.scale("radius", self.radius)
        return Coordinate(l1=alpha * share, l2=alpha * (1 - share), box=radius, epochs=self.epochs)

    def make_loss(self) -> Loss:
        return Squared(target_bound=self._bound(), radius=check.scale("radius", self.radius))


@dataclass(kw_only=True, eq=False, repr=False)
class DPQuantileRegressor(WithMechanism, PrivateLinearRegressor):
    """Differentially private quantile regression: the `quantile` of targets in `target_range`, or in ±`target_bound`, given a
    row, 0.5 for the median.

    `mechanism` "auto" is objective perturbation, by the bound that holds for any loss of bounded slope and curvature; "gradient"
    and "output" are others. What is minimised is in units of target_bound, or of half the width of target_range; coefficients
    are not. The loss is smoothed over `half_width`, in the target's units (by default a tenth of that): a smaller one is nearer
    the quantile, and needs more regularisation. Targets outside are clipped. Two quantiles are two models, and both are paid
    for. Other parameters as for `DPLogisticRegression`.

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

    quantile: float = 0.5
    half_width: float | None = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # a median of scikit-learn's 200 numbers explains little within ε = 1
        return tags

    def _plain_model(self) -> Any:
        from sklearn.linear_model import QuantileRegressor

        return QuantileRegressor(quantile=self.quantile)

    def make_loss(self) -> Loss:
        """Of targets in units of their bound: rules know no others."""
        unit = check.scale("target_bound", self._half_width())
        width = None if self.half_width is None else check.positive("half_width", self.half_width) / unit
        return QuantileLoss(self.quantile, 1.0, width)

    def _unit_of_targets(self) -> float:
        return self._half_width()

    def _metric(self, truth: NDArray[Any], answers: NDArray[Any], weights: Array | None) -> float:
        from sklearn.metrics import d2_pinball_score

        return float(d2_pinball_score(truth, answers, sample_weight=weights, alpha=self.quantile))

    def _metric_of_parts(self, parts: PartSums) -> float:
        return pinball_of_parts(self.predict, parts, self.quantile)


@dataclass(kw_only=True, eq=False, repr=False)
class DPPoissonRegressor(WithMechanism, PrivateLinearRegressor):
    """Differentially private Poisson regression: counts with mean e^{xᵀw + intercept}, over the ball ‖θ‖ ≤ `radius`.

    `mechanism` "auto" is gradient perturbation by full batches; "objective" is refused. Counts are clipped to `target_range` =
    (low, high), 0 ≤ low, or to [0, `target_bound`], negative ones refused; nothing is centred, for it is the logarithm of a mean
    that is linear. The loss bends by e^{data_norm·radius}: keep the product small. Other parameters as for
    `DPLogisticRegression`.
    """

    radius: float = 2.0
    target_bound: float = 10.0

    counts = True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # scikit-learn's 200 numbers are no counts, and explain little within ε = 1
        return tags

    def _plain_model(self) -> Any:
        from sklearn.linear_model import PoissonRegressor

        # what turns scores into counts it makes when it is fitted: here to two rows of zeros
        return PoissonRegressor().fit(np.zeros((2, self.n_features_in_)), np.ones(2))

    def make_loss(self) -> Loss:
        check.scale("radius", self.radius)
        return PoissonLoss(target_bound=self._ends()[1], radius=self.radius)

    def _ends(self) -> tuple[float, float]:
        low, high = super()._ends()
        if self.target_range is None:
            return 0.0, high
        if low < 0:
            raise ValueError(f"Expected target_range of counts, from 0 or above, got {self.target_range!r}.")
        return low, high

    def _middle(self) -> float:
        return 0.0

    def _unit_of_targets(self) -> float:
        return 1.0

    def _targets(self, y: Any) -> tuple[Array, int, list[Assumption]]:
        if np.any(np.asarray(y) < 0):
            raise ValueError("Expected counts >= 0, got negative ones.")
        low, high = self._ends()
        return np.clip(np.asarray(y, dtype=np.float64), low, high), 0, [clipped_counts(low, high)]

    def _metric(self, truth: NDArray[Any], answers: NDArray[Any], weights: Array | None) -> float:
        from sklearn.metrics import d2_tweedie_score

        return float(d2_tweedie_score(truth, np.maximum(answers, _LEAST_MEAN), sample_weight=weights, power=1))

    def _metric_of_parts(self, parts: PartSums) -> float:
        return share_explained(self._means, parts, poisson_divergence)

    def _means(self, X: Any) -> Array:
        """Expected counts of rows in memory, above 0, as deviances ask for."""
        return np.maximum(self.predict(X), _LEAST_MEAN)
