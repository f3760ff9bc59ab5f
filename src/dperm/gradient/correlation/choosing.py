"""How many bands a run's noise is to be correlated over: by public numbers alone."""

from __future__ import annotations

import functools

from dperm import _validate as check
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.participation import Once
from dperm.gradient.correlation.strategy import predicted_error
from dperm.gradient.correlation.workload import Workload
from dperm.privacy.accountants.calibration import calibrate
from dperm.privacy.events import CyclicSampled, Event, Gaussian, PoissonSampled, SelfComposed

_WORTH = 0.98  # of the error without correlation: what is gained by less is not worth what is kept


@functools.lru_cache(maxsize=256)
def best_bands(steps: int, share: float, epsilon: float, delta: float, workload: Workload) -> int:
    """The number of bands, 1 among them, with the least predicted error at (ε, δ), where records take turns in as many groups.

    More bands leave less of the noise in the model, and are paid for by larger samples of smaller groups, which amplify less:
    a few for small ε, many for large ε. `share` is that of all records in an expected batch; groups are larger than a batch.
    Candidates are the powers of two, and what lies between the best two.
    """
    check.fraction("share", share, one=True)
    errors = {1: _error(1, steps, share, epsilon, delta, workload)}
    bands = 2
    while bands * share < 1 and bands <= steps:
        errors[bands] = _error(bands, steps, share, epsilon, delta, workload)
        if errors[bands] > 1.2 * min(errors.values()):
            break  # it only gets worse
        bands *= 2
    best = min(errors, key=errors.__getitem__)
    for middle in (best * 3 // 4, best * 3 // 2):
        if middle not in errors and 1 < middle <= steps and middle * share < 1:
            errors[middle] = _error(middle, steps, share, epsilon, delta, workload)
    best = min(errors, key=errors.__getitem__)
    return best if errors[best] < _WORTH * errors[1] else 1


def _error(bands: int, steps: int, share: float, epsilon: float, delta: float, workload: Workload) -> float:
    """The predicted error with the least noise that keeps (ε, δ)."""

    def event(noise: float) -> Event:
        if bands == 1:
            return SelfComposed(PoissonSampled(share, Gaussian(noise)), steps)
        return SelfComposed(CyclicSampled(bands * share, Gaussian(noise), bands), -(-steps // bands))

    noise = calibrate(event, epsilon, delta, draft=True)  # compared, and not charged by
    return noise * predicted_error(BandedToeplitz(bands, workload), Once(bands), workload, steps)
