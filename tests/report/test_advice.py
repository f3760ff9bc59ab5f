"""Comparisons that are honest: scores that suit the target, the model that `dperm train` makes, copies, persons, and advice."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from rich.console import Console
from sklearn.linear_model import LinearRegression
from sklearn.metrics import log_loss, mean_absolute_error, precision_score, recall_score, roc_auc_score

from dperm import data
from dperm.data import Dataset, Schema
from dperm.jobs.comparing import usual_estimator
from dperm.jobs.training import TrainingOptions
from dperm.report import Study, StudyResult, run_study
from dperm.report.advice import advise
from dperm.report.judging import judge_classes
from dperm.report.leaderboard import amount_text
from dperm.report.page import comparison_page
from dperm.report.references import straightened
from dperm.report.study import Cell
from dperm.report.study_scores import WITHOUT_COPIES, Answers, score_classes
from dperm.report.study_splits import numbers_of_copies, split
from dperm.report.summary import result_table

STUDY = Study(epsilons=(1.0, 10.0), mechanisms=("auto",), repeats=3, seed=0, boosting=False)


def table(rows: int = 2000, seed: int = 20) -> pd.DataFrame:
    """Ages, a habit and an illness of one in twenty that goes by age, and rents in euros. The seed differs from
    a study's: its splits would go by the same draws."""
    rng = np.random.default_rng(seed)
    age, smokes = rng.uniform(20, 90, rows).round(3), rng.random(rows) < 0.3
    ill = rng.random(rows) < 1 / (1 + np.exp(-(-9.5 + 0.095 * age + 0.5 * smokes)))
    rent = 300 + 12 * age + 150 * smokes + rng.normal(0, 80, rows)
    return pd.DataFrame(
        {
            "age": age,
            "smokes": np.where(smokes, "yes", "no"),
            "ill": np.where(ill, "yes", "no"),
            "rent": rent.clip(0, 2000).round(2),
            "person": np.arange(rows) // 4,
        }
    )


def dataset(frame: pd.DataFrame, target: str, **more: Any) -> Dataset:
    columns = [
        {"name": "age", "type": "number", "range": [20, 90]},
        {"name": "smokes", "type": "category", "categories": ["no", "yes"]},
        {"name": target, "type": "label"},
    ]
    kind: dict[str, Any] = {"target_range": [0, 2000]} if target == "rent" else {"classes": ["no", "yes"]}
    schema = Schema.from_dict({"name": "people", "target": target, "columns": columns, "curves": 8, **kind, **more})
    return Dataset.of(frame, schema)


def compared(records: Dataset, study: Study = STUDY, target: str = "") -> StudyResult:
    return run_study(records, study, default=partial(usual_estimator, study), target=target)


def printed(result: StudyResult) -> str:
    buffer = StringIO()
    result_table(result, Console(file=buffer, width=80))
    assert max(map(len, buffer.getvalue().splitlines())) <= 80
    return " ".join(buffer.getvalue().split())


@pytest.fixture(scope="module")
def rare() -> StudyResult:
    return compared(dataset(table(), "ill"), target="ill")


def test_a_rare_class_is_judged_by_what_finds_it(rare: StudyResult) -> None:
    """Accuracy is that of a model that says no to everybody, which is what `predict` does; probabilities rank all the same."""
    assert rare.metric == "AUC" and rare.rarer == "yes"
    assert 0.03 < rare.share < 0.08
    cell = rare.cell("auto", 10.0)
    assert cell.measured("accuracy") == pytest.approx(rare.cell("constant", None).measured("accuracy"), abs=0.01)
    assert cell.mean > 0.75 and rare.cell("constant", None).mean == 0.5
    assert cell.measured("recall") > 0.5 > 0.1 > cell.measured("recall at 0.5")
    assert cell.measured("balanced accuracy") > 0.65
    assert cell.measured("log loss") < 0.3 and cell.measured("calibration error") < 0.1
    advice = advise(rare)
    assert advice.mechanism == "auto" and advice.epsilon in STUDY.epsilons
    assert advice.sentence.startswith(f"Use what `dperm train` runs by itself, at ε = {advice.epsilon:g}: expect AUC 0.")
    assert "0.50 is guessing" in advice.sentence
    found = next(remark for remark in advice.remarks if "it finds" in remark)
    assert re.match(r"Of 100 records with 'yes' it finds \d+, and of 100 that it flags, \d+ are", found)
    assert any("Answers of `dperm predict` go by 0.5" in remark and "--class-weight" in remark for remark in advice.remarks)


