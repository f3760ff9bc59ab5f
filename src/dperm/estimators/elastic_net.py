"""Private elastic net: squared loss with L1 and L2 penalties."""

from __future__ import annotations

from typing import Any

from dperm import _validate as check
from dperm.estimators.ridge import DPRidge
from dperm.mechanisms import Coordinate
from dperm.privacy import Risk


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
