"""What is understood of a table that somebody brings: each kind of column, and the file that a person edits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, ReadTable, Schema, SchemaError, confirmed, named, propose, read_table, schema_of
from dperm.data.schema.encoder import SchemaEncoder
from dperm.data.schema.moments import moments
from dperm.data.schema.row_faults import row_faults
from dperm.data.schema.schema_file import COLUMN_ENTRIES, ENTRIES, FORMAT, TEXT_OPTIONS, editor_file

N = 400


def a_table(**columns: Any) -> pd.DataFrame:
    """As it is read from a text: N rows of texts, and a target."""
    labels = np.where(np.arange(N) % 3 == 0, "yes", "no")
    frame = pd.DataFrame({**columns, "y": labels})
    return frame.astype("object").map(lambda value: value if pd.isna(value) else str(value)).astype("str")


def understood(values: Any, name: str = "x", **options: Any) -> Column:
    """The proposed column, beside one that is a feature whatever happens."""
    frame = a_table(beside=np.arange(N) % 7 / 2, **{name: values})
    return next(column for column in propose(ReadTable(frame, "", **options), "y").columns if column.name == name)


@pytest.mark.parametrize(
    ("name", "values", "kind", "note"),
    [
        ("x", np.arange(N) % 90, "number", "whole numbers from 0 to 89"),
        ("x", (np.arange(N) % 90) / 4, "number", "numbers from 0 to 22.25"),
        ("salary", 1000 + 17 * np.arange(N), "number", "whole numbers"),  # all different, and no id
        ("x", [f"{i % 4}" for i in range(N)], "number", "whole numbers"),
        ("x", np.where(np.arange(N) % 2, "Y", "N"), "category", "yes or no"),
        ("x", np.where(np.arange(N) % 2, "0", "1"), "category", "yes or no"),
        ("x", ["a", "b", "c", "d"] * (N // 4), "category", "4 values"),
        ("zip", [f"0{i % 9}123" for i in range(N)], "category", "9 values"),
        ("x", [f"{chr(65 + i % 20)}{i % 3}" for i in range(N)], "ignore", "60 texts, none of which 10 rows hold"),
        ("x", np.arange(N) + 7000, "ignore", "an id: different in each row"),
        ("customer_id", 1000 + 17 * np.arange(N), "ignore", "an id: different in each row"),
        ("patient_id", np.arange(N) // 4 * 17, "ignore", "an id that repeats, up to 4 times"),
        ("x", [f"u{i:06x}" for i in range(N)], "ignore", "an id: different in each row"),
        ("patientID", [f"P{i // 4}" for i in range(N)], "ignore", "an id that repeats, up to 4 times"),
        ("x", [f"pain since day {i} of the stay" for i in range(N)], "ignore", "free text"),
        ("x", ["the same"] * N, "ignore", "only 'the same'"),
        ("x", [np.nan] * N, "ignore", "all missing"),
        ("visits_no_show", np.arange(N) % 5, "number", "whole numbers"),
    ],
)
def test_kinds_of_columns(name: str, values: Any, kind: str, note: str) -> None:
    column = understood(values, name)
    assert (column.type, column.note[: len(note)]) == (kind, note)


def test_numbers_among_which_others_stand() -> None:
    column = understood(["n.d." if i % 40 == 0 else "> 50" if i % 3 == 0 else f"{i % 30}.5" for i in range(N)])
    assert column.type == "number" and column.range == (1.0, 50.0)
    assert column.also_reads == ("bounds",) and column.unknown == "ignore"
    assert not column.read
    values = pd.Series(["> 50", "n.d.", "12.5", None])
    assert column.absent(values).tolist() == [False, True, False, True]
    wide = Column("x", "number", (0, 100), read={"> 50": 50.0, "n.d.": None})
    from dperm.data.schema.columns import Encoding

    assert wide.encode(values, Encoding(separate=True)).tolist() == [[0.5, 0], [0, 1], [0.125, 0], [0, 1]]
    comma = understood(["< 2,5" if i % 3 == 0 else f"{i % 30},5" for i in range(N)], decimal=",")
    assert comma.type == "number" and comma.also_reads == ("bounds",)
    assert comma.encode(pd.Series(["< 2,5", "29,5"]), Encoding(decimal=","))[:, 0].tolist() == pytest.approx(
        [1.5 / 29, 28.5 / 29]
    )
    often = understood(["don't know" if i % 4 == 0 else f"{i % 30}" for i in range(N)])
    assert (often.type, often.unknown) == ("number", "ignore") and "100 entries are none" in often.note
    many = understood([f"about {i % 40}y" if i % 4 == 0 else f"{i % 30}" for i in range(N)])
    assert many.type == "category" and '75% are numbers: is it a number, with "unknown": "ignore"?' in many.note


@pytest.mark.parametrize(
    ("values", "decimal", "ends"),
    [
        ([f"${i % 90},{i % 10}00.50" for i in range(N)], ".", (0.0, 90000.0)),
        ([f"{i % 90} %" for i in range(N)], ".", (0.0, 89.0)),
        ([f"{i % 90}.{i % 10}00,50 €" for i in range(N)], ",", (0.0, 90000.0)),
    ],
)
def test_amounts_and_percents_are_numbers(values: list[str], decimal: str, ends: tuple[float, float]) -> None:
    column = understood([value.replace("$0,", "$1,").replace("0.", "1.", 1) for value in values], decimal=decimal)
    assert column.type == "number"
    assert column.range is not None
    assert column.unknown == "error"
    assert column.range[1] == pytest.approx(ends[1], rel=0.05)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ([99 if i % 9 == 0 else i % 6 for i in range(N)], "99"),
        ([-1 if i % 9 == 0 else i % 6 for i in range(N)], "-1"),
        ([999 if i % 9 == 0 else 18 + i % 70 for i in range(N)], "999"),
        ([i % 100 for i in range(N)], ""),
        ([i % 10 for i in range(N)], ""),
        ([i % 30 - 9 for i in range(N)], ""),
    ],
)
def test_codes_for_missing_values_are_pointed_at(values: list[int], code: str) -> None:
    note = understood(values).note
    assert (f'does {code} stand for a missing value? Then say so: "read": {{"{code}": null}}' in note) == bool(code)
    assert ("stand for a missing value" in note) == bool(code)


@pytest.mark.parametrize(
    ("form", "entry", "parts"),
    [
        ("", "%Y-%m-%d", ("year", "month", "weekday")),
        ("", "%Y-%m-%d %H:%M:%S", ("year", "month", "weekday", "hour")),
        ("%d.%m.%Y", "%d.%m.%Y", ("year", "month", "weekday")),
        ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M", ("year", "month", "weekday", "hour")),
        ("%m/%d/%Y", "%m/%d/%Y", ("year", "month", "weekday")),
        ("%d %b %Y", "%d %b %Y", ("year", "month", "weekday")),
    ],
)
def test_dates_are_told_and_encoded(form: str, entry: str, parts: tuple[str, ...]) -> None:
    moments = pd.Timestamp("2020-01-30 06:00") + pd.to_timedelta(np.arange(N) * 37, unit="h")
    column = understood(moments.strftime(entry), "admitted")
    assert (column.type, column.format, column.parts) == ("date", form, parts)
    assert column.range == ("2020-01-01", "2022-01-01") and column.note == "2020-01-30 to 2021-10-06"
    schema = Schema("t", "y", (column, Column("y", "label")), ("a", "b"), missing="separate")
    frame = pd.DataFrame({"admitted": [pd.Timestamp("2021-07-02 12:00").strftime(entry), None], "y": ["a", "b"]})
    features, _ = SchemaEncoder(schema, frame).encode()
    told = dict(zip(schema.features, features[0].tolist(), strict=True))
    assert told["admitted year"] == pytest.approx(0.75, abs=0.01) and told["admitted month"] == pytest.approx(6 / 12, abs=0.01)
    assert told["admitted weekday=Friday"] == 1 and told["admitted weekday=Monday"] == 0
    assert told.get("admitted hour", 0.5) == 0.5 and told["admitted year missing"] == 0
    assert sum(features[1]) == len(parts)  # each part says that it is missing
    frame.loc[0, "admitted"] = "tomorrow"
    with pytest.raises(SchemaError, match=r"Expected dates of the form .* in column 'admitted', got 'tomorrow'"):
        SchemaEncoder(schema, frame).encode()
    assert row_faults(schema, frame) == {0: f"column 'admitted' holds 'tomorrow', which is no date of the form {column.form}"}


def test_rows_of_dates_stay_within_the_norm_with_curves() -> None:
    moments = pd.Timestamp("2020-01-30 06:00") + pd.to_timedelta(np.arange(N) * 37, unit="h")
    frame = a_table(a=moments.strftime("%Y-%m-%d %H:%M"), b=np.arange(N) % 90)
    schema = propose(frame, "y").with_curves(12)
    features, _ = SchemaEncoder(schema, frame).encode()
    lengths = np.linalg.norm(features, axis=1)
    assert features.shape == (N, 12 + 12 + 7 + 12 + 12) == (N, schema.dimension) and lengths.max() <= 1.0
    with_pair = Schema.from_dict(json.loads(schema.to_json()) | {"pairs": [["a month", "b"]]})
    assert np.linalg.norm(SchemaEncoder(with_pair, frame).encode()[0], axis=1).max() <= 1.0
    early = frame.assign(a="1990-05-05 05:00")  # clipped
    assert np.linalg.norm(SchemaEncoder(schema, early).encode()[0], axis=1).max() <= 1.0


def test_a_doubt_about_days_and_months_is_said() -> None:
    column = understood([f"{1 + i % 12:02d}/{1 + i % 11:02d}/2020" for i in range(N)])
    assert column.format == "%d/%m/%Y" and "days or months first" in column.note
    assert "first" not in understood([f"{1 + i % 28:02d}/{1 + i % 11:02d}/2020" for i in range(N)]).note


@pytest.mark.parametrize(
    ("values", "task", "classes", "read"),
    [
        (["0.0", "1", "1.0", "0"] * 100, None, ("0", "1"), {"0.0": "0", "1.0": "1"}),
        (["yes", "no"] * 200, None, ("no", "yes"), {}),
        (["Yes", "no", "yes ", "YES", "no"] * 80, None, ("Yes", "no"), {"YES": "Yes", "yes": "Yes"}),
        (["1", "10", "2", "1"] * 100, None, ("1", "2", "10"), {}),
        (["1", "10", "?", *["2"] * 37] * 10, None, ("1", "2", "10"), {}),
        ([f"{i % 40}" for i in range(N)], "classification", tuple(map(str, range(40))), {}),
        ([f"{i % 40}" for i in range(N)], None, (), {}),
        (["1", "2", "3", "4"] * 100, "regression", (), {}),
        (["5.5", "2", "> 9", "4"] * 100, None, (), {}),
    ],
)
def test_targets(values: list[str], task: Any, classes: tuple[str, ...], read: dict[str, Any]) -> None:
    frame = a_table(x=np.arange(N) % 90).assign(y=values)
    schema = propose(frame, "y", task=task)
    label = schema.columns[-1]
    assert (schema.classes, dict(label.read)) == (classes, read)
    assert (schema.target_range is None) == bool(classes)
    features, targets = SchemaEncoder(schema, frame).encode()
    assert len(features) == len(targets) == N - values.count("?")
    if classes:
        assert set(targets) == set(classes)
    else:
        assert set(targets) == {float(value.removeprefix("> ")) for value in values}


@pytest.mark.parametrize(
    ("values", "labels", "left_out"),
    [
        (["0", "1", "2", "3+"] * 100, ("0", "1", "2", "3+"), ""),
        (["< 1", "1", "2", "3+", "2"] * 80, ("1", "< 1", "2", "3+"), ""),
        (["0", "1", "2"] * 133 + ["3+"], ("0", "1", "2"), "3+"),
        (["0", "1", "2"] * 133 + ["2,0"], ("0", "1", "2"), "2,0"),
        (["0", "1"] * 199 + ["1+", "ask"], ("0", "1"), "1+"),
    ],
)
def test_bounds_and_decimals_among_labels_are_labels_themselves(
    values: list[str], labels: tuple[str, ...], left_out: str
) -> None:
    """The schema fits its own table, confirmed or not, and the note names what it leaves out."""
    frame = a_table(x=np.arange(N) % 90).assign(y=values)
    draft = propose(frame, "y")
    assert draft.classes == labels and draft.label.read == {}
    assert draft.label.also_reads == ()
    assert (f"{left_out!r} (1)" in draft.label.note) == bool(left_out)
    for schema in (draft, confirmed(draft, answered=True)):
        _, targets = SchemaEncoder(schema, frame).encode()
        assert targets.tolist() == [value for value in values if value in labels]


def test_numbers_of_the_other_decimal_mark_make_a_target_an_amount() -> None:
    frame = a_table(x=np.arange(N) % 90).assign(y=["0", "1", "1,5", "2"] * 100)
    schema = propose(frame, "y")
    assert schema.classes == () and schema.label.also_reads == ("decimals",)
    assert set(SchemaEncoder(schema, frame).encode()[1]) == {0, 1, 1.5, 2}


def test_slips_in_labels_are_pointed_at() -> None:
    frame = a_table(x=np.arange(N) % 90)
    frame.loc[[3, 5], "y"] = ["noo", "whatever"]
    note = propose(frame, "y").columns[-1].note
    assert "is 'noo' another spelling of 'no'? Then add it under 'read'" in note and "'whatever' another" not in note
    edited = json.loads(propose(frame, "y").to_json())
    edited["columns"][-1]["read"] = {"noo": "no", "whatever": None}
    edited |= {"classes": ["no", "yes"], "missing": "middle"}
    features, targets = SchemaEncoder(Schema.from_dict(edited), frame).encode()
    assert set(targets) == {"no", "yes"} and len(features) == N - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": "same"}, "The target 'y' is 'same' in all rows"),
        ({"y": None}, "The target 'y' is 'missing' in all rows"),
        ({"y": [f"text {i}" for i in range(N)]}, "holds 400 different texts, such as 'text 0': is it the right column"),
        ({"x": "1"}, "at least one feature column"),
    ],
)
def test_tables_that_nothing_can_be_learnt_of(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        propose(a_table(x=np.arange(N) % 90).assign(**change), "y")


def test_options_of_a_proposal() -> None:
    frame = a_table(x=np.arange(N) % 90, patient=np.arange(N) // 4)
    schema = propose(frame, "y", unit="patient")
    assert schema.unit == "patient" and schema.columns[1].type == "ignore"
    for options, message in (
        ({"unit": "nobody"}, "unit among the other columns"),
        ({"unit": "y"}, "unit among the other columns"),
        ({"task": "regression"}, "Expected numbers in the target 'y' for a regression, got 'no'"),
    ):
        with pytest.raises(SchemaError, match=message):
            propose(frame, "y", **options)


def test_confirming_leaves_no_trace_of_the_data() -> None:
    schema = propose(a_table(x=np.arange(N) % 90), "y")
    text = confirmed(schema).to_json()
    assert "note" in schema.to_json()
    assert "propos" not in text.lower()
    assert "note" not in text
    assert SchemaEncoder(confirmed(schema), a_table(x=np.arange(N) % 90)).encode()[0].shape == (N, 1)


def test_a_category_that_nobody_knows_may_be_refused_be_another_or_none() -> None:
    frame = pd.DataFrame({"x": ["a", "c", None], "y": ["a", "b", "a"]})
    for options, rows in (({"other": True}, [[1, 0, 0], [0, 0, 1]]), ({"unknown": "ignore"}, [[1, 0], [0, 0]])):
        schema = Schema(
            "t",
            "y",
            (Column("x", "category", categories=("a", "b"), **options), Column("y", "label")),
            ("a", "b"),
            missing="middle",
        )
        assert SchemaEncoder(schema, frame).encode()[0][:2].tolist() == rows and row_faults(schema, frame) == {}
        separate = Schema.from_dict(json.loads(schema.to_json()) | {"missing": "separate"})
        assert SchemaEncoder(separate, frame).encode()[0].tolist() == [
            [*rows[0], 0],
            [*rows[1], 0],
            [*[0] * len(rows[0]), 1],
        ]  # unknown is not missing
    strict = Schema(
        "t", "y", (Column("x", "category", categories=("a", "b")), Column("y", "label")), ("a", "b"), missing="middle"
    )
    with pytest.raises(SchemaError, match="hold one of its 2 categories, got 'c'"):
        SchemaEncoder(strict, frame).encode()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"type": "date"}, "Expected a range of two dates"),
        ({"type": "date", "range": ["2024-01-01", "tomorrow"]}, "such as 2024-01-31 as a range, got 'tomorrow'"),
        ({"type": "date", "range": ["2024-01-01", "2023-01-01"]}, "two dates in order"),
        (
            {"type": "date", "range": ["2023-01-01", "2024-01-01"], "parts": ["century"]},
            "Expected parts of year, month, weekday, hour",
        ),
        ({"type": "date", "range": ["2023-01-01", "2024-01-01"], "parts": ["year", "year"]}, "each part"),
        ({"type": "number", "range": [0, 1], "parts": ["year"]}, "parts and a format of dates alone"),
        ({"type": "ignore", "unknown": "ignore"}, "Expected unknown of"),
        ({"type": "category", "categories": ["a"], "other": True, "unknown": "ignore"}, "Expected unknown of"),
        ({"type": "category", "categories": ["a"], "unknown": "other"}, "Expected unknown of"),
        ({"type": "category", "categories": ["a"], "read": ["b"]}, "Expected read to say what entries stand for"),
        ({"type": "category", "categories": ["a"], "read": {"b": ["a"]}}, "Expected read to say what entries stand for"),
        ({"type": "category", "categories": ["a"], "note": 3}, "Expected a note of text"),
        ({"categories": ["a"]}, "Expected a type of column 'x'"),
    ],
)
def test_columns_that_say_nonsense_are_refused(column: dict[str, Any], message: str) -> None:
    data = {
        "name": "t",
        "target": "y",
        "classes": ["a", "b"],
        "columns": [{"name": "x", **column}, {"name": "y", "type": "label"}],
    }
    with pytest.raises(SchemaError, match=message):
        Schema.from_dict(data)


def test_editors_know_every_entry() -> None:
    """The JSON Schema beside a proposal names what the reader takes, and accepts what dperm itself writes."""
    form = json.loads(editor_file())
    jsonschema.Draft202012Validator.check_schema(form)
    assert set(form["properties"]) >= {"$schema", *ENTRIES} and set(form["$defs"]["column"]["properties"]) == COLUMN_ENTRIES
    assert set(form["properties"]["format"]["properties"]) == FORMAT >= set(TEXT_OPTIONS)
    validator = jsonschema.Draft202012Validator(form)
    moments = pd.Timestamp("2020-01-30") + pd.to_timedelta(np.arange(N), unit="D")
    frame = a_table(a=moments.strftime("%d.%m.%Y"), b=["> 50", "n/a", "3", "4"] * 100, c=["a", "b", "b", "c"] * 100)
    for schema in (propose(frame, "y"), confirmed(propose(frame, "y")), *(schema_of(name) for name in named())):
        validator.validate(json.loads(schema.to_json(editor=True)))
    wrong = json.loads(propose(frame, "y").to_json())
    wrong["columns"][0]["type"] = "day"
    assert not validator.is_valid(wrong) and not validator.is_valid({**json.loads(propose(frame, "y").to_json()), "clases": []})


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    moments = pd.Timestamp("2020-01-30") + pd.to_timedelta(np.arange(N), unit="D")
    frame = a_table(a=moments.strftime("%d.%m.%Y"), b=["> 50", "n/a", "3", "4"] * 100, c=["a", "b", "b", "c"] * 100)
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    schema = propose(read_table(path), "y")
    (tmp_path / "s.json").write_text(schema.to_json(editor=True), encoding="utf-8-sig")
    assert Schema.load(tmp_path / "s.json") == schema
    assert SchemaEncoder(schema, read_table(path, schema)).encode()[0].shape == (N, schema.dimension)


def test_no_entry_changes_how_another_is_read_as_a_date() -> None:
    """Whatever pandas makes of whole columns: resolutions, types, zones and words such as today."""
    column = Column("x", "date", ("2000-01-01", "2030-01-01"), unknown="ignore")
    alone = moments(pd.Series(["9999-12-31", "2020-05-05"], dtype="object"), column.form)
    for other in ("2020-01-01T00:00:00.123456789", "2020-01-01 10:00+05:00", "today", None, "nonsense", 3.5):
        beside = moments(pd.Series(["9999-12-31", "2020-05-05", other], dtype="object"), column.form)
        assert beside.iloc[:2].tolist() == alone.tolist()
    assert moments(pd.Series(["today", "now"]), column.form).isna().all()
    years = Column("x", "date", ("2000-01-01", "2030-01-01"), format="%Y")
    for values in ([2020, 2021], [2020, 2021, None]):
        assert moments(pd.Series(values), years.form).iloc[:2].dt.year.tolist() == [2020, 2021]
    read = Column("x", "number", (0, 3000), read={"this": 2024})
    assert read.entries(pd.Series(["this", None])).iloc[0] == 2024 and read.entries(pd.Series(["this", None])).dtype == object
    zoned = pd.Series(pd.to_datetime(["2020-01-01 10:00+05:00"]))
    assert moments(zoned, column.form).iloc[0] == pd.Timestamp("2020-01-01 05:00")


def test_what_is_no_number_date_or_label_may_count_as_missing() -> None:
    columns = (
        Column("n", "number", (0, 10), unknown="ignore"),
        Column("d", "date", ("2020-01-01", "2021-01-01"), parts=("year",), unknown="ignore"),
        Column("y", "label", unknown="ignore"),
    )
    schema = Schema("t", "y", columns, ("a", "b"), missing="separate")
    frame = pd.DataFrame({"n": ["5", "ask", "5"], "d": ["2020-07-02", "2020-07-02", "never"], "y": ["a", "b", "c"]})
    features, targets = SchemaEncoder(schema, frame).encode()
    assert targets.tolist() == ["a", "b"] and features[:, :2].tolist() == [[0.5, 0], [0, 1]]
    assert row_faults(schema, frame) == {} and SchemaEncoder(schema, frame).usable.tolist() == [True, True, False]
    drop = Schema.from_dict(json.loads(schema.to_json()) | {"missing": "drop"})
    assert SchemaEncoder(drop, frame).usable.tolist() == [True, False, False] and len(SchemaEncoder(drop, frame).encode()[0]) == 1


def test_cells_and_notes_stay_out_of_what_is_published() -> None:
    """A draft names what it drops, for the data holder alone; what is confirmed, or stands in a model, does not."""
    values = ["ask Mrs Miller" if i == 7 else str(i % 60) for i in range(N)]
    schema = propose(a_table(x=values), "y")
    assert "1 entries are none, and count as missing: 'ask Mrs Miller' (1)" in schema.columns[0].note
    for published in (schema.without_notes(), confirmed(schema)):
        assert "Miller" not in published.to_json() and "note" not in published.to_json()
