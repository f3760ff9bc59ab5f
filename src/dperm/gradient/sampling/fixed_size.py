"""Batches of one size: drawn without replacement, from a public number of records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dperm import _validate as check
from dperm.gradient.sampling.sampler import Sampler
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import Event, Gaussian, Relation, SampledWithoutReplacement, SelfComposed
from dperm.release.draws import Draw, Indices


@dataclass(frozen=True)
class FixedSize(Sampler, Draw):
    """`size` of `records` records, uniformly, in every step anew. Replace-one, where the number of records is public.

    Replacing a record moves a sum by up to twice its bound: for the same noise this is worth less than Poisson sampling.
    """

    size: int
    records: int

    sampling = "fixed_size"
    words = "fixed size, without replacement"
    key: ClassVar[str] = "fixed"
    whole_batches = True
    grouped = True
    independent_records: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("size", "records"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        if self.size > self.records:
            raise ValueError(f"Expected size of at most records = {self.records}, got {self.size}.")

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[FixedSize, int]:
        steps = math.ceil(epochs / min(1.0, batch / public_size))
        return cls(min(check.integer("expected_batch_size", batch), public_size), public_size), steps

    @classmethod
    def refuse_private_size(cls) -> None:
        raise ValueError("Expected relation='replace_one' with sampling='fixed_size': its share tells how many records are.")

    @property
    def rate(self) -> float:
        return self.size / self.records

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        if step.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for batches of fixed size: their share tells how many records are.")
        return SelfComposed(SampledWithoutReplacement(self.rate, step) if self.size < self.records else step, count)

    def refuse(self, records: int) -> None:
        if records != self.records:
            raise ValueError(f"Expected {self.records} records, as the sampler states, got {records}.")

    def room(self, drawn: Indices, more: int) -> Indices:
        return drawn[: max(0, self.size - more)]

    def without(self, drawn: Indices, numbers: Indices) -> Indices:
        others = np.setdiff1d(drawn, numbers)
        unused = np.setdiff1d(np.arange(self.records), np.union1d(drawn, numbers))
        return np.union1d(others, unused[: len(drawn) - len(others)]).astype(np.intp)

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        for _ in range(steps):
            yield np.sort(generator.choice(records, self.size, replace=False, shuffle=False)).astype(np.intp)
