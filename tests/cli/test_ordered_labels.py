"""Labels with an order, by the schema: `train` learns the order, `evaluate` and `compare` judge by ranks, the card says it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dperm.data import Column, Dataset, Schema
from dperm.data.schema.schema import usual_knots
from dperm.estimators import DPOrdinalClassifier, model_from_json
from dperm.report.judging import judge_classes
from dperm.report.released import release_class_scores
from dperm.report.study_fits import Shared, answers_of
from dperm.report.study_scores import measures_of, median_class, score_ranks
from dperm.report.study_settings import Study
from helpers.commands import dperm

ORDER = ["none", "mild", "severe", "worst"]
RNG = np.random.default_rng(0)
N = 2000
AGE = RNG.uniform(0, 100, N).round(2)
RANKS = np.digitize(AGE / 12 - 4 + RNG.logistic(size=N), [-1.5, 0.5, 3])
COLUMNS = (Column("age", "number", (0.0, 100.0)), Column("pain", "label", measure="ordinal"))
SCHEMA = Schema("pain", "pain", COLUMNS, tuple(ORDER), curves=5)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ordered")
    pd.DataFrame({"age": AGE, "pain": np.array(ORDER)[RANKS]}).to_csv(folder / "t.csv", index=False)
    (folder / "s.json").write_text(SCHEMA.to_json())
    dperm("train", folder / "t.csv", "--schema", folder / "s.json", "--epsilon", "4", "-o", folder / "m.json")
    return folder


def test_the_schema_chooses_the_model_and_its_order(table: Path) -> None:
    again = dperm("train", table / "t.csv", "--schema", table / "s.json", "-o", table / "n.json").stdout
    assert "ordinal regression (cumulative logits), for the schema declares 4 labels with an order" in again
    assert 'Order of "pain": none < mild < severe < worst. Is that so' in again
    model, _ = model_from_json((table / "m.json").read_text())
    assert type(model).__name__ == "DPOrdinalClassifier" and list(model.classes_) == ORDER
    answers = dperm("predict", table / "m.json", table / "t.csv", "-o", table / "a.csv").stdout
    assert "Answers are the median class" in answers
    unordered = table / "u.json"
    unordered.write_text(
        json.dumps(json.loads(SCHEMA.to_json()) | {"columns": [vars_of(COLUMNS[0]), {"name": "pain", "type": "label"}]})
    )
    train = ("train", table / "t.csv", "--schema", unordered, "-o", table / "v.json")
    assert '"measure": "ordinal"' in dperm(*train, "--model", "ordinal", expect=1).stderr
    told = dperm(*train).stdout
    assert "logistic regression" in told and "Order of" not in told
    assert "median class" not in dperm("predict", table / "v.json", table / "t.csv", "-o", table / "b.csv").stdout


def test_propose_says_how_an_order_is_stated_and_confirm_asks_for_it(table: Path) -> None:
    draft = table / "draft.json"
    told = dperm("data", "propose", table / "t.csv", "--target", "pain", "-o", draft).stdout
    assert "Have the labels of pain an order" in told and '"measure": "ordinal"' in told
    stated = json.loads(draft.read_text()) | {"classes": ORDER}
    next(column for column in stated["columns"] if column["name"] == "pain")["measure"] = "ordinal"
    draft.write_text(json.dumps(stated))
    assert 'Order of "pain": none < mild < severe < worst. Is that so' in dperm("data", "confirm", draft, "--yes").stdout


def vars_of(column: Column) -> dict[str, Any]:
    return {"name": column.name, "type": column.type, "range": list(column.range or ())}


def test_it_is_judged_by_ranks(table: Path) -> None:
    evaluate = ("evaluate", table / "m.json", table / "t.csv", "--test-data")
    exact = json.loads(dperm(*evaluate, "private", "--json").stdout)["scores"]
    model, _ = model_from_json((table / "m.json").read_text())
    answers = model.predict(Dataset.of(pd.read_csv(table / "t.csv"), SCHEMA).features)
    off = np.abs(np.array([ORDER.index(label) for label in answers]) - RANKS).mean()
    assert exact["mean error in ranks"] == pytest.approx(off)
    assert exact["mean error in ranks"] < 0.6 * exact["mean error in ranks, of the middle rank"]
    scores = table / "scores.json"
    (table / "others.csv").write_bytes((table / "t.csv").read_bytes())
    released = ("--test-data", "released", "--epsilon", "2", "-o", scores)
    told = dperm("evaluate", table / "m.json", table / "others.csv", *released)
    assert "very table" not in told.stderr and "± " in told.stdout.split("records. Half-widths")[0]
    noisy = json.loads(scores.read_text())
    for name in ("mean error in ranks", "mean error in ranks, of the middle rank"):
        assert noisy["scores"][name] == pytest.approx(exact[name], abs=3 * noisy["half_widths"][name])
    dperm("card", table / "m.json", "--scores", scores, "-o", table / "card.html")
    page = (table / "card.html").read_text()
    assert "Better than always giving the middle rank. It is off by" in page and "none, mild, severe, worst" in page
    assert not noisy["trained_on"] and page.count("No test record was trained on.") >= 2  # those who sign state it
    assert re.search(r"From about [\d,]+ ± \d+ test records", page)


def test_scores_of_the_training_table_are_no_praise(table: Path) -> None:
    scores, card, model = table / "own.json", table / "own.html", table / "own_model.json"
    dperm("train", table / "t.csv", "--schema", table / "s.json", "-o", model)
    released = ("--test-data", "released", "--epsilon", "2", "-o", scores)
    told = dperm("evaluate", model, table / "t.csv", *released)
    assert "trained on this very table" in told.stderr
    found = json.loads(scores.read_text())
    assert found["trained_on"] is True and "No test record was trained on" not in scores.read_text()
    dperm("card", model, "--scores", scores, "-o", card)
    page = card.read_text()
    assert page.count("Not known for new records: the scores are of the very table") == 2
    assert "Better than always" not in page and "training records, with noise" in page


def test_effects_are_those_of_the_score(table: Path) -> None:
    effects = ("effects", table / "m.json", "-o", table / "e.html", "--json")
    up, down = (json.loads(dperm(*effects, *more).stdout)["columns"][0]["heights"] for more in ((), ("--label", "none")))
    assert up[-1] > up[0] + 1 and np.allclose(up, np.negative(down))
    assert "an end of the order, none or worst" in dperm(*effects, "--label", "mild", expect=1).stderr


def test_compare_puts_the_ordinal_model_first_and_judges_by_ranks(table: Path) -> None:
    page = table / "r.html"
    told = dperm(
        "compare", table / "t.csv", "--schema", table / "s.json", "--mechanisms", "auto,output", "--epsilons", "1",
        "--repeats", "2", "--jobs", "1", "--no-boosting", "-o", page,
    ).stdout  # fmt: skip
    assert "rank error saved" in told and "always the middle rank" in " ".join(told.split())
    (default,) = [line for line in told.splitlines() if line.strip().startswith("Default") and "±" in line]
    assert float(default.split()[1].partition("±")[0]) > 0.4


def test_compare_judges_what_predict_answers() -> None:
    """Its accuracy and error in ranks are those of the median class, which the fitted model answers and `evaluate` judges."""
    records = Dataset.of(pd.DataFrame({"age": AGE, "pain": np.array(ORDER)[RANKS]}), SCHEMA)
    model = records.fit(DPOrdinalClassifier(epsilon=4.0, classes=ORDER, random_state=1))
    objective, everybody = model.objective_, np.arange(N)
    task = replace(model.task(records.features.shape[1]), classes=len(ORDER), ordered=True)
    shared = Shared(records, Study(epsilons=(4.0,), mechanisms=("auto",), repeats=1), task, {}, 0, "", 0, None, {})
    held = objective.records(records.features, shared.learnt_by(objective))
    theta = np.append(model.coef_[0], model.intercept_[0] / objective.intercept_scale)
    found = shared.scores(answers_of(shared, objective, held, theta), everybody, everybody)
    said, labels = model.predict(records.features), np.asarray(records.targets)
    judged = judge_classes(labels, said, None, ORDER, ordered=True).scores
    likeliest = np.array(ORDER)[model.predict_proba(records.features).argmax(axis=1)]
    assert np.mean(likeliest != said) > 0.02
    assert found["accuracy"] == pytest.approx(judged["accuracy"], abs=1e-12)
    assert found["mean error in ranks"] == pytest.approx(judged["mean error in ranks"], abs=1e-12)


def test_an_order_is_of_labels_alone() -> None:
    for columns, classes in (((COLUMNS[0], Column("pain", "label", (0.0, 9.0), measure="ordinal")), ()),
                             ((COLUMNS[0], Column("pain", "label", measure="count")), tuple(ORDER))):  # fmt: skip
        with pytest.raises(ValueError, match="measure"):
            Schema("pain", "pain", columns, classes)
    assert SCHEMA.ordered and not Schema("p", "pain", (COLUMNS[0], Column("pain", "label")), tuple(ORDER)).ordered
    assert Schema.from_dict(json.loads(SCHEMA.to_json())).ordered
    assert usual_knots(SCHEMA, 1.0, 1e-5, 10_000) >= usual_knots(SCHEMA.measured_as("ordinal"), 0.1, 1e-5, 1000)


def test_errors_in_ranks_follow_the_order_and_not_the_alphabet() -> None:
    truth, answers = np.array(["none", "mild", "worst", "worst"]), np.array(["none", "severe", "none", "worst"])
    chances = np.eye(4)[[ORDER.index(label) for label in answers]]
    found = judge_classes(truth, answers, chances, ORDER, ordered=True)
    assert found.scores["mean error in ranks"] == (0 + 1 + 3 + 0) / 4
    assert found.scores["mean error in ranks, of the middle rank"] == (1 + 0 + 2 + 2) / 4
    assert "mean error in ranks" not in judge_classes(truth, answers, chances, ORDER).scores
    far = judge_classes(truth, np.array(["worst", "worst", "none", "none"]), None, ORDER, ordered=True)
    assert any("Further off than always saying the middle rank" in warning for warning in far.warnings)
    measured = score_ranks(np.array([0, 1, 3, 3]), median_class(chances))
    assert measured == {"mean error in ranks": 1.0, "rank error saved": 1 - 1.0 / 1.25}
    assert [each.name for each in measures_of(4, True)][:2] == ["rank error saved", "mean error in ranks"]


def test_released_errors_in_ranks_are_within_their_intervals() -> None:
    truth = RNG.integers(0, 4, 4000)
    answers = np.clip(truth + RNG.integers(-1, 2, 4000), 0, 3)
    exact = np.abs(truth - answers).mean()
    held = 0
    for seed in range(8):
        found = release_class_scores(truth, answers, None, ORDER, ordered=True, epsilon=0.5, random_state=seed)
        held += abs(found.whole.scores["mean error in ranks"] - exact) <= found.widths["mean error in ranks"]
    assert held >= 6
