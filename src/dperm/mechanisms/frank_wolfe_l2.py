"""Frank–Wolfe on the L2 ball: full noisy gradients, of which only the direction is used (Talwar, Thakurta, Zhang 2015)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dperm import _validate as check
from dperm.gradient import FrankWolfeStep, Plan, Policy
from dperm.mechanisms.gradient import Gradient


@dataclass(frozen=True, kw_only=True, repr=False)
class FrankWolfeBall(Gradient):
    """Frank–Wolfe on the L2 ball of `radius`, which the model, its intercept among it, stays in: no learning rate to choose.

    `epochs` are steps, of 2/(t + 2); they and `clipping_norm` are chosen as for full batches where they are left open.
    """

    sampling: str = "full"
    radius: float = 10.0

    key = "frank-wolfe-l2"
    title = "Frank–Wolfe, L2 ball"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.scale("radius", self.radius)
        if self.sampling != "full":
            raise ValueError(f"Expected sampling='full' with mechanism={self.key!r}, got {self.sampling!r}.")
        for name in ("learning_rate", "strong_convexity"):
            if getattr(self, name) is not None:
                raise ValueError(f"Expected no {name} with mechanism={self.key!r}: the ball and its steps stand for it.")

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        return replace(plan, update=FrankWolfeStep(self.radius))
