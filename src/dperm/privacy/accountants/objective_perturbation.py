"""The privacy loss of objective perturbation, as a bound that composes.

With s = sensitivity ÷ noise_std and c = ln(1 + smoothness/strong_convexity):

- generic, add/remove: c + s²/2 + s·|Z| (Redberg, Koskela, Wang 2023, with the matrix determinant lemma);
- generic, replace-one: c + s²/2 + s·χ₂, the two gradients spanning a plane;
- sharp, add/remove, for losses whose slope and curvature are tied: sup over p of
  ln(1 + h(p)/strong_convexity) + p·sZ + p²s²/2;
- means of many losses, and the sharp bound of replace-one: a flow of trade-off curves (`accountants.tradeoff_flow`).

Theorems and proofs: docs/objective-perturbation.md.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from dperm._types import Array
from dperm.privacy.accountants.loss_bound import HalfNormal, LossBound, Normal, Rayleigh, upper_envelope
from dperm.privacy.accountants.tradeoff_flow import BothGains, Gain, GaussianGain, HingeGain, TiedGain, TwoSidedGain, flow_bound
from dperm.privacy.events import ObjectivePerturbationEvent, Relation

_LINES = 1024

#: A solver's tolerance is made for linear terms up to noise_std·(√p + LONGER) + 2·lipschitz, and counts as failed beyond.
LONGER = 37.0
#: What that adds to δ, whatever ε and the records are: the chance that b is so long on a data set, and that the b of a neighbour
#: with the same minimiser is, each at most e^(−LONGER²/2). Less than any δ's last digit.
LONG_CHANCE = 2.0 * math.exp(-(LONGER**2) / 2) * (1 + 2.0**-40)


@functools.lru_cache(maxsize=256)
def loss_bound(event: ObjectivePerturbationEvent) -> LossBound:
    """The tightest bound available for `event`, valid in both directions of its relation. ValueError where the noise is less than
    a tenth of what means of many losses move."""
    s = event.lipschitz / event.noise_std
    ratio = event.smoothness / event.strong_convexity
    replaced = event.relation is Relation.REPLACE_ONE
    if event.many or (replaced and event.loss is not None and _flows(ratio, s, event.loss)):
        coming, going = _gains(ratio / s, event.loss)
        both = BothGains(coming, going)
        return flow_bound(both, both, s) if replaced else flow_bound(coming, going, s)
    c = math.log1p(ratio)
    if replaced:
        s = 2 * s
        return LossBound(Rayleigh(), np.array([s]), np.array([c + s * s / 2]), np.array([]))
    if event.loss is not None:
        return _huber_bound(s, c) if event.loss == "huber" else _logistic_bound(s, 4 * ratio)
    return LossBound(HalfNormal(), np.array([s]), np.array([c + s * s / 2]), np.array([]))


def _gains(curvature: float, loss: str | None) -> tuple[Gain, Gain]:
    """What an event gains by a loss that comes, and its complement loses, per unit of s; `curvature` is β/(Λs)."""
    if loss is None:
        return TwoSidedGain(curvature), TwoSidedGain(curvature, losing=True)
    return (HingeGain(curvature) if loss == "huber" else TiedGain(4 * curvature)), GaussianGain()


def _flows(ratio: float, s: float, loss: str) -> bool:
    """Whether the flow is below c + 2s² + 2s·χ₂ for one record that is replaced, as measured: not where curvature weighs much
    and noise is large, where ratio stands for ln(1 + ratio)."""
    return ratio <= 0.5 or ratio / s <= (2.0 if loss == "huber" else 5.5)


def _huber_bound(s: float, c: float) -> LossBound:
    # Curvature is constant for p in (0, 1), and p·sz + p²s²/2 is convex in p: the sup sits at an end.
    return LossBound(Normal(), *upper_envelope(np.array([0.0, s]), np.array([c, c + s * s / 2])))


def _logistic_bound(s: float, kappa: float) -> LossBound:
    """Certified envelope of sup_p ln(1 + κp(1−p)) + p·sz + p²s²/2 over p in [0, 1].

    On each cell of a p-grid the concave part lies below its tangent at the midpoint and the convex part below its
    chord, so the sup over the cell is attained by one of two lines in z. The grid is dense near 0 and 1, where
    the concave part bends most.
    """
    p = np.sin(np.linspace(0, np.pi / 2, _LINES + 1)) ** 2
    middle = (p[1:] + p[:-1]) / 2
    denominator = 1 + kappa * middle * (1 - middle)
    value, slope = np.log(denominator), kappa * (1 - 2 * middle) / denominator
    tangent_low, tangent_high = value + slope * (p[:-1] - middle), value + slope * (p[1:] - middle)
    concave = np.maximum(np.append(tangent_low, -np.inf), np.append(-np.inf, tangent_high))
    return LossBound(Normal(), *upper_envelope(s * p, concave + (s * p) ** 2 / 2))


def delta(event: ObjectivePerturbationEvent, epsilon: float) -> float:
    """Upper bound on δ(ε)."""
    return min(1.0, loss_bound(event).delta(epsilon) + LONG_CHANCE)


def rdp(event: ObjectivePerturbationEvent, orders: Array) -> Array:
    return loss_bound(event).rdp(orders)
