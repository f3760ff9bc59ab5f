"""A study on the terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dperm._extras import needed
from dperm._json import on_one_line
from dperm.gradient.correlation.choosing import Compared
from dperm.objectives import RECORD
from dperm.privacy.accountants.closed_forms import Rung
from dperm.report.bounds import BoundRow
from dperm.report.candidates import CANDIDATES
from dperm.report.choosing import Level
from dperm.report.influence import Influences
from dperm.report.page import machine
from dperm.report.study import StudyResult
from dperm.utility import Problem

with needed("rich", "A table on the terminal"):
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def result_table(result: StudyResult, console: Console | None = None) -> None:
    """Print mean ± 95 % half-width, in percent, for each mechanism and ε; the best of a column in bold if told apart."""
    keys = list(dict.fromkeys(cell.mechanism for cell in result.cells if cell.epsilon is not None))
    reference = result.cell("non-private", None)
    console = console or Console()
    repeated = "1 split" if result.study.repeats == 1 else f"{result.study.repeats} repeats"
    _print(console, result.title, style="bold")
    whose = "rows of other persons" if result.task.unit != RECORD else "records"
    _print(console, f"{result.metric} in % on held-out {whose}, {repeated}, δ = {result.study.delta:g}")
    if result.study.repeats > 1:
        _print(console, "(± half of a 95 % interval, for other splits)")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Mechanism")
    for epsilon in result.study.epsilons:
        table.add_column(f"ε = {epsilon:g}", justify="right", no_wrap=True)
    best = {epsilon: result.best(epsilon) for epsilon in result.study.epsilons}
    for key in keys:
        row: list[Text] = []
        for epsilon in result.study.epsilons:
            cell = result.cell(key, epsilon)
            row.append(_line(_shown(cell.mean, cell.spread), style="bold green" if best[epsilon] == key else ""))
        table.add_row(_line(CANDIDATES[key].short), *row)
    console.print(table)
    baseline = f" Most frequent class: {100 * result.baseline:.1f}." if result.metric == "accuracy" else ""
    _print(console, f"Without privacy: {_shown(reference.mean, reference.spread)}.{baseline}")
    console.print()


def _table(columns: Sequence[str], texts: Sequence[str] = (), title: str = "") -> Table:
    """An empty table, with `texts` to the left and numbers to the right."""
    table = Table(title=_line(title) if title else None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name in texts else "right")
    return table


def influence_table(found: Influences, count: int, console: Console | None = None) -> None:
    """Print the records that matter most."""
    console = console or Console()
    title = _line(found.dataset.title or found.dataset.name, style="bold")
    console.print(title.append_text(_line(f": change of {found.what} where a record leaves")))
    table = _table(("Row", "Change", "Target", "Loss"), texts=("Target",))
    for record in found.most(count):
        told = (str(record["row"]), f"{record['change']:.4g}", record["target"], f"{record['loss']:.4g}")
        table.add_row(*map(_line, told))
    console.print(table)
    share = found.share_of(max(1, len(found.change) // 100))
    _print(console, f"The most influential hundredth of {len(found.change):,} records has {100 * share:.1f} % of all influence.")


def level_table(rows: Sequence[Level], metric: str, console: Console | None = None) -> None:
    """Print what each ε buys, and what it leaves to an attacker."""
    console = console or Console()
    table = _table(("ε", metric.replace("_", " ").capitalize(), "80 % of trainings", "Attack finds", "Advantage"))
    for row in rows:
        cells = (
            f"{row.epsilon:.4g}",
            f"{row.mean:.4f}",
            f"{row.low:.4f} to {row.high:.4f}",
            f"≤ {100 * row.found:.3g} of 100",
            f"≤ {100 * row.advantage:.3g} points",
        )
        table.add_row(*(_line(cell, style="bold green" if row.chosen else "") for cell in cells))
    console.print(table)
    _print(console, "The best attack there can be, by someone who knows all other records and accuses 1 of 100 wrongly.")


def bound_table(rows: Sequence[BoundRow], problem: Problem, console: Console | None = None) -> None:
    """Print bounds of excess risk, their slopes, and what those without a value need."""
    console = console or Console()
    title = f"{problem.size:,} records, {problem.dimension} parameters, ε = {problem.epsilon:g}, δ = {problem.delta:g}"
    table = _table(("Bound", "Source", "Excess risk", "In n", "In ε"), ("Bound", "Source"), title)
    for row in rows:
        if row.value is None:
            continue
        slopes = ["" if slope is None else f"{slope:.2f}" for slope in (row.in_size, row.in_epsilon)]
        height = f"{row.value:.3g}" + ("" if row.bound.exact else " ?") + (" at least" if row.bound.of == "lower" else "")
        table.add_row(*map(_line, (row.bound.name, row.bound.source, height, *slopes)))
    console.print(table)
    _print(console, "?: its source leaves constants out; the rate with the constant 1. Slopes are of logarithms.")
    for caveat in dict.fromkeys(row.bound.caveat for row in rows if row.bound.caveat and row.value is not None):
        _print(console, f"Note: {caveat}")
    missing = [row for row in rows if row.value is None]
    if missing:
        needed = sorted({name for row in missing for name in row.bound.needs if getattr(problem, name) is None})
        _print(console, f"{len(missing)} more need {', '.join(needed)}.")


def ladder_table(rungs: Sequence[Rung], title: str, console: Console | None = None) -> None:
    """Print ε by each formula, and how many times the exact one it is."""
    console = console or Console()
    table = _table(("Accounting", "Source", "ε", "÷ exact"), ("Accounting", "Source"), title)
    exact = rungs[-1].epsilon
    for rung in rungs:
        value = "" if rung.epsilon is None else f"{'' if rung.bound else '≈ '}{rung.epsilon:.4g}"
        factor = "" if rung.epsilon is None or not exact else f"{rung.epsilon / exact:.3g}"
        table.add_row(*map(_line, (rung.name, rung.source, value, factor)))
    console.print(table)
    for rung in rungs:
        if rung.why:
            _print(console, f"No {rung.name}: {rung.why}.")
    if any(not rung.bound and rung.epsilon is not None for rung in rungs):
        _print(console, "≈: an approximation, no bound.")


def strategies_table(found: Sequence[Compared], title: str, console: Console | None = None) -> None:
    """Print what each strategy for correlated noise keeps, how far a record moves its releases, its noise, and its error."""
    heads = ("Strategy", "Records in", "Vectors kept", "Sensitivity", "Noise", "Error, %")
    table = _table(heads, ("Strategy", "Records in"), title)
    for each in found:
        numbers = (f"{each.kept}", f"{each.sensitivity:.4g}", f"{each.noise:.4g}", f"{100 * each.error:.1f}")
        table.add_row(*map(_line, (each.name, each.sampling, *numbers)))
    console = console or Console()
    console.print(table)
    _print(
        console, "Sensitivity and noise in clipping norms; error: noise left in the last iterate, in % of DP-SGD's at the same ε."
    )


def _line(text: str, style: str = "") -> Text:
    """A line of a text that may hold names of others: nothing in it is read as markup, or steers the terminal."""
    return Text(on_one_line(text), style=style)


def _print(console: Console, line: str, style: str = "") -> None:
    console.print(_line(line, style))


def _shown(mean: float, spread: float) -> str:
    if mean < -9.99:  # an R² that low says only that the model is useless
        return "< -999"
    return f"{100 * mean:.1f}" + (f"±{100 * spread:.1f}" if spread == spread else "")


def results_json(results: Sequence[StudyResult]) -> str:
    """Every repeat's score and excess risk, the certificates, the settings and the machine."""
    return json.dumps(
        {"machine": machine(), "studies": [_study(result) for result in results]}, ensure_ascii=False, allow_nan=False
    )


def _study(result: StudyResult) -> dict[str, Any]:
    return {
        "dataset": result.dataset,
        "records": result.records,
        "features": result.task.features,
        "classes": result.task.classes,
        "metric": result.metric,
        "baseline": result.baseline,
        "settings": vars(result.study),
        "seconds": result.seconds,
        "cells": [
            {
                "mechanism": cell.mechanism,
                "epsilon": cell.epsilon,
                "scores": cell.scores.tolist(),
                "excess_risk": cell.excess.tolist(),
                "membership_auc": cell.attack_auc.tolist(),
                "membership_tpr_at_1_percent": cell.attack_tpr.tolist(),
                "certificate": json.loads(cell.certificate.to_json()) if cell.certificate else None,
            }
            for cell in result.cells
        ],
    }
