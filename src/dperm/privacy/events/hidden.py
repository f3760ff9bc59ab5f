"""Noisy steps of which the last iterate alone is released: steps that are hidden cost less, where steps bring iterates no further
apart.

Theorem. Let X_0 = X'_0, X_k = Π(φ_k(X_{k−1}) + N(0, s²I)) and X' likewise by φ'_k, for k = 1, …, T, with Π a projection onto a
convex set of diameter D, every φ_k and φ'_k c-Lipschitz, and ‖φ_k(x) − φ'_k(x)‖ ≤ m_k for every x. Then X_T is μ-GDP against
X'_T for

    μ² = Σ a_k²/s²  for any a_k ≥ 0 with z_k = c·z_{k−1} + m_k − a_k ≥ 0 and z_T = 0,  from z_0 = 0, or from z_τ = D at any τ.

Proof (shifted interpolation: Bok, Su, Altschuler 2024). Let X̃_τ have the law of X'_τ, by itself (at τ = 0: equal to it), and
X̃_k = Π(φ'_k(X̃_{k−1}) + v_k + Z_k), with Z_k the noise of X and v_k = φ_k(X_{k−1}) − φ'_k(X̃_{k−1}), cut to length a_k. Π does not
expand: ‖X_k − X̃_k‖ ≤ (c‖X_{k−1} − X̃_{k−1}‖ + m_k − a_k)₊ ≤ z_k, so X̃_T = X_T. And X̃ is X' with noise whose mean is moved by
a v_k of length at most a_k, which does not depend on Z_k: given the past of X̃, a mixture of such Gaussians is against N(0, s²I)
no easier to tell than one that is moved by a_k, whatever its weights (its error is a mean of theirs). Gaussians compose. ∎

Rounding: a computed step differs from the real one by at most e, on either side: 2e joins each m_k. The last step is released on
a grid, whose rounding is within what it may move (`LastIterateNoise`).

The best a_k: P_t = Σ_{k≤t} c^{T−k}a_k may rise to S_t = Σ_{k≤t} c^{T−k}m_k, must end there, and costs Σ (ΔP)²/c^{2(T−k)}: the
shortest string below S over W_t = Σ_{k≤t} c^{2(T−k)}, which is the greatest convex minorant of S. A record that is used in the
last step of each pass is the worst place: of another one, the steps after its last use are post-processing.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dperm import _validate as check
from dperm._types import Array
from dperm.privacy.events.event import Event, Paid, Relation, own_relation, plain_number
from dperm.privacy.events.noise import Gaussian


@dataclass(frozen=True)
class HiddenIterates(Event):
    """`passes` over `batches` noisy steps in one public order, of which the last iterate alone is released. Replace-one.

    A record moves the step that uses it, once a pass, by at most 1/`noise_multiplier` standard deviations of each step's noise;
    steps bring iterates together by a factor of `contraction` ≤ 1, within a set of this `diameter`; `rounding` moves every step:
    the last two in units of what a record moves. No more than one Gaussian: see `dperm.privacy.events.hidden`.
    """

    noise_multiplier: float
    batches: int
    passes: int
    contraction: float
    diameter: float
    rounding: float
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "diameter", "rounding"):
            plain_number(self, name, check.positive)
        plain_number(self, "contraction", functools.partial(check.fraction, one=True))
        for name in ("batches", "passes"):
            object.__setattr__(self, name, check.integer(name, getattr(self, name)))
        own_relation(self)
        if self.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for hidden iterates: another record moves all others' places.")

    @property
    def pays_for(self) -> Paid:
        return Paid("hidden", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.batches * self.passes

    @property
    def accounting_cost(self) -> float:
        return 1 + self.passes / 2500 + self.passes * (self.batches / 40_000)

    @property
    def whole(self) -> Gaussian:
        """The Gaussian that is no more private."""
        shift = hidden_shift(self.batches, self.passes, self.contraction, self.diameter, self.rounding)
        return Gaussian(self.noise_multiplier / shift, self.relation)


@dataclass(frozen=True)
class RandomStop(Event):
    """One pass of up to `steps` noisy steps in a public order, which stops after a number of them that is drawn uniformly and
    told; of the iterates the last is released. The rest as of `HiddenIterates`. Replace-one.

    The worst place is the first: a record that the run has not come to is not in it.
    """

    noise_multiplier: float
    steps: int
    contraction: float
    rounding: float
    relation: Relation = Relation.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("noise_multiplier", "rounding"):
            plain_number(self, name, check.positive)
        plain_number(self, "contraction", functools.partial(check.fraction, one=True))
        object.__setattr__(self, "steps", check.integer("steps", self.steps))
        own_relation(self)
        if self.relation is not Relation.REPLACE_ONE:
            raise ValueError("Expected relation='replace_one' for hidden iterates: another record moves all others' places.")

    @property
    def pays_for(self) -> Paid:
        return Paid("hidden", self.noise_multiplier)

    @property
    def releases(self) -> int:
        return self.steps

    @property
    def accounting_cost(self) -> float:
        return 1 + self.steps / 25_000


#: what rounding to a release's grid may add to the last step, in units of what a record moves, and more
GRID = 2.0**-13
_ROUNDED = 1 + 1e-9  # sums of doubles


@functools.lru_cache(maxsize=256)
def hidden_shift(batches: int, passes: int, contraction: float, diameter: float, rounding: float) -> float:
    """s·μ of the theorem where a record moves the last step of each pass of `batches` by 1, and rounding each step."""
    last = batches * passes
    left = np.arange(last - 1, -1, -1, dtype=np.float64)  # steps after each
    with np.errstate(under="ignore"):
        decay = contraction**left
    moves = np.full(last, rounding)
    moves[batches - 1 :: batches] += 1
    moves[-1] += GRID
    limit = np.concatenate([[0.0], np.cumsum(decay * moves)])
    width = np.concatenate([[0.0], np.cumsum(decay**2)])
    # within a pass the limit is concave: its ends are what a convex curve meets
    ends = np.arange(batches, last + 1, batches)
    corners = np.unique(np.concatenate([ends, ends - 1]))
    best = _string(width, limit, 0, corners)
    # starts that lie before the end by so many passes: those between are hardly better
    before = np.unique(np.geomspace(1, passes - 1, 60).round()) if passes > 1 else np.array([])
    for start in (last - batches * before).astype(int).tolist():
        with np.errstate(under="ignore"):
            apart = diameter * contraction ** float(last - start)
        if apart**2 < best * (width[-1] - width[start]):  # else even a straight string is longer
            best = min(best, _string(width, limit - limit[start] + apart, start, corners[corners > start]))
    return math.sqrt(best) * _ROUNDED


def _string(width: Array, limit: Array, start: int, corners: NDArray[np.intp]) -> float:
    """Σ (ΔP)²/ΔW of the greatest convex minorant from (width[start], 0) on."""
    hull: list[tuple[float, float]] = [(float(width[start]), 0.0)]
    for corner in corners.tolist():
        point = (float(width[corner]), float(limit[corner]))
        if point[0] <= hull[-1][0]:  # so many steps from the end that doubles hold no width: the curve stays where it is
            continue
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return sum((b[1] - a[1]) ** 2 / (b[0] - a[0]) for a, b in itertools.pairwise(hull))


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def stopped_shifts(steps: int, contraction: float, rounding: float) -> Array:
    """(steps,) s·μ for a record of the first step of one pass that stops after 1, 2, …, `steps` steps: it moves that step, and
    rounding each. The straight string lies below the limit, which is concave; where the grid's part of the last step makes it
    cross, iterates are the same by then, and steps that do not use the record move nothing."""
    with np.errstate(under="ignore"):
        decay = contraction ** np.arange(steps, dtype=np.float64)
        return (decay + rounding * np.cumsum(decay) + GRID) / np.sqrt(np.cumsum(decay**2)) * _ROUNDED
