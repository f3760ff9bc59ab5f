"""Whether the noise of recorded runs is what is stated: as large, everywhere, of the right shape and fineness, and independent.

Every test has an exact law, or a bound on its tail, under noise as stated: independent normals on the grid that was recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, chdtr, gammainc, gammaincc, ndtr

from dperm.audit.recording import Recording, ReleaseRecord

__all__ = ["Finding", "NoiseSeen", "noise_findings"]

Array = NDArray[np.float64]

_SURE = 1e-9  # chance of a false alarm, of all tests of one kind together
_SAME = 1e-5  # two numbers that agree to this are one
_COARSEST = 2.0**-6  # of the noise's spread: a grid whose cells are wider shows little of it
_KEPT = 256  # numbers kept of each third of a release: first, middle, last
_MOST = 400  # releases of one length and run that are compared with each other
_TAILS = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5)  # where the numbers of large noise are counted


@dataclass(frozen=True)
class Finding:
    """What should not be; `kind` is one word or two, the same for the same defect on all pairs."""

    kind: str
    text: str


@dataclass(frozen=True)
class NoiseSeen:
    """What is kept of one run's noise, in units of what is stated.

    For each Gaussian release its sum of squares and size; for each coordinate the sum of squares and count over releases of
    that length; for each pure release its length and dimension; for each choice the probability of better ones, and of it.
    `samples` has, for each length of release, up to 768 numbers of up to 400 releases (releases, numbers) and the largest width
    of a cell that they are rounded to.
    """

    releases: tuple[tuple[float, int], ...]
    coordinates: dict[int, tuple[Array, int]]
    pure: tuple[tuple[float, int], ...]
    choices: tuple[tuple[float, float], ...]
    samples: tuple[tuple[Array, float], ...]

    @classmethod
    def of(cls, recording: Recording) -> NoiseSeen:
        releases: list[tuple[float, int]] = []
        pure: list[tuple[float, int]] = []
        choices: list[tuple[float, float]] = []
        coordinates: dict[int, tuple[Array, int]] = {}
        samples: dict[int, list[Array]] = {}
        cells: dict[int, float] = {}
        for item in recording.releases:
            if item.kind == "choice":
                choices.append(_place(item))
                continue
            noise = (item.released - item.query).ravel()
            rounding = item.precision * float(np.abs(item.released).max(initial=0.0))
            laplace = item.kind in ("pure", "threshold")
            spread = item.sensitivity / item.noise if laplace else item.noise
            if (cell := (item.step + rounding) / spread) > _COARSEST:
                continue  # what is seen is the grid, not the noise
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
                samples[size].append(vector[_places(size)])
        kept = tuple((np.array(vectors), cells[size]) for size, vectors in samples.items())
        return cls(tuple(releases), coordinates, tuple(pure), tuple(choices), kept)


def _place(item: ReleaseRecord) -> tuple[float, float]:
    """Of an exponential mechanism: the chance of something better than what was chosen, and of what was chosen."""
    scores = item.query * item.noise / (2 * item.sensitivity)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    chosen = int(item.released[0])
    return float(chances[scores > scores[chosen]].sum()), float(chances[scores == scores[chosen]].sum())


def _places(size: int) -> NDArray[np.intp]:
    if size <= 3 * _KEPT:
        return np.arange(size)
    middle = size // 2
    return np.concatenate([np.arange(_KEPT), np.arange(middle, middle + _KEPT), np.arange(size - _KEPT, size)])


def noise_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """Tests over independent runs: of all noise, of each release by its place in the run, of each coordinate, of pairs of
    releases, and of parts of a release."""
    findings = _size_findings(seen)
    pure = [pair for run in seen for pair in run.pure]
    if pure:
        # the length of exp(−ε‖b‖/Δ) noise in d dimensions is Gamma(d)
        length, dimensions = sum(length for length, _ in pure), sum(size for _, size in pure)
        if gammainc(dimensions, length) < _SURE:
            text = f"its noise has {length / dimensions:.3g} of the length stated ({len(pure)} releases)"
            findings.append(Finding("noise", text))
    choices = [pair for run in seen for pair in run.choices]
    if choices:
        # a place between both, drawn evenly, is uniform; near 0 where better ones are chosen too often
        drawn = np.random.default_rng().uniform(size=len(choices))
        uniform = np.array([better + share * own for (better, own), share in zip(choices, drawn, strict=True)])
        if gammaincc(len(choices), -np.log(np.maximum(uniform, 1e-300)).sum()) < _SURE:
            findings.append(Finding("noise", f"its choices are less random than stated ({len(choices)} of them)"))
    findings += _shape_findings(seen)
    repeated = _repeated_findings(seen)
    return findings + (repeated or _grain_findings(seen) + _dependence_findings(seen))


# Size


def _size_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    groups: dict[str, list[tuple[float, int]]] = {"": [pair for run in seen for pair in run.releases]}
    for run in seen:
        for place, pair in enumerate(run.releases):
            groups.setdefault(f" in release {place + 1}", []).append(pair)
    sums = {name: (sum(square for square, _ in pairs), sum(size for _, size in pairs)) for name, pairs in groups.items() if pairs}
    short = [name for name, (square, size) in sums.items() if chdtr(size, square) < _SURE / len(sums)]
    if not short:
        return _coordinate_findings(seen)
    square, size = sums[short[0]]
    ratio = np.sqrt(square / size)
    return [Finding("noise", f"its noise{short[0]} has {ratio:.3g} of the standard deviation stated ({size} numbers)")]


def _coordinate_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    for size in sorted({size for run in seen for size in run.coordinates}):
        parts = [run.coordinates[size] for run in seen if size in run.coordinates]
        squares, count = sum(square for square, _ in parts), sum(number for _, number in parts)
        chances = chdtr(np.full(size, float(count)), squares)
        if chances.min() < _SURE / size:
            return [Finding("noise", f"coordinate {int(chances.argmin()) + 1} of {size} has less noise than stated")]
    return []


# Shape


def _shape_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    findings: list[Finding] = []
    every = [sample for run in seen for sample, _ in run.samples]
    if not every:
        return findings
    values = np.concatenate([sample.ravel() for sample in every])
    cells = max(cell for run in seen for _, cell in run.samples)
    tails = [(bound, int((np.abs(values) > bound + cells).sum()), 2 * float(ndtr(-bound - cells))) for bound in _TAILS]
    cut = [(bound, count, share) for bound, count, share in tails if bdtr(count, len(values), share) < _SURE / len(_TAILS)]
    if cut:
        bound, count, share = cut[-1]
        stated = f"{share * len(values):.0f} are stated"
        text = f"{count} of {len(values)} numbers of its noise are beyond {bound:g} standard deviations, {stated}"
        findings.append(Finding("noise shape", text))
    # Dvoretzky, Kiefer and Wolfowitz's bound on the distance between distribution functions, with Massart's constant
    ordered = ndtr(np.sort(values))
    places = np.arange(len(values) + 1) / len(values)
    distance = float(max(np.max(places[1:] - ordered), np.max(ordered - places[:-1]))) - cells / 2
    if 2 * np.exp(-2 * len(values) * max(0.0, distance) ** 2) < _SURE:
        findings.append(Finding("noise shape", f"its noise is not normal (its distribution function is {distance:.3g} off)"))
    return findings


def _grain_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """Numbers that occur twice: hardly ever on the grid that is stated, often on a coarser one, or in a narrower type."""
    most, numbers = 0.0, 0
    repeats = 0
    for run in seen:
        for sample, cell in run.samples:
            values = np.sort(sample.ravel())
            # two numbers of one cell differ by what the subtraction of a query leaves of it
            repeats += int((np.diff(values) <= cell / 4).sum())
            # given those before, the i-th number falls onto one of them with a chance of at most i cells at the mode
            most += len(values) * (len(values) - 1) / 2 * min(1.0, 1.5 * cell / np.sqrt(2 * np.pi))
            numbers += len(values)
    if repeats and _poisson_tail(repeats, most) < _SURE:
        return [
            Finding(
                "coarse noise", f"{repeats} of {numbers} numbers of its noise occur more than once: it is coarser than stated"
            )
        ]
    return []


def _poisson_tail(count: int, mean: float) -> float:
    """Chernoff's bound on the chance of `count` or more, for a sum of independent coins of this mean."""
    if count <= mean:
        return 1.0
    return float(np.exp(count - mean - count * np.log(count / max(mean, 1e-300))))


