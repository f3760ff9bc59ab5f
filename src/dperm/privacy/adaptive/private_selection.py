"""What it costs to try several times, a random number of times that stays secret, and to show the best try alone.

K tries of a mechanism Q, each an output with a score, and the best is released. With φ the generating function of K, the best
one's law has the density φ'(u(y)) dQ(y), where u(y) = Q(scores up to y's) and ties are broken at random. Liu & Talwar (2019) and
Papernot & Steinke (2022) bound its divergences, and Koskela, Redberg, Wang (2024) its profile by one point of Q's. The bound
here takes the whole profile δ of Q (docs/search.md has the proof). With v = 1 − u,

    F(v) = min over e of e^e·v + δ(e),   h(v) = max over e of e^{−e}(v − δ(e)),   w(v) = φ'(1 − v),
    ρ(v) = max over v' ≥ v of w(v')/φ'(1 − F(v')),

the best try is (ε, δ')-private for every ε ≥ 0 with δ' = ∫₀¹ w(v)·(1 − e^ε h'(v)/ρ(v))⁺ dv. All of it is rounded up here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.privacy.accountants import root_finding
from dperm.privacy.accountants.accounting import delta as event_delta
from dperm.privacy.accountants.accounting import epsilon as event_epsilon
from dperm.privacy.accountants.dominating_pairs import Directions, loss_pairs
from dperm.privacy.accountants.gaussian import gaussian_epsilon, gaussian_mu, solve_decreasing
from dperm.privacy.accountants.pld import PrivacyLossDistribution
from dperm.privacy.events import (
    LARGEST_LOSS,
    Event,
    Gaussian,
    PrivacyProfile,
    Relation,
    UnsupportedEventError,
    accounting_cost,
    relation_of,
    sub_event,
)

Law = Literal["geometric", "logarithmic", "poisson"]
T = TypeVar("T")

_CELLS = 1 << 15  # of v, in equal ratios
_LEAST = 1e-16  # v below that counts as lost
_POINTS = 320  # of the profile of one try
_SMALLEST = tuple(10.0**-power for power in range(13, 3, -1))  # δ where that profile ends
_GRID = 1e-3  # relative grid error of its distribution of losses
_SHOWN, _KEPT = 256, 1e-13  # points of the profile of the best one; and where it ends
_MOST_POISSON = 600.0  # e^{−mean} is a double
_ROUNDS, _LEFT = 8, 0.02  # of a search for the budget of a try
_ROUNDING = 1e-9  # relative, of what is added up here


@dataclass(frozen=True)
class BestOfTries(Event):
    """The best of a random number of tries, each of them one of `tries`, drawn evenly. The number, at least 1, has a law of this
    `mean` and is secret; so are the tries that were not the best.

    `law`: "geometric", "logarithmic" (both truncated negative binomial laws), or "poisson" given that it is not 0.
    """

    tries: tuple[Event, ...]
    mean: float
    law: Law = "geometric"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tries", tuple(self.tries))
        if not self.tries:
            raise TypeError(f"Expected events of the tries, got {self.tries!r}.")
        for number, event in enumerate(self.tries):
            sub_event(f"tries[{number}]", event)
        if len({relation_of(event) for event in self.tries}) > 1 or relation_of(self.tries[0]) is None:
            raise ValueError("Expected tries that release something, all about the same neighbours.")
        check.choice("law", self.law, get_args(Law))
        object.__setattr__(self, "mean", float(check.positive("mean", self.mean)))
        if not 1 < self.mean <= 1e6:
            raise ValueError(f"Expected a mean number of tries above 1 and of at most a million, got {self.mean!r}.")
        if self.law == "poisson" and not self.mean <= _MOST_POISSON:
            raise ValueError(f"Expected a mean of at most {_MOST_POISSON:g} for a Poisson number of tries, got {self.mean!r}.")

    @property
    def relation(self) -> Relation | None:
        return relation_of(self.tries[0])

    @property
    def accounting_cost(self) -> float:
        return 2 + 2 * sum(1 + accounting_cost(event) for event in set(self.tries))

    def draw(self, generator: np.random.Generator) -> int:
        """A number of tries. Secret."""
        parameter = _parameter(self.law, self.mean)
        if self.law == "geometric":
            return int(generator.geometric(parameter))
        if self.law == "logarithmic":
            return int(generator.logseries(1 - parameter))
        while not (count := int(generator.poisson(parameter))):
            pass
        return count


def _slope(law: Law, mean: float) -> Callable[[Array], Array]:
    """v ↦ φ'(1 − v): falls with v."""
    parameter = _parameter(law, mean)
    if law == "poisson":
        return lambda v: parameter * np.exp(-parameter * v) / -math.expm1(-parameter)
    if law == "geometric":
        return lambda v: parameter / (parameter + (1 - parameter) * v) ** 2
    return lambda v: (1 - parameter) / (parameter + (1 - parameter) * v) / -math.log(parameter)


