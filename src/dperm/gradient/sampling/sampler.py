"""Samplers: which records a step sees. Each owns the amplification its draws justify, and no other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dperm._family import by_word, ours
from dperm.gradient.correlation import Participation, Periodic
from dperm.objectives import PrivacyUnit
from dperm.privacy.events import BoundedSquaresGaussian, Event, Gaussian, SelfComposed
from dperm.release import Channel
from dperm.release.draws import Draw


@dataclass(frozen=True)
class Sampler(ABC):
    """A public rule for which records each step sees. Those that draw derive from `Draw`, too, which is how they draw."""

    sampling: ClassVar[str] = ""  # `sampling=` of methods and recipes; empty: there is no word for it
    words = "by a rule of its own"  # how records are drawn, as plans call it
    period = 1  # steps that are charged together

    whole_batches = False  # whether batches have a size, and not only an expected one
    by_rows = False  # whether rows of persons are drawn, each by itself
    slots = 1  # rows of a person that are drawn each by itself
    correlates = False  # whether noise of its steps may be correlated
    grouped = False  # whether its proof holds of persons with several rows, each of them one record

    @property
    def needs_size(self) -> bool:
        """Whether the number of records must be known, not only released with noise: where some are refused."""
        return type(self).refuse is not Sampler.refuse

    @property
    @abstractmethod
    def rate(self) -> float:
        """Probability, as it is charged, of a record being in one draw that it may be in."""

    @property
    def share(self) -> float:
        """Expected share of all records in one draw."""
        return self.rate

    @property
    def participation(self) -> Participation:
        """In which of the steps that are charged together a record may be: of samplers whose steps' noise may be correlated."""
        raise self.not_proved()

    @abstractmethod
    def event(self, step: Gaussian, first: int, count: int) -> Event:
        """What `count` steps from step `first` on cost, given the event of a step on the records that it drew."""

    def correlated_event(self, step: Gaussian, first: int, count: int) -> Event:
        """The same of steps whose noise is correlated. The noise of `step` is in units of what a record moves all of those
        releases together that see it in the steps of `participation`."""
        raise self.not_proved()

    def not_proved(self) -> ValueError:
        """For those who ask for correlated noise where nothing is proved of it."""
        known = ", ".join(word for word, kind in samplings().items() if kind.correlates)
        return ValueError(f"Expected sampling={known} or full batches with correlated noise, got {self.words} sampling.")

    @classmethod
    def for_batches(cls, public_size: int, batch: float, epochs: float, unit: PrivacyUnit) -> tuple[Sampler, int]:
        """The sampler of batches of an expected size, and the number of steps in which it passes over the data `epochs` times.

        unit : what a record is: a row, or a person of several.

        ValueError for batches that it cannot draw.
        """
        raise ValueError(f"Expected a sampler of your own to be handed to a plan: {cls.__name__} has no rule for its settings.")

    @classmethod
    def drawn_from(cls, public_size: int, unit: PrivacyUnit) -> int:
        """How many it draws from: records, or rows of persons."""
        return public_size * unit.rows if cls.by_rows else public_size

    @classmethod
    def largest_batch(cls, public_size: int, unit: PrivacyUnit) -> float:
        """Expected batches up to this size can be drawn, whatever else is said."""
        return float("inf")

    @classmethod
    def refuse_private_size(cls) -> None:
        """ValueError where the number of records cannot be private."""
        return

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
    correlates = True

    @property
    def participation(self) -> Participation:
        return Periodic(1)

    def correlated_event(self, step: Gaussian, first: int, count: int) -> Event:
        return BoundedSquaresGaussian(step.noise_multiplier, count, 1.0, step.relation)

    @property
    def rate(self) -> float:
        return 1.0

    def event(self, step: Gaussian, first: int, count: int) -> Event:
        return SelfComposed(step, count)

    def draws(self, channel: Channel, records: int, steps: int) -> Iterator[Any]:
        for _ in range(steps):
            yield None


def samplings() -> dict[str, type[Sampler]]:
    """dperm's samplers by the word for each in `sampling=`."""
    return by_word(Sampler, "sampling")
