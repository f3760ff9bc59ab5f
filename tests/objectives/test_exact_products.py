"""Products of slopes and rows add up exactly: whatever is rounded in a sum of records would be of all of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dperm.objectives.linear import _exact_product
from dperm.objectives.records import EXACT_ROWS, ROW_BITS


@pytest.mark.parametrize("seed", range(3))
def test_sums_of_the_largest_products_are_exact(seed: int) -> None:
    """As many rows as are added up at once, with entries and slopes next to the largest: the sum is that of fractions, but for
    less than a step of each slope."""
    random = np.random.default_rng(seed)
    slopes = 1 - random.random(EXACT_ROWS) / 64
    rows = (2.0**ROW_BITS - random.integers(1, 64, (EXACT_ROWS, 1))).astype(np.float64)
    parts, step = _exact_product(slopes, rows)
    whole = sum((Fraction(float(slope)) * int(row) for slope, row in zip(slopes, rows[:, 0], strict=True)), Fraction(0))
    found = sum((Fraction(float(part[0])) for part in parts), Fraction(0))
    assert 0 <= whole - found < Fraction(step) * int(rows.sum())
