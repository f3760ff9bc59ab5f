"""The range and the measure of a target that is a number: stated once, in the target's row or beside the columns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema, SchemaError

FRAME = pd.DataFrame({"x": [0.0, 0.5, 1.0, 1.0], "y": [5.0, 15.0, 12.0, 1e11]})


def file(label: dict[str, Any], **beside: Any) -> dict[str, Any]:
    columns = [{"name": "x", "type": "number", "range": [0, 1]}, {"name": "y", "type": "label", **label}]
    return {"name": "t", "target": "y", "columns": columns, **beside}


def test_a_range_in_the_targets_row_bounds_the_target() -> None:
    schema = Schema.from_dict(file({"range": [10, 20]}))
    assert schema.target_range == (10, 20) and Dataset.of(FRAME, schema).targets.tolist() == [10.0, 15.0, 12.0, 20.0]
    assert (
        schema
        == Schema.from_dict(file({}, target_range=[10, 20]))
        == Schema.from_dict(file({"range": [10, 20]}, target_range=[10, 20]))
    )


def test_files_have_it_in_the_targets_row_alone() -> None:
    schema = Schema.from_dict(file({}, target_range=[10, 20]))
    written = json.loads(schema.to_json())
    assert "target_range" not in written and written["columns"][1] == {"name": "y", "type": "label", "range": [10.0, 20.0]}
    edited = {**written, "columns": [written["columns"][0], {**written["columns"][1], "range": [0, 5]}]}
    assert Schema.from_dict(written) == schema and Schema.from_dict(edited).target_range == (0, 5)


@pytest.mark.parametrize(
    ("label", "beside", "said"),
    [
        ({"range": [10, 20]}, {"target_range": [0, 5]}, "one range of the target, got target_range .*: take target_range out"),
        ({"range": [10, 20]}, {"classes": ["a", "b"]}, "or classes, its labels, got both"),
        ({"range": [20, 10]}, {}, "low < high for the target 'y'"),
        ({"range": [0, 1e200]}, {}, "finite range for the target 'y'"),
        ({"range": ["0", "1"]}, {}, "without quotes, for the target 'y'"),
        ({"range": [0, 1], "categories": ["0", "1"]}, {}, "no categories of the target 'y': its labels are the schema's classes"),
        ({"range": [-1, 1], "measure": "count"}, {}, "counts from 0 or above in the target 'y'"),
        ({"range": [0, 1], "measure": "ordinal"}, {}, "measure of amount or count.*'ordinal' for 'y'"),
        ({"measure": "count"}, {"classes": ["a", "b"]}, "no measure of the target 'y', which has labels"),
        ({}, {}, "either classes, .* or a range in the target's row"),
    ],
)
def test_what_contradicts_itself_is_refused(label: dict[str, Any], beside: dict[str, Any], said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        Schema.from_dict(file(label, **beside))


def test_only_targets_have_a_measure() -> None:
    with pytest.raises(SchemaError, match="got 'count' for 'x'"):
        Column("x", "number", (0, 1), measure="count")


def test_counts_stay_in_their_own_units_and_amounts_are_centred() -> None:
    amounts = Schema.from_dict(file({"range": [10, 20]}))
    counts = amounts.measured_as("count")
    assert amounts.target_range is not None and counts.target_range is not None
    values = [0.0, 12.0, 99.0]
    assert amounts.target_range.scaled(values).tolist() == [-1.0, -0.6, 1.0]
    assert counts.target_range.scaled(values).tolist() == [10.0, 12.0, 20.0]
    assert amounts.target_range.restored([-1.0, 3.0]).tolist() == [10.0, 30.0]
    assert counts.target_range.restored([3.0, 30.0]).tolist() == [3.0, 30.0]
    assert json.loads(counts.to_json())["columns"][1]["measure"] == "count"
    assert Schema.from_dict(json.loads(counts.to_json())) == counts and replace(counts, curves=3).target_range == (10, 20)
    assert type(replace(counts, curves=3).target_range) is type(counts.target_range)
    with pytest.raises(SchemaError, match="which has labels"):
        Schema.from_dict(file({}, classes=["a", "b"])).measured_as("count")


def test_ranges_are_finite_after_centring() -> None:
    bounds = Schema.from_dict(file({"range": [-5e149, 5e149]})).target_range
    assert bounds is not None and np.isfinite(bounds.scaled([-5e149, 5e149])).all()
