"""Pairs of distributions that dominate events, seen through their privacy loss ln dP/dQ: what accountants of losses compose."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, expit, logsumexp, ndtr, xlog1py, xlogy

from dperm._types import Array
from dperm.privacy.accountants import objective_perturbation
from dperm.privacy.accountants.bounded_range import LARGEST_RANGE, blocks, loss_atoms
from dperm.privacy.accountants.loss_bound import TAIL, LossBound, Normal, SymmetrisedLoss
from dperm.privacy.accountants.random_allocation import LEAST_NOISE, allocation_ratio
from dperm.privacy.accountants.stated_points import bend, hull
from dperm.privacy.events import (
    ApproximateDP,
    Event,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PrivacyProfile,
    PureDP,
    RandomAllocation,
    RandomStop,
    Relation,
    RowsSampled,
    SampledWithoutReplacement,
    Side,
    TruncatedPoisson,
    UnsupportedEventError,
)
from dperm.privacy.events.hidden import stopped_shifts

LOSS_CAP = 600.0  # larger losses count as infinite: e^600 still is a double
_LOST_ROWS = 1e-18
_EPS = float(np.finfo(np.float64).eps)
_AT_ONCE = 1 << 19  # numbers of an array
MOST_NOISE = 1e9  # more is taken for as much: losses would be lost in rounding


class LossPair(Protocol):
    """A pair (P, Q) seen through its privacy loss ln dP/dQ."""

    @property
    def support(self) -> tuple[float, float]: ...

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """P- and Q-masses of losses in (edges[i], edges[i+1]]."""
        ...


@dataclass(frozen=True)
class Cells:
    """The masses of the cells between `edges`, and what follows from them: arrays of shape (edges − 1,).

    `gain` is p − q·e^edge at the lower edge, of which the upper end's share is made. `doubt` bounds the P-mass that rounding of
    these and of edges may have moved: docs/accounting.md, "The masses of cells".
    """

    p: Array
    q: Array
    gain: Array
    doubt: Array


def cells(pair: LossPair, edges: Array) -> Cells:
    """The cells of a pair between `edges`, of which the first may be −∞.

    A pair of nearly equal distributions computes its own gains, without the cancellation of p − q·e^edge.
    """
    own = getattr(pair, "cells", None)
    return own(edges) if own is not None else _cells_by_masses(pair, edges)


def _cells_by_masses(pair: LossPair, edges: Array) -> Cells:
    p, q = pair.masses(edges)
    digits = 6 + np.abs(np.log(np.maximum(p, 1e-300))) + _sizes(edges)
    return Cells(p, q, p - q * np.exp(edges[:-1]), 4 * _EPS * digits * np.maximum(p, 0.0))


def _sizes(edges: Array) -> Array:
    """The largest absolute loss in each cell; an infinite edge counts as 0, because it never matters."""
    sizes = np.abs(np.where(np.isfinite(edges), edges, 0.0))
    return np.maximum(sizes[1:], sizes[:-1])


def _doubt(edges: Array, p: Array, moved: Array, rate: float) -> Array:
    """Of gains that are sums of terms as large as `moved`, whose edges are found from logarithms as large as that of `rate`."""
    sizes = _sizes(edges)
    return 4 * _EPS * (6 + 2 * abs(math.log(rate)) + sizes) * (np.maximum(moved, 0.0) + sizes * np.maximum(p, 0.0))


class _MixedWithQ(ABC):
    """A pair with P = w·Q + R: Q without the record, and R where the sample holds it."""

    @property
    @abstractmethod
    def hit(self) -> float:
        """The chance 1 − w that the sample holds something of whom the neighbours differ in."""

    @abstractmethod
    def sampled(self, edges: Array) -> tuple[Array, Array]:
        """Masses of losses in (edges[i], edges[i+1]]: of R, and of Q."""

    def cells(self, edges: Array) -> Cells:
        """The gain is R − (e^edge − w)·Q."""
        sampled, q = self.sampled(edges)
        p, lift = (1 - self.hit) * q + sampled, np.expm1(edges) + self.hit
        moved = np.abs(sampled) + (np.abs(lift[:-1]) + self.hit) * np.abs(q)
        return Cells(p, q, sampled - lift[:-1] * q, _doubt(edges, p, moved, self.hit))

    def reversed_cells(self, edges: Array) -> Cells:
        """Of the pair (Q, P): the gain is (1 − w·e^edge)·Q − e^edge·R."""
        sampled, p = (values[::-1] for values in self.sampled(-edges[::-1]))
        q = (1 - self.hit) * p + sampled
        ratio = np.exp(edges[:-1])
        lift = self.hit * ratio - np.expm1(edges[:-1])
        moved = ratio * np.abs(sampled) + (np.abs(lift) + self.hit) * np.abs(p)
        return Cells(p, q, lift * p - ratio * sampled, _doubt(edges, p, moved, self.hit))


@dataclass(frozen=True)
class _Reversed:
    """The pair (Q, P)."""

    pair: LossPair

    @property
    def support(self) -> tuple[float, float]:
        low, high = self.pair.support
        return -high, -low

    def masses(self, edges: Array) -> tuple[Array, Array]:
        p, q = self.pair.masses(-edges[::-1])
        return q[::-1], p[::-1]

    def cells(self, edges: Array) -> Cells:
        own = getattr(self.pair, "reversed_cells", None)
        return own(edges) if own is not None else _cells_by_masses(self, edges)


def _normal_mass(edges: Array) -> Array:
    """Φ(edges[i+1]) − Φ(edges[i]), from the nearer tail."""
    flipped = edges[:-1] > 0
    return np.where(flipped, ndtr(-edges[:-1]) - ndtr(-edges[1:]), ndtr(edges[1:]) - ndtr(edges[:-1]))


def _mixture_loss(rate: float, exponent: float) -> float:
    """ln(1 − rate + rate·e^exponent), right in its own digits however rare samples are."""
    growth = rate * math.expm1(min(exponent, LOSS_CAP))
    if exponent <= LOSS_CAP and growth > -0.5:
        return math.log1p(growth)
    rest = math.log1p(-rate) if rate < 1 else -math.inf
    return float(np.logaddexp(rest, math.log(rate) + exponent))


@dataclass(frozen=True)
class _SampledGaussian(_MixedWithQ):
    """P = (1−q)N(0, σ²) + qN(1, σ²) against Q = N(0, σ²): removing a record (Zhu, Dong, Wang 2022, Theorem 11)."""

    q: float
    sigma: float

    @property
    def support(self) -> tuple[float, float]:
        reach = TAIL * self.sigma
        return self._loss(-reach), self._loss(1 + reach)

    @property
    def least(self) -> float:
        """No loss is less."""
        return math.log1p(-self.q) if self.q < 1 else -math.inf

    def _loss(self, x: float) -> float:
        return _mixture_loss(self.q, (2 * x - 1) / (2 * self.sigma**2))

    @property
    def hit(self) -> float:
        """The chance that the sample holds the record."""
        return self.q

    def sampled(self, edges: Array) -> tuple[Array, Array]:
        """Masses of losses in (edges[i], edges[i+1]]: that part of P in which the sample holds the record, and Q."""
        lift = np.expm1(edges) + self.q  # e^loss − (1 − q)
        with np.errstate(divide="ignore"):
            x = self.sigma**2 * (np.log(np.maximum(lift, 0.0)) - math.log(self.q)) + 0.5
        without, with_record = _normal_mass(x / self.sigma), _normal_mass((x - 1) / self.sigma)
        return self.q * with_record, without

    def masses(self, edges: Array) -> tuple[Array, Array]:
        sampled, without = self.sampled(edges)
        return (1 - self.q) * without + sampled, without


def _log_binomial(counts: Array, trials: int, rate: float) -> tuple[Array, Array]:
    """ln P(Binomial(trials, rate) = count), and how far each may be off in rounding: of the logarithms of three Γ, each of which
    is at most that of trials + 2, and of the other terms."""
    chosen, left = xlogy(counts, rate), xlog1py(trials - counts, -rate)
    off = 8 * _EPS * (1 + math.lgamma(trials + 2) + np.abs(chosen) + np.abs(left))
    return -np.log1p(trials) - betaln(trials - counts + 1, counts + 1) + chosen + left, off


@dataclass(frozen=True)
class _RowsSampled(_MixedWithQ):
    """P = Σ_j w_j·N(j/m, σ²) against Q = N(0, σ²), w_j = P(Binomial(m, q) = j): removing a person of m rows, each of which a sum
    holds with probability q (Ganesh 2024, mixtures of Gaussians; Charles and others 2024). σ is in units of m rows.

    Numbers of rows that are all but impossible are left out, and count as an infinite loss: `lost` is their mass. Weights w_j of
    j ≥ 1 are rounded upwards: more mass of P at the same places only raises profiles.

    The loss is found from e^loss − w_0, all that rows in the sum add, and never as the logarithm of a sum that has w_0 in it:
    where samples are rare that sum is 1, to all of its digits.
    """

    q: float
    m: int
    sigma: float

    @functools.cached_property
    def _parts(self) -> tuple[Array, Array]:
        """Shifts of one row in the sum and more, and logarithms of their weights, beyond `lost`."""
        counts = np.arange(1, self.m + 1, dtype=np.float64)
        logs, off = _log_binomial(counts, self.m, self.q)
        beyond = np.cumsum(np.exp(logs)[::-1])[::-1]  # P(as many or more)
        kept = (beyond > _LOST_ROWS) | (counts < 2)
        return counts[kept] / self.m, (logs + off)[kept]

    @functools.cached_property
    def lost(self) -> float:
        """P-mass that is left out."""
        counts = np.arange(len(self._parts[0]) + 1, self.m + 1, dtype=np.float64)
        logs, off = _log_binomial(counts, self.m, self.q)
        return float(np.exp(logs + off).sum())

    @property
    def least(self) -> float:
        """No loss is less: that of nobody's rows in the sum, ln w_0."""
        return self.m * math.log1p(-self.q)

    @property
    def support(self) -> tuple[float, float]:
        shifts = self._parts[0]
        reach = TAIL * self.sigma
        return self._loss(-reach), self._loss(float(shifts[-1]) + reach)

    def _loss(self, x: float) -> float:
        shifts, logs = self._parts
        exponents = (shifts * x - np.square(shifts) / 2) / self.sigma**2
        weights = np.exp(logs)
        rounded = float(weights.sum()) + math.expm1(self.least)  # weights of 1 in all, but for what is left out and rounding
        growth = float(weights @ np.expm1(np.minimum(exponents, LOSS_CAP))) + rounded
        if exponents.max() <= LOSS_CAP and growth > -0.5:
            return math.log1p(growth)
        return float(np.logaddexp(self.least, logsumexp(logs + exponents)))

    def _added(self, x: Array) -> tuple[Array, Array]:
        """ln(e^loss − w_0) at x, convex and increasing, and its derivative."""
        shifts, logs = self._parts
        exponents = logs[:, None] + (shifts[:, None] * x - np.square(shifts)[:, None] / 2) / self.sigma**2
        added = logsumexp(exponents, axis=0)
        return added, (np.exp(exponents - added) * shifts[:, None]).sum(axis=0) / self.sigma**2

    def _places(self, losses: Array) -> Array:
        """x where the loss is that (increasing): Newton's method, for some from where one part alone has the loss, so that it
        only falls; for those between from between."""
        with np.errstate(divide="ignore"):
            added = np.log(np.maximum(np.expm1(losses) - math.expm1(self.least), 0.0))
        x, finite = np.array(added), np.isfinite(added)
        wanted = added[finite]
        if not len(wanted):
            return x
        shifts, logs = (part[:, None] for part in self._parts)
        some = np.unique(np.append(np.arange(0, len(wanted), 64), len(wanted) - 1))
        start = np.concatenate(
            [((wanted[few] - logs) * self.sigma**2 / shifts + shifts / 2).min(axis=0) for few in self._in_turn(some)]
        )
        found = np.interp(wanted, wanted[some], self._solved(wanted[some], start))
        x[finite] = self._solved(wanted, found)
        return x

    def _in_turn(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """So many at once that arrays of all parts for each of them stay small."""
        return np.array_split(values, -(-len(values) * len(self._parts[0]) // _AT_ONCE))

    def _solved(self, added: Array, x: Array) -> Array:
        pairs = zip(self._in_turn(added), self._in_turn(x), strict=True)
        return np.concatenate([self._newton(*few) for few in pairs])

    def _newton(self, added: Array, x: Array) -> Array:
        for _ in range(100):
            found, steep = self._added(x)
            step = (found - added) / steep
            x = x - step
            if np.abs(step).max() <= 1e-13 * max(1.0, self.sigma):
                break
        return x

    @property
    def hit(self) -> float:
        """The chance that the sum holds some row of the person."""
        return -math.expm1(self.least)

    def sampled(self, edges: Array) -> tuple[Array, Array]:
        """Masses of losses in (edges[i], edges[i+1]]: that part of P in which the sum holds some row of the person, and Q."""
        shifts, logs = self._parts
        x = self._places(edges)
        sampled = np.zeros(edges.size - 1)
        for shift, weight in zip(shifts, np.exp(logs), strict=True):
            sampled += weight * _normal_mass((x - shift) / self.sigma)
        return sampled, _normal_mass(x / self.sigma)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        sampled, without = self.sampled(edges)
        return math.exp(self.least) * without + sampled, without


@dataclass(frozen=True)
class _SampledGaussianReplaced:
    """(1−q)N(0, σ²) + qN(½, σ²) against (1−q)N(0, σ²) + qN(−½, σ²): replacing a record, σ in units of the sensitivity
    2C, so that the record's vector moves from +C to −C (Lebeda, Regehr, Kamath, Steinke 2024)."""

    q: float
    sigma: float

    @property
    def support(self) -> tuple[float, float]:
        reach = TAIL * self.sigma + 0.5
        return -self._loss(reach), self._loss(reach)

    def _loss(self, x: float) -> float:
        u = 1 / (2 * self.sigma**2)
        return _mixture_loss(self.q, u * (x - 0.25)) - _mixture_loss(self.q, -u * (x + 0.25))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        found = self.cells(edges)
        return found.p, found.q

    def cells(self, edges: Array) -> Cells:
        # With u = e^{x/(2σ²)} and k = q·e^{−1/(8σ²)} the loss solves k·u² + r(1 − E)u − kE = 0, E = e^loss, r = 1 − q.
        # Solved for u·e^{−loss/2}, which keeps both tails finite: k·v² − 2r·sinh(loss/2)·v − k = 0.
        k = self.q * math.exp(-1 / (8 * self.sigma**2))
        b = (1 - self.q) * np.sinh(edges / 2) / k
        x = 2 * self.sigma**2 * (np.arcsinh(b) + edges / 2)
        zero = _normal_mass(x / self.sigma)
        plus, minus = _normal_mass((x - 0.5) / self.sigma), _normal_mass((x + 0.5) / self.sigma)
        stays, plus, minus = (1 - self.q) * zero, self.q * plus, self.q * minus
        ratio = np.exp(edges[:-1])
        grown = stays * np.expm1(edges[:-1])
        moved = np.abs(plus) + np.abs(ratio * minus) + np.abs(grown) + self.q * np.abs(stays)
        return Cells(stays + plus, stays + minus, plus - ratio * minus - grown, _doubt(edges, stays + plus, moved, self.q))


@dataclass(frozen=True)
class _SampledWithoutReplacement:
    """Replacing a record, of a sample of fixed size: δ(ε) is that of `pair`, (1−q)Q + qP against Q, for ε ≥ 0, and its mirror
    image below.

    Proof. Write A for the output where the record is not in the sample, B and B' for it, and its replacement, in it. Exchanging
    one record, drawn uniformly, of a sample without it for it gives a sample with it: so (B, A), (A, B), (B', A), (A, B') and
    (B, B') are all dominated by the Gaussian pair (P, Q). By advanced joint convexity (Balle, Barthe, Gaboardi 2018, Theorem 2)
    the divergence of (1−q)A + qB from (1−q)A + qB' at e^ε ≥ 1 is q times one of B from a mixture of A and B', at 1 + (e^ε −
    1)/q: at most that of `pair`. Below 0 the other order holds, and both are neighbours. ∎  (Zhu, Dong, Wang 2022, Theorem 11.)

    Losses above 0 are those of `pair`, those below mirror them, and the rest is at 0: it is not negative, as no point of the
    first two has a likelihood ratio of 1 or less.
    """

    pair: _SampledGaussian

    @property
    def support(self) -> tuple[float, float]:
        high = self.pair.support[1]
        return -high, high

    def masses(self, edges: Array) -> tuple[Array, Array]:
        found = self.cells(edges)
        return found.p, found.q

    def cells(self, edges: Array) -> Cells:
        """Gains of the cell that holds 0 begin at its lower edge, not at 0: all that lies above has (1 − e^edge)·q more there."""
        upper = self.pair.cells(np.maximum(edges, 0.0))
        lower = self.pair.reversed_cells(np.minimum(edges, 0.0))  # (Q, P) at −loss
        with_record, without = self.pair.masses(np.array([0.0, np.inf]))
        rest = max(0.0, 1.0 - float(with_record[0]) - float(without[0]))
        below = np.where(edges[:-1] < 0, np.expm1(edges[:-1]), 0.0)
        p, q, gain, doubt = (each + other for each, other in zip(_fields(upper), _fields(lower), strict=True))
        gain = gain - below * upper.q
        cell = int(np.searchsorted(edges, 0.0, side="left")) - 1
        p[cell] += rest
        q[cell] += rest
        gain[cell] -= rest * below[cell]
        doubt[cell] += 4 * _EPS * -below[cell]
        return Cells(p, q, gain, doubt)


def _fields(cells: Cells) -> tuple[Array, Array, Array, Array]:
    return cells.p, cells.q, cells.gain, cells.doubt


@dataclass(frozen=True)
class _Atoms:
    """Finitely many losses with their P-masses."""

    losses: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def support(self) -> tuple[float, float]:
        return min(self.losses), max(self.losses)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        losses, weights = np.array(self.losses), np.array(self.weights)
        losses = np.maximum(losses, -LOSS_CAP)  # upwards is pessimistic
        inside = (losses > edges[0]) & (losses <= edges[-1])  # an atom above the grid is left out: it counts as infinite
        losses, weights = losses[inside], weights[inside]
        cell = np.searchsorted(edges, losses, side="left") - 1
        p, q = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        np.add.at(p, cell, weights)
        np.add.at(q, cell, weights * np.exp(-losses))
        return p, q


@dataclass(frozen=True)
class _Laplace:
    """Laplace noise of scale 1/e on a query that moves from 0 to 1: losses in [−e, e], atoms at both ends."""

    e: float

    @property
    def support(self) -> tuple[float, float]:
        return -self.e, self.e

    def masses(self, edges: Array) -> tuple[Array, Array]:
        e = self.e
        x = np.clip((1 - edges / e) / 2, 0.0, 1.0)  # decreasing in the loss
        p = np.exp(-e * x[1:]) / 2 - np.exp(-e * x[:-1]) / 2
        q = np.exp(-e * (1 - x[:-1])) / 2 - np.exp(-e * (1 - x[1:])) / 2
        atom_p, atom_q = _Atoms((-e, e), (math.exp(-e) / 2, 0.5)).masses(edges)
        return p + atom_p, q + atom_q


@dataclass(frozen=True)
class Directions:
    """Pairs for removing and for adding a record, and the P-mass of an infinite loss."""

    remove: LossPair
    add: LossPair
    infinite: float = 0.0


@functools.singledispatch
def loss_pairs(event: Event) -> Directions:
    """The dominating pairs of one leaf event."""
    if event.whole is not event:
        return loss_pairs(event.whole)
    raise UnsupportedEventError(f"The PLD accountant cannot bound {event}.")


def composed_pairs(event: Event, count: int) -> list[tuple[Directions, int]]:
    """Dominating pairs whose composition, each so many times, bounds `count` copies of one leaf event, chosen adaptively."""
    if isinstance(event, ExponentialMechanism) and event.epsilon <= LARGEST_RANGE:
        return [(_choices(event.epsilon, size), number) for size, number in blocks(event.epsilon, count).items()]
    return [(loss_pairs(event), count)]


def symmetric(pair: LossPair, infinite: float = 0.0) -> Directions:
    return Directions(pair, pair, infinite)


def gaussian_pair(s: float) -> LossBound:
    return LossBound(Normal(), np.array([s]), np.array([s * s / 2]), np.array([]))


@loss_pairs.register
def _(event: Gaussian) -> Directions:
    return symmetric(gaussian_pair(1 / event.noise_multiplier))


@dataclass(frozen=True)
class _Mixture:
    """One of several Gaussian pairs, drawn with known chances: which one, everybody sees."""

    shifts: tuple[float, ...]
    chances: tuple[float, ...]

    @property
    def support(self) -> tuple[float, float]:
        return gaussian_pair(max(self.shifts)).support

    def masses(self, edges: Array) -> tuple[Array, Array]:
        p, q = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        for shift, chance in zip(self.shifts, self.chances, strict=True):
            inner_p, inner_q = gaussian_pair(shift).masses(edges)
            p, q = p + chance * inner_p, q + chance * inner_q
        return p, q


@loss_pairs.register
def _(event: RandomStop) -> Directions:
    shifts = stopped_shifts(event.steps, event.contraction, event.rounding) / event.noise_multiplier
    return symmetric(_Mixture(*_grouped(np.sort(np.maximum(shifts, 1 / MOST_NOISE))[::-1])))


def _grouped(falling: Array) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Few shifts that are no smaller, and their shares."""
    largest, counts = [float(falling[0])], [0]
    for shift in falling.tolist():
        if shift < 0.99 * largest[-1]:
            largest.append(shift)
            counts.append(0)
        counts[-1] += 1
    return tuple(largest), tuple(count / len(falling) for count in counts)


@loss_pairs.register
def _(event: Laplace) -> Directions:
    return symmetric(_Laplace(math.sqrt(2) / event.noise_multiplier))


@loss_pairs.register
def _(event: PureDP) -> Directions:
    e = event.epsilon
    return symmetric(_Atoms((-e, e), (float(expit(-e)), float(expit(e)))))


@loss_pairs.register
def _(event: ExponentialMechanism) -> Directions:
    return _choices(event.epsilon, 1) if event.epsilon <= LARGEST_RANGE else loss_pairs(PureDP(event.epsilon, event.relation))


def _choices(epsilon: float, count: int) -> Directions:
    """Of so many choices together: see `dperm.privacy.accountants.bounded_range`."""
    return symmetric(_Atoms(*loss_atoms(epsilon, count)))


@loss_pairs.register
def _(event: ApproximateDP) -> Directions:
    e, rest = event.epsilon, 1 - event.delta
    return symmetric(_Atoms((-e, e), (rest * float(expit(-e)), rest * float(expit(e)))), infinite=event.delta)


@loss_pairs.register
def _(event: PrivacyProfile) -> Directions:
    # a hull's slope jumps at x = e^ε by the Q-mass of the loss ε; only losses above 0 are read off: those below mirror them, and
    # what is left is 0
    corners = hull(event)
    corners.append((math.inf, corners[-1][1]))
    middles = [(bend(*three), three[1][0]) for three in zip(corners, corners[1:], corners[2:], strict=False)]
    losses = [loss for _, loss in middles if loss > 0]
    p = [mass for mass, loss in middles if loss > 0]
    q = [mass * math.exp(-loss) for mass, loss in middles if loss > 0]
    infinite = event.deltas[-1]
    middle = max(0.0, 1.0 - infinite - sum(p) - sum(q))
    return symmetric(_Atoms((*(-loss for loss in losses), 0.0, *losses), (*q, middle, *p)), infinite=infinite)


@loss_pairs.register
def _(event: ObjectivePerturbationEvent) -> Directions:
    return symmetric(_symmetrised(event), objective_perturbation.LONG_CHANCE)


@functools.lru_cache(maxsize=256)
def _symmetrised(event: ObjectivePerturbationEvent) -> SymmetrisedLoss:
    return SymmetrisedLoss(objective_perturbation.loss_bound(event))


@loss_pairs.register
def _(event: PoissonSampled) -> Directions:
    inner = event.event
    if not isinstance(inner, Gaussian):
        raise UnsupportedEventError(f"The PLD accountant cannot bound {inner} under Poisson sampling.")
    if inner.relation is Relation.REPLACE_ONE:
        if 1 / (8 * inner.noise_multiplier**2) > LOSS_CAP:
            raise UnsupportedEventError(f"The PLD accountant cannot bound so little noise under replace-one: {event}.")
        return symmetric(_SampledGaussianReplaced(event.rate, min(inner.noise_multiplier, MOST_NOISE)))
    pair = _SampledGaussian(event.rate, min(inner.noise_multiplier, MOST_NOISE))
    return Directions(pair, _Reversed(pair))


@loss_pairs.register
def _(event: Side) -> Directions:
    pairs = loss_pairs(event.event)
    return Directions(pairs.add, pairs.remove, pairs.infinite) if event.joins else pairs


@loss_pairs.register
def _(event: RowsSampled) -> Directions:
    pair = _RowsSampled(event.rate, event.rows, min(event.event.noise_multiplier, MOST_NOISE))
    return Directions(pair, _Reversed(pair), infinite=pair.lost)


@loss_pairs.register
def _(event: TruncatedPoisson) -> Directions:
    return loss_pairs(PoissonSampled(event.rate, event.event))


@loss_pairs.register
def _(event: RandomAllocation) -> Directions:
    if event.event.noise_multiplier < LEAST_NOISE:
        return symmetric(_Atoms((0.0,), (1.0,)), infinite=1.0)
    ratio = allocation_ratio(event.steps, event.event.noise_multiplier)
    return Directions(ratio, _Reversed(ratio), infinite=ratio.lost)


@loss_pairs.register
def _(event: SampledWithoutReplacement) -> Directions:
    pair = _SampledGaussian(event.rate, min(event.event.noise_multiplier, MOST_NOISE))
    return symmetric(_SampledWithoutReplacement(pair))
