"""The cost of an event to a budget that many releases share: the μ of a Gaussian mechanism that gives away no less, or a bound
on the Rényi divergence at one order.

A mechanism is μ-GDP where no test tells neighbours apart better than N(0, 1) from N(μ, 1) (Dong, Roth, Su 2022).
Gaussian noise is, with μ = 1 ÷ noise multiplier. Other mechanisms are once outputs of little chance are set aside: noise on
samples, for one, has the tails of noise on all records.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from dperm import _validate as check
from dperm._types import Array
from dperm.privacy.accountants.dominating_pairs import loss_pairs
from dperm.privacy.accountants.pld import LOSS_CAP, PrivacyLossDistribution, infinite_mass, lay
from dperm.privacy.accountants.rdp import rdp_curve
from dperm.privacy.events import Composed, Event, Gaussian, PureDP, SelfComposed, UnsupportedEventError, leaves

_POINTS = 160  # of a profile: with these, Gaussian noise that is treated like any other has a μ that is at most 0.5 % above
_ENDS = (1.0, 1.0001, 1.002, 1.02)  # of the largest ε: further points
_LEAST = 1e-4  # of the mass that may be set aside: what more points below would bring is lost in rounding
_ROUNDING = 1 + 1e-9
_LAST_DIGITS = 1e-12  # of δ, which may have been rounded down


class GaussianBound(NamedTuple):
    """Outside outputs of chance at most `mass`, under either neighbour, a mechanism is √`mu_squared`-GDP."""

    mu_squared: float
    mass: float = 0.0


def gdp_bounds(event: Event, mass: float) -> list[GaussianBound]:
    """Bounds that set aside at most `mass` in [0, 1), the largest mass first: less mass, larger μ. At least one.

    With δ(ε) for the privacy profile, both directions, the trade-off between errors stays above lines of slope −e^ε and their
    mirror images (Dong, Roth, Su 2022, Proposition 2.12): above the polygon f of those with ε up to a largest one. f is that of
    two distributions that both have an atom of m = δ(largest ε) where the other has none; the mechanism is a randomised image of
    them (Blackwell 1951). Given that neither atom is met, errors are those of f ÷ (1 − m). A Gaussian's
    trade-off is convex, so that it lies below a polygon if it does at the corners: μ is the largest of their Φ⁻¹(1 − α) − Φ⁻¹(β).

    UnsupportedEventError for an event that no μ bounds so.
    """
    check.fraction("mass", mass, zero=True)
    counts = leaves(event)
    noise = {leaf: count for leaf, count in counts.items() if isinstance(leaf, Gaussian)}
    others = tuple(SelfComposed(leaf, count) for leaf, count in counts.items() if leaf not in noise)
    squares = sum(count / leaf.noise_multiplier**2 for leaf, count in noise.items())
    found: list[tuple[float, float]] = []  # μ² and mass of what is not Gaussian noise
    if others:  # what may go astray of them is in their profile
        found = _bounds(PrivacyLossDistribution(Composed(others)), mass)
    if all(isinstance(leaf, Gaussian | PureDP) for leaf in counts):
        found.append((sum(count * _pure(leaf.epsilon) ** 2 for leaf, count in counts.items() if isinstance(leaf, PureDP)), 0.0))
    if not found:
        what = f"with δ = {mass:.2g} set aside" if mass else "with nothing set aside: only Gaussian noise and pure ε-DP have one"
        raise UnsupportedEventError(f"No Gaussian mechanism that gives away no less is known {what}.")
    return [GaussianBound((squares + mu_squared) * _ROUNDING, aside) for mu_squared, aside in found]


def _pure(epsilon: float) -> float:
    """μ of an ε-DP mechanism: its errors lie above the chords through (1, 1) ÷ (1 + e^ε), and a Gaussian's below chords."""
    if epsilon < 1e-4:
        return epsilon * math.sqrt(math.pi / 2)  # its slope at 0, which falls: rounding would leave nothing
    return -2 * float(ndtri(expit(-epsilon)))


