"""Private Lasso: squared loss over an L1 ball."""

from __future__ import annotations

from typing import Any

from dperm.estimators.ridge import DPRidge
from dperm.mechanisms import FrankWolfe
from dperm.privacy import Risk


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
