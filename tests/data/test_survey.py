"""What a table holds beside its schema is counted, for its holder alone."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dperm.data import Column, Schema, read_dataset
from dperm.data.survey import Survey, share

COLUMNS = (
    Column("age", "number", (0, 100)),
    Column("pay", "number", (0, 1e6), scale="linear"),
    Column("job", "category", categories=("a", "b"), other=True),
    Column("note", "ignore"),
    Column("y", "label", read={"?": None}),
)
SCHEMA = Schema("t", "y", COLUMNS, ("no", "yes"), missing="separate")


def a_file(tmp_path: Path) -> Path:
    frame = pd.DataFrame(
        {
            "age": ["30", "140", "-5", "", "50", "60", "20", "40", "44", "45"],
            "pay": [str(100 + i) for i in range(10)],
            "job": ["a", "b", "c", "d", "", "a", "b", "a", "b", "a"],
            "note": "x",
            "more": "y",
            "y": ["no", "yes"] * 4 + ["?", "yes"],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "t.csv"


def test_everything_is_counted(tmp_path: Path) -> None:
    dataset, _ = read_dataset(a_file(tmp_path), schema=SCHEMA)
    survey = dataset.survey
    assert survey is not None
    assert survey.rows == 10
    assert survey.unlabelled == 1
    assert (survey.used, survey.left_out, survey.unknown) == (("age", "pay", "job"), ("note",), ("more",))
    assert (survey.missing, survey.outside, survey.strange) == ({"age": 1, "job": 1}, {"age": 2}, {"job": 2})
    assert survey.lines() == [
        "Columns used: 3 (age, pay, job). Left out by the schema: note.",
        "Missing values: age 1 (10%), job 1 (10%).",
        "Outside their range, clipped: age 2 (20%).",
        "In none of their categories: job 2 (20%).",
        "Rows without a target, left out: 1 (in 1 stands something, such as '?').",
    ]
    assert survey.warnings() == [
        "20% of 'age' are outside its range: is the range right?",
        "Not in the schema, and not used: more. If that is meant, give them the type ignore.",
        "Nearly all of 'pay' lie in 0.0% of its range: a narrower public range, or a log scale, would tell more.",
    ]


def test_targets_and_decimal_commas_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x;y\n" + "1,5;2,5\n2,5;99,5\n" * 5)
    schema = Schema("t", "y", (Column("x", "number", (0, 2)), Column("y", "label")), target_range=(0, 50))
    survey = read_dataset(path, schema=schema)[0].survey
    assert survey is not None and (survey.outside, survey.targets_outside) == ({"x": 5}, 5)
    assert any("50% of the targets are outside their range" in warning for warning in survey.warnings())
    assert "Targets outside their range, clipped: 5." in survey.lines()


def test_a_table_without_its_target_is_counted_too() -> None:
    frame = pd.DataFrame({"age": ["1"], "pay": ["5"], "job": ["a"]})
    survey = Survey.of(frame, SCHEMA)
    assert survey.unlabelled == 0
    assert survey.left_out == ()
    assert survey.warnings() == []


@pytest.mark.parametrize(("count", "told"), [(0, "0%"), (1, "under 1%"), (10, "1%"), (999, "100%")])
def test_shares_in_words(count: int, told: str) -> None:
    assert share(count, 1000) == told
