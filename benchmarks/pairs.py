"""What pairs of columns add to the default of `dperm train`: public tables with ten pairs, or as many as there are reasons for.

    DPERM_DATA=folder python benchmarks/pairs.py

Pairs were named by what the columns mean, before anything was trained. Scores are R² or AUC, paired over the splits of
`tables.py`, with two standard errors of the difference. Writes results/pairs.md.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dperm.release import spend_log
from dperm.report.page import machine
from dperm.report.released import release_class_scores, release_number_scores
from tables import EPSILONS, WAYS, Task, private

RESULTS = Path(__file__).parent / "results" / "pairs.md"
SPLITS = 5

PAIRS = {
    "acs_income": "AGEP SCHL|AGEP WKHP|SCHL WKHP|AGEP SEX|SCHL SEX|WKHP SEX|AGEP MAR|SEX MAR|WKHP COW|SCHL COW",
    "mothers": "age agefstm|age educ|educ nonmomi|kids age|kids nonmomi|kids educ|age nonmomi|black educ|black nonmomi|"
    "hispan educ",
    "pension": "inc age|inc nettfa|age nettfa|inc marr|inc fsize|inc male|age marr|male marr|inc pira|nettfa pira",
    "affairs": "age yrs_married|rate_marriage religious|rate_marriage yrs_married|children yrs_married|age religious",
    "adult": "age education-num|age hours-per-week|education-num hours-per-week|age sex|sex hours-per-week|education-num sex",
    "diamonds": "carat clarity|carat color|carat cut|color clarity|carat depth|carat table|x y|x z|depth table|cut clarity",
}


def chosen(name: str, plain: Task, more: Task) -> str:
    """A line of what choosing by charged scores comes to: both models at half of ε = 1, judged on a tenth of the training records
    that neither saw, by scores at ε = 0.5 each; beside the additive model of all training records at ε = 1."""
    score, picked, found, usual = "AUC" if plain.classes else "R²", 0, list[float](), list[float]()
    for number in range(SPLITS):
        train, test = plain.split(number)
        judged = np.random.default_rng([50, number]).random(len(train)) < 0.1
        parts, results = (train[~judged], np.concatenate([train[judged], test])), list[tuple[float, float]]()
        for task in (plain, more):
            answers = private(task, WAYS["default"], parts, 0.5)
            here, there = answers[: judged.sum()], answers[judged.sum() :]
            results.append((released(task, train[judged], here), task.scores(there, test)[score]))
        best = max(range(2), key=lambda place: results[place][0])
        picked += best
        found.append(results[best][1])
        usual.append(plain.scores(private(plain, WAYS["default"], (train, test), 1.0), test)[score])
    gained = np.subtract(found, usual)
    error = 2 * gained.std(ddof=1) / np.sqrt(SPLITS)
    came = f"{np.mean(found):.3f} ({gained.mean():+.4f} ± {error:.4f})"
    return f"| {name}, {score} | {np.mean(usual):.3f} | {came} | {picked} of {SPLITS} |"


def released(task: Task, rows: Any, answers: Any) -> float:
    """The score of answers on rows, with noise."""
    truth, label = task.straight.targets[rows], task.name
    if not task.classes:
        bounds = tuple(task.table.schema.target_range or ())
        return release_number_scores(truth, answers, bounds, epsilon=0.5, label=label).whole.scores["R²"]
    classes = sorted(task.straight.classes)
    numbers = np.searchsorted(classes, truth)
    scores = release_class_scores(numbers, answers.argmax(axis=1), answers[:, 1], classes, epsilon=0.5, label=label)
    return scores.whole.scores["AUC"]


def main() -> None:
    warnings.simplefilter("ignore")
    choices = ["| table | additive, ε = 1 | chosen by scores | pairs were kept |", "| --- " * 4 + "|"]
    lines = [f"| table | pairs | features | {' | '.join(f'ε = {epsilon:g}' for epsilon in EPSILONS)} |", "| --- " * 6 + "|"]
    with tempfile.TemporaryDirectory() as folder, spend_log(Path(folder) / "spend.db"):
        for name, stated in PAIRS.items():
            plain, more = Task(name), Task(name)
            pairs = tuple((first, second) for first, second in (pair.split() for pair in stated.split("|")))
            more.table = replace(more.table, schema=replace(more.table.schema, pairs=pairs))
            score = "AUC" if plain.classes else "R²"
            cells: list[str] = []
            for epsilon in EPSILONS:
                found: list[list[float]] = [[], []]
                for number in range(SPLITS):
                    parts = plain.split(number)
                    for place, task in enumerate((plain, more)):
                        answers = private(task, WAYS["default"], parts, epsilon)
                        found[place].append(task.scores(answers, parts[1])[score])
                gained = np.subtract(found[1], found[0])
                error = 2 * gained.std(ddof=1) / np.sqrt(SPLITS)
                cells.append(f"{np.mean(found[0]):.3f}, {gained.mean():+.4f} ± {error:.4f}")
            knots = 8 if more.table.schema.with_curves(8).dimension <= 1000 else 5
            sizes = [task.table.schema.with_curves(knots).dimension for task in (plain, more)]
            lines.append(f"| {name}, {score} | {len(pairs)} | {sizes[0]}, {sizes[1]} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
            choices.append(chosen(name, plain, more))
            print(choices[-1], flush=True)
    said = (
        "The additive model's score, and what pairs add, with two standard errors over five splits; the number of records is "
        "private, δ = 10⁻⁵ (`python benchmarks/pairs.py`). Features: without pairs, and with them."
    )
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    choosing = (
        "Choosing by charged scores: the additive model and that with pairs are trained at ε = 0.5 each on nine tenths of the "
        "training records, and the better one by scores at ε = 0.5 each on the last tenth is kept. Nobody's records cost more "
        "than ε = 1. Beside it the additive model at ε = 1, of all training records."
    )
    table, other = "\n".join(lines), "\n".join(choices)
    RESULTS.write_text(f"# Pairs of columns\n\n{said}\n\n{table}\n\n{choosing}\n\n{other}\n\n{about}\n")


if __name__ == "__main__":
    main()
