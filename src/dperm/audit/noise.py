"""Statistical tests of the noise of recorded runs: its size, its shape, its resolution and its independence.

Each family of tests returns one p-value: the probability, or a proved upper bound on the probability, that sound noise
deviates at least as far as the noise that was seen. Sound noise consists of independent normals on the recorded grid, of
gamma-norm vectors for pure mechanisms, of paths of such vectors, and of exponential-mechanism choices. A family is refuted where
its p-value is below `FALSE_ALARM`, so that by the union bound sound noise is refuted with probability at most
len(FAMILIES) · FALSE_ALARM.

Families of shape and of dependence look at standard normals. Gaussian noise is that already. A pure vector has a uniform
direction and a norm that is Gamma(d), and is stretched to the norm of normals with the same quantile. A step of a path keeps its
direction, and is given an independent norm of normals.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, chdtr, gammainc, gammaincc, gammainccinv, gammaincinv, ndtr

from dperm.audit.recording import Recording, ReleaseRecord

__all__ = [
    "FALSE_ALARM",
    "FAMILIES",
    "Finding",
    "NoiseSeen",
    "NoiseTest",
    "PathSeen",
    "ReleaseSeen",
    "noise_findings",
    "noise_tests",
    "visible_noise",
]

Array = NDArray[np.float64]

FALSE_ALARM = 1e-9  # probability with which one family refutes sound noise, at most
_OFTEN = 0.95  # of audits see noise that is as small as `visible_noise` says
_SAME = 1e-5  # two numbers that agree to this distance, in standard deviations, count as one number
_COARSEST = 2.0**-6  # standard deviations: a grid with wider cells hides the noise's law
_COARSEST_STEP = 2.0**-10  # the same of a step of a path, of which some are very short
_STRETCHED = float(np.sqrt(2 * np.pi))  # times as far as a number of a pure vector may a number of its normals move
_THIRD = 256  # numbers kept from each of the beginning, the middle and the end of a long release
_MOST = 400  # releases of one length and run that are compared with each other
_CUTS = 4096  # equal parts of a chi-squared law
_DEPTHS = (0.25, 1.0, 4.0, 16.0)  # exponents, at the stated size of a path's step, by which short steps are weighted
_TAILS = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5)  # standard deviations beyond which numbers are counted


@dataclass(frozen=True)
class Finding:
    """A deviation from the stated guarantee; `kind` is one word or two, the same for the same defect on all pairs."""

    kind: str
    text: str


@dataclass(frozen=True)
class NoiseTest:
    """The result of one family of tests.

    Attributes
    ----------
    kind : str
        The kind of defect that the family looks for.
    p_value : float
        The probability of a deviation as large as the one seen under sound noise, or an upper bound on it. It accounts for
        all tests of the family.
    text : str
        A sentence about the largest deviation.
    """

    kind: str
    p_value: float
    text: str


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
    size : int
        The number of coordinates of a row.
    scales : array (K,)
        The stated scales of the rows, which fall to 1.
    lengths : array (K − 1,)
        The norms of the differences between rows and those after them, with a cell's width in favour of the noise.
    """

    size: int
    scales: Array
    lengths: Array


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
    choices : tuple of (float, float)
        For each choice, the probability of better candidates and that of the chosen one.
    hidden : dict of str to int
        For each kind of query, the number of releases whose grid is so wide that it hides the noise. No test looks at them.
    """

    releases: tuple[ReleaseSeen, ...]
    coordinates: dict[int, tuple[Array, int]]
    paths: tuple[PathSeen, ...]
    choices: tuple[tuple[float, float], ...]
    hidden: dict[str, int]

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
        return cls(releases, summary.coordinates, paths, choices, summary.hidden)

    @cached_property
    def samples(self) -> tuple[tuple[Array, float], ...]:
        """For each length of release, the kept numbers, an array (releases, numbers), and the widest cell."""
        return _by_size(self.releases)


def _by_size(releases: Iterable[ReleaseSeen]) -> tuple[tuple[Array, float], ...]:
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
    choices: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    hidden: dict[str, int] = field(default_factory=dict[str, int])
    kept: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, place: int, item: ReleaseRecord) -> None:
        pure = item.kind in ("pure", "threshold")
        unit = item.sensitivity / item.noise if pure else item.noise
        rows = item.released if item.path is None else item.path
        cell = (item.step + item.precision * float(np.abs(rows).max())) / unit
        if cell > _COARSEST:  # only the grid could be seen, not the noise
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
        self.paths.append(PathSeen(size, scales, lengths + np.sqrt(size) * cell))
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
        numbers = normals[_kept_places(size)] if self.kept[size] <= _MOST else None
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


def _choice(item: ReleaseRecord) -> tuple[float, float]:
    """The probabilities, under the exponential mechanism, of all better candidates and of the chosen one."""
    scores = item.query * item.noise / (2 * item.sensitivity)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chosen = int(item.released[0])
    return float(chances[scores > scores[chosen]].sum()), float(chances[scores == scores[chosen]].sum())


def _kept_places(size: int) -> NDArray[np.intp]:
    """Different places of a release: all of them, or the first, the middle and the last `_THIRD`, which never overlap."""
    if size <= 3 * _THIRD:
        return np.arange(size)
    middle = (size - _THIRD) // 2  # at least _THIRD, and at most size − 2·_THIRD
    return np.concatenate([np.arange(start, start + _THIRD) for start in (0, middle, size - _THIRD)])


def noise_tests(seen: Sequence[NoiseSeen]) -> list[NoiseTest]:
    """One result for each family that applies to these independent runs."""
    return [test for family in FAMILIES if (test := family(seen)) is not None]


def noise_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """The refuted families: the first of each kind of defect. Repeated noise explains coarse and correlated noise."""
    refuted: dict[str, str] = {}
    for test in noise_tests(seen):
        if test.p_value < FALSE_ALARM:
            refuted.setdefault(test.kind, test.text)
    if "repeated noise" in refuted:
        refuted.pop("coarse noise", None)
        refuted.pop("correlated noise", None)
    return [Finding(kind, text) for kind, text in refuted.items()]


def _of_the_least(p_values: Array) -> tuple[int, float]:
    """The place of the least p-value, and the p-value of the family by the union bound."""
    least = int(np.argmin(p_values))
    return least, min(1.0, len(p_values) * float(p_values[least]))


# Size


def _groups(seen: Sequence[NoiseSeen], law: str) -> dict[str, list[ReleaseSeen]]:
    """The releases of this law: all of them, and those of each kind, each length, and each place in the run. Groups of the same
    releases are one group, under the name that comes first here."""
    every = [release for run in seen for release in run.releases if release.law == law]
    groups: dict[str, list[ReleaseSeen]] = {"": every} if every else {}
    names: tuple[Callable[[ReleaseSeen], str], ...] = (
        lambda release: f" of each {release.what}",
        lambda release: f" of releases of {release.size} numbers",
        lambda release: f" in release {release.place}",
    )
    for name in names:
        for release in every:
            groups.setdefault(name(release), []).append(release)
    first: dict[tuple[int, ...], str] = {}
    for name, releases in groups.items():
        first.setdefault(tuple(map(id, releases)), name)
    return {name: groups[name] for name in first.values()}


def _release_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of Gaussian noise, of all and of each group: chi-squared."""
    groups = _groups(seen, "gaussian")
    if not groups:
        return None
    squares = np.array([sum(release.length**2 for release in releases) for releases in groups.values()])
    sizes = np.array([sum(release.size for release in releases) for releases in groups.values()], dtype=float)
    p_values = chdtr(sizes, squares)
    named, p_value = _first_or_least(p_values)
    ratio = np.sqrt(squares[named] / sizes[named])
    text = f"its noise{list(groups)[named]} has {ratio:.3g} of the standard deviation stated ({int(sizes[named])} numbers)"
    return NoiseTest("noise", p_value, text)


