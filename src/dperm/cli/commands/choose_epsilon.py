"""Show what each ε buys, and find the least one for a target."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.printing import say, say_json, say_lines, warn
from dperm.cli.shared import Delta, JsonFlag, Relation, dataset_of, refuse_same, reserved


def choose_epsilon(
    source: Annotated[str, typer.Argument(help="A file (CSV, Parquet, Arrow, NumPy, libsvm) or a named data set; two classes.")],
    target: Annotated[str | None, typer.Option(help="Target column.")] = None,
    schema: Annotated[Path | None, typer.Option(help="Public schema of the table (see `dperm data propose`).")] = None,
    accuracy: Annotated[float | None, typer.Option(help="The accuracy on held-out records that is wanted.")] = None,
    auc: Annotated[float | None, typer.Option(help="Or the area under the curve.")] = None,
    loss: Annotated[float | None, typer.Option(help="Or the mean loss.")] = None,
    model: Annotated[str, typer.Option(help="logistic or svm.")] = "logistic",
    low: Annotated[float, typer.Option(help="The least ε that is looked at.")] = 0.1,
    high: Annotated[float, typer.Option(help="The largest.")] = 10.0,
    delta: Delta = 1e-5,
    draws: Annotated[int, typer.Option(help="Draws of the noise that are averaged over.")] = 20,
    held_out: Annotated[float, typer.Option(help="Share of the records that is held out to measure on.")] = 0.2,
    tolerance: Annotated[float | None, typer.Option(help="Relative error of mean losses along ε that will do.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the split and the noise, to see the same again.")] = None,
    relation: Relation = "add_or_remove_one",
    data_norm: Annotated[float, typer.Option(help="Public bound on a row's L2 norm; longer rows are scaled down.")] = 1.0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Page to write.")] = Path("epsilon.html"),
    as_json: JsonFlag = False,
) -> None:
    """Show what each ε buys and leaves to an attacker, and the least that reaches a target. PRIVATE: for the data holder only.

    \b
    Examples:
      dperm choose-epsilon people.csv --target income --accuracy 0.84
      dperm choose-epsilon adult --low 0.05 -o adult-epsilon.html
    """
    from dperm._validate import choice
    from dperm.estimators import DPLinearSVC, DPLogisticRegression
    from dperm.report.choosing import choosing_page, levels

    kinds = {"logistic": DPLogisticRegression, "svm": DPLinearSVC}
    choice("--model", model, kinds)
    wanted: list[tuple[Any, float]] = [
        (name, value) for name, value in (("accuracy", accuracy), ("auc", auc), ("loss", loss)) if value is not None
    ]
    if len(wanted) > 1:
        raise ValueError(f"Expected one target, got {' and '.join('--' + name for name, _ in wanted)}.")
    refuse_same(source, schema, output)
    page = reserved(output, private=True)
    dataset, _ = dataset_of(source, target, schema)
    dataset.refuse_persons("the choice of ε")
    if not dataset.classes:
        raise ValueError("Expected labels as target, got numbers: ε is chosen for classifiers.")
    estimator = kinds[model](delta=delta, relation=relation, data_norm=data_norm, classes=list(dataset.classes))
    for name, value in (("--accuracy", accuracy), ("--auc", auc)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"Expected {name} between 0 and 1, got {value:g}.")
    curve = estimator.epsilon_path(
        dataset.features, dataset.targets,
        low=low, high=high, draws=draws, held_out=held_out, random_state=seed, tolerance=tolerance,
    )  # fmt: skip
    metric, value = wanted[0] if wanted else ("accuracy", None)
    outcome: Any = None
    if value is not None:
        try:
            outcome = curve.epsilon_for(value, metric)
        except ValueError as error:
            outcome = str(error)
    missed = isinstance(outcome, str)
    measured = round(held_out * len(dataset.targets))
    rows = levels(curve, metric, None if missed else outcome)
    page.write(choosing_page(curve, metric, value, outcome, rows, dataset.title or dataset.name))
    if as_json:
        chosen = None if missed or outcome is None else outcome.epsilon
        stated = {
            "for_data_holder_only": True,
            "charged": False,
            "metric": metric,
            "target": value,
            "epsilon": chosen,
            "delta": delta,
        }
        stated |= {"held_out_records": measured, "draws": draws, "reason": outcome if missed else None}
        stated["method"] = None if missed or outcome is None else repr(outcome.method)
        say_json(json.dumps({**stated, "levels": [asdict(row) for row in rows]}))
    else:
        from dperm.report.summary import level_table

        level_table(rows, metric)
        if outcome is not None and not missed:
            say_lines(str(outcome))
        say(f"Measured on one random split: {measured} records held out, {draws} draws of the noise. Others give another ε.")
        say(f"PRIVATE, for the data holder only. Page written to {output}.")
    if missed:
        warn(outcome)
        raise typer.Exit(1)


def register(app: typer.Typer) -> None:
    app.command()(choose_epsilon)
