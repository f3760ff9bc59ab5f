"""Rényi differential privacy: each event's curve, composition by addition, and conversion to (ε, δ).

A curve is handled by one function per event (`rdp_curve` dispatches on the event's type); counts are multiplied in
one place, `rdp`. All values are upper bounds in nats.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, logsumexp

from dperm.privacy import objective_perturbation
from dperm.privacy.events import (
    Disjoint,
    Event,
    ExponentialMechanism,
    FilteredRdp,
    Gaussian,
    HiddenIterates,
    IndividualGaussian,
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

__all__ = ["ORDERS", "conversion", "orders_for", "rdp", "rdp_delta", "rdp_epsilon", "rdp_to_epsilon"]

Array = NDArray[np.float64]

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
    return total


@functools.singledispatch
def rdp_curve(event: Event, orders: Array) -> Array:
    """One leaf event's curve."""
    raise UnsupportedEventError(f"The RDP accountant cannot bound {event}.")


@rdp_curve.register
def _(event: Gaussian, orders: Array) -> Array:
    return orders / (2 * event.noise_multiplier**2)


@rdp_curve.register(IndividualGaussian)
@rdp_curve.register(HiddenIterates)
def _(event: IndividualGaussian | HiddenIterates, orders: Array) -> Array:
    return rdp_curve(event.whole, orders)


@rdp_curve.register
def _(event: Laplace, orders: Array) -> Array:
    # Mironov 2017, Table II, with 1/λ = √2/noise_multiplier.
    e, a = math.sqrt(2) / event.noise_multiplier, orders
    exact = np.logaddexp(np.log(a / (2 * a - 1)) + (a - 1) * e, np.log((a - 1) / (2 * a - 1)) - a * e) / (a - 1)
    return _at_least_a_little(exact, e, orders)


@rdp_curve.register
def _(event: PureDP, orders: Array) -> Array:
    # Randomised response: Mironov 2017, Proposition 5, with p = e^ε/(1 + e^ε).
    e = event.epsilon
    log_p, log_q = -np.log1p(np.exp(-e)), -e - np.log1p(np.exp(-e))
    exact = np.logaddexp(orders * log_p + (1 - orders) * log_q, orders * log_q + (1 - orders) * log_p) / (orders - 1)
    return _at_least_a_little(exact, e, orders)


def _at_least_a_little(exact: Array, e: float, orders: Array) -> Array:
    """Of e-DP: rounding would leave nothing of a small divergence. Bun & Steinke 2016, Proposition 3.3, is above it there, by
    next to nothing."""
    return np.where(orders * e < 1e-3, orders * e**2 / 2, exact)


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
        m = np.arange(int(order) + 1)
        terms = _log_binomial(order, m) + m * math.log(q) + (order - m) * math.log1p(-q) + (m * m - m) / (2 * sigma**2)
        return max(0.0, float(logsumexp(terms)) / (order - 1))
    # E[(μ/μ₀)^α] split at z₀, where both components weigh the same; each half is a binomial series in the smaller one.
    z0 = sigma**2 * math.log(1 / q - 1) + 0.5
    count = int(order) + 64
    i = np.arange(count, dtype=float)
    coefficient, sign = _log_binomial_signed(order, i)
    j = order - i
    low = coefficient + i * math.log(q) + j * math.log1p(-q) + (i * i - i) / (2 * sigma**2) + log_ndtr((z0 - i) / sigma)
    high = coefficient + j * math.log(q) + i * math.log1p(-q) + (j * j - j) / (2 * sigma**2) + log_ndtr((j - z0) / sigma)
    terms = np.concatenate([low, high])
    total, total_sign = logsumexp(terms, b=np.concatenate([sign, sign]), return_sign=True)
    # Beyond i > α the signs alternate and the magnitudes fall: the last term bounds what is cut off.
    remainder = np.logaddexp(low[-1], high[-1])
    if total_sign <= 0 or not (low[-1] <= low[-2] and high[-1] <= high[-2]):
        return _interpolated(q, sigma, order)
    return max(0.0, float(np.logaddexp(total, remainder)) / (order - 1))


def _interpolated(q: float, sigma: float, order: float) -> float:
    """(α−1)·RDP(α) is convex in α and 0 at α = 1: the chord between integer orders is an upper bound."""
    low, high = math.floor(order), math.ceil(order)
    weight = order - low
    left = (low - 1) * _sampled_gaussian(q, sigma, float(low)) if low > 1 else 0.0
    return ((1 - weight) * left + weight * (high - 1) * _sampled_gaussian(q, sigma, float(high))) / (order - 1)


def _log_binomial(n: float, k: Array | NDArray[np.int64]) -> Array:
    return gammaln(n + 1) - gammaln(k + 1.0) - gammaln(n - k + 1)


def _log_binomial_signed(n: float, k: Array) -> tuple[Array, Array]:
    """ln |C(n, k)| and its sign for real n."""
    factors = (n - k[:-1]) / (k[:-1] + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.abs(factors)))])
    return logs, np.concatenate([[1.0], np.cumprod(np.sign(factors))])


def orders_for(event: Event) -> Array:
    """The default orders, and those of the filters within `event`, beyond which nothing is known."""
    own = [leaf.order for leaf in released_leaves(event) if isinstance(leaf, FilteredRdp)]
    return np.union1d(ORDERS[min(own) >= ORDERS], own) if own else ORDERS


def rdp_to_epsilon(orders: Array, curve: Array, delta: float) -> float:
    """Smallest ε over the orders (Canonne, Kamath, Steinke 2020, Proposition 12), at least 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        candidates = curve + conversion(orders, delta)
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
    exponents = (orders - 1) * (rdp(event, orders) - epsilon) + (orders - 1) * np.log1p(-1 / orders) - np.log(orders)
    return math.exp(min(0.0, float(np.min(exponents))))
