"""Show what each ε buys, and find the least one for a target."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.command_files import JsonFlag, Source
from dperm.cli.files import reserved
from dperm.cli.printing import say, say_json, say_lines, warn
from dperm.jobs.files import dataset_of, refuse_same
from dperm.jobs.models import KINDS
from dperm.jobs.options import Delta, Relation

if TYPE_CHECKING:
    from dperm._files import Reserved
    from dperm.data import Dataset


@dataclass(frozen=True, kw_only=True)
class ChooseEpsilonOptions:
    source: Source
    target: Annotated[str | None, "Target column."] = None
    schema: Annotated[Path | None, "Public schema of the table (see `dperm data propose`)."] = None
    accuracy: Annotated[float | None, "The accuracy on held-out records that is wanted."] = None
    auc: Annotated[float | None, "Or the area under the curve."] = None
    loss: Annotated[float | None, "Or the mean loss."] = None
    model: Annotated[str, "logistic or svm."] = "logistic"
    low: Annotated[float, "The least ε that is looked at."] = 0.1
    high: Annotated[float, "The largest."] = 10.0
    delta: Delta = 1e-5
    draws: Annotated[int, "Draws of the noise that are averaged over."] = 20
    held_out: Annotated[float, "Share of the records that is held out to measure on."] = 0.2
    tolerance: Annotated[float | None, "Relative error of mean losses along ε that will do."] = None
    seed: Annotated[int | None, "Of the split and the noise, to see the same again."] = None
    relation: Relation = "add_or_remove_one"
    data_norm: Annotated[float, "Public bound on a row's L2 norm; longer rows are scaled down."] = 1.0
    output: Annotated[Path, "Page to write."] = Path("epsilon.html")
    as_json: JsonFlag = False


def choose_epsilon(asked: ChooseEpsilonOptions) -> None:
    """Show what each ε buys and leaves to an attacker, and the least that reaches a target. PRIVATE: for the data holder only.
    For records of two classes.

    \b
    Examples:
      dperm choose-epsilon people.csv --target income --accuracy 0.84
      dperm choose-epsilon adult --low 0.05 -o adult-epsilon.html
    """
    from dperm.report.choosing import choosing_page, levels
    from dperm.report.summary import level_table

    metric, value, page, dataset, estimator = _prepared(asked)
    along = {name: getattr(asked, name) for name in ("low", "high", "draws", "held_out", "tolerance")}
    curve = estimator.epsilon_path(dataset.features, dataset.targets, random_state=asked.seed, **along)
    outcome: Any = None
    if value is not None:
        try:
            outcome = curve.epsilon_for(value, metric)
        except ValueError as error:
            outcome = str(error)
    missed = isinstance(outcome, str)
    chosen = None if missed else outcome
    measured = round(asked.held_out * len(dataset.targets))
    rows = levels(curve, metric, chosen)
    page.write(choosing_page(curve, metric, value, outcome, rows, dataset.title or dataset.name))
    if asked.as_json:
        stated: dict[str, Any] = {"for_data_holder_only": True, "charged": False, "metric": metric, "target": value}
        stated |= {"epsilon": None if chosen is None else chosen.epsilon, "delta": asked.delta, "held_out_records": measured}
        stated |= {"draws": asked.draws, "reason": outcome if missed else None}
        stated["method"] = None if chosen is None else repr(chosen.method)
        say_json({**stated, "levels": [asdict(row) for row in rows]})
    else:
        level_table(rows, metric)
        if chosen is not None:
            say_lines(str(chosen))
        say(
            f"Measured on one random split: {measured} records held out, {asked.draws} draws of the noise. Others give another ε."
        )
        say(f"PRIVATE, for the data holder only. Page written to {asked.output}.")
    if missed:
        warn(outcome)
        raise typer.Exit(1)


def _prepared(asked: ChooseEpsilonOptions) -> tuple[Any, float | None, Reserved, Dataset, Any]:
    """The metric and its target, the page's file, the data and the estimator. ValueError for what cannot be measured."""
    from dperm._validate import choice

    kind = KINDS[choice("--model", asked.model, ("logistic", "svm"))]
    wanted = [(name, value) for name in ("accuracy", "auc", "loss") if (value := getattr(asked, name)) is not None]
    if len(wanted) > 1:
        raise ValueError(f"Expected one target, got {' and '.join('--' + name for name, _ in wanted)}.")
    refuse_same(asked.source, asked.schema, asked.output)
    page = reserved(asked.output, private=True)
    dataset, _ = dataset_of(asked.source, asked.target, asked.schema)
    dataset.refuse_persons("the choice of ε")
    if not dataset.classes:
        raise ValueError("Expected labels as target, got numbers: ε is chosen for classifiers.")
    settings = {name: getattr(asked, name) for name in ("delta", "relation", "data_norm")}
    estimator = kind.make(**settings, classes=list(dataset.classes))
    for name, value in (("--accuracy", asked.accuracy), ("--auc", asked.auc)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"Expected {name} between 0 and 1, got {value:g}.")
    metric, value = wanted[0] if wanted else ("accuracy", None)
    return metric, value, page, dataset, estimator
