"""The kinds of release: of each, what must be left of the charge, the grid that its query is rounded to, and its noise.

A new kind is a class here, and an event that names it (`Paid`). Channels, recordings and replays know no kind by name. Noise is
fresh in every release: an algorithm whose noise is correlated over steps encodes its queries before, and decodes the answers
after, and needs no kind of its own.

| kind | answers with | is paid by |
| --- | --- | --- |
| `GaussianNoise` | a vector with normal noise | a Gaussian, sampled or not |
| `CountNoise` | whole numbers with the same noise, on a grid that does not depend on how many there are | the same |
| `PureNoise` | a vector with noise of density e^{−‖b‖} | `PureDP` |
| `FallingNoise` | that vector with less and less such noise | `PureDP` of the least noise |
| `ExponentialChoice` | the place of a good score | `ExponentialMechanism` |
| `ThresholdNoise` | a number that is compared, and does not leave | `AboveThreshold` |
| `HiddenNoise` | where the next step starts, which does not leave | `HiddenIterates`, `RandomStop` |
| `LastIterateNoise` | the last of such steps | the same, once a run |
| `ObjectiveNoise` | the linear term of a perturbed objective | `ObjectivePerturbationEvent` |
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dperm import _validate as check
from dperm._random import NoiseStream
from dperm._types import Array
from dperm.privacy.events import ObjectivePerturbationEvent, Paid
from dperm.release.allowance import Claim
from dperm.release.grid import Grid, power_below

Kind = Literal["gaussian", "pure", "objective", "threshold", "choice", "hidden"]


@dataclass(frozen=True)
class Noise(ABC):
    """A kind of release, with public numbers: a record moves the query (p,) by at most `sensitivity`, in L2 unless it says so.

    On its grid, `sensitivity` is that of the query once it is rounded to multiples of `step`; 0 where it is not rounded. `what`
    names the kind of query in audits, which report by it how far neighbours move.
    """

    kind: ClassVar[Kind]
    #: whether the noise of several independent runs can be made at once
    at_once: ClassVar[bool] = False

    sensitivity: check.Positive
    what: str = field(default="statistic", kw_only=True)
    step: check.NonNegative = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        check.fields(self)

    @property
    @abstractmethod
    def amount(self) -> float:
        """How much noise it is, as it is charged: in units of the sensitivity, or an ε."""

    @property
    def level(self) -> float:
        """The same as audits know it: a standard deviation of Gaussian noise, an ε of other noise."""
        return self.amount

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What of a charge one such release takes."""
        return (Paid(self.kind, self.amount, self.rate),)

    @property
    def rate(self) -> float:
        """At which records were drawn for the query; 1: all of them take part."""
        return 1.0

    @property
    def path(self) -> tuple[float, ...]:
        """Of an answer of several rows the ε of each, in rising order; the last row is what the charge pays for."""
        return ()

    @abstractmethod
    def on_grid(self, size: int) -> Self:
        """The same for a query of `size` numbers, which is rounded: see `dperm.release.grid`."""

    @abstractmethod
    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Any:
        """What leaves, once on the grid: the query rounded, with rounded noise. `shape` is the query's, or (m, p) for m runs of
        one query at once."""

    def _rounded_to(self, grid: Grid) -> Self:
        return replace(self, sensitivity=grid.sensitivity, step=grid.step)


@dataclass(frozen=True)
class GaussianNoise(Noise):
    """Normal noise of `noise_multiplier` times the sensitivity, of a query whose records were drawn at `sampling_rate`."""

    kind = "gaussian"
    at_once = True

    noise_multiplier: check.Positive
    sampling_rate: float = 1.0

    @property
    def amount(self) -> float:
        return self.noise_multiplier

    @property
    def level(self) -> float:
        return self.noise_multiplier * self.sensitivity

    @property
    def rate(self) -> float:
        return self.sampling_rate

    def on_grid(self, size: int) -> Self:
        return self._rounded_to(Grid.of(self.sensitivity, self.level, size))

    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Any:
        noise = stream.rounded_normal(self.level / self.step, math.prod(shape)).reshape(shape)
        noise += np.rint(query / self.step)
        noise *= self.step
        return noise


@dataclass(frozen=True)
class CountNoise(GaussianNoise):
    """The same for counts of things that only the records name: how many there are may be private, and the grid does not depend
    on it. Those of 0 are not among them: what comes back must leave only where it is so large that a count of 1 would hardly
    be."""

    what: str = field(default="counts", kw_only=True)

    def on_grid(self, size: int) -> Self:
        return replace(self, step=power_below(min(1.0, self.level * 2.0**-21)))  # counts are multiples: rounding moves none