def test_the_page_begins_with_what_to_do_and_ends_with_methods(rare: StudyResult) -> None:
    page, shown = comparison_page([rare]), printed(rare)
    order = ["For the data holder only", 'class="advice"', "AUC on held-out", "All scores at", "<details>", "<h2>Methods"]
    places = [page.index(words) for words in order]
    assert places == sorted(places)
    folded = page[page.index("<details>") :]
    assert "Training loss" in folded and "Noise in units of sensitivity" in folded
    assert "Use what <code>dperm train</code> runs by itself" in page
    assert shown.index("Use what `dperm train` runs") < shown.index("AUC on held-out records") < shown.index("All scores at")


@pytest.mark.fast_cases("ill")
@pytest.mark.parametrize("target", ["ill", "rent"])
def test_a_useless_target_is_said_to_be_one(target: str) -> None:
    frame = table(600)
    frame[target] = np.random.default_rng(1).permutation(frame[target])
    study = replace(STUDY, mechanisms=("auto", "gradient-full"), epsilons=(0.1, 1.0))
    result = compared(dataset(frame, target), study, target=target)
    advice, page, shown = advise(result), comparison_page([result]), printed(result)
    assert advice.mechanism is None and advice.epsilon is None
    assert advice.sentence.startswith(f"Do not use a private model of these records for {target!r}")
    assert "is clearly better than " + ("guessing" if target == "ill" else "predicting the mean") in advice.sentence
    assert "nothing here shows that these columns say anything of it" in advice.sentence
    assert "Do not use a private model" in page and "Do not use a private model" in shown
    if target == "rent":
        assert "worse than the mean" in page and "< 0: worse than the mean" in shown
        assert not re.search(r"[-−]\d+\.\d", re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL).replace("0–", ""))


def test_something_to_learn_that_privacy_hides_is_told_from_nothing_to_learn() -> None:
    result = compared(dataset(table(300), "rent"), replace(STUDY, epsilons=(0.01,)), target="rent")
    advice = advise(result)
    assert advice.mechanism is None
    assert "there is something to learn, but not at these ε from 300 records" in advice.sentence


def test_regressions_are_judged_in_the_units_of_their_target() -> None:
    records = dataset(table(), "rent")
    result = compared(records, target="rent")
    assert result.metric == "R²"
    plain = result.cell("non-private", None)
    errors = []
    for repeat in range(STUDY.repeats):
        train, test = split(records, STUDY.test_share, STUDY.relation, 0, repeat)
        model = LinearRegression().fit(records.features[train], records.targets[train])
        errors.append(mean_absolute_error(records.targets[test], model.predict(records.features[test])))
    assert plain.measured("mean absolute error") == pytest.approx(np.mean(errors), rel=0.01)  # euros
    assert 50 < plain.measured("mean absolute error") < plain.measured("root mean squared error") < 110
    constant = result.cell("constant", None)
    assert constant.measured("mean absolute error") > 150 and abs(constant.mean) < 0.05
    sentence = advise(result).sentence
    assert "expect predictions of 'rent' that are off by " in sentence and " on average, where the mean is off by 2" in sentence
    assert "in the units of “rent”" in comparison_page([result])


