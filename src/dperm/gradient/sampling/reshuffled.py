"""Reshuffled: every record in one step of each epoch, drawn anew, and never soon after the one before; no amplification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.correlation import Apart, Participation
from dperm.gradient.sampling.fixed_order import AtKnownPlaces
from dperm.release.draws import Indices


@dataclass(frozen=True)
class Reshuffled(AtKnownPlaces):
    """Every record is in one step of each epoch of `batches` steps, at a place that is drawn anew in every epoch, by coins of its
    own, and at least `separation` steps after the one before. Batches mix from epoch to epoch, as they do not in a fixed order.

    *The law.* In the first epoch a place is uniform. Let p be a record's place in an epoch, and `loose` = batches − separation.
    In the next epoch it is admitted from place p − loose on: that is batches − loose = separation steps later. From there on each
    step draws it, until one does, with chance 1/(loose + 1); or 1/(batches − t) in step t, where no more than `loose` steps
    follow, so that the last one takes whoever is left. This is a shuffle buffer of loose + 1 batches, filled in the order of the
    epoch before. With separation 1 it is balls and bins, and with as many steps as an epoch has the fixed order.

    *The participation* holds whatever coins fall. A record is drawn once in each epoch, for it is admitted by the last step at
    the latest (p − loose ≤ batches − 1), where the chance is 1, and is not drawn again. Its steps in consecutive epochs are at
    least `separation` apart, as it is not admitted before; those in others are more than an epoch apart. A place depends on the
    record's own place before and on its own coins: on no other record, not on its number, and not on how many there are.

    *Batches are of one expected size.* Where places in an epoch are uniform, they are in the next. Of `batches` places alike
    min(t + loose + 1, batches) are admitted by step t, and by induction t of them are drawn before it: of those left, which are
    min(loose + 1, batches − t), the coin takes one.

    *After an interruption* a run goes on with the next epoch, and with places that may be nearer than `separation` to those
    before. `Apart.restarts` proves that a record moves no more by strategies of up to `separation` bands; others are refused
    then. Without correlation a record is charged for one step of each epoch, wherever it is.

    Strategies of up to `separation` bands cost the squared length of their largest column for each epoch.
    """

    separation: int

    sampling = "reshuffled"
    words = "reshuffled"
    key: ClassVar[str] = "reshuffled"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "separation", check.integer("separation", self.separation))
        if self.separation > self.batches:
            raise ValueError(f"Expected separation of at most batches = {self.batches}, got {self.separation}.")

    @classmethod
    def of_batches(cls, batches: int) -> Self:
        """With half an epoch, at least, from one step of a record to its next."""
        return cls(batches, batches // 2)

    @property
    def loose(self) -> int:
        """How much earlier in an epoch than in the one before a record may be."""
        return self.batches - self.separation

    @property
    def participation(self) -> Participation:
        return Apart(self.separation, period=self.batches)

    def next_places(self, generator: np.random.Generator, places: Indices) -> Indices:
        tosses = generator.geometric(1 / (self.loose + 1), size=len(places))
        early = np.maximum(places - self.loose, 0) + tosses - 1
        rest = self.separation - 1  # the first of the last loose + 1 steps, which are all alike
        return np.where(early < rest, early, rest + generator.integers(self.loose + 1, size=len(places)))

    def chances(self, step: int, last: Indices) -> Array:
        if step < self.batches:
            return super().chances(step, last)
        place = step % self.batches
        admitted = (last < step - place) & (last <= step - self.separation)
        return np.where(admitted, 1 / min(self.loose + 1, self.batches - place), 0.0)

    def takes_part(self, step: int, turn: int) -> bool:
        """At a late place and an early one by turns: as near to each other as may be, from the first to the second epoch."""
        epoch, place = divmod(step, self.batches)
        early = turn % self.separation
        return place == (early if epoch % 2 else early + self.loose)
