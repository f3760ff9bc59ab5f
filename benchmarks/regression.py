"""Private linear regression: preconditioned descent beside descent, and AdaSSP. Writes results/regression.md.

    DPERM_DATA=... python benchmarks/regression.py

ACS income (acs_income/ACSincome-LIN_*.csv.gz in DPERM_DATA: a state's survey, target in 20 levels) and made tables.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression

from dperm.data import Dataset, Schema
from dperm.estimators import DPRidge
from dperm.mechanisms import Gradient
from dperm.privacy.accountants.gaussian import gaussian_mu

RESULTS = Path(__file__).parent / "results" / "regression.md"
EPSILONS, DELTA, RUNS = (0.1, 0.5, 1.0, 4.0), 1e-5, 4
_CATEGORIES = {"COW": 8, "MAR": 5, "RELP": 18, "SEX": 2, "RAC1P": 9}


def survey(curves: int) -> tuple[Any, Any, Any, Any]:
    columns: list[dict[str, Any]] = [
        {"name": name, "type": "number", "range": [0, high]} for name, high in (("AGEP", 99), ("SCHL", 23), ("WKHP", 99))
    ]
    columns += [
        {"name": name, "type": "category", "categories": [str(each) for each in range(count)]}
        for name, count in _CATEGORIES.items()
    ]
    stated = {
        "name": "acs",
        "target": "PINCP",
        "columns": [*columns, {"name": "PINCP", "type": "label"}],
        "target_range": [0, 19],
    }
    schema = Schema.from_dict(stated).with_curves(curves)
    parts: list[Any] = []
    for part in ("train", "test"):
        path = Path(os.environ["DPERM_DATA"]) / "acs_income" / f"ACSincome-LIN_{part}.csv.gz"
        table = Dataset.of(pd.read_csv(path), schema)
        assert table.target_range is not None
        parts += [table.features, table.target_range.scaled(table.targets)]
    rows, targets, other, truth = parts
    return rows, targets, other, truth


def made(count: int, features: int, kind: str) -> tuple[Any, Any, Any, Any]:
    rng = np.random.default_rng([count, features])
    if kind == "correlated":
        lengths = 1 / np.sqrt(np.arange(1, features + 1))
        turn = np.linalg.qr(rng.normal(size=(features, features)))[0]
        rows = rng.normal(size=(count + 5000, features)) * lengths @ turn.T / (1.5 * np.linalg.norm(lengths))
    else:
        chances = 1 / np.arange(1, 11)
        rows = np.hstack([np.eye(10)[rng.choice(10, count + 5000, p=chances / chances.sum())] for _ in range(features // 10)])
    means = rows @ rng.normal(size=features)
    means = (means - means.mean()) / means.std()
    targets = np.clip((means * np.sqrt(0.6) + np.sqrt(0.4) * rng.normal(size=len(rows))) / 3, -1, 1)
    return rows[:count], targets[:count], rows[count:], targets[count:]


def adassp(rows: Any, targets: Any, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Wang 2018, Algorithm 2, with exactly composed Gaussians, a third of μ² each."""
    square, d = 1.25, rows.shape[1]
    noise = np.sqrt(3) / gaussian_mu(epsilon, DELTA)
    gram = rows.T @ rows
    least = max(0.0, np.linalg.eigvalsh(gram)[0] + square * noise * (rng.normal() - np.sqrt(2 * np.log(1 / 0.05))))
    ridge = max(0.0, np.sqrt(d * np.log(2 * d * d / 0.05)) * square * noise - least)
    upper = np.triu(rng.normal(size=(d, d)))
    moved = gram + square * noise * (upper + np.triu(upper, 1).T)
    vector = rows.T @ targets + np.sqrt(square) * noise * rng.normal(size=d)
    return np.linalg.solve(moved + ridge * np.eye(d), vector)


def with_constant(rows: Any) -> np.ndarray:
    rows = np.asarray(rows, dtype=np.float64)
    rows = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
    return np.column_stack([rows, np.full(len(rows), 0.5)])


def score(truth: Any, answers: Any) -> float:
    return float(1 - np.square(truth - answers).sum() / np.square(truth - truth.mean()).sum())


def main() -> None:
    lines: list[str] = []
    tables = {
        "ACS income, 194,665 × 45": survey(0),
        "the same, curves of 12 knots": survey(12),
        "correlated, 10,000 × 50": made(10_000, 50, "correlated"),
        "correlated, 1,000 × 10": made(1000, 10, "correlated"),
        "one-hot, 100,000 × 200": made(100_000, 200, "one-hot"),
    }
    for name, (rows, targets, other, truth) in tables.items():
        best = score(truth, LinearRegression().fit(with_constant(rows), targets).predict(with_constant(other)))
        ways: dict[str, Any] = {
            "preconditioned descent (default)": {},
            "full-batch descent, radius 5": {"mechanism": Gradient(sampling="full"), "radius": 5.0},
        }
        for way, settings in ways.items():
            cells, seconds = [], []
            for epsilon in EPSILONS:
                found = []
                for _ in range(RUNS):
                    started = time.perf_counter()
                    model = DPRidge(epsilon=epsilon, delta=DELTA, public_size=len(targets), **settings).fit(rows, targets)
                    seconds.append(time.perf_counter() - started)
                    found.append(score(truth, model.predict(other)))
                cells.append(f"{statistics.fmean(found):.3f}")
            lines.append(f"| {name} | {way} | {' | '.join(cells)} | {best:.3f} | {statistics.median(seconds):.2f} s |")
        full, beside, rng = with_constant(rows), with_constant(other), np.random.default_rng()
        cells = [
            f"{statistics.fmean(score(truth, beside @ adassp(full, targets, epsilon, rng)) for _ in range(RUNS)):.3f}"
            for epsilon in EPSILONS
        ]
        lines.append(f"| {name} | AdaSSP | {' | '.join(cells)} | {best:.3f} | |")
        print("\n".join(lines[-3:]), flush=True)
    RESULTS.write_text(
        f"""# Private linear regression

`python benchmarks/regression.py`: R² on held-out records, means of {RUNS} runs, δ = {DELTA:g}, the number of records public.
"Without privacy" is least squares on the same rows. AdaSSP (Wang 2018) is written in the script, with exactly composed
Gaussian noise.

| table | | {" | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS)} | without privacy | a fit |
| --- | --- | {" | ".join("---" for _ in EPSILONS)} | --- | --- |
{chr(10).join(lines)}

{platform.processor() or platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}.
"""
    )


if __name__ == "__main__":
    main()
