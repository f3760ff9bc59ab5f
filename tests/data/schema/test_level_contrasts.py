"""Contrasts of a column's levels: heights beyond an average without levels that maybe nobody has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Schema
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.level_contrasts import level_contrasts

COLUMNS = (
    Column("age", "number", (0, 80)),
    Column("hour", "number", (0, 24), scale="cyclic"),
    Column("job", "category", categories=("baker", "nurse"), other=True),
    Column("when", "date", ("2020-01-01", "2022-01-01"), parts=("year", "weekday")),
    Column("ill", "label"),
)
SCHEMA = Schema("people", "ill", COLUMNS, ("no", "yes"), missing="separate", curves=4, pairs=(("age", "job"),))


@pytest.mark.parametrize("schema", [SCHEMA, replace(SCHEMA, curves=0, pairs=()), replace(SCHEMA, missing="middle")])
def test_differences_of_heights_are_differences_of_predictions(schema: Schema) -> None:
    """A row that goes from one level of a column to another changes the score by the difference of the two heights."""
    weights = np.random.default_rng(0).normal(size=schema.dimension)
    plain = replace(schema, pairs=())
    weights = weights[: plain.dimension]
    base = {"age": 0.0, "hour": 0.0, "job": "baker", "when": "2021-03-01"}  # a Monday
    for contrasts in level_contrasts(plain):
        if contrasts.name not in base:
            continue
        heights = dict(zip(contrasts.places, contrasts.vectors @ weights[contrasts.features], strict=True))
        if contrasts.missing is not None:
            heights[None] = contrasts.missing @ weights[contrasts.features]
        entries = {place: "smith" if place == "(other)" else place for place in heights}
        frame = pd.DataFrame([{**base, contrasts.name: entry} for entry in entries.values()], dtype="object")
        scores = SchemaEncoder(plain, frame).features()[0].astype(np.float64) @ weights
        found = np.array(list(heights.values()))
        assert scores - scores[0] == pytest.approx(found - found[0], abs=1e-6), contrasts.name


def test_levels_that_maybe_nobody_has_move_no_other_height() -> None:
    weights = np.random.default_rng(1).normal(size=SCHEMA.dimension)
    moved = weights.copy()
    for contrasts in level_contrasts(SCHEMA):
        own = np.arange(contrasts.features.start, contrasts.features.stop)
        if contrasts.sides is not None:
            moved[own[contrasts.may_be_empty]] += 100
            continue
        moved[own[-1]] += 100  # missing
        moved[own[np.flatnonzero(contrasts.may_be_empty)]] += 100
    for contrasts in level_contrasts(SCHEMA):
        before, after = (contrasts.vectors @ each[contrasts.features] for each in (weights, moved))
        kept = ~contrasts.may_be_empty
        assert after[kept] == pytest.approx(before[kept])
        if contrasts.name == "hour":  # the end is the start, and counts once
            assert before[:-1].mean() == pytest.approx(0)
        else:
            assert before[kept].mean() == pytest.approx(0)
        assert -contrasts.average @ moved[contrasts.features] == pytest.approx(-contrasts.average @ weights[contrasts.features])


def test_levels_in_order() -> None:
    found = {contrasts.name: contrasts for contrasts in level_contrasts(SCHEMA)}
    assert list(found) == ["age", "hour", "job", "when year", "when weekday", "age × job"]
    assert found["job"].places == ("baker", "nurse", "(other)")
    assert found["job"].may_be_empty.tolist() == [False, False, True]
    assert found["age × job"].may_be_empty.sum() == 5 * 4 - 4 * 2
    assert found["age × job"].features.stop == SCHEMA.dimension
    assert all((contrasts.missing is None) == (contrasts.sides is not None) for contrasts in found.values())
