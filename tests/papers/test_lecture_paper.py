"""The lecture's ladder: problems whose optimum is known, and slopes that are measured."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from papers.lecture import ladder as paper
from papers.lecture import problems
from papers.lecture.report import write


def test_optima_are_what_is_said() -> None:
    rng = np.random.default_rng(0)
    for problem in (problems.strongly_convex(300, 4, 0), problems.convex(300, 4, 20, 0), problems.convex(301, 4, 20, 0)):
        assert len(problem.records) in (300, 301)
        for _ in range(50):
            theta = rng.normal(size=4)
            theta *= problems.RADIUS * rng.random() / np.linalg.norm(theta)
            assert problem.excess(theta) >= -1e-9
    least = problems.convex(300, 4, 20, 0)
    # linear on the ball: the middle of two points has the middle of their values
    a, b = rng.normal(size=(2, 4)) / 4
    assert least.excess((a + b) / 2) == pytest.approx((least.excess(a) + least.excess(b)) / 2)


@pytest.mark.fast_cases("strongly convex")
@pytest.mark.parametrize("kind", list(paper.RUNGS))
def test_every_rung_is_certified_and_learns(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paper, "HERE", tmp_path)  # where the spend log lies
    monkeypatch.setattr(paper, "SEEDS", {kind: 1 if kind == "strongly convex" else 3})
    monkeypatch.setattr(paper, "AGREEING", (1.0,))  # fewer than n at both: where all agree, nothing is hard
    for rung in paper.RUNGS[kind]:
        near, far = (paper.measured(kind, rung, 2000, epsilon, 4)["excess"] for epsilon in (8.0, 0.25))
        assert 0 <= near < far


def test_slopes_are_those_of_the_tables() -> None:
    """Of the results that are kept: strongly convex and convex rates are told apart, whatever the rung. On the L1 ball noise on
    all parameters learns nothing."""
    for kind, rungs in paper.RUNGS.items():
        for rung in rungs:
            if (kind, rung.name) == ("sparse", "full-batch descent"):
                assert min(paper.values(kind, rung.name, "p")[1]) > 2 * max(paper.values(kind, "Frank–Wolfe", "n")[1][2:])
                continue
            for along, rate in paper.RATES[kind].items():
                assert abs(paper.slope(kind, rung.name, along) - rate) < (0.35 * abs(rate) or 0.2)


def test_the_report_is_made_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads(paper.CELLS.read_text())
    assert all(math.isfinite(cell["excess"]) for cell in cells.values())
    monkeypatch.setattr(sys.modules[write.__module__], "HERE", tmp_path)
    write()
    text = (tmp_path / "report.md").read_text()
    assert text == (paper.HERE / "report.md").read_text()
    assert (tmp_path / "slopes.png").stat().st_size > 10_000