def _bounds(losses: PrivacyLossDistribution, mass: float) -> list[tuple[float, float]]:
    if not mass:
        return []
    largest = next((value for share in (_LEAST, 0.5, 0.999) if (value := losses.epsilon(mass * share)) < LOSS_CAP), math.inf)
    if not math.isfinite(largest):
        return []
    points = np.unique(largest * np.concatenate([(np.arange(_POINTS) / _POINTS) ** 1.5, _ENDS]))
    slopes, deltas = _lower_hull(np.exp(points), losses.deltas(list(points)) * (1 + _LAST_DIGITS))
    found = [(_mu(slopes[:end], deltas[:end]) ** 2, float(deltas[end - 1])) for end in np.flatnonzero(deltas <= mass) + 1]
    return [(mu_squared, aside) for mu_squared, aside in found if math.isfinite(mu_squared)]


def _mu(slopes: Array, deltas: Array) -> float:
    """The least μ at which a Gaussian's trade-off lies below the polygon of these lines and their mirror images, once atoms of
    the last δ are set aside. Both are their own mirror images: corners with α < β tell, and where the polygon meets the
    diagonal."""
    middle, aside = float(np.max((1 - deltas) / (1 + slopes))), deltas[-1]
    corners = (deltas[:-1] - deltas[1:]) / np.diff(slopes)  # α where a line meets the next; β there is 1 − met
    met = deltas[:-1] + slopes[:-1] * corners  # above `aside`, where α is above 0
    kept = (corners > 0) & (corners < middle)  # others lie below the mirror images
    false, true = corners[kept] / (1 - aside), (met[kept] - aside) / (1 - aside)
    return float(np.max(ndtri(true) - ndtri(false), initial=-2 * float(ndtri(middle / (1 - aside)))))


def _lower_hull(slopes: Array, deltas: Array) -> tuple[Array, Array]:
    """The convex lower hull: δ is convex in e^ε, so that bounds above it say no more than chords of others."""
    hull: list[int] = []
    for place in range(len(slopes)):
        while len(hull) >= 2:
            first, second = hull[-2], hull[-1]
            rise = (deltas[place] - deltas[first]) * (slopes[second] - slopes[first])
            if (deltas[second] - deltas[first]) * (slopes[place] - slopes[first]) < rise:
                break
            hull.pop()
        hull.append(place)
    kept = np.array(hull)
    return slopes[kept], np.minimum.accumulate(deltas[kept])


_GRID = 1e-3  # of privacy losses, in units of 1/order: the bound is above the divergence by no more than this


class Divergence(NamedTuple):
    """`rdp`: bound on the Rényi divergence, outside an event of chance at most `mass`; `astray`: chance that another one ran."""

    rdp: float
    mass: float = 0.0
    astray: float = 0.0


def divergence(event: Event, order: float) -> Divergence:
    """Of all parts of `event` together, at an order above 1.

    Parts without a Rényi divergence, such as `ApproximateDP` and `PrivacyProfile`, are what is left of their dominating pair
    (P, Q) once infinite losses are set aside: P given a finite loss has divergence at most
    (ln Σ P·e^{(α−1)·loss} − α·ln(1 − m))/(α − 1) from Q restricted to such losses, not normalised, where m is the P-mass set
    aside; what holds against less than Q holds against Q. Which parts are chosen may depend on what the earlier ones released:
    divergences add up (Feldman & Zrnic 2021, Theorem 4.3), and so do masses, by the union bound.

    UnsupportedEventError for a part that no accountant bounds.
    """
    order = check.finite("order", order)
    if order <= 1:
        raise ValueError(f"Expected order > 1, got {order!r}.")
    total = Divergence(0.0)
    for leaf, count in leaves(event).items():
        one = _of_leaf(leaf, order)
        total = Divergence(total.rdp + count * one.rdp, total.mass + count * one.mass, total.astray + count * leaf.astray)
    return total


def _of_leaf(leaf: Event, order: float) -> Divergence:
    try:
        return Divergence(float(rdp_curve(leaf, np.array([order]))[0]))
    except UnsupportedEventError:
        worst, directions = Divergence(0.0), loss_pairs(leaf)
        for pair in {directions.add, directions.remove}:
            finite = lay(pair, _GRID / order)
            aside = infinite_mass(pair) + directions.infinite
            if aside >= 1:
                raise UnsupportedEventError(f"{leaf} has no finite loss.") from None
            moment = finite.tilted(order - 1)
            value = (moment.log_moment + moment.rounding - order * math.log1p(-aside)) / (order - 1)
            worst = Divergence(max(worst.rdp, value), max(worst.mass, aside))
        return worst
