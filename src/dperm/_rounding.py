"""Numbers for people, rounded so that what is said stays true: costs upwards, what is left downwards."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

_NEGLIGIBLE = 1e-9  # of a number: what accounting may be off by, and calibration aims below


def upward(value: float, digits: int = 4) -> str:
    """To so many significant digits, never below the value, but for a billionth of it."""
    return _rounded(value * (1 - _NEGLIGIBLE), digits, ROUND_CEILING)


def downward(value: float, digits: int = 4) -> str:
    """To so many significant digits, never above the value."""
    return _rounded(value, digits, ROUND_FLOOR)


def _rounded(value: float, digits: int, direction: str) -> str:
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{float(Context(prec=digits, rounding=direction).create_decimal(Decimal(value))):.{digits}g}"
