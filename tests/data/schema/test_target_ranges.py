"""The range and the measure of a target that is a number: stated once, in the target's row or beside the columns."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema, SchemaError
from dperm.estimators import DPByPart, DPElasticNet, DPLasso, DPPoissonRegressor, DPQuantileRegressor, DPRidge
from dperm.release import SpendLog

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
        ({"range": [0, 1], "measure": "ordinal"}, {}, "classes of the target 'y', in their order, for the measure ordinal"),
        ({"range": [0, 1], "measure": "nominal"}, {}, "measure of amount, count, ordinal or none.*'nominal' for 'y'"),
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


# What `Dataset.fit` hands to estimators

RNG = np.random.default_rng(0)
SIZE = 3000
AT = RNG.random(SIZE)
WAGES = pd.DataFrame({"x": AT, "y": 20 + 60 * AT + RNG.normal(size=SIZE)})


def wages(measure: str = "amount", ends: tuple[float, float] = (0, 100)) -> Dataset:
    return Dataset.of(WAGES, Schema.from_dict(file({"range": list(ends), "measure": measure})))


@pytest.mark.parametrize("measure", ["amount", "count"])
@pytest.mark.parametrize("kind", [DPRidge, DPQuantileRegressor, DPLasso, DPElasticNet])
def test_an_estimator_that_states_the_schemas_range_learns_in_the_targets_units(kind: Any, measure: str) -> None:
    data = wages(measure)
    model = data.fit(kind(epsilon=20.0, target_range=(0, 100)))
    assert np.abs(model.predict(data.features) - data.targets).mean() < 12
    alone = kind(epsilon=20.0, target_range=(0, 100), random_state=0).fit(data.features, data.targets)
    beside = data.fit(kind(epsilon=20.0, target_range=[0, 100], random_state=0))
    assert beside.coef_.tolist() == alone.coef_.tolist() and beside.intercept_ == alone.intercept_


def test_a_bound_is_a_range_too_and_without_either_targets_are_scaled() -> None:
    data = wages(ends=(-100, 100))
    bounded = data.fit(DPRidge(epsilon=20.0, target_bound=100.0))
    assert np.abs(bounded.predict(data.features) - data.targets).mean() < 12
    scaled = data.fit(DPRidge(epsilon=20.0))
    assert data.target_range is not None
    assert np.abs(data.target_range.restored(scaled.predict(data.features)) - data.targets).mean() < 6


def test_counts_in_the_range_that_an_estimator_has_anyway() -> None:
    data = Dataset.of(WAGES.assign(y=RNG.poisson(3, SIZE)), Schema.from_dict(file({"range": [0, 10], "measure": "count"})))
    assert 2 < data.fit(DPPoissonRegressor(epsilon=20.0, target_range=(0, 10))).predict(data.features).mean() < 4


@pytest.mark.parametrize(
    ("measure", "estimator", "said"),
    [
        ("amount", DPRidge(target_range=(0, 50)), r"\[0, 100\], but DPRidge states \[0.0, 50.0\]: .*or leave target_range"),
        ("amount", DPRidge(target_range=(-1, 1)), "but DPRidge states"),
        ("amount", DPQuantileRegressor(target_bound=100.0), r"but DPQuantileRegressor states \[-100.0, 100.0\]"),
        ("count", DPRidge(), r"but DPRidge states none: give it target_range=\(0, 100\)\.$"),
        ("count", DPPoissonRegressor(), "but DPPoissonRegressor states none"),
        ("count", DPPoissonRegressor(target_range=(0, 30)), r"DPPoissonRegressor states \[0.0, 30.0\]"),
        ("count", DPByPart(DPRidge(), {"a": 0}), "but DPRidge states none"),
    ],
)
def test_another_range_than_the_schemas_is_refused_before_the_charge(measure: str, estimator: Any, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        wages(measure).fit(estimator)
    assert SpendLog.current().charges() == []
