"""The settings of DPIS, importance sampling by gradient norm (Wei, Bao, Xiao, Yang 2022), and what follows from them in public.

Records are drawn in proportion to their gradients' norms nᵢ, so that every accepted record adds a vector of length one and the
sum needs noise for one. What that needs of the records — their number N, each epoch's K = Σ min(nᵢ, C) — is released with noise,
and a step costs a Poisson-sampled Gaussian at the rate bC/K̃. docs/importance-sampling.md has the proof and says where the
published algorithm is not followed.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from dperm import _validate as check
from dperm.gradient.importance.spending import ByProfile, ByRenyi, Schedule, Spending
from dperm.gradient.policy import Policy
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.update import Update
from dperm.privacy.accountants.privacy_filters import Filter
from dperm.privacy.events import FilteredRdp, PrivacyProfile, Relation

#: No record is ever drawn with a larger probability: K̃ is kept above bC ÷ this.
LARGEST_RATE = 0.8


def admit_batch(expected: float, size: int) -> None:
    """ValueError where batches would leave nothing of sampling."""
    if expected > LARGEST_RATE * size:
        raise ValueError(
            f"Expected batches of at most {100 * LARGEST_RATE:g} % of the records, got {expected:g} of {size}: nothing is left "
            "of sampling. Use full_batch_descent."
        )


@dataclass(frozen=True)
class AdaptiveNorm:
    """The clipping norm of the next epoch: λ = `scale` times the released mean of norms cut at C* = `ceiling`·C₁.

    It stays within [`least`·C₁, C*], both public. Steps are in proportion to C: lower the learning rate as C grows.
    """

    scale: float = 1.0
    ceiling: float = 4.0
    least: float = 0.01

    def __post_init__(self) -> None:
        check.positive("scale", self.scale)
        check.positive("least", self.least)
        check.positive("ceiling", self.ceiling)
        if not self.least <= 1 <= self.ceiling:
            raise ValueError(f"Expected least <= 1 <= ceiling, got {self.least} and {self.ceiling}: the first norm lies between.")


@dataclass(frozen=True)
class ImportanceSettings(Policy):
    """What an `ImportancePlan` is set to, and the public formulas that its runs follow."""

    budget: FilteredRdp | PrivacyProfile
    expected_batch_size: float
    epochs: int
    clipping_norm: float
    update: Update
    public_size: int | None = None
    proposal_factor: float = 2.0
    norm_floor: float = 0.01
    norm_noise: float | None = None
    size_noise: float | None = None
    worst_case_share: float | None = None
    pass_every: int = 1
    adaptive: AdaptiveNorm | None = None
    post: Post = field(default_factory=Identity)

    def __post_init__(self) -> None:
        given: Any = self.budget
        if not isinstance(given, FilteredRdp | PrivacyProfile):
            raise TypeError(f"Expected budget to be a FilteredRdp or a PrivacyProfile, got {given!r}.")
        for name, kind in (("update", Update), ("adaptive", AdaptiveNorm), ("post", Post)):
            value = getattr(self, name)
            if not (isinstance(value, kind) or (name == "adaptive" and value is None)):
                raise TypeError(f"Expected {name} to be of type {kind.__name__}, got {value!r}.")
        check.positive("expected_batch_size", self.expected_batch_size)
        for name in ("epochs", "pass_every"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        check.scale("clipping_norm", self.clipping_norm)
        check.fraction("norm_floor", self.norm_floor)
        check.at_least("norm_floor", self.norm_floor, 1e-6)  # below, single precision could not tell floors from nothing
        if self.worst_case_share is not None:
            check.fraction("worst_case_share", self.worst_case_share, zero=True, one=True)
        if check.positive("proposal_factor", self.proposal_factor) < 1:
            raise ValueError(f"Expected proposal_factor >= 1, got {self.proposal_factor!r}: norms that grew would be cut.")
        if self.budget.relation is not Relation.ADD_OR_REMOVE_ONE:
            raise ValueError("DPIS is certified under add/remove only: nothing here accounts for its steps under replace-one.")
        for name in ("norm_noise", "size_noise"):
            if getattr(self, name) is not None:
                check.positive(name, getattr(self, name))
        if self.public_size is not None:
            object.__setattr__(self, "public_size", check.integer("public_size", self.public_size))
            admit_batch(self.expected_batch_size, self.public_size)
        self.spending.check()

    def same(self, relation: Relation) -> None:
        """ValueError for another relation than the budget's."""
        if relation is not self.budget.relation:
            raise ValueError(f"Expected the relation {self.budget.relation} of the budget, got {relation}: DPIS has no other.")

    @functools.cached_property
    def schedule(self) -> Schedule:
        return Schedule(
            self.epochs,
            self.expected_batch_size,
            self.public_size,
            self.adaptive is not None,
            self.norm_noise,
            self.size_noise,
            self.worst_case_share,
        )

    @functools.cached_property
    def spending(self) -> Spending:
        """How noise is held to the budget."""
        if isinstance(self.budget, FilteredRdp):
            return ByRenyi(self.schedule, self.budget)
        return ByProfile(self.schedule, self.budget)

    @property
    def steps_per_epoch(self) -> int:
        return self.schedule.steps_per_epoch

    @property
    def steps(self) -> int:
        return self.schedule.steps

    @property
    def rate(self) -> float:
        """A step's share of an epoch, as the plan counts epochs."""
        return 1 / self.steps_per_epoch if self.steps_per_epoch else 0.0

    @property
    def sum_noise(self) -> float:
        """σ_K: noise multiplier of K and K*."""
        return self.spending.sum_noise

    def draw_rate(self, noisy: float, clipping_norm: float) -> float:
        """bC/K̃, the sampling rate of an epoch: for K̃ a noisy K within what it can be, and large enough for rates of at most 0.8
        (eq. 12, the lower bound last)."""
        assert self.public_size is not None
        least = self.expected_batch_size * clipping_norm / LARGEST_RATE
        norm_sum = max(min(noisy, self.public_size * clipping_norm), least)
        return self.spending.rate(self.expected_batch_size * clipping_norm / norm_sum)

    def next_clipping_norm(self, noisy: float) -> float:
        """C of the next epoch, from the noisy K* (eq. 17, within public bounds)."""
        assert self.public_size is not None and self.adaptive is not None
        wanted = self.adaptive.scale * noisy / self.public_size
        return self.clipping_norm * min(max(wanted / self.clipping_norm, self.adaptive.least), self.adaptive.ceiling)

    def noise_multiplier(self, held: Filter, epoch: int, steps: int, rate: float) -> float:
        """σ_e: noise of each of the `steps` left of `epoch`, drawn at `rate`, within what the filter has left for them."""
        return self.spending.noise_multiplier(held, epoch, steps, rate)
