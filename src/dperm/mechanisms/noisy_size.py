"""For mechanisms that need the number of records while it is private: release it with noise, then choose the rest by it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism, Stage
from dperm.mechanisms.extremes import Extreme
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.privacy import Assumption, Event, FilteredRdp, PureDP
from dperm.release import Channel
from dperm.release.sizing import NOMINAL_SIZES, CountFirst


@dataclass(frozen=True, kw_only=True)
class NoisySize(Mechanism):
    """A count with Laplace noise, then the mechanism that `make` gives for the size it gave. What holds it: `CountFirst`."""

    first: CountFirst
    make: Callable[[PublicFacts], Mechanism]
    example: Mechanism  # of those that `make` gives: of the same types, whatever the size
    label: str = "mechanism"
    rests_on: tuple[Assumption, ...] = ()
    tried: tuple[int, ...] = ()  # sizes that it is made for before the charge, to see that it can be

    @classmethod
    def known(
        cls, make: Callable[[PublicFacts, PureDP], Mechanism], facts: PublicFacts, budget: Budget, **settings: Any
    ) -> NoisySize:
        """`make(facts, count)` spends what the count leaves of the budget, and costs the same whatever the size."""
        sized = replace(facts, public_size=NOMINAL_SIZES[0])
        first = CountFirst.known(_epsilon(budget), facts.relation, lambda count: make(sized, count).event(sized))
        example = make(sized, first.count)
        return cls(budget=budget, first=first, make=lambda facts: make(facts, first.count), example=example, **settings)

    @classmethod
    def below(
        cls, make: Callable[[PublicFacts, float], Mechanism], facts: PublicFacts, budget: Budget, **settings: Any
    ) -> NoisySize:
        """`make(facts, noise multiplier)`, with the least noise that stays below a privacy profile."""

        def run(facts: PublicFacts, noise: float) -> Event:
            return make(facts, noise).event(facts)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes that nobody has
            runs = [functools.partial(run, replace(facts, public_size=size)) for size in NOMINAL_SIZES]
            first = CountFirst.profiled(_epsilon(budget), budget.delta, facts.relation, runs)
            example = make(replace(facts, public_size=NOMINAL_SIZES[0]), 1.0)

        def part(facts: PublicFacts) -> Mechanism:
            return make(facts, first.noise_below(functools.partial(run, facts)))

        return cls(budget=budget, first=first, make=part, example=example, **settings)

    @classmethod
    def filtered(
        cls, make: Callable[[PublicFacts], Mechanism], facts: PublicFacts, filter: FilteredRdp, budget: Budget, **settings: Any
    ) -> NoisySize:
        """The mechanism spends what the count leaves of `filter`, by itself."""
        first = CountFirst.within(filter, _epsilon(budget))
        example = make(replace(facts, public_size=NOMINAL_SIZES[0]))
        return cls(budget=budget, first=first, make=make, example=example, tried=(1,), **settings)

    @property
    def name(self) -> str:
        return f"{self.label}, number of records released with noise"

    @property
    def paper(self) -> str:
        return "Dwork, McSherry, Nissim, Smith 2006 (Laplace noise), then the mechanism named"

    def event(self, facts: PublicFacts) -> Event:
        if facts.relation is not self.first.count.relation:
            raise ValueError(f"Expected facts under {self.first.count.relation}, got {facts.relation}.")
        return self.first.charged

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        size = self.first.release(channel, len(records))
        sized, mechanism = self._sized(objective, size)
        if set(mechanism.strangers()) - set(self.strangers()):
            raise ValueError("What was made for this number of records has parts that the certificate does not name.")
        self.first.admit(channel, mechanism.event(sized.facts))
        theta, trace = mechanism.train(sized, records, channel)
        return theta, {"noisy_size": size, "mechanism": mechanism.name, **mechanism.settings(), **trace}

    def _sized(self, objective: LinearObjective, size: int) -> tuple[LinearObjective, Mechanism]:
        """What runs after the number of records was released as `size`."""
        sized = replace(objective, public_size=size)  # and the limit on sizes that was admitted
        return sized, self.made_for(sized.facts)

    grouped = True  # the number is that of persons; and what runs says so itself
    released_kinds = frozenset({"number of records"})
    by_parts = True

    @property
    def target_classes(self) -> int:
        return self.example.target_classes

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        sized, mechanism = self._sized(objective, self.first.released(released[first]))
        return mechanism.stages(sized, records, released, first + 1)

    def places(self, records: int) -> Sequence[int]:
        return self.example.audited_places(records)

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        found: list[Extreme] = []
        for _ in range(3):  # a size that fits what runs after it
            size = max(1, len(found[0].targets)) if found else NOMINAL_SIZES[0]  # the record may be alone
            sized, mechanism = self._sized(objective, size)
            found = mechanism.extremes(sized)
        return found

    def made_for(self, facts: PublicFacts) -> Mechanism:
        """What runs after the release of the size that `facts` state."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that depends on data after the charge would be one more output
            return self.make(facts)

    def refuse(self, objective: LinearObjective, records: int) -> None:
        for size in self.tried:  # what cannot be made must not fail after the charge
            self.made_for(replace(objective, public_size=size).facts)
        super().refuse(objective, records)

    def most_records(self, facts: PublicFacts) -> int | None:
        return facts.size_limit

    def admit_targets(self, objective: LinearObjective, targets: Array) -> Array:
        return self.example.admit_targets(objective, targets)

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return self.rests_on

    def inner(self) -> Sequence[Mechanism]:
        return (self.example,)

    def settings(self) -> Mapping[str, Any]:
        return {"size_epsilon": self.first.count.epsilon}


def _epsilon(budget: Budget) -> float:
    return check.positive("epsilon", budget.epsilon)
