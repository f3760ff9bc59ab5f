"""Test accuracy of every mechanism at its public rule, paired over random splits: Adult and Bank.

Numbers have curves, as `dperm compare` and `dperm train` give them by default.

    DPERM_DATA=folder python benchmarks/accuracy.py [--repeats 10] [--jobs 2] [--sets adult,bank]

Writes benchmarks/results/accuracy.md and .json.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from pathlib import Path

import numpy as np

from dperm import data
from dperm.data.schema.schema import usual_knots
from dperm.release import spend_log
from dperm.report import Study, StudyResult, run_study
from dperm.report.candidates import CANDIDATES, USUAL
from dperm.report.page import machine
from dperm.report.summary import results_json

RESULTS = Path(__file__).parent / "results"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 4.0)


def load(name: str) -> data.Dataset:
    schema = data.schema_of(name)
    dataset = data.load(name, schema.with_curves(usual_knots(schema, 1.0, 1e-5)))
    if len(dataset) <= 50_000:
        return dataset
    keep = np.random.default_rng(0).permutation(len(dataset))[:30_000]
    return dataclasses.replace(dataset, features=dataset.features[keep], targets=dataset.targets[keep])


def table(result: StudyResult) -> str:
    """Means, and the paired difference of sharp objective perturbation from each mechanism."""
    reference = result.cell("non-private", None)
    lines = [
        f"## {result.title}: {result.records:,} records, {result.task.features} features",
        "",
        f"Without privacy {100 * reference.mean:.2f} ± {100 * reference.spread:.2f}; {result.study.repeats} repeats, "
        f"δ = {result.study.delta:g}, {result.seconds:.0f} s.",
        "",
        "| mechanism | " + " | ".join(f"ε = {epsilon:g}" for epsilon in EPSILONS) + " |",
        "| --- |" + " --- |" * len(EPSILONS),
    ]
    for key, candidate in ((key, CANDIDATES[key]) for key in USUAL):
        cells = [result.cell(key, epsilon) for epsilon in EPSILONS]
        lines.append(f"| {candidate.title} | " + " | ".join(f"{100 * c.mean:.2f} ± {100 * c.spread:.2f}" for c in cells) + " |")
    for key, candidate in ((key, CANDIDATES[key]) for key in USUAL):
        if key != "objective-sharp":
            pairs = [result.cell("objective-sharp", epsilon).paired(result.cell(key, epsilon)) for epsilon in EPSILONS]
            lines.append(
                f"| sharp − {candidate.short} | " + " | ".join(f"{100 * m:+.2f} ± {100 * w:.2f}" for m, w in pairs) + " |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sets", default="adult,bank")
    options = parser.parse_args()
    results: list[StudyResult] = []
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        for name in options.sets.split(","):
            study = Study(epsilons=EPSILONS, repeats=options.repeats, boosting=False)
            results.append(run_study(load(name), study, options.jobs).judged_by("accuracy"))
            print(table(results[-1]), flush=True)
    RESULTS.mkdir(exist_ok=True)
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    text = "# Accuracy at one public rule a mechanism\n\nIn % on held-out records, mean ± half-width of its 95 % interval.\n\n"
    (RESULTS / "accuracy.md").write_text(text + "\n\n".join(map(table, results)) + "\n\n" + about + "\n")
    (RESULTS / "accuracy.json").write_text(json.dumps(json.loads(results_json(results)), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
