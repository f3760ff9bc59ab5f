"""Statistical tests of the noise of recorded runs: its size, its shape, its resolution and its independence.

Each family of tests returns one p-value: the probability, or a proved upper bound on the probability, that sound noise
deviates at least as far as the noise that was seen. Sound noise consists of independent normals on the recorded grid, of
gamma-norm vectors for pure mechanisms, and of exponential-mechanism choices. A family is refuted where its p-value is below
`FALSE_ALARM`, so that by the union bound sound noise is refuted with probability at most len(FAMILIES) · FALSE_ALARM.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, chdtr, gammainc, gammaincc, ndtr

from dperm.audit.recording import Recording, ReleaseRecord

__all__ = ["FALSE_ALARM", "FAMILIES", "Finding", "NoiseSeen", "NoiseTest", "noise_findings", "noise_tests"]

Array = NDArray[np.float64]

FALSE_ALARM = 1e-9  # probability with which one family refutes sound noise, at most
_SAME = 1e-5  # two numbers that agree to this distance, in standard deviations, count as one number
_COARSEST = 2.0**-6  # standard deviations: a grid with wider cells hides the noise's law
_THIRD = 256  # numbers kept from each of the beginning, the middle and the end of a long release
_MOST = 400  # releases of one length and run that are compared with each other
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
class NoiseSeen:
    """Summary of one run's noise, in units of the stated standard deviation.

    Attributes
    ----------
    releases : tuple of (float, int)
        For each Gaussian release, its sum of squares and its number of coordinates.
    coordinates : dict of int to (array, int)
        For each length of release, the sum of squares of each coordinate and the number of releases.
    pure : tuple of (float, int)
        For each release of a pure mechanism, its norm and its number of coordinates.
    choices : tuple of (float, float)
        For each choice, the probability of better candidates and that of the chosen one.
    samples : tuple of (array, float)
        For each length of release, up to 768 numbers of up to 400 releases, an array (releases, numbers), and the widest cell of
        the grid to which they are rounded.
    """

    releases: tuple[tuple[float, int], ...]
    coordinates: dict[int, tuple[Array, int]]
    pure: tuple[tuple[float, int], ...]
    choices: tuple[tuple[float, float], ...]
    samples: tuple[tuple[Array, float], ...]

    @classmethod
    def of(cls, recording: Recording) -> NoiseSeen:
        """Summarise the noise of all releases of a recording."""
        releases: list[tuple[float, int]] = []
        pure: list[tuple[float, int]] = []
        choices: list[tuple[float, float]] = []
        coordinates: dict[int, tuple[Array, int]] = {}
        samples: dict[int, list[Array]] = {}
        cells: dict[int, float] = {}
        for item in recording.releases:
            if item.kind == "choice":
                choices.append(_choice(item))
                continue
            noise = (item.released - item.query).ravel()
            rounding = item.precision * float(np.abs(item.released).max(initial=0.0))
            laplace = item.kind in ("pure", "threshold")
            spread = item.sensitivity / item.noise if laplace else item.noise
            if (cell := (item.step + rounding) / spread) > _COARSEST:
                continue  # only the grid could be seen, not the noise
            if laplace:
                vector = noise * (item.noise / item.sensitivity)
                pure.append((float(np.linalg.norm(vector)), vector.size))
                continue
            vector = noise / item.noise
            size = vector.size
            releases.append((float(vector @ vector), size))
            total, count = coordinates.get(size, (np.zeros(size), 0))
            coordinates[size] = total + vector**2, count + 1
            cells[size] = max(cells.get(size, 0.0), cell)
            if len(samples.setdefault(size, [])) < _MOST:
                samples[size].append(vector[_kept_places(size)])
        kept = tuple((np.array(vectors), cells[size]) for size, vectors in samples.items())
        return cls(tuple(releases), coordinates, tuple(pure), tuple(choices), kept)


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


def _release_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of all noise and of each release by its place in the run: chi-squared."""
    groups: dict[str, list[tuple[float, int]]] = {"": [pair for run in seen for pair in run.releases]}
    if not groups[""]:
        return None
    if max(len(run.releases) for run in seen) > 1:  # else the first release is all noise, which was counted
        for run in seen:
            for place, pair in enumerate(run.releases):
                groups.setdefault(f" in release {place + 1}", []).append(pair)
    squares = np.array([sum(square for square, _ in pairs) for pairs in groups.values()])
    sizes = np.array([sum(size for _, size in pairs) for pairs in groups.values()], dtype=float)
    p_values = chdtr(sizes, squares)
    least, p_value = _of_the_least(p_values)
    refuted = np.flatnonzero(p_values * len(p_values) < FALSE_ALARM)
    named = int(refuted[0]) if len(refuted) else least  # all noise together, or the earliest release
    ratio = np.sqrt(squares[named] / sizes[named])
    text = f"its noise{list(groups)[named]} has {ratio:.3g} of the standard deviation stated ({int(sizes[named])} numbers)"
    return NoiseTest("noise", p_value, text)


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


