"""Entries that a column reads in further forms, and numbers that are parts of entries: each entry by itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema, SchemaError
from dperm.data.schema.row_faults import row_faults
from dperm.data.schema.written_forms import piece_of, read_forms
from dperm.data.survey import Survey

BOTH = ("bounds", "decimals")


@pytest.mark.parametrize(
    ("entry", "forms", "read"),
    [
        ("> 50", BOTH, "50"),
        ("<=0.5", ("bounds",), "0.5"),
        ("3+", BOTH, "3"),
        (" 5 or more ", BOTH, "5"),
        ("ca. 20", BOTH, "20"),
        ("< 2,5", BOTH, 2.5),
        ("< 2,5", ("bounds",), "2,5"),
        ("1,5", BOTH, 1.5),
        ("-0.25", BOTH, -0.25),
        (",5", BOTH, 0.5),
        ("1,234", BOTH, "1,234"),  # may be thousands
        ("1.234", BOTH, "1.234"),
        ("1,5", ("bounds",), "1,5"),
        ("3+", ("decimals",), "3+"),
        ("+", BOTH, "+"),
        ("1+1", BOTH, "1+1"),
        ("", BOTH, ""),
        ("about", BOTH, "about"),
    ],
)
def test_forms(entry: str, forms: tuple[str, ...], read: Any) -> None:
    assert read_forms(entry, forms) == read


def test_long_entries_take_no_time() -> None:
    for entry in ("1" * 100_000 + "x", ",." * 50_000, "+" * 100_000, "< " * 50_000):
        read_forms(entry, BOTH)


def test_pieces() -> None:
    assert [piece_of("120/80", "/", piece) for piece in (1, 2, 3)] == ["120", "80", None]
    assert piece_of("120", "/", 1) is None and piece_of("120/", "/", 2) is None
    assert piece_of(" 1 / 2 ", "/", 2) == "2"


SCHEMA = Schema.from_dict(
    {
        "name": "t",
        "target": "y",
        "classes": ["a", "b"],
        "missing": "separate",
        "columns": [
            {"name": "upper", "type": "number", "range": [0, 200], "column": "bp", "split": "/"},
            {"name": "lower", "type": "number", "range": [0, 100], "column": "bp", "split": "/", "piece": 2, "unknown": "ignore"},
            {"name": "kids", "type": "number", "range": [0, 4], "also_reads": ["bounds", "decimals"]},
            {"name": "y", "type": "label"},
        ],
    }
)
FRAME = pd.DataFrame({"bp": ["120/80", "100/x", None, "110"], "kids": ["3+", "1,5", "2", None], "y": list("abab")})


def test_several_columns_of_one() -> None:
    features = Dataset.of(FRAME, SCHEMA).features
    assert features.tolist() == pytest.approx(
        np.array([[0.6, 0, 0.8, 0, 0.75, 0], [0.5, 0, 0, 1, 0.375, 0], [0, 1, 0, 1, 0.5, 0], [0, 1, 0, 1, 0, 1]])
    )
    assert SCHEMA.features == ["upper", "upper missing", "lower", "lower missing", "kids", "kids missing"]
    assert SCHEMA.table_columns() == ["bp", "kids", "y"] and Survey.of(FRAME, SCHEMA).unknown == ()
    assert Schema.from_dict(json.loads(SCHEMA.to_json())) == SCHEMA
    fault = "column 'upper' holds 'a', which is no finite number"
    assert row_faults(SCHEMA, FRAME.assign(bp="a/5")) == dict.fromkeys(range(4), fault)
    commas = replace(SCHEMA, extra={**SCHEMA.extra, "decimal": ","})
    marks = "column 'upper' holds '1.25', which is no finite number; this table has decimal commas: 1,25"
    assert row_faults(commas, FRAME.assign(bp="1.25/5"))[0] == marks
    with pytest.raises(SchemaError, match="lacks the columns \\['bp'\\]"):
        Dataset.of(FRAME.drop(columns="bp"), SCHEMA)


def test_no_entry_changes_how_another_is_read() -> None:
    alone = Dataset.of(FRAME.iloc[:1], SCHEMA).features[0]
    for row in range(1, 4):
        assert Dataset.of(FRAME.iloc[[0, row]], SCHEMA).features[0].tolist() == alone.tolist()


def test_a_target_reads_further_forms() -> None:
    columns = (Column("x", "number", (0, 1)), Column("y", "label", (0, 9), also_reads=("bounds",)))
    frame = pd.DataFrame({"x": [0, 1], "y": ["> 7", "3"]})
    assert Dataset.of(frame, Schema("t", "y", columns)).targets.tolist() == [7.0, 3.0]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"also_reads": ["fractions"]}, "also_reads of bounds and decimals for 'x', got 'fractions'"),
        ({"also_reads": "bounds"}, "also_reads of 'x' to be a list"),
        ({"type": "category", "categories": ["a"], "range": None, "also_reads": ["bounds"]}, "also_reads of a number"),
        ({"type": "category", "categories": ["a"], "range": None, "split": "/"}, "split to be a mark between numbers"),
        ({"piece": 2}, "piece from 1 to 9, with split"),
        ({"split": "/", "piece": 0}, "piece from 1 to 9"),
        ({"split": "/", "piece": True}, "piece from 1 to 9"),
        ({"split": 3}, "split to be a mark"),
        ({"column": 3}, "column to name the table's column"),
    ],
)
def test_nonsense_is_refused(column: dict[str, Any], said: str) -> None:
    given = {"name": "x", "type": "number", "range": [0, 1]} | column
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(SchemaError, match=said):
        Schema.from_dict({"name": "t", "target": "y", "classes": ["a", "b"], "columns": [given, {"name": "y", "type": "label"}]})


def test_the_unit_is_no_feature_under_another_name() -> None:
    columns = (Column("x", "number", (0, 1), column="who"), Column("y", "label"))
    with pytest.raises(SchemaError, match="the unit 'who' to be no feature"):
        Schema("t", "y", columns, ("a", "b"), unit="who")


@pytest.mark.parametrize("feature", [{"type": "number", "range": [0, 9]}, {"type": "category", "categories": ["1", "2"]}])
def test_no_feature_is_made_of_the_target(feature: dict[str, Any]) -> None:
    columns: list[dict[str, Any]] = [
        {"name": "x", "type": "number", "range": [0, 1]},
        {"name": "again", "column": "y", **feature},
    ]
    stated = {"name": "t", "target": "y", "columns": [*columns, {"name": "y", "type": "label", "range": [0, 9]}]}
    with pytest.raises(SchemaError, match=r"other columns than the target 'y', got 'again'.*type ignore"):
        Schema.from_dict(stated)
    columns[1] = {"name": "again", "column": "y", "type": "ignore"}
    assert Schema.from_dict({**stated, "columns": [*columns, {"name": "y", "type": "label", "range": [0, 9]}]}).features == ["x"]
