"""`dperm effects --row`: one prediction explained, from a model file, and in no file unless one is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema
from dperm.estimators import DPLogisticRegression, model_to_json
from dperm.release import SpendLog
from helpers.commands import dperm

SCHEMA = Schema(
    "people",
    "ill",
    (
        Column("age", "number", (0, 80)),
        Column("job", "category", categories=("baker", "nurse")),
        Column("a=b", "number", (0, 1)),
        Column("ill", "label"),
    ),
    ("no", "yes"),
    missing="separate",
    curves=4,
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.integers(0, 80, 200), "job": rng.choice(["baker", "nurse"], 200), "a=b": rng.random(200)})
    frame["ill"] = np.where(frame["age"] > 40, "yes", "no")
    data = Dataset.of(frame, SCHEMA)
    fitted = DPLogisticRegression(epsilon=4.0, classes=["no", "yes"], random_state=0).fit(data.features, data.targets)
    model, table = tmp_path / "m.json", tmp_path / "t.csv"
    model.write_text(model_to_json(fitted, {"schema": json.loads(SCHEMA.to_json())}))
    frame.to_csv(table, index=False)
    return model, table


def test_entries_and_rows_of_tables_are_explained(files: tuple[Path, Path], tmp_path: Path) -> None:
    model, table = files
    row = pd.read_csv(table).iloc[2]
    before, charged = set(tmp_path.iterdir()), len(SpendLog.current().charges())
    typed = dperm("effects", model, "--row", f"age={row['age']}", "--row", f"job={row['job']}", "--row", "a=b=")
    assert f"age = {row['age']}" in typed.stdout
    assert "a=b = missing (maybe noise alone)" in typed.stdout
    said = " ".join(typed.stdout.split())
    assert "Prediction: about " in said
    assert " points may be noise of values that maybe no record has" in said
    found = json.loads(dperm("effects", model, "--row", f"{table}:3", "--json").stdout)
    assert {part["column"]: part["value"] for part in found["parts"]}["job"] == row["job"]
    assert found["constant"] + sum(part["height"] for part in found["parts"]) == pytest.approx(found["total"])
    dperm("predict", model, table, "-o", tmp_path / "p.csv")
    assert found["probability"] == pytest.approx(pd.read_csv(tmp_path / "p.csv")["probability of yes"][2])
    assert set(tmp_path.iterdir()) - before == {tmp_path / "p.csv"}
    assert len(SpendLog.current().charges()) == charged
    dperm("effects", model, "--row", table, "-o", tmp_path / "x.html")
    assert "This page holds the row" in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (["age=3", "age=4"], "each name once, got 'age=4'"),
        (["age=3", "nurse"], "Expected --row name=value"),
        (["height=3"], "got one of 'height'"),
        (["age=3"], "got none for ['job', 'a=b']. Say which are missing: None, or --row 'name='."),
        (["age=old", "job=", "a=b=1"], "column 'age' holds 'old'"),
        (["TABLE:0"], "the number of its row as new.csv:3"),
        (["TABLE:x"], "the number of its row as new.csv:3"),
        (["TABLE:201"], "Expected a row from 1 to 200"),
        (["nowhere.csv:1"], "nowhere.csv"),
    ],
)
def test_rows_that_are_none_are_refused(files: tuple[Path, Path], row: list[str], said: str) -> None:
    model, table = files
    given = [word for entry in row for word in ("--row", entry.replace("TABLE", str(table)))]
    done = dperm("effects", model, *given, expect=1)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_explanation_has_no_bands(files: tuple[Path, Path]) -> None:
    model, table = files
    both = dperm("effects", model, "--row", "age=3", "--records", table, expect=1)
    assert "Expected --row or --records, got both" in both.stderr
    same = dperm("effects", model, "--row", f"{table}:1", "-o", table, expect=1)
    assert "Expected different files" in same.stderr


def test_a_file_that_is_not_there_is_named_once(files: tuple[Path, Path], tmp_path: Path) -> None:
    done = dperm("effects", files[0], "--noise", tmp_path / "none.json", "-o", tmp_path / "x.html", expect=1)
    assert done.stderr.count("Cannot read") == 1
    assert done.stderr.rstrip().endswith("No such file or directory.")
