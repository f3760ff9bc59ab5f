"""Thresholds of answers, tables that a model was trained on, and tables with few records: said to the data holder alone."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm.estimators import DPLinearSVC, DPRidge
from dperm.jobs.trained_from import remember_table, was_trained_from
from dperm.report.predictions import refuse_threshold
from helpers.commands import dperm

SCHEMA = """{"name": "people", "target": "paid", "columns": [
 {"name": "age", "type": "number", "range": [0, 100]}, {"name": "paid", "type": "label"}], "classes": ["no", "yes"]}"""


def table(path: Path, rows: int) -> Path:
    age = np.random.default_rng(rows).uniform(0, 100, rows).round(3)
    pd.DataFrame({"age": age, "paid": np.where(age > 50, "yes", "no")}).to_csv(path, index=False)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("people.schema.json").write_text(SCHEMA)
    return tmp_path


def trained(source: Path, *more: object) -> str:
    return dperm("train", source, "--schema", "people.schema.json", "--epsilon", 2, "-o", "model.json", *more).stdout


def test_a_threshold_moves_answers_and_nothing_else(folder: Path) -> None:
    people = table(folder / "people.csv", 600)
    trained(people)
    model = Path("model.json").read_bytes()
    found: dict[object, pd.DataFrame] = {}
    for threshold in (None, 0.5, 0.2, 0.9):
        given = () if threshold is None else ("--threshold", threshold)
        said = dperm("predict", "model.json", people, "-o", "answers.csv", *given).stdout
        found[threshold] = pd.read_csv("answers.csv")
        assert ("The answer is yes from a probability of" in said) == (threshold is not None)
    likely = found[None]["probability of yes"]
    for threshold in (0.5, 0.2, 0.9):
        assert found[threshold]["probability of yes"].equals(likely)
        assert found[threshold].prediction.tolist() == np.where(likely >= threshold, "yes", "no").tolist()
    assert found[0.5].prediction.equals(found[None].prediction)
    assert (found[0.2].prediction == "yes").sum() > (found[0.9].prediction == "yes").sum()
    assert Path("model.json").read_bytes() == model
    for wrong in (0, 1, -0.5, "nan"):
        assert "--threshold" in dperm("predict", "model.json", people, "--threshold", wrong, expect=1).stderr


def test_a_threshold_needs_two_classes_with_probabilities() -> None:
    rows = np.random.default_rng(0).uniform(size=(60, 2))
    for model, what in (
        (DPRidge(public_size=60, delta=1e-3).fit(rows, rows[:, 0]), "one of numbers"),
        (DPLinearSVC(classes=["a", "b"], delta=1e-3).fit(rows, ["a", "b"] * 30), "one of 2 classes without probabilities"),
        (DPLinearSVC(classes=["a", "b", "c"], delta=1e-3, epsilon=9.0).fit(rows, ["a", "b", "c"] * 20), "one of 3 classes"),
    ):
        with pytest.raises(ValueError, match=f"two classes with probabilities for --threshold, got {what}"):
            refuse_threshold(model)


def test_evaluation_on_the_training_table_is_remarked(folder: Path) -> None:
    people, others = table(folder / "people.csv", 600), table(folder / "others.csv", 500)
    trained(people)
    same = dperm("evaluate", "model.json", Path("people.csv"), "--test-data", "private").stderr
    assert "For the data holder alone: the model was trained on this very table" in same
    assert "trained on this very table" not in dperm("evaluate", "model.json", others, "--test-data", "private").stderr
    held = Path("model.json").read_text()
    assert str(people) not in held and people.name not in held  # the model does not say which table it was


def test_what_is_remembered_is_the_owner_s_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    people = table(tmp_path / "people.csv", 10)
    remember_table("a model", str(people))
    assert was_trained_from("a model", str(people)) and not was_trained_from("another", str(people))
    (note,) = (tmp_path / "state" / "dperm" / "trained").glob("[!.]*")
    assert note.stat().st_mode & 0o077 == 0
    remember_table("a model", "adult")  # a named set
    monkeypatch.setenv("XDG_STATE_HOME", str(people))  # no folder
    remember_table("a model", str(people))
    assert not was_trained_from("a model", str(people))


def test_few_records_are_told_what_to_expect_and_the_model_is_not(folder: Path) -> None:
    said = trained(table(folder / "few.csv", 26))
    assert "For the data holder alone: 26 records are few at epsilon = 2: the noise hides what" in said
    assert "are few at epsilon" not in Path("model.json").read_text()
    assert "are few at epsilon" not in trained(table(folder / "many.csv", 600))


def test_counts_of_clipped_missing_and_small_stay_with_the_holder(folder: Path) -> None:
    """They are on the terminal, and in no file that leaves the house."""
    frame = pd.read_csv(table(folder / "people.csv", 1237))
    frame.loc[:136, "age"] = 250.0  # beyond the range
    frame.loc[400:458, "age"] = np.nan
    frame.loc[500:582, "paid"] = np.nan
    frame.to_csv("people.csv", index=False)
    Path("people.schema.json").write_text(SCHEMA.replace('"target"', '"missing": "middle", "target"'))
    said = trained(folder / "people.csv")
    dperm("card", "model.json", "-o", "card.html")
    dperm("effects", "model.json", "-o", "effects.html")
    counts = ("137", "59", "83", "1,237", "1237", "1154", "1,154")
    assert all(count in said for count in counts[:3]), said
    for file in ("model.json", "card.html", "effects.html"):
        text = re.sub(r'<(style|svg).*?</\1>|data:[^"]*|"(digest|created)":.*', "", Path(file).read_text(), flags=re.DOTALL)
        found = [count for count in counts if re.search(rf"(?<![\d.,:-]){count}(?![\d.,:])", text)]
        assert found == [], (file, found)
