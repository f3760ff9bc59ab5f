"""Made problems whose optimum is known: a strongly convex one, one as hard as convex problems get, and one for the L1 ball."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dperm.objectives import Huber, LinearObjective, Logistic, Records, RegularisedSum
from dperm.privacy import Relation
from dperm.solvers import minimise

__all__ = ["MODULUS", "RADIUS", "Problem", "convex", "sparse", "strongly_convex"]

Array = NDArray[np.float64]

MODULUS = 0.2  # s of (s/2)‖θ‖², beside the mean loss
RADIUS = 0.8  # of the ball of the convex problem
_WIDTH = 0.1  # the loss is linear up to a margin of 1 − _WIDTH


@dataclass(frozen=True)
class Problem:
    """`objective` has no quadratic term: methods bring it, `modulus` per record. `excess` is of the mean."""

    objective: LinearObjective
    records: Records
    modulus: float
    least: float

    def excess(self, theta: Array) -> float:
        return _value(self.objective, self.records, self.modulus, theta) - self.least


def _value(objective: LinearObjective, records: Records, modulus: float, theta: Array) -> float:
    return objective.evaluate(theta, records)[0] / len(records) + modulus / 2 * float(theta @ theta)


def strongly_convex(n: int, p: int, seed: int) -> Problem:
    """Logistic loss on rows of length 1, labels by a line, (s/2)‖θ‖² beside it: s-strongly convex, 1-Lipschitz, smooth."""
    rng = np.random.default_rng([seed, n, p])
    rows = rng.normal(size=(n, p))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = np.where(rng.random(n) < 1 / (1 + np.exp(-5 * np.sqrt(p) * rows[:, 0])), 1.0, -1.0)
    objective = LinearObjective(Logistic(), p, public_size=n, relation=Relation.REPLACE_ONE)
    records = objective.records(rows, labels)
    best = minimise(RegularisedSum(replace(objective, strong_convexity=MODULUS * n), records), 1e-9).theta
    return Problem(objective, records, MODULUS, _value(objective, records, MODULUS, best))


def convex(n: int, p: int, agreeing: int, seed: int) -> Problem:
    """A loss that is linear on the ball (Huber's hinge, which is not reached there); rows ±1/√p that cancel, but for `agreeing`
    of them: which way these point is all that there is to learn, as in the lower bound of Bassily, Smith, Thakurta 2014.

    The least value is at RADIUS times that direction.
    """
    rng = np.random.default_rng([seed, n, p])
    agreeing = min(agreeing, n) // 2 * 2 + n % 2
    direction = rng.choice([-1.0, 1.0], p) / np.sqrt(p)
    half = rng.choice([-1.0, 1.0], ((n - agreeing) // 2, p)) / np.sqrt(p)
    rows = np.vstack([half, -half, np.tile(direction, (agreeing, 1))])
    objective = LinearObjective(Huber(_WIDTH), p, public_size=n, relation=Relation.REPLACE_ONE, radius=RADIUS)
    records = objective.records(rows[rng.permutation(n)], np.ones(n))
    return Problem(objective, records, 0.0, _value(objective, records, 0.0, RADIUS * direction))


def sparse(n: int, p: int, agreeing: int, seed: int) -> Problem:
    """The same loss on the L1 ball of RADIUS: rows of ±1 that cancel, but that `agreeing` of them have one feature alike. All
    that there is to learn is which, of p: rows are √p long, and none of their entries is above 1."""
    rng = np.random.default_rng([seed, n, p])
    agreeing = min(agreeing, n // 2) // 2
    half = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), (n // 2, p))
    other, place = -half, int(rng.integers(p))
    half[:agreeing, place] = other[:agreeing, place] = 1.0
    rows = np.vstack([half, other])
    objective = LinearObjective(
        Huber(_WIDTH), p, data_norm=float(np.sqrt(p)), public_size=len(rows), relation=Relation.REPLACE_ONE, radius=RADIUS
    )
    records = objective.records(rows[rng.permutation(len(rows))], np.ones(len(rows)))
    best = np.zeros(p)
    best[place] = RADIUS
    return Problem(objective, records, 0.0, _value(objective, records, 0.0, best))
