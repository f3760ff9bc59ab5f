"""DP-LSSGD: gradient perturbation whose noisy gradients are smoothed (Wang, Gu, Boedihardjo, Wang, Barekat, Osher 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dperm import _validate as check
from dperm.gradient import LaplacianSmoothing, Policy
from dperm.mechanisms.gradient import Gradient


@dataclass(frozen=True, kw_only=True, repr=False)
class SmoothedGradient(Gradient):
    """`Gradient` with Laplacian smoothing of this `strength` after the noise (DP-LSSGD): it costs the same."""

    strength: float = 1.0

    key = "lssgd"
    title = "DP-LSSGD"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.non_negative("strength", self.strength)

    def shaped(self, plan: Policy) -> Policy:
        smoothed: Any = plan  # whatever the sampling, its plan has a slot for what is done after the noise
        return replace(smoothed, post=LaplacianSmoothing(self.strength))