@functools.lru_cache(maxsize=64)
def _parameter(law: Law, mean: float) -> float:
    """γ of the negative binomial laws, the mean before truncation of Poisson's."""
    if law == "geometric":
        return 1 / mean
    if law == "poisson":
        return root_finding.root(lambda mu: mu / -math.expm1(-mu) - mean, 1e-9, mean, xtol=2e-12)
    return math.exp(root_finding.root(lambda x: -math.expm1(x) / math.exp(x) / -x - mean, -60.0, -1e-9, xtol=2e-12))


# The bound


@dataclass(frozen=True)
class _Bound:
    """w, h' and ρ on cells of v of these widths, each rounded to its safe side."""

    widths: Array
    weights: Array
    slopes: Array  # h', from below
    ratios: Array  # ρ, from above

    @classmethod
    def of(cls, epsilons: Array, deltas: Array, slope: Callable[[Array], Array]) -> _Bound:
        """For a profile that is at most deltas (m,) at epsilons (m,), in both directions."""
        edges = np.concatenate([[0.0], np.geomspace(_LEAST, 1.0, _CELLS)])
        farthest, nearest, slopes = np.ones(len(edges)), np.zeros(len(edges)), np.zeros(len(edges))
        for e, d in zip(epsilons, deltas, strict=True):
            shrunk = math.exp(-e)
            farthest = np.minimum(farthest, np.minimum(edges / shrunk + d, 1 - shrunk * (1 - edges - d)))
            line = shrunk * (edges - d)
            slopes = np.where(line > nearest, shrunk, slopes)
            nearest = np.maximum(nearest, line)
        weights = slope(edges[:-1])
        ratios = weights / slope(np.minimum(farthest[1:] * (1 + _ROUNDING), 1.0))
        ratios = np.maximum.accumulate(ratios[::-1])[::-1]
        return cls(np.diff(edges), weights * (1 + _ROUNDING), slopes[:-1] * (1 - _ROUNDING), ratios * (1 + _ROUNDING))

    def delta(self, epsilon: float) -> float:
        with np.errstate(over="ignore"):
            kept = 1 - math.exp(min(epsilon, 700.0)) * self.slopes / self.ratios
        return min(1.0, float(np.sum(self.weights * np.maximum(kept, 0.0) * self.widths)) * (1 + _ROUNDING))


@functools.lru_cache(maxsize=64)
def _bound(event: BestOfTries) -> _Bound:
    profiles = [_profile(event) for event in dict.fromkeys(event.tries)]
    counts = [event.tries.count(each) for each in dict.fromkeys(event.tries)]
    epsilons = np.unique(np.concatenate([epsilons for epsilons, _ in profiles]))
    # Which one is tried is part of what is released: profiles add up evenly. They are convex in e^ε: chords there are above them.
    places = np.exp(epsilons)
    deltas = [np.interp(places, np.exp(es), ds, right=ds[-1]) for es, ds in profiles]
    mixed = np.average(np.array(deltas), axis=0, weights=counts) * (1 + _ROUNDING)
    return _Bound.of(epsilons, np.minimum(mixed, 1.0), _slope(event.law, event.mean))


