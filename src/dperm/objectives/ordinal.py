"""The loss of targets with an order, and no distances: cumulative logits at public thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dperm import _validate as check
from dperm._types import Array
from dperm.objectives.losses import Loss
from dperm.objectives.targets import Link, Targets

_FARTHEST = 100.0  # threshold
_NEAREST = 1e-6  # distance between two
_LARGEST_BEND = 1 / (6 * math.sqrt(3))  # of a logistic loss
_REAL = 1e-6  # relative
_WIDEST_SHARE = 1e-6  # of a class: smaller ones are taken for it


@dataclass(frozen=True)
class Ranks(Targets):
    """The ranks of K ordered classes, centred: −(K−1)/2, …, (K−1)/2, a whole step apart."""

    classes: int

    ranked = True

    @property
    def extremes(self) -> tuple[float, float]:
        return (self.classes - 1) / 2, -(self.classes - 1) / 2

    @property
    def between(self) -> tuple[float, ...]:
        return tuple(float(rank) for rank in np.arange(1, self.classes - 1) - (self.classes - 1) / 2)

    def admit(self, targets: Array) -> Array:
        if not np.isin(targets, np.arange(self.classes) - (self.classes - 1) / 2).all():
            raise ValueError(f"Expected ranks from {self.extremes[1]:g} to {self.extremes[0]:g}, a whole step apart, as targets.")
        return targets


@dataclass(frozen=True)
class CumulativeLogits(Link):
    """P(rank ≤ k) = σ(c_k − t) for the thresholds c_0 < … < c_{K−2} (McCullagh 1980)."""

    thresholds: tuple[float, ...]

    def inverse(self, t: Array) -> Array:
        """Probabilities (…, K) of the classes, in their order: each is not negative, and they add up to 1."""
        cuts = np.array(self.thresholds) - np.asarray(t, dtype=np.float64)[..., None]
        least, most = np.full((*cuts.shape[:-1], 1), -np.inf), np.full((*cuts.shape[:-1], 1), np.inf)
        above, below = np.concatenate([cuts, most], axis=-1), np.concatenate([least, cuts], axis=-1)
        # of two numbers near 1 the difference is that of what they lack: the side where both are small is taken
        return np.where(below > 0, expit(-below) - expit(-above), expit(above) - expit(below))

    def answer(self, t: Array) -> NDArray[np.intp]:
        """The median class (n,) of each prediction t (n,)."""
        return self.median(t)

    def median(self, t: Array) -> NDArray[np.intp]:
        """The class (…,), from 0, that half of the probability lies at or below: its expected distance in ranks is least."""
        return np.searchsorted(np.array(self.thresholds), t, side="left")


@dataclass(frozen=True)
class OrdinalLogistic(Loss):
    """−ln P(y | t) by cumulative logits, P(rank ≤ k) = σ(c_k − t), at public thresholds c_0 < … < c_{K−2}: L = B, and
    β = B²·b for the b ≤ ½ below, on all of ℝ^d.

    Let y be the class k, c_{−1} = −∞ and c_{K−1} = ∞, and g = c_k − c_{k−1}. From σ(u) − σ(v) = σ(u)·σ(−v)·(1 − e^{v−u}) with
    u = c_k − t, v = c_{k−1} − t, where a factor of an end of the scale is 1,

        ℓ(t) = ln(1 + e^{t − c_k}) + ln(1 + e^{c_{k−1} − t}) − ln(1 − e^{−g}),

    which is a sum of two logistic losses and a constant, and so convex in t = xᵀθ, with a Hessian of rank one in θ.

    *Slope.* ℓ'(t) = A − C for A = σ(t − c_k) and C = σ(c_{k−1} − t). Both lie in [0, 1], so that |ℓ'| ≤ 1, also for the classes
    at the ends, of which one of A and C is 0: a record's gradient ℓ'(t)·x is no longer than B, whatever K is. There is no factor
    K − 1, for a record is in one class, and no factor 2, for A and C pull against each other.

    *Curvature.* ℓ'' = A(1 − A) + C(1 − C), at most ¼ for a class at an end. For a class between, let s be t's distance from the
    middle of its thresholds, x = cosh s ≥ 1 and c = cosh(g/2). As σ'(z) = ½/(1 + cosh z), and
    cosh(s ± g/2) = xc ± √(x² − 1)√(c² − 1),

        ℓ'' = ½·(2 + 2xc)/((1 + xc)² − (x² − 1)(c² − 1)) = (1 + xc)/(x + c)².

    Its derivative in x has the sign of c² − 2 − cx. If c ≤ 2, it falls from x = 1 on, and ℓ'' ≤ 1/(1 + c); otherwise it is
    largest at x = (c² − 2)/c, where it is c²/(4(c² − 1)). b is the largest of ¼ and these over the classes between: ½ where two
    thresholds meet, ¼ where all are far apart.

    Parameters
    ----------
    thresholds : tuple of float
        Public and rising, one fewer than classes: between −100 and 100, and 10⁻⁶ apart. `thresholds_of` has those at which
        classes of public shares are met at t = 0.

    Raises
    ------
    ValueError
        For other thresholds.
    """

    thresholds: tuple[float, ...] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        cuts = tuple(check.finite("thresholds", each) for each in self.thresholds)
        object.__setattr__(self, "thresholds", cuts)
        gaps = np.diff(cuts)
        if not cuts or max(map(abs, cuts)) > _FARTHEST or (gaps < _NEAREST).any():
            raise ValueError(
                f"Expected thresholds that rise by {_NEAREST:g} at least, from -{_FARTHEST:g} to {_FARTHEST:g}, got {cuts!r:.80}."
            )

    @property
    def name(self) -> str:
        return f"ordinal logistic of {len(self.thresholds) + 1} classes"

    @property
    def targets(self) -> Ranks:
        return Ranks(len(self.thresholds) + 1)

    @property
    def link(self) -> CumulativeLogits:
        return CumulativeLogits(self.thresholds)

    def _around(self, y: Array) -> tuple[Array, Array]:
        """(b,) the thresholds below and above the class of each target."""
        ends = np.array([-math.inf, *self.thresholds, math.inf])
        rank = np.rint(np.asarray(y, dtype=np.float64) + len(self.thresholds) / 2).astype(np.intp)
        return ends[rank], ends[rank + 1]

    def value(self, t: Array, y: Array) -> Array:
        low, high = self._around(y)
        with np.errstate(divide="ignore"):  # at the ends e^{−g} is 0
            constant = np.log(-np.expm1(low - high))
        return np.logaddexp(0.0, t - high) + np.logaddexp(0.0, low - t) - constant

    def slope(self, t: Array, y: Array) -> Array:
        low, high = self._around(y)
        return expit(t - high) - expit(low - t)

    def curvature(self, t: Array, y: Array) -> Array:
        low, high = self._around(y)
        up, down = expit(t - high), expit(low - t)
        return up * expit(high - t) + down * expit(t - low)

    def lipschitz(self, data_norm: float) -> float:
        return data_norm

    def smoothness(self, data_norm: float) -> float:
        return data_norm**2 * max([0.25, *(_largest_curvature(float(gap)) for gap in np.diff(self.thresholds))])

    def bend(self, data_norm: float) -> float:
        return data_norm**3 * max([_LARGEST_BEND, *(_largest_bend(float(gap)) for gap in np.diff(self.thresholds))])

    def at_zero(self) -> float:
        ranks = np.array([*self.targets.extremes, *self.targets.between])
        return float(self.value(np.zeros(len(ranks)), ranks).max())

    def slope_error(self, largest: float, steepest: float, curvature: float) -> float:
        """A and C add up to 1 at most and are each right to 8 units in the last place, which is not less where their difference
        is small; the difference is rounded once."""
        return 2.0**-51 * curvature * (1 + largest + max(map(abs, self.thresholds))) + 9 * 2.0**-53


def _largest_curvature(gap: float) -> float:
    """The largest curvature in t of a class between two thresholds so far apart; see `OrdinalLogistic`."""
    c = math.cosh(gap / 2)
    return 1 / (1 + c) if c <= 2 else 0.25 / (1 - c**-2.0)


def _largest_bend(gap: float) -> float:
    """Bound on the third derivative in t of a class between two thresholds so far apart.

    With x and c as in `OrdinalLogistic` it is sinh s·(c² − 2 − cx)/(x + c)³, whose derivative in x is 0 where
    cx³ − 4(c² − 1)x² + (c³ − 4c)x + 4c² − 6 is.
    """
    c = math.cosh(gap / 2)
    roots = np.roots([c, -4 * (c**2 - 1), c**3 - 4 * c, 4 * c**2 - 6])
    x = np.maximum(roots.real[np.abs(roots.imag) < _REAL * np.abs(roots)], 1.0)
    return float((np.sqrt(x**2 - 1) * np.abs(c**2 - 2 - c * x) / (x + c) ** 3).max(initial=0.0)) * (1 + _REAL)


def thresholds_of(shares: NDArray[np.float64]) -> tuple[float, ...]:
    """The thresholds (K − 1,) at which classes of these public shares (K,), in their order, have these probabilities at t = 0."""
    shares = np.maximum(shares / shares.sum(), _WIDEST_SHARE)
    below = np.cumsum(shares / shares.sum())[:-1]
    return tuple(float(math.log(share / (1 - share))) for share in below)