def _first_or_least(p_values: Array) -> tuple[int, float]:
    """The first place that is refuted, else that of the least p-value, and the p-value of the family by the union bound."""
    least, p_value = _of_the_least(p_values)
    refuted = np.flatnonzero(p_values * len(p_values) < FALSE_ALARM)
    return int(refuted[0]) if len(refuted) else least, p_value


def _coordinate_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of each coordinate over all releases of one length: chi-squared."""
    p_values: list[Array] = []
    for size in sorted({size for run in seen for size in run.coordinates}):
        parts = [run.coordinates[size] for run in seen if size in run.coordinates]
        squares, count = sum(square for square, _ in parts), sum(number for _, number in parts)
        p_values.append(chdtr(np.full(size, float(count)), squares))
    if not p_values:
        return None
    least, p_value = _of_the_least(np.concatenate(p_values))
    for each in p_values:
        if least < len(each):
            return NoiseTest("noise", p_value, f"coordinate {least + 1} of {len(each)} has less noise than stated")
        least -= len(each)
    raise AssertionError


def visible_noise(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """How small noise must be for the tests of its size to see it.

    Parameters
    ----------
    seen : sequence of NoiseSeen
        Independent runs.

    Returns
    -------
    dict of str to float
        For each kind of release with noise that can be seen, the largest r < 1 such that noise of r times the stated size is
        refuted in 19 of 20 audits, by the sum of squares (of pure noise: of norms) of this kind alone.
    """
    shares: dict[str, float] = {}
    for law, parts, power in (("gaussian", 0.5, 0.5), ("pure", 1.0, 1.0)):
        level = FALSE_ALARM / max(1, len(_groups(seen, law)))
        numbers: dict[str, int] = {}
        for release in (release for run in seen for release in run.releases if release.law == law):
            numbers[release.what] = numbers.get(release.what, 0) + release.size
        for what, count in numbers.items():
            # half a chi-squared sum is Gamma(count/2), a sum of norms is Gamma(count)
            refuted, usual = (float(gammaincinv(parts * count, share)) for share in (level, _OFTEN))
            shares[what] = min((refuted / usual) ** power, shares.get(what, 1.0))
    return shares


def _pure_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Norms of noise with density ∝ exp(−ε‖b‖/Δ) in d dimensions, of all and of each group: their sum is Gamma(Σd)."""
    groups = _groups(seen, "pure")
    if not groups:
        return None
    lengths = np.array([sum(release.length for release in releases) for releases in groups.values()])
    sizes = np.array([sum(release.size for release in releases) for releases in groups.values()], dtype=float)
    named, p_value = _first_or_least(gammainc(sizes, lengths))
    name, releases = list(groups.items())[named]
    text = f"its noise{name} has {lengths[named] / sizes[named]:.3g} of the length stated ({len(releases)} releases)"
    return NoiseTest("noise", p_value, text)


