"""DPIS: importance sampling whose noise is chosen on the way, within a filter's budget (Wei, Bao, Xiao, Yang 2022)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dperm.gradient.importance.run import ImportanceGradients
from dperm.gradient.importance.settings import LARGEST_RATE, ImportanceSettings
from dperm.privacy.events import Event, Gaussian, Relation
from dperm.release import GaussianNoise
from dperm.release.channel import Channel

_DEVIATIONS = (
    "gradients enter as unit vectors: the published weight 1/(q·p) breaks the sensitivity where q is capped, and b divides twice",
    "K, K* and N are charged without amplification: they sum all records",
    "noise levels, rates and the number of steps follow from public constants and released values, never from N",
    "the lower bound on K is applied last, so that the sampling rate stays below 1",
    "proposals are capped at C, and norms below norm_floor·C count as that: unbiased, with fewer proposals",
    "passes for norms leave out the records whose norms were seen in the last half epoch: most of those that are drawn often",
)


@dataclass(frozen=True)
class ImportancePlan(ImportanceSettings):
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

    kind = "importance sampling"
    run = ImportanceGradients
    made_anew = "the norms of all records, and what is released of them"

    @property
    def by_ranks(self) -> bool:
        """Norms are remembered where their records are."""
        return True

    @property
    def released_kinds(self) -> frozenset[str]:
        adaptive = {"sum of norms K*"} if self.adaptive is not None else set[str]()
        size = {"number of records"} if self.public_size is None else set[str]()
        return frozenset({"sum of unit gradients", "sum of norms K"} | adaptive | size)

    @property
    def paper(self) -> str:
        return f"Wei, Bao, Xiao, Yang 2022 (DPIS), with its accounting put right; {self.spending.source}"

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """By profiles, what K and the epochs of these steps are held to. By a Rényi filter these steps' share of its budget:
        how it is spread is only known afterwards."""
        self.same(relation)
        return self.spending.event(start, self.steps if stop is None else stop)

    @property
    def tells_noise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.post.noise_left(1) is not None

    def describe(self) -> dict[str, Any]:
        stated = self.public_size is not None and self.size_noise is None
        releases = [] if stated else [f"N once: Gaussian({self.spending.size_noise:.6g})"]
        least = "at least " if self.norm_noise is None and self.public_size is None else ""
        releases.append(f"K, {self.epochs} times: Gaussian({least}{self.sum_noise:.6g})")
        if self.adaptive is not None:
            releases.append(f"K*, {self.epochs - 1} times: Gaussian({least}{self.sum_noise:.6g})")
        releases.append(f"gradients, {self.steps or 'N/b an epoch'} times: sampled Gaussians, planned at the start of each epoch")
        told = super().describe()
        del told["public_size"]  # an objective's fact
        return {
            **told,
            "budget": self.spending.describe(),
            "sampler": "importance sampling",
            "bounding": "unit vectors in proportion to clipped norms",
            "steps": self.steps,
            "releases": releases,
            "differs from the paper": [*_DEVIATIONS, self.spending.deviation],
        }

    @property
    def budgeted(self) -> Event:
        return self.event(self.budget.relation)

    def sized(self, channel: Channel, records: int) -> Self:
        if self.public_size is not None:
            return self
        noise = self.spending.size_noise
        channel.allow(Gaussian(noise), {"what": "N"})
        noisy = float(channel.release(np.array([float(records)]), GaussianNoise(1.0, noise, what="number of records"))[0])
        # a released size that is too small for the batches is taken for the least that is not: the charge is made
        return self.with_released_size(max(round(noisy), math.ceil(self.expected_batch_size / LARGEST_RATE), 1))

    def with_released_size(self, size: int) -> Self:
        if self.public_size is not None:
            return self
        return replace(self, public_size=size, size_noise=self.spending.size_noise)
