"""`dperm intervals`: a charged release, a file that effects are drawn by, and what is refused before a charge."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm.release import SpendLog
from helpers.commands import dperm

SIZE = 6000


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A table of wages, its schema, and a model of it whose rows are not scaled down."""
    rng = np.random.default_rng(0)
    job = rng.choice(["clerk", "nurse", "smith"], SIZE, p=[0.5, 0.4, 0.1])
    frame = pd.DataFrame({"age": rng.integers(18, 70, SIZE), "job": job, "sex": rng.choice(["f", "m"], SIZE)})
    frame["wage"] = 20 + 0.2 * frame["age"] + np.where(job == "nurse", 5, 0) + rng.normal(0, 2, SIZE)
    frame["wage"] = frame["wage"].clip(0, 60)
    table, schema, model = tmp_path / "people.csv", tmp_path / "schema.json", tmp_path / "model.json"
    frame.to_csv(table, index=False)
    columns = [
        {"name": "age", "type": "number", "range": [18, 70]},
        {"name": "job", "type": "category", "categories": ["clerk", "nurse", "smith", "judge"]},
        {"name": "sex", "type": "category", "categories": ["f", "m"]},
        {"name": "wage", "type": "label", "range": [0, 60]},
    ]
    schema.write_text(json.dumps({"name": "people", "target": "wage", "columns": columns}))
    lines = ("--curves", "0", "--data-norm", "1.7321", "--public-size", str(SIZE))
    dperm("train", table, "--schema", schema, *lines, "-o", model)
    return table, schema, model


def test_they_are_written_with_what_was_released_and_hold(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table, _, model = files
    file = tmp_path / "intervals.json"
    done = dperm("intervals", model, table, "--epsilon", "4", "-o", file)
    assert "In units of wage." in done.stdout
    assert "job: nurse rather than clerk" in done.stdout
    assert "Hidden by the noise" in done.stdout
    assert "judge rather than clerk" in done.stdout
    written = json.loads(file.read_text())
    found = {each["column"] + ": " + each["what"]: each for each in written["coefficients"]}
    nurse, age = found["job: nurse rather than clerk"], found["age: per unit"]
    assert nurse["estimate"] == pytest.approx(5, abs=6 * nurse["standard_error"])
    assert age["estimate"] == pytest.approx(0.2, abs=6 * age["standard_error"])
    assert nurse["standard_error"] < 0.5
    assert "estimate" not in found["job: judge rather than clerk"]
    certificate = written["released"]["certificate"]
    assert certificate["epsilon"] == pytest.approx(4, rel=1e-3)
    assert {"schema", "targets", "numbers within ranges"} <= {each["key"] for each in certificate["assumptions"]}
    assert [charge.label for charge in SpendLog.current().charges()] == ["people", "people"]


def test_effects_are_ranked_by_what_exceeds_the_noise_that_was_released(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    half = pd.DataFrame({"age": rng.integers(0, 80, SIZE // 2)})
    half["ill"] = np.where(rng.random(SIZE // 2) < half["age"] / 100, "yes", "no")
    frame = pd.concat([half.assign(sex="f"), half.assign(sex="m")])  # alike in all else: what is said of it is noise
    table, schema, model = tmp_path / "t.csv", tmp_path / "s.json", tmp_path / "m.json"
    frame.to_csv(table, index=False)
    columns = [
        {"name": "age", "type": "number", "range": [0, 80]},
        {"name": "sex", "type": "category", "categories": ["f", "m"]},
        {"name": "ill", "type": "label"},
    ]
    schema.write_text(json.dumps({"name": "people", "target": "ill", "classes": ["no", "yes"], "columns": columns}))
    dperm("train", table, "--schema", schema, "--public-size", SIZE, "--epsilon", "4", "--curves", "4", "-o", model)
    page, file = tmp_path / "e.html", tmp_path / "i.json"
    assert "nothing is ranked" in dperm("effects", model, "-o", page).stdout
    dperm("intervals", model, table, "--epsilon", "2", "--spread", "noise", "-o", file)
    ranked = dperm("effects", model, "--noise", file, "-o", page).stdout
    assert "1 of 2 columns does more than noise does. Its lowest and highest levels:" in ranked
    assert "  age: 0 " in ranked
    wrong = dperm("effects", model, "--noise", table, "-o", page, expect=1)
    assert "not JSON" in wrong.stderr
    both = dperm("effects", model, "--noise", file, "--records", table, "-o", page, expect=1)
    assert "got both" in both.stderr
    robust = dperm("intervals", model, table, "--epsilon", "20", "--spread", "robust", "-o", tmp_path / "r.json").stdout
    assert "They are no log-odds" in robust
    margin = dperm("intervals", model, table, "--epsilon", "1", "-o", file, expect=1)
    assert "without margin" in margin.stderr


def test_what_cannot_have_intervals_is_refused_before_the_charge(files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    table, schema, model = files
    charged = len(SpendLog.current().charges())
    out = ("-o", tmp_path / "i.json")
    wrong = dperm("intervals", model, table, "--epsilon", "1", "--level", "2", *out, expect=1)
    assert "Expected --level in (0, 1)" in wrong.stderr
    short = tmp_path / "short.json"
    dperm("train", table, "--schema", schema, "--curves", "0", "--public-size", SIZE, "-o", short)
    scaled = dperm("intervals", short, table, "--epsilon", "1", *out, expect=1).stderr
    assert "--curves 0 --data-norm 1.733" in scaled
    frame = pd.read_csv(table)
    frame.loc[0, "wage"] = 1e6
    frame.to_csv(other := tmp_path / "other.csv", index=False)
    assert "outside, which are clipped" in dperm("intervals", model, other, "--epsilon", "1", *out, expect=1).stderr
    assert len(SpendLog.current().charges()) == charged + 1  # the second training
    assert not (tmp_path / "i.json").exists()
