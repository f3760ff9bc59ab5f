"""Bounds: their numbers by hand, their slopes, what they need, and measured risk beside them."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dperm.objectives import LinearObjective, Logistic
from dperm.report.bounds import bound_rows, bounds_page
from dperm.utility import BOUNDS, MeasuredExcess, Problem, measured_excess

PROBLEM = Problem(
    size=10_000, dimension=20, epsilon=2.0, delta=1e-5, lipschitz=1.5, smoothness=0.5, strong_convexity=0.01, radius=3.0, gap=0.3,
    variance=0.1, optimum=0.2, norm=2.0, influential=50, hoelder=0.5,
)  # fmt: skip


def value(part: str, problem: Problem = PROBLEM) -> float:
    (bound,) = [bound for bound in BOUNDS if part in f"{bound.name}; {bound.source}"]
    found = bound.value(problem)
    assert found is not None
    return found


def test_numbers_by_hand() -> None:
    assert value("normalised gradients") == pytest.approx(math.sqrt(20) / 20_000)
    assert value("Hölder") == pytest.approx(10_000**-0.5 + math.sqrt(20) / 20_000)
    assert value("Kifer") == pytest.approx(1.5 * 2.0 * math.sqrt(20 * math.log(1e5)) / 20_000)
    assert value("no method is better, strongly") == pytest.approx(1.5**2 / 0.01 * 20 / 20_000**2)
    assert value("Theorem 7") == pytest.approx(
        min(1000 / (1e12 * 4) + 1e-4, 1000 / (1e10 * 4) + 1e-6, 1000**1.5 / 8e8 + 2 / (1000**0.5 * 1e4))
    )
    ten = replace(PROBLEM, steps=10)
    noise = 16 * 1.5 * math.sqrt(10 * math.log(2e5) * math.log(max(25 / 0.1, math.e))) / 20_000
    moment = 1.5**2 + 20 * noise**2
    assert value("noisy descent, strongly", ten) == pytest.approx(17 * moment * (1 + math.log(10)) / 0.1)
    assert value("noisy descent, convex", ten) == pytest.approx(6 * math.sqrt(moment) * (2 + math.log(10)) / math.sqrt(10))
    spread = 1.5**2 * 10 * math.log(1e5) / 20_000**2
    whole = 0.98**10 * 0.3 + 20 * spread / 0.02
    assert value("full-batch", ten) == pytest.approx(whole)
    assert value("one record a step", ten) == pytest.approx(whole + 0.1 / 0.02)
    assert value("noise for k records alone; ", ten) == pytest.approx(0.98**10 * 0.3 + 0.005 * 20 * spread / 0.02)


def test_a_minimum_over_tau_is_one() -> None:
    excess = value("full-batch")
    stable = 16 * 1.5**2 / (10_000 * 0.01) ** 2
    tau = np.geomspace(1e-8, 1e8, 200_001)
    gap = (tau + 0.5) * (8 * excess / 0.01 + stable) + 0.5 * (0.2 + excess) / tau
    population = (tau + 0.5) * ((8 * tau + 0.01) / (0.01 * tau) * excess + stable) + 0.5 * 0.2 / tau
    assert value("generalisation gap") == pytest.approx(gap.min(), rel=1e-4)
    assert value("population risk") == pytest.approx(population.min(), rel=1e-4)


def test_slopes_are_those_of_the_rates() -> None:
    slopes = {bound.name: bound.slopes(PROBLEM) for bound in BOUNDS}
    assert slopes["objective perturbation"] == pytest.approx((-1.0, -1.0))
    assert slopes["output and objective perturbation, strongly convex"] == pytest.approx((-2.0, -2.0))
    assert all(pair is not None and pair[0] <= 0 for pair in slopes.values())


def test_what_is_not_known_gives_no_number() -> None:
    bare = Problem(size=1000, dimension=5, epsilon=1.0, delta=1e-5)
    known = [row.bound.name for row in bound_rows(bare) if row.value is not None]
    assert known == ["gradient perturbation, high probability", "normalised gradients, high probability"]
    assert all(bound.source and bound.assumes and bound.formula for bound in BOUNDS)
    for changes in ({"size": 0}, {"epsilon": 0.0}, {"delta": 1.0}, {"lipschitz": -1.0}, {"dimension": 2.5}):
        with pytest.raises((ValueError, TypeError)):
            replace(bare, **changes)


@pytest.fixture(scope="module")
def measured() -> MeasuredExcess:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(8000, 4)) / 3
    problem = LinearObjective(Logistic(), 4, intercept_scale=0.5, public_size=8000)
    signs = np.where(rows[:, 0] + 0.3 * rng.normal(size=8000) > 0, 1.0, -1.0)
    return measured_excess(problem, problem.records(rows, signs), penalty=1e-2, draws=30, random_state=0)


def test_strongly_convex_risk_falls_like_the_square(measured: MeasuredExcess) -> None:
    in_size, in_epsilon = measured.slopes
    assert -2.3 < in_size < -1.7 and -2.2 < in_epsilon < -1.4
    assert (np.diff(measured.excess) < 0).all() and measured.excess[-1] > 0
    found = measured.problem
    assert 0 < found.strong_convexity <= found.smoothness <= 1.25 / 4 + 1e-2 + 1e-9  # type: ignore[operator]
    assert found.lipschitz == pytest.approx(math.sqrt(1.25)) and 0 < found.variance <= 1.25  # type: ignore[operator]
    lower = [bound.value(found) for bound in BOUNDS if bound.of == "lower" and "strong_convexity" in bound.needs]
    at_one = np.exp(np.interp(0.0, np.log(measured.epsilons), np.log(measured.excess)))
    assert lower[0] < at_one < value("noisy descent, strongly", found)


def test_bad_input_is_refused() -> None:
    problem = LinearObjective(Logistic(), 2, public_size=400)
    records = problem.records(np.ones((400, 2)), np.ones(400))
    for changes, message in (
        ({"penalty": 0.0}, "penalty"),
        ({"epsilon": 50.0}, "epsilon between"),
        ({"penalty": 1e-9}, "strong_convexity"),
    ):
        with pytest.raises(ValueError, match=message):
            measured_excess(problem, records, **changes)
    with pytest.raises(ValueError, match="160 records"):
        measured_excess(problem, problem.records(np.ones((20, 2)), np.ones(20)))


def test_the_page_and_the_command(
    measured: MeasuredExcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dperm.cli import main

    page = bounds_page(measured, "People")
    for part in ("PRIVATE: for the data holder only", "Kifer, Smith, Thakurta", "errata 11", "<svg", "Not evaluated"):
        assert part in page

    def run(*arguments: Any) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["dperm", "bounds", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return stopped.value.code or 0, capsys.readouterr().out

    code, out = run("--size", 1000, "--dimension", 10, "--lipschitz", 1, "--json")
    found = json.loads(out)
    assert code == 0
    assert not found["for_data_holder_only"]
    assert found["measured_slopes"] is None
    assert len(found["bounds"]) == len(BOUNDS)
    assert run("--size", 1000)[0] != 0
    code, out = run("breast_cancer", "--draws", 2, "--seed", 0, "--penalty", 0.05, "-o", tmp_path / "page.html")
    assert code == 0
    assert "PRIVATE" in out
    assert "Measured: slope" in out
    assert (tmp_path / "page.html").exists()
