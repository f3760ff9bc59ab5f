"""The best valid bound for an event: exact where a theorem gives the profile, otherwise PLD or RDP, whichever is smaller."""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from dperm import _validate as check
from dperm.privacy.accountants import objective_perturbation
from dperm.privacy.accountants.bounded_range import choice_delta, choice_epsilon
from dperm.privacy.accountants.dominating_pairs import Directions, loss_pairs
from dperm.privacy.accountants.gaussian import gaussian_delta, gaussian_epsilon, solve_decreasing
from dperm.privacy.accountants.pld import TOLERANCE, PrivacyLossDistribution, pld_delta, pld_epsilon_and_doubt
from dperm.privacy.accountants.privacy_filters import privacy_profile
from dperm.privacy.accountants.rdp import rdp_curve, rdp_delta, rdp_epsilon
from dperm.privacy.accountants.stated_points import profile_delta, profile_epsilon
from dperm.privacy.events import (
    LARGEST_LOSS,
    ApproximateDP,
    Composed,
    Disjoint,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    Laplace,
    ObjectivePerturbationEvent,
    PrivacyProfile,
    PureDP,
    SelfComposed,
    Side,
    UnsupportedEventError,
    alternatives,
    leaves,
    relation_of,
)


def epsilon(event: Event, delta: float) -> float:
    """Upper bound, in nats, on the smallest ε for which `event` is (ε, `delta`)-private; inf where there is none.

    Where losses are composed on a grid the bound lies a little above the truth, by about 4e-5 of it as a rule: among events whose
    ε differ by less, such as large numbers of steps that differ by one, the one that costs more may be given the smaller bound.
    Both bounds hold. `delta` = 0 asks for pure privacy. Raises UnsupportedEventError, naming the sub-event, where no accountant
    applies.
    """
    return best_epsilon(event, delta)[0]


def best_epsilon(event: Event, delta: float, tolerance: float = TOLERANCE) -> tuple[float, str]:
    """`epsilon` and the name of the accountant that gave it. `tolerance`: relative grid error of the PLD."""
    check.fraction("delta", delta, zero=True)
    relation_of(event)
    return max(_bound(_best_epsilon, each, delta, tolerance) for each in _each_way(event))


def _each_way(event: Event) -> Iterator[Event]:
    """`event`; where records are split, what each unit may have met of it."""
    if not any(isinstance(leaf, Disjoint) for leaf in leaves(event)):
        yield event
        return
    for met in alternatives(event):
        yield Composed(tuple(SelfComposed(leaf, count) for leaf, count in met.items()))


_Bound = TypeVar("_Bound")
_REMEMBERED = 16  # different parts of an event, at most, whose bounds are remembered: compositions of thousands take memory


def _bound(bound: Callable[[Event, float, float], _Bound], event: Event, at: float, tolerance: float) -> _Bound:
    """`bound(event, at, tolerance)`, as it was found before where it was: a certificate asks for what its noise was calibrated
    by, and so does each training with the same settings, as in cross-validations, comparisons and audits."""
    counts = leaves(event)
    return bound(event, at, tolerance) if len(counts) > _REMEMBERED else _known(bound, tuple(counts.items()), at, tolerance)


@functools.lru_cache(maxsize=256)
def _known(
    bound: Callable[[Event, float, float], Any], counts: tuple[tuple[Event, int], ...], at: float, tolerance: float
) -> Any:
    return bound(Composed(tuple(SelfComposed(leaf, count) for leaf, count in counts)), at, tolerance)


def _best_epsilon(event: Event, delta: float, tolerance: float) -> tuple[float, str]:
    counts = leaves(event)
    if not counts:
        return 0.0, "exact"
    basic = min((e for e, d in _basic(event) if d <= delta), default=math.inf)
    if delta == 0:
        return basic, "basic composition"
    if multiplier := _one_gaussian(event):
        return gaussian_epsilon(multiplier, delta), "exact Gaussian"
    leaf = _only(event)
    if isinstance(leaf, ExponentialMechanism):
        return choice_epsilon(leaf.epsilon, delta), "exact profile"
    if isinstance(leaf, ObjectivePerturbationEvent):
        value = solve_decreasing(
            lambda e: math.log(objective_perturbation.delta(leaf, e)) - math.log(delta), scale=1.0, relative=1e-8
        )
        return value, "exact profile"
    if profile := _one_profile(event):
        return profile_epsilon(profile, delta), "exact profile"
    candidates: list[tuple[float, str]] = [(basic, "basic composition")] if basic < math.inf else []
    refusals: list[UnsupportedEventError] = []
    doubtful = True
    try:
        value, doubtful = pld_epsilon_and_doubt(event, delta, tolerance)
        candidates.append((value, "PLD"))
        doubtful = doubtful or value == math.inf
    except UnsupportedEventError as error:
        refusals.append(error)
    if doubtful or _renyi_may_be_less(event):  # elsewhere an RDP bound is never smaller than a PLD on a grid that is fine enough
        try:
            name = "Rényi filter" if any(isinstance(leaf, FilteredRdp) for leaf in counts) else "RDP"
            candidates.append((rdp_epsilon(event, delta), name))
        except UnsupportedEventError as error:
            refusals.append(error)
    if not candidates and (candidate := _separately(event, delta, tolerance)):
        candidates.append(candidate)
    if not candidates:
        raise refusals[0]
    return min(candidates)