@functools.lru_cache(maxsize=256)
def _profile(event: Event) -> tuple[Array, Array]:
    """(m,) each: ε from 0 on, and upper bounds on δ(ε) in both directions."""
    for smallest in _SMALLEST:  # some events hold to no smaller δ, whatever ε is
        largest = event_epsilon(event, smallest)
        if largest < LARGEST_LOSS:
            break
    else:
        return np.array([0.0]), np.array([1.0])
    epsilons = np.linspace(0.0, max(largest, 1e-9), _POINTS)
    try:
        deltas = np.array(PrivacyLossDistribution(event, _GRID).deltas(list(epsilons)))
    except UnsupportedEventError:  # of filters: by Rényi's divergences
        deltas = np.array([event_delta(event, float(e)) for e in epsilons])
    deltas[-1] = min(deltas[-1], smallest)  # by the definition of the last ε; grids may end losses a little later
    return epsilons, np.minimum(np.minimum.accumulate(deltas), 1.0)


@loss_pairs.register
def _(event: BestOfTries) -> Directions:
    return loss_pairs(_shown(event))


@functools.lru_cache(maxsize=64)
def _shown(event: BestOfTries) -> PrivacyProfile:
    """The profile of the best try."""
    bound = _bound(event)
    assert event.relation is not None
    most = 1.0
    while bound.delta(most) > bound.delta(LARGEST_LOSS) + _KEPT:
        most *= 1.5
        if most >= LARGEST_LOSS:
            return PrivacyProfile((0.0,), (1.0,), event.relation)
    epsilons = most * (np.arange(_SHOWN) / (_SHOWN - 1)) ** 1.5
    deltas = np.minimum.accumulate([bound.delta(float(e)) for e in epsilons])
    return PrivacyProfile(tuple(epsilons), tuple(deltas), event.relation)


def selection_epsilon(event: BestOfTries, delta: float) -> float:
    """The least ε of the bound at this δ, without a grid of losses between; inf where there is none."""
    bound = _bound(event)
    return solve_decreasing(lambda e: bound.delta(e) - delta, scale=1.0)


def budget_of_a_try(
    epsilon: float, delta: float, mean: float, law: Law = "geometric", relation: Relation = Relation.ADD_OR_REMOVE_ONE
) -> tuple[float, float]:
    """(ε, δ) of one try, so that the best of a random number of Gaussian mechanisms costs (`epsilon`, `delta`). Other mechanisms
    need about as much: check them by `BestOfTries`."""
    check.positive("epsilon", epsilon)
    most = gaussian_mu(epsilon, check.fraction("delta", delta))

    def excess(log_share: float) -> float:
        tried = BestOfTries((Gaussian(math.exp(-log_share) / most, relation),), mean, law)
        return math.log(selection_epsilon(tried, delta) / epsilon)

    least = math.log(1e-3 / mean)
    if excess(least) > 0:
        raise ValueError(f"Expected more than epsilon = {epsilon:g}, or a larger delta, for a mean of {mean:g} tries.")
    share = root_finding.root(excess, least, 0.0, xtol=1e-4) - 1e-4
    each = delta / mean
    return gaussian_epsilon(math.exp(-share) / most, each), each


def share_within(epsilon: float, delta: float, each: float, planned: Callable[[float], T], event: Callable[[T], Event]) -> T:
    """`planned` with the ε of a try, `each` at first, for which the event of it all costs `epsilon`, or up to a fiftieth less."""
    for _ in range(_ROUNDS):
        found = planned(each)
        spent = event_epsilon(event(found), delta)
        if epsilon * (1 - _LEFT) <= spent <= epsilon:
            return found
        each *= min(epsilon / spent, 4.0) * (1 - _LEFT / 20)
    raise ValueError(f"Found no budget for each try that keeps the search within epsilon = {epsilon:g}.")
