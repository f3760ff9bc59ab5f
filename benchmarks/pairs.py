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

import numpy as np

from dperm.release import spend_log
from dperm.report.page import machine
from tables import EPSILONS, WAYS, Task, private

RESULTS = Path(__file__).parent / "results" / "pairs.md"
SPLITS = 5

PAIRS = {
    "acs_income": "AGEP SCHL|AGEP WKHP|SCHL WKHP|AGEP SEX|SCHL SEX|WKHP SEX|AGEP MAR|SEX MAR|WKHP COW|SCHL COW",
    "diamonds": "carat clarity|carat color|carat cut|color clarity|carat depth|carat table|x y|x z|depth table|cut clarity",
    "mothers": "age agefstm|age educ|educ nonmomi|kids age|kids nonmomi|kids educ|age nonmomi|black educ|black nonmomi|"
    "hispan educ",
    "pension": "inc age|inc nettfa|age nettfa|inc marr|inc fsize|inc male|age marr|male marr|inc pira|nettfa pira",
    "affairs": "age yrs_married|rate_marriage religious|rate_marriage yrs_married|children yrs_married|age religious",
    "adult": "age education-num|age hours-per-week|education-num hours-per-week|age marital-status|age sex|sex marital-status|"
    "sex hours-per-week|education-num sex|capital-gain age|education-num marital-status",
    "bank": "age euribor3m|age campaign|euribor3m campaign|age marital|age default|euribor3m poutcome|age contact|age housing",
}


def main() -> None:
    warnings.simplefilter("ignore")
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
    said = (
        "The additive model's score, and what pairs add, with two standard errors over five splits; the number of records is "
        "private, δ = 10⁻⁵ (`python benchmarks/pairs.py`). Features: without pairs, and with them."
    )
    about = "\n".join(f"- {name}: {value}" for name, value in machine().items())
    table = "\n".join(lines)
    RESULTS.write_text(f"# Pairs of columns\n\n{said}\n\n{table}\n\n{about}\n")


if __name__ == "__main__":
    main()
