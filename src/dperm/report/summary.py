"""A study on the terminal, and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from dperm._extras import needed
from dperm._json import on_one_line
from dperm._types import Array
from dperm.gradient.correlation.choosing import Compared
from dperm.objectives import RECORD
from dperm.privacy.accountants.closed_forms import Rung
from dperm.report.advice import advise, shown_epsilon
from dperm.report.bounds import BoundRow
from dperm.report.choosing import Level
from dperm.report.influence import Influences
from dperm.report.leaderboard import WORSE, measured_text, ranked_keys, score_text, short_of, told_apart
from dperm.report.page import machine
from dperm.report.study import Cell, StudyResult
from dperm.report.study_scores import measures_of
from dperm.utility import Problem

with needed("rich", "A table on the terminal"):
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_ABOUT_ONE = len("0.123")  # written as .123


def result_table(result: StudyResult, console: Console | None = None) -> None:
    """Print the advice; then the score that ranks, mean ± 95 % half-width, for each mechanism and ε, the best of a column in bold
    if told apart, with models without privacy below; then all scores at the ε of the advice."""
    console = console or Console()
    advice = advise(result)
    at = shown_epsilon(result, advice)
    repeated = "1 split" if result.study.repeats == 1 else f"{result.study.repeats} repeats"
    _print(console, f"{result.title}: {result.counted}", style="bold")
    _print(console, advice.sentence, style="bold green" if advice.mechanism else "bold yellow")
    for remark in advice.remarks:
        _print(console, remark)
    console.print()
    whose = "rows of other persons" if result.task.unit != RECORD else "records"
    unit = " in %" if result.measure.unit == "percent" else ""
    interval = ", ± half of a 95 % interval, for other splits" if result.study.repeats > 1 else ""
    _print(console, f"{result.metric}{unit} on held-out {whose}: {repeated}, δ = {result.study.delta:g}{interval}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Model", no_wrap=True)
    for epsilon in result.study.epsilons:
        table.add_column(f"ε = {epsilon:g}", justify="right", no_wrap=True)
    best = told_apart(result)
    for key in ranked_keys(result, at):
        cells = [result.cell(key, epsilon) for epsilon in result.study.epsilons]
        shown = [_line(_shown(result, cell), style="bold green" if best[cell.epsilon or 0.0] == key else "") for cell in cells]
        table.add_row(_line(short_of(key)), *shown)
    table.add_section()
    for cell in result.references:
        table.add_row(_line(short_of(cell.mechanism)), _line(_shown(result, cell)))
    console.print(table)
    if any(cell.mean < 0 for cell in result.cells if cell.mechanism != "constant") and not result.task.classes:
        _print(console, f"< 0: {WORSE}.")
    _scores_table(result, at, console)


def _scores_table(result: StudyResult, epsilon: float, console: Console) -> None:
    """Print all scores of the first two private models at one ε, and of those without privacy."""
    measures = measures_of(result.task.classes, result.task.ordered)
    units = f" ({', '.join(each.short for each in measures if each.unit == 'percent')} in %)"
    if not result.task.classes:
        units = f", errors in the units of {repr(result.target) if result.target else 'the target'}"
    _print(console, f"All scores at ε = {epsilon:g}{units}")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Model", no_wrap=True)
    for each in measures:
        table.add_column(each.short, justify="right")
    for cell in [*(result.cell(key, epsilon) for key in ranked_keys(result, epsilon)[:2]), *result.references]:
        table.add_row(_line(short_of(cell.mechanism)), *(_line(_short(measured_text(cell, each))) for each in measures))
    console.print(table)


def _shown(result: StudyResult, cell: Cell) -> str:
    mean, spread = score_text(result, cell)
    return _short(mean) + (f"±{_short(spread)}" if spread else "")


def _short(text: str) -> str:
    """A score where there is little room."""
    return "< 0" if text == WORSE else text.removeprefix("0") if text.startswith("0.") and len(text) == _ABOUT_ONE else text


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


def results_json(results: Sequence[StudyResult]) -> str:
    """Every repeat's score and excess risk, the certificates, the settings and the machine."""
    return json.dumps(
        {"machine": machine(), "studies": [_study(result) for result in results]}, ensure_ascii=False, allow_nan=False
    )


def _plain(values: Array) -> list[float | None]:
    """JSON-ready: None where there is no number."""
    return [float(value) if math.isfinite(value) else None for value in values]


def _study(result: StudyResult) -> dict[str, Any]:
    return {
        "dataset": result.dataset,
        "records": result.records,
        "features": result.task.features,
        "classes": result.task.classes,
        "metric": result.metric,
        "baseline": result.baseline,
        "advice": vars(advise(result)),
        "copied": result.copied,
        "settings": vars(result.study),
        "seconds": result.seconds,
        "cells": [
            {
                "mechanism": cell.mechanism,
                "epsilon": cell.epsilon,
                "scores": _plain(cell.scores),
                "measures": {name: _plain(values) for name, values in cell.measures.items()},
                "excess_risk": _plain(cell.excess),
                "membership_auc": _plain(cell.attack_auc),
                "membership_tpr_at_1_percent": _plain(cell.attack_tpr),
                "certificate": json.loads(cell.certificate.to_json()) if cell.certificate else None,
            }
            for cell in result.cells
        ],
    }
