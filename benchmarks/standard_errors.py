"""Coverage of confidence intervals and of bands for noise, over many fits. Writes results/standard_errors.md.

    python benchmarks/standard_errors.py [fits]

Intervals: new records for each fit, from a known law. Bands: one table of records, trained on again and again, whose levels are
common, rare, empty, and alike in 87 of 100 rows; what the noise did is known beside the minimiser without noise.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from dperm.audit.outputs import unlogged
from dperm.estimators import DPLogisticRegression, DPRidge
from dperm.inference import ContrastNoise, coefficient_intervals, release_derivatives
from dperm.mechanisms import Objective
from dperm.objectives import RegularisedSum
from dperm.report.page import machine
from dperm.solvers import minimise

RESULTS = Path(__file__).parent / "results" / "standard_errors.md"
WEIGHTS = np.array([3.0, -2.0, 0.0, 1.0])
LEVEL, FAR = 0.95, 1.959964
SHARES = ([0.6, 0.3, 0.1, 0.0], [0.5, 0.5], [0.4, 0.3, 0.2, 0.1], [0.7, 0.28, 0.02], [0.9, 0.09, 0.01])


def logistic(rng: np.random.Generator, size: int) -> tuple[Any, Any, Any]:
    rows = rng.uniform(-1, 1, (size, 4)) / 2
    targets = (rng.random(size) < expit(rows @ WEIGHTS + 0.5)).astype(int)
    return rows, targets, np.array([*WEIGHTS, 0.5])


def amounts(rng: np.random.Generator, size: int) -> tuple[Any, Any, Any]:
    rows = rng.uniform(-1, 1, (size, 4)) / 2
    return rows, 10 * rows @ WEIGHTS + 50 + rng.normal(0, 4, size), np.array([*(10 * WEIGHTS), 50])


def uneven(rng: np.random.Generator, size: int) -> tuple[Any, Any, Any]:
    """Amounts whose residuals are larger where the first feature is: a model of equal residuals is not true."""
    rows = rng.uniform(-1, 1, (size, 4)) / 2
    spread = 1 + 12 * np.abs(rows[:, 0])
    return rows, 10 * rows @ WEIGHTS + 50 + spread * rng.normal(0, 1, size), np.array([*(10 * WEIGHTS), 50])


def classifier(size: int) -> Any:
    return DPLogisticRegression(epsilon=1.0, mechanism=Objective(margin=0.0), public_size=size, classes=[0, 1])


def regression(size: int) -> Any:
    return DPRidge(epsilon=1.0, public_size=size, target_range=(0, 100))


#: name, records, what makes them, estimator, spread, ε of the derivatives
SETTINGS = (
    ("logistic, 5,000 records", 5_000, logistic, classifier, "model", 0.5),
    ("logistic, 20,000 records, robust", 20_000, logistic, classifier, "robust", 2.0),
    ("amounts, 5,000 records", 5_000, amounts, regression, "model", 1.0),
    ("amounts of uneven residuals, 20,000 records, robust", 20_000, uneven, regression, "robust", 2.0),
)


def intervals(fits: int) -> Iterator[str]:
    for name, size, make, estimator, spread, epsilon in SETTINGS:
        rng = np.random.default_rng(1)
        held: list[Any] = []
        wide: list[Any] = []
        for _ in range(fits if size < 10_000 else fits // 4):
            rows, targets, truth = make(rng, size)
            model = estimator(size).fit(rows, targets)
            released = release_derivatives(model, rows, targets, epsilon=epsilon, spread=spread, clipped="named")
            found = coefficient_intervals(model, released, level=LEVEL)
            held.append([each.low <= value <= each.high for each, value in zip(found, truth, strict=True)])
            wide.append([each.standard_error for each in found])
        coverage, error = np.mean(held, axis=0), np.sqrt(LEVEL * (1 - LEVEL) / len(held))
        below = (LEVEL - coverage.min()) / error
        covered = ", ".join(f"{each:.4f}" for each in coverage)
        errors = ", ".join(f"{each:.3g}" for each in np.mean(wide, axis=0))
        yield f"| {name} | {len(held):,} | {covered} | {error:.4f} ({below:+.1f}) | {errors} |"


def levels(size: int) -> tuple[Any, Any, list[tuple[str, slice]]]:
    """One-hot rows of six columns, the last like the second in 87 of 100; targets; and where the columns are."""
    rng = np.random.default_rng(3)
    chosen = [rng.choice(len(share), size, p=share) for share in SHARES]
    chosen.append(np.where(rng.random(size) < 0.87, chosen[1], 1 - chosen[1]))
    widths = [*map(len, SHARES), 2]
    rows = np.hstack([np.eye(width)[each] for each, width in zip(chosen, widths, strict=True)]) / np.sqrt(len(widths))
    starts = np.cumsum([0, *widths])
    targets = (rng.random(size) < expit(2 * rows[:, 0] - 3 * rows[:, 4] + 1.5 * rows[:, 8])).astype(int)
    return rows, targets, [(f"column {k + 1}", slice(starts[k], starts[k + 1])) for k in range(len(widths))]


def bands(size: int, fits: int) -> Iterator[str]:
    rows, targets, columns = levels(size)
    share = rows.astype(bool).mean(axis=0)
    first = classifier(size).fit(rows, targets)
    objective, records, _ = first.records_of(rows, targets)
    strong = first.trace_["strong_convexity"]
    problem = RegularisedSum(objective.with_strong_convexity(strong), records.admitted(objective.loss.admit))
    without = minimise(problem, 1e-6).theta
    never = np.zeros((len(columns), len(without)))
    for k, (_, column) in enumerate(columns):
        never[k, column], never[k, -1] = 1.0, -1 / np.sqrt(len(columns)) / objective.intercept_scale
    held: dict[tuple[int, int], list[Any]] = {}
    for _ in range(fits):
        model = classifier(size).fit(rows, targets)
        noise = ContrastNoise.of(model, release_derivatives(model, rows, targets, epsilon=1.0, spread="noise"), never=never)
        moved = model.parameters() - without
        for k, (_, column) in enumerate(columns):
            weights = noise.reference(column)
            contrasts = np.zeros((len(weights), len(moved)))
            contrasts[:, column] = np.eye(len(weights)) - weights
            deviations = noise.deviations(contrasts)
            for level, (contrast, deviation) in enumerate(zip(contrasts, deviations, strict=True)):
                far = abs(float(contrast @ moved))
                held.setdefault((k, level), []).append((far <= FAR * deviation, far, deviation))
    for (k, level), found in held.items():
        name, column = columns[k]
        table = np.array(found, dtype=float)
        error = np.sqrt(LEVEL * (1 - LEVEL) / len(table))
        coverage, true, told = table[:, 0].mean(), np.sqrt(np.square(table[:, 1]).mean()), np.median(table[:, 2])
        part = f"{100 * share[column.start + level]:.1f} %"
        below = (LEVEL - coverage) / error
        yield f"| {name}, level {level + 1} | {part} | {coverage:.4f} ({below:+.1f}) | {true:.3g} | {told:.3g} |"


def main() -> None:
    fits = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    warnings.simplefilter("ignore")
    lines = ["# Coverage of intervals and of bands for noise", ""]
    with unlogged():
        lines += [
            "## Intervals of coefficients, of nominal coverage 0.95", "",
            "Models at ε = 1, δ = 1e-5; derivatives at ε = 0.5 to 2 more. New records for each fit.", "",
            "| records and model | fits | coverage of four coefficients and the intercept "
            "| simulation error (the lowest is so many below) | standard errors |",
            "| --- | --- | --- | --- | --- |",
        ]  # fmt: skip
        for line in intervals(fits):
            print(line, flush=True)
            lines.append(line)
        for size in (5_000, 50_000):
            lines += [
                "", f"## Bands for noise: {size:,} records, nominal coverage 0.95", "",
                "Logistic model at ε = 1; the Hessian at ε = 1 more. A level beside the weighted mean of the present ones.", "",
                "| level | share of rows | coverage (so many simulation errors below) | what noise did | what the band says |",
                "| --- | --- | --- | --- | --- |",
            ]  # fmt: skip
            for line in bands(size, fits if size < 10_000 else fits // 10):
                print(line, flush=True)
                lines.append(line)
    lines += [
        "",
        *(f"- {name}: {value}" for name, value in machine().items()),
        f"- `python benchmarks/standard_errors.py {fits}`",
    ]
    RESULTS.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
