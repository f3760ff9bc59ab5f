"""Bounding: what one record can add to a sum, and the sensitivity that follows.

A bounding turns a per-example pass into the query of a step, a sum of bounded vectors, and reads the gradient back from
the noisy answer. Adaptive boundings carry a state that sees released values only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from dperm import _validate as check
from dperm.objectives.per_example import Pass
from dperm.privacy.events import Relation

#: An adaptive clipping norm stays within this factor of its first value: gradients that vanish must not take it to zero.
_RANGE = 1e6
_LARGEST_CHANGE = 2 * math.log(_RANGE)  # of its logarithm in one step: further out it ends at the range's ends anyway


@dataclass(frozen=True)
class Bounding(ABC):
    """No record's vector in the query is longer than `bound`."""

    #: whether a query is a sum of gradients times factors, and read as it is: each number then follows from the same number of
    #: gradients, and from lengths
    coordinatewise = False

    @property
    @abstractmethod
    def bound(self) -> float:
        """Largest length of one record's bounded vector."""

    @abstractmethod
    def factors(self, norms: Any) -> Any:
        """(b,) factors for (b,) norms, in the norms' backend."""

    def sensitivity(self, relation: Relation) -> float:
        """L2 sensitivity of the bounded sum: a record comes or goes, or moves from one end to the other."""
        return self.bound if relation is Relation.ADD_OR_REMOVE_ONE else 2 * self.bound

    def init(self) -> dict[str, float]:
        """State at the start of a run: public numbers, changed in place by `read`."""
        return {}

    @property
    def vectorises(self) -> bool:
        """Whether many trainings can share it, each with its own θ: a state would have to be one for each."""
        return not self.init()

    def cut(self, state: dict[str, float]) -> float:
        """The norm that gradients are cut at; 0 where they are not cut."""
        return 0.0

    def query(self, at_theta: Pass, state: dict[str, float]) -> Any:
        """A batch's part of the step's query: a sum over its records of vectors no longer than `bound`."""
        factors = self.factors(at_theta.norms)
        shape, expected = tuple(getattr(factors, "shape", ())), tuple(at_theta.norms.shape)
        if shape != expected:  # of a third party's bounding: a column of them would be broadcast
            raise ValueError(f"Expected {type(self).__name__} to give one factor a record, shape {expected}, got {shape}.")
        return at_theta.weighted_sum(factors, self.bound)

    def empty(self, theta: Any) -> Any:
        """The query of no records."""
        return theta * 0.0

    def unit(self, state: dict[str, float]) -> float:
        """The factor by which `read` multiplies a released query to get the sum of gradients."""
        return 1.0

    def read(self, released: Any, state: dict[str, float], expected_batch_size: float) -> Any:
        """The sum of gradients (p,) in a released query."""
        return released


@dataclass(frozen=True)
class Clip(Bounding):
    """min(1, C/‖g‖) (Abadi et al. 2016)."""

    clipping_norm: float

    coordinatewise = True

    def __post_init__(self) -> None:
        check.scale("clipping_norm", self.clipping_norm)

    @property
    def bound(self) -> float:
        return self.clipping_norm

    def factors(self, norms: Any) -> Any:
        return _clip_factors(norms, self.clipping_norm)

    def cut(self, state: dict[str, float]) -> float:
        return self.clipping_norm


def _clip_factors(norms: Any, clipping_norm: float) -> Any:
    return clipping_norm / _at_least(norms, clipping_norm)


def _at_least(norms: Any, bound: float) -> Any:
    # NumPy's own function for its arrays: the method costs three times as much, and this runs every step
    return np.maximum(norms, bound) if isinstance(norms, np.ndarray) else norms.clip(min=bound)


@dataclass(frozen=True)
class Normalise(Bounding):
    """1/(‖g‖ + γ): automatic clipping (Bu, Wang, Zha, Karypis 2023); every vector is shorter than 1."""

    gamma: float = 0.01

    coordinatewise = True

    def __post_init__(self) -> None:
        check.scale("gamma", self.gamma)

    @property
    def bound(self) -> float:
        return 1.0

    def factors(self, norms: Any) -> Any:
        return 1.0 / (norms + self.gamma)


