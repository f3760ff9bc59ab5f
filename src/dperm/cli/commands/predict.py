"""Predict with a trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.printing import say, say_json
from dperm.cli.shared import JsonFlag, OnError, VerifyKey, read, refitted, refuse_same, reserved, told, told_of_rows, wrong_rows


def predict(
    model: Annotated[Path, typer.Argument(help="A model written by `dperm train`.")],
    source: Annotated[str, typer.Argument(help="A table with the columns of the model's schema; the target may be absent.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="CSV file to write [default: predictions.csv; with --records private-predictions.csv]."
        ),
    ] = None,
    on_error: OnError = "fail",
    keep: Annotated[
        str | None, typer.Option(help="Columns of the table to copy beside the answers, such as whose each is: case,ward.")
    ] = None,
    records: Annotated[
        Path | None, typer.Option(help="The table it was trained on: gives each number an interval, and the answers are PRIVATE.")
    ] = None,
    level: Annotated[float, typer.Option(help="With --records: how often an interval covers.")] = 0.95,
    refits: Annotated[int, typer.Option(help="With --records: models that are trained to see how they differ.")] = 100,
    raw_cells: Annotated[
        bool, typer.Option("--raw-cells", help="Write texts as they are, also those that a spreadsheet would run as formulas.")
    ] = False,
    verify_key: VerifyKey = None,
    as_json: JsonFlag = False,
) -> None:
    """Predict with a trained model. Costs no privacy of the training records; with --records the intervals look at these, and the
    answers are for the data holder alone.

    \b
    Example:
      dperm predict model.json new.csv -o answers.csv
      dperm predict model.json new.csv --keep case --on-error skip -o answers.csv
      dperm predict model.json new.csv --records people.csv -o private-answers.csv
    """

    import numpy as np
    import pandas as pd

    from dperm import _validate as check
    from dperm import data
    from dperm.data.schema.row_faults import clipped_rows, row_faults, rows_of_other_parts
    from dperm.estimators import model_from_json
    from dperm.report.spreadsheets import for_spreadsheets

    check.choice("--on-error", on_error, ("fail", "skip"))
    check.fraction("--level", level)
    output = output or Path("predictions.csv" if records is None else "private-predictions.csv")
    refuse_same(model, source, output)
    refuse_same(model, records, output)
    answers = reserved(output, private=True)
    loaded: tuple[Any, dict[str, Any]] = model_from_json(read(model), verify_key=verify_key)  # of any kind
    fitted, extra = loaded
    faults: dict[int, str] = {}
    clipped: dict[int, str] = {}
    copied: Any = None
    rows = 0
    schema = data.Schema.from_dict(extra["schema"]) if extra.get("schema") else None
    if schema is None:
        features = data.read_dataset(source, indices=extra.get("indices"))[0].features
    else:
        if source in data.named() and not Path(source).exists():
            features = data.load(source, schema).features
        else:
            frame = data.read_frame(source, schema)
            if not as_json:
                say(told(Path(source).name, frame))
            if absent := [name for name in _names(keep) if name not in frame.columns]:
                raise ValueError(f"Expected --keep to name columns of the table, got {absent}.")
            copied = frame[_names(keep)].reset_index(drop=True)
            faults, clipped, rows = row_faults(schema, frame), clipped_rows(schema, frame), len(frame)
            if (part := extra.get("fit_by")) is not None:
                rest = [row for row in range(rows) if row not in faults]
                others = rows_of_other_parts(schema, frame.iloc[rest], part["column"], part["value"])
                faults |= {rest[row]: why for row, why in others.items()}
            wrong_rows(faults, rows, schema, on_error)
            fit = frame.drop(index=frame.index[list(faults)])
            if not as_json:
                told_of_rows(fit, schema, unlabelled=0, targets_outside=0)  # a target is not needed here
            features, _ = data.SchemaEncoder(schema, fit).features()
    restored = data.TargetRange(*extra["target_range"]).restored if extra.get("target_range") else np.asarray
    table = pd.DataFrame({"prediction": restored(fitted.predict(features))})
    names = list(fitted.classes_) if hasattr(fitted, "predict_proba") else []
    if names:
        table[[f"probability of {name}" for name in names]] = fitted.predict_proba(features)
    if records is not None:
        again = refitted(fitted, records, schema, refits, shown=not as_json, indices=extra.get("indices"))
        for side, values in zip(("lowest", "highest"), again.predictions(features, level), strict=True):
            table[[f"PRIVATE {side} of {name}" for name in names] or f"PRIVATE {side}"] = values if names else restored(values)
    if keep is not None and copied is None:
        raise ValueError("Expected no --keep: only tables with a schema have columns to copy.")
    if faults:  # one line for every record of the input
        table.index = pd.Index([row for row in range(rows) if row not in faults])
        table = table.reindex(range(rows))
        table["left blank because"] = pd.Series(faults)
    if clipped := {row: names for row, names in clipped.items() if row not in faults}:
        table["taken at the end of its range"] = pd.Series(clipped)
    if copied is not None:
        table = pd.concat([copied, table], axis=1)
    table, quoted = (table, {}) if raw_cells else for_spreadsheets(table)
    answers.write(table.to_csv(index=False))
    summary = {
        "predictions": len(table) - len(faults),
        "blank": len(faults),
        "output": str(output),
        "private": records is not None,
        "quoted": quoted,
    }
    if as_json:
        say_json(json.dumps(summary))
        return
    say(f"{len(table) - len(faults):,} predictions written to {output}.")
    if records is not None:
        say(f"PRIVATE, for the data holder only: the intervals, meant to cover {level:.0%}, depend on every training record.")
    if getattr(fitted, "class_weight", None) is not None and hasattr(fitted, "predict_proba"):
        say("Probabilities are those of weighted classes: too high for a class that counts more, and no shares of records.")
    if quoted:
        cells = ", ".join(f"{count:,} in {name}" for name, count in quoted.items())
        say(f"With a ' in front, for spreadsheets would run them as formulas: {cells}. --raw-cells leaves them as they are.")
    if faults:
        first = next(iter(faults))
        say(f"Left blank: {len(faults):,}. Row {first + 1}: {faults[first]}. Each row's reason stands in its line.")


def _names(keep: str | None) -> list[str]:
    return [] if keep is None else [name.strip() for name in keep.split(",")]


def register(app: typer.Typer) -> None:
    app.command()(predict)