def test_copies_across_the_split_are_found_and_said() -> None:
    frame = table(500)
    frame = pd.concat([frame, frame, table(500, seed=21)], ignore_index=True)
    study = replace(STUDY, boosting=True)
    result = compared(dataset(frame, "rent"), study)
    # a held-out row of the two thirds that are double has its copy among the training rows in 80 % of splits
    assert result.copied == pytest.approx(0.8 * 2 / 3, abs=0.06)
    boosted, linear = result.cell("boosting", None), result.cell("non-private", None)
    assert boosted.mean - boosted.measured(WITHOUT_COPIES) > 0.01  # it remembers
    assert abs(linear.mean - linear.measured(WITHOUT_COPIES)) < 0.005
    (said,) = [remark for remark in advise(result).remarks if "have a copy among the training records" in remark]
    assert "Gradient boosting, without privacy 0." in said and "declare a unit in the schema" in said
    assert "a linear model without privacy" in advise(result).sentence  # and not what remembers
    alone = compared(dataset(table(500), "rent"), replace(study, boosting=False))
    assert alone.copied == 0 and not any("copy" in remark for remark in advise(alone).remarks)


def test_rows_alike_have_one_number_whatever_holds_them() -> None:
    rows = np.array([[0.0, 1.0], [2.0, 0.0], [-0.0, 1.0], [0.0, 1.0], [2.0, 1e-300]])
    targets = np.array(["a", "b", "a", "b", "b"], dtype=object)
    sparse = sp.csr_array(rows)
    sparse.data[0] = 1.0
    for features in (rows, sparse, np.asfortranarray(rows)):
        records = Dataset("five", features, targets, ("x", "y"), ("a", "b"), None)
        numbers = numbers_of_copies(records)
        assert numbers is not None and numbers.tolist() == [0, 1, 0, 2, 3]
    assert numbers_of_copies(Dataset("four", rows[1:], targets[1:], ("x", "y"), ("a", "b"), None)) is None


def test_persons_are_on_one_side_of_a_split_and_the_page_says_so() -> None:
    records = dataset(table(800), "rent", unit="person", max_rows_per_unit=4)
    for repeat in range(3):
        train, test = split(records, 0.2, STUDY.relation, 7, repeat)
        assert records.groups is not None and not set(records.groups[train]) & set(records.groups[test])
        assert len(train) + len(test) == 800
    result = compared(records)
    assert "Splits are by person: nobody's rows are on both sides." in advise(result).remarks
    assert "rows of other persons are held out" in comparison_page([result])


@pytest.mark.parametrize("name", ["ill", "rent", "iris"])
def test_the_default_is_the_model_that_train_makes(name: str) -> None:
    """The same estimator with the same settings; and with the same noise the same model, to the last bit."""
    records = data.load("iris") if name == "iris" else dataset(table(600), name)
    asked = TrainingOptions(source="-", epsilon=2.0, model="ridge" if name == "rent" else "logistic")
    usual = usual_estimator(STUDY, records, 2.0)
    assert usual.get_params() == asked.kind_for(None).estimator(records, asked).get_params()
    study = replace(STUDY, epsilons=(2.0,), repeats=1)
    cell = compared(records, study).cell("auto", 2.0)
    train, test = split(records, study.test_share, study.relation, 0, 0)
    part = replace(records, features=records.features[train], targets=records.targets[train], places=None)
    model = part.fit(usual.set_params(random_state="0/auto/2.0/0"))
    if name == "rent":
        answers = records.target_range.restored(model.predict(records.features[test]))
        assert cell.measured("mean absolute error") == mean_absolute_error(records.targets[test], answers)
    else:
        chances = model.predict_proba(records.features[test])
        assert cell.measured("log loss") == pytest.approx(
            log_loss(records.targets[test], chances, labels=model.classes_), abs=1e-12
        )


def test_the_default_needs_its_estimator() -> None:
    with pytest.raises(ValueError, match="Expected default= for the mechanism 'auto'"):
        run_study(data.load("iris"), STUDY)


def test_what_the_default_runs_is_not_run_twice() -> None:
    study = replace(STUDY, epsilons=(1.0,), repeats=1, mechanisms=("auto", "output", "objective-sharp"))
    records = replace(data.load("iris"), classes=("setosa", "versicolor"))
    two = np.isin(records.targets, records.classes)
    result = compared(replace(records, features=records.features[two], targets=records.targets[two], neighbours=()), study)
    assert result.keys == ["auto", "output"]
    assert any("objective, sharp" not in note and "It is what the default runs here." in note for note in result.notes)


