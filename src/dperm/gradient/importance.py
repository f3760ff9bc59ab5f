"""DPIS: importance sampling whose noise is chosen on the way, within a filter's budget (Wei, Bao, Xiao, Yang 2022).

Records are drawn in proportion to their gradients' norms nᵢ, so that every accepted record adds a vector of length one and the
sum needs noise for one. What that needs of the records — their number N, each epoch's K = Σ min(nᵢ, C) — is released with noise,
and a step costs a Poisson-sampled Gaussian at the rate bC/K̃. docs/importance-sampling.md has the proof and says where the
published algorithm is not followed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from dperm import _validate as check
from dperm.gradient.importance_budget import ByProfile, ByRenyi, Spending
from dperm.gradient.importance_run import ImportanceGradients
from dperm.gradient.post import Identity, Post
from dperm.gradient.run import BatchSource
from dperm.gradient.update import Update
from dperm.objectives.per_example import Objective, Pass
from dperm.privacy.channel import Channel
from dperm.privacy.events import Event, FilteredRdp, Gaussian, PrivacyProfile, Relation
from dperm.privacy.filters import Filter

__all__ = ["LARGEST_RATE", "AdaptiveNorm", "ImportancePlan", "admit_batch"]

#: No record is ever drawn with a larger probability: K̃ is kept above bC ÷ this.
LARGEST_RATE = 0.8


def admit_batch(expected: float, size: int) -> None:
    """ValueError where batches would leave nothing of sampling."""
    if expected > LARGEST_RATE * size:
        raise ValueError(
            f"Expected batches of at most {100 * LARGEST_RATE:g} % of the records, got {expected:g} of {size}: nothing is left "
            "of sampling. Use full_batch_descent."
        )


_DEVIATIONS = (
    "gradients enter as unit vectors: the published weight 1/(q·p) breaks the sensitivity where q is capped, and b divides twice",
    "K, K* and N are charged without amplification: they sum all records",
    "noise levels, rates and the number of steps follow from public constants and released values, never from N",
    "the lower bound on K is applied last, so that the sampling rate stays below 1",
    "proposals are capped at C, and norms below norm_floor·C count as that: unbiased, with fewer proposals",
    "passes for norms leave out the records whose norms were seen in the last half epoch: most of those that are drawn often",
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
class ImportancePlan:
    """A policy for DPIS: `epochs` times N/`expected_batch_size` steps, all within `budget`. Add/remove only.

    Parameters
    ----------
    budget : what the run is held to. A `FilteredRdp` bounds all of it: `dperm.privacy.rdp_budget(epsilon, delta)`. A
        `PrivacyProfile` bounds the steps of each epoch, to which K's releases add: needs `public_size` and `norm_noise`.
    expected_batch_size : b, expected number of records that make a step.
    clipping_norm : C, of the first epoch.
    public_size : N as publicly known. None: released with noise, within the budget.
    proposal_factor : k ≥ 1. A record is proposed as if its norm had grown by k since it was last seen.
    norm_floor : g_L ÷ C. Norms below count as this long, so that no record is forgotten.
    norm_noise, size_noise : σ_K and σ_N, noise of K (and K*) ÷ C and of N. None: at most 5 % and 1 % of the budget.
    worst_case_share : a_E, of a Rényi filter (None: 0.8). In this share of the epochs noise is planned as if all later K were
        N·C, so that it never has to rise; after that as if K stayed. By profiles no epoch depends on later ones.
    pass_every : epochs between the passes that refresh the norms of records not seen for half an epoch; between them K is
        of the norms last seen. Unbiased either way: stale norms cost efficiency.
    adaptive : how the clipping norm changes from epoch to epoch; None: it does not.

    Raises ValueError where the parameters contradict each other or the budget cannot pay for N and K.
    """

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
        self._spending.check()

    # What is public about a run

    kind = "importance sampling"

    @property
    def paper(self) -> str:
        return f"Wei, Bao, Xiao, Yang 2022 (DPIS), with its accounting put right; {self._spending.source}"

    @property
    def steps_per_epoch(self) -> int:
        return 0 if self.public_size is None else max(1, round(self.public_size / self.expected_batch_size))

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    @property
    def rate(self) -> float:
        """A step's share of an epoch, as the plan counts epochs."""
        return 1 / self.steps_per_epoch if self.steps_per_epoch else 0.0

    @property
    def least_rate(self) -> float:
        """b/N: the sampling rate of a step where K = N·C."""
        return 0.0 if self.public_size is None else self.expected_batch_size / self.public_size

    @property
    def sum_noise(self) -> float:
        """σ_K: noise multiplier of K and K*."""
        return self._spending.sum_noise

    def sums(self, epoch: int) -> int:
        """How many K and K* are released from the start of `epoch` (from 0) on."""
        return self.epochs - epoch + (0 if self.adaptive is None else self.epochs - max(epoch, 1))

    @functools.cached_property
    def _spending(self) -> Spending:
        return ByRenyi(self, self.budget) if isinstance(self.budget, FilteredRdp) else ByProfile(self, self.budget)

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """By profiles, what K and the epochs of these steps are held to. By a Rényi filter the whole budget, whatever is asked
        for: how it is spread is only known afterwards."""
        self._same(relation)
        return self._spending.event(start, self.steps if stop is None else stop)

    def rest(self, relation: Relation, done: int) -> Event:
        self._same(relation)
        return self._spending.rest(done)

    def pays_for(self, event: Event, relation: Relation, first: int) -> bool:
        return relation is self.budget.relation and self._spending.pays_for(event, first)

    def spent(self, held: Filter) -> Event | None:
        """What a run is known to have spent of the filter that holds it; None for nothing."""
        return self._spending.spent(held)

    def norm_noise_within(self, held: Filter) -> float:
        """σ_K, as it was charged."""
        return self._spending.norm_noise(held)

    def _same(self, relation: Relation) -> None:
        if relation is not self.budget.relation:
            raise ValueError(f"Expected the relation {self.budget.relation} of the budget, got {relation}: DPIS has no other.")

    def describe(self) -> dict[str, Any]:
        stated = self.public_size is not None and self.size_noise is None
        releases = [] if stated else [f"N once: Gaussian({self._spending.size_noise:.6g})"]
        least = "at least " if self.norm_noise is None and self.public_size is None else ""
        releases.append(f"K, {self.epochs} times: Gaussian({least}{self.sum_noise:.6g})")
        if self.adaptive is not None:
            releases.append(f"K*, {self.epochs - 1} times: Gaussian({least}{self.sum_noise:.6g})")
        releases.append(f"gradients, {self.steps or 'N/b an epoch'} times: sampled Gaussians, planned at the start of each epoch")
        return {
            "sampler": f"importance sampling, k = {self.proposal_factor:g}, norm_floor = {self.norm_floor:g}, "
            f"norms refreshed every {'epoch' if self.pass_every == 1 else f'{self.pass_every} epochs'}",
            "bounding": f"unit vectors in proportion to norms clipped at {self.clipping_norm:g}",
            "adaptive": repr(self.adaptive),
            "noise": self._spending.describe(),
            "post": repr(self.post),
            "update": repr(self.update),
            "steps": self.steps,
            "expected_batch_size": self.expected_batch_size,
            "releases": releases,
            "differs from the paper": [*_DEVIATIONS, self._spending.deviation],
        }

    # Running

    def sized(self, channel: Channel, records: int) -> Self:
        if self.public_size is not None:
            return self
        noise = self._spending.size_noise
        channel.allow(Gaussian(noise), {"what": "N"})
        noisy = float(channel.release(np.array([float(records)]), 1.0, noise)[0])
        # a released size that is too small for the batches is taken for the least that is not: the charge is made
        return self.with_released_size(max(round(noisy), math.ceil(self.expected_batch_size / LARGEST_RATE), 1))

    def with_released_size(self, size: int) -> Self:
        """The plan after N was released as `size`."""
        return replace(self, public_size=size, size_noise=self._spending.size_noise)

    def gradients(
        self,
        objective: Objective,
        records: BatchSource,
        channel: Channel,
        *,
        first: int = 0,
        observe: Callable[[Pass], None] | None = None,
    ) -> ImportanceGradients:
        self._same(objective.facts.relation)
        return ImportanceGradients(self, objective, records, channel, first=first, observe=observe)

    def draw_rate(self, noisy: float, clipping_norm: float) -> float:
        """bC/K̃, the sampling rate of an epoch: for K̃ a noisy K within what it can be, and large enough for rates of at most 0.8
        (eq. 12, the lower bound last)."""
        assert self.public_size is not None
        least = self.expected_batch_size * clipping_norm / LARGEST_RATE
        norm_sum = max(min(noisy, self.public_size * clipping_norm), least)
        return self._spending.rate(self.expected_batch_size * clipping_norm / norm_sum)

    def next_clipping_norm(self, noisy: float) -> float:
        """C of the next epoch, from the noisy K* (eq. 17, within public bounds)."""
        assert self.public_size is not None and self.adaptive is not None
        wanted = self.adaptive.scale * noisy / self.public_size
        return self.clipping_norm * min(max(wanted / self.clipping_norm, self.adaptive.least), self.adaptive.ceiling)

    def noise_multiplier(self, held: Filter, epoch: int, steps: int, rate: float) -> float:
        """σ_e: noise of each of the `steps` left of `epoch`, drawn at `rate`, within what the filter has left for them."""
        return self._spending.noise_multiplier(held, epoch, steps, rate)