def _pure_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Norms of noise with density ∝ exp(−ε‖b‖/Δ) in d dimensions: their sum is Gamma(Σd)."""
    pure = [pair for run in seen for pair in run.pure]
    if not pure:
        return None
    length, dimensions = sum(length for length, _ in pure), sum(size for _, size in pure)
    text = f"its noise has {length / dimensions:.3g} of the length stated ({len(pure)} releases)"
    return NoiseTest("noise", float(gammainc(dimensions, length)), text)


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
    """The largest distance to the normal's distribution function (Dvoretzky, Kiefer & Wolfowitz 1956; Massart 1990)."""
    values, cell = _numbers(seen)
    if not len(values):
        return None
    ordered = ndtr(np.sort(values))
    places = np.arange(len(values) + 1) / len(values)
    # rounding to a grid moves the distribution function by at most half a cell times the density, which is below 1
    distance = max(0.0, float(max(np.max(places[1:] - ordered), np.max(ordered - places[:-1]))) - cell / 2)
    p_value = min(1.0, 2 * float(np.exp(-2 * len(values) * distance**2)))
    return NoiseTest("noise shape", p_value, f"its noise is not normal (its distribution function is {distance:.3g} off)")


def _numbers(seen: Sequence[NoiseSeen]) -> tuple[Array, float]:
    """All kept numbers of Gaussian noise, and the widest cell."""
    samples = [sample.ravel() for run in seen for sample, _ in run.samples]
    cell = max((cell for run in seen for _, cell in run.samples), default=0.0)
    return (np.concatenate(samples) if samples else np.zeros(0)), cell


def _grain(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Numbers that occur twice: hardly ever on the stated grid, often on a coarser one or in a narrower type."""
    most, numbers, repeats = 0.0, 0, 0
    for run in seen:
        for sample, cell in run.samples:
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
    """Given one vector of normals, its product with another one is a normal with that vector's length as standard deviation."""
    pairs: list[Array] = []
    for matrices in _by_length(seen):
        vectors = np.concatenate(matrices)[:_MOST]
        if vectors.shape[1] < 3 or len(vectors) < 2:
            continue
        lengths = np.linalg.norm(vectors, axis=1)
        products = (vectors @ vectors.T) / np.maximum(lengths[:, None], 1e-300)
        pairs.append(2 * ndtr(-np.abs(products[np.triu_indices(len(vectors), 1)])))
    if not pairs:
        return None
    _, p_value = _of_the_least(np.concatenate(pairs))
    return NoiseTest("repeated noise", p_value, "the same noise is used twice: two releases' noise is correlated")


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
    """Scores of releases one, two or three apart, in pairs that share none."""
    scores: dict[str, float] = {}
    for lag in (1, 2, 3):
        product = square = 0.0
        for run in seen:
            for sample, _ in run.samples:
                first = np.flatnonzero(np.arange(len(sample)) % (2 * lag) < lag)
                first = first[first + lag < len(sample)]
                product += float((sample[first] * sample[first + lag]).sum())
                square += float((sample[first] ** 2).sum())
        if square:
            scores[f"noise of releases {lag} apart"] = product / np.sqrt(square)
    return scores


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
    _choices,
    _tails,
    _distribution,
    _repeats,
    _pairs_of_releases,
    _ranks,
    _grain,
    _correlations,
)