@pytest.mark.parametrize("classes", [2, 4])
def test_scores_are_those_of_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(3)
    truth = rng.integers(classes, size=300)
    chances = rng.dirichlet(np.ones(classes), 300) * 0.6 + 0.4 * np.eye(classes)[truth]
    found = score_classes(truth, Answers(chances.argmax(axis=1), chances), 0, 0.55)
    judged = judge_classes(truth, chances.argmax(axis=1), chances, list(range(classes)))
    same = ("AUC", "log loss", "accuracy") if classes == 2 else ("AUC", "log loss", "accuracy", "balanced accuracy")
    for name in same:
        assert found[name] == pytest.approx(judged.scores[name], abs=1e-12)
    if classes == 2:
        flagged = chances[:, 0] > 0.55
        assert found["recall"] == recall_score(truth == 0, flagged)
        assert found["precision"] == precision_score(truth == 0, flagged)
        assert found["balanced accuracy"] == pytest.approx((found["recall"] + recall_score(truth == 1, ~flagged)) / 2)
        assert found["AUC"] == pytest.approx(roc_auc_score(truth, chances[:, 1]))
    else:
        assert found["lowest recall"] == min(judged.recalls.values())


def test_what_a_split_does_not_define_is_left_out_of_means() -> None:
    chances = np.column_stack([np.full(8, 0.9), np.full(8, 0.1)])
    given = Answers(chances.argmax(axis=1), chances)
    found = score_classes(np.zeros(8, dtype=np.intp), given, 1, 0.5)  # nobody of the rarer class is held out
    assert all(math.isnan(found[name]) for name in ("AUC", "recall", "precision"))
    nothing = np.zeros(3)
    cell = Cell("auto", 1.0, np.array([0.8, math.nan, 0.9]), nothing, nothing, nothing)
    assert cell.mean == pytest.approx(0.85) and cell.spread > 0


def test_trees_see_the_number_that_a_curve_was_made_of() -> None:
    frame = table(200)
    records = dataset(frame, "rent")
    rows = straightened(records)
    assert records.features.shape == (200, 10) and rows.shape == (200, 3)  # a curve of eight knots and two categories
    assert np.array_equal(np.argsort(rows[:, 0], kind="stable"), np.argsort(frame["age"], kind="stable"))
    assert np.ptp(rows[:, 0] / rows[:, 0].max() - (1 + 7 * (frame["age"] - 20) / 70) / rows[:, 0].max() * rows[0, 0] / (
        1 + 7 * (frame["age"][0] - 20) / 70)) < 1e-5  # fmt: skip  # knots are evenly apart: a straight line of the number


@pytest.fixture
def made(rare: StudyResult) -> Callable[..., StudyResult]:
    """A result with these scores along ε, alike in all repeats but for a hundredth."""

    def result(without: float = 0.9, **rows: list[float]) -> StudyResult:
        wobble, nothing = np.array([-0.01, 0.0, 0.01]), np.zeros(3)
        cells = [
            *(Cell("non-private", None, without + wobble, nothing, nothing, nothing),),
            *(Cell("constant", None, np.full(3, 0.5), nothing, nothing, nothing),),
        ]
        epsilons = tuple(float(10**place) for place in range(len(next(iter(rows.values())))))
        for key, means in rows.items():
            for epsilon, mean in zip(epsilons, means, strict=True):
                cells.append(Cell(key.replace("_", "-"), epsilon, mean + wobble, nothing, nothing, nothing))
        return replace(rare, cells=tuple(cells), study=replace(STUDY, epsilons=epsilons))

    return result


