"""What is kept of the noise of one run: enough for all tests, in little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from dperm._types import Array
from dperm.audit.recording import Recording, ReleaseRecord

COARSEST = 2.0**-6  # standard deviations: a grid with wider cells hides the noise's law
_COARSEST_STEP = 2.0**-10  # the same of a step of a path, of which some are very short
_STRETCHED = float(np.sqrt(2 * np.pi))  # times as far as a number of a pure vector may a number of its normals move
THIRD = 256  # numbers kept from each of the beginning, the middle and the end of a long release
SHARES = np.geomspace(0.95, 1 / 16, 24)  # of the stated noise of choices, for which it is said whether less would be seen
MOST = 400  # releases of one length and run that are compared with each other


@dataclass(frozen=True)
class ReleaseSeen:
    """The noise of one release, in units of the stated standard deviation, or of sensitivity/ε where it is pure.

    Attributes
    ----------
    what : str
        The kind of query.
    place : int
        Its place in the run, from 1; 0 of a step of a path.
    law : {"gaussian", "pure", "step"}
        The law that is stated. A "step" of a path has only a direction.
    size : int
        The number of its coordinates.
    length : float
        The norm of its noise.
    cell : float
        The width of the cells to which its noise is rounded: of `numbers`, an upper bound on it.
    numbers : array, or None
        Up to 768 of its coordinates as standard normals. None after 400 releases of this length.
    """

    what: str
    place: int
    law: Literal["gaussian", "pure", "step"]
    size: int
    length: float
    cell: float
    numbers: Array | None


@dataclass(frozen=True)
class PathSeen:
    """The noise of one gradual release, in units of sensitivity/ε of its last row.

    Attributes
    ----------
    what : str
        The kind of query.
    size : int
        The number of coordinates of a row.
    scales : array (K,)
        The stated scales of the rows, which fall to 1.
    lengths : array (K − 1,)
        The norms of the differences between rows and those after them, with a cell's width in favour of the noise.
    """

    what: str
    size: int
    scales: Array
    lengths: Array


@dataclass(frozen=True)
class ChoiceSeen:
    """One choice by the exponential mechanism.

    Attributes
    ----------
    what : str
        The kind of choice.
    better, own : float
        The probabilities, as stated, of all better candidates, and of the chosen one with its equals.
    means, variances : array (len(SHARES),)
        The mean and the variance of −ln U, where U is the randomised probability of something better, uniform as stated, if the
        choice had only so much of the stated noise: were made at 1 ÷ share times ε.
    """

    what: str
    better: float
    own: float
    means: Array
    variances: Array


@dataclass(frozen=True)
class NoiseSeen:
    """Summary of one run's noise.

    Attributes
    ----------
    releases : tuple of ReleaseSeen
        Gaussian and pure releases, and the steps of gradual ones, in the order of the run.
    coordinates : dict of int to (array, int)
        For each length of release, the sum of squares of each coordinate, as standard normals, and the number of releases.
    paths : tuple of PathSeen
        The gradual releases.
    choices : tuple of ChoiceSeen
        The choices.
    hidden : dict of str to int
        For each kind of query, the number of releases whose grid is so wide that it hides the noise. No test looks at them.
    compared : dict of str to int
        For each kind of query, the number of those that are compared with their noise and do not leave. Their noise is tested as
        it is drawn; a run that compares them without it is not seen.
    """

    releases: tuple[ReleaseSeen, ...]
    coordinates: dict[int, tuple[Array, int]]
    paths: tuple[PathSeen, ...]
    choices: tuple[ChoiceSeen, ...]
    hidden: dict[str, int]
    compared: dict[str, int]

    @classmethod
    def of(cls, recording: Recording) -> NoiseSeen:
        """Summarise the noise of all releases of a recording."""
        summary = _Summary()
        for place, item in enumerate(recording.releases, start=1):
            if item.kind == "choice":
                summary.choices.append(_choice(item))
            elif item.released.size:
                summary.add(place, item)
        releases, paths, choices = tuple(summary.releases), tuple(summary.paths), tuple(summary.choices)
        return cls(releases, summary.coordinates, paths, choices, summary.hidden, summary.compared)

    @cached_property
    def samples(self) -> tuple[tuple[Array, float], ...]:
        """For each length of release, the kept numbers, an array (releases, numbers), and the widest cell."""
        return by_size(self.releases)


def by_size(releases: Iterable[ReleaseSeen]) -> tuple[tuple[Array, float], ...]:
    """For each length of release, the kept numbers of these releases, and the widest cell."""
    rows: dict[int, list[Array]] = {}
    cells: dict[int, float] = {}
    for release in releases:
        if release.numbers is not None:
            rows.setdefault(release.size, []).append(release.numbers)
            cells[release.size] = max(cells.get(release.size, 0.0), release.cell)
    return tuple((np.array(vectors), cells[size]) for size, vectors in rows.items())


@dataclass
class _Summary:
    """A `NoiseSeen` in the making."""

    releases: list[ReleaseSeen] = field(default_factory=list[ReleaseSeen])
    coordinates: dict[int, tuple[Array, int]] = field(default_factory=dict[int, tuple[Array, int]])
    paths: list[PathSeen] = field(default_factory=list[PathSeen])
    choices: list[ChoiceSeen] = field(default_factory=list[ChoiceSeen])
    hidden: dict[str, int] = field(default_factory=dict[str, int])
    compared: dict[str, int] = field(default_factory=dict[str, int])
    kept: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, place: int, item: ReleaseRecord) -> None:
        pure = item.kind in ("pure", "threshold")
        if item.kind == "threshold":
            self.compared[item.what] = self.compared.get(item.what, 0) + 1
        unit = item.sensitivity / item.noise if pure else item.noise
        rows = item.released if item.path is None else item.path
        cell = (item.step + item.precision * float(np.abs(rows).max())) / unit
        if cell > COARSEST:  # only the grid could be seen, not the noise
            self.hidden[item.what] = self.hidden.get(item.what, 0) + 1
            return
        vector = (item.released - item.query).ravel() / unit
        length = float(np.linalg.norm(vector))
        if not pure:
            self._keep(item.what, place, "gaussian", length, vector, cell)
            return
        self._keep(item.what, place, "pure", length, vector * _stretch(vector.size, length), _STRETCHED * cell)
        if item.path is not None:
            self._add_path(item, unit, cell)

    def _add_path(self, item: ReleaseRecord, unit: float, cell: float) -> None:
        assert item.path is not None
        steps = -np.diff(item.path, axis=0) / unit
        size = steps.shape[1]
        lengths = np.linalg.norm(steps, axis=1)
        scales = item.noise / np.array(item.epsilons)
        self.paths.append(PathSeen(item.what, size, scales, lengths + np.sqrt(size) * cell))
        norms = np.sqrt(np.random.default_rng().chisquare(size, len(steps)))
        for step, length, norm in zip(steps, lengths, norms, strict=True):
            # a direction in which rounding has no say: how long a step is says nothing of its direction
            if length > 0 and (wide := 2 * np.sqrt(size) * cell / length * max(1.0, norm)) <= _COARSEST_STEP:
                self._keep(f"steps of the {item.what}", 0, "step", float(length), step / length * norm, float(wide))

    def _keep(
        self, what: str, place: int, law: Literal["gaussian", "pure", "step"], length: float, normals: Array, cell: float
    ) -> None:
        size = normals.size
        total, count = self.coordinates.get(size, (np.zeros(size), 0))
        self.coordinates[size] = total + normals**2, count + 1
        self.kept[size] = self.kept.get(size, 0) + 1
        numbers = normals[_kept_places(size)] if self.kept[size] <= MOST else None
        self.releases.append(ReleaseSeen(what, place, law, size, length, cell, numbers))


def _stretch(size: int, length: float) -> float:
    """The factor that gives a vector whose norm is Gamma(size) the norm of a vector of `size` independent normals.

    The new norm g(n) of a norm n has 0 ≤ g'(n) ≤ g(n)/n ≤ c with c = (2^{d/2}·Γ(d/2 + 1)/d!)^{1/d}, its limit at 0, so that
    moving each number by x moves each new one by at most (1 + √d)·c·x, which is largest at d = 1: √(2π)·x.
    """
    if length == 0:
        return 0.0
    upper = float(gammaincc(size, length))
    half = gammaincinv(size / 2, gammainc(size, length)) if upper > 0.5 else gammainccinv(size / 2, upper)
    return float(np.sqrt(2 * half)) / length


def _choice(item: ReleaseRecord) -> ChoiceSeen:
    scores, place = np.unique(item.query * item.noise / (2 * item.sensitivity), return_inverse=True)
    equal, chosen = np.bincount(place), place[int(item.released[0])]
    scores, equal, chosen = scores[::-1] - scores[-1], equal[::-1], len(scores) - 1 - int(chosen)  # the best first
    stated = _chances(scores, equal)
    better = np.cumsum(stated) - stated
    actual = _chances(scores / SHARES[:, None], equal)
    first, second = _log_moments(better, stated)
    means = actual @ first
    return ChoiceSeen(item.what, float(better[chosen]), float(stated[chosen]), means, actual @ second - means**2)


def _chances(scores: Array, equal: NDArray[np.intp]) -> Array:
    """The probability of each score ≤ 0, which so many candidates have."""
    chances = np.exp(scores) * equal
    return chances / chances.sum(axis=-1, keepdims=True)


def _log_moments(better: Array, own: Array) -> tuple[Array, Array]:
    """The first two moments of −ln U, where U is uniform between `better` and `better + own`."""
    upper = better + own
    wide = own > 1e-6 * better  # elsewhere the difference of integrals would be rounding

    def mean(integral: Callable[[Array, Array], Array], at_the_middle: Array) -> Array:
        high, low = (integral(x, np.log(np.maximum(x, 1e-300))) for x in (upper, better))
        return np.where(wide, (high - low) / np.where(wide, own, 1.0), at_the_middle)

    middle = -np.log(np.maximum(better + own / 2, 1e-300))
    first = mean(lambda x, log: x * (1 - log), middle)
    second = mean(lambda x, log: x * (log**2 - 2 * log + 2), middle**2)
    return first, second


def _kept_places(size: int) -> NDArray[np.intp]:
    """Different places of a release: all of them, or the first, the middle and the last `THIRD`, which never overlap."""
    if size <= 3 * THIRD:
        return np.arange(size)
    middle = (size - THIRD) // 2  # at least THIRD, and at most size − 2·THIRD
    return np.concatenate([np.arange(start, start + THIRD) for start in (0, middle, size - THIRD)])
