"""Rényi differential privacy: each event's curve, composition by addition, and conversion to (ε, δ).

A curve is handled by one function per event (`rdp_curve` dispatches on the event's type); counts are multiplied in
one place, `rdp`. All values are upper bounds in nats.

Divergences are often tiny: what is 1 in a moment is left out of its sum, so that positive terms remain, which keep their digits.
Each term's exponent is raised by the rounding that its parts may have had, so that curves round up.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from dperm._types import Array
from dperm.privacy.accountants import objective_perturbation
from dperm.privacy.events import (
    Disjoint,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    Laplace,
    ObjectivePerturbationEvent,
    PoissonSampled,
    PureDP,
    Relation,
    Side,
    UnsupportedEventError,
    leaves,
    released_leaves,
)

_EPS = float(np.finfo(np.float64).eps)
_LARGE = 30.0  # exponents beyond which 1 matters no more

#: Default orders: dense where the optimum usually lies, geometric to 16,384 for very small ε.
ORDERS: Array = np.unique(
    np.concatenate(
        [1 + np.geomspace(0.01, 1, 20), np.arange(2, 12, 0.25), np.arange(12, 64), np.geomspace(64, 16384, 72).round()]
    )
)


def rdp(event: Event, orders: Array = ORDERS) -> Array:
    """Rényi divergence bound of `event` at each order α > 1; shape of `orders`."""
    total = np.zeros_like(orders, dtype=float)
    for leaf, count in leaves(event).items():
        total += count * rdp_curve(leaf, orders)
    return total * (1 + max(0, len(leaves(event)) - 1) * _EPS)


@functools.singledispatch
def rdp_curve(event: Event, orders: Array) -> Array:
    """One leaf event's curve."""
    if event.whole is not event:
        return rdp_curve(event.whole, orders)
    raise UnsupportedEventError(f"The RDP accountant cannot bound {event}.")


@rdp_curve.register
def _(event: Gaussian, orders: Array) -> Array:
    return orders / (2 * event.noise_multiplier**2)  # right to two last places, which conversions allow for


@rdp_curve.register
def _(event: Laplace, orders: Array) -> Array:
    # Mironov 2017, Table II, with 1/λ = √2/noise_multiplier: ln of α/(2α−1)·e^{(α−1)e} + (α−1)/(2α−1)·e^{−αe}, over α − 1. Less 1
    # that is a mean of e^x − 1 − x at both exponents, as those of x cancel.
    e, a = math.sqrt(2) / event.noise_multiplier, orders
    up = (a - 1) * e
    excess = (a * _beyond_linear(np.minimum(up, _LARGE)) + (a - 1) * _beyond_linear(-a * e)) / (2 * a - 1)
    large = np.logaddexp(np.log(a / (2 * a - 1)) + up, np.log((a - 1) / (2 * a - 1)) - a * e)
    return np.where(up > _LARGE, large, np.log1p(excess)) / (a - 1) * (1 + 64 * _EPS)


def _beyond_linear(x: Array) -> Array:
    """e^x − 1 − x ≥ 0, without cancellation."""
    near = np.clip(x, -0.5, 0.5)
    series = np.zeros_like(near)
    for k in range(18, 2, -1):
        series = near / k * (1 + series)
    return np.where(np.abs(x) <= 0.5, near**2 / 2 * (1 + series), np.expm1(x) - x)


@rdp_curve.register
def _(event: PureDP, orders: Array) -> Array:
    # Randomised response: Mironov 2017, Proposition 5. Its moment is cosh((α − ½)ε)/cosh(ε/2) = 1 + x with
    # x = 2·sinh(αε/2)·sinh((α − 1)ε/2)/cosh(ε/2).
    e, up = event.epsilon, (orders - 1) * event.epsilon
    parts = [up, np.log(-np.expm1(-orders * e)), np.log(-np.expm1(-up)), np.full_like(up, -math.log1p(math.exp(-e)))]
    return np.logaddexp(0.0, sum(parts) + _rounding(*parts)) / (orders - 1) * (1 + 4 * _EPS)


def _rounding(*parts: Array) -> Array:
    """What the sum of these may be too small by: each is right to a few units in its last place."""
    return 4 * _EPS * (2.0 + np.sum([np.abs(part) for part in parts], axis=0))


@rdp_curve.register
def _(event: ExponentialMechanism, orders: Array) -> Array:
    return orders * event.epsilon**2 / 8  # zCDP by Hoeffding's lemma: Cesar & Rogers 2021, Lemma 3.2


@rdp_curve.register
def _(event: FilteredRdp, orders: Array) -> Array:
    # the divergence never falls as its order rises; above the filter's order nothing is known
    return np.where(orders <= event.order, event.rdp_budget, np.inf)


@rdp_curve.register
def _(event: ObjectivePerturbationEvent, orders: Array) -> Array:
    return objective_perturbation.rdp(event, orders)


@rdp_curve.register
def _(event: Disjoint, orders: Array) -> Array:
    # the largest over what a unit may have met; divergences of other releases add to each alike
    curves = [sum(count * rdp_curve(leaf, orders) for leaf, count in option.items()) for option in event.options]
    return np.max([np.broadcast_to(curve, orders.shape) for curve in curves], axis=0)


@rdp_curve.register
def _(event: Side, orders: Array) -> Array:
    return rdp_curve(event.event, orders)  # curves bound both directions


