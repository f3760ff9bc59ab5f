"""What an event costs a budget that many releases share: its Rényi divergence at one order, and the mass beside it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dperm import _validate as check
from dperm.privacy.events import Event, UnsupportedEventError, leaves
from dperm.privacy.pairs import loss_pairs
from dperm.privacy.pld import infinite_mass, lay
from dperm.privacy.rdp import rdp_curve

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
