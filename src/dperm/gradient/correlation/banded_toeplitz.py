"""Banded Toeplitz strategies with the least error for a run's workload, found numerically."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

from dperm import _validate as check
from dperm._types import Array
from dperm.gradient.correlation.participation import Participation
from dperm.gradient.correlation.square_root import BandedSquareRoot
from dperm.gradient.correlation.strategy import Toeplitz
from dperm.gradient.correlation.workload import Workload


@dataclass(frozen=True)
class BandedToeplitz(Toeplitz):
    """The `width` coefficients c_0 = 1, c_1, … of the least ‖c‖·‖A·C⁻¹‖ for a workload A (Choquette-Choo et al. 2023,
    "(Amplified) banded matrix factorization", Section 4; McKenna 2024 for Toeplitz strategies).

    ‖c‖ is the sensitivity of records that take part at least `width` steps apart, up to a constant factor. Others are charged for
    what the strategy costs them: it is only no longer the best one.
    """

    width: int
    workload: Workload = field(default_factory=Workload)

    paper = "Choquette-Choo et al. 2023 (banded matrix factorization)"
    word = "banded"

    @classmethod
    def for_run(cls, width: int, participation: Participation, workload: Workload) -> BandedToeplitz:
        return cls(width, workload)

    def __post_init__(self) -> None:
        check.integer("width", self.width)

    def coefficients(self, steps: int) -> Array:
        return _optimised(self.width, self.workload, steps)


_UNSTABLE = 1e3  # ln of an error that is none
_LARGEST = 1e140
_FLAT = 0.99  # a second start: coefficients that hardly fall


@functools.lru_cache(maxsize=256)
def _optimised(width: int, workload: Workload, steps: int) -> Array:
    if min(width, steps) == 1:
        return np.ones(1)
    functionals = workload.functionals(steps)
    bands = min(width, steps)

    def loss(free: Array) -> tuple[float, Array]:
        """ln of the squared product, and its gradient."""
        all = np.concatenate([[1.0], free])
        square = float(all @ all)
        total, slopes = 0.0, np.zeros(bands)
        for values, weights in functionals:
            left = _inverse(all, values)
            again = _inverse(all, left)
            if not np.isfinite(again).all():  # C⁻¹ grows without bound
                return _UNSTABLE, np.zeros(bands - 1)
            weighed = weights * left
            total += float(weighed @ left)
            for lag in range(1, min(bands, len(left))):
                slopes[lag] -= 2 * float(weighed[lag:] @ again[: len(left) - lag])
        return np.log(square) + np.log(total), 2 * free / square + slopes[1:] / total

    best, found = np.inf, np.zeros(bands - 1)
    for start in (BandedSquareRoot(bands, min(workload.momentum, 0.999)).coefficients(steps)[1:], _FLAT ** np.arange(1, bands)):
        made: Any = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=[(-1, 1)] * (bands - 1), options={"maxiter": 500, "ftol": 1e-13}
        )
        if made.fun < best:
            best, found = made.fun, made.x
    coefficients = np.concatenate([[1.0], found])
    coefficients.flags.writeable = False  # it is remembered
    return coefficients


def _inverse(all: Array, values: Array) -> Array:
    """C⁻¹ applied to `values`; infinite where doubles cannot hold its squares."""
    made: Any = lfilter([1.0], all, values)
    return made if np.abs(made).max(initial=0.0) < _LARGEST else np.full(len(made), np.inf)
