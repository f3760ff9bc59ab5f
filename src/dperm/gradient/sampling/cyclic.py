"""Cyclic Poisson sampling: groups of records take turns, so that correlated noise is amplified by sampling."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.correlation import Once, Participation
from dperm.gradient.sampling.sampler import Sampler
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import CyclicSampled, Event, Gaussian, SelfComposed
from dperm.release.draws import Draw, Indices, by_coins


@dataclass(frozen=True)
class CyclicPoisson(Sampler, Draw):
    """Every record joins one of `groups` groups, by a coin of its own; step t draws each record of group t mod `groups` with
    probability `sampling_rate`. Add/remove.

    A record is then in steps at least `groups` apart: noise that is correlated over up to `groups` steps costs as much as Poisson
    sampling of as many steps as a group has. Groups are drawn anew where a run begins or goes on after an interruption, which it
    does with the next round.
    """

    sampling_rate: float
    groups: int

    sampling = "cyclic_poisson"
    words = "cyclic Poisson"
    correlates = True
    key: ClassVar[str] = "cyclic"

    def __post_init__(self) -> None:
        check.fraction("sampling_rate", self.sampling_rate)
        object.__setattr__(self, "groups", check.integer("groups", self.groups, minimum=2))

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[CyclicPoisson, int]:
        """With the fewest groups, two."""
        return cls.of_share(batch / public_size, 2), math.ceil(epochs * public_size / batch)

    @classmethod
    def of_share(cls, share: float, groups: int) -> CyclicPoisson:
        """The same with a number of groups, for batches that are expected to be this share of all records. ValueError where a
        group has no more records than a batch."""
        if not share * groups < 1:
            most = f"less than {1 / groups:.3g} of the records, which a group of {groups} has"
            raise ValueError(f"Expected batches of {most}, got {share:.3g}.")
        return cls(share * groups, groups)

    @classmethod
    def largest_batch(cls, public_size: int, unit: PrivacyUnit) -> float:
        return 0.45 * public_size

    @property
    def participation(self) -> Participation:
        return Once(self.groups)

    @property
    def rate(self) -> float:
        return self.sampling_rate

    @property
    def share(self) -> float:
        return self.sampling_rate / self.groups

    @property
    def period(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.groups

    @property
    def reach(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.groups

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        return self.correlated_event(step, first, count)

    def correlated_event(self, step: Gaussian, first: int, count: int) -> Event:
        rounds = -(-(first + count) // self.groups) - first // self.groups
        return SelfComposed(CyclicSampled(self.sampling_rate, step, self.groups), rounds)

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        groups = by_coins(generator, self.groups, records)
        for step in range(steps):
            members = groups[step % self.groups]
            yield members[generator.random(len(members)) < self.sampling_rate]

    def chances(self, step: int, last: Indices) -> Array:
        """Of a record that was drawn before, the rate in turns of its group. Of others the chance that the turn is their group's,
        given that they were in none of the draws before, times the rate."""
        turn = step % self.groups
        passed = np.maximum(-(-(step - np.arange(self.groups)) // self.groups), 0)  # turns of each group that are over
        left = (1 - self.sampling_rate) ** passed.astype(np.float64)
        unseen = self.sampling_rate * left[turn] / left.sum()
        return np.where(last < 0, unseen, np.where(last % self.groups == turn, self.sampling_rate, 0.0))

    def takes_part_at_times(self, step: int, number: int, turn: int) -> bool:
        return self.takes_part(step, turn) and step // self.groups % 2 == turn // self.groups % 2

    def log_ratio(self, drawn: Array) -> Array:
        with np.errstate(divide="ignore"):
            each = np.logaddexp(np.log1p(-self.sampling_rate), np.log(self.sampling_rate) + drawn)
        of_groups = [each[group :: self.groups].sum(axis=0) for group in range(self.groups)]
        return logsumexp(of_groups, axis=0) - np.log(self.groups)
