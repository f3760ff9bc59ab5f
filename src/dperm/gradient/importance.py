"""DPIS: importance sampling whose noise is chosen on the way, within a filter's budget (Wei, Bao, Xiao, Yang 2022).

Records are drawn in proportion to their gradients' norms nᵢ, so that every accepted record adds a vector of length one and the
sum needs noise for one. What that needs of the records — their number N, each epoch's K = Σ min(nᵢ, C) — is released with noise,
and a step costs a Poisson-sampled Gaussian at the rate bC/K̃. docs/importance-sampling.md has the proof and says where the
published algorithm is not followed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq

from dperm import _validate as check
from dperm.gradient.importance_run import ImportanceGradients
from dperm.gradient.post import Identity, Post
from dperm.gradient.run import BatchSource
from dperm.gradient.update import Update
from dperm.objectives.per_example import Objective, Pass
from dperm.privacy.channel import Channel
from dperm.privacy.events import Event, FilteredRdp, Gaussian, PoissonSampled, Relation
from dperm.privacy.filters import BudgetExceeded, RdpFilter

__all__ = ["LARGEST_RATE", "AdaptiveNorm", "ImportancePlan"]

#: No record is ever drawn with a larger probability: K̃ is kept above bC ÷ this.
LARGEST_RATE = 0.8
_SIZE_SHARE = 0.01  # of the budget, for N, where its noise is not stated
_NORM_SHARE = 0.05  # of the budget, at most, for all K and K*, where their noise is not stated
_NORM_NOISE = 0.005  # noise of K in units of N·C, if that keeps within the share

DEVIATIONS = (
    "gradients enter as unit vectors: the published weight 1/(q·p) breaks the sensitivity where q is capped, and b divides twice",
    "K, K* and N are charged without amplification: they sum all records",
    "noise is held by a filter at an order fixed beforehand: the best order afterwards is no bound",
    "noise levels, rates and the number of steps follow from public constants and released values, never from N",
    "the lower bound on K is applied last, so that the sampling rate stays below 1",
    "proposals are capped at C, and norms below norm_floor·C count as that: unbiased, with fewer proposals",
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
    budget : the filter that the whole run is held to: `dperm.privacy.rdp_budget(epsilon, delta)`.
    expected_batch_size : b, expected number of records that make a step.
    clipping_norm : C, of the first epoch.
    public_size : N as publicly known. None: released with noise, within the budget.
    proposal_factor : k ≥ 1. A record is proposed as if its norm had grown by k since it was last seen.
    norm_floor : g_L ÷ C. Norms below count as this long, so that no record is forgotten.
    norm_noise, size_noise : σ_K and σ_N, noise of K (and K*) ÷ C and of N. None: at most 5 % and 1 % of the budget.
    worst_case_share : a_E. In this share of the epochs noise is planned as if all later K were N·C, so that it never has to
        rise; after that as if K stayed.
    pass_every : epochs between the passes over all records that refresh the norms; between them K is of the norms last seen.
        Unbiased either way: stale norms cost efficiency.
    adaptive : how the clipping norm changes from epoch to epoch; None: it does not.

    Raises ValueError where the parameters contradict each other or the budget cannot pay for N and K.
    """

    budget: FilteredRdp
    expected_batch_size: float
    epochs: int
    clipping_norm: float
    update: Update
    public_size: int | None = None
    proposal_factor: float = 2.0
    norm_floor: float = 0.01
    norm_noise: float | None = None
    size_noise: float | None = None
    worst_case_share: float = 0.8
    pass_every: int = 1
    adaptive: AdaptiveNorm | None = None
    post: Post = field(default_factory=Identity)

    def __post_init__(self) -> None:
        for name, kind in (("budget", FilteredRdp), ("update", Update), ("adaptive", AdaptiveNorm), ("post", Post)):
            value = getattr(self, name)
            if not (isinstance(value, kind) or (name == "adaptive" and value is None)):
                raise TypeError(f"Expected {name} to be of type {kind.__name__}, got {value!r}.")
        check.positive("expected_batch_size", self.expected_batch_size)
        for name in ("epochs", "pass_every"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        check.positive("clipping_norm", self.clipping_norm)
        check.fraction("norm_floor", self.norm_floor)
        check.at_least("norm_floor", self.norm_floor, 1e-6)  # below, single precision could not tell floors from nothing
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
            if self.expected_batch_size > LARGEST_RATE * self.public_size:
                raise ValueError(
                    f"Expected batches of at most {100 * LARGEST_RATE:g} % of the records, got {self.expected_batch_size:g} of "
                    f"{self.public_size}: nothing is left of sampling. Use full_batch_descent."
                )
        spent = self.statistics_cost(0) + (0.0 if self.public_size else self._cost(Gaussian(self._size_noise)))
        if spent >= 0.9 * self.budget.rdp_budget:
            raise ValueError(
                f"The budget cannot pay for N and K: they would take {spent:.3g} of {self.budget.rdp_budget:.3g} at order "
                f"{self.budget.order:g}. Raise norm_noise and size_noise, or lower the number of epochs."
            )

    # What is public about a run

    kind = "importance sampling"
    paper = "Wei, Bao, Xiao, Yang 2022 (DPIS), with its accounting put right; Feldman & Zrnic 2021 (Rényi filter)"

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
        if self.norm_noise is not None:
            return self.norm_noise
        within = math.sqrt(self._sums(0) * self.budget.order / (2 * _NORM_SHARE * self.budget.rdp_budget))
        return max(within, _NORM_NOISE * (self.public_size or 0))

    @property
    def _size_noise(self) -> float:
        """σ_N."""
        return self.size_noise or math.sqrt(self.budget.order / (2 * _SIZE_SHARE * self.budget.rdp_budget))

    def _sums(self, epoch: int) -> int:
        """How many K and K* are released from the start of `epoch` (from 0) on."""
        return self.epochs - epoch + (0 if self.adaptive is None else self.epochs - max(epoch, 1))

    def _cost(self, event: Event) -> float:
        return RdpFilter(self.budget).cost(event)

    def statistics_cost(self, epoch: int) -> float:
        """Rényi cost of all K and K* from the start of `epoch` on."""
        return self._sums(epoch) * self._cost(Gaussian(self.sum_noise))

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """The filter's budget, whatever part of the run is asked for: how it is spread is only known afterwards."""
        self._same(relation)
        return self.budget

    def rest(self, relation: Relation, done: int) -> Event:
        """The steps' share of the budget: what is left of it depends on releases, and would be no budget to state."""
        self._same(relation)
        return replace(self.budget, rdp_budget=self.budget.rdp_budget * (self.steps - done) / self.steps)

    def pays_for(self, event: Event, relation: Relation, first: int) -> bool:
        return (
            isinstance(event, FilteredRdp)
            and event.order == self.budget.order
            and event.rdp_budget <= self.budget.rdp_budget
            and event.relation is relation
        )

    def _same(self, relation: Relation) -> None:
        if relation is not self.budget.relation:
            raise ValueError(f"Expected the relation {self.budget.relation} of the budget, got {relation}: DPIS has no other.")

    def describe(self) -> dict[str, Any]:
        releases = (
            [] if self.size_noise is None and self.public_size is not None else [f"N once: Gaussian({self._size_noise:.6g})"]
        )
        least = "at least " if self.norm_noise is None and self.public_size is None else ""
        releases.append(f"K, {self.epochs} times: Gaussian({least}{self.sum_noise:.6g})")
        if self.adaptive is not None:
            releases.append(f"K*, {self.epochs - 1} times: Gaussian({least}{self.sum_noise:.6g})")
        releases.append(f"gradients, {self.steps or 'N/b an epoch'} times: sampled Gaussians, planned at the start of each epoch")
        return {
            "sampler": f"importance sampling, k = {self.proposal_factor:g}, norm_floor = {self.norm_floor:g}, "
            f"norms of all every {self.pass_every} epochs",
            "bounding": f"unit vectors in proportion to norms clipped at {self.clipping_norm:g}",
            "adaptive": repr(self.adaptive),
            "noise": f"within {self.budget.rdp_budget:.6g} at Rényi order {self.budget.order:g}; a_E = {self.worst_case_share:g}",
            "post": repr(self.post),
            "update": repr(self.update),
            "steps": self.steps,
            "expected_batch_size": self.expected_batch_size,
            "releases": releases,
            "differs from the paper": list(DEVIATIONS),
        }

    # Running

    def sized(self, channel: Channel, records: int) -> Self:
        if self.public_size is not None:
            return self
        noise = self._size_noise
        channel.allow(Gaussian(noise), {"what": "N"})
        noisy = float(channel.release(np.array([float(records)]), 1.0, noise)[0])
        # a released size that is too small for the batches is taken for the least that is not: the charge is made
        return self.with_released_size(max(round(noisy), math.ceil(self.expected_batch_size / LARGEST_RATE), 1))

    def with_released_size(self, size: int) -> Self:
        """The plan after N was released as `size`."""
        return replace(self, public_size=size, size_noise=self._size_noise)

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

    def norm_sum(self, noisy: float, clipping_norm: float) -> float:
        """K̃: a noisy K within what it can be, and large enough for rates below 0.8 (eq. 12, the lower bound last)."""
        assert self.public_size is not None
        least = self.expected_batch_size * clipping_norm / LARGEST_RATE
        return max(min(noisy, self.public_size * clipping_norm), least)

    def next_clipping_norm(self, noisy: float) -> float:
        """C of the next epoch, from the noisy K* (eq. 17, within public bounds)."""
        assert self.public_size is not None and self.adaptive is not None
        wanted = self.adaptive.scale * noisy / self.public_size
        return self.clipping_norm * min(max(wanted / self.clipping_norm, self.adaptive.least), self.adaptive.ceiling)

    def noise_multiplier(self, left: float, epoch: int, steps: int, rate: float) -> float:
        """σ_e: noise of each of the `steps` left of `epoch`, drawn at `rate`, when `left` of the budget is left.

        The noise of the mean gradient, σ_G = σ_e·r with r = K̃/(N·C) = b/(N·rate), is the same in all epochs to come: those
        are taken to have r = 1 in the first part of the run, and this epoch's r after it (section 4.2 of the paper).
        """
        later = self.epochs - epoch - 1
        ratio = self.least_rate / rate
        pessimistic = epoch < self.worst_case_share * self.epochs
        later_rate, later_ratio = (self.least_rate, 1.0) if pessimistic else (rate, ratio)
        # what is still to be released at this epoch's end and after it
        target = (left - (self.statistics_cost(epoch + 1) if later else 0.0)) * (1 - 1e-9)
        if target <= 0:
            raise BudgetExceeded("Nothing is left of the budget for gradients: interrupted runs spent it.")

        def cost(log_noise: float) -> float:
            noise = math.exp(log_noise)
            now = steps * self._cost(PoissonSampled(rate, Gaussian(noise / ratio)))
            if not later:
                return now
            return now + later * self.steps_per_epoch * self._cost(PoissonSampled(later_rate, Gaussian(noise / later_ratio)))

        def excess(log_noise: float) -> float:
            return math.log(max(cost(log_noise), 1e-300) / target)

        found = float(brentq(excess, math.log(1e-3 * ratio), math.log(1e9), xtol=1e-10))
        while cost(found) > target:
            found += 1e-9
        return math.exp(found) / ratio