def _path_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Squared norms of the steps of paths, of all and of each place in a path: Markov's inequality for Π exp(−rate·‖step‖²/2)."""
    groups: dict[str, list[tuple[int, float, float, float]]] = {}
    for path in (path for run in seen for path in run.paths):
        pairs = itertools.pairwise(path.scales.tolist())
        for place, ((high, low), length) in enumerate(zip(pairs, path.lengths.tolist(), strict=True), start=1):
            if high > low:  # otherwise there is no noise in between
                for name in ("", f" between rows {place} and {place + 1}"):
                    groups.setdefault(name, []).append((path.size, high, low, length))
    if not groups:
        return None
    logs = np.zeros((len(groups), len(_DEPTHS)))
    ratios: list[float] = []
    for row, steps in enumerate(groups.values()):
        squares = [length**2 / _stated_square(size, high, low) for size, high, low, length in steps]
        ratios.append(float(np.sqrt(np.mean(squares))))
        for column, depth in enumerate(_DEPTHS):
            means = sum(_log_mean(size, high, low, depth) for size, high, low, _ in steps)
            logs[row, column] = means + depth * sum(squares)
    p_values = np.exp(np.minimum(logs, 0.0)).min(axis=1)
    named, p_value = _first_or_least(p_values)
    text = f"its noise that falls has {ratios[named]:.3g} of the length stated{list(groups)[named]}"
    return NoiseTest("noise", min(1.0, len(_DEPTHS) * p_value), text)


