"""Schemas as JSON files: what may stand in one, and how they are written for people to edit. `docs/schemas.md` has it in full."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from dperm.data.schema.columns import Column
from dperm.data.schema.entries import SchemaError

#: A JSON Schema of schema files: editors complete and check by it.
EDITOR_FILE = "schema-format.json"
_COLUMN_FIELDS = {field.name: field.default for field in fields(Column)}
#: Entries of a column.
COLUMN_ENTRIES = frozenset(_COLUMN_FIELDS)
#: Entries of a file, in the order in which they are written; "columns" come last.
ENTRIES = (
    "name", "target", "classes", "target_range", "missing", "curves", "pairs", "unit", "max_rows_per_unit", "proposed", "title",
    "source", "licence", "found", "format", "columns",
)  # fmt: skip
_BESIDE = ("$schema", "dimension", "files", "bundled", "openml")  # for editors, and for the registry of named sets
#: Entries of a format: how a text is written, and labels of named sets.
#: What may be stated of how a text is written.
TEXT_OPTIONS = ("separator", "encoding", "decimal", "header", "skip_lines", "missing", "strip", "line_breaks")
#: Those of these that say what entries mean, in files of any kind.
ENTRY_OPTIONS = ("missing", "strip")
FORMAT = frozenset({*TEXT_OPTIONS, "label_suffix", "other_label"})
#: What entries of a file are.
_KINDS: tuple[tuple[type, tuple[str, ...], str], ...] = (
    (str, ("name", "target", "missing", "unit", "title", "source", "licence"), "text"),
    (list, ("columns", "classes", "pairs"), "a list"),
    (dict, ("format",), "an object"),
    (bool, ("proposed",), "true or false"),
)


def given_by(data: Mapping[str, Any]) -> dict[str, Any]:
    """A file's entries, its columns as such. SchemaError for one that is missing, unknown, or of another kind."""
    if odd := sorted(set(data) - {*ENTRIES, *_BESIDE}):
        close = get_close_matches(odd[0], ENTRIES, 1)
        meant = f" Is {close[0]!r} meant?" if close else ""
        raise SchemaError(f"Expected only the entries {sorted(ENTRIES)} in a schema, got {odd[:3]}.{meant}")
    if "max_rows_per_unit" in data and not data.get("unit"):
        raise SchemaError("Expected a unit with max_rows_per_unit: the column that tells persons apart.")
    if "found" in data and not (isinstance(data["found"], dict) and data["found"]):
        raise SchemaError("Expected found to be the certificate that the schema was found by, or no such entry.")
    for kind, names, what in _KINDS:
        for name in names:
            if name in data and type(data[name]) is not kind:
                raise SchemaError(f"Expected {name} to be {what}, got {data[name]!r}.")
    if odd := sorted(set(data.get("format", {})) - FORMAT):
        raise SchemaError(f"Expected the entries {sorted(FORMAT)} in a format, got {odd[:3]}.")
    if lost := [name for name in ("name", "target", "columns") if name not in data]:
        raise SchemaError(f"A schema needs name, target, columns and classes or a range in the target's row, got no {lost[0]}.")
    given = {name: data[name] for name in ENTRIES if name in data}
    return given | {"columns": tuple(_column(item) for item in data["columns"]), "classes": tuple(data.get("classes", ()))}


def _column(item: Any) -> Column:
    if not isinstance(item, dict) or not isinstance(item.get("categories", []), list):
        raise SchemaError(f"Expected a column with name, type, range or a list of categories, got {item!r}.")
    if odd := sorted(map(str, set(item) - COLUMN_ENTRIES)):
        close = get_close_matches(odd[0], COLUMN_ENTRIES, 1)
        meant = f"is {close[0]!r} meant?" if close else f"it has {', '.join(_COLUMN_FIELDS)}."
        raise SchemaError(f"Expected no entry {odd[0]!r} in column {item.get('name')!r}: {meant}")
    if type(item.get("name")) is not str:
        raise SchemaError(f"Expected a column's name to be text, got {item.get('name')!r}.")
    if "type" not in item:
        raise SchemaError(f"Expected a type of column {item['name']!r}.")
    if odd := [value for value in item.get("categories", ()) if not isinstance(value, str | int | float)]:
        raise SchemaError(f"Expected categories of {item['name']!r} to be texts or numbers, got {odd[0]!r}.")
    for name in ("parts", "also_reads"):
        if not isinstance(item.get(name, []), list):
            raise SchemaError(f"Expected {name} of {item['name']!r} to be a list, got {item[name]!r}.")
    lists = ("categories", "parts", "also_reads")
    given: dict[str, Any] = {name: tuple(value) if name in lists else value for name, value in item.items()}
    return Column(**given)


def as_text(entries: Mapping[str, Any], *, editor: bool) -> str:
    """A file of these entries, those that are not as usual, one column a line. `editor`: it names the file beside it that editors
    complete from."""
    head: dict[str, Any] = {"$schema": f"./{EDITOR_FILE}"} if editor else {}
    for name in ENTRIES[:-1]:
        value = entries[name]
        if value not in ("", (), None, {}) and value is not False:
            head[name] = dict(value) if isinstance(value, Mapping) else value
    if not entries["curves"]:
        del head["curves"]
    if not entries["unit"]:
        del head["max_rows_per_unit"]
    lines = [f"    {json.dumps(_entries(column), ensure_ascii=False)}" for column in entries["columns"]]
    return json.dumps(head, indent=2, ensure_ascii=False)[:-2] + ',\n  "columns": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def _entries(column: Column) -> dict[str, Any]:
    entries: dict[str, Any] = {"name": column.name, "type": column.type}
    for name, usual in _COLUMN_FIELDS.items():
        value = getattr(column, name)
        if name not in entries and value != usual and value not in ((), {}):
            entries[name] = dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
    return entries


def editor_file() -> str:
    """The text of that file."""
    return files("dperm.data").joinpath(EDITOR_FILE).read_text(encoding="utf-8")
