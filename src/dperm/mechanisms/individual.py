"""Individual accounting: full batches, in which each record spends what its own gradients cost."""

from __future__ import annotations

from dataclasses import dataclass

from dperm import _validate as check
from dperm.gradient import IndividualPlan, Plan, Policy
from dperm.mechanisms.gradient import Gradient


@dataclass(frozen=True, kw_only=True, repr=False)
class IndividualGradient(Gradient):
    """Full batches at the price of `full_share` of their steps: a record is silent once its own gradients have spent that
    (Koskela, Tobaben, Honkela 2023). With 1 nobody ever is, and it is Gradient(sampling="full")."""

    sampling: str = "full"
    full_share: float = 0.5

    key = "individual"
    title = "Individual accounting"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.fraction("full_share", self.full_share, one=True)
        if self.sampling != "full":
            raise ValueError(f"Expected sampling='full' with individual accounting, got {self.sampling!r}.")

    @property
    def words(self) -> str:
        return IndividualPlan.kind

    def shaped(self, plan: Policy) -> Policy:
        assert isinstance(plan, Plan)
        noise = plan.noise.levels(plan.steps)[0][0]
        return IndividualPlan(
            plan.bounding.bound, noise, plan.steps, self.full_share * plan.steps, plan.update, plan.public_size, plan.post
        )
