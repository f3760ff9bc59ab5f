"""`dperm train` chooses the model by the target as the schema declares it, and says so; counts and quantiles can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm import jobs
from dperm.data import Column, Dataset, Schema
from dperm.estimators import DPPoissonRegressor, DPRidge, model_from_json, model_to_json
from dperm.release import SpendLog
from helpers.commands import dperm

RNG = np.random.default_rng(0)
N = 3000
AGE = RNG.integers(20, 80, N)
VISITS = np.minimum(RNG.poisson(np.exp((AGE - 20) / 30)), 30)
FRAME = pd.DataFrame({"age": AGE, "visits": VISITS, "ward": RNG.choice(["a", "b", "c"], N)})
AMOUNT: dict[str, Any] = {"range": [0, 30]}
TWO: dict[str, Any] = {"classes": ["a", "b"], "missing": "middle"}  # rows of the third label are left out
COUNT: dict[str, Any] = {"range": [0, 30], "measure": "count"}


def files(folder: Path, target: str, label: dict[str, Any], **beside: Any) -> tuple[Path, Path]:
    """The table, and a schema of it with this target."""
    FRAME.to_csv(table := folder / "stays.csv", index=False)
    columns = [{"name": "age", "type": "number", "range": [20, 80]}, {"name": target, "type": "label", **label}]
    columns += [{"name": name, "type": "ignore"} for name in ("visits", "ward") if name != target]
    schema = folder / "stays.schema.json"
    schema.write_text(json.dumps({"name": "stays", "target": target, "columns": columns, **beside}))
    return table, schema


def trained(table: Path, schema: Path, *options: object) -> tuple[str, Any, pd.Series]:
    """What the command says, the model, and its predictions."""
    model, answers = schema.with_name("m.json"), schema.with_name("a.csv")
    said = dperm("train", table, "--schema", schema, "--epsilon", 2, "--public-size", N, *options, "-o", model).stdout
    dperm("predict", model, table, "-o", answers)
    return said, model_from_json(model.read_text())[0], pd.read_csv(answers)["prediction"]


@pytest.mark.parametrize(
    ("target", "label", "beside", "kind", "said"),
    [
        ("ward", {"unknown": "ignore"}, TWO, "DPLogisticRegression", "declares 2 labels as target"),
        ("ward", {}, {"classes": ["a", "b", "c"]}, "DPLogisticRegression", "declares 3 labels as target"),
        ("visits", AMOUNT, {}, "DPRidge", "declares amounts as target"),
        ("visits", COUNT, {}, "DPRidge", "declares counts as target; --model poisson models the logarithm"),
    ],
)
def test_the_schema_chooses_the_model(
    tmp_path: Path, target: str, label: dict[str, Any], beside: dict[str, Any], kind: str, said: str
) -> None:
    told, model, answers = trained(*files(tmp_path, target, label, **beside))
    assert type(model).__name__ == kind and told.count("--model names another.") == 1
    assert said in told
    if not beside:
        assert np.corrcoef(answers, VISITS)[0, 1] > 0.5 and abs(answers.mean() - VISITS.mean()) < 0.5


def test_what_is_asked_for_is_not_spoken_of_as_chosen(tmp_path: Path) -> None:
    told, model, _ = trained(*files(tmp_path, "ward", {}, classes=["a", "b", "c"]), "--model", "svm", "--mechanism", "output")
    assert "names another" not in told and type(model).__name__ == "DPLinearSVC"


def test_the_rows_do_not_choose(tmp_path: Path) -> None:
    """A target of two whole numbers is a number where the schema says so, and of amounts alone labels where it says that."""
    FRAME.assign(visits=AGE % 2).to_csv(table := tmp_path / "t.csv", index=False)
    _, schema = files(tmp_path, "visits", {"range": [0, 1]})
    done = jobs.train(jobs.TrainingOptions(source=str(table), schema=schema, epsilon=2.0, output=tmp_path / "one.json"))
    assert type(done.model).__name__ == "DPRidge" and "amounts" in done.job.model_chosen()
    np.savez(array := tmp_path / "x.npz", X=RNG.random((200, 2)), y=RNG.random(200))
    with pytest.raises(ValueError, match="Expected labels as target for --model logistic, got numbers; use --model ridge"):
        jobs.train(jobs.TrainingOptions(source=str(array), accept_proposed=True, output=tmp_path / "two.json"))


@pytest.mark.parametrize("label", [AMOUNT, COUNT])
def test_quantiles_are_asked_for(tmp_path: Path, label: dict[str, Any]) -> None:
    _, model, answers = trained(*files(tmp_path, "visits", label), "--model", "quantile", "--quantile", 0.9)
    assert model.quantile == 0.9 and 0.75 < np.mean(answers >= VISITS) < 0.98
    done = dperm("evaluate", tmp_path / "m.json", tmp_path / "stays.csv", "--test-data", "private", "--json").stdout
    scores = json.loads(done)["scores"]
    assert scores["share at or below"] == pytest.approx(np.mean(answers >= VISITS), abs=1e-3) and "mean:" not in done
    _, model, middle = trained(*files(tmp_path, "visits", label), "--model", "quantile")
    assert model.quantile == 0.5 and middle.mean() < answers.mean() - 1


@pytest.mark.parametrize("label", [AMOUNT, COUNT])
def test_counts_are_asked_for(tmp_path: Path, label: dict[str, Any]) -> None:
    """Whoever asks for a model of counts declares that the target is one: the model's schema says so from then on."""
    table, schema = files(tmp_path, "visits", label)
    said, model, answers = trained(table, schema, "--model", "poisson", "--curves", 0)
    assert "up to about the square root of their range's end" in said
    assert type(model) is DPPoissonRegressor and model.target_range == [0, 30]
    assert (answers > 0).all()
    assert np.corrcoef(answers, VISITS)[0, 1] > 0.4 and abs(answers.mean() - VISITS.mean()) < 1.5
    kept = model_from_json((tmp_path / "m.json").read_text())[1]["schema"]
    assert {"name": "visits", "type": "label", **COUNT} in kept["columns"]
    told = dperm("evaluate", tmp_path / "m.json", table, "--test-data", "private", "--json").stdout
    assert 0.1 < json.loads(told)["scores"]["R²"] < 1.0, told
    dperm("effects", tmp_path / "m.json", "-o", tmp_path / "e.html")
    page = (tmp_path / "e.html").read_text()
    assert "×2 doubles the expected visits" in page
    dperm("card", tmp_path / "m.json", "-o", tmp_path / "c.html")


