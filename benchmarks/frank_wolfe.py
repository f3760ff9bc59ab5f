"""Mechanisms for wide sparse rows: time, memory, and what is found. Writes results/frank_wolfe.md.

    python benchmarks/frank_wolfe.py

20,000 rows of 50 ones among a million features, made; five features decide. At ε = 1 and 4.
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
from dperm.mechanisms import FrankWolfe, GreedyCoordinate, Method

RESULTS = Path(__file__).parent / "results" / "frank_wolfe.md"
ROWS, FEATURES, ENTRIES, STEPS, ROUNDS = 20_000, 1_000_000, 50, 200, 3
DECIDE = np.arange(5)
WEIGHTS = np.array([2.0, -2.0, 1.5, -1.5, 1.0])


def table(seed: int) -> tuple[Any, Any]:
    """Each row holds each deciding feature with probability a half, and others at random; labels by the former."""
    rng = np.random.default_rng(seed)
    held = rng.random((ROWS, len(DECIDE))) < 0.5
    others = rng.integers(len(DECIDE), FEATURES, (ROWS, ENTRIES - len(DECIDE)))
    place = np.repeat(np.arange(ROWS)[:, None], ENTRIES, axis=1)
    columns = np.hstack([np.where(held, DECIDE, others[:, : len(DECIDE)]), others])
    rows = sp.csr_array((np.ones(columns.size), (place.ravel(), columns.ravel())), shape=(ROWS, FEATURES))
    rows.sum_duplicates()
    rows.data[:] = 1.0
    scores = held @ WEIGHTS
    return rows, rng.random(ROWS) < 1 / (1 + np.exp(-scores))


#: name, method, bound on rows' norms
WAYS: list[tuple[str, Method, float]] = [
    ("Frank–Wolfe, rows scaled to length 1", FrankWolfe(radius=30.0, steps=STEPS), 1.0),
    ("Frank–Wolfe, entries of at most 1", FrankWolfe(radius=8.0, steps=STEPS, entry_bound=1.0), 7.1),
    ("Greedy coordinates, entries of at most 1", GreedyCoordinate(entry_bound=1.0), 7.1),
]


def main() -> None:
    lines = []
    rows, labels = table(0)
    tested, truth = table(1)
    loaded = memory()
    for epsilon in (1.0, 4.0):
        for name, method, norm in WAYS:
            seconds, right, kept, steps = [], [], [], 0
            for _ in range(ROUNDS):
                model = DPLogisticRegression(
                    epsilon=epsilon,
                    classes=[False, True],
                    fit_intercept=False,
                    mechanism=method,
                    data_norm=norm,
                    public_size=ROWS,
                )
                started = time.perf_counter()
                model.fit(rows, labels)
                seconds.append(time.perf_counter() - started)
                right.append(100 * model.score(tested, truth))
                kept.append(int(np.count_nonzero(model.coef_[0, DECIDE])))
                steps = model.trace_["steps"]
            lines.append(
                f"| {epsilon:g} | {name} | {steps} | {statistics.median(seconds):.1f} s | {memory() - loaded:.2f} GB | "
                f"{statistics.median(right):.1f} | {statistics.median(kept)} of {len(DECIDE)} |"
            )
    best = 100 * float(np.mean((tested[:, DECIDE] @ WEIGHTS > 0) == truth))
    RESULTS.write_text(
        f"""# Wide sparse rows

`python benchmarks/frank_wolfe.py`: {ROWS:,} rows of {ENTRIES} ones among {FEATURES:,} features, of which five decide;
medians of {ROUNDS}.
Memory is what was added to the {loaded:.2f} GB of the process with its tables, so far. The most frequent class is
{100 * max(truth.mean(), 1 - truth.mean()):.1f} %; who knew how labels were made would be right in {best:.1f} %.

| ε | | steps | time | memory | accuracy in % | deciding features found |
| --- | --- | --- | --- | --- | --- | --- |
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
