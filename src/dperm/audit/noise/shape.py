"""Whether noise is distributed as stated, and as finely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import bdtr, chdtr, gammainc, ndtr

from dperm._types import Array
from dperm.audit.noise.family import FALSE_ALARM, NoiseTest, first_or_least, of_the_least
from dperm.audit.noise.summary import NoiseSeen, by_size

_TAILS = (2.0, 2.5, 3.0, 3.5, 4.0, 4.5)  # standard deviations beyond which numbers are counted


def tails(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Numbers beyond some standard deviations: binomial, with a cell's width in favour of the noise."""
    values, cell = _numbers(seen)
    if not len(values):
        return None
    shares = np.array([2 * float(ndtr(-bound - cell)) for bound in _TAILS])
    counts = np.array([int((np.abs(values) > bound + cell).sum()) for bound in _TAILS])
    p_values = bdtr(counts, len(values), shares)
    _, p_value = of_the_least(p_values)
    refuted = np.flatnonzero(p_values * len(_TAILS) < FALSE_ALARM)
    named = int(refuted[-1]) if len(refuted) else int(np.argmin(p_values))
    text = (
        f"{counts[named]} of {len(values)} numbers of its noise are beyond {_TAILS[named]:g} standard deviations, "
        f"{shares[named] * len(values):.0f} are stated"
    )
    return NoiseTest("noise shape", p_value, text)


def distribution(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """The distance of numbers to the normal's distribution function, of all and of each kind of release."""
    # rounding to a grid moves the distribution function by at most half a cell times the density, which is below 1
    numbers = [
        (release.what, ndtr(release.numbers), release.cell / 2)
        for run in seen
        for release in run.releases
        if release.numbers is not None
    ]
    return _uniformity(numbers, "its noise{} is not normal, or of another size (its distribution function is {:.3g} off)")


def lengths(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
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
    named, p_value = first_or_least(np.array(p_values))
    return NoiseTest("noise shape", p_value, text.format(list(groups)[named], distances[named]))


def _numbers(seen: Sequence[NoiseSeen]) -> tuple[Array, float]:
    """All kept numbers of Gaussian noise, and the widest cell."""
    samples = [sample.ravel() for run in seen for sample, _ in run.samples]
    cell = max((cell for run in seen for _, cell in run.samples), default=0.0)
    return (np.concatenate(samples) if samples else np.zeros(0)), cell


def grain(seen: Sequence[NoiseSeen]) -> NoiseTest | None:
    """Numbers that occur twice: hardly ever on the stated grid, often on a coarser one or in a narrower type."""
    most, numbers, repeats = 0.0, 0, 0
    for run in seen:
        for sample, cell in by_size(release for release in run.releases if release.law == "gaussian"):
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
