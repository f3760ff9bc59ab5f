"""Curves: hat functions that stay within the row's bound, on public knots, and effects that are what the model adds up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from dperm.data import Column, Dataset, Schema, SchemaError, find, schema_of
from dperm.data.schema.columns import Encoding
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.schema import usual_knots
from dperm.estimators import DPLogisticRegression, DPRidge, TableEncoder, model_from_json, model_to_json
from dperm.mechanisms import Output
from dperm.release import SpendLog
from dperm.report.effects import effects, effects_page, plot_effects
from dperm.report.refits import Refits

COLUMNS = (
    Column("age", "number", (0, 80)),
    Column("income", "number", (0, 100_000)),
    Column("hour", "number", (0, 24), scale="cyclic"),
    Column("job", "category", categories=("baker", "nurse")),
    Column("id", "ignore"),
    Column("ill", "label"),
)
SCHEMA = Schema("people", "ill", COLUMNS, ("no", "yes"), missing="separate", curves=6)


def people(count: int = 500, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(-5, 90, count),
            "income": rng.lognormal(8, 3, count),
            "hour": rng.uniform(0, 24, count),
            "job": rng.choice(["baker", "nurse"], count),
        }
    )
    frame["ill"] = np.where(abs(frame["age"] - 40) + 5 * rng.normal(size=count) > 22, "yes", "no")
    for name in ("age", "job"):
        frame.loc[rng.random(count) < 0.1, name] = np.nan
    return frame


def test_no_row_is_longer_than_one() -> None:
    features, _ = SchemaEncoder(SCHEMA, people()).encode()
    assert features.shape == (500, SCHEMA.dimension) == (500, 3 * 7 + 3) and len(SCHEMA.features) == SCHEMA.dimension
    lengths = np.linalg.norm(features.astype(np.float64), axis=1)
    assert lengths.max() <= 1.0 and lengths.max() > 0.9
    blocks = [features[:, :7], features[:, 7:14], features[:, 14:21], features[:, 21:]]
    for block in blocks:  # hats, or the place of a missing value, add up to 1; two are not 0
        assert block.sum(axis=1) * SCHEMA.divisor == pytest.approx(1.0, abs=1e-6)
        assert ((block > 0).sum(axis=1) <= 2).all() and (block >= 0).all()


@pytest.mark.parametrize("scale", [None, "linear", "log", "cyclic"])
@pytest.mark.parametrize("ends", [(0.0, 1.0), (0.0, 5e4), (1e-3, 1e3), (5.0, 6.0)])
def test_hats_are_piecewise_linear_between_the_knots(scale: Any, ends: tuple[float, float]) -> None:
    column, encoding = Column("x", "number", ends, scale=scale), Encoding(curves=7)
    knots = column.knots(7)
    assert column.encode(pd.Series(knots), encoding) == pytest.approx(np.eye(7), abs=1e-5)
    assert knots[0] == pytest.approx(ends[0]) and np.all(np.diff(knots) > 0)
    assert (knots[-1] < ends[1]) if scale == "cyclic" else knots[-1] == pytest.approx(ends[1])
    outside = column.encode(pd.Series([ends[0] - 10, ends[1] + 10]), encoding)
    assert outside[0].argmax() == 0 and outside[1].argmax() == (0 if scale == "cyclic" else 6)
    middle = column.encode(pd.Series([(knots[2] + knots[3]) / 2]), encoding)[0]
    assert np.flatnonzero(middle).tolist() == [2, 3]
    if column.curve_scale != "log":
        assert middle[2] == pytest.approx(0.5, abs=1e-4)


@given(st.floats(allow_nan=True, allow_infinity=False), st.integers(3, 30), st.booleans())
@settings(max_examples=200, deadline=None)
def test_any_number_gives_a_row_of_at_most_one(value: float, knots: int, separate: bool) -> None:
    for column in COLUMNS[:3]:
        row = column.encode(pd.Series([value]), Encoding(knots, separate))[0]
        assert np.isfinite(row).all() and float(np.square(row.astype(np.float64)).sum()) <= 1 + 1e-6


def test_one_missing_value_changes_nobody_else_s_row() -> None:
    """pandas makes floats of a column of whole numbers where one is missing: '1' must not become '1.0'."""
    columns = (Column("code", "category", categories=("1", "2", "1.5")), Column("kind", "label"))
    for missing, extra in (("drop", {}), ("separate", {}), ("middle", {"other_label": "rest"})):
        schema = Schema("s", "kind", columns, ("1", "rest") if extra else ("1", "2"), missing=missing, extra=extra)
        whole = pd.DataFrame({"code": [1, 2, 1], "kind": [1, 2, 1]})
        for holes in ({"code": None, "kind": 1}, {"code": 2, "kind": None}):
            more = pd.concat([whole, pd.DataFrame([holes], dtype=float)], ignore_index=True)
            drop = schema if missing == "drop" else replace(schema, missing="drop") if holes["kind"] is None else schema
            mine, theirs = (SchemaEncoder(drop, frame).encode() for frame in (whole, more))
            assert np.array_equal(mine[0], theirs[0][:3]) and np.array_equal(mine[1], theirs[1][:3])
            assert mine[1].tolist() == ["1", "rest" if extra else "2", "1"]
    assert columns[0].encode(pd.Series([1.5, 1.0, "2"]), Encoding()).argmax(axis=1).tolist() == [2, 0, 1]


@pytest.mark.parametrize("ends", [(1e-300, 1e150), (1e-310, 1e100), (-1e149, 1e149), (0, 1e-200)])
@pytest.mark.parametrize("scale", [None, "cyclic"])
def test_ranges_of_any_size(ends: tuple[float, float], scale: Any) -> None:
    column = Column("x", "number", ends, scale=scale)
    for value in (*ends, 1.0, -1e300, 1e300):
        row = column.encode(pd.Series([value]), Encoding(12))[0]
        assert np.isfinite(row).all() and row.sum() == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(SchemaError, match="finite range"):
        Column("x", "number", (-1e200, 1e200))


def test_the_scale_follows_the_range_by_a_public_rule() -> None:
    assert Column("x", "number", (0, 999)).curve_scale == "linear" == Column("x", "number", (-1, 1e6)).curve_scale
    assert Column("x", "number", (0, 1000)).curve_scale == "log" == Column("x", "number", (0.01, 10)).curve_scale
    assert Column("x", "number", (0, 1e6), scale="linear").curve_scale == "linear"


def test_straight_lines_are_what_they_were() -> None:
    line = replace(SCHEMA, curves=0, missing="middle")
    features, _ = SchemaEncoder(line, people()).encode()
    assert line.dimension == 5 and line.divisor == 1.0
    frame = people()
    known = frame["age"].notna().to_numpy()
    assert features[known, 0] == pytest.approx(np.clip(frame["age"][known], 0, 80) / 80, abs=1e-6)
    assert features[~known, 0] == pytest.approx(0.5)


def test_schema_files(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(SCHEMA.to_json())
    assert Schema.load(path) == SCHEMA and '"scale": "cyclic"' in path.read_text()
    assert "curves" not in SCHEMA.with_curves(0).to_json()
    for change, match in (
        ({"curves": 2}, "3 to 200 knots"),
        ({"curves": 1000}, "3 to 200 knots"),
        ({"curves": "twelve"}, "whole number"),
        ({"missing": "guess"}, "missing"),
        ({"columns": (Column("x", "number", (0, 1)), Column("ill", "label")), "curves": -1}, "3 to 200 knots"),
    ):
        with pytest.raises(ValueError, match=match):
            replace(SCHEMA, **change)
    with pytest.raises(SchemaError, match="log scale"):
        Column("x", "number", (-1, 1), scale="log")
    with pytest.raises(SchemaError, match="scale of linear"):
        Column("x", "number", (0, 1), scale="cubic")


def test_knots_by_rule_grow_with_what_can_be_told_apart() -> None:
    sizes = [usual_knots(SCHEMA, 1.0, 1e-5, size) for size in (20, 500, 3000, 100_000)]
    assert sizes == [0, 5, 8, 12]
    assert usual_knots(SCHEMA, 0.01, 1e-5, 3000) == 0 and usual_knots(SCHEMA, 1.0, 1e-5) == 8
    assert usual_knots(SCHEMA, 1.0, 0.0, 100_000) == 12
    # ten classes of 64 numbers are too many for what is not known to be large
    assert usual_knots(schema_of("digits"), 1.0, 1e-5) == 0
    assert usual_knots(schema_of("iris"), 1.0, 1e-5) == usual_knots(schema_of("breast_cancer"), 1.0, 1e-5) == 8
    wide = replace(schema_of("breast_cancer"), classes=tuple("abcde"))
    assert usual_knots(wide, 1.0, 1e-5) == 5
    words = Schema("w", "ill", (COLUMNS[3], COLUMNS[5]), ("no", "yes"))
    assert usual_knots(words, 1.0, 1e-5, 100_000) == 0


def test_a_bend_is_found_that_a_line_cannot_follow() -> None:
    frame, other = people(8000), people(4000, seed=1)
    scores = {}
    for curves in (0, 6):
        model = make_pipeline(TableEncoder(SCHEMA, curves=curves), DPLogisticRegression(epsilon=4.0, classes=["no", "yes"]))
        scores[curves] = model.fit(frame, frame["ill"]).score(other, other["ill"])
    assert scores[6] > scores[0] + 0.15 and scores[6] > 0.85


def test_effects_add_up_to_the_prediction() -> None:
    frame = people(3000)
    features, labels = SchemaEncoder(SCHEMA, frame).encode()
    model = DPLogisticRegression(epsilon=8.0, classes=["no", "yes"]).fit(features, labels)
    found = effects(model, SCHEMA)
    assert [effect.column for effect in found] == ["age", "income", "hour", "job"]
    assert [effect.is_curve for effect in found] == [True, True, True, False]
    for effect in found:
        assert effect.noise is None and effect.missing is not None
        assert effect.heights[: len(effect.heights) - (effect.column == "hour")].mean() == pytest.approx(0, abs=1e-9)
    scores = model.decision_function(features)
    added = np.zeros(len(frame))
    for effect in found:
        values = frame[effect.column]
        if effect.is_curve:
            places, at = np.array(effect.places), values.to_numpy(float)
            if effect.log:
                places, at = np.log1p(places), np.log1p(np.clip(at, 0, 1e5))
            part = np.interp(at, places, effect.heights)
        else:
            part = values.map(dict(zip(effect.places, effect.heights, strict=True))).to_numpy(float)
        added += np.where(values.isna(), effect.missing, part)
    assert np.ptp(scores - added) < 1e-3  # but for the constant
    assert found[0].spread > 2 * found[2].spread  # age decides, the hour does not
    assert found[2].heights[0] == found[2].heights[-1]  # the day ends where it starts


def test_bands_are_free_after_output_perturbation_and_true() -> None:
    frame = people(2000)
    features, labels = SchemaEncoder(SCHEMA, frame).encode()
    method = Output(strong_convexity=20.0)
    heights, band = [], 0.0
    for _ in range(100):
        model = DPLogisticRegression(epsilon=2.0, classes=["no", "yes"], mechanism=method).fit(features, labels)
        age = effects(model, SCHEMA)[0]
        heights.append(age.heights)
        assert age.noise is not None
        band = age.noise
    assert np.std(heights, axis=0) == pytest.approx(band, rel=0.25)


def test_bands_of_other_mechanisms_are_told_by_the_records() -> None:
    dataset = Dataset.of(people(2000), SCHEMA)
    model = DPLogisticRegression(epsilon=2.0, classes=["no", "yes"]).fit(dataset.features, dataset.targets)
    refits = Refits.of(model, dataset, 20)
    found = effects(model, SCHEMA, refits=refits)
    heights = [[each.heights for each in effects(again, SCHEMA)] for again in refits.models]
    for place, effect in enumerate(found):
        assert effect.noise == pytest.approx(np.std([each[place] for each in heights], axis=0, ddof=1))
    page = effects_page(model, SCHEMA, refits=refits)
    assert "PRIVATE" in page
    assert "20 models" in page
    assert "PRIVATE" not in effects_page(model, SCHEMA)
    assert effects(model, SCHEMA)[0].noise is None


def test_bands_of_a_model_whose_schema_was_found(tmp_path: Path) -> None:
    frame = people(3000)[["age", "job", "ill"]]
    schema = find(frame.astype(object), "ill", 4.0).with_curves(5)
    dataset = Dataset.of(frame, schema)
    model = DPLogisticRegression(epsilon=2.0, classes=list(schema.classes)).fit(dataset.features, dataset.targets)
    model.certificate_ = dataset.certified(model.certificate_)
    again, _ = model_from_json(model_to_json(model))
    for each in (model, again):
        assert all(effect.noise is not None for effect in effects(each, schema, refits=Refits.of(each, dataset, 2)))


def test_a_line_in_logarithms_is_drawn_as_one() -> None:
    columns = (Column("income", "number", (1_000, 200_000), scale="log"), Column("paid", "label"))
    schema = Schema("t", "paid", columns, ("no", "yes"))
    features, _ = SchemaEncoder(schema, pd.DataFrame({"income": [1e3, 200e3] * 50, "paid": ["no", "yes"] * 50})).encode()
    model = DPLogisticRegression(epsilon=8.0, classes=["no", "yes"]).fit(features, ["no", "yes"] * 50)
    (effect,) = effects(model, schema)
    assert effect.log and "<svg" in plot_effects(model, schema)
    assert "scaled down before" in effects_page(model, schema)


def test_a_page_draws_so_many_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of thousands of columns took many minutes."""
    monkeypatch.setattr("dperm.report.effects._MOST_DRAWN", 2)
    frame = people(500)
    features, labels = SchemaEncoder(SCHEMA, frame).encode()
    model = DPLogisticRegression(epsilon=2.0, classes=["no", "yes"]).fit(features, labels)
    page = effects_page(model, SCHEMA)
    assert "Drawn are the first 2 columns; the table has all 4." in page
    assert page.count("<svg") == 2
    pictures, table = page.split("Lowest and highest", 1)
    assert [f">{name}<" in pictures for name in ("age", "income", "hour", "job")] == [True, True, False, False]
    assert ">hour<" in table
    assert ">job<" in table


