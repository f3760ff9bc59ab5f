"""Whether noise is independent: of the noise of other releases, and within a release."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from scipy.special import ndtr

from dperm._types import Array
from dperm.audit.noise.family import FALSE_ALARM, NoiseTest, of_the_least
from dperm.audit.noise.summary import MOST, THIRD, NoiseSeen

_SAME = 1e-5  # two numbers that agree to this distance, in standard deviations, count as one number


def repeats(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
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


def pairs_of_releases(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Given one vector of normals, its product with another one is a normal with that vector's length as standard deviation.

    Vectors are the releases of each length, and of each run its numbers in releases of one or two.
    """
    vectors = [list(np.concatenate(matrices)) for matrices in _by_length(seen) if matrices[0].shape[1] > 2]
    vectors.append([run for each in seen if len(run := _short_numbers(each)) > 2])
    pairs: list[Array] = []
    for group in vectors:
        if len(group) > 1:
            products, squares = _products(group[:MOST])
            above = np.triu_indices(len(products), 1)
            pairs.append(2 * ndtr(-np.abs(products[above]) / np.sqrt(np.maximum(squares[above], 1e-300))))
    if not pairs:
        return None
    _, p_value = of_the_least(np.concatenate(pairs))
    return NoiseTest("repeated noise", p_value, "the same noise is used twice: two releases' noise is correlated")


def _short_numbers(run: NoiseSeen) -> Array:
    """The run's first numbers in releases of one or two."""
    numbers = [release.numbers for release in run.releases if release.size < 3 and release.numbers is not None]
    return np.concatenate(numbers)[: 3 * THIRD] if numbers else np.zeros(0)


def _products(vectors: Sequence[Array]) -> tuple[Array, Array]:
    """(i, j): the product of vectors i and j as far as both go, and the squared length of that part of vector i."""
    sizes = np.array([len(vector) for vector in vectors])
    rows = np.zeros((len(vectors), int(sizes.max())))
    for row, vector in zip(rows, vectors, strict=True):
        row[: len(vector)] = vector
    return rows @ rows.T, np.cumsum(rows**2, axis=1)[:, sizes - 1]


def correlations(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Products of releases some steps apart and of parts of a release, each a standard normal."""
    scores = {**_between_releases(seen), **_within_releases(seen)}
    if not scores:
        return None
    least, p_value = of_the_least(2 * ndtr(-np.abs(np.array(list(scores.values())))))
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
            vectors = vectors[: 2 * MOST]  # of many lengths there may be more
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
        if size == 3 * THIRD:  # three places of a longer release
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


def ranks(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Noise that is a linear combination of other noise spans fewer dimensions than there are releases.

    The least singular value σ of m independent normal vectors of n numbers has P(σ < √n − √m − t) ≤ exp(−t²/2) (Davidson and
    Szarek 2001); blocks have at most a quarter as many releases as numbers.
    """
    p_values: list[float] = []
    for matrices in _by_length(seen):
        vectors = np.concatenate(matrices)
        size = vectors.shape[1]
        rows = min(size // 4, MOST)
        if rows < 2 or np.exp(-((np.sqrt(size) - np.sqrt(2)) ** 2) / 2) * len(vectors) >= FALSE_ALARM:
            continue  # too few numbers for the bound to refute anything
        for start in range(0, len(vectors) - 1, max(1, rows // 2)):
            block = vectors[start : start + rows]
            if len(block) > 1:
                below = np.sqrt(size) - np.sqrt(len(block)) - float(np.linalg.svd(block, compute_uv=False)[-1])
                p_values.append(float(np.exp(-(max(0.0, below) ** 2) / 2)))
    if not p_values:
        return None
    _, p_value = of_the_least(np.array(p_values))
    text = "the same noise is used twice: a release's noise is made of that of others"
    return NoiseTest("repeated noise", p_value, text)