def test_the_gain_of_more_epsilon_ends_where_little_is_left(made: Callable[..., StudyResult]) -> None:
    advice = advise(made(auto=[0.51, 0.65, 0.89, 0.90]))
    assert (advice.epsilon, advice.gain_ends) == (100.0, 100.0)
    assert "More ε gains little: AUC 0.90 at ε = 1000." in advice.sentence
    assert "At ε = 1 and below nothing shows that it is better than always giving the same answer." in advice.sentence
    advice = advise(made(auto=[0.65, 0.75, 0.80]))
    assert (advice.epsilon, advice.gain_ends) == (100.0, None) and "A larger ε would still gain." in advice.sentence
    advice = advise(made(auto=[0.89, 0.90]))
    assert advice.gain_ends == 1.0 and "A smaller ε than these may do as well." in advice.sentence
    advice = advise(made(auto=[0.6, 0.80, 0.89], without=0.9))
    assert (advice.epsilon, advice.gain_ends) == (100.0, 100.0) and "still gain" not in advice.sentence
    assert "At ε = 1 and below more than half of what there is to learn is lost." in advice.sentence


def test_another_mechanism_is_named_only_for_a_lead_that_is_clear_and_of_use(made: Callable[..., StudyResult]) -> None:
    assert advise(made(auto=[0.80, 0.90], output=[0.80, 0.91])).mechanism == "auto"  # a hundredth is not worth a setting
    advice = advise(made(auto=[0.70, 0.70], gradient_full=[0.80, 0.80]))
    assert advice.mechanism == "gradient-full"
    assert "(`dperm train --mechanism gradient --sampling full`)" in advice.sentence
    assert any("The default reaches AUC 0.70" in remark and "--public-size" in remark for remark in advice.remarks)
    claimed = advise(made(auto=[0.70, 0.70], m_ngp_published=[0.90, 0.90]))
    assert claimed.mechanism == "auto"
    assert advise(made(m_ngp_published=[0.90, 0.90])).sentence.startswith("Nothing can be advised")
    kifer = advise(made(auto=[0.70, 0.70], objective_kifer=[0.90, 0.90]))
    assert "mechanism=Objective(calibration='kifer')" in kifer.sentence
    rescued = advise(made(auto=[0.50, 0.51], output=[0.52, 0.80]))
    assert (rescued.mechanism, rescued.epsilon) == ("output", 10.0)  # the default is of no use, and something is
    hopeless = advise(made(auto=[0.50, 0.51], output=[0.50, 0.515]))
    assert hopeless.mechanism is None and "(AUC 0.52 at best)" in hopeless.sentence
    noisy = made(auto=[0.70], output=[0.80])
    cells = [replace(cell, scores=np.array([0.6, 0.8, 1.0])) if cell.mechanism == "output" else cell for cell in noisy.cells]
    assert advise(replace(noisy, cells=tuple(cells))).mechanism == "auto"  # its lead may be chance


def test_amounts_are_read_by_people() -> None:
    shown = [amount_text(value) for value in (3214.7, 0.012345, 1.5, 123456789.0, 2.0e-12, 0.0)]
    assert shown == ["3,210", "0.0123", "1.50", "123,000,000", "2e-12", "0"]


def test_names_of_others_steer_neither_page_nor_terminal() -> None:
    bad, other = "<script>`a`\x1b[31m", "b\u202e"
    rng = np.random.default_rng(4)
    rows = rng.random((60, 2)).astype(np.float32)
    labels = np.where(rows[:, 0] + 0.1 * rng.random(60) > 0.7, bad, other)
    study = replace(STUDY, epsilons=(50.0,), repeats=2)
    result = compared(Dataset("<b>`t`", rows, labels, ("p", "q"), (bad, other), None), study, target="<i>\x1b]0;t")
    for text in (comparison_page([result]), printed(result)):
        assert "\x1b" not in text and "\u202e" not in text
    page = comparison_page([result])
    assert not {"<script>`", "<script><", "<i>", "<b>"} & set(re.findall("<script>.|<[ib]>", page))
    assert "&lt;script&gt;" in page
    assert any("do not tell a lead from chance" in remark for remark in advise(result).remarks)
