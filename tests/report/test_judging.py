"""Scores beside scikit-learn's and by hand, and what stands out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, r2_score

from dperm.report.judging import judge_classes, judge_numbers

RNG = np.random.default_rng(0)


def test_classes() -> None:
    classes = ["a", "b", "c"]
    truth, answers = RNG.choice(classes, 500), RNG.choice(classes, 500)
    probabilities = RNG.dirichlet([1, 1, 1], 500)
    found = judge_classes(truth, answers, probabilities, classes)
    assert found.scores["accuracy"] == pytest.approx(np.mean(truth == answers))
    assert found.scores["balanced accuracy"] == pytest.approx(balanced_accuracy_score(truth, answers))
    assert found.scores["log loss"] == pytest.approx(
        -np.log(probabilities[np.arange(500), np.searchsorted(classes, truth)]).mean()
    )
    assert abs(found.scores["AUC"] - 0.5) < 0.1
    assert found.recalls["b"] == pytest.approx(np.mean(answers[truth == "b"] == "b"))


def test_calibration_is_zero_where_confidence_is_the_chance_to_be_right() -> None:
    confidence = RNG.uniform(0.5, 1.0, 200_000)
    answers = RNG.choice([0, 1], 200_000)
    truth = np.where(RNG.random(200_000) < confidence, answers, 1 - answers)
    likely = np.where(answers == 1, confidence, 1 - confidence)
    honest = judge_classes(truth, answers, np.column_stack([1 - likely, likely]), [0, 1])
    assert honest.scores["calibration error"] < 0.01
    bold = np.column_stack([answers == 0, answers == 1]) * 0.98 + 0.01
    assert judge_classes(truth, answers, bold, [0, 1]).scores["calibration error"] == pytest.approx(0.24, abs=0.01)


def test_what_stands_out_is_said() -> None:
    truth = np.array(["no"] * 90 + ["yes"] * 10)
    found = judge_classes(truth, np.array(["yes"] * 100), None, ["no", "yes"])
    assert len(found.warnings) == 3
    assert "10.0 against 90.0 %" in found.warnings[0]
    assert "yes of every record" in found.warnings[1]
    assert found.warnings[2].startswith("It recognises no 'no': class_weight (--class-weight)")
    meant = judge_classes(truth, np.array(["yes"] * 100), None, ["no", "yes"], weighted=True).warnings
    assert len(meant) == 2 and meant[0].endswith("judge it by its recalls and AUC.")
    alone = judge_classes(np.array(["no"] * 5), np.array(["no"] * 5), np.tile([0.9, 0.1], (5, 1)), ["no", "yes"])
    assert not alone.warnings
    assert alone.to_dict()["scores"]["AUC"] is None
    assert alone.to_dict()["recalls"]["yes"] is None


def test_numbers() -> None:
    truth = RNG.normal(size=100)
    answers = truth + 0.1 * RNG.normal(size=100)
    found = judge_numbers(truth, answers)
    assert found.scores["R²"] == pytest.approx(r2_score(truth, answers)) and not found.warnings
    assert judge_numbers(truth, -truth).warnings == ("Worse than always saying the mean: R² is below 0.",)
    assert np.isnan(judge_numbers(np.ones(5), np.ones(5)).scores["R²"])


def test_quantiles_are_judged_by_their_own_loss() -> None:
    """What nine in ten stay below is far from the mean: that is no fault of it."""
    rng = np.random.default_rng(0)
    at = rng.random(4000) / 2
    truth = at + rng.exponential(0.2, 4000)
    high = at - 0.2 * np.log(0.1)
    found = judge_numbers(truth, high, quantile=0.9)
    assert found.warnings == () and found.scores["R²"] < 0
    assert next(iter(found.scores)) == "pinball loss"
    assert found.scores["share at or below"] == pytest.approx(0.9, abs=0.02)
    assert found.scores["pinball loss"] == pytest.approx(0.2 * 0.1 * -np.log(0.1), rel=0.1)  # of an exponential at its quantile
    assert found.scores["pinball loss"] < found.scores["of the quantile of all, pinball"]
    (warning,) = judge_numbers(truth, truth - 1, quantile=0.9).warnings
    assert warning.startswith("Worse than always saying the records' 0.9 quantile: 0.9 against ")
    assert "pinball loss" not in judge_numbers(truth, high).scores
