"""Choosing ε by looking: from estimators, from curves, on a page, on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from dperm.estimators import DPLinearSVC, DPLogisticRegression
from dperm.mechanisms import Objective
from dperm.release import SpendLog
from dperm.report.choosing import choosing_page, levels
from dperm.utility import EpsilonCurve, UtilityCurve, UtilityPath


def table(size: int = 4000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(size, 4)) / 3
    return rows, np.where(rows[:, 0] - rows[:, 1] + 0.2 * rng.normal(size=size) > 0, "yes", "no")


def model(**settings: Any) -> DPLogisticRegression:
    return DPLogisticRegression(**({"classes": ["no", "yes"], "delta": 1e-6} | settings))


def halfway(curve: UtilityCurve, metric: Any) -> float:
    """A target that some ε of the curve reaches, and some do not."""
    mean = curve.band(metric)[0]
    return float(mean[0] + mean[-1]) / 2


@pytest.fixture(scope="module")
def curve() -> UtilityCurve:
    return model().epsilon_path(*table(), low=0.05, high=5.0, draws=10, random_state=0)


def test_a_path_says_what_fits_give(curve: UtilityCurve) -> None:
    """Means over the noise: twenty fits at the ε that was chosen, with its method, reach the target about as well."""
    target = halfway(curve, "accuracy")
    chosen = curve.epsilon_for(target)
    rows, labels = table()
    scores = []
    for seed in range(20):
        draws = np.random.default_rng(seed).permutation(4000)
        fitted = model(epsilon=chosen.epsilon, mechanism=chosen.method).fit(rows[draws[800:]], labels[draws[800:]])
        scores.append(fitted.score(rows[draws[:800]], labels[draws[:800]]))
        assert fitted.certificate_.epsilon <= chosen.epsilon
    assert np.mean(scores) == pytest.approx(target, abs=0.02)
    assert 0.05 < chosen.epsilon < 5 and chosen.delta == 1e-6
    assert "not charged" in str(chosen) and f"{chosen.epsilon:.4g}" in str(chosen)


def test_nothing_is_charged_and_the_estimator_stays_as_it_was() -> None:
    estimator = model()
    estimator.epsilon_path(*table(500), draws=2, random_state=0)
    assert SpendLog.current().charges() == []
    assert not [name for name in vars(estimator) if name.endswith("_")]


def test_from_the_chosen_epsilon_on_the_mean_is_enough(curve: UtilityCurve) -> None:
    for metric, sign in (("accuracy", 1), ("auc", 1), ("loss", -1), ("training_loss", -1)):
        target = halfway(curve, metric)
        chosen = curve.epsilon_for(target, metric)  # type: ignore[arg-type]
        mean, low, high = curve.band(metric)  # type: ignore[arg-type]
        after = curve.epsilons >= chosen.epsilon
        assert (sign * mean[after] >= sign * target).all() and not (sign * mean >= sign * target).all()
        assert (low <= high).all() and chosen.metric == metric
        less = curve.epsilon_for(target - sign * 0.002, metric)  # type: ignore[arg-type]
        assert less.epsilon < chosen.epsilon


def test_a_target_that_everything_reaches_asks_for_the_least(curve: UtilityCurve) -> None:
    assert curve.epsilon_for(0.1).epsilon == pytest.approx(0.05)
    with pytest.raises(ValueError, match=r"some epsilon up to 5 reaches and keeps, got accuracy 0\.999"):
        curve.epsilon_for(0.999)
    with pytest.raises(ValueError, match="metric"):
        curve.epsilon_for(0.5, "recall")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="target"):
        curve.epsilon_for(float("nan"))


def test_metrics_are_those_of_the_field() -> None:
    rows, labels = table(3000)
    estimator = model(mechanism=Objective(strong_convexity=30.0), fit_intercept=False)
    problem = Objective().objective(estimator.task(4, 2))
    signs = np.where(labels == "yes", 1.0, -1.0)
    held, other = rows[2000:], signs[2000:]
    path = UtilityPath(
        problem,
        problem.records(rows[:2000], signs[:2000]),
        EpsilonCurve(problem.facts, 1e-6, 0.1, 4.0, strong_convexity=30.0),
        random_state=0,
    )
    found = UtilityCurve.of(path, held, other, [4.0, 0.5])
    assert list(found.epsilons) == [0.5, 4.0]
    (batch,) = problem.records(held, other).batches()
    for place, theta in enumerate(path.theta([0.5, 4.0])[0]):
        t = problem.predict(theta, batch)
        assert found.accuracy[0, place] == pytest.approx(np.mean((t > 0) == (other > 0)), abs=0.002)
        assert found.auc[0, place] == pytest.approx(roc_auc_score(other > 0, t), abs=1e-5)
        assert found.loss[0, place] == pytest.approx(log_loss(other, problem.loss.link.inverse(t)), rel=1e-6)


def test_held_out_records_can_be_others() -> None:
    rows, labels = table(1000)
    settings: dict[str, Any] = {"low": 0.5, "high": 5.0, "draws": 2, "random_state": 0}
    found = model().epsilon_path(rows[:700], labels[:700], held_out=(rows[700:], labels[700:]), **settings)
    again = DPLinearSVC(classes=["no", "yes"]).epsilon_path(rows, labels, held_out=0.3, **settings)
    assert found.accuracy.shape == again.accuracy.shape == (2, 100)


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({"mechanism": "gradient"}, {}, "mechanism='objective'"),
        ({"classes": ["no", "perhaps", "yes"]}, {}, "two classes, got 3"),
        ({}, {"held_out": 1.5}, "held_out"),
        ({}, {"low": 0.0}, "low"),
        ({}, {"low": 3.0, "high": 1.0}, "high above low"),
        ({}, {"draws": 0}, "draws"),
        ({}, {"held_out": (np.ones((3, 4)), ["yes", "yes", "yes"])}, "both classes"),
        ({}, {"held_out": (np.ones((3, 4)), ["yes", "no", "maybe"])}, "labels among classes"),
        ({"mechanism": Objective(strong_convexity=1e-3)}, {}, "larger strong_convexity"),
    ],
)
def test_what_cannot_be_looked_at_is_refused(settings: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**settings).epsilon_path(*table(200), **arguments)


@pytest.mark.slow
def test_the_page_says_what_was_chosen_and_what_is_private(curve: UtilityCurve) -> None:
    chosen = curve.epsilon_for(halfway(curve, "accuracy"))
    rows = levels(curve, "accuracy", chosen)
    assert [row.chosen for row in rows].count(True) == 1
    assert [row.epsilon for row in rows] == sorted(row.epsilon for row in rows)
    assert all(0 < row.advantage < 1 and 0.01 < row.found < 1 and row.low <= row.high for row in rows)
    assert rows[0].found < rows[-1].found
    page = choosing_page(curve, "accuracy", chosen.target, chosen, rows, "People")
    for part in ("PRIVATE: for the data holder only", f"mechanism={chosen.method}", "(chosen)", "<svg"):
        assert part in page
    missed = choosing_page(curve, "accuracy", 0.999, "It cannot be.", levels(curve, "accuracy"), "People")
    assert "No ε here reaches the target" in missed and "(chosen)" not in missed


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import json
    import sys

    from dperm.cli import main

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dperm", "choose-epsilon", "breast_cancer", "--draws", "2", "--seed", "0", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code or 0, capsys.readouterr().out

    page = tmp_path / "page.html"
    code, out = run("--accuracy", "0.8", "-o", str(page), "--json")
    found = json.loads(out)
    assert code == 0
    assert found["for_data_holder_only"]
    assert not found["charged"]
    assert 0.1 < found["epsilon"] < 10
    assert page.exists()
    code, out = run("--auc", "0.9999", "-o", str(page))
    assert code == 1
    assert "PRIVATE" in out
    assert "reaches the target" in page.read_text()
    assert run("--auc", "0.9", "--accuracy", "0.9")[0] != 0