# Dependence


def _repeated_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """Two vectors that are the same, or each other's negative, in so many numbers that chance never makes them so."""
    samples = [(sample, cell) for run in seen for sample, cell in run.samples]
    pairs = sum(len(sample) for sample, _ in samples) ** 2
    # two normals are within x of each other with a chance of at most 2x times their difference's density at 0; twice: the sign
    near = (_SAME + max((cell for _, cell in samples), default=0.0)) / np.sqrt(np.pi)
    count = max(3, int(np.ceil(np.log(_SURE / max(pairs, 1)) / np.log(near))))
    heads = [sample[:, :count] for sample, _ in samples if sample.shape[1] >= count]
    vectors = np.concatenate(heads) if heads else np.zeros((0, count))
    vectors = vectors * np.where(vectors[:, :1] < 0, -1.0, 1.0)
    order = np.argsort(vectors[:, 0])
    if any(np.allclose(vectors[i], vectors[j], rtol=0, atol=_SAME) for i, j in itertools.pairwise(order)):
        return [Finding("repeated noise", "the same noise is used twice")]
    return []


def _dependence_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """Given one vector of normals, its product with another is a normal with that vector's length as standard deviation."""
    pairs: list[float] = []
    for matrices in _by_length(seen):
        vectors = np.concatenate(matrices)[:_MOST]
        if vectors.shape[1] < 3 or len(vectors) < 2:
            continue
        lengths = np.linalg.norm(vectors, axis=1)
        products = (vectors @ vectors.T) / np.maximum(lengths[:, None], 1e-300)
        pairs += list(np.abs(products[np.triu_indices(len(vectors), 1)]))
    if pairs and 2 * ndtr(-max(pairs)) < _SURE / len(pairs):
        return [Finding("repeated noise", "the same noise is used twice: two releases' noise is correlated")]
    tests = {**_along(seen), **_within(seen)}
    significant = {name: value for name, value in tests.items() if 2 * ndtr(-abs(value)) < _SURE / len(tests)}
    if significant:
        name, value = max(significant.items(), key=lambda item: abs(item[1]))
        return [Finding("correlated noise", f"{name} is correlated ({value:.3g} standard deviations)")]
    return _rank_findings(seen)


