"""Individual accounting: what a record may spend within a budget, and what it has spent.

Records spend squared lengths, in units of the largest that one may have: `full steps`. Filters turn a budget (ε, δ) into a
number of them. That of Gaussian differential privacy is exact; the Rényi filter, at an order that is fixed beforehand, takes
fewer of them and is here to compare.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.privacy.accountants.gaussian import gaussian_epsilon, gaussian_mu
from dperm.privacy.accountants.privacy_filters import rdp_budget

_LEVELS = 512  # of what was spent, between nothing and the most: each record's is rounded up to one


def affordable_steps(
    noise_multiplier: float, epsilon: float, delta: float, *, filter: Literal["gaussian", "renyi"] = "gaussian"
) -> float:
    """How many full steps of this noise a record may spend within (ε, δ).

    "gaussian": Koskela, Tobaben, Honkela 2023, Theorem 3.1. "renyi": Feldman & Zrnic 2021, Theorem 4.5, at the order that suits
    the budget best.
    """
    check.positive("noise_multiplier", noise_multiplier)
    if check.choice("filter", filter, ("gaussian", "renyi")) == "gaussian":
        return (gaussian_mu(epsilon, delta) * noise_multiplier) ** 2
    budget = rdp_budget(epsilon, delta)
    return 2 * budget.rdp_budget / budget.order * noise_multiplier**2


def individual_epsilons(spent: Array, noise_multiplier: float, delta: float) -> Array:
    """(n,): the ε at δ of each record by itself, that has spent so many full steps (n,). Private: it depends on the records.

    That of a run in which the record was held to this much beforehand. What was spent depends on the releases, too: the
    guarantee is the certificate's.
    """
    check.fraction("delta", delta)
    check.positive("noise_multiplier", noise_multiplier)
    given = np.asarray(spent, dtype=np.float64)
    if not (np.isfinite(given).all() and (given >= 0).all()):
        raise ValueError("Expected full steps that are finite and not negative.")
    roots = np.sqrt(given)
    most = float(roots.max(initial=0.0))
    if most == 0:
        return np.zeros(roots.shape)
    levels = np.ceil(roots / most * _LEVELS).astype(np.intp)
    table = np.zeros(_LEVELS + 1)
    for level in np.unique(levels[levels > 0]):
        table[level] = gaussian_epsilon(noise_multiplier / (level / _LEVELS * most), delta)
    return table[levels]
