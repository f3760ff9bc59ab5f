"""Whether a charged search of settings beats public rules on Adult. Writes results/search.md.

    DPERM_DATA=folder python benchmarks/search.py

Accuracy on held-out records, mean and spread of 10 runs. The records that tries are scored on are taken for public.
"""

from __future__ import annotations

import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dperm.data import load
from dperm.estimators import DPLogisticRegression, DPSearch
from dperm.mechanisms import Gradient, Objective
from dperm.release.selection import set_aside

RUNS, DELTA = 10, 1e-5
RESULTS = Path(__file__).parent / "results" / "search.md"
CANDIDATES = {
    "DP-SGD, 5 learning rates × 5 and 20 epochs": [
        Gradient(learning_rate=rate, epochs=epochs) for rate in (0.1, 0.3, 1.0, 3.0, 10.0) for epochs in (5, 20)
    ],
    "objective, 5 regularisers": [Objective(strong_convexity=modulus) for modulus in (30.0, 100.0, 300.0, 1000.0, 3000.0)],
}


def main() -> None:
    warnings.simplefilter("ignore")
    data = load("adult")
    rows = data.features / np.sqrt((data.features**2).sum(axis=1).max())
    order = np.random.default_rng(0).permutation(len(rows))
    look, train, test = order[:4_500], order[4_500:40_000], order[40_000:]
    held_out = rows[look], data.targets[look]
    base = DPLogisticRegression(public_size=len(train), classes=list(data.classes))

    def shown(fit: Any) -> str:
        started = time.perf_counter()
        with set_aside():
            found = [100 * fit().score(rows[test], data.targets[test]) for _ in range(RUNS)]
        return f"{np.mean(found):.1f} ± {np.std(found):.1f} ({(time.perf_counter() - started) / RUNS:.1f} s)"

    lines = ["| ε | way | accuracy in %, time |", "| --- | --- | --- |"]
    for epsilon in (0.2, 1.0):
        for name, methods in CANDIDATES.items():
            key = "gradient" if "SGD" in name else "objective"
            public = DPLogisticRegression(**{**base.get_params(), "epsilon": epsilon, "delta": DELTA, "mechanism": key})
            lines.append(f"| {epsilon:g} | {key}, public rules | {shown(lambda: public.fit(rows[train], data.targets[train]))} |")  # noqa: B023
            search = DPSearch(base, {"mechanism": methods}, epsilon, DELTA)
            fitted = shown(lambda: search.fit(rows[train], data.targets[train], held_out=held_out))  # noqa: B023
            lines.append(f"| {epsilon:g} | search ({search.how_}) over {name} | {fitted} |")
            print("\n".join(lines[-2:]), flush=True)
    versions = f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, 1 thread, beside other work"
    RESULTS.write_text("\n".join(["# A charged search against public rules: Adult", "", *lines, "", versions + ".", ""]))


if __name__ == "__main__":
    main()
