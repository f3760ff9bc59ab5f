"""The narrow waist of gradient methods: what a plan may ask of an objective at one batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from dperm.objectives.facts import PublicFacts


class Pass(ABC):
    """Per-example quantities of b records at one θ. Arrays are of the backend that θ belongs to."""

    __slots__ = ()

    @property
    @abstractmethod
    def losses(self) -> Any:
        """(b,) losses ℓ_i."""

    @property
    @abstractmethod
    def norms(self) -> Any:
        """(b,) L2 norms of the gradients ∇ℓ_i; 0 for a record whose gradient is not finite."""

    @property
    def group_norms(self) -> Any:
        """(b, groups) norms of the parts of the gradients that a per-layer bounding treats apart; one group here."""
        return self.norms[..., None]

    @abstractmethod
    def weighted_sum(self, factors: Any, bound: float | None = None) -> Any:
        """Σ_i factors_i·∇ℓ_i as a flat (p,) vector; factors: (b,). No term of it is longer than `bound`, if there is one,
        whatever
        the factors are."""


class Objective(Protocol):
    """An ERM problem as the descent loop sees it: a sum over records plus (strong_convexity/2)·‖θ‖²."""

    @property
    def facts(self) -> PublicFacts:
        """What is public about the problem."""
        ...

    @property
    def strong_convexity(self) -> float: ...

    @property
    def radius(self) -> float | None:
        """Radius of the L2 ball that θ is kept in, or None."""
        ...

    def per_example(self, theta: Any, batch: Any, *, norms_only: bool = False, anchor: Any = None) -> Pass:
        """The pass at θ; with `norms_only` nothing is kept for weighted sums. With an `anchor` (p,), the vectors are
        ∇ℓ_i(θ) − ∇ℓ_i(anchor). TypeError where the objective cannot."""
        ...
