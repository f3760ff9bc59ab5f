"""Events on a random part of the records."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events.event import Event, Paid, Relation, plain_number, relation_of, sub_event
from dperm.privacy.events.noise import Gaussian, gaussian_within

#: Noise of sampled events beyond which accountants take their finest grids, and nobody trains.
_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e7


#: Samples rarer than that, and noise less than that, make losses of sizes far apart, which more points must hold.
_RARE, _LITTLE_NOISE = 1e-4, 0.7

#: Losses of many rows spread over more points the further noise is below that.
_SPREADING_NOISE = 0.1


def _cost(event: Event, rate: float = 1.0) -> float:
    """The cost of a sample of this event at this rate: see `Event.accounting_cost`."""
    if not isinstance(event, Gaussian):
        return 1.0
    if not _LEAST_NOISE <= event.noise_multiplier <= _MOST_NOISE:
        return math.inf
    rare = 5.0 if rate < _RARE else 1.0
    return rare * (3.0 if rate < _RARE and event.noise_multiplier < _LITTLE_NOISE else 1.0)


@dataclass(frozen=True)
class PoissonSampled(Event):
    """`event` on a sample that holds each record independently with probability `rate`."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        plain_number(self, "rate", functools.partial(check.fraction, one=True))
        sub_event("event", self.event)

    @property
    def relation(self) -> Relation | None:
        return relation_of(self.event)

    @property
    def pays_for(self) -> Paid | None:
        inner = self.event.pays_for
        if inner is None or inner.kind != "gaussian" or inner.rate < 1.0:
            return None
        return inner._replace(rate=self.rate, draw="poisson")

    @property
    def accounting_cost(self) -> float:
        return _cost(self.event, self.rate)

    def sequence(self) -> Iterable[tuple[Event, int]]:
        return ((self.event if self.rate == 1.0 else self, 1),)


@dataclass(frozen=True)
class CyclicSampled(Event):
    """One round of `groups` noisy steps, each on a Poisson sample at `rate` of one of as many groups of records.

    Each record is in one group throughout a run, whatever the others are. Once it is drawn, it moves that step and up to
    `groups` − 1 that follow it; over all of these the squared lengths of its movements add up to no more than one, in units of
    what the noise of `event` is measured in. Then the steps of a run are no less private than one Poisson-sampled Gaussian for
    each round, though their sums are correlated (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization", Theorem
    4). Add/remove.
    """

    rate: float
    event: Gaussian
    groups: int

    def __post_init__(self) -> None:
        plain_number(self, "rate", check.fraction)
        gaussian_within(self.event, Relation.ADD_OR_REMOVE_ONE, "cyclic sampling")
        object.__setattr__(self, "groups", check.integer("groups", self.groups, minimum=2))

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.event.noise_multiplier, self.rate, "cyclic")

    @property
    def releases(self) -> int:
        return self.groups

    @property
    def whole(self) -> PoissonSampled:
        return PoissonSampled(self.rate, self.event)

    @property
    def accounting_cost(self) -> float:
        return _cost(self.event, self.rate)


@dataclass(frozen=True)
class RowsSampled(Event):
    """A Gaussian on a sum over rows, each in it independently with probability `rate`; a person has at most `rows`.

    The noise of `event` is in units of what all rows of a person together can move. Add/remove.
    """

    rate: float
    event: Gaussian
    rows: int

    def __post_init__(self) -> None:
        plain_number(self, "rate", check.fraction)
        gaussian_within(self.event, Relation.ADD_OR_REMOVE_ONE, "sampling of rows")
        object.__setattr__(self, "rows", check.integer("rows", self.rows))

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid | None:
        return self.event.pays_for._replace(rate=self.rate, draw="rows")

    @property
    def accounting_cost(self) -> float:
        mean = self.rows * self.rate
        parts = min(self.rows, mean + 9.2 * math.sqrt(mean) + 28)  # numbers of rows met with a chance of 1e-18 (Bernstein)
        return _cost(self.event, self.rate) * (1 + parts * max(1.0, _SPREADING_NOISE / self.event.noise_multiplier) / 20)