@rdp_curve.register
def _(event: PoissonSampled, orders: Array) -> Array:
    inner = event.event
    if not isinstance(inner, Gaussian):
        raise UnsupportedEventError(f"The RDP accountant cannot bound {inner} under Poisson sampling.")
    if inner.relation is not Relation.ADD_OR_REMOVE_ONE:
        raise UnsupportedEventError(f"The RDP accountant bounds Poisson sampling under add/remove only, got {inner}.")
    return np.array([_sampled_gaussian(event.rate, inner.noise_multiplier, float(order)) for order in orders])


def _sampled_gaussian(q: float, sigma: float, order: float) -> float:
    """Mironov, Talwar, Zhang 2019: integer orders by section 3.3, fractional by their series (section 3.3, "real α")."""
    if order == int(order):
        m = np.arange(
            2, int(order) + 1, dtype=float
        )  # the terms of 0 and 1 are those of a binomial law, which sum to 1 with others
        growth = (m * m - m) / (2 * sigma**2)
        parts = [*_log_binomial(order, m), m * math.log(q), (order - m) * math.log1p(-q), growth, np.log(-np.expm1(-growth))]
        excess = float(logsumexp(sum(parts) + _rounding(*parts)))
        return float(np.logaddexp(0.0, excess)) / (order - 1) * (1 + order * _EPS)
    chord = _interpolated(q, sigma, order)
    # E[(μ/μ₀)^α] split at z₀, where both components weigh the same; each half is a binomial series in the smaller one.
    z0 = sigma**2 * math.log(1 / q - 1) + 0.5
    count = int(order) + 64
    i = np.arange(count, dtype=float)
    coefficient, sign, sizes = _log_binomial_signed(order, i)
    j = order - i
    halves: list[Array] = []
    for exponents, tail in (((i, j), (z0 - i) / sigma), ((j, i), (j - z0) / sigma)):
        growth = (np.square(exponents[0]) - exponents[0]) / (2 * sigma**2)
        parts = [coefficient, exponents[0] * math.log(q), exponents[1] * math.log1p(-q), growth, log_ndtr(tail)]
        # towards a larger sum: terms of either sign
        halves.append(sum(parts) + sign * _rounding(sizes, *parts))
    terms, signs = np.concatenate(halves), np.concatenate([sign, sign])
    total, _ = logsumexp(terms, b=signs, return_sign=True)
    # A term is C(α, i) times a mean of rⁱ, r ≤ 1 the smaller component ÷ the larger: beyond i > α signs alternate, and their
    # sizes fall, so that the last ones bound what is cut off. The sum's own rounding is relative to the sum of all sizes.
    added = logsumexp([halves[0][-1], halves[1][-1], logsumexp(terms) + math.log(32 * _EPS)])
    return min(chord, float(np.logaddexp(total, added)) / (order - 1))


def _interpolated(q: float, sigma: float, order: float) -> float:
    """(α−1)·RDP(α) is convex in α and 0 at α = 1: the chord between integer orders is an upper bound."""
    low, high = math.floor(order), math.ceil(order)
    weight = order - low
    left = (low - 1) * _sampled_gaussian(q, sigma, float(low)) if low > 1 else 0.0
    return ((1 - weight) * left + weight * (high - 1) * _sampled_gaussian(q, sigma, float(high))) / (order - 1)


def _log_binomial(n: float, k: Array) -> tuple[Array, Array, Array]:
    """Parts of ln C(n, k)."""
    return np.full_like(k, gammaln(n + 1)), -gammaln(k + 1.0), -gammaln(n - k + 1)


def _log_binomial_signed(n: float, k: Array) -> tuple[Array, Array, Array]:
    """ln |C(n, k)| for real n, its sign, and the size of what was added up."""
    factors = (n - k[:-1]) / (k[:-1] + 1)
    logs = np.log(np.abs(factors))
    sizes = np.concatenate([[0.0], np.cumsum(np.abs(logs) + 1.0)])
    return np.concatenate([[0.0], np.cumsum(logs)]), np.concatenate([[1.0], np.cumprod(np.sign(factors))]), sizes


def orders_for(event: Event) -> Array:
    """The default orders, and those of the filters within `event`, beyond which nothing is known."""
    own = [leaf.order for leaf in released_leaves(event) if isinstance(leaf, FilteredRdp)]
    return np.union1d(ORDERS[min(own) >= ORDERS], own) if own else ORDERS


def rdp_to_epsilon(orders: Array, curve: Array, delta: float) -> float:
    """Smallest ε over the orders (Canonne, Kamath, Steinke 2020, Proposition 12), at least 0."""
    sizes = np.abs(curve) + (math.log(1 / delta) + np.log(orders)) / (orders - 1) + 1
    with np.errstate(over="ignore", invalid="ignore"):
        candidates = curve + conversion(orders, delta) + 8 * _EPS * sizes
    return max(0.0, float(np.nanmin(candidates)))


def conversion(orders: Array, delta: float) -> Array:
    """What is added to a Rényi divergence at each order to make it an ε at `delta` (the same proposition)."""
    return (math.log(1 / delta) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)) / (orders - 1)


def rdp_epsilon(event: Event, delta: float, orders: Array | None = None) -> float:
    orders = orders_for(event) if orders is None else orders
    return rdp_to_epsilon(orders, rdp(event, orders), delta)


def rdp_delta(event: Event, epsilon: float, orders: Array | None = None) -> float:
    """Smallest δ over the orders: the same proposition, solved for δ."""
    orders = orders_for(event) if orders is None else orders
    curve = rdp(event, orders)
    exponents = (orders - 1) * (curve - epsilon) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    sizes = (orders - 1) * (curve + epsilon) + np.log(orders) + 1
    return math.exp(min(0.0, float(np.min(exponents + 8 * _EPS * sizes))))
