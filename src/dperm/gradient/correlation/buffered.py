"""Buffered linear Toeplitz strategies (BLT): all earlier noise, in a few buffers."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.correlation.participation import Participation, Periodic
from dperm.gradient.correlation.strategy import Memory, Toeplitz, cut, doubles, no_noise, noise_of, rounded_terms, weighted
from dperm.gradient.correlation.workload import Workload


@dataclass(frozen=True)
class Buffered(Toeplitz):
    """c_k = Σ_r ω_r·θ_r^{k−1} with `buffers` pairs of 0 < θ_r < 1 and ω_r ≥ 0, of the least error for a workload, for records
    that take part every `period` steps (Dvijotham, McMahan, Pillutla, Steinke, Thakurta 2024; McMahan, Xu, Zhang 2024).

    As C has as many bands as the run has steps, no amplification is proved for it.
    """

    buffers: int
    period: int
    workload: Workload = field(default_factory=Workload)

    paper = "McMahan, Xu, Zhang 2024 (buffered linear Toeplitz)"
    word = "buffered"
    widest = 3
    banded = False

    @classmethod
    def for_run(cls, width: int, participation: Participation, workload: Workload) -> Buffered:
        return cls(width, participation.separation, workload)

    def __post_init__(self) -> None:
        check.integer("buffers", self.buffers)
        check.integer("period", self.period)

    def pairs(self, steps: int) -> tuple[Array, Array]:
        """θ and ω (buffers,) of a run of so many steps."""
        return _optimised(self.buffers, Periodic(self.period), self.workload, steps)

    def coefficients(self, steps: int) -> Array:
        return _coefficients(*self.pairs(steps), steps)

    def kept(self, steps: int) -> int:
        return self.buffers

    def memory(self, steps: int, limit: float, first: int = 0) -> Memory:
        return _Buffers(*self.pairs(steps), limit)

    def rounding(self, steps: int) -> float:
        """A buffer's rounding stays in it, and falls by θ a step."""
        thetas, omegas = self.pairs(steps)
        stays = float(np.sum(omegas / (1 - thetas))) * rounded_terms(2)
        return 2.0 + float(self.coefficients(steps).sum()) * (1 + rounded_terms(self.buffers)) + stays


class _Buffers(Memory):
    """Σ_k θ_r^{k−1}·noise_{t−k}, in one buffer for each θ_r."""

    def __init__(self, thetas: Array, omegas: Array, limit: float) -> None:
        self._thetas, self._omegas, self._limit = thetas.tolist(), omegas, limit
        self._buffers: Any = None  # (buffers, p)
        self._total: Any = None  # (p,) of a step in progress

    def query(self, total: Any) -> Any:
        if self._buffers is None:
            self._buffers = no_noise(len(self._thetas), total)
        self._total = doubles(total)
        return self._total - weighted(self._omegas, self._buffers)

    def keep(self, released: Any) -> None:
        noise, self._total = noise_of(released, self._total, self._limit), None
        for place, theta in enumerate(self._thetas):
            buffer = self._buffers[place]
            buffer *= theta
            buffer += noise
            cut(buffer, self._limit)


_UNSTABLE, _LARGEST = 1e3, 1e140  # ln of an error that is none; numbers whose squares are doubles
_LITTLE = -4.0  # ln ω of a buffer that is added
_LEAST_GAP = 1e-6  # of a θ to the largest there may be, relative to that, where a search begins


@functools.lru_cache(maxsize=256)
def _optimised(buffers: int, participation: Participation, workload: Workload, steps: int) -> tuple[Array, Array]:
    functionals = workload.functionals(steps)

    def pairs(free: Array) -> tuple[Array, Array]:
        return _closest(steps) / (1 + np.exp(-free[:buffers])), np.exp(np.minimum(free[buffers:], 0.0))

    # of non-negative coefficients that fall, the record that begins first moves most
    marks = np.zeros(steps)
    marks[:: participation.separation] = 1.0
    lags = np.arange(steps - 1)

    def loss(free: Array) -> tuple[float, Array]:
        """ln of the squared product, and its gradient."""
        thetas, omegas = pairs(free)
        all = _coefficients(thetas, omegas, steps)
        moved = fftconvolve(all, marks)[:steps]
        square, total, slopes = float(moved @ moved), 0.0, np.zeros(steps)
        for values, weights in functionals:
            left = _inverted(thetas, omegas, values)
            again = _inverted(thetas, omegas, left)
            if not np.abs(again).max() < _LARGEST:
                return _UNSTABLE, np.zeros(len(free))
            total += float(weights @ left**2)
            slopes[: len(left)] -= 2 * _correlated(weights * left, again)
        slopes = 2 * _correlated(moved, marks) / square + slopes / total
        with np.errstate(under="ignore"):
            powers = thetas[:, None] ** lags
            by_theta = omegas[:, None] * lags * powers / thetas[:, None]
        inside = np.where(free[buffers:] < 0, omegas, 0.0)
        gradient = np.concatenate(
            [(by_theta @ slopes[1:]) * thetas * (1 - thetas / _closest(steps)), (powers @ slopes[1:]) * inside]
        )
        return float(np.log(square) + np.log(total)), gradient

    # each buffer more starts where those before it ended, so that it can only help
    if buffers > 1:
        thetas, omegas = _optimised(buffers - 1, participation, workload, steps)
        thetas = np.minimum(thetas, (1 - _LEAST_GAP) * _closest(steps))  # one that ended there has no finite start
        starts = [
            np.concatenate([np.log(thetas / (_closest(steps) - thetas)), [np.log(reach)], np.log(omegas), [_LITTLE]])
            for reach in np.geomspace(1, steps, 4)
        ]
    else:
        starts = [np.array([np.log(steps) / 2, -np.log(steps) / 4])]
    best, thetas, omegas = np.inf, np.empty(0), np.empty(0)
    for start in starts:
        made: Any = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200, "ftol": 1e-12})
        if made.fun < best:
            best, (thetas, omegas) = made.fun, pairs(made.x)
    for each in (thetas, omegas):
        each.flags.writeable = False  # they are remembered
    return thetas, omegas


def _closest(steps: int) -> float:
    """The largest θ: what is nearer to 1 changes nothing within the run but how rounding adds up."""
    return 1 - 1 / (4 * steps + 4)


def _correlated(a: Array, b: Array) -> Array:
    """Σ_t a_{t+k}·b_t for every k ≥ 0."""
    return fftconvolve(a, b[::-1])[len(b) - 1 :]


def _coefficients(thetas: Array, omegas: Array, steps: int) -> Array:
    with np.errstate(under="ignore"):
        return np.concatenate([[1.0], (omegas[:, None] * thetas[:, None] ** np.arange(steps - 1)).sum(axis=0)])


def _inverted(thetas: Array, omegas: Array, values: Array) -> Array:
    """C⁻¹ applied to `values`: C is the rational function 1 + Σ_r ω_r·x/(1 − θ_r·x)."""
    denominator = np.ones(1)
    for theta in thetas:
        denominator = np.convolve(denominator, [1.0, -theta])
    numerator = denominator.copy()
    for place, omega in enumerate(omegas):
        others = np.ones(1)
        for theta in np.delete(thetas, place):
            others = np.convolve(others, [1.0, -theta])
        numerator[1:] += omega * np.concatenate([others, np.zeros(len(denominator) - 1 - len(others))])
    made: Any = lfilter(denominator, numerator, values)
    return made