@pytest.mark.parametrize(
    ("target", "label", "beside", "options", "said"),
    [
        (
            "visits",
            {"range": [0, 30], "measure": "amount"},
            {},
            ["--model", "poisson"],
            'declares the target \'visits\' as an amount: write "measure": "count" in its row',
        ),
        ("visits", {"range": [-5, 30]}, {}, ["--model", "poisson"], "counts from 0 or above in the target 'visits'"),
        ("ward", {}, {"classes": ["a", "b", "c"]}, ["--model", "poisson"], "Expected numbers as target for --model poisson"),
        ("ward", {}, {"classes": ["a", "b", "c"]}, ["--model", "quantile"], "Expected numbers as target for --model quantile"),
        ("visits", AMOUNT, {}, ["--model", "logistic"], "Expected labels as target for --model logistic"),
        ("visits", AMOUNT, {}, ["--quantile", "0.9"], "Expected --model quantile with --quantile, got --model ridge"),
        ("visits", AMOUNT, {}, ["--model", "quantile", "--quantile", "1.5"], "Expected --quantile in (0, 1)"),
        ("visits", COUNT, {}, ["--model", "poisson", "--data-norm", "0"], "data_norm > 0"),
        ("visits", AMOUNT, {}, ["--model", "tree"], "Expected --model to be one of"),
    ],
)
def test_what_does_not_fit_the_target_is_refused_before_the_charge(
    tmp_path: Path, target: str, label: dict[str, Any], beside: dict[str, Any], options: list[str], said: str
) -> None:
    table, schema = files(tmp_path, target, label, **beside)
    done = dperm("train", table, "--schema", schema, *options, "-o", tmp_path / "m.json", expect=1)
    assert said in done.stderr and SpendLog.current().charges() == []


def test_a_model_of_counts_is_not_given_amounts() -> None:
    schema = Schema("t", "visits", (Column("age", "number", (20, 80)), Column("visits", "label", (0, 30))))
    with pytest.raises(ValueError, match=r"Expected counts as target for DPPoissonRegressor.*measured_as"):
        Dataset.of(FRAME, schema).fit(DPPoissonRegressor(target_range=(0, 30)))
    assert SpendLog.current().charges() == []


def test_a_model_in_the_targets_units_is_not_scaled_again(tmp_path: Path) -> None:
    """From Python a model of amounts may state the schema's range; commands, which scale answers back, refuse its file."""
    table, path = files(tmp_path, "visits", AMOUNT)
    schema = Schema.load(path)
    for estimator, code in ((DPRidge(epsilon=2.0, target_range=(0, 30)), 1), (DPRidge(epsilon=2.0), 0)):
        model = Dataset.of(FRAME, schema).fit(estimator)
        (kept := tmp_path / f"{code}.json").write_text(model_to_json(model, {"schema": json.loads(schema.to_json())}))
        done = dperm("predict", kept, table, "-o", tmp_path / f"{code}.csv", expect=code)
        assert ("answers in the target's own units" in done.stderr) == bool(code)
    assert abs(pd.read_csv(tmp_path / "0.csv")["prediction"].mean() - VISITS.mean()) < 0.5


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one"])
def test_what_so_few_records_will_come_to_is_said_before_the_charge(tmp_path: Path, relation: str) -> None:
    """Where the number of records is public, by it."""
    table, schema = files(tmp_path, "visits", AMOUNT)
    FRAME[:40].to_csv(table, index=False)
    asked = ["train", table, "--schema", schema, "--epsilon", 0.1, "--relation", relation, "--dry-run"]
    told = dperm(*asked, *(["--public-size", 40] if relation == "add_or_remove_one" else [])).stdout
    assert "So few records (40) at this epsilon let nothing be learnt but the mean" in " ".join(told.split())
    assert "nothing be learnt" not in dperm(*asked[:4], "--epsilon", 8, *asked[6:], "--public-size", 40).stdout
    assert SpendLog.current().charges() == []
