"""Named data sets and schemas."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dperm.cli.command_files import JsonFlag, Source
from dperm.cli.files import reserved, told, told_kept, told_to_holder
from dperm.cli.printing import printed_instead, progress, say, say_json
from dperm.jobs.files import dataset_of, keep, refuse_same, uninterrupted
from dperm.jobs.options import TABLES, Delta, Relation

if TYPE_CHECKING:
    from dperm.data import Schema

_WORDS = {"number": "number", "category": "category", "date": "date", "ignore": "left out", "label": "target"}
_ENTRIES = 40  # that are shown for confirmation
_READ = 5  # entries that are shown, of those that are read as something else


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    as_json: JsonFlag = False


def list_(asked: ListOptions) -> None:
    """Named data sets.

    \b
    Example:
      dperm data list
    """
    from dperm import data

    rows = [(name, data.schema_of(name)) for name in data.named()]
    if asked.as_json:
        say_json([{"name": name, "title": schema.title, "dimension": schema.dimension} for name, schema in rows])
        return
    for name, schema in rows:
        say(f"{name:24s} {schema.dimension:4d} features, {len(schema.classes):2d} classes   {schema.title}")


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    name: Annotated[str, typer.Argument(help="A named data set or a schema file.")]


def show(asked: ShowOptions) -> None:
    """A schema: columns, ranges, categories, where they come from.

    \b
    Examples:
      dperm data show adult
      dperm data show people.schema.json
    """
    from dperm import data

    schema = data.Schema.load(asked.name) if Path(asked.name).is_file() else data.schema_of(asked.name)
    say_json(schema.to_json().rstrip())


@dataclass(frozen=True, kw_only=True)
class ProposeOptions:
    source: Annotated[
        Path, typer.Argument(help=f"A table: a file ({', '.join(TABLES)}), or with --epsilon a folder of Parquet files.")
    ]
    target: Annotated[str, "Target column."]
    epsilon: Annotated[float | None, "Find it privately, within this ε, and charge that: no looking at the data otherwise."] = (
        None
    )
    delta: Delta = 1e-5
    unit: Annotated[str, "The column that tells persons apart, where one may have several rows."] = ""
    least_units: Annotated[
        int | None,
        "Without --epsilon: how many persons (without --unit: rows) must hold a category or label for it to be proposed "
        "[default: 10].",
    ] = None
    classes: Annotated[str | None, "With --epsilon: all labels, if they are public (a,b,c)."] = None
    relation: Relation = "add_or_remove_one"
    separator: Annotated[str | None, "Of a text [default: found out]. It goes into the schema."] = None
    encoding: Annotated[str | None, "Of a text: utf-8, cp1252 … [default: found out]."] = None
    decimal: Annotated[str | None, "Of its numbers: . or , [default: found out]."] = None
    skip_lines: Annotated[int | None, "Lines above its header."] = None
    missing: Annotated[list[str] | None, "How a missing value is written; repeat it."] = None
    header: Annotated[bool | None, "Without one, columns are called column_1 and so on."] = None
    line_breaks: Annotated[bool | None, "Whether quoted entries go on in further lines."] = None
    task: Annotated[str | None, "classification or regression [default: by what the target holds]. Without --epsilon."] = None
    output: Annotated[Path | None, "Schema to write [default: NAME.schema.json]."] = None


def propose(asked: ProposeOptions) -> None:
    """Propose a schema by looking at the data; correct and confirm it before use. What it says and writes is for the data holder
    alone. With --epsilon: find one privately, for everybody.

    \b
    Examples:
      dperm data propose people.csv --target income
      dperm data propose people.csv --target income --epsilon 0.1
    """
    output = asked.output
    from dperm._validate import choice
    from dperm.data.schema.schema_file import EDITOR_FILE, editor_file

    name = asked.source.name.split(".")[0]
    output = asked.output or asked.source.with_name(f"{name}.schema.json")
    refuse_same(asked.source, output, output.with_name(EDITOR_FILE))
    file = reserved(output, private=asked.epsilon is None, paid_for=True)  # what is there may be paid for, or edited by hand
    beside = reserved(output.with_name(EDITOR_FILE))
    if asked.task is not None:
        choice("--task", asked.task, ("classification", "regression"))
    schema = _proposed(asked, name)
    with uninterrupted():
        kept = keep(file, schema.to_json(editor=True), printed_instead)
    beside.write(editor_file())
    say(f"{output}: {schema.dimension} features from {len(schema.columns) - 1} columns.{told_kept(kept)}")
    if asked.epsilon is not None:
        if ignored := [column.name for column in schema.columns if column.type == "ignore"]:
            say(f"Left out (one value, or nothing common enough): {', '.join(ignored)}.")
        say(f"{schema.source} It is charged, and on the certificate of every model that is trained by it.")
        say('Ranges are of round numbers, beyond which few records lie; values in no list are "other".')
        return
    _tell_proposed(schema)
    say("This looked at the data without privacy: the draft, and what is said here, are for the data holder alone.")
    say("Replace ranges, categories and labels by what is publicly known, then say so:")
    say(f"  dperm data confirm {output}")
    say("Until then certificates say that they were read off the data.")


def _proposed(asked: ProposeOptions, name: str) -> Schema:
    """Proposed from the rows, or found privately."""
    from dperm import data
    from dperm.data.columnar import stored_in_parts

    stated = {
        "separator": "\t" if asked.separator in ("tab", "\\t") else asked.separator,
        "encoding": asked.encoding,
        "decimal": asked.decimal,
        "skip_lines": asked.skip_lines,
        "missing": asked.missing or None,
        "header": asked.header,
        "line_breaks": asked.line_breaks,
    }
    given = {name: value for name, value in stated.items() if value is not None}
    table = stored_in_parts(asked.source) if asked.epsilon is not None else None
    if table is not None and given:
        raise ValueError(f"Expected no {', '.join(given)} to be stated: {asked.source} is read in parts, by its own description.")
    if table is None:
        frame: Any = data.read_table(asked.source, written=given)
        say(told(asked.source.name, frame))
    else:
        frame = asked.source
        say(f"{asked.source.name}: {table.rows:,} rows of {len(table.columns)} columns, read a part at a time.")
    if asked.epsilon is None:
        if asked.classes is not None:
            raise ValueError("Expected --epsilon with --classes: otherwise edit the schema.")
        task: Any = asked.task
        least = {} if asked.least_units is None else {"least_units": asked.least_units}
        return data.propose(frame, asked.target, name, unit=asked.unit, task=task, **least)
    if asked.least_units is not None:
        raise ValueError("Expected no --least-units with --epsilon: noise decides which values are common enough.")
    if asked.task is not None:
        raise ValueError("Expected no --task with --epsilon: --classes states labels.")
    labels = [label.strip() for label in asked.classes.split(",")] if asked.classes else []
    given: dict[str, Any] = {"name": name, "unit": asked.unit, "classes": labels, "relation": asked.relation}
    with progress("Counting", table is not None) as bar:
        return data.find(frame, asked.target, asked.epsilon, asked.delta, **given, progress=bar)


def _tell_proposed(schema: Schema) -> None:
    """Each column with its note, and what may be the unit."""
    say("PRIVATE, for the data holder only: notes name entries of single rows. They are gone once the schema is confirmed.")
    say()
    width = max(len(column.name) for column in schema.columns)
    for column in schema.columns:
        say(f"  {column.name:{width}}  {_WORDS[column.type]:8}  {column.note}")
        for entry, meant in list(column.read.items())[:_READ]:
            say(f"  {'':{width}}  {'':8}  {entry!r} is read as {'missing' if meant is None else repr(meant)}")
    say()
    if len(schema.classes) > 2:
        say(
            f"Have the labels of {schema.target} an order, such as never, sometimes, always? Then put them into it under "
            f'"classes", from the least to the greatest, and write "measure": "ordinal" at the column {schema.target}.'
        )
    if not schema.unit and (units := [column.name for column in schema.columns if "persons apart?" in column.note]):
        say(f"May a person have several rows? If {' or '.join(units)} tells persons apart, run this again with --unit.")


@dataclass(frozen=True, kw_only=True)
class ConfirmOptions:
    source: Annotated[Path, typer.Argument(help="A proposed schema.")]
    yes: Annotated[bool, "What it asks is right as the file says it now."] = False
    output: Annotated[Path | None, "Where to write it [default: the same file]."] = None


def confirm(asked: ConfirmOptions) -> None:
    """State that a proposed schema is publicly known, which takes out what was noted of the data. What a note asks must be
    answered: correct the column and take its note out, or say --yes.

    \b
    Example:
      dperm data confirm people.schema.json
    """
    from dperm import data

    schema = data.Schema.load(asked.source)
    if not schema.proposed and schema == schema.without_notes():
        raise ValueError(f"Expected a proposed schema, got {asked.source}, which is none.")
    output = asked.output or asked.source
    file = reserved(output)
    file.write(
        data.confirmed(schema, answered=asked.yes).to_json(editor="$schema" in asked.source.read_text(encoding="utf-8-sig"))
    )
    say(f"{output}: you state that its ranges, categories and labels were known without looking at the rows.")
    if read := sum(len(column.read) for column in schema.columns):
        such = (
            "is the entry that it says how to read: it stands"
            if read == 1
            else f"are the {read:,} entries that it says how to read: they stand"
        )
        say(f"So {such} in every model that is trained by it.")
        shown = [(column.name, entry) for column in schema.columns for entry in column.read]
        say(f"  {'; '.join(f'{name}: {entry!r}' for name, entry in shown[:_ENTRIES])}{' …' if len(shown) > _ENTRIES else ''}")
        say("Take out those that few records have, or that name somebody.")
    if schema.ordered:
        say(schema.order_asked())
    say("Certificates of what is trained by it will rest on that.")


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    source: Source
    schema: Annotated[Path | None, "The schema it should fit."] = None


def check(asked: CheckOptions) -> None:
    """Does a table fit its schema? Says so to the data holder; releases nothing.

    \b
    Example:
      dperm data check people.csv --schema people.schema.json
    """
    dataset, _ = dataset_of(asked.source, None, asked.schema)
    told_to_holder(dataset)
    what = f"{len(dataset.classes)} classes" if dataset.classes else "numbers as target"
    say(f"{asked.source} fits: {dataset.described()}, {dataset.features.shape[1]} features, {what}.")
