"""Frank–Wolfe on wide sparse rows: time, memory, and what is found. Writes results/frank_wolfe.md.

    python benchmarks/frank_wolfe.py

20,000 rows of 50 entries among a million features, made; five features decide. 200 steps at ε = 1 and 4.
"""

from __future__ import annotations

import platform
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from dperm.estimators import DPLogisticRegression
from dperm.mechanisms import FrankWolfe

RESULTS = Path(__file__).parent / "results" / "frank_wolfe.md"
ROWS, FEATURES, ENTRIES, STEPS, ROUNDS = 20_000, 1_000_000, 50, 200, 3
DECIDE = np.arange(5)


def table(seed: int) -> tuple[Any, Any]:
    """Each row holds each deciding feature with probability a half, and others at random; labels by the former."""
    rng = np.random.default_rng(seed)
    held = rng.random((ROWS, len(DECIDE))) < 0.5
    others = rng.integers(len(DECIDE), FEATURES, (ROWS, ENTRIES - len(DECIDE)))
    place = np.repeat(np.arange(ROWS)[:, None], ENTRIES, axis=1)
    columns = np.hstack([np.where(held, DECIDE, others[:, : len(DECIDE)]), others])
    rows = sp.csr_array((np.ones(columns.size), (place.ravel(), columns.ravel())), shape=(ROWS, FEATURES))
    rows.sum_duplicates()
    rows = sp.csr_array(sp.diags_array(1 / np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())) @ rows)
    scores = held @ np.array([2.0, -2.0, 1.5, -1.5, 1.0])
    return rows, rng.random(ROWS) < 1 / (1 + np.exp(-scores))


def main() -> None:
    lines = []
    rows, labels = table(0)
    tested, truth = table(1)
    loaded = memory()
    for epsilon in (1.0, 4.0):
        seconds, right, kept = [], [], []
        for _ in range(ROUNDS):
            model = DPLogisticRegression(
                epsilon=epsilon, classes=[False, True], fit_intercept=False, mechanism=FrankWolfe(radius=30.0, steps=STEPS)
            )
            started = time.perf_counter()
            model.fit(rows, labels)
            seconds.append(time.perf_counter() - started)
            right.append(100 * model.score(tested, truth))
            kept.append(int(np.count_nonzero(model.coef_[0, DECIDE])))
        lines.append(
            f"| {epsilon:g} | {statistics.median(seconds):.1f} s | {memory() - loaded:.2f} GB | {statistics.median(right):.1f} | "
            f"{statistics.median(kept)} of {len(DECIDE)} |"
        )
    RESULTS.write_text(
        f"""# Frank–Wolfe on wide sparse rows

`python benchmarks/frank_wolfe.py`: {ROWS:,} rows of {ENTRIES} entries among {FEATURES:,} features, {STEPS} steps;
medians of {ROUNDS}.
Memory is what was added to the {loaded:.2f} GB of the process with its tables. The most frequent class is
{100 * max(truth.mean(), 1 - truth.mean()):.1f} %.

| ε | time | memory | accuracy in % | deciding features found |
| --- | --- | --- | --- | --- |
{chr(10).join(lines)}

{platform.processor() or platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}.
"""
    )
    print(RESULTS.read_text())


def memory() -> float:
    """The most that was resident so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
