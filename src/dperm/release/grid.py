"""The grid that releases lie on: multiples of a power of two, so that nothing of a query is left in the low bits.

A query is rounded to multiples of `step`, coordinate by coordinate, and noise is a rounded normal: step·round(N(0, (σ/step)²)).
Since round(q) + round(y) = round(round(q) + y) for whole round(q), the release is that of the Gaussian mechanism on the rounded
query, rounded once more, which nobody can undo: every bound for Gaussian noise holds with the rounded query's sensitivity. Two
queries of p numbers that differ by Δ differ by at most Δ + 2·step·√p once they are rounded: by half a step to a double, where
they are exact sums, and by half a step to the grid. The same for Laplace noise, and for noise of density e^{−‖b‖}. Whole numbers
are added as doubles, whose sum depends on the true sum alone, also where it is rounded.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from dperm import _validate as check
from dperm.privacy.events import Event, released_leaves

_FINE = 2.0**-21  # of a sensitivity: half of what rounding may add to it
_COARSE = 2.0**-14  # the same at most, where noise is so large that it would need too many digits
_FAST = 2.0**-34  # of the noise's spread: with more digits it is drawn slowly
_FEWEST = 2.0**-45  # the same: more digits do not fit into a double
_MOST_NOISE = 2.0**43  # noise ÷ sensitivity, times √p: beyond, rounding to a grid that doubles can hold would be all of a query


@dataclass(frozen=True)
class Grid:
    """Multiples of `step`, a power of two; `sensitivity` is that of the query after it was rounded to them."""

    step: float
    sensitivity: float

    @staticmethod
    @functools.lru_cache(maxsize=1 << 10)
    def of(sensitivity: float, spread: float, size: int) -> Grid:
        """The grid for a query of `size` numbers and this L2 sensitivity, from public numbers alone.

        `spread` is about the standard deviation of the noise. Rounding adds at most 2⁻²⁰ of the sensitivity, and more only where
        the noise is larger than 2³⁴ such steps. ValueError for a sensitivity that doubles cannot halve so often.
        """
        if not 1e-200 < sensitivity < 1e200 or not spread < 1e250:
            raise ValueError(f"Expected a sensitivity between 1e-200 and 1e200, got {sensitivity!r} with noise of {spread:.3g}.")
        root = math.sqrt(max(1, size))
        unit = sensitivity / root
        step = power_below(max(unit * _FINE, min(spread * _FAST, unit * _COARSE), spread * _FEWEST))
        return Grid(step, sensitivity + 2 * step * root)

    @property
    def largest(self) -> float:
        """Exact sums are cut here, coordinate by coordinate, before they are rounded to a double: below, that moves them by no
        more
        than half a step, and cutting brings no two of them further apart."""
        return 2.0**52 * self.step


def power_below(value: float) -> float:
    """The largest power of two ≤ value, for value > 0."""
    return math.ldexp(0.5, math.frexp(value)[1])


def admit_noise(event: Event, size: int) -> None:
    """ValueError, before a charge, for noise on `size` numbers that doubles cannot hold."""
    most = _MOST_NOISE / math.sqrt(max(1, size))
    for leaf in released_leaves(event):
        paid = leaf.pays_for
        if paid is not None and paid.kind == "gaussian" and not paid.noise < most:
            raise ValueError(f"Expected noise below {most:.2g} sensitivities, that doubles hold, got {paid.noise:g}.")
        if paid is not None and paid.kind == "pure":
            check.at_least("epsilon", paid.noise, size / most)
