"""Writes results/tables.md of what `tables.py` has found: means by table and ε, and where the default falls short.

python benchmarks/tables_report.py
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import norm

from dperm.report.page import machine

RESULTS = Path(__file__).parent / "results" / "tables.jsonl"
EPSILONS = (0.5, 1.0, 4.0)
DEFAULT, STATED, REFERENCES, PEERS = "default", "default, n public", ("linear", "boosting"), ("DP-EBM", "diffprivlib")
ALLOWED = {"accuracy": 0.003, "AUC": 0.003, "R²": 0.02}
_BEYOND = float(norm.cdf(-2))  # the chance of more than two standard errors, on one side

Cells = dict[tuple[str, str, float | None, str], dict[int, float]]


class Found:
    """Scores by table, method, ε and score, each by its split."""

    def __init__(self, path: Path) -> None:
        self.cells: Cells = defaultdict(dict)
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        for line in path.read_text().splitlines():
            row = json.loads(line)
            self.seconds[row["table"], row["method"]].append(row["seconds"])
            for name, score in row["scores"].items():
                self.cells[row["table"], row["method"], row["epsilon"], name][row["split"]] = score
        self.tables = list(dict.fromkeys(table for table, *_ in self.cells))

    def scores(self, table: str) -> list[str]:
        return [name for name in ALLOWED if (table, DEFAULT, 1.0, name) in self.cells]

    def mean(self, table: str, method: str, epsilon: float | None, score: str) -> float | None:
        cell = self.cells.get((table, method, epsilon, score))
        return statistics.fmean(cell.values()) if cell else None

    def others(self, table: str, epsilon: float) -> list[str]:
        """dperm's other mechanisms, with the number of records public."""
        known = dict.fromkeys(method for name, method, value, _ in self.cells if name == table and value == epsilon)
        return [method for method in known if method not in (DEFAULT, STATED, *PEERS)]

    def lead(self, table: str, of: str, over: str, epsilon: float, score: str) -> tuple[float, float, int]:
        """Mean paired difference, its standard error, and the number of splits that both have."""
        one, other = self.cells[table, of, epsilon, score], self.cells[table, over, epsilon, score]
        differences = np.array([one[split] - other[split] for split in one if split in other])
        return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences))), len(differences)


def shown(value: float | None, score: str) -> str:
    if value is None:
        return "—"
    if score == "R²":
        return f"{value:.3f}" if value > -1 else f"{value:.1f}" if value > -100 else "below −100"
    return f"{100 * value:.1f}" if score == "accuracy" else f"{value:.3f}"


def table_of(found: Found, score: str) -> list[str]:
    heads = ["table", "ε", "default", "n public", "best other mechanism", "DP-EBM", "diffprivlib", "linear", "boosting"]
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for table in found.tables:
        if score not in found.scores(table):
            continue
        for epsilon in EPSILONS:
            others = found.others(table, epsilon)
            means = {method: mean for method in others if (mean := found.mean(table, method, epsilon, score)) is not None}
            best = max(means, key=lambda method: means[method], default="none")
            named = f"{shown(means.get(best), score)} ({best})"
            cells = [shown(found.mean(table, method, epsilon, score), score) for method in (DEFAULT, STATED)]
            peers = [shown(found.mean(table, method, epsilon, score), score) for method in PEERS]
            free = [shown(found.mean(table, method, None, score), score) for method in REFERENCES]
            lines.append("| " + " | ".join([table, f"{epsilon:g}", *cells, named, *peers, *free]) + " |")
    return lines


def behind(found: Found, own: str, rivals: Sequence[str] | None, allowed: bool) -> tuple[list[str], int]:
    """Where `own` is behind one of its rivals (None: dperm's other mechanisms) by more than is allowed and beyond two standard
    errors, corrected for how many they are; and how many comparisons there were."""
    lines, count = list[str](), 0
    for table in found.tables:
        for score in found.scores(table):
            for epsilon in EPSILONS:
                named = found.others(table, epsilon) if rivals is None else list(rivals)
                named = [each for each in named if (table, each, epsilon, score) in found.cells]
                errors = float(-norm.ppf(_BEYOND / max(1, len(named))))
                for rival in named:
                    if len(found.cells[table, rival, epsilon, score]) < 3:
                        continue  # interrupted: nothing is said of chance
                    lead, error, splits = found.lead(table, rival, own, epsilon, score)
                    count += 1
                    if lead - (ALLOWED[score] if allowed else 0.0) > errors * error:
                        said = (
                            f"{shown(found.mean(table, own, epsilon, score), score)}, {rival} {lead:+.4f} ± {errors * error:.4f}"
                        )
                        lines.append(f"- {table}, ε = {epsilon:g}, {score}: {said} ({splits} splits)")
    return lines, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--output", type=Path, default=RESULTS.with_suffix(".md"))
    options = parser.parse_args()
    from tables import ABOUT, Task

    found = Found(options.results)
    text = ["# Public tables", "", ABOUT, ""]
    text += ["| table | rows | columns | splits | what | from |", "| --- | --- | --- | --- | --- | --- |"]
    for name in found.tables:
        task = Task(name)
        persons = f" of {len(np.unique(task.straight.groups)):,} persons" if task.straight.groups is not None else ""
        splits = len(found.cells[name, DEFAULT, 1.0, found.scores(name)[0]])
        columns = len(task.table.schema.feature_columns)
        text.append(
            f"| {name} | {len(task.straight):,}{persons} | {columns} | {splits} | {task.table.kind} | {task.table.source} |"
        )
    for score, title in (("AUC", "AUC"), ("accuracy", "Accuracy, in %"), ("R²", "R²")):
        text += ["", f"## {title}", "", *table_of(found, score)]
    text += ["", "## Where the default falls short", ""]
    for title, own, rivals, allowed in (
        ("Behind DP-EBM beyond noise", DEFAULT, ["DP-EBM"], False),
        ("With n public, behind another mechanism of dperm by more than is allowed", STATED, None, True),
        ("With n private, behind another mechanism of dperm that has n public by more than is allowed", DEFAULT, None, True),
    ):
        lines, count = behind(found, own, rivals, allowed)
        text += [f"{title}: {len(lines)} of {count}.", "", *lines, *([""] if lines else [])]
    slow = [f"{method} {statistics.median(took):.1f}" for (table, method), took in found.seconds.items() if table == "adult"]
    text += [f"Seconds of a fit with its encoding, on Adult: {', '.join(slow)}."]
    text += ["", *(f"- {name}: {value}" for name, value in machine().items())]
    options.output.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
