"""Rows of persons, drawn each by itself: a step sees some rows of a person, mostly one or none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.gradient.sampling.poisson import Poisson
from dperm.gradient.sampling.sampler import Sampler
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import Event, Gaussian, Relation, RowsSampled, SelfComposed
from dperm.release import Channel
from dperm.release.draws import Draw, Indices


@dataclass(frozen=True)
class PoissonRows(Sampler, Draw):
    """Each row independently with probability `sampling_rate`, its gradient bounded by itself; a person has at most `rows`.

    What a person adds is as long as the number of rows that were drawn: binomial, and charged as a mixture (Ganesh 2024; Charles
    and others 2024). Add/remove; rows count alike, so that persons with more of them count for more. Where persons are drawn
    (`Poisson`), each counts once: docs/persons.md says which is better when.
    """

    sampling_rate: float
    rows: int

    sampling = "rows"
    words = "Poisson, rows"
    key: ClassVar[str] = "rows"
    grouped = True
    by_rows = True

    def __post_init__(self) -> None:
        check.fraction("sampling_rate", self.sampling_rate)
        object.__setattr__(self, "rows", check.integer("rows", self.rows, minimum=2))

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[PoissonRows, int]:
        rows = check.integer("max_rows_per_unit", unit.max_rows, minimum=2)
        size = cls.drawn_from(public_size, unit)
        if size <= batch:
            raise ValueError(f"Expected expected_batch_size below public_size·max_rows_per_unit = {size} rows, got {batch:g}.")
        return cls(batch / size, rows), math.ceil(epochs * size / batch)

    @classmethod
    def largest_batch(cls, public_size: int, unit: PrivacyUnit) -> float:
        return cls.drawn_from(public_size, unit) / 1.5

    @property
    def slots(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rows

    @property
    def rate(self) -> float:
        return self.sampling_rate

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        if step.relation is not Relation.ADD_OR_REMOVE_ONE:
            raise ValueError("Expected relation='add_or_remove_one' for rows that are drawn by themselves; draw persons.")
        return SelfComposed(RowsSampled(self.sampling_rate, step, self.rows), count)

    def streamed(self, channel: Channel, records: Any, steps: int) -> Iterator[Any]:
        return records.stream_rows(self.draws(channel, len(records), steps))

    def indices(self, generator: np.random.Generator, records: int, steps: int) -> Iterator[Indices]:
        return Poisson(self.sampling_rate).indices(generator, records * self.rows, steps)

    def tables(self, generator: np.random.Generator, trials: int, records: int, steps: int) -> Iterator[NDArray[np.bool_]]:
        return Poisson(self.sampling_rate).tables(generator, trials, records * self.rows, steps)