@dataclass(frozen=True)
class Unit(Bounding):
    """1/max(‖g‖, floor): every vector at least as long as `floor` becomes one of length 1, for samplers that draw by length."""

    floor: float

    def __post_init__(self) -> None:
        check.scale("floor", self.floor)

    @property
    def bound(self) -> float:
        return 1.0

    def factors(self, norms: Any) -> Any:
        return 1.0 / _at_least(norms, self.floor)


@dataclass(frozen=True)
class PerLayer(Bounding):
    """Each of G layers' parts clipped at C/√G by itself (McMahan, Ramage, Talwar, Zhang 2018): the whole is within C."""

    clipping_norm: float

    coordinatewise = True

    def __post_init__(self) -> None:
        check.scale("clipping_norm", self.clipping_norm)

    @property
    def bound(self) -> float:
        return self.clipping_norm

    def factors(self, norms: Any) -> Any:
        """(b, G) factors for (b, G) norms of the layers' parts."""
        return _clip_factors(norms, self.clipping_norm / math.sqrt(norms.shape[-1]))

    def cut(self, state: dict[str, float]) -> float:
        return self.clipping_norm

    def query(self, at_theta: Pass, state: dict[str, float]) -> Any:
        factors = self.factors(at_theta.group_norms)
        return at_theta.weighted_sum(factors if factors.shape[-1] > 1 else factors[..., 0], self.bound)


@dataclass(frozen=True)
class AdaptiveClip(Bounding):
    """Clip at a norm that follows a quantile of the gradient norms (Andrew, Thakkar, McMahan, Ramaswamy 2021).

    A step's query is the sum of g/C clipped to length 1, and beside it `count_weight` times how many norms are within C
    less how many are not: one vector, one Gaussian release. A record's part is no longer than √(1 + count_weight²), so the
    plan's noise multiplier is what the step costs in all; the gradient's own noise is √(1 + count_weight²) times that.
    Then C ← C·exp(−learning_rate·(share within C − quantile)), the share taken of the expected batch size.
    """

    clipping_norm: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    count_weight: float = 0.05

    def __post_init__(self) -> None:
        check.scale("clipping_norm", self.clipping_norm)
        check.fraction("quantile", self.quantile)
        check.positive("learning_rate", self.learning_rate)
        check.scale("count_weight", self.count_weight)

    @property
    def bound(self) -> float:
        return math.hypot(1.0, self.count_weight)

    def factors(self, norms: Any) -> Any:
        """At the first clipping norm; a run's own is in its state."""
        return _clip_factors(norms, self.clipping_norm) / self.clipping_norm

    def init(self) -> dict[str, float]:
        return {"clipping_norm": self.clipping_norm}

    def cut(self, state: dict[str, float]) -> float:
        return state["clipping_norm"]

    def query(self, at_theta: Pass, state: dict[str, float]) -> Any:
        norms, current = at_theta.norms, state["clipping_norm"]
        total = at_theta.weighted_sum(_clip_factors(norms, current) / current, 1.0)
        xp = array_namespace(total)
        within = xp.astype(norms <= current, total.dtype)
        count = self.count_weight * xp.sum(2 * within - 1)
        return xp.concat([total, xp.reshape(count, (1,))])

    def empty(self, theta: Any) -> Any:
        xp = array_namespace(theta)
        return xp.concat([theta * 0.0, theta[:1] * 0.0])

    def unit(self, state: dict[str, float]) -> float:
        return state["clipping_norm"]

    def read(self, released: Any, state: dict[str, float], expected_batch_size: float) -> Any:
        current = state["clipping_norm"]
        share = 0.5 + float(released[-1]) / (2 * self.count_weight * expected_batch_size)
        # a share far outside [0, 1] is noise: it must not throw C away in one step
        share = min(max(share, -1.0), 2.0)
        change = -self.learning_rate * (share - self.quantile)
        following = current * math.exp(min(max(change, -_LARGEST_CHANGE), _LARGEST_CHANGE))
        state["clipping_norm"] = min(max(following, self.clipping_norm / _RANGE), self.clipping_norm * _RANGE)
        return released[:-1] * current
