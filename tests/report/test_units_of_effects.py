"""Effects of a regression whose target has a range: heights and their noise in the same units."""

from __future__ import annotations

import numpy as np
import pytest

from dperm.data import Column, Schema
from dperm.estimators import DPQuantileRegressor, DPRidge
from dperm.report.effects import effects

SCHEMA = Schema("t", "y", (Column("x", "number", (0, 1)), Column("z", "number", (0, 1)), Column("y", "label", (0, 1))))


@pytest.mark.parametrize("kind", [DPRidge, DPQuantileRegressor])
def test_noise_is_in_the_units_of_the_heights(kind: type) -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((400, 2)) / 2
    given = {"epsilon": 4.0, "mechanism": "output", "public_size": 400, "random_state": 0}
    narrow = kind(target_range=(0.0, 1.0), **given).fit(rows, rows[:, 0])
    wide = kind(target_range=(0.0, 1000.0), **given).fit(rows, 1000 * rows[:, 0])
    for one, other in zip(effects(narrow, SCHEMA), effects(wide, SCHEMA), strict=True):
        assert one.noise is not None
        assert other.noise is not None
        assert other.heights == pytest.approx(1000 * one.heights)
        assert other.noise == pytest.approx(1000 * one.noise)
        assert one.noise[-1] > 0
