"""What preconditioned descent says of records at each parameter: the diagonal of a Gram matrix that it releases and pays for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dperm.audit.outputs import unlogged
from dperm.data import Column, Schema
from dperm.estimators import DPRidge, model_from_json, model_to_json
from dperm.mechanisms.released_mass import MASS_ENTRY, ReleasedMass
from dperm.report.effects import effects, effects_page

ROWS = 500


def _rows() -> Any:
    """One-hot rows of three levels, of which the last is empty, and a number."""
    rng = np.random.default_rng(0)
    rows = np.zeros((ROWS, 4))
    rows[np.arange(ROWS), rng.integers(0, 2, ROWS)] = 0.5
    rows[:, 3] = rng.random(ROWS) / 2
    return rows


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_its_noise_is_as_large_as_is_said(relation: str) -> None:
    rows = _rows()
    true = np.append(np.square(rows).sum(axis=0), ROWS * 0.25)  # the intercept's feature is a half
    apart = []
    with unlogged():
        for seed in range(60):
            model = DPRidge(epsilon=2.0, relation=relation, public_size=ROWS, random_state=seed).fit(rows, rows[:, 0])
            mass = ReleasedMass.of(model.trace_, 5)
            assert mass is not None
            apart.append((mass.diagonal - true) / mass.deviation)
    sample = np.ravel(apart)
    assert abs(sample.mean()) < 3 / np.sqrt(len(sample))
    assert abs(sample.std() - 1) < 3 / np.sqrt(2 * len(sample))
    assert np.mean([row[2] > 3 for row in apart]) <= 0.05  # the empty level is seldom taken for present


def test_a_model_shows_where_records_are_and_which_levels_have_some() -> None:
    columns = (
        Column("c", "category", categories=("a", "b"), other=True),
        Column("x", "number", (0, 1)),
        Column("y", "label", (0, 1)),
    )
    schema = Schema("t", "y", columns, curves=4)
    rng = np.random.default_rng(1)
    places = rng.random(2000) ** 3 * 3  # most records are at the start
    rows = np.zeros((2000, 7))
    rows[np.arange(2000), rng.integers(0, 2, 2000)] = 1
    low = np.minimum(places.astype(int), 2)
    rows[np.arange(2000), 3 + low], rows[np.arange(2000), 4 + low] = 1 - (places - low), places - low
    fitted = DPRidge(epsilon=4.0, public_size=2000, random_state=0).fit(rows / schema.divisor, rows[:, 0] * 2 - 1)
    model, _ = model_from_json(model_to_json(fitted))
    level, curve = effects(model, schema)
    assert level.may_be_empty[0].reach is None
    assert not level.may_be_empty[0].held
    assert curve.mass is not None
    assert curve.mass[0] == max(curve.mass)
    assert (curve.mass >= 0).all()
    assert "Grey areas below curves" in effects_page(model, schema)
    rows[:600, :3] = [0, 0, 1]
    held = DPRidge(epsilon=4.0, public_size=2000, random_state=0).fit(rows / schema.divisor, rows[:, 0] * 2 - 1)
    assert effects(held, schema)[0].may_be_empty[0].held
    assert "which records are known to have" in effects_page(held, schema)


def test_what_is_no_mass_is_refused() -> None:
    assert ReleasedMass.of({}, 2) is None
    assert ReleasedMass.of({MASS_ENTRY: {"diagonal": [1.0, 2.0], "deviation": 0.5}}, 2) is not None
    for wrong in (
        3,
        {"diagonal": [1.0], "deviation": 0.5},
        {"diagonal": [1.0, np.inf], "deviation": 1.0},
        {"diagonal": [1.0, 2.0]},
    ):
        with pytest.raises(ValueError, match="mass of a trace"):
            ReleasedMass.of({MASS_ENTRY: wrong}, 2)
    with pytest.raises(ValueError, match="deviation"):
        ReleasedMass.of({MASS_ENTRY: {"diagonal": [1.0, 2.0], "deviation": -1.0}}, 2)
