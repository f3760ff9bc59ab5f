"""Scores that may be published: public ranges, privacy units, and scores that noise leaves undefined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dperm.release import SpendLog
from dperm.report.released import release_class_scores
from helpers.commands import dperm

X = np.random.default_rng(0).uniform(-0.5, 0.5, (60, 2))


def test_no_range_of_an_array_s_targets_bounds_what_is_released(tmp_path: Path) -> None:
    for name in ("a", "b"):
        np.savez(tmp_path / f"{name}.npz", X=X, y=X[:, 0] * 7.3)
    model = tmp_path / "m.json"
    dperm("train", tmp_path / "a.npz", "--model", "ridge", "--accept-proposed", "-o", model)
    charges = len(SpendLog.current().charges())
    evaluate = ("evaluate", model, tmp_path / "b.npz", "--test-data", "released", "--epsilon", "1", "-o", tmp_path / "s.json")
    assert "range is public" in dperm(*evaluate, expect=1).stderr
    assert len(SpendLog.current().charges()) == charges


def test_persons_of_released_scores_are_told_apart_as_elsewhere() -> None:
    truth = np.zeros(1000, dtype=np.intp)
    settings: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6, "random_state": 0, "label": ""}
    one = release_class_scores(truth, truth, None, ["a", "b"], persons=np.array([1] * 999 + ["1"], dtype=object), **settings)
    other = release_class_scores(truth[:999], truth[:999], None, ["a", "b"], persons=np.ones(999, dtype=int), **settings)
    assert abs(one.whole.records - other.whole.records) <= 1 and one.whole.records < 50


def test_a_score_that_noise_may_leave_undefined_is_hidden() -> None:
    truth = np.zeros(400, dtype=np.intp)
    truth[:3] = 1
    likely = np.linspace(0, 1, 400)
    found = release_class_scores(
        truth, (likely > 0.5).astype(np.intp), likely, ["no", "yes"], epsilon=1.5, random_state=0,
        groups=truth, group_names=["a", "b"],
    )  # fmt: skip
    for scores, widths in ((found.whole, found.widths), *((found.parts[name], found.part_widths[name]) for name in "ab")):
        shown = {**scores.scores, **{f"recall of {name}": value for name, value in scores.recalls.items()}}
        assert all(np.isfinite(widths[name]) for name, value in shown.items() if np.isfinite(value))
    assert np.isnan(found.whole.scores["AUC"]) and np.isfinite(found.whole.scores["accuracy"])
