"""The plan, sampler × query × bounding × noise × correlation × post × update, and its noise schedules. What runs is what is
charged."""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from array_api_compat import array_namespace

from dperm import _validate as check
from dperm._family import states
from dperm._types import Array
from dperm.gradient.bounding import Bounding
from dperm.gradient.correlation import LARGEST_KEPT, BestFor, Independent, Memory, Strategy
from dperm.gradient.policy import BoundedSum, Gradients, Policy
from dperm.gradient.post_processing import Identity, Post
from dperm.gradient.query import PerExampleGradient, Query
from dperm.gradient.sampling import Sampler
from dperm.gradient.update import Update
from dperm.privacy.events import Composed, Event, Gaussian, Relation
from dperm.release.grid import Grid

_TRIES = 8  # to find a grid whose rounding is paid for
_KEPT_DEVIATIONS = 16  # of a release's noise, that what is kept of it is cut beyond


class NoisyGradients(Gradients["Plan"]):
    """A `Plan` in progress."""

    def start(self) -> None:
        plan = self.policy
        self.bounding_state = plan.bounding.init()
        self._scale = 1.0 / plan.expected_batch_size
        self._moved = self._released_noise = 0.0
        self._go_on_at(self.step)

    def _go_on_at(self, step: int) -> None:
        """From where a step's draws depend on none before it: steps on the way there are passed over, too. Records have new
        places then, so that no noise of earlier steps may be taken back."""
        plan = self.policy
        plan.refuse_interruption(step)
        self.step = min(plan.steps, step + -step % plan.sampler.period)
        self._batches = plan.sampler.streamed(self.channel, self.records, plan.steps - self.step)
        self._noise = plan.noise.multipliers(plan.steps, self.step)
        self._memory: Memory | None = None
        self._since = self.step

    def skip(self, steps: int) -> None:
        if steps:
            self._go_on_at(self.step + steps)

    @property
    def noise_deviation(self) -> float | None:
        left = self.policy.post.noise_left(self.objective.facts.dimension)
        if left is None or self.step == self._since:
            return None
        return float(self._released_noise * self._deviations[self.step - 1 - self._since] * left)

    @functools.cached_property
    def _deviations(self) -> Array:
        """Of the noise in each step's sum, in units of a release's: a run that begins or goes on has kept no noise of before."""
        return self.policy.strategy.deviations(self.policy.steps)

    def __call__(self, theta: Any) -> Any:
        plan, state = self.policy, self.bounding_state
        noise = next(self._noise)
        total = self.bounded_sum(theta, next(self._batches), plan.bounding, plan.query, noise, state, plan.sampler.slots)
        if plan.correlated:
            released = self._correlated(total, noise)
        else:
            self._moved, released = total.sensitivity, self.released(total, noise, plan.sampler.rate)
        self._released_noise = self._moved * noise * plan.bounding.unit(state) * self._scale
        self.step += 1
        mean = plan.bounding.read(released, state, plan.expected_batch_size)
        mean *= self._scale  # in place: nobody else holds it
        return plan.post.apply(self.regularised(mean, theta))

    def _correlated(self, total: BoundedSum, noise_multiplier: float) -> Any:
        """The sum with noise that later steps partly take back. The noise is in units of what a record moves all releases
        together: of one release alone it moves no more."""
        plan = self.policy
        if self._memory is None:
            moved = plan.joint_sensitivity(total.sensitivity, noise_multiplier, self.channel.source.length(total.value))
            step = Grid.of(moved, noise_multiplier * moved, self.channel.source.length(total.value)).step
            self._memory = plan.strategy.memory(plan.steps, LARGEST_KEPT * step, self.step)
            self._moved = moved
        query = BoundedSum(self._memory.query(total.value), self._moved, f"{total.what} together")
        released = self.released(query, noise_multiplier, plan.sampler.rate)
        self._memory.keep(released)
        return array_namespace(released).astype(released, total.value.dtype, copy=False)

    @property
    def clipping_norm(self) -> float:
        return self.policy.bounding.cut(self.bounding_state)

    def summary(self) -> dict[str, Any]:
        return {"noise_levels": self.policy.noise.levels(self.policy.steps)}

    def public(self) -> dict[str, Any]:
        plan = self.policy
        return {**self.bounding_state, **({"strategy": plan.strategy.fingerprint(plan.steps)} if plan.correlated else {})}

    def restore(self, public: Mapping[str, Any], private: Mapping[str, Any]) -> None:
        plan, state = self.policy, dict(public)
        if plan.correlated and state.pop("strategy", None) != plan.strategy.fingerprint(plan.steps):
            raise ValueError(
                "The checkpoint's strategy for correlated noise has other numbers. Expected the same momentum, weight decay and "
                "learning rates as before; of one that is found numerically, the same machine, too."
            )
        self.bounding_state.update(state)


