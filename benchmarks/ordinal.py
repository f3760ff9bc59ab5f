"""Classes with an order: private ordinal regression beside a softmax and least squares of ranks. Writes results/ordinal.md.

    python benchmarks/ordinal.py

Made tables of eight numbers and five classes, cut from a logistic score. Each cell: the mean error in ranks and the accuracy on
4,000 fresh records, means of the runs at δ = 10⁻⁵.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dperm.estimators import DPLogisticRegression, DPOrdinalClassifier, DPRidge
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results" / "ordinal.md"
RUNS, FRESH, FEATURES, CLASSES = 6, 4000, 8, 5
CUTS = {"alike": (-1.5, -0.5, 0.5, 1.5), "most in the lowest": (1.0, 1.5, 3.0, 4.0)}
HEADS = ("ordinal", "ordinal, shares stated", "softmax", "least squares of ranks", "middle rank")


def table(cuts: tuple[float, ...], size: int, seed: int) -> tuple[Any, Any]:
    """(rows, ranks)."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, (size, FEATURES)) / FEATURES**0.5
    score = rows @ (3 * np.random.default_rng(seed).normal(size=FEATURES)) + rng.logistic(size=size)
    return rows, np.digitize(score, cuts)


def answers(train: tuple[Any, Any], rows: Any, shares: Any, epsilon: float) -> Iterator[Any]:
    """Ranks of each model, in the order of HEADS."""
    size, known = len(train[1]), list(range(CLASSES))
    for stated in (None, list(shares)):
        yield DPOrdinalClassifier(epsilon=epsilon, classes=known, shares=stated).fit(*train).predict(rows)
    yield DPLogisticRegression(epsilon=epsilon, classes=known, public_size=size).fit(*train).predict(rows)
    ridge = DPRidge(epsilon=epsilon, target_range=(0, CLASSES - 1), public_size=size)
    yield np.clip(np.rint(ridge.fit(train[0], train[1].astype(float)).predict(rows)), 0, CLASSES - 1)
    yield np.full(len(rows), np.median(train[1]))


def cells(cuts: tuple[float, ...], size: int, epsilon: float) -> list[str]:
    found = np.zeros((len(HEADS), 2))
    for run in range(RUNS):
        rows, ranks = table(cuts, size + FRESH, run)
        shares = np.bincount(ranks, minlength=CLASSES) / len(ranks)
        for place, each in enumerate(answers((rows[:size], ranks[:size]), rows[size:], shares, epsilon)):
            found[place] += np.abs(each - ranks[size:]).mean() / RUNS, (each == ranks[size:]).mean() / RUNS
    return [f"{off:.3f}, {right:.3f}" for off, right in found]


def main() -> None:
    lines = [
        "# Classes with an order",
        "",
        f"Made tables of {FEATURES} numbers and {CLASSES} classes: the mean error in ranks and the accuracy on {FRESH:,} fresh "
        f"records, means of {RUNS} runs at δ = 1e-5 (`python benchmarks/ordinal.py`).",
        "",
        "| classes | records | ε | " + " | ".join(HEADS) + " |",
        "| --- " * (3 + len(HEADS)) + "|",
    ]
    for title, cuts in CUTS.items():
        for size, epsilon in ((1000, 1.0), (3000, 0.3), (3000, 1.0), (20_000, 1.0)):
            lines.append(f"| {title} | {size:,} | {epsilon:g} | " + " | ".join(cells(cuts, size, epsilon)) + " |")
            print(lines[-1], flush=True)
    lines += ["", *(f"- {name}: {value}" for name, value in machine().items())]
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of small sizes
        os.environ["DPERM_SPEND_LOG"] = str(Path(folder) / "spend.db")
        main()
