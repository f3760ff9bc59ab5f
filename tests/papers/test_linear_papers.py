"""The papers on linear models: splits are shared, claimed methods stay claimed, small versions run end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers.linear import Cell, Results, half_width, quietly, split, train
from papers.m_ngp import __main__ as m_ngp
from papers.pidp_sgd import __main__ as pidp_sgd
from papers.pidp_sgd import networks

from dperm.mechanisms import Gradient, IndividualGradient, NormalisedGradient
from dperm.privacy import Relation
from dperm.published import PublishedNormalisedGradient


def test_splits_are_the_same_for_all_and_hold_every_record_once() -> None:
    first, again, other = split("iris", 0), split("iris", 0), split("iris", 1)
    assert len(first.train[0]) == 120
    assert len(first.test[0]) == 30
    assert first.classes == 3
    assert np.array_equal(first.train[0], again.train[0]) and not np.array_equal(first.train[0], other.train[0])
    assert sorted(map(tuple, [*first.train[0], *first.test[0]])) == sorted(map(tuple, [*other.train[0], *other.test[0]]))
    assert len(split("breast_cancer", 0, 100).train[0]) == 80


def test_a_training_says_what_it_is() -> None:
    parts = split("breast_cancer", 0)
    certified = quietly(train, parts, NormalisedGradient(), 1.0)
    claimed = quietly(train, parts, PublishedNormalisedGradient(), 1.0)
    assert certified["status"] == "certified" and 0.99 < certified["certified"] <= 1.0
    assert claimed["status"] == "claimed" and claimed["certified"] is None
    replaced = quietly(train, parts, pidp_sgd.METHODS["Bolt-on"], 1.0, Relation.REPLACE_ONE)
    assert replaced["status"] == "certified" and 50 < replaced["accuracy"] <= 100


def test_cells_are_lines_that_come_back(tmp_path: Path) -> None:
    stored = Results(tmp_path / "results" / "x.jsonl")
    cells = [Cell("x", "b", 1.0), Cell("x", "a", 10.0), Cell("x", "a", 2.0, 500)]
    for number, cell in enumerate(cells):
        stored.save(cell, {"accuracy": [float(number)]})
    assert [stored.of(cell)["accuracy"] for cell in cells] == [[0.0], [1.0], [2.0]]
    assert stored.of(Cell("x", "c", 1.0)) is None
    assert len((tmp_path / "results" / "x.jsonl").read_text().splitlines()) == 3
    assert half_width([1.0, 1.0, 1.0]) == 0.0 and np.isnan(half_width([1.0]))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both experiments on bundled data, at two ε, in a folder of the test's."""
    for module in (m_ngp, pidp_sgd):
        monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(m_ngp, "DATASETS", {"iris": "Iris"})
    monkeypatch.setattr(m_ngp, "EPSILONS", (0.1, 1.0))
    monkeypatch.setattr(m_ngp, "RATES", (1.0, 3.0))
    monkeypatch.setattr(pidp_sgd, "DATASETS", {"breast_cancer": "Breast Cancer"})
    monkeypatch.setattr(pidp_sgd, "RECORDS", {})
    monkeypatch.setattr(pidp_sgd, "EPSILONS", (1.0,))
    monkeypatch.setattr(pidp_sgd, "REPEATS", 2)
    monkeypatch.setattr(pidp_sgd, "SIZES", (300,))
    monkeypatch.setattr(pidp_sgd, "NORMS", (0.3,))
    monkeypatch.setattr(pidp_sgd, "STEPS", (10,))
    monkeypatch.setattr(pidp_sgd, "TUNED_ON", range(100, 101))
    monkeypatch.setattr(pidp_sgd, "judged_on", lambda size: range(2))
    monkeypatch.setattr(pidp_sgd, "epsilons_for", lambda size: (0.1, 1.0))
    monkeypatch.setattr(networks, "REPEATS", 1)
    return tmp_path


def test_m_ngp_runs_end_to_end(small: Path) -> None:
    m_ngp.run(2, "")
    lines = (small / "results" / "iris.jsonl").read_text().splitlines()
    assert len(lines) == 1 + 2 * (3 * 2 + 2 + 1)
    m_ngp.run(2, "")  # nothing is left to train
    assert (small / "results" / "iris.jsonl").read_text().splitlines() == lines
    m_ngp.report()
    page = (small / "report.md").read_text()
    assert "| Iris | 0.1 |" in page
    assert "It is not private at the ε on the axis" in page
    assert "nan" not in page
    assert (small / "accuracy.png").stat().st_size > 10_000


@pytest.mark.slow
def test_pidp_sgd_runs_end_to_end(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in pidp_sgd.TABLES.values():
        table("")
    pidp_sgd.report()
    page = (small / "report.md").read_text()
    assert "| Breast Cancer | 1 |" in page
    assert "| Breast Cancer | 300 | 1 |" in page
    assert "Of 2 comparisons" in page
    assert (small / "gap.png").exists()


def test_both_families_are_tuned_on_one_grid() -> None:
    grid: dict[str, list[Any]] = {pidp_sgd.PLAIN: [], pidp_sgd.OWN: []}
    for family, method in pidp_sgd.settings():
        grid[family].append(method)
    assert len(grid[pidp_sgd.OWN]) == len(pidp_sgd.SHARES) * len(grid[pidp_sgd.PLAIN])
    assert {(m.clipping_norm, m.epochs) for m in grid[pidp_sgd.OWN]} == {
        (m.clipping_norm, m.epochs) for m in grid[pidp_sgd.PLAIN]
    }
    assert all(isinstance(m, IndividualGradient) for m in grid[pidp_sgd.OWN]) and type(grid[pidp_sgd.PLAIN][0]) is Gradient
    assert not any(set(pidp_sgd.TUNED_ON) & set(pidp_sgd.judged_on(size)) for size in pidp_sgd.SIZES)
