"""For mechanisms that need the number of records while it is private: release it with noise, then choose the rest by it."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm.gradient import Plan
from dperm.mechanisms.base import Budget, Mechanism, Stage
from dperm.mechanisms.gradient import GradientPerturbation
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.losses import admit_classes
from dperm.privacy import Assumption, Channel, Composed, Event, FilteredRdp, PrivacyProfile, PureDP
from dperm.privacy.events import chosen_on_the_way
from dperm.privacy.sizing import NOMINAL_SIZES, count_and_profile, noisy_count

__all__ = ["NoisySize"]

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NoisySize(Mechanism):
    """A count with Laplace noise, then the mechanism that `make` gives for the size it gave.

    The second part depends on the first, so `charged`, fixed before both, holds every choice: the part's own event, where no size
    changes it (`known`), or else a privacy profile (`below`) or a Rényi filter (`filtered`).
    """

    count: PureDP
    charged: Event
    make: Callable[[PublicFacts], Mechanism]
    label: str = "mechanism"
    rests_on: tuple[Assumption, ...] = ()
    tried: tuple[int, ...] = ()  # sizes that it is made for before the charge, to see that it can be
    classes: int = 0  # of the one-vs-rest mechanism that `make` gives; 0 where it gives another

    @classmethod
    def known(
        cls, make: Callable[[PublicFacts, PureDP], Mechanism], facts: PublicFacts, budget: Budget, **settings: Any
    ) -> NoisySize:
        """`make(facts, count)` spends what the count leaves of the budget, and costs the same whatever the size."""
        count = noisy_count(_epsilon(budget), facts.relation)
        sized = replace(facts, public_size=NOMINAL_SIZES[0])
        charged = Composed((count, make(sized, count).event(sized)))
        return cls(budget=budget, count=count, charged=charged, make=lambda facts: make(facts, count), **settings)

    @classmethod
    def below(
        cls, plans: Callable[[PublicFacts], Callable[[float], Plan]], facts: PublicFacts, budget: Budget, **settings: Any
    ) -> NoisySize:
        """Gradient perturbation: `plans(facts)` maps a noise multiplier to a plan; its noise is the least that stays below a
        privacy profile."""
        epsilon, delta = _epsilon(budget), budget.delta
        count = noisy_count(epsilon, facts.relation)

        def run(make_plan: Callable[[float], Plan], noise: float) -> Event:
            return make_plan(noise).event(facts.relation)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about sizes that nobody has
            runs = [functools.partial(run, plans(replace(facts, public_size=size))) for size in NOMINAL_SIZES]
        charged = count_and_profile(count, epsilon, delta, runs)
        profile = charged.events[-1]
        assert isinstance(profile, PrivacyProfile)

        def make(facts: PublicFacts) -> Mechanism:
            return GradientPerturbation.calibrate(plans(facts), facts, epsilon, delta, below=profile)

        return cls(budget=budget, count=count, charged=charged, make=make, **settings)

    @classmethod
    def filtered(
        cls, make: Callable[[PublicFacts], Mechanism], filter: FilteredRdp, budget: Budget, **settings: Any
    ) -> NoisySize:
        """The mechanism spends what the count leaves of `filter`, by itself."""
        count = noisy_count(_epsilon(budget), filter.relation)
        return cls(budget=budget, count=count, charged=filter, make=make, tried=(1,), **settings)

    @property
    def name(self) -> str:
        return f"{self.label}, number of records released with noise"

    @property
    def paper(self) -> str:
        return "Dwork, McSherry, Nissim, Smith 2006 (Laplace noise), then the mechanism named"

    def event(self, facts: PublicFacts) -> Event:
        if facts.relation is not self.count.relation:
            raise ValueError(f"Expected facts under {self.count.relation}, got {facts.relation}.")
        return self.charged

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        on_the_way = chosen_on_the_way(self.charged)
        if on_the_way:
            channel.allow(self.count)
        noisy = channel.release_pure(np.array([float(len(records))]), 1.0, self.count.epsilon)
        sized, mechanism = self._sized(objective, noisy)
        part = mechanism.event(sized.facts)
        if on_the_way and not chosen_on_the_way(part):
            channel.allow(part)
        theta, trace = mechanism.train(sized, records, channel)
        return theta, {"noisy_size": sized.public_size, "mechanism": mechanism.name, **mechanism.settings(), **trace}

    def _sized(self, objective: LinearObjective, noisy: Array) -> tuple[LinearObjective, Mechanism]:
        """What runs after this release of the number of records."""
        sized = replace(objective, public_size=max(1, round(float(noisy[0]))))  # and the limit on sizes that was admitted
        return sized, self.made_for(sized.facts)

    @property
    def target_classes(self) -> int:
        return self.classes

    def stages(self, objective: LinearObjective, records: Records, released: Sequence[Array], first: int = 0) -> list[Stage]:
        sized, mechanism = self._sized(objective, released[first])
        return mechanism.stages(sized, records, released, first + 1)

    def made_for(self, facts: PublicFacts) -> Mechanism:
        """What runs after the release of the size that `facts` state."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a warning that depends on data after the charge would be one more output
            return self.make(facts)

    def admit(self, objective: LinearObjective, records: Records) -> Records:
        for size in self.tried:  # what cannot be made must not fail after the charge
            self.made_for(replace(objective, public_size=size).facts)
        return super().admit(objective, records)

    def most_records(self, facts: PublicFacts) -> int | None:
        return facts.size_limit

    def admit_targets(self, objective: LinearObjective, targets: Array) -> Array:
        return admit_classes(targets, self.classes) if self.classes else super().admit_targets(objective, targets)

    def assumptions(self, facts: PublicFacts) -> Sequence[Assumption]:
        return self.rests_on

    def settings(self) -> Mapping[str, Any]:
        return {"size_epsilon": self.count.epsilon}


def _epsilon(budget: Budget) -> float:
    return check.positive("epsilon", budget.epsilon)