def _separately(event: Event, delta: float, tolerance: float) -> tuple[float, str] | None:
    """What has no privacy loss distribution by RDP and the rest by what bounds it, half of δ each: basic composition, where no
    accountant knows both."""
    rest: list[Event] = []
    others: list[Event] = []
    for leaf, count in leaves(event).items():
        (others if _has_losses(leaf) else rest).append(SelfComposed(leaf, count))
    if not rest or not others:
        return None
    held = rdp_epsilon(Composed(tuple(rest)), delta / 2)
    return held + best_epsilon(Composed(tuple(others)), delta / 2, tolerance)[0], "RDP, then basic composition"


def delta(event: Event, epsilon: float, tolerance: float = TOLERANCE) -> float:
    """Upper bound on the smallest δ for which `event` is (`epsilon`, δ)-private. Raises as `epsilon` does."""
    check.non_negative("epsilon", epsilon)
    relation_of(event)
    return max(_bound(_delta, each, epsilon, tolerance) for each in _each_way(event))


def _delta(event: Event, epsilon: float, tolerance: float) -> float:
    if not leaves(event):
        return 0.0
    pairs = _basic(event)
    basic = min((d for e, d in pairs if e <= epsilon), default=1.0)
    if basic < 1 and len(pairs) == 1:
        return basic
    if multiplier := _one_gaussian(event):
        return gaussian_delta(multiplier, epsilon)
    leaf = _only(event)
    if isinstance(leaf, ExponentialMechanism):
        return choice_delta(leaf.epsilon, epsilon)
    if isinstance(leaf, ObjectivePerturbationEvent):
        return objective_perturbation.delta(leaf, epsilon)
    if profile := _one_profile(event):
        return profile_delta(profile, epsilon)
    try:
        found = min(basic, pld_delta(event, epsilon, tolerance))
        return min(found, rdp_delta(event, epsilon)) if _renyi_may_be_less(event) else found
    except UnsupportedEventError as refusal:
        try:
            return rdp_delta(event, epsilon)
        except UnsupportedEventError:
            return _least_delta(event, epsilon, tolerance, refusal)


def _has_losses(leaf: Event) -> bool:
    try:
        loss_pairs(leaf)
    except UnsupportedEventError:
        return False
    return True


def _least_delta(event: Event, epsilon: float, tolerance: float, refusal: UnsupportedEventError) -> float:
    """The same by bisection of `_separately`."""
    low, high = -700.0, 0.0  # of ln δ
    while high - low > 1e-3:
        middle = (low + high) / 2
        bound = _separately(event, math.exp(middle), tolerance)
        if bound is None:
            raise refusal
        low, high = (low, middle) if bound[0] <= epsilon else (middle, high)
    return math.exp(high)


def _basic(event: Event) -> list[tuple[float, float]]:
    """Pairs (Σε, Σδ), of rising Σδ, of parts that are (ε, δ)-private by themselves; none where some part is not.

    Basic composition, exact for one part, and the whole truth where an `ApproximateDP` spends all of δ. A `PrivacyProfile` has
    several points: all start at the least δ, and move to larger δ in the order in which that saves most ε.
    """
    total, failure = Fraction(0), Fraction(0)  # exact sums: a promise of 1e-6 twice is one of 2e-6
    moves: list[tuple[float, Fraction, Fraction]] = []  # ε that is saved for each δ, ε and δ of all copies
    for given, count in leaves(event).items():
        leaf = given.event if isinstance(given, Side) else given  # (ε, δ) hold in both directions
        if isinstance(leaf, PureDP | ApproximateDP | ExponentialMechanism):
            total += count * Fraction(leaf.epsilon)
            failure += count * Fraction(leaf.delta if isinstance(leaf, ApproximateDP) else 0.0)
        elif isinstance(leaf, Laplace):
            total += count * Fraction(math.sqrt(2) / leaf.noise_multiplier)
        elif isinstance(leaf, Disjoint):  # too many ways to go through: the largest of each
            options = [_basic(Composed(tuple(SelfComposed(*item) for item in option.items()))) for option in leaf.options]
            if not all(options):
                return []
            total += count * max(Fraction(pairs[0][0]) for pairs in options)
            failure += count * max(Fraction(pairs[0][1]) for pairs in options)
        elif isinstance(leaf, PrivacyProfile):
            total += count * Fraction(leaf.epsilons[leaf.deltas.index(leaf.deltas[-1])])  # several may have the least δ
            failure += count * Fraction(leaf.deltas[-1])
            moves += [(rate, count * saved, count * spent) for rate, saved, spent in _moves(leaf)]
        else:
            return []
    found = [(float(total), float(failure))]
    for _, saved, spent in sorted(moves, reverse=True):
        total, failure = total - saved, failure + spent
        found.append((float(total), float(failure)))
    return found


