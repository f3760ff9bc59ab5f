"""Whether noise is as large as stated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, gammainc, gammaincc, gammaincinv

from dperm.audit.noise.family import FALSE_ALARM, NoiseTest, first_or_least, of_the_least
from dperm.audit.noise.summary import NoiseSeen, ReleaseSeen

__all__ = [
    "choices",
    "coordinate_sizes",
    "log_mean",
    "path_sizes",
    "pure_sizes",
    "release_sizes",
    "stated_square",
    "visible_noise",
]

Array = NDArray[np.float64]

_OFTEN = 0.95  # of audits see noise that is as small as `visible_noise` says
_CUTS = 4096  # equal parts of a chi-squared law
_DEPTHS = (0.25, 1.0, 4.0, 16.0)  # exponents, at the stated size of a path's step, by which short steps are weighted


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


def release_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of Gaussian noise, of all and of each group: chi-squared."""
    groups = _groups(seen, "gaussian")
    if not groups:
        return None
    squares = np.array([sum(release.length**2 for release in releases) for releases in groups.values()])
    sizes = np.array([sum(release.size for release in releases) for releases in groups.values()], dtype=float)
    p_values = chdtr(sizes, squares)
    named, p_value = first_or_least(p_values)
    ratio = np.sqrt(squares[named] / sizes[named])
    text = f"its noise{list(groups)[named]} has {ratio:.3g} of the standard deviation stated ({int(sizes[named])} numbers)"
    return NoiseTest("noise", p_value, text)


def coordinate_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Sums of squares of each coordinate over all releases of one length: chi-squared."""
    p_values: list[Array] = []
    for size in sorted({size for run in seen for size in run.coordinates}):
        parts = [run.coordinates[size] for run in seen if size in run.coordinates]
        squares, count = sum(square for square, _ in parts), sum(number for _, number in parts)
        p_values.append(chdtr(np.full(size, float(count)), squares))
    if not p_values:
        return None
    least, p_value = of_the_least(np.concatenate(p_values))
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


def pure_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Norms of noise with density ∝ exp(−ε‖b‖/Δ) in d dimensions, of all and of each group: their sum is Gamma(Σd)."""
    groups = _groups(seen, "pure")
    if not groups:
        return None
    lengths = np.array([sum(release.length for release in releases) for releases in groups.values()])
    sizes = np.array([sum(release.size for release in releases) for releases in groups.values()], dtype=float)
    named, p_value = first_or_least(gammainc(sizes, lengths))
    name, releases = list(groups.items())[named]
    text = f"its noise{name} has {lengths[named] / sizes[named]:.3g} of the length stated ({len(releases)} releases)"
    return NoiseTest("noise", p_value, text)


def path_sizes(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
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
        squares = [length**2 / stated_square(size, high, low) for size, high, low, length in steps]
        ratios.append(float(np.sqrt(np.mean(squares))))
        for column, depth in enumerate(_DEPTHS):
            means = sum(log_mean(size, high, low, depth) for size, high, low, _ in steps)
            logs[row, column] = means + depth * sum(squares)
    p_values = np.exp(np.minimum(logs, 0.0)).min(axis=1)
    named, p_value = first_or_least(p_values)
    text = f"its noise that falls has {ratios[named]:.3g} of the length stated{list(groups)[named]}"
    return NoiseTest("noise", min(1.0, len(_DEPTHS) * p_value), text)


def stated_square(size: int, high: float, low: float) -> float:
    """The mean of the squared norm of what is between two pure vectors of these scales: b has a squared norm of d(d + 1)."""
    return size * (size + 1) * (high - low) * (high + low)


@lru_cache(maxsize=4096)
def log_mean(size: int, high: float, low: float, depth: float) -> float:
    """An upper bound on ln E exp(−depth·‖v‖²/E‖v‖²), where v is what is between two pure vectors of these scales.

    With w of independent normals N(0, rate), exp(−rate·‖v‖²/2) is the mean over w of cos⟨w, v⟩, and v's characteristic function
    is ((1 + low²·‖w‖²)/(1 + high²·‖w‖²))^{(d + 1)/2}, which falls in ‖w‖²: its value at the lower end of each of equally likely
    parts of the law of ‖w‖²/rate, chi-squared, bounds its mean.
    """
    squares = _lower_ends(size) * (2 * depth / stated_square(size, high, low))
    logs = (size + 1) / 2 * (np.log1p(low**2 * squares) - np.log1p(high**2 * squares))
    return float(np.log(np.mean(np.exp(logs))))


@lru_cache(maxsize=64)
def _lower_ends(size: int) -> Array:
    """The lower ends of `_CUTS` equally likely parts of the chi-squared law."""
    return 2 * gammaincinv(size / 2, np.arange(_CUTS) / _CUTS)


def choices(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The randomised probability of something better than the choice is uniform: Fisher's product of them."""
    choices = [pair for run in seen for pair in run.choices]
    if not choices:
        return None
    drawn = np.random.default_rng().uniform(size=len(choices))
    uniform = np.array([better + share * own for (better, own), share in zip(choices, drawn, strict=True)])
    p_value = float(gammaincc(len(choices), -np.log(np.maximum(uniform, 1e-300)).sum()))
    return NoiseTest("noise", p_value, f"its choices are less random than stated ({len(choices)} of them)")
