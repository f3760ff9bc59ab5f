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


def test_thresholds_are_in_the_units_of_the_heights() -> None:
    """Whether targets are stated in their units, in others, or were scaled by whoever trained."""
    rng = np.random.default_rng(0)
    rows = np.zeros((400, 3))
    rows[np.arange(400), rng.integers(0, 2, 400)] = 1.0
    given = {"epsilon": 4.0, "random_state": 0}
    found = []
    for high, stated in ((1.0, True), (1000.0, True), (1000.0, False)):
        columns = (Column("c", "category", categories=("a", "b"), other=True), Column("y", "label", (0, high)))
        schema = Schema("t", "y", columns)
        if stated:
            model = DPQuantileRegressor(target_range=(0.0, high), **given).fit(rows, high * rows[:, 0])
        else:
            model = DPQuantileRegressor(**given).fit(rows, 2 * rows[:, 0] - 1)
        (effect,) = effects(model, schema)
        found.append((effect.heights, effect.may_be_empty[0]))
    (small, first), *others = found
    for heights, level in others:
        assert heights == pytest.approx(1000 * small)
        assert level.reach == pytest.approx(1000 * first.reach)
        assert level.without == pytest.approx(1000 * first.without)
    assert first.reach is not None
    assert first.reach > 0