def _by_length(seen: Iterable[NoiseSeen]) -> Iterator[list[Array]]:
    groups: dict[int, list[Array]] = {}
    for run in seen:
        for sample, _ in run.samples:
            groups.setdefault(sample.shape[1], []).append(sample)
    yield from groups.values()


def _along(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """Releases one, two or three apart, in pairs that share none."""
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


def _within(seen: Sequence[NoiseSeen]) -> dict[str, float]:
    """Parts of a release: neighbouring numbers, halves, halves mirrored, first and last; all releases, and each by itself."""
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
        if size == 3 * _KEPT:  # three places of a longer release
            parts["the beginning and the middle of a release"] = (sample[:, :third], sample[:, third : 2 * third])
            parts["the beginning and the end of a release"] = (sample[:, :third], sample[:, 2 * third :])
        for name, (one, other) in parts.items():
            if not one.size:
                continue
            products, squares = (one * other).sum(axis=1), (one**2).sum(axis=1)
            whole = sums.get(name, (0.0, 0.0))
            sums[name] = whole[0] + float(products.sum()), whole[1] + float(squares.sum())
            single = products / np.sqrt(np.maximum(squares, 1e-300))
            for release, value in enumerate(single):
                scores[f"noise in {name} ({number + 1}, {release + 1})"] = float(value)
    return scores | {f"noise in {name}": product / np.sqrt(square) for name, (product, square) in sums.items() if square}


def _rank_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """Noise that is a sum of other noise: fewer dimensions than releases. In half as many releases as numbers, the least singular
    value of independent normals is far from 0 (Davidson and Szarek 2001: P(σ < √n − √m − t) ≤ e^{−t²/2})."""
    for matrices in _by_length(seen):
        vectors = np.concatenate(matrices)
        size = vectors.shape[1]
        rows = min(size // 4, _MOST)
        sure = np.sqrt(2 * np.log(len(vectors) / _SURE))
        least = np.sqrt(size) - np.sqrt(rows) - sure
        if rows < 2 or least <= 0:
            continue
        for start in range(0, len(vectors) - 1, max(1, rows // 2)):
            block = vectors[start : start + rows]
            if len(block) > 1 and float(np.linalg.svd(block, compute_uv=False)[-1]) < min(least, 1e-3):
                return [Finding("repeated noise", "the same noise is used twice: a release's noise is made of that of others")]
    return []
