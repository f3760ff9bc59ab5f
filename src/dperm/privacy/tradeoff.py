"""What an adversary can reach: the (ε, δ) profile read as a trade-off between false and true positives.

For every ε ≥ 0, any test with false-positive rate a has true-positive rate at most min(e^ε·a + δ(ε),
1 − e^{−ε}(1 − δ(ε) − a)) (Wasserman & Zhou 2010; Dong, Roth, Su 2022, Proposition 2.12).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class AttackView:
    """Bounds on every attack that tells two neighbouring data sets apart, knowing all other records."""

    advantage: float
    """Largest true-positive minus false-positive rate: δ(0)."""
    false_positive_rates: tuple[float, ...]
    true_positive_rates: tuple[float, ...]


def attack_view(
    epsilons: NDArray[np.float64],
    deltas: NDArray[np.float64],
    false_positive_rates: Sequence[float] = (0.001, 0.01, 0.1),
) -> AttackView:
    """From a profile on a grid of ε ≥ 0 (a coarser grid gives weaker, still valid bounds)."""
    rates = np.asarray(false_positive_rates, dtype=float)[:, None]
    bounds = np.minimum(np.exp(epsilons) * rates + deltas, 1 - np.exp(-epsilons) * (1 - deltas - rates))
    best = np.clip(bounds.min(axis=1), rates[:, 0], 1.0)
    # advantage: max over a of min over ε; at ε = 0 the bound is a + δ(0), and it is attained
    return AttackView(float(deltas[0]), tuple(false_positive_rates), tuple(float(rate) for rate in best))
