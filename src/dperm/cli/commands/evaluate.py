"""How good a model is on test records."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.command_files import JsonFlag, OnError
from dperm.cli.files import reserved, told_kept, told_of_rows, wrong_rows
from dperm.cli.printing import printed_instead, progress, say, say_json, warn
from dperm.jobs.files import SavedModel, keep, read, refuse_same, uninterrupted
from dperm.jobs.options import KINDS, Delta, Relation, VerifyKey
from dperm.jobs.trained_from import was_trained_from

if TYPE_CHECKING:
    from dperm.report.evaluation import Evaluation

_MODES = {
    "public": "The test records are public: these numbers may be shown.",
    "private": "PRIVATE, for the data holder only: no noise hides what these numbers say of the test records.",
    "released": "With noise, and charged: these numbers may be published.",
}
_TRAINED_ON = (
    "the model was trained on this very table, which it suits better than new records. Keep records aside before training, or "
    "let `dperm compare` do so."
)


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    model: Annotated[Path, typer.Argument(help="A model written by `dperm train`.")]
    source: Annotated[
        str,
        typer.Argument(
            help=f"Test records with their target, none that the model was trained on: a file ({KINDS}) or a named data set."
        ),
    ]
    test_data: Annotated[
        str,
        "public: the numbers may be shown; private: they are the data holder's alone; released: with noise, within "
        "--epsilon, which is charged.",
    ]
    on_error: OnError = "fail"
    by: Annotated[str | None, "A column of the table: scores of each of its values, too."] = None
    epsilon: Annotated[float | None, "With --test-data released: what the numbers may cost."] = None
    delta: Delta = 1e-5
    relation: Relation = "add_or_remove_one"
    output: Annotated[Path, "With --test-data released: the numbers and their certificate, as JSON."] = Path("scores.json")
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def evaluate(asked: EvaluateOptions) -> None:
    """How good a model is on test records, none of which it was trained on: accuracy, recall of each class, AUC, calibration; R²
    and errors of numbers. Exact, and nothing is charged: of private records the numbers are for their holder alone. Or from noisy
    counts, charged, for everybody.

    \b
    Example:
      dperm evaluate model.json test.csv --test-data private
      dperm evaluate model.json test.csv --test-data public --by ward
      dperm evaluate model.json test.csv --test-data released --epsilon 0.5
    """
    from dperm._validate import choice

    choice("--test-data", asked.test_data, _MODES)
    choice("--on-error", asked.on_error, ("fail", "skip"))
    released = asked.test_data == "released"
    if released != (asked.epsilon is not None):
        raise ValueError("Expected --epsilon with --test-data released, and only there: what the numbers may cost.")
    file = None
    if released:
        refuse_same(asked.model, asked.source, asked.output)
        file = reserved(asked.output, paid_for=True)
    test, told_rows = _read(asked)
    if file is not None:
        with progress("Answering", not asked.as_json) as bar:
            found = test.released(float(asked.epsilon or 0.0), asked.delta, asked.relation, bar)
        with uninterrupted():
            kept = keep(file, json.dumps(found, indent=2, ensure_ascii=False), printed_instead)
        if asked.as_json:
            say_json(found)
            return
        told_rows()
        if test.trained_on:
            warn(_TRAINED_ON)
        _tell_released(asked, found, test.dataset.name, kept)
        return
    whole, parts = test.judged()
    if test.trained_on:
        warn(f"For the data holder alone: {_TRAINED_ON}")
    if asked.as_json:
        found = {"test_data": asked.test_data, **whole.to_dict()}
        by = {} if asked.by is None else {"by": {name: part.to_dict() for name, part in parts.items()}}
        say_json({**found, **by})
        return
    say(_MODES[asked.test_data])
    told_rows()
    say(f"{whole.records:,} records.")
    for name, value in whole.scores.items():
        say(f"  {name:24s} {value:8.3f}")
    for name, value in whole.recalls.items():
        say(f"  {'recall of ' + name:24s} {value:8.3f}")
    for name, part in parts.items():
        first = next(iter(part.scores))
        say(f"  {asked.by} = {name}: {first} {part.scores[first]:.3f} of {part.records:,} records")
    for warning in whole.warnings:
        say(f"Warning: {warning}")


def _read(asked: EvaluateOptions) -> tuple[Evaluation, Callable[[], None]]:
    """The model and the test records, and what prints what stands out in these. ValueError for rows that do not fit."""
    from dperm import data
    from dperm.data.schema.entries import texts
    from dperm.data.schema.row_faults import row_faults
    from dperm.report.evaluation import Evaluation

    saved = SavedModel.at(asked.model, asked.verify_key)
    schema, table = saved.schema, None
    wrong: dict[int, str] = {}
    if schema is not None:
        named = not Path(asked.source).exists() and asked.source in data.named()
        if named and asked.by is not None:
            raise ValueError(f"Expected a file with --by, got the named set {asked.source}.")
        table = None if named else data.read_table(asked.source, schema)
        if table is not None:
            wrong = wrong_rows(row_faults(schema, table), len(table.frame), schema, asked.on_error)
            table = table.without(wrong)
        dataset = data.load(asked.source, schema) if table is None else data.Dataset.of(table, schema)
    else:
        dataset, _ = data.read_dataset(asked.source, **saved.as_read)
    groups = None
    if asked.by is not None:
        if table is None or asked.by not in table.frame.columns:
            known = [] if table is None else list(table.frame.columns[:12])
            raise ValueError(f"Expected --by one of the columns {known}, got {asked.by!r}.")
        told = table.frame[asked.by] if dataset.places is None else table.frame[asked.by].iloc[dataset.places]
        groups = texts(told, ()).fillna("(missing)").astype(str).to_numpy()

    def told_rows() -> None:
        if table is not None and schema is not None:
            left_out = [f"Left out: {len(wrong):,}. Row {row + 1}: {why}." for row, why in [*wrong.items()][:1]]
            told_of_rows(table, schema, public=asked.test_data == "public", left_out=left_out)

    ranges: dict[str, Any] = {"target_range": saved.target_range, "range_is_public": saved.range_is_public}
    ranges["trained_on"] = was_trained_from(read(asked.model), asked.source)
    test = Evaluation(saved.fitted, dataset, schema, by=asked.by, groups=groups, model_sha256=saved.sha256, **ranges)
    return test, told_rows


def _tell_released(asked: EvaluateOptions, found: dict[str, Any], name: str, older: Path | None) -> None:
    from dperm._rounding import upward
    from dperm.report.model_scores import HIDDEN, counted, half_width, hidden

    who, cost = found["of"], found["certificate"]
    say(_MODES["released"])
    size = counted(found["records"], found["half_widths"].get("records"))
    say(f"About {size} {who}. Half-widths of 95 % intervals are for the noise alone.")
    recalls = {f"recall of {label}": value for label, value in found["recalls"].items()}
    for score, value in {**found["scores"], **recalls}.items():
        width = found["half_widths"].get(score)
        unknown = value is None or hidden(score, value, width)
        told = HIDDEN if unknown else f"{value:8.3f}" + ("" if width is None else f" {half_width(width)}")
        say(f"  {score:24s} {told}")
    for group, part in found.get("by", {}).items():
        first, value = next(iter(part["scores"].items()))
        width, size = part["half_widths"].get(first), counted(part["records"], part["half_widths"].get("records"))
        score = f"{first} {HIDDEN}," if value is None else f"{first} {value:.3f} {half_width(width)} of"
        say(f"  {asked.by} = {group}: {score} about {size} {who}")
    price = f"epsilon = {upward(cost['epsilon'])} at delta = {upward(cost['delta'], 2)}"
    say(f"They cost {price}, charged to {name!r}; see {asked.output}.{told_kept(older)}")
