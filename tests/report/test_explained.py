"""One prediction explained: heights that add up to what the model answers, whatever the model and the schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Schema, SchemaEncoder, SchemaError
from dperm.data.schema.level_contrasts import level_contrasts
from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPPoissonRegressor, DPQuantileRegressor, DPRidge
from dperm.mechanisms.without_records import WithoutRecords
from dperm.report.effects import effects
from dperm.report.explained import Explanation, explain, explanation_page
from dperm.report.level_noise import EqualNoise

COLUMNS = (
    Column("age", "number", (0, 80)),
    Column("income", "number", (0, 100_000)),
    Column("hour", "number", (0, 24), scale="cyclic"),
    Column("job", "category", categories=("baker", "nurse"), other=True),
    Column("admitted", "date", ("2020-01-01", "2022-01-01")),
    Column("y", "label"),
)
AMOUNTS = (*COLUMNS[:-1], Column("y", "label", (1000, 5000)))
LABELS = Schema("people", "y", COLUMNS, ("no", "yes"), missing="separate", curves=4, pairs=(("age", "job"),))
NUMBERS = Schema("people", "y", AMOUNTS, missing="middle", curves=4)
LINES = replace(NUMBERS, curves=0)
COUNTS = replace(NUMBERS.measured_as("count"), target_range=(0.0, 10.0))


def _frame(count: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(-5, 90, count),
            "income": rng.lognormal(8, 3, count),
            "hour": rng.uniform(0, 24, count),
            "job": rng.choice(["baker", "nurse", "smith"], count),
            "admitted": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, count), unit="D"),
        }
    ).astype("object")
    frame.loc[3, "age"] = frame.loc[4, "job"] = None
    return frame


def _given(schema: Schema, model: Any, labels: Any) -> Any:
    features = SchemaEncoder(schema, _frame()).features()[0]
    return model.fit(features, np.resize(labels, len(features)))


CASES = {
    "two classes": (
        LABELS,
        lambda: DPLogisticRegression(epsilon=8.0, classes=["no", "yes"], random_state=0),
        ["no", "yes"],
        None,
    ),
    "the other": (LABELS, lambda: DPLogisticRegression(epsilon=8.0, classes=["no", "yes"], random_state=0), ["no", "yes"], "no"),
    "three": (
        replace(LABELS, classes=("a", "b", "c")),
        lambda: DPLogisticRegression(epsilon=8.0, classes=["a", "b", "c"], random_state=0),
        ["a", "b", "c"],
        "b",
    ),
    "machine": (LABELS, lambda: DPLinearSVC(epsilon=8.0, classes=["no", "yes"], random_state=0), ["no", "yes"], None),
    "amounts": (NUMBERS, lambda: DPRidge(epsilon=8.0, random_state=0), [-1.0, 0.5], None),
    "amounts in their units": (
        NUMBERS,
        lambda: DPRidge(epsilon=8.0, target_range=(1000, 5000), random_state=0),
        [1e3, 4e3],
        None,
    ),
    "lines, rows scaled down": (LINES, lambda: DPRidge(epsilon=8.0, random_state=0), [-1.0, 0.5], None),
    "quantile": (NUMBERS, lambda: DPQuantileRegressor(epsilon=8.0, random_state=0), [-1.0, 0.5], None),
    "counts": (COUNTS, lambda: DPPoissonRegressor(epsilon=8.0, target_bound=10.0, random_state=0), [0.0, 4.0], None),
}


@pytest.mark.parametrize("name", CASES)
def test_heights_add_up_to_the_answer(name: str) -> None:
    schema, made, labels, label = CASES[name]
    model = _given(schema, made(), labels)
    frame = _frame()
    features = SchemaEncoder(schema, frame).features()[0]
    answers = model.predict(features)
    for row in (0, 3, 4, 7):
        found = explain(model, schema, frame.iloc[[row]], label)
        assert found.constant + sum(part.height for part in found.parts) == pytest.approx(found.total, rel=1e-9)
        if name in ("two classes", "the other", "machine"):
            score = model.decision_function(features)[row]
            assert found.total == pytest.approx(-score if label == "no" else score, rel=1e-6)
        elif name == "three":
            assert found.total == pytest.approx(model.decision_function(features)[row, 1], rel=1e-6)
            assert found.probability == pytest.approx(model.predict_proba(features)[row, 1])
        elif name == "counts":
            assert np.exp(found.total) == pytest.approx(answers[row], rel=1e-6) == found.prediction
        elif name == "amounts in their units":
            assert found.total == pytest.approx(answers[row], rel=1e-6) == found.prediction
        else:
            assert found.total == pytest.approx(3000 + 2000 * answers[row], rel=1e-6) == found.prediction
        assert [part.column for part in found.parts] == [effect.column for effect in effects(model, schema, label)]
        assert explain(model, schema, dict(frame.iloc[row]), label) == found


def test_heights_are_those_of_the_effects() -> None:
    model = _given(NUMBERS, DPRidge(epsilon=8.0, random_state=0), [-1.0, 0.5])
    found = explain(model, NUMBERS, {"age": 200, "income": 0, "hour": 0, "job": "smith", "admitted": "2020-01-01"})
    parts = {part.column: part for part in found.parts}
    drawn = {effect.column: effect for effect in effects(model, NUMBERS)}
    assert parts["age"].height == pytest.approx(drawn["age"].heights[-1], rel=1e-6)
    assert parts["age"].remark == "taken at the end of its range"
    assert parts["income"].height == pytest.approx(drawn["income"].heights[0], rel=1e-6)
    assert parts["job"].height == pytest.approx(drawn["job"].heights[2], rel=1e-6)
    assert parts["job"].remark == "maybe noise alone"
    assert [parts[name].value for name in ("job", "admitted year", "hour")] == ["smith", "2020-01-01", "0"]
    assert found.ordered[0].height == max(found.parts, key=lambda part: abs(part.height)).height
    assert found.answer.startswith(f"y about {found.heights.level(found.total)}, of which an amount that is not known may be ")
    known = explain(model, NUMBERS, {"age": 20, "income": 0, "hour": 0, "job": "baker", "admitted": "2020-01-01"})
    assert known.answer == f"y {known.heights.level(known.total)}"


def test_heights_are_compared_with_what_the_page_compares_them_with() -> None:
    class First(EqualNoise):
        def reference(self, features: slice) -> Any:
            return np.eye(features.stop - features.start)[0]

    model = _given(NUMBERS, DPRidge(epsilon=8.0, random_state=0), [-1.0, 0.5])
    row = dict(_frame().iloc[0])
    drawn = {effect.column: effect for effect in effects(model, NUMBERS, noise=First(1.0))}
    assert drawn["job"].heights[0] == 0
    found = explain(model, NUMBERS, row, noise=First(1.0))
    job = next(part for part in found.parts if part.column == "job")
    place = {"baker": 0, "nurse": 1, "smith": 2}[row["job"]]
    assert job.height == pytest.approx(drawn["job"].heights[place], rel=1e-4)  # features are singles
    assert found.constant + sum(part.height for part in found.parts) == pytest.approx(found.total)
    assert found.total == explain(model, NUMBERS, row).total


def test_what_is_left_out_is_refused_and_what_is_missing_may_be_noise() -> None:
    model = _given(LABELS, DPLogisticRegression(epsilon=8.0, classes=["no", "yes"], random_state=0), ["no", "yes"])
    whole = dict(_frame().iloc[0])
    with pytest.raises(SchemaError, match=r"got none for \['income', 'hour', 'job', 'admitted'\]. Say which are missing"):
        explain(model, LABELS, {"age": 30})
    found = explain(model, LABELS, {**whole, "age": 30, "job": None})
    values = {part.column: (part.value, part.remark) for part in found.parts}
    assert values["age"] == ("30", "")
    assert values["job"] == ("missing", "maybe noise alone")
    assert values["age × job"] == ("30, missing", "maybe noise alone")
    assert found.noise is None
    assert "of which an amount that is not known may be noise of values that maybe no record has" in found.answer
    strict = replace(LABELS, missing="drop")
    narrow = _given(replace(strict, missing="middle"), DPLogisticRegression(epsilon=8.0, classes=["no", "yes"]), ["no", "yes"])
    with pytest.raises(SchemaError, match=r"got none for \['income', 'hour', 'job', 'admitted'\]\.$"):
        explain(narrow, strict, {"age": 30})
    assert isinstance(explain(narrow, strict, whole), Explanation)
    with pytest.raises(SchemaError, match="does not fit the schema: column 'age' is missing"):
        explain(narrow, strict, {**whole, "age": None})


@pytest.mark.parametrize("gaps", [1, 3])
def test_predictions_say_how_much_of_them_may_be_noise(gaps: int) -> None:
    """Nobody lacks a value: noise alone makes the levels of missing values, and seldom brings their sum beyond what is said."""
    schema = replace(LABELS, pairs=(), missing="separate")
    whole = _frame().assign(age=30, job="baker")
    row = dict(whole.iloc[0]) | dict.fromkeys(["age", "income", "hour"][:gaps])
    features = SchemaEncoder(schema, whole).features()[0]
    missing = [contrasts.features.stop - 1 for contrasts in level_contrasts(schema) if row.get(contrasts.name, 0) is None]
    assert len(missing) == gaps
    beyond = 0
    for seed in range(20):
        model = DPLogisticRegression(epsilon=4.0, classes=["no", "yes"], random_state=seed)
        found = explain(model.fit(features, np.resize(["no", "yes"], len(features))), schema, row)
        noisy = [part for part in found.parts if part.remark == "maybe noise alone"]
        law = WithoutRecords.of(model.trace_)
        assert law is not None
        assert found.noise is not None
        assert found.noise < 4 * law.deviation * np.sqrt(gaps) / schema.divisor
        beyond += abs(model.coef_[0][missing].sum()) / schema.divisor > found.noise
        assert len(noisy) <= gaps
    assert beyond <= 4  # of 20: a twentieth is 1, and 5 or more have a chance of 1 in 390
    assert f"of which ±{found.noise:.2f} points may be noise of values that maybe no record has, so" in found.answer
    assert found.to_dict()["noise"] == found.noise


def test_the_constant_column_is_in_the_constant() -> None:
    model = _given(NUMBERS, DPRidge(epsilon=8.0, random_state=0), [-1.0, 0.5])
    row = dict(_frame().iloc[0])
    found = explain(model, NUMBERS, row, constant="job")
    assert "job" not in {part.column for part in found.parts}
    assert found.constant + sum(part.height for part in found.parts) == pytest.approx(found.total)
    assert found.total == explain(model, NUMBERS, row).total


def test_rows_that_do_not_fit_are_refused() -> None:
    model = _given(LABELS, DPLogisticRegression(epsilon=8.0, classes=["no", "yes"], random_state=0), ["no", "yes"])
    with pytest.raises(SchemaError, match="got one of 'agee'"):
        explain(model, LABELS, {"agee": 30})
    whole = dict(_frame().iloc[0])
    with pytest.raises(SchemaError, match="column 'age' holds 'old', which is no finite number"):
        explain(model, LABELS, {**whole, "age": "old"})
    with pytest.raises(ValueError, match="Expected one row, got 40"):
        explain(model, LABELS, _frame())
    with pytest.raises(ValueError, match="one of the labels"):
        explain(model, LABELS, whole, "maybe")
    explain(model, LABELS, {**whole, "y": "yes"})  # a target beside it is not looked at


def test_a_page_holds_the_row_and_says_so() -> None:
    model = _given(LABELS, DPLogisticRegression(epsilon=8.0, classes=["no", "yes"], random_state=0), ["no", "yes"])
    found = explain(model, LABELS, {**dict(_frame().iloc[0]), "job": "<b>smith</b>"})
    page = explanation_page(found, LABELS.name)
    assert "This page holds the row" in page
    assert "&lt;b&gt;smith" in page
    assert page.count("<span class=") >= len([part for part in found.parts if part.height])
    assert found.answer in page.replace("&#39;", "'")
    data = found.to_dict()
    assert data["constant"] + sum(part["height"] for part in data["parts"]) == pytest.approx(data["total"])
