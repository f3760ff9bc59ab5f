"""Item 22: `dperm train --fit-by`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dperm.estimators import model_from_json
from dperm.jobs.auditing import training_of
from dperm.jobs.training import files_of_parts
from dperm.privacy import Disjoint
from dperm.release import SpendLog
from helpers.commands import dperm

RNG = np.random.default_rng(0)
PEOPLE = pd.DataFrame({"age": RNG.integers(18, 80, 300), "job": RNG.choice(["nurse", "baker"], 300)})
PEOPLE["income"] = np.where((PEOPLE["age"] > 50) == (PEOPLE["job"] == "nurse"), "high", "low")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    table, schema = tmp_path / "people.csv", tmp_path / "people.schema.json"
    PEOPLE.to_csv(table, index=False)
    dperm("data", "propose", table, "--target", "income")
    stated = json.loads(schema.read_text().replace('"proposed": true', '"proposed": false'))
    for column in stated["columns"]:
        if column["name"] == "job":
            column["categories"] = ["baker", "nurse", "pilot"]  # nobody is a pilot
            column["other"] = False
    schema.write_text(json.dumps(stated))
    return table, schema


def test_a_model_for_each_job_for_one_charge(files: tuple[Path, Path], tmp_path: Path) -> None:
    table, schema = files
    output = tmp_path / "model.json"
    asked = ("train", table, "--schema", schema, "--fit-by", "job", "--epsilon", "3", "--public-size", "300", "-o", output)
    before = len(SpendLog.current().charges())
    said = dperm(*asked, "--dry-run").stdout
    assert "charge at most" in said
    assert len(SpendLog.current().charges()) == before
    said = dperm(*asked).stdout
    (charge,) = SpendLog.current().charges()[before:]
    assert isinstance(charge.event, Disjoint)
    assert not output.exists()
    for job in ("baker", "nurse", "pilot"):
        model, extra = model_from_json((tmp_path / f"model.{job}.json").read_text())
        assert f"model.{job}.json" in said
        assert model.certificate_.event == charge.event
        assert model.public_size == 100
        assert extra["fit_by"] == {"column": "job", "value": job}
    # of other jobs a model says nothing
    nurses = dperm("predict", tmp_path / "model.nurse.json", table, "-o", tmp_path / "a.csv", "--on-error", "skip").stdout
    assert f"Left blank: {(PEOPLE['job'] != 'nurse').sum()}" in nurses
    answers = pd.read_csv(tmp_path / "a.csv")["prediction"]
    assert answers.isna().tolist() == (PEOPLE["job"] != "nurse").tolist()
    right = answers[PEOPLE["job"] == "nurse"] == PEOPLE["income"][PEOPLE["job"] == "nurse"]
    assert right.mean() > 0.7
    assert "which this model is for" in dperm("predict", tmp_path / "model.nurse.json", table, expect=1).stderr
    # nor of its own job, which is the same in all of its rows
    drawn = json.loads(dperm("effects", tmp_path / "model.nurse.json", "-o", tmp_path / "effects.html", "--json").stdout)
    assert [column["column"] for column in drawn["columns"]] == ["age"]
    assert "job" not in (tmp_path / "effects.html").read_text().split("<svg", 1)[1].split("</svg>", 1)[0]


def test_a_model_of_one_part_is_audited_with_those_of_all(files: tuple[Path, Path], tmp_path: Path) -> None:
    table, schema = files
    dperm("train", table, "--schema", schema, "--fit-by", "job", "--public-size", "300", "-o", tmp_path / "model.json")
    for job in ("baker", "pilot"):
        fitted, _ = model_from_json((tmp_path / f"model.{job}.json").read_text())
        certificate = fitted.certificate_
        training = training_of(fitted, fitted.n_features_in_, 2, certificate)
        assert training.event == certificate.event
    facts = {**certificate.public_facts, "sizes_of_parts": [100, 100], "columns_of_parts": [1, 2]}
    with pytest.raises(ValueError, match="states another event"):
        training_of(fitted, fitted.n_features_in_, 2, replace(certificate, public_facts=facts))
    with pytest.raises(ValueError, match="which parts there are"):
        training_of(fitted, fitted.n_features_in_, 2, replace(certificate, public_facts={**facts, "columns_of_parts": [0]}))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (("--fit-by", "age"), "category"),
        (("--fit-by", "nothing"), "category"),
        (("--fit-by", "job", "--relation", "replace_one"), "moves to another part"),
        (("--fit-by", "job", "--model", "mlp"), "linear model"),
    ],
)
def test_what_is_refused_before_a_charge(files: tuple[Path, Path], options: tuple[str, ...], match: str) -> None:
    table, schema = files
    before = len(SpendLog.current().charges())
    done = dperm("train", table, "--schema", schema, *options, expect=1)
    assert match in done.stderr
    assert len(SpendLog.current().charges()) == before


def test_files_have_names_of_their_own() -> None:
    names = files_of_parts(Path("out/model.json"), ["a", "b c"])
    assert names == {"a": Path("out/model.a.json"), "b c": Path("out/model.b-c.json")}
    alike = files_of_parts(Path("model.json"), ["a/b", "a b", "A-B", "***"])
    assert len({str(path).lower() for path in alike.values()}) == 4
    assert all(path.parent == Path() for path in alike.values())
