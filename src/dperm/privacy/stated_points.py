"""What the stated points of a `PrivacyProfile` say: exactly at the points, and between them.

A profile δ(ε) is convex in x = e^ε, is 1 at x = 0, never rises, and 1 − x + x·δ(1/x) is the profile of the pair with its places
exchanged (Zhu, Dong, Wang 2022, Section 3), which the points bound as well. The lower convex hull of the points, of their mirror
images and of (0, 1) therefore lies above the profile of every mechanism that keeps to the points; and below it no bound holds, as
the hull is itself the profile of a pair.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from dperm.privacy.events import PrivacyProfile

__all__ = ["hull", "profile_delta", "profile_epsilon", "slope"]

_UP = 1 + 1e-14  # the rounding of one interpolation


def hull(event: PrivacyProfile) -> list[tuple[float, float]]:
    """Corners (e^ε, δ), of rising e^ε from 0 on; beyond the last, δ stays what it is there."""
    distinct = dict(zip(np.exp(np.array(event.epsilons)), event.deltas, strict=True))  # where e^ε rounds to one number: the last
    x, y = np.array(list(distinct)), np.array(list(distinct.values()))
    inside = x > 1.0
    mirrored = 1 / x[inside]
    points = [(0.0, 1.0), *zip(mirrored[::-1], (1 - mirrored + mirrored * y[inside])[::-1], strict=True), *zip(x, y, strict=True)]
    corners: list[tuple[float, float]] = []
    for point in points:
        while len(corners) > 1 and slope(corners[-2], corners[-1]) >= slope(corners[-1], point):
            corners.pop()
        corners.append(point)
    return corners


def slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def profile_delta(event: PrivacyProfile, epsilon: float) -> float:
    """The least δ at `epsilon` ≥ 0 that the points imply."""
    stated = [d for e, d in zip(event.epsilons, event.deltas, strict=True) if e <= epsilon]
    x = math.exp(min(epsilon, event.epsilons[-1]))
    chords = [a[1] + slope(a, b) * (x - a[0]) for a, b in itertools.pairwise(hull(event)) if a[0] <= x <= b[0]]
    return min(1.0, *stated, *(chord * _UP for chord in chords))


def profile_epsilon(event: PrivacyProfile, delta: float) -> float:
    """The least ε ≥ 0 at `delta` that the points imply; inf where `delta` is less than all of theirs."""
    stated = [e for e, d in zip(event.epsilons, event.deltas, strict=True) if d <= delta]
    chords = [a[0] + (a[1] - delta) / -slope(a, b) for a, b in itertools.pairwise(hull(event)) if a[1] > delta >= b[1]]
    return min([*stated, *(max(0.0, math.log(x)) * _UP + (_UP - 1) for x in chords if x > 0)], default=math.inf)