def test_pages_and_pictures() -> None:
    frame = people(1000)
    features, labels = SchemaEncoder(SCHEMA, frame).encode()
    model = DPLogisticRegression(epsilon=8.0, classes=["no", "yes"]).fit(features, labels)
    page = effects_page(model, SCHEMA)
    assert "points of the model&#39;s score" in page
    assert "makes ill = yes likelier" in page
    assert plot_effects(model, SCHEMA).count("<svg") == 1
    assert "(8, 1e-05)" in page
    regression = replace(SCHEMA, classes=(), target_range=(0.0, 1.0), curves=0)
    ridge = DPRidge(epsilon=8.0).fit(SchemaEncoder(regression, frame).features()[0], (labels == "yes") * 1.0)
    assert [len(effect.places) for effect in effects(ridge, regression)] == [2, 2, 2, 2]
    assert "raises ill" in (drawn := effects_page(ridge, regression))
    assert "Heights are amounts of ill, in its own units, where it lies between 0 and 1." in drawn
    with pytest.raises(ValueError, match="features"):
        effects(model, SCHEMA.with_curves(5))
    three = replace(SCHEMA, classes=("a", "b", "c"))
    many = DPLogisticRegression(epsilon=8.0, classes=["a", "b", "c"]).fit(features, np.resize(["a", "b", "c"], 1000))
    with pytest.raises(ValueError, match="labels"):
        effects(many, three)
    assert "multiplies the odds of ill = b by 2.72" in effects_page(many, three, "b")
    for effect, other in zip(effects(model, SCHEMA), effects(model, SCHEMA, "no"), strict=True):
        assert effect.heights == pytest.approx(-other.heights)
    for wrong in ((model, SCHEMA, "maybe"), (ridge, regression, "yes")):
        with pytest.raises(ValueError, match="label"):
            effects_page(*wrong)


