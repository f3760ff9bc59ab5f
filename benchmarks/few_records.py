"""How much models learn of synthetic tables with few records: beside the number of records whose agreeing gradients are as long
as the noise. `dperm train` says what to expect by it.

Writes benchmarks/results/few_records.md. `python benchmarks/few_records.py`
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.metrics import r2_score, roc_auc_score

from dperm.estimators import DPLogisticRegression, DPRidge
from dperm.privacy import Gaussian, calibrate
from dperm.release.selection import set_aside

RESULT = Path(__file__).parent / "results" / "few_records.md"
RATIOS = (1, 2, 4, 8, 16, 32)  # records, over those whose agreeing gradients are as long as the noise
REPEATS, HELD_OUT, DELTA = 30, 2000, 1e-5


def learnt(features: int, epsilon: float, records: int) -> tuple[float, float]:
    """Means over `REPEATS` tables of the share of the AUC above guessing, and of R², that is there."""
    rng = np.random.default_rng(0)
    shares: list[tuple[float, float]] = []
    for _ in range(REPEATS):
        direction = rng.normal(size=features)
        direction /= np.linalg.norm(direction)
        rows = rng.normal(size=(records + HELD_OUT, features)) / math.sqrt(features) / 1.2
        score = 1.2 * math.sqrt(features) * (rows @ direction)
        labels = (score + 0.8 * rng.logistic(size=len(score)) > 0).astype(int)
        numbers = np.clip(0.5 + 0.15 * score + 0.15 * rng.normal(size=len(score)), 0, 1)
        if len(np.unique(labels[:records])) < 2:
            continue
        train, test = slice(0, records), slice(records, None)
        classifier = DPLogisticRegression(epsilon=epsilon, delta=DELTA, classes=[0, 1]).fit(rows[train], labels[train])
        regressor = DPRidge(epsilon=epsilon, delta=DELTA, target_range=(0, 1)).fit(rows[train], numbers[train])
        auc = roc_auc_score(labels[test], classifier.decision_function(rows[test])) - 0.5
        best = roc_auc_score(labels[test], score[test]) - 0.5
        explained = r2_score(numbers[test], regressor.predict(rows[test]))
        there = r2_score(numbers[test], np.clip(0.5 + 0.15 * score[test], 0, 1))
        shares.append((auc / best, explained / there))
    return float(np.mean([auc for auc, _ in shares])), float(np.median([explained for _, explained in shares]))


def lines() -> Iterator[str]:
    yield "# What few records allow\n"
    yield (
        "The share of what is there that models learnt of synthetic tables: of the AUC above one half, mean, and of R², median, "
        f"over {REPEATS} tables, on {HELD_OUT:,} held-out records, δ = {DELTA:g}, by the defaults of `DPLogisticRegression` and "
        "`DPRidge`, n private. Columns: the number of records, over the number whose gradients, all in one direction, are as "
        "long as the Gaussian noise, σ·√(d + 1). `python benchmarks/few_records.py`\n"
    )
    yield "| features | ε | " + " | ".join(f"{ratio}×" for ratio in RATIOS) + " |\n| --- | --- |" + " --- |" * len(RATIOS)
    for features in (5, 20, 100):
        for epsilon in (0.5, 1.0, 4.0):
            alike = calibrate(Gaussian, epsilon, DELTA) * math.sqrt(features + 1)
            cells = []
            for ratio in RATIOS:
                records = round(ratio * alike)
                auc, explained = learnt(features, epsilon, records) if records >= 10 else (math.nan, math.nan)
                cells.append("–" if math.isnan(auc) else f"{auc:.2f}, {explained:.2f} (n = {records:,})")
                print(features, epsilon, cells[-1], flush=True)
            yield f"| {features} | {epsilon:g} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    with warnings.catch_warnings(), set_aside():
        warnings.simplefilter("ignore")
        RESULT.write_text("\n".join(lines()) + "\n", encoding="utf-8")
