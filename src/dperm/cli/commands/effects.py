"""Draw what a model says of each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.command_files import JsonFlag
from dperm.cli.files import refitted, reserved
from dperm.cli.printing import progress, say, say_json
from dperm.jobs.files import SavedModel, json_table, refuse_same
from dperm.jobs.options import VerifyKey

if TYPE_CHECKING:
    from dperm.data import Schema
    from dperm.report.effect_values import Effect
    from dperm.report.effect_words import Heights
    from dperm.report.level_noise import LevelNoise

_SHOWN = 10  # columns


@dataclass(frozen=True, kw_only=True)
class EffectsOptions:
    model: Annotated[Path, typer.Argument(help="A model of a table, written by `dperm train`.")]
    records: Annotated[Path | None, "The table it was trained on: bands are drawn, and the page is PRIVATE."] = None
    noise: Annotated[Path | None, "A file of `dperm intervals` for this model, for bands of the noise of privacy."] = None
    refits: Annotated[int, "With --records: models that are trained to see how they differ."] = 100
    label: Annotated[
        str | None, "Of more than two classes: for which. The first of two, or of ordered ones, turns signs round."
    ] = None
    row: Annotated[
        list[str] | None,
        "Explain one prediction instead: repeat it for each column, --row age=40 --row job=nurse, or --row job= where "
        "it is missing; or the row of a table, --row new.csv:3.",
    ] = None
    output: Annotated[
        Path | None,
        "Page to write [default: effects.html; with --records private-effects.html; with --row none, and it holds the row].",
    ] = None
    verify_key: VerifyKey = None
    as_json: JsonFlag = False


def effects(asked: EffectsOptions) -> None:
    """Draw what a model says of each column: a curve or bars. Made from the model alone: it costs no privacy. With --records it
    trains models like it on draws from these, and is for the data holder alone. With --row it explains one prediction.

    \b
    Example:
      dperm effects model.json -o effects.html
      dperm effects model.json --noise intervals.json
      dperm effects model.json --records people.csv -o private-effects.html
      dperm effects model.json --row age=40 --row job=nurse
      dperm effects model.json --row new.csv:3 -o explained.html
    """
    if asked.row:
        _explain(asked, asked.row)
        return
    from dperm.report import effects as report
    from dperm.report.effect_values import noise_of, ranked
    from dperm.report.effect_words import heights_of

    output = asked.output or Path("effects.html" if asked.records is None else "private-effects.html")
    refuse_same(asked.model, output, asked.records, asked.noise)
    if asked.noise is not None and asked.records is not None:
        raise ValueError("Expected --noise or --records, got both: bands have one meaning.")
    page = reserved(output, private=asked.records is not None)
    saved, schema = _model(asked)
    again = refitted(saved, asked.records, asked.refits, shown=not asked.as_json)
    constant = (saved.extra.get("fit_by") or {}).get("column")
    noise = noise_of(saved.fitted, schema, asked.label, again, _released_noise(asked, saved, schema))
    found = report.effects(saved.fitted, schema, asked.label, constant=constant, noise=noise)
    with progress("Drawing", not asked.as_json) as step:
        drawn = report.effects_page(saved.fitted, schema, asked.label, constant=constant, noise=noise, progress=step)
    page.write(drawn)
    heights = heights_of(saved.fitted, schema, asked.label)
    if asked.as_json:
        say_json(_as_json(found, heights, schema, private=again is not None))
        return
    _tell(found, ranked(found, noise), heights)
    if again is not None:
        say(f"PRIVATE, for the data holder only: {output} shows how much of the model is chance on these records.")
    say(f"Page written to {output}.")


def _model(asked: EffectsOptions) -> tuple[SavedModel, Schema]:
    """The model and its schema. ValueError for a model of arrays, and where a label is not named that has to be."""
    saved = SavedModel.at(asked.model, asked.verify_key)
    schema = saved.schema
    if schema is None:
        raise ValueError(f"Expected a model of a table with a schema, got {asked.model}: its features have no names.")
    known = list(getattr(saved.fitted, "classes_", ()))
    if asked.label is None and len(known) > 2 and len(getattr(saved.fitted, "coef_", ())) > 1:
        raise ValueError(f"Expected --label, one of {', '.join(map(str, known[:8]))}: each class has effects of its own.")
    return saved, schema


def _released_noise(asked: EffectsOptions, saved: SavedModel, schema: Schema) -> LevelNoise | None:
    """The noise of the levels by what was released for it; None where no file was given."""
    if asked.noise is None:
        return None
    from dperm.report.coefficients import contrast_noise
    from dperm.report.level_noise import CurvatureNoise

    return CurvatureNoise.of(saved.fitted, contrast_noise(saved.fitted, schema, json_table(asked.noise)))


def _as_json(found: Sequence[Effect], heights: Heights, schema: Schema, *, private: bool) -> dict[str, Any]:
    columns = [
        {
            "column": each.column,
            "places": list(each.places),
            "heights": each.heights.tolist(),
            "missing": each.missing,
            "noise": None if each.noise is None else each.noise.tolist(),
            "may_be_empty": [{**vars(level), "stands_out": level.stands_out} for level in each.may_be_empty],
        }
        for each in found
    ]
    return {"curves": schema.curves, "private": private, "unit": heights.axis, "columns": columns}


def _tell(found: Sequence[Effect], order: tuple[list[Effect], list[Effect]] | None, heights: Heights) -> None:
    """The columns in the order of the page."""
    if order is None:
        first = list(found)
        say("The noise of these levels is not known, so that nothing is ranked. The lowest and the highest level of each column:")
    else:
        first, rest = order
        verb = "does" if len(first) == 1 else "do"
        ends = f" {'Its' if len(first) == 1 else 'Their'} lowest and highest levels:" if first else ""
        say(f"{len(first)} of {len(first) + len(rest)} columns {verb} more than noise does.{ends}")
    for each in first[:_SHOWN]:
        low, high = each.ends
        ends = f"{each.place(low)} {heights.said(each.heights[low])}, {each.place(high)} {heights.said(each.heights[high])}"
        say(f"  {each.column}: {ends}")
    if len(first) > _SHOWN:
        say(f"  and {len(first) - _SHOWN} more")
    say(heights.explained)


def _explain(asked: EffectsOptions, entries: list[str]) -> None:
    """Explain one prediction, on the terminal, and in a page where one is asked for."""
    from dperm.report.explained import explain, explanation_page

    if asked.records is not None:
        raise ValueError("Expected --row or --records, got both: an explanation has no bands.")
    table = _table_of(entries)
    refuse_same(asked.model, asked.output, None if table is None else table[0])
    page = None if asked.output is None else reserved(asked.output, private=True)
    saved, schema = _model(asked)
    part: Mapping[str, Any] = saved.extra.get("fit_by") or {}
    row = _typed(entries, part, schema) if table is None else _row_of(*table, schema, part)
    noise = _released_noise(asked, saved, schema)
    found = explain(saved.fitted, schema, row, asked.label, constant=part.get("column"), noise=noise)
    if page is not None:
        page.write(explanation_page(found, schema.title or schema.name))
    if asked.as_json:
        say_json(found.to_dict())
        return
    heights = found.heights
    lines = [(heights.level(found.constant), "constant: the average of every column")]
    for each in found.ordered:
        lines.append((heights.said(each.height), f"{each.column} = {each.value}{each.remark and f' ({each.remark})'}"))
    width = max(len(number) for number, _ in lines)
    for number, what in lines:
        say(f"  {number:>{width}}  {what}")
    say(f"Prediction: {found.answer}.")
    say(heights.explained)
    if asked.output is not None:
        say(f"Page written to {asked.output}. It holds the row.")


def _table_of(entries: list[str]) -> tuple[Path, int] | None:
    """The table and the number of its row, from 1, where --row names one; None where it gives entries."""
    if len(entries) > 1 or "=" in entries[0]:
        return None
    path, _, number = entries[0].rpartition(":")
    if not path:
        return Path(entries[0]), 1
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(f"Expected --row name=value, or a table and the number of its row as new.csv:3, got {entries[0]!r}.")
    return Path(path), int(number)


def _typed(entries: list[str], part: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """Entries by column; that of the column that has one value in all rows need not be given."""
    row: dict[str, Any] = {}
    for entry in entries:
        known = [name for name in schema.table_columns() if entry.startswith(f"{name}=")]
        name = max(known, key=len, default=entry.partition("=")[0])  # a name may have this mark, too
        if "=" not in entry or name in row:
            raise ValueError(f"Expected --row name=value, each name once, got {entry!r}.")
        row[name] = entry[len(name) + 1 :] or None
    if part and row.setdefault(part["column"], part["value"]) != part["value"]:
        raise ValueError(f"Expected {part['column']} = {part['value']}, which this model is for, got {row[part['column']]!r}.")
    return row


def _row_of(path: Path, number: int, schema: Schema, part: Mapping[str, Any]) -> Any:
    from dperm import data
    from dperm.data.schema.row_faults import rows_of_other_parts

    table = data.read_table(path, schema)
    if number > len(table.frame):
        raise ValueError(f"Expected a row from 1 to {len(table.frame):,} of {path}, got {number:,}.")
    table = replace(table, frame=table.frame.iloc[[number - 1]])
    if part and (other := rows_of_other_parts(schema, table, part["column"], part["value"])):
        raise ValueError(f"The row does not fit the model: {other[0]}.")
    return table
