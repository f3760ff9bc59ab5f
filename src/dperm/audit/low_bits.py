"""The published attacks on the low bits of noise, as scores of how well a release fits a query.

A double that is a query plus continuous noise says more than their sum: which sums can be reached depends on the query. Each
score looks at one such trace, given everything but the noise; where releases lie on a grid of their own there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dperm import _validate as check
from dperm._types import Array
from dperm.audit.distinguish import compare_scores
from dperm.audit.result import AuditResult
from dperm.privacy import Event

#: (release (p,), query (p,), scale of the noise) → how well they fit
Score = Callable[[Array, Array, float], float]

_UNIT = 2.0**-53  # what uniform doubles are multiples of
_SEEN = 2.0**-5  # uniforms below this are known to a fraction of a unit


def precision(release: Array, query: Array, scale: float) -> float:
    """Share of the numbers that this query can have become: noise near q − r is a multiple of its own last digit, and its sum
    with q of the finer of the two (Haney, Desfontaines, Hartman, Shrestha, Hay 2022, precision-based attacks)."""
    noise = np.abs(release - query)
    grid = np.minimum(_last_digit(query), np.spacing(noise))  # of the smallest binade that the noise can be in
    with np.errstate(invalid="ignore"):
        reached = np.where(grid > 0, np.fmod(release, np.where(grid > 0, grid, 1.0)) == 0, True)
    return float(reached.mean())


def inversion(release: Array, query: Array, scale: float) -> float:
    """How near e^{−|r − q|/scale} is to multiples of 2⁻⁵³, of which noise made by inverting a distribution function is
    (Mironov 2012)."""
    return _near_multiples(np.exp(-np.abs(release - query) / scale))


def normal_pairs(release: Array, query: Array, scale: float) -> float:
    """The same for e^{−(y₁² + y₂²)/2} of pairs of normals by Box and Muller, where both are released: neighbours, or one in the
    first half and one in the second (Holohan and Braghin 2021)."""
    noise = (release - query) / scale
    half = len(noise) // 2
    if not half:
        return 0.0
    pairs = [(noise[0 : 2 * half : 2], noise[1 : 2 * half : 2]), (noise[:half], noise[half : 2 * half])]
    return max(_near_multiples(np.exp(-(one**2 + other**2) / 2)) for one, other in pairs)


def _near_multiples(uniforms: Array) -> float:
    seen = uniforms[(uniforms < _SEEN) & (uniforms > 0)] / _UNIT
    if not len(seen):
        return 0.0
    away = np.abs(seen - np.rint(seen))  # uniform on [0, ½] for anything else
    return float((0.25 - away).sum() / np.sqrt(len(seen) / 48))


def _last_digit(values: Array) -> Array:
    """The value of the last binary digit that is set; ∞ for 0."""
    mantissa, exponent = np.frexp(values)
    whole = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    lowest = (whole & -whole).astype(np.float64)
    return np.where(whole == 0, np.inf, np.ldexp(lowest, exponent - 53))


def low_bits(
    releases: Sequence[tuple[Array, Array]],
    queries: tuple[Array, Array],
    scale: float,
    *,
    claim: Event | None = None,
    delta: float | None = None,
    scores: Sequence[Score] = (precision, inversion, normal_pairs),
    mechanism: str = "",
) -> list[AuditResult]:
    """One audit by each score. `releases` are of two worlds, (first, second) by turns: vectors (p,) that are the first query plus
    noise, and vectors that are the second plus noise; `scale` is the noise's standard deviation, or the scale of Laplace noise.

    The size of a release is not used, only its digits: what is found is beyond what the claim was proved of.
    """
    check.positive("scale", scale)
    results: list[AuditResult] = []
    for score in scores:
        gains = [[score(x, queries[1], scale) - score(x, queries[0], scale) for x in pair] for pair in releases]
        results.append(
            compare_scores(
                np.array([gain for gain, _ in gains]),
                np.array([gain for _, gain in gains]),
                claim=claim,
                delta=delta,
                attack=f"low bits of noise ({score.__name__.replace('_', ' ')})",
                mechanism=mechanism,
            )
        )
    return results
