"""Sums of gradients no entry of which a record moves far: for mechanisms that look at one coordinate at a time.

Noise of a choice, or of one coordinate, follows the largest entry of a record's gradient. Where features are bounded one by one,
that is far below its length: a row of 50 ones is 7 long, and no entry is above 1.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives import LinearObjective, Records
from dperm.objectives.records import Batch
from dperm.objectives.sums import RunningSum
from dperm.privacy import Relation

_HAIR = 1 - 2.0**-40  # factors are rounded


def entry_limit(objective: LinearObjective, entry_bound: float | None) -> float:
    """Bound on every |∂_jℓ_i|: that on a gradient's length, or of a row whose entries are at most `entry_bound`.

    A longer one is scaled down to it, so that it holds whatever the loss states.
    """
    if not objective.dimension:
        raise ValueError("Expected at least one parameter to choose among: there are no features, and no intercept.")
    length = check.scale("the loss's lipschitz", objective.facts.lipschitz)
    if entry_bound is None:
        return length
    return min(length, check.scale("the bound on entries", objective.loss.lipschitz(max(entry_bound, objective.intercept_scale))))


def entrywise_moved(objective: LinearObjective, limit: float) -> float:
    """How far one record moves an entry of the sum."""
    return limit * (1 if objective.relation is Relation.ADD_OR_REMOVE_ONE else 2)


def entrywise_gradient(
    objective: LinearObjective, records: Records, theta: Array, limit: float, noise_multiplier: float
) -> Array:
    """Σ∇ℓ_i (p,), each record's scaled down where an entry of it is above `limit`: an exact sum, as it is released with noise of
    so many sensitivities."""
    length, total = objective.facts.lipschitz, RunningSum()
    for batch in records.batches():
        gradients = objective.per_example(theta, batch)
        factors = np.ones(len(batch.targets))
        if limit < length:
            slopes = np.divide(gradients.norms, batch.norms, out=np.zeros_like(batch.norms), where=batch.norms > 0)
            entries = slopes * np.maximum(_largest_entries(batch), objective.intercept_scale)
            np.divide(limit * _HAIR, entries, out=factors, where=entries > limit * _HAIR)
        total.add(gradients.weighted_sum(factors, bound=length))
    gradient = total.query(entrywise_moved(objective, limit), noise_multiplier)
    return np.zeros(objective.dimension) if gradient is None else gradient


def _largest_entries(batch: Batch) -> Array:
    """(b,) max_j |x_ij|."""
    if not sp.issparse(batch.rows):
        return np.abs(batch.rows).max(axis=1, initial=0.0) * batch.units
    largest = np.zeros(len(batch.units))
    filled = np.diff(batch.rows.indptr) > 0
    if filled.any():
        largest[filled] = np.maximum.reduceat(np.abs(batch.rows.data), batch.rows.indptr[:-1][filled])
    return largest * batch.units
