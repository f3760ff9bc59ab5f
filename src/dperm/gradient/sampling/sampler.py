"""Samplers: which records a step sees. Each owns the amplification its draws justify, and no other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from dperm._family import ours
from dperm.privacy.events import Event, Gaussian, SelfComposed
from dperm.release import Channel
from dperm.release.draws import Draw


@dataclass(frozen=True)
class Sampler(ABC):
    """A public rule for which records each step sees. Those that draw derive from `Draw`, too, which is how they draw."""

    words = "by a rule of its own"  # how records are drawn, as plans call it
    period = 1  # steps that are charged together
    needs_size = False  # whether the number of records must be known, not only released with noise

    by_rows = False  # whether rows of persons are drawn, each by itself
    slots = 1  # rows of a person that are drawn each by itself
    grouped = False  # whether its proof holds of persons with several rows, each of them one record

    @property
    @abstractmethod
    def rate(self) -> float:
        """Probability of a record being in one draw."""

    @abstractmethod
    def event(self, step: Gaussian, first: int, count: int) -> Event:
        """What `count` steps from step `first` on cost, given the event of a step on the records that it drew."""

    def refuse(self, records: int) -> None:
        """ValueError, before any charge, for a number of records that this cannot draw from."""
        return

    def draws(self, channel: Channel, records: int, steps: int) -> Iterator[Any]:
        """Sorted record indices for each step; None means every record."""
        self.refuse(records)
        return channel.draw(self._own(), records, steps)

    def streamed(self, channel: Channel, records: Any, steps: int) -> Iterator[Any]:
        """The records of each step, in batches that fit memory."""
        return records.stream(self.draws(channel, len(records), steps))

    def _own(self) -> Draw:
        """As the nearest of dperm's own classes draws: what a stranger's changes about it has no proof."""
        kind: Any = next(kind for kind in type(self).__mro__ if ours(kind))
        own = kind(**{field.name: getattr(self, field.name) for field in fields(kind)})
        assert isinstance(own, Draw)
        return own


@dataclass(frozen=True)
class FullBatch(Sampler):
    """Every record, every step: no amplification."""

    words = "full batch"
    grouped = True

    @property
    def rate(self) -> float:
        return 1.0

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        return SelfComposed(step, count)

    def draws(self, channel: Channel, records: int, steps: int) -> Iterator[Any]:
        for _ in range(steps):
            yield None