def _rate(left: tuple[float, float], right: tuple[float, float]) -> float:
    """ε saved per δ spent from one (δ, ε) to another."""
    return (left[1] - right[1]) / (right[0] - left[0])


def _moves(profile: PrivacyProfile) -> list[tuple[float, Fraction, Fraction]]:
    """Along the lower convex hull of (δ, ε), from the last point on: ε saved per δ spent, which falls, and both."""
    corners: list[tuple[float, float]] = []
    for point in zip(reversed(profile.deltas), reversed(profile.epsilons), strict=True):
        if corners and corners[-1][0] == point[0]:
            corners.pop()  # the same δ at a smaller ε
        while len(corners) > 1 and _rate(corners[-2], corners[-1]) <= _rate(corners[-1], point):
            corners.pop()
        corners.append(point)
    pairs = itertools.pairwise(corners)
    return [(_rate(a, b), Fraction(a[1]) - Fraction(b[1]), Fraction(b[0]) - Fraction(a[0])) for a, b in pairs]


def _one_gaussian(event: Event) -> float | None:
    """Noise multiplier of the single Gaussian that equals `event`, rounded down, if there is one."""
    counts = leaves(event)
    noises = [(leaf.whole.noise_multiplier, count) for leaf, count in counts.items() if isinstance(leaf.whole, Gaussian)]
    if len(noises) < len(counts):
        return None
    least = min(noise for noise, _ in noises)  # in its units nothing overflows
    total = sum(count * (least / noise) ** 2 for noise, count in noises)
    return least / math.sqrt(total * (1 + 4 * sys.float_info.epsilon * (len(noises) + 2))) if total > 1 else least


def _only(event: Event) -> Event | None:
    """The one mechanism that runs, once, if there are no others."""
    counts = leaves(event)
    leaf = next(iter(counts))
    return leaf if len(counts) == 1 and counts[leaf] == 1 else None


def _renyi_may_be_less(event: Event) -> bool:
    """Whether the pairs that are composed may lose something that Rényi divergences keep, where all parts have some: choices in
    more than one block (`dperm.privacy.accountants.bounded_range`)."""
    counts = leaves(event)
    return any(isinstance(leaf, ExponentialMechanism) for leaf in counts) and all(map(_has_divergences, counts))


def _has_divergences(leaf: Event) -> bool:
    try:
        rdp_curve(leaf, np.array([2.0]))
    except UnsupportedEventError:
        return False
    return True


def _one_profile(event: Event) -> PrivacyProfile | None:
    leaf = _only(event)
    return leaf if isinstance(leaf, PrivacyProfile) else None


_COARSE = 1e-3  # relative grid error
_KEPT = 1e-13  # δ where the profile ends, or a hair above what stays at any ε


@loss_pairs.register
def _(event: Disjoint) -> Directions:
    return loss_pairs(largest_profile(event))


@functools.lru_cache(maxsize=64)
def largest_profile(event: Disjoint) -> PrivacyProfile:
    """Upper bounds on the largest of the profiles of what a unit may have met, both directions.

    It serves compositions of mechanisms that are split otherwise each time, or too often to go through every way. A pair whose
    profile is the largest of all parts', at each ε by itself, dominates whichever part it was, and pairs compose (Zhu, Dong, Wang
    2022, Theorem 10). The largest of convex functions of e^ε is convex: there is such a pair.
    """
    options = [Composed(tuple(SelfComposed(leaf, count) for leaf, count in option.items())) for option in event.options if option]
    stays = max(PrivacyLossDistribution(option, _COARSE).delta(LARGEST_LOSS) for option in options)
    smallest = max(_KEPT, 1.001 * stays)
    if smallest >= 1:
        return PrivacyProfile((0.0,), (1.0,), event.relation)
    return privacy_profile(*options, smallest_delta=smallest)