@dataclass(frozen=True)
class LastIterateNoise(GaussianNoise):
    """The same for the last of steps that were charged as hidden, which leaves."""

    what: str = field(default="last iterate", kw_only=True)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return Paid("last", self.noise_multiplier), Paid("hidden", self.noise_multiplier)


@dataclass(frozen=True)
class HiddenNoise(GaussianNoise):
    """Normal noise of a step that was charged as hidden: what comes back is where the next step starts, and must not leave. It is
    not rounded: rounding is no contraction."""

    kind = "hidden"
    at_once = False

    what: str = field(default="hidden iterate", kw_only=True)

    def on_grid(self, size: int) -> Self:
        return replace(self, step=0.0)

    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Any:
        return query + self.level * stream.standard_normal(query.size)


@dataclass(frozen=True)
class PureNoise(Noise):
    """Noise b of density ∝ exp(−epsilon·‖b‖/sensitivity)."""

    kind = "pure"
    at_once = True

    epsilon: check.Positive

    @property
    def amount(self) -> float:
        return self.epsilon

    def on_grid(self, size: int) -> Self:
        return self._rounded_to(Grid.of(self.sensitivity, self.sensitivity / self.epsilon * size, size))

    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Any:
        scale = self.sensitivity / self.epsilon / self.step
        noise = stream.rounded_ball(scale, shape[-1], math.prod(shape[:-1])).reshape(shape)
        return (np.rint(query / self.step) + noise) * self.step


@dataclass(frozen=True)
class ThresholdNoise(PureNoise):
    """The same for a test that was charged as an `AboveThreshold` of this rate: what comes back is to be compared, and must not
    leave. For `dperm.release.threshold` alone."""

    kind = "threshold"
    at_once = False

    what: str = field(default="threshold question", kw_only=True)


@dataclass(frozen=True)
class FallingNoise(Noise):
    """For each of `epsilons`, which rise, a row with `PureNoise` of it: rows before the last one are made of that one, which is
    charged, and of noise that depends on nothing."""

    kind = "pure"

    epsilons: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        rising = tuple(float(check.positive("epsilon", epsilon)) for epsilon in self.epsilons)
        if not rising or any(more < less for less, more in itertools.pairwise(rising)):
            raise ValueError(f"Expected epsilons that rise, of which the last one is paid for, got {rising}.")
        object.__setattr__(self, "epsilons", rising)

    @property
    def amount(self) -> float:
        return self.epsilons[-1]

    @property
    def path(self) -> tuple[float, ...]:
        return tuple(self.epsilons)

    def on_grid(self, size: int) -> Self:
        return self._rounded_to(Grid.of(self.sensitivity, self.sensitivity / self.epsilons[0] * size, size))

    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Array:
        noise = stream.rounded_balls([self.sensitivity / epsilon / self.step for epsilon in self.epsilons], query.size)
        return (np.rint(query / self.step) + noise) * self.step


@dataclass(frozen=True)
class ExponentialChoice(PureNoise):
    """The place of one of scores (k,), each of which a record moves by at most `sensitivity`: i with probability
    ∝ e^{epsilon·score/(2·sensitivity)} (McSherry & Talwar 2007)."""

    kind = "choice"
    at_once = False

    what: str = field(default="choice", kw_only=True)

    def on_grid(self, size: int) -> Self:
        return self._rounded_to(Grid.of(self.sensitivity, self.sensitivity / self.epsilon, 1))

    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> int:
        return stream.chosen(np.rint(query / self.step) * self.step, 2 * self.sensitivity / self.epsilon)


@dataclass(frozen=True)
class ObjectiveNoise(Noise):
    """The linear term b ~ N(0, noise_std²·I) of the objective perturbation `event`, with its quadratic term and its bounds on a
    record, of which `sensitivity` is that on the gradient. The query is 0, and nothing is rounded: what leaves is the minimiser.
    Each number is within noise_std·`dperm._random.NORMAL_ERROR` of a real normal."""

    kind = "objective"
    at_once = True

    event: ObjectivePerturbationEvent

    @classmethod
    def of(cls, event: ObjectivePerturbationEvent) -> ObjectiveNoise:
        """That of an objective perturbation."""
        return cls(event.lipschitz, event)

    @property
    def claims(self) -> tuple[Claim, ...]:
        return (self.event,)

    @property
    def amount(self) -> float:
        return self.event.noise_std

    def on_grid(self, size: int) -> Self:
        return replace(self, step=0.0)

    def answer(self, query: Any, shape: tuple[int, ...], stream: NoiseStream) -> Array:
        return self.level * stream.standard_normal(math.prod(shape)).reshape(shape)