def _stated_square(size: int, high: float, low: float) -> float:
    """The mean of the squared norm of what is between two pure vectors of these scales: b has a squared norm of d(d + 1)."""
    return size * (size + 1) * (high - low) * (high + low)


@lru_cache(maxsize=4096)
def _log_mean(size: int, high: float, low: float, depth: float) -> float:
    """An upper bound on ln E exp(−depth·‖v‖²/E‖v‖²), where v is what is between two pure vectors of these scales.

    With w of independent normals N(0, rate), exp(−rate·‖v‖²/2) is the mean over w of cos⟨w, v⟩, and v's characteristic function
    is ((1 + low²·‖w‖²)/(1 + high²·‖w‖²))^{(d + 1)/2}, which falls in ‖w‖²: its value at the lower end of each of equally likely
    parts of the law of ‖w‖²/rate, chi-squared, bounds its mean.
    """
    squares = _lower_ends(size) * (2 * depth / _stated_square(size, high, low))
    logs = (size + 1) / 2 * (np.log1p(low**2 * squares) - np.log1p(high**2 * squares))
    return float(np.log(np.mean(np.exp(logs))))


@lru_cache(maxsize=64)
def _lower_ends(size: int) -> Array:
    """The lower ends of `_CUTS` equally likely parts of the chi-squared law."""
    return 2 * gammaincinv(size / 2, np.arange(_CUTS) / _CUTS)


