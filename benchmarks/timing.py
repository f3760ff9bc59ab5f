"""How much one outlier among the records moves the time of a fit: what duration tells of them.

Writes benchmarks/results/timing.md. `python benchmarks/timing.py`
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dperm.estimators import DPLinearSVC, DPLogisticRegression, DPRidge
from dperm.mechanisms import Gradient
from dperm.release import SpendLog, spend_log
from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results"
RECORDS, FEATURES, FITS = 5000, 10, 120
FITTED: dict[str, Callable[[], Any]] = {
    "logistic, objective": lambda: DPLogisticRegression(epsilon=1.0, delta=1e-5, mechanism="objective", classes=[0, 1]),
    "ridge, output": lambda: DPRidge(epsilon=1.0, delta=1e-5, mechanism="output", target_bound=1.0),
    "logistic, gradient, full batch": lambda: DPLogisticRegression(
        epsilon=1.0, delta=1e-5, mechanism=Gradient(sampling="full"), classes=[0, 1], public_size=RECORDS
    ),
    "support vectors, auto": lambda: DPLinearSVC(epsilon=1.0, delta=1e-5, classes=[0, 1]),
}


def tables() -> dict[str, tuple[Any, Any]]:
    """The same records without and with an outlier: a row thousands of times as long, and labelled wrongly."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(RECORDS, FEATURES)) / 4
    score = rows @ np.ones(FEATURES)
    labels = (score + rng.normal(size=RECORDS) / 4 > 0).astype(int)
    outlier = rows.copy()
    outlier[-1] = 1000.0
    return {"without": (rows, labels), "with": (outlier, np.append(labels[:-1], 0))}


def measured(name: str, make: Callable[[], Any]) -> str:
    """A row of the table: median processor milliseconds of fits in turn, and the difference with its standard error."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    data = tables()
    for number in range(FITS + 1):
        for which in sorted(data, reverse=bool(number % 2)):  # in turn, neither always first
            rows, labels = data[which]
            targets = labels * 2.0 - 1 if name.startswith("ridge") else labels
            start = time.process_time()
            make().fit(rows, targets)
            seconds[which].append(1e3 * (time.process_time() - start))
    plain, other = (np.array(seconds[which][1:]) for which in ("without", "with"))
    between = (statistics.median(other) / statistics.median(plain) - 1) * 100
    rng = np.random.default_rng(1)
    draws = rng.integers(FITS, size=(2000, FITS))
    error = np.std(np.median(other[draws], axis=1) / np.median(plain[draws], axis=1)) * 100
    spread = np.subtract(*np.percentile(plain, [75, 25])) / statistics.median(plain) * 100
    middle = [f"{statistics.median(values):.1f}" for values in (plain, other)]
    return f"| {name} | {' | '.join(middle)} | {between:+.1f} ± {error:.1f} | {spread:.0f} |"


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, spend_log(SpendLog(Path(folder) / "spend.db")):
        lines = [measured(name, make) for name, make in FITTED.items()]
    told = ", ".join(f"{name} {value}" for name, value in machine().items())
    text = [
        "# What the time of a fit tells",
        "",
        f"Processor time of a fit to {RECORDS:,} records of {FEATURES} features, without and with one outlier: medians of {FITS}",
        "fits each, in turn. The difference with its standard error by bootstrap; the spread of fits alike, between quartiles.",
        "",
        "| | without, ms | with, ms | difference, % | spread, % |",
        "| --- | --- | --- | --- | --- |",
        *lines,
        "",
        f"{told}.",
        "",
    ]
    (RESULTS / "timing.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
