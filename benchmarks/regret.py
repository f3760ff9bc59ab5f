"""Regret of mechanism="auto": what it gives beside the best method in hindsight, on every named set and on made tables.

    DPERM_DATA=folder python benchmarks/regret.py [--repeats 10] [--jobs 2] [--sets adult,bank,…]

All methods are at their public rules, on the same splits, with curves as `dperm compare` has them. Hindsight picks for each set
and ε the method with the best mean accuracy: an advantage that no private user has. Writes benchmarks/results/regret.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from pathlib import Path

import numpy as np

from accuracy import load
from dperm import data
from dperm.mechanisms import Auto, Budget
from dperm.release import spend_log
from dperm.report import Cell, Study, StudyResult, run_study
from dperm.report.candidates import CANDIDATES
from dperm.report.page import machine
from made import made_table

RESULTS = Path(__file__).parent / "results" / "regret.md"
EPSILONS, DELTA = (0.1, 0.5, 1.0, 2.0, 4.0), 1e-5
NAMED = ("breast_cancer", "breast_cancer_original", "creditcard_balanced", "bank", "adult")
MADE = {"made_1": (1250, 12, 4), "made_2": (12_500, 12, 4), "made_3": (25_000, 30, 0)}  # records, numbers, categories
METHODS = (
    "output", "objective-kifer", "objective-sharp", "gradient-full", "gradient-poisson", "coordinate", "individual",
    "lssgd", "m-ngp",
)  # fmt: skip
SMALL = 3000  # records: more repeats


def made(name: str) -> data.Dataset:
    records, numbers, categories = MADE[name]
    rows, labels = made_table(records, numbers, categories, seed=len(name) + records)
    labels = np.where(labels > 0, "yes", "no")
    named = {"name": name, "title": f"Made table {name[-1]}", "classes": ("no", "yes")}
    return dataclasses.replace(data.load("breast_cancer"), features=rows, targets=labels, **named)


def dataset(name: str) -> data.Dataset:
    if name in MADE:
        return made(name)
    return load(name)


def chosen_by_auto(result: StudyResult, epsilon: float) -> str:
    method = Auto().chosen(result.task, Budget(DELTA, epsilon))
    return next(key for key, candidate in CANDIDATES.items() if candidate.method == method)


def row(result: StudyResult) -> tuple[list[str], float]:
    """Cells of the table, and the largest regret."""
    cells, worst = list[str](), -math.inf
    for epsilon in EPSILONS:
        own = result.cell(chosen_by_auto(result, epsilon), epsilon)
        others: list[Cell] = [cell for cell in result.cells if cell.epsilon == epsilon and cell is not own]
        best = max(others, key=lambda cell: cell.mean)
        ahead, width = best.paired(own)
        worst = max(worst, 100 * ahead)
        title = CANDIDATES[best.mechanism].short
        cells.append(f"{100 * own.mean:.2f}; {title} {100 * best.mean:.2f} ({100 * ahead:+.2f} ± {100 * width:.2f})")
    return cells, worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5, help="Of large sets; small ones have four times as many.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sets", default=",".join((*MADE, *NAMED)))
    options = parser.parse_args()
    lines = [
        "| data set | records × features | largest regret | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |",
        "| --- | --- | --- |" + " --- |" * len(EPSILONS),
    ]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        for name in options.sets.split(","):
            records = dataset(name)
            repeats = options.repeats * (4 if len(records) <= SMALL else 1)
            study = Study(epsilons=EPSILONS, delta=DELTA, repeats=repeats, mechanisms=METHODS, boosting=False)
            result = run_study(records, study, options.jobs).judged_by("accuracy")
            cells, worst = row(result)
            size = f"{result.records:,} × {result.task.features}"
            lines.append(f"| {result.title} | {size} | {worst:.2f} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    text = (
        '# Regret of mechanism="auto"\n\nAccuracy in % of what it chooses, the best of eight others by mean accuracy, and by how '
        "much that is ahead, with the 95 % interval over paired splits (negative: behind). The number of records is public. "
        f"{4 * options.repeats} splits of tables below {SMALL:,} records, {options.repeats} of others.\n\n"
    )
    about = "\n".join(f"- {key}: {value}" for key, value in machine().items())
    RESULTS.write_text(text + "\n".join(lines) + "\n\n" + about + "\n")


if __name__ == "__main__":
    main()