def _choices(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The randomised probability of something better than the choice is uniform: Fisher's product of them."""
    choices = [pair for run in seen for pair in run.choices]
    if not choices:
        return None
    drawn = np.random.default_rng().uniform(size=len(choices))
    uniform = np.array([better + share * own for (better, own), share in zip(choices, drawn, strict=True)])
    p_value = float(gammaincc(len(choices), -np.log(np.maximum(uniform, 1e-300)).sum()))
    return NoiseTest("noise", p_value, f"its choices are less random than stated ({len(choices)} of them)")


# Shape


def _tails(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Numbers beyond some standard deviations: binomial, with a cell's width in favour of the noise."""
    values, cell = _numbers(seen)
    if not len(values):
        return None
    shares = np.array([2 * float(ndtr(-bound - cell)) for bound in _TAILS])
    counts = np.array([int((np.abs(values) > bound + cell).sum()) for bound in _TAILS])
    p_values = bdtr(counts, len(values), shares)
    _, p_value = _of_the_least(p_values)
    refuted = np.flatnonzero(p_values * len(_TAILS) < FALSE_ALARM)
    named = int(refuted[-1]) if len(refuted) else int(np.argmin(p_values))
    text = (
        f"{counts[named]} of {len(values)} numbers of its noise are beyond {_TAILS[named]:g} standard deviations, "
        f"{shares[named] * len(values):.0f} are stated"
    )
    return NoiseTest("noise shape", p_value, text)


def _distribution(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The distance of numbers to the normal's distribution function, of all and of each kind of release."""
    # rounding to a grid moves the distribution function by at most half a cell times the density, which is below 1
    numbers = [
        (release.what, ndtr(release.numbers), release.cell / 2)
        for run in seen
        for release in run.releases
        if release.numbers is not None
    ]
    return _uniformity(numbers, "its noise{} is not normal, or of another size (its distribution function is {:.3g} off)")


def _lengths(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The distance of norms to their distribution function, that of √χ² or Gamma(d), of all and of each kind of release.

    A norm of d numbers is moved by rounding by at most half of √d cells. The density of √χ² is below 1, and that of Gamma(d) is
    at most 1, and 1/√(2π(d − 1)) for d > 1, which is below 1/√d. (The cell of a pure release is wider here than it is.)
    """
    norms: list[tuple[str, Array, float]] = []
    for release in (release for run in seen for release in run.releases):
        if release.law == "gaussian":
            slack = float(np.sqrt(release.size)) * release.cell / 2
            norms.append((release.what, np.array([chdtr(release.size, release.length**2)]), slack))
        elif release.law == "pure":
            norms.append((release.what, np.array([gammainc(release.size, release.length)]), release.cell / 2))
    return _uniformity(norms, "the length of its noise{} has another distribution than stated ({:.3g} off)")


def _uniformity(values: Sequence[tuple[str, Array, float]], text: str) -> NoiseTest | None:
    """The largest distance of these numbers to the uniform distribution, beyond the largest slack, of all numbers and of each
    kind: Dvoretzky, Kiefer & Wolfowitz 1956; Massart 1990."""
    groups: dict[str, list[tuple[Array, float]]] = {}
    for what, numbers, slack in values:
        for name in ("", f" of each {what}"):
            groups.setdefault(name, []).append((numbers, slack))
    if len(groups) == 2:  # one kind
        groups = {"": groups[""]}
    if not groups:
        return None
    distances: list[float] = []
    p_values: list[float] = []
    for group in groups.values():
        ordered = np.sort(np.concatenate([numbers for numbers, _ in group]))
        places = np.arange(len(ordered) + 1) / len(ordered)
        distance = float(max(np.max(places[1:] - ordered), np.max(ordered - places[:-1])))
        distances.append(max(0.0, distance - max(slack for _, slack in group)))
        p_values.append(min(1.0, 2 * float(np.exp(-2 * len(ordered) * distances[-1] ** 2))))
    named, p_value = _first_or_least(np.array(p_values))
    return NoiseTest("noise shape", p_value, text.format(list(groups)[named], distances[named]))


def _numbers(seen: Sequence[NoiseSeen]) -> tuple[Array, float]:
    """All kept numbers of Gaussian noise, and the widest cell."""
    samples = [sample.ravel() for run in seen for sample, _ in run.samples]
    cell = max((cell for run in seen for _, cell in run.samples), default=0.0)
    return (np.concatenate(samples) if samples else np.zeros(0)), cell


def _grain(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Numbers that occur twice: hardly ever on the stated grid, often on a coarser one or in a narrower type."""
    most, numbers, repeats = 0.0, 0, 0
    for run in seen:
        for sample, cell in _by_size(release for release in run.releases if release.law == "gaussian"):
            values = np.sort(sample.ravel())
            # two numbers of one cell differ by what the subtraction of the query leaves
            repeats += int((np.diff(values) <= cell / 4).sum())
            # given those before, the i-th number falls on one of them with probability at most i cells at the mode
            most += len(values) * (len(values) - 1) / 2 * min(1.0, 1.5 * cell / np.sqrt(2 * np.pi))
            numbers += len(values)
    if not numbers:
        return None
    text = f"{repeats} of {numbers} numbers of its noise occur more than once: it is coarser than stated"
    return NoiseTest("coarse noise", _poisson_tail(repeats, most), text)


def _poisson_tail(count: int, mean: float) -> float:
    """Chernoff's bound on the probability of `count` or more, for a sum of coins whose conditional means add up to `mean`."""
    if count <= mean:
        return 1.0
    return float(np.exp(count - mean - count * np.log(count / max(mean, 1e-300))))


# Dependence


def _repeats(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The nearest two vectors, up to a common sign, in their first few numbers.

    Two independent normals are within x of each other with probability at most x/√π, so N vectors have two within x in each of
    k numbers with probability at most N(N − 1)·((x + cell)/√π)^k, both signs counted.
    """
    samples = [(sample, cell) for run in seen for sample, cell in run.samples]
    cell = max((cell for _, cell in samples), default=0.0)
    pairs = sum(len(sample) for sample, _ in samples) ** 2
    count = max(3, int(np.ceil(np.log(FALSE_ALARM / max(pairs, 1)) / np.log((_SAME + cell) / np.sqrt(np.pi)))))
    heads = [sample[:, :count] for sample, _ in samples if sample.shape[1] >= count]
    vectors = np.concatenate(heads) if heads else np.zeros((0, count))
    if len(vectors) < 2:
        return None
    vectors = vectors * np.where(vectors[:, :1] < 0, -1.0, 1.0)
    vectors = vectors[np.argsort(vectors[:, 0])]
    nearest = float(np.abs(np.diff(vectors, axis=0)).max(axis=1).min())
    p_value = min(1.0, len(vectors) * (len(vectors) - 1) * ((nearest + cell) / np.sqrt(np.pi)) ** count)
    return NoiseTest("repeated noise", p_value, "the same noise is used twice")


def _pairs_of_releases(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Given one vector of normals, its product with another one is a normal with that vector's length as standard deviation.

    Vectors are the releases of each length, and of each run its numbers in releases of one or two.
    """
    vectors = [list(np.concatenate(matrices)) for matrices in _by_length(seen) if matrices[0].shape[1] > 2]
    vectors.append([run for each in seen if len(run := _short_numbers(each)) > 2])
    pairs: list[Array] = []
    for group in vectors:
        if len(group) > 1:
            products, squares = _products(group[:_MOST])
            above = np.triu_indices(len(products), 1)
            pairs.append(2 * ndtr(-np.abs(products[above]) / np.sqrt(np.maximum(squares[above], 1e-300))))
    if not pairs:
        return None
    _, p_value = _of_the_least(np.concatenate(pairs))
    return NoiseTest("repeated noise", p_value, "the same noise is used twice: two releases' noise is correlated")


def _short_numbers(run: NoiseSeen) -> Array:
    """The run's first numbers in releases of one or two."""
    numbers = [release.numbers for release in run.releases if release.size < 3 and release.numbers is not None]
    return np.concatenate(numbers)[: 3 * _THIRD] if numbers else np.zeros(0)


def _products(vectors: Sequence[Array]) -> tuple[Array, Array]:
    """(i, j): the product of vectors i and j as far as both go, and the squared length of that part of vector i."""
    sizes = np.array([len(vector) for vector in vectors])
    rows = np.zeros((len(vectors), int(sizes.max())))
    for row, vector in zip(rows, vectors, strict=True):
        row[: len(vector)] = vector
    return rows @ rows.T, np.cumsum(rows**2, axis=1)[:, sizes - 1]


def _correlations(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Products of releases some steps apart and of parts of a release, each a standard normal."""
    scores = {**_between_releases(seen), **_within_releases(seen)}
    if not scores:
        return None
    least, p_value = _of_the_least(2 * ndtr(-np.abs(np.array(list(scores.values())))))
    name, score = list(scores.items())[least]
    return NoiseTest("correlated noise", p_value, f"{name} is correlated ({score:.3g} standard deviations)")


def _by_length(seen: Iterable[NoiseSeen]) -> Iterator[list[Array]]:
    groups: dict[int, list[Array]] = {}
    for run in seen:
        for sample, _ in run.samples:
            groups.setdefault(sample.shape[1], []).append(sample)
    yield from groups.values()


def _between_releases(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """Scores of releases any number of places apart, as far as both go: among all releases of a run, and among those of each
    length. Pairs of one score share no release: those that begin in blocks 1, 3, 5, ... of as many releases as they are apart,
    and the others. So, given the first releases of the pairs, the sum of products is normal."""
    products: dict[str, Array] = {}
    squares: dict[str, Array] = {}
    for run in seen:
        kept = [release for release in run.releases if release.numbers is not None]
        sizes = sorted({release.size for release in kept})
        for size in [None, *sizes] if len(sizes) > 1 else [None]:
            vectors = [release.numbers for release in kept if size in (None, release.size) and release.numbers is not None]
            vectors = vectors[: 2 * _MOST]  # of many lengths there may be more
            if len(vectors) < 2:
                continue
            product, square = _products(vectors)
            first, second = np.triu_indices(len(vectors), 1)
            apart = second - first
            scores = 2 * apart + first // apart % 2
            name = "releases" if size is None else f"releases of {size} numbers"
            for sums, values in ((products, product), (squares, square)):
                sums[name] = _longer_sum(sums.get(name), np.bincount(scores, values[first, second]).astype(np.float64))
    return {
        f"noise of {name} {score // 2} apart ({'odd' if score % 2 == 0 else 'even'} blocks)": float(
            products[name][score] / np.sqrt(squares[name][score])
        )
        for name in products
        for score in np.flatnonzero(squares[name] > 0)
    }


def _longer_sum(one: Array | None, other: Array) -> Array:
    """The sum of two arrays, the shorter filled up by zeros."""
    if one is None:
        return other
    total = np.zeros(max(len(one), len(other)))
    total[: len(one)] += one
    total[: len(other)] += other
    return total


def _within_releases(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """Scores of neighbouring numbers, halves, mirrored halves, beginning and end: over all releases, and of each by itself."""
    scores: dict[str, float] = {}
    sums: dict[str, tuple[float, float]] = {}
    for number, (sample, _) in enumerate(itertools.chain.from_iterable(run.samples for run in seen)):
        size = sample.shape[1]
        if size < 2:
            continue
        third = size // 3
        even, half = size // 2 * 2, size // 2
        parts = {
            "neighbouring numbers of a release": (sample[:, 0:even:2], sample[:, 1:even:2]),
            "a half of a release and the other": (sample[:, :half], sample[:, half : 2 * half]),
            "a half of a release and the other's mirror image": (sample[:, :half], sample[:, : size - half - 1 : -1]),
        }
        if size == 3 * _THIRD:  # three places of a longer release
            parts["the beginning and the middle of a release"] = (sample[:, :third], sample[:, third : 2 * third])
            parts["the beginning and the end of a release"] = (sample[:, :third], sample[:, 2 * third :])
        for name, (one, other) in parts.items():
            products, squares = (one * other).sum(axis=1), (one**2).sum(axis=1)
            whole = sums.get(name, (0.0, 0.0))
            sums[name] = whole[0] + float(products.sum()), whole[1] + float(squares.sum())
            single = products / np.sqrt(np.maximum(squares, 1e-300))
            for release, value in enumerate(single):
                scores[f"noise in {name} ({number + 1}, {release + 1})"] = float(value)
    return scores | {f"noise in {name}": product / np.sqrt(square) for name, (product, square) in sums.items() if square}


def _ranks(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Noise that is a linear combination of other noise spans fewer dimensions than there are releases.

    The least singular value σ of m independent normal vectors of n numbers has P(σ < √n − √m − t) ≤ exp(−t²/2) (Davidson and
    Szarek 2001); blocks have at most a quarter as many releases as numbers.
    """
    p_values: list[float] = []
    for matrices in _by_length(seen):
        vectors = np.concatenate(matrices)
        size = vectors.shape[1]
        rows = min(size // 4, _MOST)
        if rows < 2 or np.exp(-((np.sqrt(size) - np.sqrt(2)) ** 2) / 2) * len(vectors) >= FALSE_ALARM:
            continue  # too few numbers for the bound to refute anything
        for start in range(0, len(vectors) - 1, max(1, rows // 2)):
            block = vectors[start : start + rows]
            if len(block) > 1:
                below = np.sqrt(size) - np.sqrt(len(block)) - float(np.linalg.svd(block, compute_uv=False)[-1])
                p_values.append(float(np.exp(-(max(0.0, below) ** 2) / 2)))
    if not p_values:
        return None
    _, p_value = _of_the_least(np.array(p_values))
    text = "the same noise is used twice: a release's noise is made of that of others"
    return NoiseTest("repeated noise", p_value, text)


#: The families, in the order in which a kind of defect is reported.
FAMILIES: tuple[Callable[[Sequence[NoiseSeen]], NoiseTest | None], ...] = (
    _release_sizes,
    _coordinate_sizes,
    _pure_sizes,
    _path_sizes,
    _choices,
    _tails,
    _distribution,
    _lengths,
    _repeats,
    _pairs_of_releases,
    _ranks,
    _grain,
    _correlations,
)
