"""The minimiser of a perturbed objective."""

from __future__ import annotations

from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events.event import Event, Paid, Relation, own_relation, plain_number

#: Losses whose slope and curvature are tied, so that the sharp bound of docs/objective-perturbation.md holds. The value
#: is smoothness ÷ lipschitz², where the loss fixes it, or None where the loss has a free width.
SHARP_LOSSES: dict[str, float | None] = {"logistic": 0.25, "smoothed_hinge": None, "huber": None}


@dataclass(frozen=True)
class ObjectivePerturbationEvent(Event):
    """argmin of Σ ℓ_i(θ) + (strong_convexity/2)·‖θ‖² + bᵀθ with b ~ N(0, noise_std²·I), ℓ convex and of rank-one Hessian.

    `lipschitz` bounds one record's gradient, `smoothness` its curvature, both on all of ℝ^d; `strong_convexity` is
    the whole quadratic term. `loss` names a loss whose slope and curvature are tied (see SHARP_LOSSES): sharp bounds then apply.
    With `many`, ℓ_i is a mean of any number of such losses, those of one person. Raises ValueError where `smoothness`
    contradicts `loss`.
    """

    noise_std: float
    lipschitz: float
    smoothness: float
    strong_convexity: float
    relation: Relation = Relation.ADD_OR_REMOVE_ONE
    loss: str | None = None
    many: bool = False

    def __post_init__(self) -> None:
        for name in ("noise_std", "lipschitz", "smoothness", "strong_convexity"):
            plain_number(self, name, check.positive)
        own_relation(self)
        if not isinstance(self.many, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"Expected many to be True or False, got {self.many!r}.")
        if self.loss is None:
            return
        check.choice("loss", self.loss, SHARP_LOSSES)
        ratio = SHARP_LOSSES[self.loss]
        if ratio is not None and abs(self.smoothness / self.lipschitz**2 - ratio) > 1e-9 * ratio:
            raise ValueError(
                f"Expected smoothness = {ratio:g}·lipschitz² = {ratio * self.lipschitz**2:g} for loss={self.loss!r}, "
                f"got {self.smoothness!r}."
            )

    @property
    def pays_for(self) -> Paid:
        return Paid("objective", self.noise_std / self.lipschitz)