@dataclass(frozen=True)
class Plan(Policy):
    """A policy for noisy descent: sampler × query × bounding × noise × correlation × post × update, for `steps` steps.

    `public_size` is the number of records as publicly known: the sum over a draw is divided by the constant
    rate·public_size (times the rows of a person, where these are drawn), never by the realised size. The regulariser's step
    follows: Λθ/public_size.
    """

    sampler: Sampler
    bounding: Bounding
    noise: NoiseSchedule
    update: Update
    steps: int
    public_size: int
    post: Post = field(default_factory=Identity)
    query: Query = field(default_factory=PerExampleGradient)
    correlation: Strategy | BestFor = field(default_factory=Independent)

    run = NoisyGradients
    by_parts = True

    def __post_init__(self) -> None:
        check.integer("steps", self.steps)
        check.integer("public_size", self.public_size)
        if sum(count for _, count in self.noise.levels(self.steps)) != self.steps:
            raise ValueError(f"Expected a noise schedule of {self.steps} steps.")
        ends = itertools.accumulate(count for _, count in self.noise.levels(self.steps))
        if any(end % self.sampler.period for end in list(ends)[:-1]):
            raise ValueError(f"Expected one noise level for each {self.sampler.period} steps, which are charged together.")
        if self.correlated:
            self._admit_correlation()

    def _admit_correlation(self) -> None:
        """ValueError for parts that nothing is proved of where noise is correlated."""
        if not self.sampler.correlates or self.sampler.slots > 1:
            raise self.sampler.not_proved()
        if self.longest is None or len(self.noise.levels(self.steps)) > 1:
            raise ValueError(
                "Expected one noise level, and one clipping norm, with correlated noise: its strategy shapes the noise."
            )
        self.strategy.squared_sensitivity(self.sampler.participation, self.steps)  # what it refuses is not charged

    @functools.cached_property
    def strategy(self) -> Strategy:
        """What noise of earlier steps a step takes back."""
        if isinstance(self.correlation, Strategy):
            return self.correlation
        return self.correlation.at(self.sampler.participation, self.update.workload(self.steps, self.sampler.share))

    @property
    def correlated(self) -> bool:
        """Whether later steps take back noise of earlier ones."""
        return self.strategy.kept(self.steps) > 0

    @property
    def paper(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return (self.strategy.paper if self.correlated else self.query.paper) + "; accounting by privacy loss distribution"

    def joint_sensitivity(self, each: float, noise_multiplier: float, size: int) -> float:
        """How far a record moves all those releases of `size` numbers together that are charged together, where it contributes
        vectors no longer than `each`: with what rounding to the grid adds in each of them."""
        participation = self.sampler.participation
        exact = each * math.sqrt(self.strategy.squared_sensitivity(participation, self.steps))
        rows = participation.rows(self.steps, self.strategy.bands(self.steps))
        rounded = self.strategy.rounding(self.steps) * math.sqrt(rows * max(1, size))
        moved = exact
        for _ in range(_TRIES):
            grid = Grid.of(moved, noise_multiplier * moved, size)
            needed = exact + rounded * grid.step
            if grid.sensitivity >= needed:
                if LARGEST_KEPT * grid.step > _KEPT_DEVIATIONS * noise_multiplier * moved:
                    return moved
                break
            moved = needed
        raise ValueError(
            "Expected less noise or fewer bands: in double precision, hardly anything would be kept of a sum, or of its noise."
        )

    @property
    def expected_batch_size(self) -> float:
        return self.sampler.share * self.public_size * self.sampler.slots

    @property
    def noise_multipliers(self) -> tuple[float, float]:
        levels = self.noise.levels(self.steps)
        return levels[0][0], levels[-1][0]

    @property
    def by_shards(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        parts: tuple[Any, ...] = (self.bounding, self.post, self.update, self.query, self.strategy)
        return not self.by_rows and all(part.coordinatewise and states(type(part), "coordinatewise") for part in parts)

    @property
    def resizes(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Not with correlated noise, which is kept for each number, and whose rounding is charged for so many of them."""
        return not self.correlated and not self.anchored

    @property
    def kind(self) -> str:
        words = "full batch" if self.sampler.share == 1 else self.sampler.words
        correlated = "correlated noise" if self.correlated else ""
        return ", ".join(filter(None, (words, self.query.words, correlated)))

    @property
    def rate(self) -> float:
        return self.sampler.share

    @property
    def anchored(self) -> bool:
        return self.query.anchored

    @property
    def needs_size(self) -> bool:
        return self.sampler.needs_size or type(self).refuse_size is not Plan.refuse_size

    @property
    def grouped(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.sampler.grouped and not self.anchored

    @property
    def by_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.sampler.by_rows

    def refuse_size(self, records: int) -> None:
        self.sampler.refuse(records)

    @property
    def trains_on_rows(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.query.trains_on_rows

    @property
    def holds_vectors(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.query.holds_vectors

    def refuse(self, objective: Any) -> None:
        self.query.refuse(objective)
        rows = self.sampler.slots
        if self.sampler.by_rows and objective.facts.unit.max_rows != rows:
            raise ValueError(
                f"Expected max_rows_per_unit={rows}, of which the sampler draws some, got {objective.facts.unit.max_rows}."
            )
        if self.correlated:
            each = rows * self.bounding.sensitivity(objective.facts.relation)
            self.joint_sensitivity(each, self.noise.levels(self.steps)[0][0], objective.facts.dimension)

    @property
    def continues(self) -> bool:
        if not self.correlated:
            return True
        return self.strategy.restarts(self.steps) and self.sampler.participation.restarts(self.strategy.bands(self.steps))

    @property
    def vectorises(self) -> bool:
        return self.bounding.vectorises

    @property
    def tells_noise(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.post.noise_left(1) is not None

    @property
    def released_kinds(self) -> frozenset[str]:
        return frozenset({f"{self.query.what} together" if self.correlated else self.query.what})

    @property
    def longest(self) -> float | None:
        return None if self.bounding.init() else self.bounding.bound

    def event(self, relation: Relation, start: int = 0, stop: int | None = None) -> Event:
        """What the whole run costs under `relation`, or its steps from `start` up to, not including, `stop`."""
        stop = self.steps if stop is None else stop
        event = self.sampler.correlated_event if self.correlated else self.sampler.event
        parts: list[Event] = []
        done = 0
        for multiplier, count in self.noise.levels(self.steps):
            taken = min(done + count, stop) - max(done, start)
            if taken > 0:
                parts.append(event(Gaussian(multiplier, relation), max(done, start), taken))
            done += count
        return parts[0] if len(parts) == 1 else Composed(tuple(parts))

    def describe(self) -> dict[str, Any]:
        told = super().describe() | {"expected_batch_size": self.expected_batch_size, "correlation": repr(self.strategy)}
        del told["public_size"]  # an objective's fact: of the plan it changes the size of batches alone
        return told


@dataclass(frozen=True)
class NoiseSchedule(ABC):
    @abstractmethod
    def levels(self, steps: int) -> list[tuple[float, int]]:
        """(noise multiplier, number of consecutive steps) in order; the counts sum to `steps`."""

    def multipliers(self, steps: int, first: int = 0) -> Iterator[float]:
        """The noise multiplier of each step from `first` on."""
        return itertools.islice(
            itertools.chain.from_iterable(itertools.repeat(level, count) for level, count in self.levels(steps)), first, None
        )


@dataclass(frozen=True)
class Constant(NoiseSchedule):
    noise_multiplier: float

    def __post_init__(self) -> None:
        check.positive("noise_multiplier", self.noise_multiplier)

    def levels(self, steps: int) -> list[tuple[float, int]]:
        return [(self.noise_multiplier, steps)]


@dataclass(frozen=True)
class ExponentialDecay(NoiseSchedule):
    """σ_e = σ₀·e^{−decay·e} in epoch e (Yu, Liu, Pu, Gursoy, Truex 2019), constant within an epoch."""

    noise_multiplier: float
    decay: float
    steps_per_epoch: int

    def __post_init__(self) -> None:
        check.positive("noise_multiplier", self.noise_multiplier)
        check.non_negative("decay", self.decay)
        check.integer("steps_per_epoch", self.steps_per_epoch)

    def levels(self, steps: int) -> list[tuple[float, int]]:
        epochs = -(-steps // self.steps_per_epoch)
        return [
            (
                self.noise_multiplier * math.exp(-self.decay * epoch),
                min(self.steps_per_epoch, steps - epoch * self.steps_per_epoch),
            )
            for epoch in range(epochs)
        ]
