"""Private regression of counts: Poisson regression in balls of several sizes beside least squares. Writes results/counts.md.

    python benchmarks/counts.py

Scores are R² and D² (the explained share of the Poisson deviance) on fresh records, at ε = 1 and δ = 10⁻⁵.
"""

from __future__ import annotations

import math
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import d2_tweedie_score, r2_score

from dperm.estimators import DPPoissonRegressor, DPRidge
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results" / "counts.md"
RUNS, WIDER = 3, (1.0, 1.25, 1.5, 2.0)


def wide(size: int, mean: float, seed: int) -> tuple[Any, Any]:
    """(rows, counts) of five numbers, three of which matter, with counts up to 30."""
    rng = np.random.default_rng(seed)
    rows, weights = rng.random((size, 5)) / math.sqrt(5), math.sqrt(5) / 2 * np.array([1.5, -1.5, 1.0, 0.0, 0.0])
    logarithms = rows @ weights
    return rows, np.minimum(rng.poisson(mean * np.exp(logarithms - logarithms.mean())), 30)


def short(size: int, mean: float, seed: int) -> tuple[Any, Any]:
    """(rows, counts) of two numbers near 0, so that the intercept carries the mean."""
    rng = np.random.default_rng(seed)
    rows = 0.3 * rng.random((size, 2))
    return rows, rng.poisson(mean * np.exp(2 * rows[:, 0] - 0.3))


def scores(make: Any, size: int, mean: float, high: int, widths: tuple[float, ...]) -> Iterator[str]:
    """One cell a model: its mean answer, R² and D², medians over the runs."""
    radius = max(2.0, math.log(high))
    models: list[Any] = [DPRidge(target_range=(0, high), public_size=size)]
    models += [DPPoissonRegressor(target_range=(0, high), radius=radius * wider, public_size=size) for wider in widths]
    for model in models:
        found: list[tuple[float, float, float]] = []
        for run in range(RUNS):
            rows, counts = make(size, mean, run)
            fresh, truth = make(size, mean, 100 + run)
            answers = model.fit(rows, counts).predict(fresh)
            explained = d2_tweedie_score(truth, np.maximum(answers, 1e-9), power=1)
            found.append((float(answers.mean()), r2_score(truth, answers), explained))
        answer, squares, deviance = np.median(found, axis=0)
        yield f"{answer:.1f}, {squares:.2f}, {deviance:.2f}"


def main() -> None:
    warnings.simplefilter("ignore")
    titles = ["least squares", *(f"Poisson, ball × {wider:g}" for wider in WIDER)]
    lines = [f"| records | range | mean | {' | '.join(titles)} |", "| --- | --- | --- " + "| --- " * len(titles) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DPERM_SPEND_LOG"] = f"{folder}/spend.db"
        works = [("five numbers", wide, size, mean, 30) for mean in (0.5, 3, 8) for size in (1000, 5000, 30_000)]
        works += [("two short numbers", short, 20_000, mean, 100) for mean in (8, 20, 60)]
        for name, make, size, mean, high in works:
            cells = " | ".join(scores(make, size, mean, high, WIDER))
            lines.append(f"| {size:,}, {name} | 0 to {high} | {make(size, mean, 0)[1].mean():.1f} | {cells} |")
            print(lines[-1], flush=True)
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    said = (
        f"Each cell: the mean answer, R² and D² on fresh records, medians of {RUNS} runs at ε = 1 "
        "(`python benchmarks/counts.py`). The ball has the radius that `dperm train --model poisson` takes, the larger of 2 and "
        "the logarithm of the range's end, times the factor that the column names."
    )
    table = "\n".join(lines)
    RESULTS.write_text(f"# Counts\n\n{said}\n\n{table}\n\n{about}\n")


if __name__ == "__main__":
    main()
