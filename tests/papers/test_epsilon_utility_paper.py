"""The experiments of Li, Liu, Li, Wang, Liu: on a small table, and what is said where a table is not to be had."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from papers.epsilon_utility import __main__ as paper
from papers.epsilon_utility import tables

from dperm.data import DataError

RNG = np.random.default_rng(0)


def small(name: str) -> tuple[Any, Any]:
    rows = RNG.normal(size=(400, 3)) / 4
    return rows, np.where(rows[:, 0] > 0, 1.0, -1.0)


@pytest.mark.parametrize("loss", list(paper.LOSSES))
def test_estimates_are_compared_with_what_is_true(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paper, "table", small)
    cell = paper.compared("made", loss, (1.0, 10.0), (2.5,), 300)
    assert cell["records"] == 300
    assert cell["draws"] == paper.DRAWS
    assert len(cell["real"]) == paper.POINTS
    assert cell["off"] < (1e-4 if loss == "logistic" else 5 * paper.KINKED)
    near = np.argmin(np.abs(np.array(cell["epsilons"]) - 2.5))
    for kind in paper.VARIABLES:  # right where it was measured
        assert cell["estimates"]["2.5"][kind][near] == pytest.approx(cell["real"][near], rel=2e-2)
    assert cell["real"][0] > cell["real"][-1]


def test_the_report_is_made_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = json.loads(paper.RESULTS.read_text())
    monkeypatch.setattr(paper, "HERE", tmp_path)
    paper.report()
    assert (tmp_path / "report.md").read_text() == (paper.RESULTS.parent / "report.md").read_text()
    assert (tmp_path / "figure2.png").exists() and (tmp_path / "figure3.png").exists()
    assert all(cell["off"] < 2 * paper.KINKED for cell in results.values())


def test_gisette_is_asked_for_by_checksum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.table.cache_clear()
    monkeypatch.setenv("DPERM_DATA", str(tmp_path))
    folder = tmp_path / "gisette"
    folder.mkdir()
    (folder / "gisette_train.data").write_text("1 2 3\n")
    with pytest.raises(DataError, match=r"checksum|sha256|SHA-256"):
        tables.table("gisette")
    contents = {"gisette_train.data": "1 2\n3 4\n", "gisette_valid.data": "5 6\n0 1\n"}
    contents |= {"gisette_train.labels": "1\n-1\n", "gisette_valid.labels": "-1\n1\n"}
    for name, text in contents.items():
        (folder / name).write_text(text)
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in contents.items()}
    monkeypatch.setattr(tables, "_GISETTE", sums)
    rows, signs = tables.table("gisette")
    tables.table.cache_clear()
    assert rows.shape == (4, 2) and sorted(signs) == [-1, -1, 1, 1]
    assert np.linalg.norm(rows, axis=1).max() == pytest.approx(1.0)
