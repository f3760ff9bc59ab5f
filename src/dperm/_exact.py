"""Normals and exponentials as real numbers: intervals that shrink until they say which integer is nearest.

Random numbers made of uniform ones are real numbers of which a computer knows the first digits. That is nearly always enough to
round them; where it is not, the next digits are drawn and the functions computed again, with interval arithmetic. What
comes out has the law of a rounded real number exactly, not that of a rounded double.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import floor
from typing import Any

_STEP = 64  # binary digits drawn at once
_GUARD = 40  # binary digits that rounding inside the intervals may cost


class Digits:
    """A uniform number on (0, 1) by its first `bits` binary digits; `more(count)` gives as many further ones as an integer."""

    def __init__(self, number: int, bits: int, more: Callable[[int], int]) -> None:
        self.number, self.bits = number, bits
        self._more = more
        self._log: tuple[tuple[int, int], Any] | None = None

    def sharpen(self) -> None:
        self.number = self.number << _STEP | self._more(_STEP)
        self.bits += _STEP

    def interval(self, real: Any) -> Any:
        """Where the number lies; never 0, whose logarithm has no place."""
        while self.number == 0:
            self.sharpen()
        return real.mpf([self.number, self.number + 1]) / real.mpf(2) ** self.bits

    def log(self, real: Any) -> Any:
        """Of the number; kept for as long as no further digits are known, and wanted."""
        if self._log is None or self._log[0] != (self.bits, real.prec):
            number = self.interval(real)
            self._log = (self.bits, real.prec), real.log(number)
        return self._log[1]


def normals(first: Digits, second: Digits, real: Any) -> tuple[Any, Any]:
    """Two independent standard normals of two uniform numbers (Box and Muller 1958)."""
    radius, angle = real.sqrt(-2 * first.log(real)), 2 * real.pi * second.interval(real)
    return radius * real.cos(angle), radius * real.sin(angle)


def direction_times_length(pairs: Sequence[tuple[Digits, Digits]], lengths: Sequence[Digits], size: int, real: Any) -> list[Any]:
    """A vector (size,) of density ∝ e^{−‖b‖}: a uniform direction, times a Gamma(size) length from as many exponentials."""
    direction = [value for pair in pairs for value in normals(*pair, real)][:size]
    square = sum((value * value for value in direction), real.mpf(0))
    length = -sum((digits.log(real) for digits in lengths), real.mpf(0))
    if size == 1:  # a sign: dividing a number by its own size would lose it where it is near zero
        return [length * _sign(direction[0], real)]
    scale = length / real.sqrt(square)
    return [value * scale for value in direction]


def stretched(
    pairs: Sequence[tuple[Digits, Digits]], lengths: Sequence[Digits], places: Sequence[int], real: Any
) -> dict[int, Any]:
    """By their `places`, numbers of a vector of normals of one random variance, twice a Gamma(len(lengths))."""
    variance = -2 * sum((digits.log(real) for digits in lengths), real.mpf(0))
    return {place: normals(*pairs[place // 2], real)[place % 2] * real.sqrt(variance) for place in places}


def failures(digits: Digits, successes: int, low: float, high: float) -> int:
    """How many failures come before `successes`/2 successes, of chance (low/high)²: negative binomial, by inversion."""
    real = _contexts().real
    while True:
        real.prec = digits.bits + _GUARD
        uniform, ratio = digits.interval(real), real.mpf(low) / real.mpf(high)
        chance = below = ratio**successes
        count = 0
        while not uniform.b <= below.a and uniform.a >= below.b:
            chance = chance * (successes + 2 * count) / (2 * (count + 1)) * (1 - ratio * ratio)
            below = below + chance
            count += 1
        if uniform.b <= below.a:
            return count
        digits.sharpen()


def largest(scores: Sequence[float], digits: Sequence[Digits], scale: float) -> int:
    """The place of the largest score/scale − ln(−ln(1 − w)), w the number of the `digits`: Gumbel noise."""
    real = _contexts().real
    left = list(range(len(scores)))
    while True:
        real.prec = max(digits[place].bits for place in left) + _GUARD
        values = {
            place: real.mpf(scores[place]) / real.mpf(scale) - real.log(-real.log(1 - digits[place].interval(real)))
            for place in left
        }
        best = max(value.a for value in values.values())
        left = [place for place, value in values.items() if value.b >= best]
        if len(left) == 1:
            return left[0]
        for place in left:
            digits[place].sharpen()


def _sign(value: Any, real: Any) -> Any:
    low, high = _bounds(value)
    return real.mpf(1) if low > 0 else real.mpf(-1) if high < 0 else real.mpf([-1, 1])


def rounded(values: Callable[[Any], Sequence[Any]], digits: Sequence[Digits], scale: float) -> list[int]:
    """The integers nearest to scale·values(real), drawing further `digits` until there is no doubt.

    `values` computes in the interval arithmetic that it is handed.
    """
    real = _contexts().real
    while True:
        real.prec = max(item.bits for item in digits) + _GUARD
        ends = [_bounds(value) for value in values(real)]
        nearest = [tuple(floor(Fraction(scale) * end + Fraction(1, 2)) for end in pair) for pair in ends]
        if all(low == high for low, high in nearest):
            return [low for low, _ in nearest]
        for item in digits:
            item.sharpen()


def _bounds(interval: Any) -> tuple[Fraction, Fraction]:
    bounds: list[Fraction] = []
    for end in (interval.a, interval.b):
        number = _contexts().exact.mpf(end)
        mantissa, exponent = number.man_exp  # without the sign in some versions
        bounds.append((-1 if number < 0 else 1) * abs(Fraction(mantissa)) * Fraction(2) ** exponent)
    return bounds[0], bounds[1]


class _Contexts(threading.local):
    """Arithmetics of our own, a pair for each thread: the library's shared ones have a precision that others set."""

    def __init__(self) -> None:
        from mpmath import MPContext, MPIntervalContext  # seldom needed, and slow to import

        self.real = MPIntervalContext()
        self.exact = MPContext()
        self.exact.prec = 1 << 16  # more digits than any interval here has: nothing is rounded


@functools.cache
def _contexts() -> _Contexts:
    return _Contexts()
