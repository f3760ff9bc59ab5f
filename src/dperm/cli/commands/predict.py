"""Predict with a trained model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dperm.cli.command_files import JsonFlag, OnError
from dperm.cli.files import refitted, reserved, told, told_of_rows, wrong_rows
from dperm.cli.printing import say, say_json
from dperm.jobs.files import SavedModel, refuse_same
from dperm.jobs.options import KINDS, VerifyKey


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    model: Annotated[Path, typer.Argument(help="A model written by `dperm train`.")]
    source: Annotated[
        str,
        typer.Argument(
            help=f"Records with what the model was trained on; the target may be absent: a file ({KINDS}) or a named data set."
        ),
    ]
    output: Annotated[Path | None, "CSV file to write [default: predictions.csv; with --records private-predictions.csv]."] = None
    on_error: OnError = "fail"
    keep: Annotated[str | None, "Columns of the table to copy beside the answers, such as whose each is: case,ward."] = None
    threshold: Annotated[
        float | None,
        "Of two classes: the probability from which on the later one is the answer; public. Chosen by looking at private records "
        "it tells of them.",
    ] = None
    records: Annotated[
        Path | None, "The table it was trained on: gives each number an interval, and the answers are PRIVATE."
    ] = None
    level: Annotated[float, "With --records: how often an interval covers."] = 0.95
    refits: Annotated[int, "With --records: models that are trained to see how they differ."] = 100
    raw_cells: Annotated[bool, "Write texts as they are, also those that a spreadsheet would run as formulas."] = False
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def predict(asked: PredictOptions) -> None:
    """Predict with a trained model. Costs no privacy of the training records; with --records the intervals look at these, and the
    answers are for the data holder alone.

    \b
    Example:
      dperm predict model.json new.csv -o answers.csv
      dperm predict model.json new.csv --keep case --on-error skip -o answers.csv
      dperm predict model.json new.csv --threshold 0.2
      dperm predict model.json new.csv --records people.csv -o private-answers.csv
    """
    from dperm import _validate as check
    from dperm import data
    from dperm.report.predictions import Rows, answered, refuse_threshold
    from dperm.report.spreadsheets import for_spreadsheets

    check.choice("--on-error", asked.on_error, ("fail", "skip"))
    check.fraction("--level", asked.level)
    if asked.threshold is not None:
        check.fraction("--threshold", asked.threshold)
    output = asked.output or Path("predictions.csv" if asked.records is None else "private-predictions.csv")
    refuse_same(asked.model, asked.source, output)
    refuse_same(asked.model, asked.records, output)
    answers = reserved(output, private=True)
    saved = SavedModel.at(asked.model, asked.verify_key)
    if asked.threshold is not None:
        refuse_threshold(saved.fitted)

    def admitted(faults: dict[int, str], table: data.ReadTable, schema: data.Schema) -> None:
        if not asked.as_json:
            say(told(Path(asked.source).name, table))
        wrong_rows(faults, len(table.frame), schema, asked.on_error)
        if not asked.as_json:  # a target is not needed here
            told_of_rows(table.without(faults), schema, unlabelled=0, targets_outside=0)

    rows = Rows.of(asked.source, saved.extra, _names(asked.keep), admitted)
    again = refitted(saved, asked.records, asked.refits, shown=not asked.as_json)
    table = answered(saved.fitted, rows, saved.target_range, again, asked.level, asked.threshold)
    table, quoted = (table, {}) if asked.raw_cells else for_spreadsheets(table)
    answers.write(table.to_csv(index=False))
    if asked.as_json:
        summary = {"predictions": len(table) - len(rows.faults), "blank": len(rows.faults), "output": str(output)}
        say_json({**summary, "private": asked.records is not None, "quoted": quoted})
        return
    _tell(asked, saved.fitted, f"{len(table) - len(rows.faults):,} predictions written to {output}.", rows.faults, quoted)


def _tell(asked: PredictOptions, fitted: Any, done: str, faults: dict[int, str], quoted: dict[str, int]) -> None:
    from dperm.objectives import LinearObjective

    say(done)
    if asked.threshold is not None:
        say(f"The answer is {fitted.classes_[1]} from a probability of {asked.threshold:g} on.")
    if isinstance(getattr(fitted, "objective_", None), LinearObjective) and fitted.objective_.loss.targets.ranked:
        say("Answers are the median class, which is least off in ranks: it need not be the one with the largest probability.")
    if asked.records is not None:
        say(
            f"PRIVATE, for the data holder only: the intervals, meant to cover {asked.level:.0%}, depend on every training "
            "record."
        )
    if getattr(fitted, "class_weight", None) is not None and hasattr(fitted, "predict_proba"):
        say("Probabilities are those of weighted classes: too high for a class that counts more, and no shares of records.")
    if quoted:
        cells = ", ".join(f"{count:,} in {name}" for name, count in quoted.items())
        say(f"With a ' in front, for spreadsheets would run them as formulas: {cells}. --raw-cells leaves them as they are.")
    if faults:
        first = next(iter(faults))
        say(f"Left blank: {len(faults):,}. Row {first + 1}: {faults[first]}. Each row's reason stands in its line.")


def _names(keep: str | None) -> list[str] | None:
    return None if keep is None else [name.strip() for name in keep.split(",")]
