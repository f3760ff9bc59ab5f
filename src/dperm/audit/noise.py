"""Whether the noise of recorded runs is as large as stated, everywhere, and never the same twice."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtr, gammainc

from dperm.privacy import Recording

__all__ = ["Finding", "NoiseSeen", "noise_findings"]

Array = NDArray[np.float64]

_SAME_NOISE = 1e-5  # two noise vectors that agree to this are one
_SURE = 1e-9  # chance of a false alarm, of all tests of one kind together


@dataclass(frozen=True)
class Finding:
    """What should not be; `kind` is one word or two, the same for the same defect on all pairs."""

    kind: str
    text: str


@dataclass(frozen=True)
class NoiseSeen:
    """What is kept of one run's noise, in units of what is stated.

    For each Gaussian release its sum of squares and size; for each coordinate the sum of squares and count over releases of
    that length; for each pure release its length and dimension; the first three numbers of each vector that has them.
    """

    releases: tuple[tuple[float, int], ...]
    coordinates: dict[int, tuple[Array, int]]
    pure: tuple[tuple[float, int], ...]
    heads: Array

    @classmethod
    def of(cls, recording: Recording) -> NoiseSeen:
        releases: list[tuple[float, int]] = []
        pure: list[tuple[float, int]] = []
        coordinates: dict[int, tuple[Array, int]] = {}
        heads: list[Array] = []
        for item in recording.releases:
            noise = (item.released - item.query).ravel()
            if item.kind == "pure":
                vector = noise * (item.noise / item.sensitivity)
                pure.append((float(np.linalg.norm(vector)), vector.size))
            else:
                vector = noise / item.noise
                releases.append((float(vector @ vector), vector.size))
                total, count = coordinates.get(vector.size, (np.zeros(vector.size), 0))
                coordinates[vector.size] = total + vector**2, count + 1
            if vector.size >= 3:
                heads.append(vector[:3])
        return cls(tuple(releases), coordinates, tuple(pure), np.array(heads).reshape(-1, 3))


def noise_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    """Tests over independent runs: of all noise, of each release by its place in the run, and of each coordinate."""
    findings: list[Finding] = []
    groups: dict[str, list[tuple[float, int]]] = {"": [pair for run in seen for pair in run.releases]}
    for run in seen:
        for place, pair in enumerate(run.releases):
            groups.setdefault(f" in release {place + 1}", []).append(pair)
    sums = {name: (sum(square for square, _ in pairs), sum(size for _, size in pairs)) for name, pairs in groups.items() if pairs}
    short = [name for name, (square, size) in sums.items() if chdtr(size, square) < _SURE / len(sums)]
    if short:
        square, size = sums[short[0]]
        ratio = np.sqrt(square / size)
        text = f"its noise{short[0]} has {ratio:.3g} of the standard deviation stated ({size} numbers)"
        findings.append(Finding("noise", text))
    else:
        findings += _coordinate_findings(seen)
    pure = [pair for run in seen for pair in run.pure]
    if pure:
        # the length of exp(−ε‖b‖/Δ) noise in d dimensions is Gamma(d)
        length, dimensions = sum(length for length, _ in pure), sum(size for _, size in pure)
        if gammainc(dimensions, length) < _SURE:
            text = f"its noise has {length / dimensions:.3g} of the length stated ({len(pure)} releases)"
            findings.append(Finding("noise", text))
    heads = np.concatenate([run.heads for run in seen]) if seen else np.zeros((0, 3))
    order = np.argsort(heads[:, 0])
    if any(np.allclose(heads[i], heads[j], rtol=0, atol=_SAME_NOISE) for i, j in itertools.pairwise(order)):
        findings.append(Finding("repeated noise", "the same noise is used twice"))
    return findings


def _coordinate_findings(seen: Sequence[NoiseSeen]) -> list[Finding]:
    for size in sorted({size for run in seen for size in run.coordinates}):
        parts = [run.coordinates[size] for run in seen if size in run.coordinates]
        squares, count = sum(square for square, _ in parts), sum(number for _, number in parts)
        chances = chdtr(np.full(size, float(count)), squares)
        if chances.min() < _SURE / size:
            return [Finding("noise", f"coordinate {int(chances.argmin()) + 1} of {size} has less noise than stated")]
    return []
