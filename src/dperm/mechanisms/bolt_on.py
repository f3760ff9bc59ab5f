"""Bolt-on: noise added once, to what stochastic gradient descent ends with (Wu, Li, Kumar, Chaudhuri, Jha, Naughton 2017)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.mechanisms.base import Budget, Mechanism
from dperm.mechanisms.extremes import Extreme, across_a_third_class, pulled_along
from dperm.mechanisms.method import Method, one_for_each
from dperm.mechanisms.output import OutputPerturbation
from dperm.mechanisms.without_records import ENTRY, WithoutRecords
from dperm.objectives import LinearObjective, PublicFacts, Records
from dperm.objectives.constraints import project_l2_ball
from dperm.privacy import Event, Gaussian, PureDP, Relation
from dperm.release import Channel, GaussianNoise, PureNoise

_UNIT = 2.0**-53


@dataclass(frozen=True, kw_only=True)
class BoltOnPerturbation(Mechanism):
    """θ_T + noise, θ_T after `epochs` passes over the records in a public order, in batches of `batch_size`. Replace-one: their
    number is public.

    With `learning_rate` η ≤ 2/β it is constant, and neighbours end within 2·epochs·L·η/batch_size of each other (Wu et al.,
    Lemma 6 and §3.2.3). None: step t is min(1/β, 1/(γt)), γ = strong_convexity/n and β with it, and they end within 2L/(γn)
    (Lemma 8), *not* divided by the batch's size: a pass takes that many steps fewer, each so much longer. L is the data loss's.
    A last batch that is not full is divided by batch_size, too. Exactly one of `noise_multiplier` and `pure_epsilon`.
    """

    epochs: check.Count = 10
    batch_size: check.Count = 50
    learning_rate: check.Scale | None = None
    strong_convexity: check.ScaleOrZero = 0.0
    noise_multiplier: float | None = None
    pure_epsilon: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate is None and not self.strong_convexity:
            raise ValueError("Expected strong_convexity > 0 where no learning_rate is stated: steps fall as 1/(γt) then.")
        if (self.noise_multiplier is None) == (self.pure_epsilon is None):
            raise ValueError("Expected exactly one of noise_multiplier and pure_epsilon.")

    @property
    def name(self) -> str:
        return "Bolt-on output perturbation" + (" (pure)" if self.pure_epsilon else "")

    @property
    def paper(self) -> str:
        return "Wu, Li, Kumar, Chaudhuri, Jha, Naughton 2017; noise after Balle & Wang 2018"

    def rates(self, facts: PublicFacts, records: int) -> Array:
        """(steps,) step sizes. ValueError for a constant one above 2/β, where steps may bring neighbours further apart."""
        modulus = self.strong_convexity / max(1, records)
        smoothness = facts.smoothness + modulus
        steps = self.epochs * -(-records // self.batch_size)
        if self.learning_rate is None:
            return np.minimum(1 / smoothness, 1 / (modulus * np.arange(1, steps + 1)))
        if not self.learning_rate <= 2 / smoothness:
            raise ValueError(f"Expected learning_rate of at most 2/β = {2 / smoothness:.6g}, got {self.learning_rate!r}.")
        return np.full(steps, self.learning_rate)

    def sensitivity(self, facts: PublicFacts, records: int) -> float:
        """Distance between where neighbours end, with what rounding may add: steps bring them no further apart."""
        rates, size = self.rates(facts, records), self.batch_size
        if self.learning_rate is None:
            apart = 2 * facts.lipschitz / self.strong_convexity
        else:
            apart = 2 * self.epochs * facts.lipschitz * self.learning_rate / size
        reach = min(facts.radius or math.inf, facts.lipschitz * float(rates.sum()))  # no θ is longer
        # predictions are sums of products, one for each parameter, and so is the length that a projection divides by
        slopes = (facts.smoothness * reach * (facts.dimension + 16) + facts.lipschitz * (size + 16)) * float(rates.sum())
        return apart * (1 + 2.0**-40) + 2 * 4 * _UNIT * (slopes + reach * (facts.dimension / 2 + 16) * len(rates))

    def event(self, facts: PublicFacts) -> Event:
        _refuse_other_facts(facts)
        if facts.public_size is not None:
            self.rates(facts, facts.public_size)  # refused here as soon as it is known, and by `refuse` before any charge
        if self.pure_epsilon is not None:
            return PureDP(self.pure_epsilon, facts.relation)
        assert self.noise_multiplier is not None
        return Gaussian(self.noise_multiplier, facts.relation)

    def train(self, objective: LinearObjective, records: Records, channel: Channel) -> tuple[Array, dict[str, Any]]:
        theta, shrink = np.zeros(objective.dimension), self.strong_convexity / max(1, len(records))
        batches = records.stream(self._order(len(records)))
        for rate, parts in zip(self.rates(objective.facts, len(records)), batches, strict=True):
            gradient = shrink * theta
            for batch in parts:
                gradient = gradient + objective.plain_gradient(theta, batch) / self.batch_size
            theta = project_l2_ball(theta - rate * gradient, objective.radius)
        sensitivity = self.sensitivity(objective.facts, len(records))
        if self.pure_epsilon is not None:
            theta = channel.release(theta, PureNoise(sensitivity, self.pure_epsilon, what="last iterate"))
            alone = WithoutRecords(sensitivity / self.pure_epsilon, objective.dimension)
            return theta, {"sensitivity": sensitivity, ENTRY: alone.to_dict()}
        assert self.noise_multiplier is not None
        noise_std = self.noise_multiplier * sensitivity
        theta = channel.release(theta, GaussianNoise(sensitivity, self.noise_multiplier, what="last iterate"))
        return theta, {"sensitivity": sensitivity, "noise_std": noise_std, ENTRY: WithoutRecords(noise_std).to_dict()}

    def _order(self, records: int) -> Iterator[NDArray[np.intp]]:
        """Batches of each pass's order: pseudo-random, and public."""
        draws = np.random.default_rng(records)
        for _ in range(self.epochs):
            order = draws.permutation(records)
            for start in range(0, records, self.batch_size):
                yield np.sort(order[start : start + self.batch_size])

    ordered = True

    def places(self, records: int) -> Sequence[int]:
        batches = list(self._order(records))
        each = -(-records // self.batch_size)
        return sorted({int(batch[0]) for batch in [*batches[:each], *batches[-each:]]})  # of each batch, in two of the orders

    def extremes(self, objective: LinearObjective) -> list[Extreme]:
        # a step that falls must have gone far before the end of the first pass: many others, and the record in the last batch
        others = 399 if self.learning_rate else 3999
        last = list(self._order(others + 1))[-(-(others + 1) // self.batch_size) - 1]
        place = int(last[0])
        return across_a_third_class(objective, others, place) or pulled_along(objective, others, [place])

    def refuse(self, objective: LinearObjective, records: int) -> None:
        self.rates(objective.facts, records)  # which may be another number than was stated

    released_kinds = frozenset({"last iterate"})
    curved = False

    def vectorises(self, objective: LinearObjective) -> bool:
        return True

    def settings(self) -> Mapping[str, Any]:
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "strong_convexity": self.strong_convexity,
        }


def _refuse_other_facts(facts: PublicFacts) -> None:
    if facts.relation is not Relation.REPLACE_ONE:
        raise ValueError("Expected relation='replace_one' for Bolt-on: a record more or less moves all others to other batches.")
    if not facts.smoothness < math.inf or not facts.lipschitz < math.inf:
        raise ValueError("Expected a smooth loss of bounded slope for Bolt-on, whose steps bring others' neighbours apart.")


@dataclass(frozen=True, kw_only=True, repr=False)
class BoltOn(Method):
    """Bolt-on output perturbation, of SGD in `epochs` passes. Replace-one.

    With `strong_convexity` and no `learning_rate` steps fall as 1/(γt); with neither the rate is 1/√n, as in the paper, or 2/β.
    """

    epochs: check.Count = 10
    batch_size: check.Count = 50
    learning_rate: check.Positive | None = None
    strong_convexity: check.Positive | None = None

    key = "bolt-on"
    title = "Bolt-on"
    joint = True
    pure = True

    @property
    def needs_size(self) -> bool:
        return self.learning_rate is None and self.strong_convexity is None

    def size_released(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        _refuse_other_facts(facts)
        return super().size_released(facts, budget, models)

    def calibrated(self, facts: PublicFacts, budget: Budget, models: int) -> Mechanism:
        _refuse_other_facts(facts)
        noise = OutputPerturbation.calibrate(
            facts, check.positive("epsilon", budget.epsilon), budget.delta, strong_convexity=1.0, copies=models
        )
        rate = self.learning_rate
        if rate is None and self.strong_convexity is None:
            assert facts.public_size is not None
            rate = min(1 / math.sqrt(facts.public_size), 2 / facts.smoothness)
        part = self.made(
            BoltOnPerturbation,
            budget,
            learning_rate=rate,
            noise_multiplier=noise.noise_multiplier,
            pure_epsilon=noise.pure_epsilon,
        )
        part.event(facts)  # refused here, before anything is built on it
        return one_for_each(part, models)
