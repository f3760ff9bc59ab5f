"""Strategies compared at equal ε, by public numbers alone; and how many bands a run's noise is to be correlated over."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dperm import _validate as check
from dperm.gradient.correlation.banded_toeplitz import BandedToeplitz
from dperm.gradient.correlation.buffered import Buffered
from dperm.gradient.correlation.inverse_square_root import InverseSquareRoot
from dperm.gradient.correlation.participation import Once, Participation, Periodic
from dperm.gradient.correlation.square_root import BandedSquareRoot
from dperm.gradient.correlation.strategy import Independent, Strategy, predicted_error
from dperm.gradient.correlation.workload import Workload
from dperm.privacy.accountants.calibration import calibrate
from dperm.privacy.events import CyclicSampled, Event, Gaussian, PoissonSampled, SelfComposed

_MOST = 128  # bands that are tried: more gain next to nothing, and each is a vector of the model's size
_WORTH = 0.98  # of the error without correlation: what is gained by less is not worth what is kept


@functools.lru_cache(maxsize=256)
def best_bands(
    steps: int, share: float, epsilon: float, delta: float, workload: Workload, kind: type[Strategy] = BandedToeplitz
) -> int:
    """The number of bands of strategies of this `kind`, 1 among them, with the least predicted error at (ε, δ), where records
    take turns in as many groups.

    More bands leave less of the noise in the model, and are paid for by larger samples of smaller groups, which amplify less:
    a few for small ε, many for large ε. `share` is that of all records in an expected batch; groups are larger than a batch.
    Candidates are the powers of two, and what lies between the best two.
    """
    check.fraction("share", share, one=True)
    errors = {1: _error(kind, 1, steps, share, epsilon, delta, workload)}
    bands = 2
    while bands * share < 1 and bands <= min(steps, _MOST):
        errors[bands] = _error(kind, bands, steps, share, epsilon, delta, workload)
        if errors[bands] > 1.2 * min(errors.values()):
            break  # it only gets worse
        bands *= 2
    best = min(errors, key=errors.__getitem__)
    for middle in (best * 3 // 4, max(3, best * 3 // 2)):
        if middle not in errors and 1 < middle <= steps and middle * share < 1:
            errors[middle] = _error(kind, middle, steps, share, epsilon, delta, workload)
    best = min(errors, key=errors.__getitem__)
    return best if errors[best] < _WORTH * errors[1] else 1


def _error(kind: type[Strategy], bands: int, steps: int, share: float, epsilon: float, delta: float, workload: Workload) -> float:
    """The predicted error with the least noise that keeps (ε, δ)."""
    strategy = kind.for_run(bands, Once(bands), workload) if bands > 1 else Independent()
    noise = calibrate(
        lambda noise: _in_groups(noise, bands, steps, share), epsilon, delta, draft=True
    )  # no charge follows from it
    return noise * predicted_error(strategy, Once(bands), workload, steps)


def _in_groups(noise: float, bands: int, steps: int, share: float) -> Event:
    """The event of a run in which records take turns in groups, one group for each band."""
    if bands == 1:
        return SelfComposed(PoissonSampled(share, Gaussian(noise)), steps)
    return SelfComposed(CyclicSampled(bands * share, Gaussian(noise), bands), -(-steps // bands))


@dataclass(frozen=True)
class Compared:
    """A strategy in a run.

    Attributes
    ----------
    name, sampling : str
        The kind of strategy with its bands or buffers, and how records are drawn: "Poisson", "cyclic groups" or "fixed order".
    kept : int
        Vectors of the model's size that a run keeps.
    sensitivity, noise : float
        How far one record moves all releases together, and the least standard deviation of the noise at which the run is
        (ε, δ)-differentially private; both are multiples of the clipping norm.
    error : float
        The predicted error of a trained model ÷ that of DP-SGD at the same ε.
    """

    name: str
    sampling: str
    kept: int
    sensitivity: float
    noise: float
    error: float


def compared(
    steps: int, share: float, epsilon: float, delta: float, workload: Workload, widths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
) -> list[Compared]:
    """DP-SGD, and strategies of all kinds, in runs of the same steps and expected batches at the same (ε, δ).

    share : that of all records in an expected batch, below 1.
    """
    check.integer("steps", steps)
    period = max(2, round(1 / check.fraction("share", share)))
    widths = tuple(width for width in widths if width * share < 1 and width <= steps)
    runs: list[tuple[str, str, Strategy, Participation, Callable[[float], Event]]] = []
    for width in (1, *widths):
        name, sampling = (f"banded, {width}", "cyclic groups") if width > 1 else ("DP-SGD", "Poisson")
        groups = functools.partial(_in_groups, bands=width, steps=steps, share=share)
        runs.append((name, sampling, BandedToeplitz(width, workload), Once(width), groups))
    longest = min(period, BandedToeplitz.widest)
    ordered: dict[str, Strategy] = {
        f"banded, {longest}": BandedToeplitz(longest, workload),
        f"square root, {longest}": BandedSquareRoot(longest, workload.momentum),
        f"inverse square root, {InverseSquareRoot.widest}": InverseSquareRoot(InverseSquareRoot.widest, workload.momentum),
        f"buffered, {Buffered.widest}": Buffered(Buffered.widest, period, workload),
    }
    runs += [(name, "fixed order", strategy, Periodic(period), Gaussian) for name, strategy in ordered.items()]
    found: list[Compared] = []
    for name, sampling, strategy, participation, event in runs:
        multiplier = calibrate(event, epsilon, delta, draft=True)
        sensitivity = math.sqrt(strategy.squared_sensitivity(participation, steps))
        error = multiplier * sensitivity * strategy.remaining(workload, steps)
        found.append(Compared(name, sampling, strategy.kept(steps), sensitivity, multiplier * sensitivity, error))
    return [replace(each, error=each.error / found[0].error) for each in found]