@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """A Gaussian on a Poisson sample at `rate`, of which `capacity` records chosen uniformly are kept where there are more.

    No data set has more than `largest` records. With a chance of at most P(Binomial(largest, rate) > capacity) this is not
    the Gaussian on the whole sample, which is what is accounted for.
    """

    rate: float
    event: Gaussian
    capacity: int
    largest: int

    def __post_init__(self) -> None:
        plain_number(self, "rate", check.fraction)
        gaussian_within(self.event, None, "truncated Poisson sampling")
        for name in ("capacity", "largest"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.event.noise_multiplier, self.rate, "truncated")

    @property
    def accounting_cost(self) -> float:
        return _cost(self.event, self.rate)

    @property
    def astray(self) -> float:
        return self.overflow(self.rate, self.capacity, self.largest)

    @staticmethod
    def overflow(rate: float, capacity: int, largest: int) -> float:
        """Upper bound on P(Binomial(largest, rate) > capacity) (Chernoff)."""
        if capacity >= largest:
            return 0.0
        more, mean = capacity + 1, largest * rate
        if more <= mean:
            return 1.0
        exponent = more * math.log(more / mean)
        if more < largest:
            exponent += (largest - more) * math.log1p((mean - more) / (largest * (1 - rate)))
        return min(1.0, math.exp(-exponent) * (1 + 1e-6) + 1e-300)


@dataclass(frozen=True)
class SampledWithoutReplacement(Event):
    """A Gaussian on a sample of fixed size, `rate` of a public number of records, drawn uniformly. Replace-one."""

    rate: float
    event: Gaussian

    def __post_init__(self) -> None:
        plain_number(self, "rate", check.fraction)
        gaussian_within(self.event, Relation.REPLACE_ONE, "sampling without replacement")

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid:
        return Paid("gaussian", self.event.noise_multiplier, self.rate, "fixed")

    @property
    def accounting_cost(self) -> float:
        return _cost(self.event, self.rate)


@dataclass(frozen=True)
class RandomAllocation(Event):
    """`steps` Gaussians, each record in `num_selected` of them, which are drawn uniformly and by themselves (balls and bins).
    Add/remove.

    Several are accounted for as one in each of as many blocks of steps, see `dperm.privacy.accountants.random_allocation`:
    balls and bins in that many epochs of about steps ÷ num_selected steps cost the same.
    """

    steps: int
    event: Gaussian
    num_selected: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", check.integer("steps", self.steps, minimum=2))
        object.__setattr__(self, "num_selected", check.integer("num_selected", self.num_selected))
        if self.num_selected > self.steps:
            raise ValueError(f"Expected num_selected of at most steps = {self.steps}, got {self.num_selected}.")
        gaussian_within(self.event, Relation.ADD_OR_REMOVE_ONE, "random allocation")

    @property
    def relation(self) -> Relation:
        return self.event.relation

    @property
    def pays_for(self) -> Paid | None:
        if self.num_selected > 1:  # its parts do
            return None
        return Paid("gaussian", self.event.noise_multiplier, 1 / self.steps, "allocated")

    @property
    def releases(self) -> int:
        return self.steps

    def sequence(self) -> Iterable[tuple[Event, int]]:
        if self.num_selected == 1:
            return super().sequence()
        size, larger = divmod(self.steps, self.num_selected)
        blocks = {size + 1: larger, size: self.num_selected - larger}
        return [(self.event if steps == 1 else RandomAllocation(steps, self.event), n) for steps, n in blocks.items() if n]

    @property
    def accounting_cost(self) -> float:
        return 4 * _cost(self.event) + 2 * math.log2(self.steps)  # sums of two and of twice as many, on finer and finer grids
