"""What the stated points of a `PrivacyProfile` say: exactly at the points, and between them.

A profile δ(ε) is convex in x = e^ε, is 1 at x = 0, never rises, and 1 − x + x·δ(1/x) is the profile of the pair with its places
exchanged (Zhu, Dong, Wang 2022, Section 3), which the points bound as well. The lower convex hull of the points, of their mirror
images and of (0, 1) therefore lies above the profile of every mechanism that keeps to the points; and below it no bound holds, as
the hull is itself the profile of a pair.

Rounding never makes a bound too small, and costs it a few last digits, however small δ and ε are. Corners are stated, or rounded
up; every chord between two of them is a bound, whichever corners rounding picks. On a chord δ is a mean of its ends, with weights
in proportion to differences of x: such a difference is e^ε·expm1 of a difference of ε, right to a few last digits, and sums of
numbers that are not negative keep that.
"""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np

from dperm.privacy.events import PrivacyProfile

Corner = tuple[float, float]

_EPS = float(np.finfo(np.float64).eps)
_TINY = 8 * sys.float_info.min  # smaller numbers have few digits, or none where other libraries have the processor drop them


def hull(event: PrivacyProfile) -> list[Corner]:
    """Corners (ε, δ), from (−inf, 1) on in rising order of ε; beyond the last, δ stays what it is there."""
    points = list(zip(event.epsilons, event.deltas, strict=True))
    mirrored = [(-e, (d * math.exp(-e) - math.expm1(-e)) * (1 + 8 * _EPS)) for e, d in reversed(points) if e > 0]
    corners: list[Corner] = []
    for point in [(-math.inf, 1.0), *(point for point in mirrored if point[1] < 1), *points]:
        while len(corners) > 1 and bend(corners[-2], corners[-1], point) <= 0:
            corners.pop()
        corners.append(point)
    return corners


def bend(left: Corner, middle: Corner, right: Corner) -> float:
    """By how much less δ falls with each unit of e^ε after `middle` than before it, times e^ε there: the P-mass of that loss."""
    return (left[1] - middle[1]) / -math.expm1(left[0] - middle[0]) - (middle[1] - right[1]) / math.expm1(right[0] - middle[0])


def profile_delta(event: PrivacyProfile, epsilon: float) -> float:
    """The least δ at `epsilon` ≥ 0 that the points imply."""
    stated = [d for e, d in zip(event.epsilons, event.deltas, strict=True) if e <= epsilon]
    chords = [_chord_delta(a, b, epsilon) for a, b in itertools.pairwise(hull(event)) if a[0] <= epsilon <= b[0]]
    return min(1.0, *stated, *chords)


def _chord_delta(a: Corner, b: Corner, epsilon: float) -> float:
    """Upper bound on δ at `epsilon` on the chord between two corners.

    Both parts, in units of e^ε, are off by a factor of at most 1 + 2·_EPS·(1 + t), t being the difference: it is rounded once, by
    _EPS/2 of itself, which moves ln(expm1(t)) by at most _EPS/2·(1 + t). A mean moves by no more than that times both weights,
    and the weight of the far end falls as e^(−t): by at most 4·_EPS of itself. Four operations follow, each _EPS/2.
    """
    to_a, to_b = math.expm1(b[0] - epsilon), -math.expm1(a[0] - epsilon)
    mean = a[1] * (to_a / (to_a + to_b)) + b[1] * (to_b / (to_a + to_b))
    return mean * (1 + 8 * _EPS) + _TINY


def profile_epsilon(event: PrivacyProfile, delta: float) -> float:
    """The least ε ≥ 0 at `delta` that the points imply; inf where `delta` is less than all of theirs."""
    stated = [e for e, d in zip(event.epsilons, event.deltas, strict=True) if d <= delta]
    chords = [_chord_epsilon(a, b, delta) for a, b in itertools.pairwise(hull(event)) if a[1] > delta >= b[1]]
    return min([*stated, *(max(0.0, chord) for chord in chords)], default=math.inf)


def _chord_epsilon(a: Corner, b: Corner, delta: float) -> float:
    """Upper bound on the ε at which the chord between two corners is at `delta`.

    Differences of δ are rounded once. With t = b − a, a step ln(1 + part·expm1(t)) is off by at most its factor's error,
    _EPS·(8 + t), times min(1, part·expm1(t)), which is at most 1.5 steps; two roundings follow.
    """
    part = (a[1] - delta) / (a[1] - b[1])
    if a[0] == -math.inf:
        step = math.log(part)
        return min(b[0], b[0] + step + _EPS * (8 + abs(b[0]) - step))
    step = math.log1p(part * math.expm1(b[0] - a[0]))
    return min(b[0], a[0] + step + _EPS * ((16 + 2 * (b[0] - a[0])) * step + abs(a[0])) + _TINY)