def test_an_encoder_leaves_nobody_out() -> None:
    frame = people(50)
    encoder = TableEncoder(replace(SCHEMA, missing="drop"))
    with pytest.raises(ValueError, match="no transformer may leave out"):
        encoder.fit(frame)
    with pytest.raises(TypeError, match="named columns"):
        TableEncoder(SCHEMA).fit(frame.to_numpy())
    with pytest.raises(ValueError, match="confirmed"):
        TableEncoder(replace(SCHEMA, proposed=True)).fit(frame)
    truths = Schema("t", "y", (Column("x", "category", categories=("false", "true")), Column("y", "label")), ("False", "True"))
    told = pd.DataFrame({"x": [True, False], "y": [False, True]})
    rows, labels = SchemaEncoder(truths, told).encode()
    assert rows.tolist() == [[0, 1], [1, 0]] and labels.tolist() == ["False", "True"]
    found = TableEncoder(SCHEMA).fit(frame)
    assert found.get_feature_names_out().tolist() == SCHEMA.features and found.transform(frame).shape == (50, SCHEMA.dimension)
    assert SpendLog.current().charges() == []


def test_neighbours_are_next_to_each_other_on_a_curve() -> None:
    knots, ring, job = COLUMNS[0], COLUMNS[2], COLUMNS[3]
    assert knots.neighbours(Encoding(curves=4)) == [(0, 1), (1, 2), (2, 3)]
    assert ring.curve_scale == "cyclic" and ring.neighbours(Encoding(curves=4)) == [(0, 1), (1, 2), (2, 3), (3, 0)]
    assert job.type == "category" and job.neighbours(Encoding(curves=4)) == [] == knots.neighbours(Encoding())
    schema = SCHEMA.with_curves(5)
    names = schema.features
    pairs = [(names[first], names[second]) for first, second in schema.neighbours]
    assert len(pairs) == sum(4 + (c.curve_scale == "cyclic") for c in schema.columns if c.type == "number")
    assert all(first.split("≈")[0] == second.split("≈")[0] for first, second in pairs)
    assert SCHEMA.with_curves(0).neighbours == ()
